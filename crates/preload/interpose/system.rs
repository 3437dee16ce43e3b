//! System calls without libc, because this library stands in front of libc's wrappers.

use core::arch::asm;
use core::ffi::{c_char, c_int, c_long, c_ulong, c_void};

/// The directory of relative paths.
pub(crate) const AT_FDCWD: c_int = -100;
/// The path may be empty: the descriptor itself is meant.
pub(crate) const AT_EMPTY_PATH: c_int = 0x1000;
pub(crate) const AT_SYMLINK_NOFOLLOW: c_int = 0x100;
pub(crate) const AT_REMOVEDIR: c_int = 0x200;
pub(crate) const AT_SYMLINK_FOLLOW: c_int = 0x400;

pub(crate) const O_CLOEXEC: c_int = 0o2_000_000;
pub(crate) const O_NONBLOCK: c_int = 0o4_000;
pub(crate) const O_NOCTTY: c_int = 0o400;
pub(crate) const ENOENT: c_int = 2;
pub(crate) const EIO: c_int = 5;
pub(crate) const EACCES: c_int = 13;
pub(crate) const ENOTDIR: c_int = 20;
pub(crate) const EROFS: c_int = 30;
pub(crate) const ENOSYS: c_int = 38;
pub(crate) const ESTALE: c_int = 116;

#[cfg(target_arch = "x86_64")]
mod numbers {
    pub(super) const CHROOT: usize = 161;
    pub(super) const CLOCK_GETTIME: usize = 228;
    pub(super) const NANOSLEEP: usize = 35;
    pub(super) const IOCTL: usize = 16;
    pub(super) const CAPGET: usize = 125;
    pub(super) const FACCESSAT2: usize = 439;
    pub(super) const GETEGID: usize = 108;
    pub(super) const GETEUID: usize = 107;
    pub(super) const GETGROUPS: usize = 115;
    pub(super) const PRCTL: usize = 157;
    pub(super) const SETNS: usize = 308;
    pub(super) const UNSHARE: usize = 272;
    pub(super) const EXECVE: usize = 59;
    pub(super) const PREAD: usize = 17;
    pub(super) const FCHMOD: usize = 91;
    pub(super) const FCHOWN: usize = 93;
    pub(super) const FCHOWNAT: usize = 260;
    pub(super) const FCHMODAT: usize = 268;
    pub(super) const UTIMENSAT: usize = 280;
    pub(super) const SETXATTR: usize = 188;
    pub(super) const LSETXATTR: usize = 189;
    pub(super) const FSETXATTR: usize = 190;
    pub(super) const CLOSE: usize = 3;
    pub(super) const MMAP: usize = 9;
    pub(super) const GETCWD: usize = 79;
    pub(super) const CHDIR: usize = 80;
    pub(super) const FCHDIR: usize = 81;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const OPENAT: usize = 257;
    pub(super) const NEWFSTATAT: usize = 262;
    pub(super) const UNLINKAT: usize = 263;
    pub(super) const RENAMEAT2: usize = 316;
    pub(super) const LINKAT: usize = 265;
    pub(super) const SYMLINKAT: usize = 266;
    pub(super) const READLINKAT: usize = 267;
    pub(super) const TRUNCATE: usize = 76;
    pub(super) const STATX: usize = 332;
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    pub(super) const CHROOT: usize = 51;
    pub(super) const CLOCK_GETTIME: usize = 113;
    pub(super) const NANOSLEEP: usize = 101;
    pub(super) const IOCTL: usize = 29;
    pub(super) const CAPGET: usize = 90;
    pub(super) const FACCESSAT2: usize = 439;
    pub(super) const GETEGID: usize = 177;
    pub(super) const GETEUID: usize = 175;
    pub(super) const GETGROUPS: usize = 158;
    pub(super) const PRCTL: usize = 167;
    pub(super) const SETNS: usize = 268;
    pub(super) const UNSHARE: usize = 97;
    pub(super) const EXECVE: usize = 221;
    pub(super) const PREAD: usize = 67;
    pub(super) const FCHMOD: usize = 52;
    pub(super) const FCHOWN: usize = 55;
    pub(super) const FCHOWNAT: usize = 54;
    pub(super) const FCHMODAT: usize = 53;
    pub(super) const UTIMENSAT: usize = 88;
    pub(super) const SETXATTR: usize = 5;
    pub(super) const LSETXATTR: usize = 6;
    pub(super) const FSETXATTR: usize = 7;
    pub(super) const CLOSE: usize = 57;
    pub(super) const MMAP: usize = 222;
    pub(super) const GETCWD: usize = 17;
    pub(super) const CHDIR: usize = 49;
    pub(super) const FCHDIR: usize = 50;
    pub(super) const EXIT_GROUP: usize = 94;
    pub(super) const OPENAT: usize = 56;
    pub(super) const NEWFSTATAT: usize = 79;
    pub(super) const UNLINKAT: usize = 35;
    pub(super) const RENAMEAT2: usize = 276;
    pub(super) const LINKAT: usize = 37;
    pub(super) const SYMLINKAT: usize = 36;
    pub(super) const READLINKAT: usize = 78;
    pub(super) const TRUNCATE: usize = 45;
    pub(super) const STATX: usize = 291;
}

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// A system call. Returns the kernel's result: a negative number is an error.
///
/// # Safety
/// As that call demands.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel changes rcx and r11 only, and memory that the arguments name.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// A system call. Returns the kernel's result: a negative number is an error.
///
/// # Safety
/// As that call demands.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel changes x0 only, and memory that the arguments name.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number, inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// The result of a C function for the kernel's result. Sets `errno` for an error.
pub(crate) fn returned(result: isize) -> c_int {
    if result < 0 {
        // SAFETY: the C library gives the place of this thread's number.
        unsafe { *__errno_location() = -result as c_int };
        return -1;
    }
    result as c_int
}

