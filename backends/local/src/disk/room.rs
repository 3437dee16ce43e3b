//! The bytes of a directory that samples may take, and who has them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use foreread_tier::{Budget, Charge};

use super::format::BLOCK;

/// The room of one directory. A charge is as good as any other of its size, so those of what is kept are held by
/// size, and the table of samples need not know them.
#[derive(Debug)]
pub(super) struct Room {
    budget: Budget,
    held: Mutex<HashMap<u32, Vec<Charge>>>,
    /// What dead records take that could not be given back to the file system.
    wasted: Mutex<Vec<Charge>>,
}

impl Room {
    pub(super) fn new(limit: u64) -> Self {
        Self { budget: Budget::new(limit), held: Mutex::default(), wasted: Mutex::default() }
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(super) fn free(&self) -> u64 {
        self.budget.limit().saturating_sub(self.budget.used())
    }

    /// Takes over the room of a record of `blocks` that is now on disk.
    pub(super) fn keep(&self, charge: Charge, blocks: u32) {
        let bytes = u64::from(blocks) * BLOCK;
        // More was set aside than is taken: exchanged for a charge that fits.
        let charge = if charge.bytes() == bytes { charge } else { self.budget.charge(bytes) };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).entry(blocks).or_default().push(charge);
    }

    /// Room for a record of `blocks` that was found on disk, if there is any.
    pub(super) fn find(&self, blocks: u32) -> bool {
        match self.budget.try_charge(u64::from(blocks) * BLOCK) {
            Some(charge) => {
                self.keep(charge, blocks);
                true
            }
            None => false,
        }
    }

    /// Counts `bytes` for good, if they are free.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let charge = self.budget.try_charge(bytes);
        let taken = charge.is_some();
        self.wasted.lock().unwrap_or_else(PoisonError::into_inner).extend(charge);
        taken
    }

    /// Counts `bytes` that nobody uses and nobody gets.
    pub(super) fn waste(&self, bytes: u64) {
        if bytes > 0 {
            let charge = self.budget.charge(bytes);
            self.wasted.lock().unwrap_or_else(PoisonError::into_inner).push(charge);
        }
    }

    /// Gives the room of a record of `blocks` back.
    pub(super) fn release(&self, blocks: u32) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let charge = held.get_mut(&blocks).and_then(Vec::pop);
        drop(held); // ending a charge may call back
        drop(charge);
    }
}
