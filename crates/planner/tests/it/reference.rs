//! The outcomes of the reference policies on whole streams, and first-in, first-out.

use std::collections::{HashSet, VecDeque};

pub use foreread_planner::policies::threshold;
use foreread_planner::policies::{self, CacheOutcome};
use foreread_types::SampleId;

/// Keeps the first `capacity` samples permanently.
pub fn never_evict(stream: &[SampleId], capacity: u64) -> CacheOutcome {
    let mut outcome = CacheOutcome::default();
    policies::never_evict_each(stream, capacity, |_, it| outcome.count(it));
    outcome
}

/// Evicts the sample that was inserted first.
pub fn fifo(stream: &[SampleId], capacity: u64) -> CacheOutcome {
    let mut kept = HashSet::new();
    let mut queue = VecDeque::new();
    let mut outcome = CacheOutcome::default();
    for &id in stream {
        if kept.contains(&id) {
            outcome.hits += 1;
        } else if capacity > 0 {
            if queue.len() as u64 == capacity
                && let Some(oldest) = queue.pop_front()
            {
                kept.remove(&oldest);
            }
            kept.insert(id);
            queue.push_back(id);
            outcome.writes += 1;
        }
    }
    outcome
}

/// Evicts the least recently used sample.
pub fn lru(stream: &[SampleId], capacity: u64) -> CacheOutcome {
    let mut outcome = CacheOutcome::default();
    policies::lru_each(stream, capacity, |_, it| outcome.count(it));
    outcome
}

/// Belady's MIN with bypass: the most hits that are possible on demand.
pub fn min(stream: &[SampleId], capacity: u64) -> CacheOutcome {
    let mut outcome = CacheOutcome::default();
    policies::min_each(stream, capacity, |_, it| outcome.count(it));
    outcome
}
