//! How much may be written to a disk.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use foreread_planner::WearBudget;

/// A budget of writes, which others may share.
pub trait WriteBudget: std::fmt::Debug + Send + Sync {
    /// Whether `bytes` may be written now. Then they count.
    fn take(&self, bytes: u64) -> bool;

    /// Takes back the budget of bytes that were not written.
    fn give_back(&self, bytes: u64);
}

/// The budget of one host.
#[derive(Debug)]
pub(crate) struct OwnWrites {
    begun: Instant,
    budget: Mutex<WearBudget>,
}

impl OwnWrites {
    /// All of `free` bytes of `capacity` may be written, and then so many capacities in a day.
    pub(crate) fn new(capacity: u64, free: u64, per_day: f64) -> Self {
        let budget = Mutex::new(WearBudget::new(capacity, free, per_day, Duration::ZERO));
        Self { begun: Instant::now(), budget }
    }
}

impl WriteBudget for OwnWrites {
    fn take(&self, bytes: u64) -> bool {
        let now = self.begun.elapsed();
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).take(bytes, now)
    }

    fn give_back(&self, bytes: u64) {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).give_back(bytes);
    }
}
