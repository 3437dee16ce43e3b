//! Copies of whole files.
//!
//! A copy has no name until it is whole, so no program can see a part of it. Nothing is left if
//! this process dies. Its name has never been that of another copy.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use foreread_preload::layout::{copy_mode, copy_name};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::original::{Original, Unfit, is_database};
use crate::table::EarlierCopy;

/// The bytes of one read.
const PIECE: usize = 1 << 20;

/// The path of a copy.
pub(crate) fn copy_path(copies: &Path, hash: u64, generation: u32) -> PathBuf {
    let name = copy_name(hash, generation);
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    copies.join(String::from_utf8_lossy(&name[..length]).as_ref())
}

/// Removes a copy. A copy that cannot be removed takes room until the next host.
pub(crate) fn remove_copy(copies: &Path, hash: u64, generation: u32) {
    let _ = std::fs::remove_file(copy_path(copies, hash, generation));
}

/// Why a copy was not made.
#[derive(Debug)]
pub(crate) enum CopyFailure {
    Unfit(Unfit),
    /// The disk is full.
    Full,
    System(io::Error),
}

impl From<io::Error> for CopyFailure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::System(error),
        }
    }
}

impl From<Errno> for CopyFailure {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

/// A file that becomes a copy. Without a name, or with a name that is no copy's.
struct NewCopy {
    file: File,
    name: Option<PathBuf>,
}

impl NewCopy {
    fn create(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(directory, flags | OFlags::TMPFILE, Mode::from(0o600)) {
            Ok(file) => return Ok(Self { file: file.into(), name: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Some file systems have no files without a name.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = directory.join(format!("new-{}-{number}", std::process::id()));
        let file = rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL, Mode::from(0o600))?;
        Ok(Self { file: file.into(), name: Some(name) })
    }

    /// Gives the copy its name.
    fn finish(mut self, path: &Path) -> io::Result<()> {
        match self.name.take() {
            Some(name) => std::fs::rename(name, path),
            None => {
                use std::os::fd::AsRawFd;
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                Ok(rustix::fs::linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
            }
        }
    }
}

impl Drop for NewCopy {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            // The next host removes the files that are left.
            let _ = std::fs::remove_file(name);
        }
    }
}

/// Copies a file, adds its bytes to `done` meanwhile, and returns the facts for the table.
pub(crate) fn copy(
    original: &Original,
    path: &Path,
    copies: &Path,
    (hash, generation): (u64, u32),
    done: &AtomicU64,
) -> Result<EarlierCopy, CopyFailure> {
    let to = copy_path(copies, hash, generation);
    let folder = to.parent().unwrap_or(copies);
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let copy = NewCopy::create(folder)?;
    allocate(&copy.file, original.identity.size)?;
    let crc32c = copy_bytes(original, path, &copy.file, done)?;
    if !original.is_same(path) {
        return Err(CopyFailure::Unfit(Unfit::Changed));
    }
    let [seconds, nanoseconds] = original.identity.modified;
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    // The reads above may have changed when the original was read last.
    let accessed = rustix::fs::fstat(&original.file)?;
    let accessed = Timespec { tv_sec: accessed.st_atime as _, tv_nsec: accessed.st_atime_nsec as _ };
    let times = Timestamps { last_access: accessed, last_modification: time };
    rustix::fs::futimens(&copy.file, &times)?;
    rustix::fs::fchmod(&copy.file, Mode::from(copy_mode(original.identity.mode)))?;
    copy.finish(&to)?;
    let made = std::fs::metadata(&to)?;
    let (inode, changed) = (made.ino(), change_time(&made));
    Ok(EarlierCopy { inode, generation, crc32c, changed, identity: original.identity })
}

/// When a file was changed last in any way, in nanoseconds. Also by its mode or its names.
pub(crate) fn change_time(found: &std::fs::Metadata) -> i64 {
    found.ctime().wrapping_mul(1_000_000_000).wrapping_add(found.ctime_nsec())
}

/// Has the disk keep room for a copy.
fn allocate(to: &File, size: u64) -> Result<(), CopyFailure> {
    let allocated = rustix::fs::fallocate(to, rustix::fs::FallocateFlags::empty(), 0, size);
    // Some file systems cannot do it.
    Ok(allocated.or_else(|errno| if errno == Errno::OPNOTSUPP { Ok(()) } else { Err(errno) })?)
}

/// Copies the bytes, and returns their checksum.
fn copy_bytes(original: &Original, path: &Path, to: &File, done: &AtomicU64) -> Result<u32, CopyFailure> {
    let (size, mut crc) = (original.identity.size, 0);
    let mut piece = vec![0_u8; PIECE.min(size as usize)];
    let mut at = 0;
    while at < size {
        let wanted = piece.len().min((size - at) as usize);
        let length = match original.file.read_at(&mut piece[..wanted], at) {
            Ok(0) => return Err(CopyFailure::Unfit(Unfit::Changed)),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyFailure::System(error)),
        };
        if at == 0 && is_database(&piece[..length], path) {
            return Err(CopyFailure::Unfit(Unfit::Database));
        }
        crc = crc32c::crc32c_append(crc, &piece[..length]);
        to.write_all_at(&piece[..length], at)?;
        at += length as u64;
        done.fetch_add(length as u64, Ordering::Relaxed);
    }
    Ok(crc)
}

/// Whether a copy still has the written content.
pub(crate) fn has_checksum(path: &Path, size: u64, expected: u32) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let (mut piece, mut at, mut crc) = (vec![0_u8; PIECE.min(size.max(1) as usize)], 0, 0);
    loop {
        match file.read_at(&mut piece, at) {
            Ok(0) => return at == size && crc == expected,
            Ok(length) => {
                crc = crc32c::crc32c_append(crc, &piece[..length]);
                at += length as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}
