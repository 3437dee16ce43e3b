//! Whether this process could open the original of a copy, and sees the same file at its path.
//!
//! Where each open compares the original, the process looks at the file by its path. So the kernel
//! has decided whether it may search the directories. A file that all users may read needs no more.
//! For others, the kernel decides by `faccessat2`.
//!
//! On file servers, nothing is looked at for a hit but the directory of the dataset, whose inode is
//! in memory. There, the process must have the rights of the process that has read the original.
//! The mount of the directory must be that of the run. Otherwise it compares, as on local disks.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::identity::{FileStat, FileStatx, device_numbers};
use crate::layout::{Rights, Root, mixed, open_flags};
use crate::mapped::Mapped;
use crate::opens::stand_in;
use crate::{next, system};

/// Whether this process began with the rights of the process that makes copies.
static ARE_SAME: AtomicBool = AtomicBool::new(false);

/// Whether something that no mode of a file shows may keep this process from files (Landlock).
static IS_RESTRICTED: AtomicBool = AtomicBool::new(false);

/// Whether this process has changed its namespaces.
static IS_ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// The most other groups that are compared.
const GROUPS: usize = 64;

/// Looks at the rights of this process, before the program begins.
pub(crate) fn look(mapped: Mapped) {
    let is_same = rights().is_some_and(|rights| rights == mapped.rights());
    ARE_SAME.store(is_same, Ordering::Relaxed);
    if system::is_restricted() {
        let may_list = |root: &Root| {
            let flags = open_flags::DIRECTORY | system::O_CLOEXEC;
            // SAFETY: the path is a C string.
            let opened =
                Mapped::with_path(root, |path| unsafe { system::openat(system::AT_FDCWD, path, flags, 0) });
            let descriptor = opened.unwrap_or(-1);
            if descriptor >= 0 {
                system::close(descriptor as c_int);
            }
            descriptor != -(system::EACCES as isize)
        };
        if !mapped.is_restricted() || !mapped.own_roots().iter().all(may_list) {
            restrict();
        }
    }
}

/// Has originals opened from now on.
pub(crate) fn restrict() {
    IS_RESTRICTED.store(true, Ordering::Release);
}

/// Notes that this process gets other namespaces.
pub(crate) fn namespaces_change() {
    IS_ELSEWHERE.store(true, Ordering::Release);
}

fn rights() -> Option<Rights> {
    let mut space = [0_u32; GROUPS];
    let groups = system::groups(&mut space)?;
    let groups = groups.iter().fold(0, |hash, group| mixed(hash, u64::from(*group)));
    // SAFETY: a C string.
    let namespace = unsafe { FileStat::of(system::AT_FDCWD, c"/proc/self/ns/user".as_ptr(), 0) }?;
    Some([system::user_and_group(), system::capabilities()?, groups, namespace.identity().inode])
}

/// Whether this process may have copies at all.
pub(crate) fn may_have_copies() -> bool {
    !IS_RESTRICTED.load(Ordering::Acquire)
}

/// Whether this process has the rights of the process that has read the original.
pub(crate) fn are_those_of_host(mapped: Mapped) -> bool {
    let [own, capabilities, ..] = mapped.rights();
    ARE_SAME.load(Ordering::Relaxed)
        && !IS_ELSEWHERE.load(Ordering::Acquire)
        && system::user_and_group() == own
        && system::capabilities() == Some(capabilities)
}

/// Whether the path of a dataset leads to the directory and the mount of the run, without asking a
/// file server.
pub(crate) fn has_root(root: &Root) -> bool {
    const FOUND: u32 = STATX_INO | STATX_MNT_ID;
    const STATX_INO: u32 = 0x100;
    const STATX_MNT_ID: u32 = 0x1000;
    /// The attributes in the kernel's memory are enough.
    const DONT_SYNC: c_int = 0x4000;
    if root.mount == 0 || IS_ELSEWHERE.load(Ordering::Acquire) {
        return false;
    }
    let mut found = FileStatx::EMPTY;
    let to = (&raw mut found).cast();
    let result = Mapped::with_path(root, |path| {
        // SAFETY: a C string, and room for the structure.
        unsafe { system::statx(system::AT_FDCWD, path, DONT_SYNC, FOUND, to) }
    });
    result == Some(0)
        && found.mask & FOUND == FOUND
        && (found.inode, found.mount) == (root.inode, root.mount)
        && found.device == device_numbers(root.device)
}

/// Whether this process could open a file that it has looked at.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn may_read(mode: u32, directory: c_int, path: *const c_char) -> bool {
    const ALL: u32 = 0o444;
    // SAFETY: as for this function.
    mode & ALL == ALL || unsafe { system::may_read(directory, path) }
}

stand_in! {
    /// `unshare`.
    unshare(flags: c_int) -> c_int = {
        namespaces_change();
        match next::UNSHARE.get::<unsafe extern "C" fn(c_int) -> c_int>() {
            Some(unshare) => unshare(flags),
            None => system::returned(system::unshare(flags)),
        }
    };
    /// `setns`.
    setns(descriptor: c_int, kind: c_int) -> c_int = {
        namespaces_change();
        match next::SETNS.get::<unsafe extern "C" fn(c_int, c_int) -> c_int>() {
            Some(setns) => setns(descriptor, kind),
            None => system::returned(system::setns(descriptor, kind)),
        }
    };
}
