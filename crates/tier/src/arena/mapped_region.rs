//! Regions of other processes' shared memory that this process has mapped, and can pass on.
//!
//! A job maps the memory of its node's agent, and its worker processes map the job's memory. With
//! the agent's own descriptor, a worker maps the agent's memory itself: no sample is copied on its
//! way.
//!
//! The price is an open descriptor for each region. Half of the process's descriptors stay free for
//! other files. Samples of later regions are copied for other processes.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::shared_region::{SharedPlace, SharedRegion, has_free_descriptors};

/// All mapped regions of the process, by address, and the process that mapped them.
static MAPPED: RwLock<BTreeMap<usize, (Weak<SharedRegion>, u32)>> = RwLock::new(BTreeMap::new());

/// A region of another process at an address of this one. Dropping it ends passing it on.
#[derive(Debug)]
pub struct MappedRegion {
    address: usize,
    region: Arc<SharedRegion>,
    process: u32,
}

impl MappedRegion {
    /// Has samples at these `length` bytes passed on by `descriptor`, whose first bytes they are.
    /// It must be open for reading only, and stay mapped there until the value is dropped. `None`
    /// if the process has too few descriptors left.
    pub fn new(address: usize, length: u64, descriptor: OwnedFd) -> Option<Self> {
        if !has_free_descriptors(descriptor.as_raw_fd()) {
            return None;
        }
        let region = Arc::new(SharedRegion::received(length, descriptor)?);
        let process = std::process::id();
        let entry = (Arc::downgrade(&region), process);
        MAPPED.write().unwrap_or_else(PoisonError::into_inner).insert(address, entry);
        Some(Self { address, region, process })
    }

    /// The region.
    pub fn region(&self) -> &Arc<SharedRegion> {
        &self.region
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // In a forked child another thread may have held the lock. The child looks at no entry of
        // its parent.
        if self.process == std::process::id() {
            MAPPED.write().unwrap_or_else(PoisonError::into_inner).remove(&self.address);
        }
    }
}

/// The place of `length` bytes at `address`, if they lie in such a region.
pub(super) fn place_of(address: usize, length: usize) -> Option<SharedPlace> {
    // A forked child may find it locked for ever. Then samples are copied.
    let mapped = MAPPED.try_read().ok()?;
    let (start, (region, process)) = mapped.range(..=address).next_back()?;
    // A forked child does not have the mapping. Other memory may have its address there.
    SharedPlace::of(region, address - start, length).filter(|_| *process == std::process::id())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::{ArenaBuffers, Buffers};

    #[test]
    fn mapped_region_is_found_until_it_is_dropped() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        std::fs::File::from(file.try_clone().unwrap()).write_all(&[7; 5000]).unwrap();
        // Stands for the mapping.
        let bytes = vec![7_u8; 5000];
        let start = bytes.as_ptr().addr();
        let mapped = MappedRegion::new(start, 5000, file).unwrap();
        let arena = ArenaBuffers::default();
        let place = arena.shared_place(&bytes[100..300]).unwrap();
        assert_eq!((place.offset, place.region.number()), (100, mapped.region().number()));
        assert!(place_of(start, 5000).is_some() && place_of(start, 5001).is_none());
        assert!(place_of(start + 4999, 2).is_none() && place_of(start + 1, usize::MAX).is_none());
        drop(mapped);
        assert!(arena.shared_place(&bytes[100..300]).is_none());
    }
}
