//! Advisory locks of caches. They end with their process, however it ends.
//!
//! There are three kinds. The *owner* of a directory's space holds `owner` exclusively, writes, and
//! stores its process id in the file. Every user of a *dataset's* cache, owner or reader, holds
//! that dataset's `lock` shared. Removing the cache needs it exclusively. An *agent* holds `agent`
//! exclusively from its start, also while it owns no space yet, or no longer. All are `flock`s on
//! open files, which end with their process. The process that took a lock unlocks it explicitly,
//! so forked children do not keep the cache in use. Only after a process that was killed, they do
//! until they have ended too. The text of `lock` is the dataset's location, for people.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use foreread_types::DatasetIdentity;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::file::retry;
use super::folder::Folder;
use super::layout::{LOCK, OWNER};

/// The length of a lock in bytes: one block. A longer location is not stored.
const MAX_LOCATION: usize = 4096;

/// A lock that is held until it is dropped.
///
/// Children that are forked meanwhile, such as workers, have the open file, too, which would keep
/// the lock for as long as they live. So it is unlocked explicitly, by the process that took it.
#[derive(Debug)]
pub(super) struct FileLock {
    file: fs::File,
    process: u32,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Otherwise it ends with the last copy of the file.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl FileLock {
    /// Opens `name` in `folder`, creates it if possible, and locks it. `None` if another process
    /// holds it. `write` requires write access.
    fn take(
        folder: &Folder,
        name: &str,
        operation: FlockOperation,
        write: bool,
    ) -> Result<Option<Self>, Errno> {
        let file = match folder.open(name, OFlags::RDWR | OFlags::CREATE) {
            // Another user's file, or a read-only file system: enough for locking.
            Err(errno) if !write && errno != Errno::NOENT => {
                folder.open(name, OFlags::RDONLY).map_err(|_| errno)?
            }
            opened => opened?,
        };
        match retry(|| rustix::fs::flock(file.as_fd(), operation)) {
            Ok(()) => Ok(Some(Self { file: file.into(), process: std::process::id() })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether `folder` has this file under `name`.
    pub(super) fn is_at(&self, folder: &Folder, name: &str) -> bool {
        folder.has_file(&self.file, name)
    }

    /// Sets the time of last use to now.
    pub(super) fn touch(&self) {
        // Only for the order of removal.
        let _ = self.file.set_modified(SystemTime::now());
    }

    /// Writes the location of the cache's dataset into its lock, unless it is there.
    pub(super) fn write_location(&self, location: &str) {
        let location = location.as_bytes();
        let is_line = location.len() < MAX_LOCATION && !location.contains(&b'\n');
        if !is_line || read_location(&self.file).is_some_and(|known| known.as_bytes() == location) {
            return;
        }
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(location, 0));
        if let Err(error) = written {
            tracing::debug!(%error, "a cache's location is not stored");
        }
    }
}

/// The location in a lock.
fn read_location(file: &fs::File) -> Option<String> {
    let mut text = vec![0; MAX_LOCATION];
    let length = file.read_at(&mut text, 0).ok()?;
    text.truncate(length);
    String::from_utf8(text).ok().filter(|text| !text.is_empty())
}

/// The location of a cache's dataset, if its lock has one.
pub(super) fn location(dataset: &Folder) -> Option<String> {
    read_location(&dataset.open(LOCK, OFlags::RDONLY).ok()?.into())
}

/// A process, distinguished from those of other containers and nodes with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessId {
    pub(super) pid: u32,
    /// Boot id, pid namespace and start time. Unknown parts are empty.
    pub(super) life: String,
}

impl ProcessId {
    /// The current process.
    pub(super) fn this() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The 22nd field. The second is a name in brackets that may contain anything.
        let started = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19));
        let life = format!("{} {} {}", boot.trim(), namespace.display(), started.unwrap_or_default());
        Self { pid: std::process::id(), life }
    }
}

/// The owner of a directory's space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectoryOwner {
    pub(super) process: Option<ProcessId>,
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
                    owner.process = pid.parse().ok().map(|pid| ProcessId { pid, life: String::new() });
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

/// The owner file of the cache at `root`. Its process may have ended since.
pub(super) fn owner(root: &Folder) -> DirectoryOwner {
    holder(root, OWNER)
}

/// The process that has locked the file `name`, [`OWNER`] or [`AGENT`](super::layout::AGENT).
pub(super) fn holder(root: &Folder, name: &str) -> DirectoryOwner {
    let mut text = String::new();
    let Ok(file) = root.open(name, OFlags::RDONLY) else { return DirectoryOwner::default() };
    match fs::File::from(file).take(1 << 16).read_to_string(&mut text) {
        Ok(_) => DirectoryOwner::parse(&text),
        Err(_) => DirectoryOwner::default(),
    }
}

/// Becomes the owner of the space at `root`, unless it has one.
pub(super) fn own(root: &Folder, datasets: &[DatasetIdentity]) -> std::io::Result<Option<FileLock>> {
    lock(root, OWNER, datasets)
}

