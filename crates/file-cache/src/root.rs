//! The directory of a dataset, as a process sees it.
//!
//! A dataset is not named by its path: in two containers, one path may lead to two file servers,
//! and two paths to one. It is named by the device and the number of its directory, and by the
//! mounts below it. So bind mounts of one tree are one dataset, and share copies.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foreread_local::unescaped;
use foreread_preload::layout::{Rights, Root, mixed};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::table::text;
use crate::trace::Trace;

/// How long the watch of mounts waits until it looks whether the run is over, in milliseconds.
const WATCH: i32 = 200;

/// A directory of files, as this process sees it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The mount that it is on, in this process's namespace. 0: the kernel does not tell.
    pub(crate) mount: u64,
    /// The number of the dataset, which is the same in all namespaces.
    pub(crate) dataset: u64,
}

impl RootIdentity {
    /// The identity of the directory that a path leads to.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let target = path.canonicalize()?;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let found = rustix::fs::statx(CWD, &target, AtFlags::empty(), wanted)?;
        let has_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        #[allow(clippy::useless_conversion, reason = "the type depends on the processor")]
        let device = u64::from(rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor));
        let mut dataset = mixed(mixed(1, device), found.stx_ino);
        for byte in mounts_below(&target).iter().flatten() {
            dataset = mixed(dataset, u64::from(*byte));
        }
        let mount = if has_mount { found.stx_mnt_id } else { 0 };
        Ok(Self { device, inode: found.stx_ino, mount, dataset: dataset.max(1) })
    }

    /// As programs find it, by this path.
    pub(crate) fn root(self, path: &Path) -> io::Result<Root> {
        let Self { device, inode, mount, dataset } = self;
        Ok(Root { path: text(path)?, device, inode, mount, dataset })
    }
}

/// The mounts below a directory: the place of each, with the directory and its device.
fn mounts_below(directory: &Path) -> Vec<Vec<u8>> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let below = |line: &[u8]| {
        // Id, parent, device, directory on it, place.
        let mut words = line.split(|byte| *byte == b' ').skip(2);
        let (device, on_device, place) = (words.next()?, words.next()?, words.next()?);
        let rest = unescaped(place).strip_prefix(directory.as_os_str().as_bytes())?.to_vec();
        rest.starts_with(b"/").then(|| [&*rest, b"\n", device, b"\n", on_device, b"\n"].concat())
    };
    let mut found: Vec<Vec<u8>> = mounts.split(|byte| *byte == b'\n').filter_map(below).collect();
    found.sort();
    found
}

/// The rights of this process to read, as the preloaded library sees them in programs.
pub(crate) fn own_rights() -> Rights {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups = groups.iter().fold(0, |hash, group| mixed(hash, u64::from(group.as_raw())));
    let capabilities = status("CapEff:").and_then(|text| u64::from_str_radix(&text, 16).ok());
    let namespace = rustix::fs::stat("/proc/self/ns/user").map_or(0, |found| found.st_ino);
    let user_and_group = u64::from(user) | u64::from(group) << 32;
    [user_and_group, capabilities.unwrap_or_default(), groups, namespace]
}

/// Whether this process can gain no rights.
pub(crate) fn is_restricted() -> bool {
    status("NoNewPrivs:").is_some_and(|text| text == "1")
}

/// A line of the kernel's status of this process.
fn status(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// Has the programs of a run compare originals once the mounts of one of its datasets change.
pub(crate) fn watch_mounts(roots: Vec<(PathBuf, RootIdentity)>, trace: Trace, is_over: Arc<AtomicBool>) {
    let Ok(mounts) = std::fs::File::open("/proc/self/mountinfo") else { return trace.mounts_changed() };
    while !is_over.load(Ordering::Acquire) {
        if roots.iter().any(|(path, known)| RootIdentity::of(path).ok() != Some(*known)) {
            return trace.mounts_changed();
        }
        // The kernel notes a change once for each open file.
        let mut wanted = libc::pollfd { fd: mounts.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        // SAFETY: one structure, which the kernel fills.
        while unsafe { libc::poll(&raw mut wanted, 1, WATCH) } <= 0 && !is_over.load(Ordering::Acquire) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FILES-7
    fn dataset_is_named_by_its_directory_and_not_by_its_path() {
        let parent = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| parent.path().join(name));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&other).unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&one, &link).unwrap();
        let of = |path: &Path| RootIdentity::of(path).unwrap();
        assert_eq!((of(&one), of(&one)), (of(&link), of(&one)));
        assert_ne!(of(&one).dataset, of(&other).dataset);
        // The path stays, and the directory is another one.
        let first = of(&one);
        std::fs::rename(&one, parent.path().join("moved")).unwrap();
        std::fs::rename(&other, &one).unwrap();
        assert_ne!(of(&one).dataset, first.dataset);
        assert_eq!(of(&parent.path().join("moved")), first);
        assert!(RootIdentity::of(&other).is_err());
    }

    #[test]
    fn mounts_below_a_directory_are_a_part_of_it() {
        assert!(mounts_below(Path::new("/proc/self/none")).is_empty());
        assert_eq!(unescaped(b"/a\\040b\\012c\\9"), b"/a b\nc\\9");
        let all = mounts_below(Path::new(""));
        assert!(all.iter().any(|line| line.starts_with(b"/proc\n")), "{all:?}");
    }
}
