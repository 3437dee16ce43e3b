//! `fopen` and `freopen`. Libc opens the file itself there, so it gets the path of the copy.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::next::{self, Next};
use crate::opens::stand_in;
use crate::{decision, system};

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
type Freopen = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void) -> *mut c_void;

stand_in! {
    /// `fopen`.
    fopen(path: *const c_char, mode: *const c_char) -> *mut c_void = fopen_by(&next::FOPEN, path, mode);
    /// Its name for long files.
    fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void = fopen_by(&next::FOPEN64, path, mode);
    /// Its name within libc.
    _IO_fopen(path: *const c_char, mode: *const c_char) -> *mut c_void = fopen_by(&next::FOPEN, path, mode);
    /// `freopen`.
    freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void =
        freopen_by(&next::FREOPEN, path, mode, stream);
    /// Its name for long files.
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void =
        freopen_by(&next::FREOPEN64, path, mode, stream);
}

unsafe extern "C" {
    fn fileno(stream: *mut c_void) -> c_int;
}

/// Notes the file of a stream that was opened to write, if it was.
///
/// # Safety
/// A stream of libc, or null.
unsafe fn written(stream: *mut c_void) -> *mut c_void {
    if !stream.is_null() {
        // SAFETY: an open stream.
        decision::changed_descriptor(unsafe { fileno(stream) });
    }
    stream
}

/// Whether a mode only reads.
///
/// # Safety
/// A C string.
unsafe fn only_reads(mode: *const c_char) -> bool {
    // SAFETY: a C string, if there is one.
    !mode.is_null()
        && unsafe { CStr::from_ptr(mode) }.to_bytes().iter().enumerate().all(|(at, byte)| {
            // `r,ccs=...` converts, which concerns the bytes of any file alike.
            (at > 0 || *byte == b'r') && *byte != b'+'
        })
}

/// # Safety
/// The strings are C strings, and `next` is a function like `fopen`.
unsafe fn fopen_by(next: &Next, path: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: the caller's proof, for all of them.
    unsafe {
        // A libc without it has no streams either.
        let Some(fopen) = next.get::<Fopen>() else { return core::ptr::null_mut() };
        if !only_reads(mode) {
            if !decision::may_change(system::AT_FDCWD, path, true) {
                system::returned(-(system::EACCES as isize));
                return core::ptr::null_mut();
            }
            return written(fopen(path, mode));
        }
        let Some(copy) = decision::copy(system::AT_FDCWD, path, 0) else { return fopen(path, mode) };
        let stream = if copy.is_there() { fopen(copy.path.as_ptr(), mode) } else { core::ptr::null_mut() };
        if stream.is_null() {
            copy.failed(system::last_error());
            return fopen(path, mode);
        }
        copy.opened();
        stream
    }
}

/// # Safety
/// The strings are C strings, and `next` is a function like `freopen`.
unsafe fn freopen_by(
    next: &Next,
    path: *const c_char,
    mode: *const c_char,
    stream: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's proof, for all of them.
    unsafe {
        let Some(freopen) = next.get::<Freopen>() else { return core::ptr::null_mut() };
        if path.is_null() {
            return freopen(path, mode, stream);
        }
        // A failed call closes the stream, so there is no second one: only originals are opened.
        // Their opens are rare.
        if only_reads(mode) {
            return freopen(path, mode, stream);
        }
        if !decision::may_change(system::AT_FDCWD, path, true) {
            system::returned(-(system::EACCES as isize));
            return core::ptr::null_mut();
        }
        written(freopen(path, mode, stream))
    }
}
