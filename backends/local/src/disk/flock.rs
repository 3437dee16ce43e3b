//! Who uses a cache: advisory locks that end with the process, however it ends.
//!
//! Two kinds. The *owner* of a directory's space holds `owner` alone, writes, and says in the file who it is. Everyone
//! who uses a *dataset's* cache, owner or reader, shares that dataset's `lock`, and only who holds it alone may remove
//! the cache. Both are `flock`s on open files: a killed process leaves none behind, and a process that was forked from
//! a user keeps it in use until it has ended too.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use foreread_types::DatasetIdentity;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::file::retry;
use super::folder::Folder;
use super::layout::{LOCK, OWNER};

/// A lock that is held until this is dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    file: fs::File,
}

impl FileLock {
    /// Opens `name` in `folder`, makes it if need be and possible, and locks it; `None` if others hold it. `write`: it is
    /// to be written to, and not only locked.
    fn take(
        folder: &Folder,
        name: &str,
        operation: FlockOperation,
        write: bool,
    ) -> Result<Option<Self>, Errno> {
        let file = match folder.open(name, OFlags::RDWR | OFlags::CREATE) {
            // Somebody else's, or on a file system that is read-only: good enough to be locked.
            Err(errno) if !write && errno != Errno::NOENT => {
                folder.open(name, OFlags::RDONLY).map_err(|_| errno)?
            }
            opened => opened?,
        };
        match retry(|| rustix::fs::flock(file.as_fd(), operation)) {
            Ok(()) => Ok(Some(Self { file: file.into() })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether the file is still what `folder` has under `name`.
    pub(super) fn is_at(&self, folder: &Folder, name: &str) -> bool {
        folder.has_file(&self.file, name)
    }

    /// Notes that the cache was used now.
    pub(super) fn touch(&self) {
        // For the order of removal only.
        let _ = self.file.set_modified(SystemTime::now());
    }
}

/// A process, told apart from those of other containers and nodes that have its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessIdentity {
    pub(super) pid: u32,
    /// The boot, the namespace of its number, and when it was started; what cannot be found out is empty.
    pub(super) life: String,
}

impl ProcessIdentity {
    /// This one.
    pub(super) fn this() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The 22nd field; the second is a name in brackets that may hold anything.
        let started = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19));
        let life = format!("{} {} {}", boot.trim(), namespace.display(), started.unwrap_or_default());
        Self { pid: std::process::id(), life }
    }
}

/// Who owns a directory's space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectoryOwner {
    pub(super) process: Option<ProcessIdentity>,
    pub(super) since: Option<SystemTime>,
    pub(super) datasets: Vec<DatasetIdentity>,
}

impl DirectoryOwner {
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.pid)
    }

    fn parse(text: &str) -> Self {
        let mut owner = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("pid", pid)) => {
                    owner.process = pid.parse().ok().map(|pid| ProcessIdentity { pid, life: String::new() });
                }
                Some(("life", life)) => {
                    if let Some(process) = &mut owner.process {
                        life.clone_into(&mut process.life);
                    }
                }
                Some(("since", seconds)) => {
                    owner.since = seconds
                        .parse()
                        .ok()
                        .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
                }
                Some(("dataset", identity)) => owner.datasets.extend(identity.parse::<DatasetIdentity>()),
                _ => {}
            }
        }
        owner
    }
}

impl std::fmt::Display for DirectoryOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid() {
            Some(pid) => write!(f, "process {pid}")?,
            None => f.write_str("another process")?,
        }
        match self.since.and_then(|since| since.elapsed().ok()) {
            Some(age) => write!(f, ", which opened it {} s ago", age.as_secs()),
            None => Ok(()),
        }
    }
}

/// What the owner of the cache at `root` says of itself; it may have ended since.
pub(super) fn owner(root: &Folder) -> DirectoryOwner {
    let mut text = String::new();
    let Ok(file) = root.open(OWNER, OFlags::RDONLY) else { return DirectoryOwner::default() };
    match fs::File::from(file).take(1 << 16).read_to_string(&mut text) {
        Ok(_) => DirectoryOwner::parse(&text),
        Err(_) => DirectoryOwner::default(),
    }
}

