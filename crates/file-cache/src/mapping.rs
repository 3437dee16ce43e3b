//! Files that several processes have mapped.
//!
//! All changing fields of their content are atomic, so references to them are sound whatever other
//! processes write.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use memmap2::MmapRaw;
use rustix::io::Errno;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: MmapRaw,
}

impl MappedFile {
    /// Makes a file of `bytes` zeros, and maps it. There must be none. It has all of its room from
    /// the beginning: on a full disk, a process that writes to a hole is ended.
    pub(crate) fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) => drop(io::copy(&mut io::repeat(0).take(bytes), &mut file)?),
            Err(errno) => return Err(errno.into()),
        }
        Self::map(&file)
    }

    /// Maps a file that is there.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::map(&OpenOptions::new().read(true).write(true).open(path)?)
    }

    fn map(file: &File) -> io::Result<Self> {
        Ok(Self { map: MmapRaw::map_raw(file)? })
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The content from byte `at` on as `count` values.
    ///
    /// # Panics
    /// If the file is shorter, or the place is not aligned.
    ///
    /// # Safety
    /// All bytes are a `T`, and fields that change are atomic.
    pub(crate) unsafe fn slice<T>(&self, at: usize, count: usize) -> &[T] {
        let first = self.map.as_ptr().wrapping_add(at).cast::<T>();
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(at));
        assert!(
            end.is_some_and(|end| end <= self.len()) && first.is_aligned(),
            "the mapped file is too short"
        );
        // SAFETY: within the mapping and aligned. The caller says that the bytes are values.
        unsafe { std::slice::from_raw_parts(first, count) }
    }

    /// Writes a value at byte `at`, which nothing has a reference to yet.
    ///
    /// # Panics
    /// If the file is shorter, or the place is not aligned.
    ///
    /// # Safety
    /// No reference to these bytes exists in this process.
    pub(crate) unsafe fn write<T>(&self, at: usize, value: T) {
        let to = self.map.as_mut_ptr().wrapping_add(at).cast::<T>();
        assert!(at + size_of::<T>() <= self.len() && to.is_aligned(), "the mapped file is too short");
        // SAFETY: within the mapping and aligned.
        unsafe { to.write(value) }
    }
}
