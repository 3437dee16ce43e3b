//! Starts of programs. Some programs do not load this library and read originals: static programs,
//! programs for other processors, and programs without the environment. So the report can name it.
//!
//! A program that cannot load it is started without it ([`Environment`]).
//!
//! The price is that of reading the first bytes of the program, for each start. `execl` and its
//! relatives, `fexecve` and system calls are not seen.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::environment::{Environment, finds_library};
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
type Spawn =
    unsafe extern "C" fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

/// The facts of a program that are needed before its start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// It loads this library.
    Served,
    /// It does not.
    Unserved,
    /// It cannot.
    Foreign,
}

/// Notes the start of a program, if it does not load this library. Returns its environment, which
/// may be in `space`.
///
/// # Safety
/// `path` is a C string or null, and `variables` are an environment or null.
unsafe fn prepare(
    path: *const c_char,
    variables: Strings,
    is_searched: bool,
    space: &mut Environment,
) -> Strings {
    let Some(mapped) = Mapped::get().filter(|_| !path.is_null()) else { return variables };
    // SAFETY: a C string, and an environment.
    let (path, has_variable) =
        unsafe { (CStr::from_ptr(path), find_variable(variables, VARIABLE).is_some()) };
    let start = if is_searched && !path.to_bytes().contains(&b'/') {
        search(path.to_bytes(), has_variable)
    } else {
        look(path, has_variable, true)
    };
    // SAFETY: an environment or null.
    let is_foreign =
        start == Some(Start::Foreign) || start == Some(Start::Served) && !unsafe { finds_library(variables) };
    if is_foreign || start == Some(Start::Unserved) {
        mapped.starts_unserved(path.to_bytes());
    }
    if !is_foreign || variables.is_null() {
        return variables;
    }
    // SAFETY: an environment.
    unsafe { space.without_library(variables) }.unwrap_or(variables)
}

/// The same for a name without `/`.
fn search(name: &[u8], has_variable: bool) -> Option<Start> {
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
        if let Some(found) = look(path, has_variable, true) {
            return Some(found);
        }
    }
    None
}

/// Looks at a program. `None` if there is none.
fn look(path: &CStr, has_variable: bool, follows_scripts: bool) -> Option<Start> {
    let mut head = [0_u8; PROGRAM_HEAD];
    // A pipe with this name has no other end that the open may wait for.
    let flags = system::O_CLOEXEC | system::O_NONBLOCK | system::O_NOCTTY;
    // SAFETY: a C string.
    let opened = unsafe { system::openat(system::AT_FDCWD, path.as_ptr(), flags, 0) };
    let descriptor = c_int::try_from(opened).ok().filter(|descriptor| *descriptor >= 0)?;
    let read = system::read_head(descriptor, &mut head).map(<[u8]>::len);
    system::close(descriptor);
    match ProgramKind::of(head.get(..read?)?) {
        ProgramKind::Dynamic if has_variable => Some(Start::Served),
        ProgramKind::Dynamic | ProgramKind::Static => Some(Start::Unserved),
        ProgramKind::Foreign => Some(Start::Foreign),
        ProgramKind::Script(interpreter) if follows_scripts => {
            let mut path = [0_u8; PATH_BYTES];
            path.get_mut(..interpreter.len())?.copy_from_slice(interpreter);
            look(CStr::from_bytes_until_nul(&path).ok()?, has_variable, false)
        }
        ProgramKind::Script(_) | ProgramKind::Unknown => None,
    }
}

stand_in! {
    /// `execve`.
    execve(path: *const c_char, words: Strings, variables: Strings) -> c_int = {
        let mut space = Environment::new();
        let variables = prepare(path, variables, false, &mut space);
        match next::EXECVE.get::<Execve>() {
            Some(execve) => execve(path, words, variables),
            None => system::returned(system::execve(path, words, variables)),
        }
    };
    /// `execv`.
    execv(path: *const c_char, words: Strings) -> c_int = {
        let mut space = Environment::new();
        let variables = prepare(path, environ, false, &mut space);
        match next::EXECVE.get::<Execve>() {
            Some(execve) => execve(path, words, variables),
            None => system::returned(system::execve(path, words, variables)),
        }
    };
    /// `execvp`.
    execvp(file: *const c_char, words: Strings) -> c_int = {
        let mut space = Environment::new();
        let variables = prepare(file, environ, true, &mut space);
        match next::EXECVPE.get::<Execve>() {
            Some(execvpe) => execvpe(file, words, variables),
            None => system::returned(system::execve(file, words, variables)),
        }
    };
    /// `execvpe`.
    execvpe(file: *const c_char, words: Strings, variables: Strings) -> c_int = {
        let mut space = Environment::new();
        let variables = prepare(file, variables, true, &mut space);
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
        let mut space = Environment::new();
        let variables = prepare(path, variables, false, &mut space);
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
        let mut space = Environment::new();
        let variables = prepare(file, variables, true, &mut space);
        match next::POSIX_SPAWNP.get::<Spawn>() {
            Some(spawn) => spawn(process, file, actions, attributes, words, variables),
            None => system::ENOSYS,
        }
    };
}
