//! Calls that change the results of `fstat` for a file: modes, owners, times and extended
//! attributes.
//!
//! By a path, the file is marked before. By a descriptor of a copy, they are refused: the path of
//! the original is not known there.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use crate::changes::OnePath;
use crate::decision;
use crate::next::{self, Next};
use crate::opens::stand_in;
use crate::system::{self, AT_FDCWD};

/// A path, with the directory that it begins at, and the flags of the call. A null path and an
/// empty one with `AT_EMPTY_PATH` mean the descriptor.
type Target = (c_int, *const c_char, c_int);

/// Calls the function of libc, or the kernel if there is none, unless that would change a copy.
///
/// # Safety
/// The path is a C string or null, and `F` is the type of the function of libc.
unsafe fn change<F: Copy>(
    (directory, path, flags): Target,
    next: &Next,
    call: impl FnOnce(F) -> c_int,
    otherwise: impl FnOnce() -> isize,
) -> c_int {
    let empty = flags & system::AT_EMPTY_PATH;
    // SAFETY: C strings.
    let is_refused = unsafe {
        if path.is_null() {
            decision::is_copy(directory, c"".as_ptr(), system::AT_EMPTY_PATH)
        } else if decision::is_copy(directory, path, empty) {
            true
        } else {
            !decision::may_change(directory, path, flags & system::AT_SYMLINK_NOFOLLOW == 0)
        }
    };
    if is_refused {
        return system::returned(-(system::EROFS as isize));
    }
    // SAFETY: the caller's proof.
    let result = match unsafe { next.get::<F>() } {
        Some(next) => call(next),
        None => system::returned(otherwise()),
    };
    let follows = flags & system::AT_SYMLINK_NOFOLLOW == 0;
    // SAFETY: the path is a C string or null.
    system::keeping_error(|| unsafe { decision::has_changed(directory, path, follows) });
    result
}

/// A file by its descriptor.
const fn of(descriptor: c_int) -> Target {
    (descriptor, core::ptr::null(), 0)
}

const NO_FOLLOW: c_int = system::AT_SYMLINK_NOFOLLOW;

/// Seconds and nanoseconds as the kernel takes them.
///
/// # Safety
/// Null, or two times.
unsafe fn from_nanoseconds(times: *const c_void) -> Option<[[c_long; 2]; 2]> {
    // SAFETY: the caller's proof.
    unsafe { times.cast::<[[c_long; 2]; 2]>().as_ref() }.copied()
}

/// Seconds and microseconds as the kernel takes them.
///
/// # Safety
/// Null, or two times.
unsafe fn from_microseconds(times: *const c_void) -> Option<[[c_long; 2]; 2]> {
    // SAFETY: the caller's proof.
    let times = unsafe { times.cast::<[[c_long; 2]; 2]>().as_ref() }?;
    Some(times.map(|[seconds, microseconds]| [seconds, microseconds * 1000]))
}

/// Seconds as the kernel takes them.
///
/// # Safety
/// Null, or two times.
unsafe fn from_seconds(times: *const c_void) -> Option<[[c_long; 2]; 2]> {
    // SAFETY: the caller's proof.
    let times = unsafe { times.cast::<[c_long; 2]>().as_ref() }?;
    Some(times.map(|seconds| [seconds, 0]))
}

/// The calls of `ioctl` that change a file: its flags (`chattr`), its project, its version, and the
/// sealing of its content (fs-verity).
const FLAG_CALLS: [u32; 4] = [0x4008_6602, 0x401c_5820, 0x4008_7602, 0x4080_6685];

type Mode = unsafe extern "C" fn(*const c_char, c_uint) -> c_int;
type ModeAt = unsafe extern "C" fn(c_int, *const c_char, c_uint, c_int) -> c_int;
type ModeOf = unsafe extern "C" fn(c_int, c_uint) -> c_int;
type Owner = unsafe extern "C" fn(*const c_char, c_uint, c_uint) -> c_int;
type OwnerAt = unsafe extern "C" fn(c_int, *const c_char, c_uint, c_uint, c_int) -> c_int;
type OwnerOf = unsafe extern "C" fn(c_int, c_uint, c_uint) -> c_int;
type Times = unsafe extern "C" fn(*const c_char, *const c_void) -> c_int;
type TimesAt = unsafe extern "C" fn(c_int, *const c_char, *const c_void) -> c_int;
type TimesFlags = unsafe extern "C" fn(c_int, *const c_char, *const c_void, c_int) -> c_int;
type TimesOf = unsafe extern "C" fn(c_int, *const c_void) -> c_int;
type Attribute = unsafe extern "C" fn(*const c_char, *const c_char, *const c_void, usize, c_int) -> c_int;
type AttributeOf = unsafe extern "C" fn(c_int, *const c_char, *const c_void, usize, c_int) -> c_int;

