//! How much may be written to a disk: a part of its capacity per day.
//!
//! Solid-state disks wear out by writes. A cache that replaces its contents all the time would
//! write its disk full several times a day. The price of a budget is that a new dataset may have to
//! wait for the disk, and is read from its origin meanwhile. Samples that do not fit are counted.
//!
//! At first, all free room may be filled. After that, the budget grows with time, up to one
//! capacity.

use std::time::Duration;

const DAY: f64 = 86_400.0;

/// The budget of writes. Times count from any origin that all calls share.
#[derive(Clone, Copy, Debug)]
pub struct WearBudget {
    capacity: u64,
    /// Capacities per day.
    per_day: f64,
    /// Bytes that may be written now.
    credit: f64,
    latest: Duration,
    /// Bytes that were not written for lack of budget.
    pub refused_bytes: u64,
    /// How often that was so.
    pub refused: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

impl WearBudget {
    /// A budget for a disk of `capacity` bytes with `free` free ones.
    pub fn new(capacity: u64, free: u64, per_day: f64, now: Duration) -> Self {
        let credit = free.min(capacity) as f64;
        Self { capacity, per_day, credit, latest: now, refused_bytes: 0, refused: 0, written_bytes: 0 }
    }

    /// Changes the capacities per day.
    pub fn set_per_day(&mut self, per_day: f64, now: Duration) {
        self.advance(now);
        self.per_day = per_day;
    }

    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.latest).as_secs_f64();
        let capacity = self.capacity as f64;
        self.credit = (self.credit + passed / DAY * self.per_day * capacity).min(capacity);
        self.latest = self.latest.max(now);
    }

    /// Whether `bytes` may be written now. Then they count.
    pub fn take(&mut self, bytes: u64, now: Duration) -> bool {
        self.advance(now);
        if self.credit < bytes as f64 {
            self.refused += 1;
            self.refused_bytes += bytes;
            return false;
        }
        self.credit -= bytes as f64;
        self.written_bytes += bytes;
        true
    }

    /// The bytes that may be written now.
    pub fn credit(&self) -> u64 {
        self.credit as u64
    }

    /// Takes back the bytes that were not written after all.
    pub fn give_back(&mut self, bytes: u64) {
        self.credit += bytes as f64;
        self.written_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_of_new_datasets_stays_within_the_budget() {
        const CAPACITY: u64 = 1_000_000;
        let mut budget = WearBudget::new(CAPACITY, CAPACITY, 0.5, Duration::ZERO);
        // Three datasets of the disk's size take turns, each for an hour.
        for minute in 0..7 * 24 * 60 {
            let now = Duration::from_secs(minute * 60);
            for _ in 0..20 {
                budget.take(CAPACITY / 1000, now);
            }
        }
        let capacities = budget.written_bytes as f64 / CAPACITY as f64;
        assert!((4.4..=4.5).contains(&capacities), "{capacities}");
        assert_eq!(budget.refused_bytes, budget.refused * CAPACITY / 1000);
        assert!(budget.refused > 0);
    }

    #[test]
    fn full_disk_begins_without_credit() {
        let mut budget = WearBudget::new(1000, 0, 0.0, Duration::ZERO);
        assert!(!budget.take(1, Duration::from_secs(1_000_000)));
        budget.set_per_day(1.0, Duration::from_secs(1_000_000));
        let later = Duration::from_secs(1_000_000 + 86_400 / 2);
        assert!(budget.take(499, later) && !budget.take(2, later));
        budget.give_back(499);
        assert!(budget.take(499, later) && budget.written_bytes == 499);
        // A long pause gives one capacity.
        assert!(budget.take(1000, later + Duration::from_secs(100 * 86_400)));
    }
}