/// Locks the file `name` and writes this process into it, unless another process has locked it.
pub(super) fn lock(
    root: &Folder,
    name: &str,
    datasets: &[DatasetIdentity],
) -> std::io::Result<Option<FileLock>> {
    let mut taken = None;
    for again in 0..10 {
        if again > 0 {
            // Another process may only have tested whether there is an owner.
            std::thread::sleep(Duration::from_millis(2));
        }
        let lock = FileLock::take(root, name, FlockOperation::NonBlockingLockExclusive, true)?;
        // A file that was removed between opening and locking counts for nothing.
        taken = lock.filter(|lock| lock.is_at(root, name));
        if taken.is_some() {
            break;
        }
    }
    let Some(mut lock) = taken else { return Ok(None) };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let this = ProcessId::this();
    let mut text = format!("pid {}\nlife {}\nsince {since}\n", this.pid, this.life);
    for dataset in datasets {
        let _ = writeln!(text, "dataset {dataset}"); // a string takes everything
    }
    lock.file.set_len(0)?;
    match lock.file.write_all(text.as_bytes()) {
        // Only the lock counts. Without the text, messages cannot name the owner.
        Err(error) if !is_full(&error) => Err(error),
        _ => Ok(Some(lock)),
    }
}

/// Whether the disk or the user's quota is full.
fn is_full(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}

/// Whether the space at `root` has an owner now.
pub(super) fn is_owned(root: &Folder) -> bool {
    root.has(OWNER)
        && FileLock::take(root, OWNER, FlockOperation::NonBlockingLockShared, false)
            .is_ok_and(|lock| lock.is_none())
}

/// Removes the file `name` at `root`, unless a process has locked it.
pub(super) fn remove_unlocked(root: &Folder, name: &str) -> Result<(), Errno> {
    match FileLock::take(root, name, FlockOperation::NonBlockingLockExclusive, false)? {
        Some(lock) if lock.is_at(root, name) => root.remove(name),
        _ => Ok(()),
    }
}

/// Marks a dataset's cache as in use, if it exists and is not being removed.
pub(super) fn try_share(dataset: &Folder) -> Result<Option<FileLock>, Errno> {
    // A file that was removed between opening and locking counts for nothing.
    let lock = FileLock::take(dataset, LOCK, FlockOperation::NonBlockingLockShared, false)?;
    Ok(lock.filter(|lock| lock.is_at(dataset, LOCK)))
}

/// Creates the cache of the dataset `name` in `root` if it is missing, and marks it as in use.
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
        // The exclusive holder removes the cache, or tests whether it could.
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it is being removed by another process"))
}

/// Whether a process uses a dataset's cache. A cache that cannot be locked counts as used.
pub(super) fn is_shared(dataset: &Folder) -> bool {
    dataset.has(LOCK) && !matches!(hold(dataset), Ok(Some(_)))
}

/// Locks a dataset's cache exclusively, unless it is in use.
pub(super) fn hold(dataset: &Folder) -> Result<Option<FileLock>, Errno> {
    let lock = FileLock::take(dataset, LOCK, FlockOperation::NonBlockingLockExclusive, false)?;
    Ok(lock.filter(|lock| lock.is_at(dataset, LOCK)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn lock_ends_though_another_process_has_the_open_file() {
        let file = tempfile::tempfile().unwrap();
        // As a forked child has it.
        let inherited = file.try_clone().unwrap();
        let again = fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let locked = |process| {
            let lock = FileLock { file: file.try_clone().unwrap(), process };
            rustix::fs::flock(&lock.file, FlockOperation::LockExclusive).unwrap();
            drop(lock);
            rustix::fs::flock(&again, FlockOperation::NonBlockingLockShared).is_err()
        };
        assert!(!locked(std::process::id()));
        rustix::fs::flock(&again, FlockOperation::Unlock).unwrap();
        assert!(locked(u32::MAX), "a child that drops its copy leaves the lock to its parent");
        drop(inherited);
    }

    #[test]
    fn pid_1_of_another_container_is_another_process() {
        let this = ProcessId::this();
        assert_eq!(this.life.split(' ').count(), 3, "{}", this.life);
        assert!(this.life.contains("pid:[") && !this.life.ends_with(' '), "{}", this.life);
        let text = format!("pid {}\nlife {}\nsince 5\n", this.pid, this.life);
        assert_eq!(DirectoryOwner::parse(&text).process.as_ref(), Some(&this));
        let elsewhere = text.replace("pid:[", "pid:[9");
        let owner = DirectoryOwner::parse(&elsewhere);
        assert_eq!(owner.pid(), Some(this.pid));
        assert_ne!(owner.process, Some(this.clone()));
        // The format of earlier versions.
        assert_ne!(DirectoryOwner::parse(&format!("pid {}\nsince 5\n", this.pid)).process, Some(this));
    }
}