/// The same for a function that returns a `long`.
pub(crate) fn returned_long(result: isize) -> c_long {
    if (-4095..0).contains(&result) { c_long::from(returned(result)) } else { result as c_long }
}

/// The number of `statx`.
#[cfg(target_arch = "x86_64")]
pub(crate) const STATX: usize = numbers::STATX;

/// The kernel's result, by `errno` of libc.
pub(crate) fn last_error() -> isize {
    // SAFETY: the C library gives the place of this thread's number.
    -(unsafe { *__errno_location() } as isize)
}

/// Calls a function, and leaves `errno` of libc as it was.
pub(crate) fn keeping_error(call: impl FnOnce()) {
    // SAFETY: the C library gives the place of this thread's number.
    let place = unsafe { __errno_location() };
    // SAFETY: as above.
    let error = unsafe { *place };
    call();
    // SAFETY: as above.
    unsafe { *place = error };
}

/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_int) -> isize {
    // SAFETY: the kernel reads the string.
    unsafe { call(numbers::OPENAT, [directory as usize, path as usize, flags as usize, mode as usize, 0, 0]) }
}

/// The monotonic clock, in milliseconds. `None` if the program may not read it.
pub(crate) fn milliseconds() -> Option<u64> {
    const MONOTONIC: usize = 1;
    let mut time = [0_i64; 2];
    // SAFETY: the kernel writes two numbers of the length of a pointer.
    let result = unsafe { call(numbers::CLOCK_GETTIME, [MONOTONIC, time.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    (result == 0).then_some(time[0] as u64 * 1000 + time[1] as u64 / 1_000_000)
}

/// Sleeps for some microseconds, below a second. A signal ends it early.
pub(crate) fn sleep(microseconds: u64) {
    let time = [0, microseconds as i64 * 1000];
    // SAFETY: the kernel reads two numbers of the length of a pointer.
    unsafe { call(numbers::NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

pub(crate) fn close(descriptor: c_int) {
    // SAFETY: only descriptors that this library has opened are closed.
    unsafe { call(numbers::CLOSE, [descriptor as usize, 0, 0, 0, 0, 0]) };
}

/// The first bytes of a file, as many as the space has.
pub(crate) fn read_head(descriptor: c_int, to: &mut [u8]) -> Option<&[u8]> {
    let arguments = [descriptor as usize, to.as_mut_ptr() as usize, to.len(), 0, 0, 0];
    // SAFETY: the kernel writes at most `to.len()` bytes.
    let length = unsafe { call(numbers::PREAD, arguments) };
    to.get(..usize::try_from(length).ok()?)
}

/// # Safety
/// As `execve`.
pub(crate) unsafe fn execve(
    path: *const c_char,
    words: *const *const c_char,
    variables: *const *const c_char,
) -> isize {
    // SAFETY: the caller's proof.
    unsafe { call(numbers::EXECVE, [path as usize, words as usize, variables as usize, 0, 0, 0]) }
}

/// Maps a file. `None` if that is not possible.
pub(crate) fn map(descriptor: c_int, bytes: usize, is_writable: bool) -> Option<*mut u8> {
    let protection = if is_writable { 3 } else { 1 };
    // SAFETY: a new mapping at a free place.
    let place = unsafe { call(numbers::MMAP, [0, bytes, protection, 1, descriptor as usize, 0]) };
    (!(-4095..0).contains(&place)).then_some(place as *mut u8)
}

pub(crate) fn abort() -> ! {
    loop {
        // SAFETY: it does not return.
        unsafe { call(numbers::EXIT_GROUP, [127, 0, 0, 0, 0, 0]) };
    }
}

/// The user and the group that file access is decided by.
pub(crate) fn user_and_group() -> u64 {
    // SAFETY: they have no arguments.
    let [user, group] = unsafe { [call(numbers::GETEUID, [0; 6]), call(numbers::GETEGID, [0; 6])] };
    u64::from(user as u32) | u64::from(group as u32) << 32
}

/// The effective capabilities of this thread. `None` if the kernel does not tell.
pub(crate) fn capabilities() -> Option<u64> {
    /// The version of the structures that all kernels since 2.6.26 know, and this thread.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    let (header, mut sets) = (HEADER, [0_u32; 6]);
    let arguments = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads the header and fills the sets, which have this length.
    let result = unsafe { call(numbers::CAPGET, arguments) };
    (result == 0).then_some(u64::from(sets[0]) | u64::from(sets[3]) << 32)
}

/// The other groups of this thread. `None` if there are more than the space has.
pub(crate) fn groups(to: &mut [u32]) -> Option<&[u32]> {
    // SAFETY: the kernel fills the space at most.
    let count = unsafe { call(numbers::GETGROUPS, [to.len(), to.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    to.get(..usize::try_from(count).ok()?)
}

/// Whether this thread can gain no rights.
pub(crate) fn is_restricted() -> bool {
    const GET_NO_NEW_PRIVS: usize = 39;
    // SAFETY: this call has no memory.
    unsafe { call(numbers::PRCTL, [GET_NO_NEW_PRIVS, 0, 0, 0, 0, 0]) == 1 }
}

/// Whether this process may read a file, as the kernel decides.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn may_read(directory: c_int, path: *const c_char) -> bool {
    const READ: usize = 4;
    /// By the rights that opens are decided by.
    const EFFECTIVE: usize = 0x200;
    // SAFETY: the kernel reads the string.
    unsafe { call(numbers::FACCESSAT2, [directory as usize, path as usize, READ, EFFECTIVE, 0, 0]) == 0 }
}

pub(crate) fn unshare(flags: c_int) -> isize {
    // SAFETY: it has no memory.
    unsafe { call(numbers::UNSHARE, [flags as usize, 0, 0, 0, 0, 0]) }
}

pub(crate) fn setns(descriptor: c_int, kind: c_int) -> isize {
    // SAFETY: it has no memory.
    unsafe { call(numbers::SETNS, [descriptor as usize, kind as usize, 0, 0, 0, 0]) }
}

/// The working directory. `None` if it is longer than the space.
pub(crate) fn working_directory(to: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: the kernel writes at most `to.len()` bytes.
    let length = unsafe { call(numbers::GETCWD, [to.as_mut_ptr() as usize, to.len(), 0, 0, 0, 0]) };
    // The zero at the end counts.
    to.get(..usize::try_from(length).ok()?.checked_sub(1)?)
}

/// The target of a link. `None` if it may be longer than the space.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn link_target(path: *const c_char, to: &mut [u8]) -> Option<&[u8]> {
    let arguments = [AT_FDCWD as usize, path as usize, to.as_mut_ptr() as usize, to.len(), 0, 0];
    // SAFETY: the kernel reads the string, and writes at most `to.len()` bytes.
    let length = usize::try_from(unsafe { call(numbers::READLINKAT, arguments) }).ok()?;
    to.get(..length).filter(|target| target.len() < to.len())
}

/// # Safety
/// `path` is a C string, and `to` has room for a `struct stat`.
pub(crate) unsafe fn stat(directory: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> isize {
    // SAFETY: the kernel reads the string and fills the structure.
    unsafe {
        call(numbers::NEWFSTATAT, [directory as usize, path as usize, to as usize, flags as usize, 0, 0])
    }
}

/// # Safety
/// `path` is a C string, and `to` has room for a `struct statx`.
pub(crate) unsafe fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    to: *mut c_void,
) -> isize {
    let arguments = [directory as usize, path as usize, flags as usize, mask as usize, to as usize, 0];
    // SAFETY: the kernel reads the string and fills the structure.
    unsafe { call(numbers::STATX, arguments) }
}

/// # Safety
/// Both paths are C strings.
pub(crate) unsafe fn rename(from: (c_int, *const c_char), to: (c_int, *const c_char), flags: u32) -> isize {
    let arguments = [from.0 as usize, from.1 as usize, to.0 as usize, to.1 as usize, flags as usize, 0];
    // SAFETY: the kernel reads the strings.
    unsafe { call(numbers::RENAMEAT2, arguments) }
}

/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn unlink(directory: c_int, path: *const c_char, flags: c_int) -> isize {
    // SAFETY: the kernel reads the string.
    unsafe { call(numbers::UNLINKAT, [directory as usize, path as usize, flags as usize, 0, 0, 0]) }
}

/// # Safety
/// Both paths are C strings.
pub(crate) unsafe fn link(from: (c_int, *const c_char), to: (c_int, *const c_char), flags: c_int) -> isize {
    let arguments = [from.0 as usize, from.1 as usize, to.0 as usize, to.1 as usize, flags as usize, 0];
    // SAFETY: the kernel reads the strings.
    unsafe { call(numbers::LINKAT, arguments) }
}

/// # Safety
/// Both paths are C strings.
pub(crate) unsafe fn symlink(target: *const c_char, to: (c_int, *const c_char)) -> isize {
    // SAFETY: the kernel reads the strings.
    unsafe { call(numbers::SYMLINKAT, [target as usize, to.0 as usize, to.1 as usize, 0, 0, 0]) }
}

/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn truncate(path: *const c_char, length: c_long) -> isize {
    // SAFETY: the kernel reads the string.
    unsafe { call(numbers::TRUNCATE, [path as usize, length as usize, 0, 0, 0, 0]) }
}

/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn chdir(path: *const c_char) -> isize {
    // SAFETY: the kernel reads the string.
    unsafe { call(numbers::CHDIR, [path as usize, 0, 0, 0, 0, 0]) }
}

pub(crate) fn fchdir(descriptor: c_int) -> isize {
    // SAFETY: it has no memory.
    unsafe { call(numbers::FCHDIR, [descriptor as usize, 0, 0, 0, 0, 0]) }
}

/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn chroot(path: *const c_char) -> isize {
    // SAFETY: the kernel reads the string.
    unsafe { call(numbers::CHROOT, [path as usize, 0, 0, 0, 0, 0]) }
}

pub(crate) fn fchmod(descriptor: c_int, mode: u32) -> isize {
    // SAFETY: it has no memory.
    unsafe { call(numbers::FCHMOD, [descriptor as usize, mode as usize, 0, 0, 0, 0]) }
}

pub(crate) fn fchown(descriptor: c_int, user: u32, group: u32) -> isize {
    // SAFETY: it has no memory.
    unsafe { call(numbers::FCHOWN, [descriptor as usize, user as usize, group as usize, 0, 0, 0]) }
}

/// Follows links: the kernel's call has no flags.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn chmod(at: (c_int, *const c_char), mode: u32, flags: c_int) -> isize {
    /// Links have no mode.
    const EOPNOTSUPP: isize = -95;
    if flags != 0 {
        return EOPNOTSUPP;
    }
    // SAFETY: the kernel reads the string.
    unsafe { call(numbers::FCHMODAT, [at.0 as usize, at.1 as usize, mode as usize, 0, 0, 0]) }
}

/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn chown(at: (c_int, *const c_char), user: u32, group: u32, flags: c_int) -> isize {
    let arguments = [at.0 as usize, at.1 as usize, user as usize, group as usize, flags as usize, 0];
    // SAFETY: the kernel reads the string.
    unsafe { call(numbers::FCHOWNAT, arguments) }
}

/// The times of a file: of its last access and change, in seconds and nanoseconds. `None`: now.
///
/// # Safety
/// `path` is a C string, or null for the descriptor.
pub(crate) unsafe fn set_times(
    at: (c_int, *const c_char),
    times: Option<[[c_long; 2]; 2]>,
    flags: c_int,
) -> isize {
    let pointer = times.as_ref().map_or(0, |times| times.as_ptr() as usize);
    // SAFETY: the kernel reads the string and the times.
    unsafe { call(numbers::UTIMENSAT, [at.0 as usize, at.1 as usize, pointer, flags as usize, 0, 0]) }
}

/// # Safety
/// As `setxattr`, or `lsetxattr` for the link itself.
pub(crate) unsafe fn set_attribute(
    path: *const c_char,
    attribute: (*const c_char, *const c_void, usize, c_int),
    follows: bool,
) -> isize {
    let number = if follows { numbers::SETXATTR } else { numbers::LSETXATTR };
    let (name, value, size, flags) = attribute;
    let arguments = [path as usize, name as usize, value as usize, size, flags as usize, 0];
    // SAFETY: the caller's proof.
    unsafe { call(number, arguments) }
}

/// # Safety
/// As `fsetxattr`.
pub(crate) unsafe fn set_attribute_of(
    descriptor: c_int,
    attribute: (*const c_char, *const c_void, usize, c_int),
) -> isize {
    let (name, value, size, flags) = attribute;
    let arguments = [descriptor as usize, name as usize, value as usize, size, flags as usize, 0];
    // SAFETY: the caller's proof.
    unsafe { call(numbers::FSETXATTR, arguments) }
}

/// # Safety
/// As `ioctl`.
pub(crate) unsafe fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> isize {
    // SAFETY: the caller's proof.
    unsafe { call(numbers::IOCTL, [descriptor as usize, request as usize, argument as usize, 0, 0, 0]) }
}
