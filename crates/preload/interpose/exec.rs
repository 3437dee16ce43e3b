//! Starts of programs. One that does not load this library reads originals: a static program, one
//! for other processors, or one without the environment. So the report can name it.
//!
//! The price is that of reading the first bytes of the program, for each start. `execl` and its
//! relatives, `fexecve` and system calls are not seen.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::layout::{PROGRAM_HEAD, ProgramKind};
use crate::mapped::{Mapped, VARIABLE, environ, find_variable};
use crate::opens::stand_in;
use crate::{next, system};

/// The longest path of a program that is looked for.
const PATH_BYTES: usize = 256;

/// Where programs are looked for without the variable.
const USUAL: &[u8] = b"/bin:/usr/bin";

type Strings = *const *const c_char;
type Execve = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type Execv = unsafe extern "C" fn(*const c_char, Strings) -> c_int;
type Spawn =
    unsafe extern "C" fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

/// Notes the start of a program, if it does not load this library.
///
/// # Safety
/// `path` is a C string or null, and `variables` are an environment or null.
unsafe fn note(path: *const c_char, variables: Strings, is_searched: bool) {
    let Some(mapped) = Mapped::get().filter(|_| !path.is_null()) else { return };
    // SAFETY: a C string, and an environment.
    let (path, has_variable) =
        unsafe { (CStr::from_ptr(path), find_variable(variables, VARIABLE).is_some()) };
    let is_unserved = if is_searched && !path.to_bytes().contains(&b'/') {
        search(path.to_bytes(), has_variable)
    } else {
        is_unserved(path, has_variable, true)
    };
    if is_unserved == Some(true) {
        mapped.starts_unserved(path.to_bytes());
    }
}

/// The same for a name without `/`.
fn search(name: &[u8], has_variable: bool) -> Option<bool> {
    // SAFETY: the environment of this process.
    let list = unsafe { find_variable(environ, b"PATH=") }.map_or(USUAL, CStr::to_bytes);
    for directory in list.split(|byte| *byte == b':') {
        let mut path = [0_u8; PATH_BYTES];
        // A longer path is left out.
        let whole = path.get_mut(..directory.len() + 1 + name.len() + 1)?;
        let (start, rest) = whole.split_at_mut(directory.len());
        start.copy_from_slice(directory);
        let (slash, rest) = rest.split_first_mut()?;
        *slash = b'/';
        rest.get_mut(..name.len())?.copy_from_slice(name);
        let path = CStr::from_bytes_until_nul(&path).ok()?;
        if let Some(found) = is_unserved(path, has_variable, true) {
            return Some(found);
        }
    }
    None
}

/// Whether a program does not load this library. `None` if there is no such program.
fn is_unserved(path: &CStr, has_variable: bool, follows_scripts: bool) -> Option<bool> {
    let mut head = [0_u8; PROGRAM_HEAD];
    // A pipe with this name has no other end that the open may wait for.
    let flags = system::O_CLOEXEC | system::O_NONBLOCK | system::O_NOCTTY;
    // SAFETY: a C string.
    let opened = unsafe { system::openat(system::AT_FDCWD, path.as_ptr(), flags, 0) };
    let descriptor = c_int::try_from(opened).ok().filter(|descriptor| *descriptor >= 0)?;
    let read = system::read_head(descriptor, &mut head).map(<[u8]>::len);
    system::close(descriptor);
    match ProgramKind::of(head.get(..read?)?) {
        ProgramKind::Dynamic => Some(!has_variable),
        ProgramKind::Unserved => Some(true),
        ProgramKind::Script(interpreter) if follows_scripts => {
            let mut path = [0_u8; PATH_BYTES];
            path.get_mut(..interpreter.len())?.copy_from_slice(interpreter);
            is_unserved(CStr::from_bytes_until_nul(&path).ok()?, has_variable, false)
        }
        ProgramKind::Script(_) | ProgramKind::Unknown => None,
    }
}

stand_in! {
    /// `execve`.
    execve(path: *const c_char, words: Strings, variables: Strings) -> c_int = {
        note(path, variables, false);
        match next::EXECVE.get::<Execve>() {
            Some(execve) => execve(path, words, variables),
            None => system::returned(system::execve(path, words, variables)),
        }
    };
    /// `execv`.
    execv(path: *const c_char, words: Strings) -> c_int = {
        note(path, environ, false);
        match next::EXECV.get::<Execv>() {
            Some(execv) => execv(path, words),
            None => system::returned(system::execve(path, words, environ)),
        }
    };
    /// `execvp`.
    execvp(file: *const c_char, words: Strings) -> c_int = {
        note(file, environ, true);
        match next::EXECVP.get::<Execv>() {
            Some(execvp) => execvp(file, words),
            None => system::returned(system::execve(file, words, environ)),
        }
    };
    /// `execvpe`.
    execvpe(file: *const c_char, words: Strings, variables: Strings) -> c_int = {
        note(file, variables, true);
        match next::EXECVPE.get::<Execve>() {
            Some(execvpe) => execvpe(file, words, variables),
            None => system::returned(system::execve(file, words, variables)),
        }
    };
    /// `posix_spawn`.
    posix_spawn(
        process: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        words: Strings, variables: Strings
    ) -> c_int = {
        note(path, variables, false);
        match next::POSIX_SPAWN.get::<Spawn>() {
            Some(spawn) => spawn(process, path, actions, attributes, words, variables),
            None => system::ENOSYS,
        }
    };
    /// `posix_spawnp`.
    posix_spawnp(
        process: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        words: Strings, variables: Strings
    ) -> c_int = {
        note(file, variables, true);
        match next::POSIX_SPAWNP.get::<Spawn>() {
            Some(spawn) => spawn(process, file, actions, attributes, words, variables),
            None => system::ENOSYS,
        }
    };
}
