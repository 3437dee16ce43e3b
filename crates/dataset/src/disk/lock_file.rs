//! Files that one process at a time may use.
//!
//! Decision: an exclusive `flock` on an open file. It ends with its process, however that ends, so
//! no stale lock blocks a later run. The price: a file system without locks (Lustre without
//! `flock`, some NFS) gives no protection.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The number of times that a file is opened again because it was removed while it was opened.
const ATTEMPTS: usize = 10;

/// The longest text of a lock file that is read, in bytes.
const MAX_TEXT: u64 = 1 << 10;

pub(crate) enum LockOutcome {
    /// This process has the lock, or the file system has no locks.
    Own(File),
    /// Another process has the lock.
    Other,
}

/// Opens and locks a file. Creates it if `create` is set.
pub(crate) fn lock(path: &Path, create: bool) -> std::io::Result<LockOutcome> {
    for _ in 0..ATTEMPTS {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).truncate(false);
        // Links are not followed.
        let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(LockOutcome::Other),
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, path = %path.display(), "the file cannot be locked");
                return Ok(LockOutcome::Own(file));
            }
        }
        // The last process may have removed it after it was opened here.
        if is_at(&file, path)? {
            return Ok(LockOutcome::Own(file));
        }
    }
    Err(std::io::Error::other("another process removes it repeatedly"))
}

/// Whether `path` leads to this open file.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    let own = file.metadata()?;
    let there = std::fs::symlink_metadata(path);
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())))
}

/// The current process, for the messages of others.
pub(crate) fn this_process() -> String {
    let system = rustix::system::uname();
    format!("process {} on {}", std::process::id(), system.nodename().to_string_lossy())
}

/// A lock file of this process. It is removed when this is dropped.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    file: File,
    process: u32,
}

/// The result of an attempt to lock a file.
#[derive(Debug)]
pub enum LockAttempt {
    /// This process has the lock, or the file system has no locks.
    Locked(LockFile),
    /// Another process has the lock: this one, as far as its file names it.
    InUse(String),
}

impl LockFile {
    /// Creates and locks the file at `path`, which has no other use.
    ///
    /// # Errors
    /// If the file cannot be opened or created.
    pub fn lock(path: &Path) -> std::io::Result<LockAttempt> {
        match lock(path, true)? {
            LockOutcome::Own(mut file) => {
                let text = this_process();
                // Only the lock counts. The text is for the other process's message.
                if let Err(error) = file.set_len(0).and_then(|()| file.write_all(text.as_bytes())) {
                    tracing::debug!(%error, path = %path.display(), "the lock file has no text");
                }
                let process = std::process::id();
                Ok(LockAttempt::Locked(Self { path: path.to_owned(), file, process }))
            }
            LockOutcome::Other => Ok(LockAttempt::InUse(holder(path))),
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The copy of a forked child. Its parent has the lock.
            return;
        }
        // Removed while it is locked, so that it is not another process's file.
        if is_at(&self.file, &self.path).is_ok_and(|is_own| is_own)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::debug!(%error, path = %self.path.display(), "the lock file could not be removed");
        }
        // Children that were forked meanwhile have the open file, and would keep the lock.
        let _ = self.file.unlock();
    }
}

/// The process that has the lock, from the text of its file.
fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_TEXT).read_to_string(&mut text));
    match read {
        Ok(_) if text.starts_with("process ") => text,
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(path: &Path) -> LockFile {
        match LockFile::lock(path).unwrap() {
            LockAttempt::Locked(lock) => lock,
            LockAttempt::InUse(by) => panic!("{by}"),
        }
    }

    #[test]
    fn lock_file_names_its_process_and_goes_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = locked(&path);
        let LockAttempt::InUse(by) = LockFile::lock(&path).unwrap() else { panic!("locked twice") };
        assert!(by.starts_with(&format!("process {} on ", std::process::id())), "{by}");
        drop(first);
        assert!(!path.exists());
        // A process that was killed leaves its file.
        std::fs::write(&path, "process 1 on elsewhere, which was killed").unwrap();
        drop(locked(&path));
        assert!(!path.exists());
    }

    #[test]
    fn lock_file_of_another_process_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = locked(&path);
        // A user removes the file, and another process locks a new one.
        std::fs::remove_file(&path).unwrap();
        let second = locked(&path);
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
