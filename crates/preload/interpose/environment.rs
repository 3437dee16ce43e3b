//! The environment of a program that cannot load this library.
//!
//! The dynamic linker prints an error for a preloaded library that it cannot load: in a program of
//! another class of processors (32 bits), after `chroot`, or without the right to read the file.
//! Such a program is started without the library and reads originals. The price is that the
//! programs that it starts do so, too.
//!
//! Nothing is allocated, because a child between `vfork` and `exec` has its parent's memory. A
//! larger environment is left as it is.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use crate::mapped::find_variable;
use crate::system;

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// The most variables, and the longest list of libraries in bytes.
const MAX_VARIABLES: usize = 384;
const MAX_PRELOAD: usize = 1024;

/// Room for an environment.
pub(crate) struct Environment {
    variables: [*const c_char; MAX_VARIABLES + 1],
    preload: [u8; MAX_PRELOAD],
}

impl Environment {
    pub(crate) const fn new() -> Self {
        Self { variables: [ptr::null(); MAX_VARIABLES + 1], preload: [0; MAX_PRELOAD] }
    }

    /// The same variables without this library. `None` if there is no room for them.
    ///
    /// # Safety
    /// An environment: C strings with a null pointer at the end.
    pub(crate) unsafe fn without_library(
        &mut self,
        variables: *const *const c_char,
    ) -> Option<*const *const c_char> {
        let (mut at, mut count) = (variables, 0);
        loop {
            // SAFETY: not beyond the null pointer.
            let mut entry = unsafe { *at };
            if entry.is_null() {
                break;
            }
            // SAFETY: the strings of the environment are C strings.
            let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
            if let Some(list) = text.strip_prefix(PRELOAD) {
                let length = keep_others(list, &mut self.preload)?;
                entry = if length > PRELOAD.len() { self.preload.as_ptr().cast() } else { ptr::null() };
            }
            if !entry.is_null() {
                *self.variables.get_mut(count).filter(|_| count < MAX_VARIABLES)? = entry;
                count += 1;
            }
            // SAFETY: the null pointer was not reached.
            at = unsafe { at.add(1) };
        }
        *self.variables.get_mut(count)? = ptr::null();
        Some(self.variables.as_ptr())
    }
}

/// Whether the dynamic linker of a program with these variables finds this library, or does not
/// look for it. Only an absent or denied file is not found: a process without free descriptors may
/// have some after its start.
///
/// # Safety
/// Null, or an environment: C strings with a null pointer at the end.
pub(crate) unsafe fn finds_library(variables: *const *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let Some(list) = (unsafe { find_variable(variables, PRELOAD) }) else { return true };
    let Some(own) = libraries(list.to_bytes()).find(|path| is_own(path)) else { return true };
    let mut path = [0_u8; MAX_PRELOAD];
    let Some(to) = path.get_mut(..own.len()) else { return true };
    to.copy_from_slice(own);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return true };
    // SAFETY: a C string.
    let opened = unsafe { system::openat(system::AT_FDCWD, path.as_ptr(), system::O_CLOEXEC, 0) };
    if let Ok(descriptor) = c_int::try_from(opened)
        && descriptor >= 0
    {
        system::close(descriptor);
    }
    !matches!(-opened as c_int, system::ENOENT | system::ENOTDIR | system::EACCES)
}

fn libraries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| matches!(byte, b':' | b' ')).filter(|path| !path.is_empty())
}

/// Whether a library is this one, by the name that the host gives it: `preload-0123abcd.so`.
fn is_own(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let number = name.strip_prefix(b"preload-").and_then(|rest| rest.strip_suffix(b".so"));
    number.is_some_and(|number| number.len() == 8 && number.iter().all(u8::is_ascii_hexdigit))
}

/// Writes the variable with the other libraries of a list as a C string, and returns its length.
fn keep_others(list: &[u8], to: &mut [u8; MAX_PRELOAD]) -> Option<usize> {
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        to.get_mut(length..length + bytes.len())?.copy_from_slice(bytes);
        length += bytes.len();
        Some(())
    };
    put(PRELOAD)?;
    let mut is_first = true;
    for path in libraries(list).filter(|path| !is_own(path)) {
        if !is_first {
            put(b":")?;
        }
        put(path)?;
        is_first = false;
    }
    put(b"\0")?;
    Some(length - 1)
}
