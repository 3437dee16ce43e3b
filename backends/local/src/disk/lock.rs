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
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use foreread_types::Fingerprint;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::file::retry;
use super::layout::{self, LOCK, OWNER};

/// A lock that is held until this is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    file: fs::File,
}

impl Lock {
    /// Opens `path`, makes it if need be and possible, and locks it; `None` if others hold it. `write`: it is to be
    /// written to, and not only locked.
    fn take(path: &Path, operation: FlockOperation, write: bool) -> std::io::Result<Option<Self>> {
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as i32;
        let mut options = fs::OpenOptions::new();
        let opened =
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path);
        let file = match opened {
            // Somebody else's, or on a file system that is read-only: good enough to be locked.
            Err(error) if !write && error.kind() != std::io::ErrorKind::NotFound => {
                fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|_| error)?
            }
            other => other?,
        };
        match retry(|| rustix::fs::flock(file.as_fd(), operation)) {
            Ok(()) => Ok(Some(Self { file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the file is still what `path` names.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match (self.file.metadata(), fs::symlink_metadata(path)) {
            (Ok(own), Ok(there)) => place(own) == place(there),
            _ => false,
        }
    }

    /// Notes that the cache was used now.
    pub(super) fn touch(&self) {
        // For the order of removal only.
        let _ = self.file.set_modified(SystemTime::now());
    }
}

/// Who owns a directory's space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) pid: Option<u32>,
    pub(super) since: Option<SystemTime>,
    pub(super) datasets: Vec<Fingerprint>,
}

impl Owner {
    fn parse(text: &str) -> Self {
        let mut owner = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("pid", pid)) => owner.pid = pid.parse().ok(),
                Some(("since", seconds)) => {
                    owner.since = seconds
                        .parse()
                        .ok()
                        .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
                }
                Some(("dataset", fingerprint)) => owner.datasets.extend(fingerprint.parse::<Fingerprint>()),
                _ => {}
            }
        }
        owner
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
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
pub(super) fn owner(root: &Path) -> Owner {
    let mut text = String::new();
    let file = fs::File::open(root.join(OWNER));
    match file.and_then(|file| file.take(1 << 16).read_to_string(&mut text)) {
        Ok(_) => Owner::parse(&text),
        Err(_) => Owner::default(),
    }
}

/// Becomes the owner of the space at `root`, unless there is one.
pub(super) fn own(root: &Path, datasets: &[Fingerprint]) -> std::io::Result<Option<Lock>> {
    let path = root.join(OWNER);
    let mut taken = None;
    for again in 0..10 {
        if again > 0 {
            // Perhaps somebody only looked whether there is an owner.
            std::thread::sleep(Duration::from_millis(2));
        }
        let lock = Lock::take(&path, FlockOperation::NonBlockingLockExclusive, true)?;
        // Removed between the opening and the locking: it owns nothing.
        taken = lock.filter(|lock| lock.is_at(&path));
        if taken.is_some() {
            break;
        }
    }
    let Some(mut lock) = taken else { return Ok(None) };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut text = format!("pid {}\nsince {since}\n", std::process::id());
    for dataset in datasets {
        let _ = writeln!(text, "dataset {dataset}"); // a string takes everything
    }
    lock.file.set_len(0)?;
    lock.file.write_all(text.as_bytes())?;
    Ok(Some(lock))
}

/// Whether the space at `root` has an owner now.
pub(super) fn is_owned(root: &Path) -> bool {
    root.join(OWNER).exists()
        && Lock::take(&root.join(OWNER), FlockOperation::NonBlockingLockShared, false)
            .is_ok_and(|lock| lock.is_none())
}

/// Removes the file that an owner of the space at `root` would lock, unless there is an owner.
pub(super) fn remove_owner(root: &Path) -> std::io::Result<()> {
    let path = root.join(OWNER);
    match Lock::take(&path, FlockOperation::NonBlockingLockExclusive, false)? {
        Some(lock) if lock.is_at(&path) => layout::remove(&path),
        _ => Ok(()),
    }
}

/// Marks the dataset's cache in `directory` as in use, if it is there and nobody removes it just now.
pub(super) fn try_share(directory: &Path) -> std::io::Result<Option<Lock>> {
    let path = directory.join(LOCK);
    // Removed between the opening and the locking: what is locked is nobody's any more.
    let lock = Lock::take(&path, FlockOperation::NonBlockingLockShared, false)?;
    Ok(lock.filter(|lock| lock.is_at(&path)))
}

/// Makes the dataset's cache in `directory` if there is none, and marks it as in use.
pub(super) fn share(directory: &Path) -> std::io::Result<Lock> {
    for _ in 0..500 {
        match fs::create_dir(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        match try_share(directory) {
            Ok(Some(lock)) => return Ok(lock),
            Ok(None) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Whoever holds it alone is about to remove the cache, or looks whether it could.
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it is being removed by another process"))
}

/// Whether a process uses the dataset's cache in `directory`. What cannot be locked is not to be removed either.
pub(super) fn is_shared(directory: &Path) -> bool {
    directory.join(LOCK).exists() && !matches!(hold(directory), Ok(Some(_)))
}

/// Holds the dataset's cache in `directory` alone, unless somebody uses it.
pub(super) fn hold(directory: &Path) -> std::io::Result<Option<Lock>> {
    let path = directory.join(LOCK);
    let lock = Lock::take(&path, FlockOperation::NonBlockingLockExclusive, false)?;
    Ok(lock.filter(|lock| lock.is_at(&path)))
}
