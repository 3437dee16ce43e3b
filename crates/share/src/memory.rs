//! The server's side of the shared memory, and the only code that writes to it.
//!
//! The memory is a sealed `memfd`. It has no name in any file system and ends with its last
//! descriptor and mapping. It is mapped before it is sealed against writing, so only this mapping
//! can ever write. The price is that it cannot grow, so its size is its maximum. Pages are
//! allocated by the kernel when first touched.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::MmapOptions;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

use crate::ShareError;
use crate::extents::{FreeExtents, rounded};
use crate::mapping::ProcessMapping;

/// The minimum size.
const PAGE: usize = 4096;

/// The shared memory and its free extents.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: OwnedFd,
    map: ProcessMapping,
    extents: Mutex<FreeExtents>,
}

/// An allocated part of the memory. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct SharedSlot {
    memory: Arc<SharedMemory>,
    /// Where the sample begins.
    pub(crate) offset: usize,
    /// Allocated bytes.
    pub(crate) taken: usize,
    /// Bytes of the sample.
    pub(crate) length: usize,
}

fn memory_file() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create("foreread", flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => memfd_create("foreread", flags),
        other => other,
    }
}

impl SharedMemory {
    /// Shared memory of `bytes` bytes, rounded up to whole pages.
    pub(crate) fn new(bytes: u64) -> Result<Self, ShareError> {
        let wrong = |error: std::io::Error| {
            ShareError::system(format!("cannot allocate {bytes} bytes of shared memory: set less"), error)
        };
        let length =
            usize::try_from(bytes).ok().and_then(|bytes| bytes.max(PAGE).checked_next_multiple_of(PAGE));
        let length = length.ok_or_else(|| wrong(Errno::NOMEM.into()))?;
        let file = memory_file().map_err(|error| wrong(error.into()))?;
        ftruncate(&file, length as u64).map_err(|error| wrong(error.into()))?;
        let map =
            MmapOptions::new().len(length).map_raw(&file).and_then(ProcessMapping::new).map_err(wrong)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match fcntl_add_seals(&file, seals | SealFlags::FUTURE_WRITE) {
            // Before Linux 5.1. A client of the same user could then write on purpose.
            Err(Errno::INVAL) => fcntl_add_seals(&file, seals),
            other => other,
        }
        .map_err(|error| wrong(error.into()))?;
        let extents = Mutex::new(FreeExtents::new(length));
        Ok(Self { file, map, extents })
    }

    /// The descriptor that clients map.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The size in bytes.
    pub(crate) fn length(&self) -> usize {
        self.map.len()
    }

    /// The number of free bytes, contiguous or not.
    pub(crate) fn free_bytes(&self) -> usize {
        self.extents().free_bytes()
    }

    fn extents(&self) -> MutexGuard<'_, FreeExtents> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies `bytes` into the memory if there is a large enough extent. `bytes` must not be empty.
    pub(crate) fn place(self: &Arc<Self>, bytes: &[u8]) -> Option<SharedSlot> {
        let taken = rounded(bytes.len())?;
        let offset = self.extents().allocate(taken)?;
        let slot = SharedSlot { memory: Arc::clone(self), offset, taken, length: bytes.len() };
        debug_assert!(offset + bytes.len() <= self.map.len());
        // SAFETY: the extents lie within the mapping, which lives as long as `self`, and `taken >=
        // bytes.len()`. The slot was free until now and belongs to this value alone, so no other
        // thread writes there. Clients read a slot only between the answer that names it, which is
        // sent after this, and its release (or their end). Without either the slot is not given
        // back. `bytes` is the caller's memory and never this mapping, of which no borrow is ever
        // made here.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(offset), bytes.len());
        }
        Some(slot)
    }
}

impl Drop for SharedSlot {
    fn drop(&mut self) {
        self.memory.extents().release(self.offset, self.taken);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{fstat, ftruncate};

    use super::*;
    use crate::mapping::ReadMapping;

    #[test]
    fn slots_are_disjoint_and_return() {
        let memory = Arc::new(SharedMemory::new(10_000).unwrap());
        assert_eq!(memory.length(), 12_288);
        let first = memory.place(&[1; 5000]).unwrap();
        let second = memory.place(&[2; 7000]).unwrap();
        assert!(memory.place(&[3; 1000]).is_none());
        let mapping = ReadMapping::open(memory.file.try_clone().unwrap(), memory.length() as u64).unwrap();
        for (slot, byte) in [(&first, 1), (&second, 2)] {
            assert!(mapping.read(slot.offset, slot.length).iter().all(|&there| there == byte));
        }
        drop(first);
        assert!(memory.place(&[3; 1000]).is_some());
        drop(second);
        assert_eq!(memory.free_bytes(), memory.length());
    }

    #[test]
    // semantics: WORKER-7
    fn descriptor_allows_no_write_and_no_truncate() {
        let memory = SharedMemory::new(4096).unwrap();
        assert!(rustix::io::pwrite(&memory.file, b"x", 0).is_err());
        assert!(ftruncate(&memory.file, 0).is_err());
        assert!(MmapOptions::new().len(4096).map_raw(&memory.file).is_err());
        assert_eq!(fstat(&memory.file).unwrap().st_size, 4096);
    }

    #[test]
    fn impossible_memory_size_is_an_error() {
        assert!(SharedMemory::new(u64::MAX).is_err());
        assert!(SharedMemory::new(1 << 62).unwrap_err().to_string().contains("set less"));
    }
}
