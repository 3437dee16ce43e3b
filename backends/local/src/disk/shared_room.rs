//! The room of a directory that samples share with copies of whole files.
//!
//! Decision: each side takes free room, and removes only its own files. So neither has to know the
//! files of the other. The price is that one side may have all of the room until the datasets that
//! it keeps are in use no longer.

use std::sync::{Arc, Mutex, MutexGuard};

use foreread_tier::{Budget, Charge};

use crate::jobs::lock;

/// The bytes of a directory. Clones share them.
#[derive(Clone, Debug)]
pub struct SharedRoom(Arc<RoomState>);

#[derive(Debug)]
struct RoomState {
    capacity: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// The bytes of whole files.
    files: u64,
    /// The charges of samples, and the bytes that a disk tier needs besides. `None`: no tier is
    /// open.
    samples: Option<(Budget, u64)>,
}

impl Taken {
    fn samples(&self) -> u64 {
        self.samples.as_ref().map_or(0, |(budget, besides)| budget.used().saturating_add(*besides))
    }
}

impl PartialEq for SharedRoom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedRoom {}

impl SharedRoom {
    /// Room for `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self(Arc::new(RoomState { capacity, taken: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        lock(&self.0.taken)
    }

    /// All of its bytes.
    pub fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// The bytes that nothing takes.
    pub fn free(&self) -> u64 {
        let taken = self.lock();
        self.0.capacity.saturating_sub(taken.files).saturating_sub(taken.samples())
    }

    /// The bytes that whole files may take, with the bytes that they take.
    pub fn for_files(&self) -> u64 {
        self.0.capacity.saturating_sub(self.lock().samples())
    }

    /// The bytes of whole files.
    pub fn files(&self) -> u64 {
        self.lock().files
    }

    /// Takes `bytes` for a file, if they are free.
    pub fn try_take(&self, bytes: u64) -> bool {
        let mut taken = self.lock();
        let sum = taken.files.saturating_add(bytes);
        let is_free = sum.saturating_add(taken.samples()) <= self.0.capacity;
        if is_free {
            taken.files = sum;
        }
        is_free
    }

    /// Sets the bytes of files that were found, even if they are more than there is room for.
    pub fn set_files(&self, bytes: u64) {
        self.lock().files = bytes;
    }

    /// Gives the bytes of a file back.
    pub fn give_back(&self, bytes: u64) {
        let mut taken = self.lock();
        taken.files = taken.files.saturating_sub(bytes);
    }

    /// Notes the samples of a disk tier, in place of those of an earlier one.
    pub(super) fn set_samples(&self, budget: Budget, besides: u64) {
        self.lock().samples = Some((budget, besides));
    }

    /// Charges bytes for a sample, if neither samples nor files take them.
    pub(super) fn charge(&self, budget: &Budget, bytes: u64) -> Option<Charge> {
        let taken = self.lock();
        let sum = taken.files.saturating_add(taken.samples()).saturating_add(bytes);
        (sum <= self.0.capacity).then(|| budget.try_charge(bytes)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FILES-11
    fn files_and_samples_never_take_more_than_the_room() {
        let (room, samples) = (SharedRoom::new(100), Budget::new(90));
        assert!(room.try_take(60) && !room.try_take(41) && room.for_files() == 100);
        room.set_samples(samples.clone(), 10);
        assert_eq!((room.free(), room.for_files()), (30, 90));
        let first = room.charge(&samples, 20).unwrap();
        assert!(room.charge(&samples, 11).is_none() && !room.try_take(11));
        assert!(room.try_take(10) && room.charge(&samples, 1).is_none());
        room.give_back(70);
        assert_eq!((room.files(), room.free()), (0, 70));
        // The limit of the samples holds as well.
        assert!(room.charge(&samples, 71).is_none() && room.charge(&samples, 70).is_some());
        drop(first);
        assert_eq!(room.free(), 90);
    }
}