stand_in! {
    /// `chmod`.
    chmod(path: *const c_char, mode: c_uint) -> c_int = {
        let otherwise = || system::chmod((AT_FDCWD, path), mode, 0);
        change::<Mode>((AT_FDCWD, path, 0), &next::CHMOD, |next| next(path, mode), otherwise)
    };
    /// `fchmodat`.
    fchmodat(at: c_int, path: *const c_char, mode: c_uint, flags: c_int) -> c_int = {
        let otherwise = || system::chmod((at, path), mode, flags);
        change::<ModeAt>((at, path, flags), &next::FCHMODAT, |next| next(at, path, mode, flags), otherwise)
    };
    /// `fchmod`.
    fchmod(file: c_int, mode: c_uint) -> c_int =
        change::<ModeOf>(of(file), &next::FCHMOD, |next| next(file, mode), || system::fchmod(file, mode));
    /// `chown`.
    chown(path: *const c_char, user: c_uint, group: c_uint) -> c_int = {
        let otherwise = || system::chown((AT_FDCWD, path), user, group, 0);
        change::<Owner>((AT_FDCWD, path, 0), &next::CHOWN, |next| next(path, user, group), otherwise)
    };
    /// `lchown`.
    lchown(path: *const c_char, user: c_uint, group: c_uint) -> c_int = {
        let otherwise = || system::chown((AT_FDCWD, path), user, group, NO_FOLLOW);
        let target = (AT_FDCWD, path, NO_FOLLOW);
        change::<Owner>(target, &next::LCHOWN, |next| next(path, user, group), otherwise)
    };
    /// `fchownat`.
    fchownat(at: c_int, path: *const c_char, user: c_uint, group: c_uint, flags: c_int) -> c_int = {
        let otherwise = || system::chown((at, path), user, group, flags);
        let call = |next: OwnerAt| next(at, path, user, group, flags);
        change((at, path, flags), &next::FCHOWNAT, call, otherwise)
    };
    /// `fchown`.
    fchown(file: c_int, user: c_uint, group: c_uint) -> c_int = {
        let otherwise = || system::fchown(file, user, group);
        change::<OwnerOf>(of(file), &next::FCHOWN, |next| next(file, user, group), otherwise)
    };
    /// `utime`.
    utime(path: *const c_char, times: *const c_void) -> c_int = {
        let otherwise = || system::set_times((AT_FDCWD, path), from_seconds(times), 0);
        change::<Times>((AT_FDCWD, path, 0), &next::UTIME, |next| next(path, times), otherwise)
    };
    /// `utimes`.
    utimes(path: *const c_char, times: *const c_void) -> c_int = {
        let otherwise = || system::set_times((AT_FDCWD, path), from_microseconds(times), 0);
        change::<Times>((AT_FDCWD, path, 0), &next::UTIMES, |next| next(path, times), otherwise)
    };
    /// `futimesat`.
    futimesat(at: c_int, path: *const c_char, times: *const c_void) -> c_int = {
        let otherwise = || system::set_times((at, path), from_microseconds(times), 0);
        change::<TimesAt>((at, path, 0), &next::FUTIMESAT, |next| next(at, path, times), otherwise)
    };
    /// `utimensat`.
    utimensat(at: c_int, path: *const c_char, times: *const c_void, flags: c_int) -> c_int = {
        let otherwise = || system::set_times((at, path), from_nanoseconds(times), flags);
        let call = |next: TimesFlags| next(at, path, times, flags);
        change((at, path, flags), &next::UTIMENSAT, call, otherwise)
    };
    /// `futimens`.
    futimens(file: c_int, times: *const c_void) -> c_int = {
        let null = core::ptr::null();
        let otherwise = || system::set_times((file, null), from_nanoseconds(times), 0);
        change::<TimesOf>(of(file), &next::FUTIMENS, |next| next(file, times), otherwise)
    };
    /// `futimes`.
    futimes(file: c_int, times: *const c_void) -> c_int = {
        let null = core::ptr::null();
        let otherwise = || system::set_times((file, null), from_microseconds(times), 0);
        change::<TimesOf>(of(file), &next::FUTIMES, |next| next(file, times), otherwise)
    };
    /// `lutimes`.
    lutimes(path: *const c_char, times: *const c_void) -> c_int = {
        let otherwise = || system::set_times((AT_FDCWD, path), from_microseconds(times), NO_FOLLOW);
        change::<Times>((AT_FDCWD, path, NO_FOLLOW), &next::LUTIMES, |next| next(path, times), otherwise)
    };
    /// `ioctl`, of which some calls change flags of a file that is open for reading.
    ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int = {
        if FLAG_CALLS.contains(&(request as u32))
            && decision::is_copy(file, c"".as_ptr(), system::AT_EMPTY_PATH)
        {
            return system::returned(-(system::EROFS as isize));
        }
        match next::IOCTL.get::<unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int>() {
            Some(ioctl) => ioctl(file, request, argument),
            None => system::returned(system::ioctl(file, request, argument)),
        }
    };
    /// `setxattr`.
    setxattr(
        path: *const c_char, name: *const c_char, value: *const c_void, size: usize, flags: c_int
    ) -> c_int = {
        let otherwise = || system::set_attribute(path, (name, value, size, flags), true);
        let call = |next: Attribute| next(path, name, value, size, flags);
        change((AT_FDCWD, path, 0), &next::SETXATTR, call, otherwise)
    };
    /// `lsetxattr`.
    lsetxattr(
        path: *const c_char, name: *const c_char, value: *const c_void, size: usize, flags: c_int
    ) -> c_int = {
        let otherwise = || system::set_attribute(path, (name, value, size, flags), false);
        let call = |next: Attribute| next(path, name, value, size, flags);
        change((AT_FDCWD, path, NO_FOLLOW), &next::LSETXATTR, call, otherwise)
    };
    /// `fsetxattr`.
    fsetxattr(
        file: c_int, name: *const c_char, value: *const c_void, size: usize, flags: c_int
    ) -> c_int = {
        let otherwise = || system::set_attribute_of(file, (name, value, size, flags));
        let call = |next: AttributeOf| next(file, name, value, size, flags);
        change(of(file), &next::FSETXATTR, call, otherwise)
    };
    /// `chroot`.
    chroot(path: *const c_char) -> c_int = {
        let result = match next::CHROOT.get::<OnePath>() {
            Some(chroot) => chroot(path),
            None => system::returned(system::chroot(path)),
        };
        if result == 0 {
            decision::root_changes();
        }
        result
    };
}
