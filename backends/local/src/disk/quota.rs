//! The bytes of a directory that samples may take.

use std::sync::Mutex;

use foreread_tier::{Budget, Charge};

use super::shared_room::SharedRoom;
use crate::jobs::lock;

/// The quota of one directory. Charges are interchangeable, so all kept records share one charge.
/// It is one number, however many samples there are.
#[derive(Debug)]
pub(super) struct Quota {
    budget: Budget,
    /// Kept until the tier ends: stored records, and dead blocks that the file system did not free.
    held: Mutex<Charge>,
    /// The room that whole files share.
    room: Option<SharedRoom>,
}

impl Quota {
    pub(super) fn new(limit: u64, room: Option<SharedRoom>) -> Self {
        let budget = Budget::new(limit);
        if let Some(room) = &room {
            room.set_samples(budget.clone(), room.capacity().saturating_sub(limit));
        }
        Self { held: Mutex::new(budget.charge(0)), budget, room }
    }

    /// Charges `bytes` if they are free.
    pub(super) fn try_charge(&self, bytes: u64) -> Option<Charge> {
        match &self.room {
            Some(room) => room.charge(&self.budget, bytes),
            None => self.budget.try_charge(bytes),
        }
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(super) fn free(&self) -> u64 {
        let free = self.budget.limit().saturating_sub(self.budget.used());
        self.room.as_ref().map_or(free, |room| free.min(room.free()))
    }

    fn hold(&self, charge: Charge) {
        let mut held = lock(&self.held);
        // A charge of another budget is dropped here.
        drop(held.merge(charge));
    }

    /// Takes over the charge of a record that was written and takes `bytes`.
    pub(super) fn keep(&self, charge: Charge, bytes: u64) {
        // A charge that is too large is exchanged for an exact one.
        self.hold(if charge.bytes() == bytes { charge } else { self.budget.charge(bytes) });
    }

    /// Takes `bytes` of a record that was found on disk, or of bookkeeping, if they are free.
    pub(super) fn try_reserve(&self, bytes: u64) -> bool {
        let charge = self.try_charge(bytes);
        let taken = charge.is_some();
        charge.into_iter().for_each(|charge| self.hold(charge));
        taken
    }

    /// Counts `bytes` that are taken and cannot be used.
    pub(super) fn write_off(&self, bytes: u64) {
        self.hold(self.budget.charge(bytes));
    }

    /// Frees `bytes` of records that were removed.
    pub(super) fn release(&self, bytes: u64) {
        let mut held = lock(&self.held);
        drop(held.split(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_of_records_is_one_number() {
        let room = Quota::new(100, None);
        for _ in 0..10 {
            let more = room.try_charge(4).unwrap();
            room.keep(more, 3);
        }
        assert!(room.try_reserve(2) && !room.try_reserve(69) && room.try_reserve(1));
        room.write_off(1);
        assert_eq!(room.free(), 100 - 34);
        (0..10).for_each(|_| room.release(3));
        assert_eq!(room.free(), 96);
    }
}
