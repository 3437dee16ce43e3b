//! `open` and all its names.
//!
//! Stable Rust has no variadic functions. On both processors that are supported, a third argument
//! is passed alike whether it is variadic or not, so the mode is an ordinary argument. It is
//! passed on, and means nothing where the caller gave none.

use core::ffi::{c_char, c_int};

use crate::layout::{OpenPurpose, open_flags};
use crate::next::{self, Next};
use crate::{decision, system};

type Open = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_int) -> c_int;

/// Opens a copy, or calls `original`.
///
/// # Safety
/// `path` is a C string.
unsafe fn open_or(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    original: impl FnOnce() -> c_int,
) -> c_int {
    match OpenPurpose::of(flags) {
        OpenPurpose::Read => {}
        OpenPurpose::Write => {
            let follows = flags & open_flags::NO_FOLLOW == 0;
            // SAFETY: as for this function.
            let may_change = unsafe { decision::may_change(directory, path, follows) };
            if !may_change {
                return system::returned(-(system::EACCES as isize));
            }
            let opened = original();
            decision::changed_descriptor(opened);
            return opened;
        }
        OpenPurpose::Other => return original(),
    }
    // SAFETY: as for this function.
    let Some(copy) = (unsafe { decision::copy(directory, path, flags) }) else { return original() };
    // SAFETY: the path of a copy is a C string.
    let opened = unsafe { system::openat(system::AT_FDCWD, copy.path.as_ptr(), flags, 0) };
    if opened >= 0 {
        if copy.is_open(opened as c_int) {
            copy.opened();
            return opened as c_int;
        }
        system::close(opened as c_int);
    }
    // Whatever is wrong with the copy, the original decides.
    copy.failed(opened);
    original()
}

/// # Safety
/// `path` is a C string, and `next` is a function like `open`.
unsafe fn open_by(next: &Next, path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the caller's proof, for all three.
    unsafe {
        open_or(system::AT_FDCWD, path, flags, || match next.get::<Open>() {
            Some(open) => open(path, flags, mode),
            None => system::returned(system::openat(system::AT_FDCWD, path, flags, mode)),
        })
    }
}

/// # Safety
/// `path` is a C string, and `next` is a function like `openat`.
unsafe fn openat_by(next: &Next, directory: c_int, path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the caller's proof, for all three.
    unsafe {
        open_or(directory, path, flags, || match next.get::<OpenAt>() {
            Some(open) => open(directory, path, flags, mode),
            None => system::returned(system::openat(directory, path, flags, mode)),
        })
    }
}

/// Defines functions of libc. Each passes its arguments to a function of this library.
macro_rules! stand_in {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $call:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the function of libc.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller meets the demands of the function of libc.
                unsafe { $call }
            }
        )*
    };
}
pub(crate) use stand_in;

/// The flags of `creat`.
const CREATES: c_int = open_flags::CREATE | open_flags::TRUNCATE | 1;

stand_in! {
    /// `open`.
    open(path: *const c_char, flags: c_int, mode: c_int) -> c_int = open_by(&next::OPEN, path, flags, mode);
    /// Its name for long files.
    open64(path: *const c_char, flags: c_int, mode: c_int) -> c_int =
        open_by(&next::OPEN64, path, flags, mode);
    /// Its name within libc.
    __open(path: *const c_char, flags: c_int, mode: c_int) -> c_int = open_by(&next::OPEN, path, flags, mode);
    /// Both.
    __open64(path: *const c_char, flags: c_int, mode: c_int) -> c_int =
        open_by(&next::OPEN64, path, flags, mode);
    /// `openat`.
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_int) -> c_int =
        openat_by(&next::OPENAT, directory, path, flags, mode);
    /// Its name for long files.
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: c_int) -> c_int =
        openat_by(&next::OPENAT64, directory, path, flags, mode);
    /// `open` of programs that are compiled with checks.
    __open_2(path: *const c_char, flags: c_int) -> c_int = open_by(&next::OPEN_2, path, flags, 0);
    /// Its name for long files.
    __open64_2(path: *const c_char, flags: c_int) -> c_int = open_by(&next::OPEN64_2, path, flags, 0);
    /// `openat` of programs that are compiled with checks.
    __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int =
        openat_by(&next::OPENAT_2, directory, path, flags, 0);
    /// Its name for long files.
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int =
        openat_by(&next::OPENAT64_2, directory, path, flags, 0);
    /// `creat`.
    creat(path: *const c_char, mode: c_int) -> c_int = creat_by(&next::CREAT, path, mode);
    /// Its name for long files.
    creat64(path: *const c_char, mode: c_int) -> c_int = creat_by(&next::CREAT64, path, mode);
}

/// # Safety
/// `path` is a C string, and `next` is a function like `creat`.
unsafe fn creat_by(next: &Next, path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's proof, for all three.
    unsafe {
        if !decision::may_change(system::AT_FDCWD, path, true) {
            return system::returned(-(system::EACCES as isize));
        }
        let opened = match next.get::<unsafe extern "C" fn(*const c_char, c_int) -> c_int>() {
            Some(creat) => creat(path, mode),
            None => system::returned(system::openat(system::AT_FDCWD, path, CREATES, mode)),
        };
        decision::changed_descriptor(opened);
        opened
    }
}