/// Becomes the owner of the space at `root`, unless there is one.
pub(super) fn own(root: &Folder, datasets: &[DatasetIdentity]) -> std::io::Result<Option<FileLock>> {
    let mut taken = None;
    for again in 0..10 {
        if again > 0 {
            // Perhaps somebody only looked whether there is an owner.
            std::thread::sleep(Duration::from_millis(2));
        }
        let lock = FileLock::take(root, OWNER, FlockOperation::NonBlockingLockExclusive, true)?;
        // Removed between the opening and the locking: it owns nothing.
        taken = lock.filter(|lock| lock.is_at(root, OWNER));
        if taken.is_some() {
            break;
        }
    }
    let Some(mut lock) = taken else { return Ok(None) };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let this = ProcessIdentity::this();
    let mut text = format!("pid {}\nlife {}\nsince {since}\n", this.pid, this.life);
    for dataset in datasets {
        let _ = writeln!(text, "dataset {dataset}"); // a string takes everything
    }
    lock.file.set_len(0)?;
    match lock.file.write_all(text.as_bytes()) {
        // The lock is what counts. Without the text others do not know whose it is.
        Err(error) if !is_full(&error) => Err(error),
        _ => Ok(Some(lock)),
    }
}

/// Whether an error says that there is no room, on the disk or in the user's quota.
fn is_full(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}

/// Whether the space at `root` has an owner now.
pub(super) fn is_owned(root: &Folder) -> bool {
    root.has(OWNER)
        && FileLock::take(root, OWNER, FlockOperation::NonBlockingLockShared, false)
            .is_ok_and(|lock| lock.is_none())
}

/// Removes the file that an owner of the space at `root` would lock, unless there is an owner.
pub(super) fn remove_owner(root: &Folder) -> Result<(), Errno> {
    match FileLock::take(root, OWNER, FlockOperation::NonBlockingLockExclusive, false)? {
        Some(lock) if lock.is_at(root, OWNER) => root.remove(OWNER),
        _ => Ok(()),
    }
}

/// Marks a dataset's cache as in use, if it is there and nobody removes it just now.
pub(super) fn try_share(dataset: &Folder) -> Result<Option<FileLock>, Errno> {
    // Removed between the opening and the locking: what is locked is nobody's any more.
    let lock = FileLock::take(dataset, LOCK, FlockOperation::NonBlockingLockShared, false)?;
    Ok(lock.filter(|lock| lock.is_at(dataset, LOCK)))
}

/// Makes the cache of the dataset `name` in `root` if there is none, and marks it as in use.
pub(super) fn share(root: &Folder, name: &str) -> std::io::Result<(Folder, FileLock)> {
    for _ in 0..500 {
        let shared = root.make_folder(name).and_then(|dataset| {
            let lock = try_share(&dataset)?;
            Ok(lock.map(|lock| (dataset, lock)))
        });
        match shared {
            Ok(Some(shared)) => return Ok(shared),
            Ok(None) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Whoever holds it alone is about to remove the cache, or looks whether it could.
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it is being removed by another process"))
}

/// Whether a process uses a dataset's cache. What cannot be locked is not to be removed either.
pub(super) fn is_shared(dataset: &Folder) -> bool {
    dataset.has(LOCK) && !matches!(hold(dataset), Ok(Some(_)))
}

/// Holds a dataset's cache alone, unless somebody uses it.
pub(super) fn hold(dataset: &Folder) -> Result<Option<FileLock>, Errno> {
    let lock = FileLock::take(dataset, LOCK, FlockOperation::NonBlockingLockExclusive, false)?;
    Ok(lock.filter(|lock| lock.is_at(dataset, LOCK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_1_of_another_container_is_another_process() {
        let this = ProcessIdentity::this();
        assert_eq!(this.life.split(' ').count(), 3, "{}", this.life);
        assert!(this.life.contains("pid:[") && !this.life.ends_with(' '), "{}", this.life);
        let text = format!("pid {}\nlife {}\nsince 5\n", this.pid, this.life);
        assert_eq!(DirectoryOwner::parse(&text).process.as_ref(), Some(&this));
        let elsewhere = text.replace("pid:[", "pid:[9");
        let owner = DirectoryOwner::parse(&elsewhere);
        assert_eq!(owner.pid(), Some(this.pid));
        assert_ne!(owner.process, Some(this.clone()));
        // As earlier versions wrote it.
        assert_ne!(DirectoryOwner::parse(&format!("pid {}\nsince 5\n", this.pid)).process, Some(this));
    }
}
