//! The outcomes of the reference policies on whole streams, and first-in, first-out.

use std::collections::{HashMap, HashSet, VecDeque};

use foreread_planner::CacheUse;
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

/// Keeps a sample after its use if its next use is at most `horizon` positions away and space is
/// left: the rule of `Retention::Threshold`.
pub fn threshold(stream: &[SampleId], capacity: u64, horizon: u64) -> CacheOutcome {
    let (mut next, mut ahead) = (vec![u64::MAX; stream.len()], HashMap::new());
    for (at, id) in stream.iter().enumerate().rev() {
        next[at] = ahead.insert(id, at as u64).unwrap_or(u64::MAX);
    }
    let (mut residents, mut outcome) = (HashSet::new(), CacheOutcome::default());
    for (at, (id, next)) in stream.iter().zip(next).enumerate() {
        let hit = residents.remove(id);
        let is_near = next != u64::MAX && next - at as u64 <= horizon;
        let kept = is_near && (residents.len() as u64) < capacity;
        if kept {
            residents.insert(id);
        }
        outcome.count(CacheUse { hit, kept });
    }
    outcome
}
