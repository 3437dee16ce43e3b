//! The results of `fstat` for a copy: the original's identity, which the program may compare with
//! that of the path. `cp` and `install` refuse a file that has become another one.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::layout::{COPY_BIT, Identity};
use crate::mapped::Mapped;
use crate::opens::stand_in;
use crate::system;

/// The kernel's `struct stat`, which is that of libc, too.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
pub(crate) struct FileStat {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    links: u64,
    pub(crate) mode: u32,
    user: u32,
    group: u32,
    _padding: u32,
    _special: u64,
    pub(crate) size: i64,
    block_size: i64,
    blocks: i64,
    accessed: [i64; 2],
    modified: [i64; 2],
    changed: [i64; 2],
    _unused: [i64; 3],
}

/// The kernel's `struct stat`, which is that of libc, too.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
pub(crate) struct FileStat {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    links: u32,
    user: u32,
    group: u32,
    _special: u64,
    _padding: u64,
    pub(crate) size: i64,
    block_size: i32,
    _padding2: i32,
    blocks: i64,
    accessed: [i64; 2],
    modified: [i64; 2],
    changed: [i64; 2],
    _unused: [u32; 2],
}

/// The bits of a mode that say whether a file is a copy.
const COPY_BITS: u32 = KIND | COPY_BIT;
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// The bit of `statx` for the time of birth.
const STATX_BTIME: u32 = 0x800;

impl FileStat {
    /// Space for one.
    // SAFETY: all fields are numbers, for which zero is a value.
    const EMPTY: Self = unsafe { core::mem::zeroed() };

    /// The kernel's attributes of a path, or with `AT_EMPTY_PATH` of a descriptor.
    ///
    /// # Safety
    /// `path` is a C string.
    pub(crate) unsafe fn of(directory: c_int, path: *const c_char, flags: c_int) -> Option<Self> {
        // SAFETY: as for this function.
        unsafe { Self::look(directory, path, flags) }.ok()
    }

    /// The same, or the number of the error.
    ///
    /// # Safety
    /// `path` is a C string.
    pub(crate) unsafe fn look(directory: c_int, path: *const c_char, flags: c_int) -> Result<Self, c_int> {
        let mut found = Self::EMPTY;
        let to = (&raw mut found).cast::<c_void>();
        // SAFETY: a C string, and room for the structure.
        let result = unsafe { system::stat(directory, path, to, flags) };
        if result == 0 { Ok(found) } else { Err(-result as c_int) }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.mode & KIND == DIRECTORY
    }

    pub(crate) fn is_file(&self) -> bool {
        self.mode & KIND == REGULAR
    }

    pub(crate) fn is_link(&self) -> bool {
        self.mode & KIND == LINK
    }

    /// Whether this is a copy of a file.
    pub(crate) fn is_copy(&self) -> bool {
        self.original().is_some()
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity {
            device: self.device,
            inode: self.inode,
            size: self.size as u64,
            blocks: self.blocks as u64,
            links: self.links as _,
            mode: self.mode,
            user: self.user,
            group: self.group,
            block_size: self.block_size as u32,
            modified: self.modified,
            changed: self.changed,
        }
    }

    /// The original, if this is a copy.
    fn original(&self) -> Option<Identity> {
        if self.mode & COPY_BITS != REGULAR | COPY_BIT {
            return None;
        }
        let mapped = Mapped::get().filter(|mapped| mapped.copies_device() == self.device)?;
        mapped.original_of(self.inode)
    }

    fn become_original(&mut self) {
        let Some(original) = self.original() else { return };
        (self.device, self.inode, self.mode) = (original.device, original.inode, original.mode);
        (self.user, self.group, self.links) = (original.user, original.group, original.links as _);
        (self.blocks, self.block_size) = (original.blocks as i64, original.block_size as _);
        (self.modified, self.changed) = (original.modified, original.changed);
    }
}

/// `fstat`, with the original's identity for a copy.
///
/// # Safety
/// `to` has room for the structure.
unsafe fn stat_descriptor(descriptor: c_int, to: *mut c_void) -> c_int {
    // SAFETY: an empty path, and room for the structure.
    let result = unsafe { system::stat(descriptor, c"".as_ptr(), to, system::AT_EMPTY_PATH) };
    if result == 0 {
        // SAFETY: the kernel has filled it.
        unsafe { (*to.cast::<FileStat>()).become_original() };
    }
    system::returned(result)
}

/// # Safety
/// `path` is a C string, and `to` has room for the structure.
unsafe fn stat_at(directory: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: as for this function.
    unsafe {
        let result = system::stat(directory, path, to, flags);
        if result == 0 {
            // A descriptor, or its name in `/proc/self/fd`.
            (*to.cast::<FileStat>()).become_original();
        }
        system::returned(result)
    }
}

