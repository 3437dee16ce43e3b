//! The client's read-only mapping of a region of the server's memory.
//!
//! Forked children do not inherit the mapping. There a sample would change under its reader as soon
//! as the parent releases it. The price is that a child that reads it anyway ends with a fault,
//! without a message.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::OwnedFd;

use foreread_tier::MappedRegion;
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

use crate::StoreError;

#[derive(Debug)]
pub(crate) struct ReadMapping {
    /// Dropped first: other memory may get the address of the mapping.
    _passed_on: Option<MappedRegion>,
    map: ProcessMapping,
}

/// A mapping that forked children neither inherit nor remove. In a child the range is unmapped, or
/// used by something else.
#[derive(Debug)]
pub(crate) struct ProcessMapping {
    map: ManuallyDrop<MmapRaw>,
    process: u32,
}

impl ProcessMapping {
    pub(crate) fn new(map: MmapRaw) -> io::Result<Self> {
        // Children have no use for it, and would keep its pages.
        map.advise(Advice::DontFork)?;
        Ok(Self { map: ManuallyDrop::new(map), process: std::process::id() })
    }
}

impl Deref for ProcessMapping {
    type Target = MmapRaw;

    fn deref(&self) -> &MmapRaw {
        &self.map
    }
}

impl ReadMapping {
    /// Maps the first `bytes` of `file`, which must be sealed against shrinking. With `passes_on`,
    /// this process may serve the samples in it to others.
    pub(crate) fn open(file: OwnedFd, bytes: u64, passes_on: bool) -> Result<Self, StoreError> {
        let wrong = |error: io::Error| StoreError::system("the shared memory cannot be mapped", error);
        let seals = fcntl_get_seals(&file).map_err(|error| wrong(error.into()))?;
        let actual = fstat(&file).map_err(|error| wrong(error.into()))?.st_size;
        let length =
            usize::try_from(bytes).ok().filter(|_| u64::try_from(actual).is_ok_and(|actual| actual >= bytes));
        let (Some(length), true) = (length, seals.contains(SealFlags::SHRINK)) else {
            return Err(StoreError::malformed("the shared memory has a wrong size or is not sealed"));
        };
        let map = MmapOptions::new().len(length).map_raw_read_only(&file);
        let map = map.and_then(ProcessMapping::new).map_err(wrong)?;
        let _passed_on = passes_on.then(|| MappedRegion::new(map.as_ptr().addr(), bytes, file)).flatten();
        Ok(Self { _passed_on, map })
    }

    /// Whether the range lies in the memory.
    pub(crate) fn contains(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.map.len() as u64)
    }

    /// The bytes of a range. The caller holds its slot, which was not released yet.
    ///
    /// # Panics
    /// If the range is outside of the memory (see [`contains`](Self::contains)).
    pub(crate) fn read(&self, offset: usize, length: usize) -> &[u8] {
        assert!(
            self.contains(offset as u64, length as u64),
            "{length} bytes at {offset} of {}",
            self.map.len()
        );
        // SAFETY: the range lies within the mapping, as was just checked, and the mapping within
        // the memory. The memory is sealed against shrinking, so no access faults. It lives as long
        // as the borrow of `self`. The bytes do not change meanwhile. The server holds a handle on
        // the sample until this process releases its slot or ends. Nothing writes to a sample after
        // it was filled. This process releases the slot when the borrowed `SharedBytes` are
        // dropped. Other processes have the memory for reading only. A server that breaks this is a
        // process of this user in error. It is trusted as this process's own memory is.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(offset), length) }
    }
}

impl Drop for ProcessMapping {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.map) }
        }
    }
}
