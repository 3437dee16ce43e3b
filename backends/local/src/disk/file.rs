//! Files that bypass the page cache.
//!
//! Files are opened with `O_DIRECT`. Where the file system refuses it, data goes through the page
//! cache and the pages are dropped afterwards (`posix_fadvise`). That costs a copy and, for writes,
//! waiting for the device.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use foreread_tier::Buffer;
use rustix::fs::{Advice, AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use super::folder::Folder;
use super::place::{BLOCK, UNIT};

/// Repeats a system call that a signal has interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// The alignment of direct reads. Kernels before 6.1 do not report it. Any device allows blocks.
fn device_alignment(file: &OwnedFd) -> u64 {
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let aligned = found.ok().filter(|found| found.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let align =
        aligned.map_or(BLOCK, |found| u64::from(found.stx_dio_offset_align.max(found.stx_dio_mem_align)));
    if align.is_power_of_two() && (512..BLOCK).contains(&align) { align } else { BLOCK }
}

/// A segment file.
#[derive(Debug)]
pub(super) struct DirectFile {
    file: OwnedFd,
    direct: AtomicBool,
    /// Reads begin and end at multiples of this.
    read_alignment: u64,
}

impl DirectFile {
    /// Opens `name` in `folder`, for writing as well if `write`. `create` requires that it does not
    /// exist.
    pub(super) fn open(folder: &Folder, name: &str, write: bool, create: bool) -> Result<Self, Errno> {
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // `O_DIRECT` is set later: a file system that refuses it may have created the file by then.
        if create {
            return Self::configure(folder.open(name, flags | OFlags::CREATE | OFlags::EXCL)?);
        }
        match folder.open(name, flags | OFlags::DIRECT) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Self::configure(folder.open(name, flags)?),
            opened => Self::configure(opened?),
        }
    }

    /// Sets `O_DIRECT` if possible and clears `O_NONBLOCK`. That flag only protects against opening
    /// pipes, and on some file systems a ring would not wait with it.
    fn configure(file: OwnedFd) -> Result<Self, Errno> {
        let direct = retry(|| rustix::fs::fcntl_setfl(&file, OFlags::DIRECT)).is_ok();
        if !direct {
            retry(|| rustix::fs::fcntl_setfl(&file, OFlags::empty()))?;
        }
        let read_alignment = if direct { device_alignment(&file) } else { UNIT };
        Ok(Self { file, direct: AtomicBool::new(direct), read_alignment })
    }

    /// The bytes to read for `range`. Most devices allow sectors of 512 bytes, which are less than
    /// whole blocks: a sixth less for 16 KB.
    pub(super) fn around(&self, range: Range<u64>) -> Range<u64> {
        let align = self.read_alignment;
        range.start / align * align..range.end.next_multiple_of(align)
    }

    /// Whether `folder` has this file under `name`.
    pub(super) fn is_at(&self, folder: &Folder, name: &str) -> bool {
        folder.has_file(&self.file, name)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Stops using `O_DIRECT` for this file. Other threads that see it need do nothing.
    fn disable_direct(&self) -> Result<(), Errno> {
        retry(|| rustix::fs::fcntl_setfl(&self.file, OFlags::empty()))?;
        self.direct.store(false, Ordering::Release);
        Ok(())
    }

    /// Fills `buffer` from `offset`, up to the end of the file.
    pub(super) fn read(&self, buffer: &mut Buffer, offset: u64) -> Result<(), Errno> {
        loop {
            let direct = self.direct.load(Ordering::Acquire);
            let from = offset + buffer.filled() as u64;
            let answer =
                buffer.fill(|empty| rustix::io::pread(&self.file, empty, from).map(|(done, _)| done));
            match self.needs_more(buffer, answer) {
                Ok(true) => {}
                Ok(false) => break,
                // Another read may have disabled `O_DIRECT` in the meantime.
                Err(Errno::INVAL) if direct => self.disable_direct()?,
                Err(errno) => return Err(errno),
            }
        }
        self.drop_pages(offset, buffer.filled() as u64);
        Ok(())
    }

    /// Whether a read that has just filled a part of `buffer` needs another system call.
    pub(super) fn needs_more(&self, buffer: &Buffer, answer: Result<usize, Errno>) -> Result<bool, Errno> {
        match answer {
            Ok(0) => Ok(false),
            Ok(_) => Ok(buffer.filled() < buffer.capacity()),
            Err(Errno::INTR) => Ok(true),
            // An unaligned read past the end of the file returns this.
            Err(Errno::INVAL) if buffer.filled() > 0 => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Writes all of `bytes` at `offset`.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let direct = self.direct.load(Ordering::Acquire);
            match rustix::io::pwrite(&self.file, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                // A read may have disabled `O_DIRECT` in the meantime.
                Err(Errno::INVAL) if direct => self.disable_direct()?,
                Err(errno) => return Err(errno),
            }
        }
        if !self.direct.load(Ordering::Relaxed) {
            // Dirty pages are not dropped.
            retry(|| rustix::fs::fdatasync(&self.file))?;
            self.drop_pages(offset, bytes.len() as u64);
        }
        Ok(())
    }

    /// Drops the pages that went through the page cache.
    pub(super) fn drop_pages(&self, offset: u64, length: u64) {
        if length > 0 && !self.direct.load(Ordering::Relaxed) {
            // Advice only: a file system may ignore it.
            let _ =
                rustix::fs::fadvise(&self.file, offset, std::num::NonZeroU64::new(length), Advice::DontNeed);
        }
    }

    /// Returns the blocks of a range to the file system. The file's length stays.
    pub(super) fn punch(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry(|| rustix::fs::fallocate(&self.file, flags, offset, length))
    }

    pub(super) fn set_length(&self, length: u64) -> Result<(), Errno> {
        retry(|| rustix::fs::ftruncate(&self.file, length))
    }

    /// The length and the allocated bytes.
    pub(super) fn size(&self) -> Result<(u64, u64), Errno> {
        let stat = rustix::fs::fstat(self.file.as_fd())?;
        Ok((stat.st_size as u64, stat.st_blocks as u64 * 512))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_direct_io_is_blocking() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let file = DirectFile::configure(socket.into()).unwrap();
        assert!(!file.direct.load(Ordering::Relaxed), "a socket is never direct");
        assert!(!rustix::fs::fcntl_getfl(&file.file).unwrap().contains(OFlags::NONBLOCK));
    }

    /// A device with larger blocks refuses unaligned bytes with `EINVAL`.
    #[test]
    fn write_refused_after_direct_io_was_disabled_is_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::for_test(directory.path());
        for round in 0..200 {
            let file = DirectFile::open(&folder, &round.to_string(), true, true).unwrap();
            let barrier = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    file.disable_direct().unwrap();
                });
                barrier.wait();
                file.write(b"off the grid", 3).unwrap();
            });
            assert_eq!(file.size().unwrap().0, 15);
        }
    }
}