/// `struct statx`.
#[repr(C)]
pub(crate) struct FileStatx {
    pub(crate) mask: u32,
    block_size: u32,
    _attributes: u64,
    links: u32,
    user: u32,
    group: u32,
    mode: u16,
    _padding: u16,
    pub(crate) inode: u64,
    size: u64,
    blocks: u64,
    _supported: u64,
    _accessed: [u64; 2],
    _born: [u64; 2],
    changed: (i64, u32, i32),
    modified: (i64, u32, i32),
    _special: [u32; 2],
    pub(crate) device: [u32; 2],
    pub(crate) mount: u64,
    _rest: [u64; 13],
}

impl FileStatx {
    /// Space for one.
    // SAFETY: all fields are numbers, for which zero is a value.
    pub(crate) const EMPTY: Self = unsafe { core::mem::zeroed() };
}

const _: () = assert!(size_of::<FileStatx>() == 256);

/// The device as two numbers.
pub(crate) fn device_numbers(device: u64) -> [u32; 2] {
    let major = device >> 8 & 0xfff | device >> 32 & !0xfff;
    let minor = device & 0xff | device >> 12 & !0xff;
    [major as u32, minor as u32]
}

/// # Safety
/// `path` is a C string, and `to` has room for the structure.
pub(crate) unsafe fn statx_at(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut c_void,
) -> c_int {
    // SAFETY: as for this function.
    unsafe {
        let result = system::statx(directory, path, flags, mask, to);
        if result == 0 {
            let found = &mut *to.cast::<FileStatx>();
            if u32::from(found.mode) & COPY_BITS == REGULAR | COPY_BIT {
                // SAFETY: as for this function.
                become_original(found, (directory, path, flags));
            }
        }
        system::returned(result)
    }
}

/// # Safety
/// The path is a C string.
unsafe fn become_original(found: &mut FileStatx, (directory, path, flags): (c_int, *const c_char, c_int)) {
    /// The flags that both calls have.
    const COMMON: c_int = system::AT_EMPTY_PATH | system::AT_SYMLINK_NOFOLLOW;
    // The caller may have wanted other fields than the file's number.
    // SAFETY: as for this function.
    let stat = unsafe { FileStat::of(directory, path, flags & COMMON) };
    let Some(original) = stat.and_then(|stat| stat.original()) else { return };
    found.block_size = original.block_size;
    found.links = original.links as u32;
    (found.user, found.group, found.mode) = (original.user, original.group, original.mode as u16);
    (found.inode, found.blocks) = (original.inode, original.blocks);
    found.changed = (original.changed[0], original.changed[1] as u32, 0);
    found.modified = (original.modified[0], original.modified[1] as u32, 0);
    found.device = device_numbers(original.device);
    // The original's time of birth is not known.
    found.mask &= !STATX_BTIME;
}

stand_in! {
    /// `fstat`.
    fstat(descriptor: c_int, to: *mut c_void) -> c_int = stat_descriptor(descriptor, to);
    /// Its name for long files.
    fstat64(descriptor: c_int, to: *mut c_void) -> c_int = stat_descriptor(descriptor, to);
    /// Its name in programs for older versions of glibc.
    __fxstat(_version: c_int, descriptor: c_int, to: *mut c_void) -> c_int = stat_descriptor(descriptor, to);
    /// Both.
    __fxstat64(_version: c_int, descriptor: c_int, to: *mut c_void) -> c_int =
        stat_descriptor(descriptor, to);
    /// `stat`.
    stat(path: *const c_char, to: *mut c_void) -> c_int = stat_at(system::AT_FDCWD, path, to, 0);
    /// Its name for long files.
    stat64(path: *const c_char, to: *mut c_void) -> c_int = stat_at(system::AT_FDCWD, path, to, 0);
    /// Its name in programs for older versions of glibc.
    __xstat(_version: c_int, path: *const c_char, to: *mut c_void) -> c_int =
        stat_at(system::AT_FDCWD, path, to, 0);
    /// Both.
    __xstat64(_version: c_int, path: *const c_char, to: *mut c_void) -> c_int =
        stat_at(system::AT_FDCWD, path, to, 0);
    /// `fstatat`.
    fstatat(directory: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int =
        stat_at(directory, path, to, flags);
    /// Its name for long files.
    fstatat64(directory: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int =
        stat_at(directory, path, to, flags);
    /// Its name in programs for older versions of glibc.
    __fxstatat(
        _version: c_int, directory: c_int, path: *const c_char, to: *mut c_void, flags: c_int
    ) -> c_int = stat_at(directory, path, to, flags);
    /// Both.
    __fxstatat64(
        _version: c_int, directory: c_int, path: *const c_char, to: *mut c_void, flags: c_int
    ) -> c_int = stat_at(directory, path, to, flags);
    /// `statx`.
    statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int =
        statx_at(directory, path, flags, mask, to);
}
