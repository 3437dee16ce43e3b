//! Reference cache policies for samples of equal length, to compare a plan with.
//!
//! They serve tests, reports and the simulator. Capacities count samples, every use is on demand,
//! and a sample that is not kept takes no space. Ids are dense and small, because the tables are
//! vectors. Several datasets are numbered consecutively.
//!
//! [`min_each`] is Belady's rule with bypass (Belady, "A study of replacement algorithms for a
//! virtual-storage computer", 1966, and Mattson et al., 1970). Of the resident samples and the one
//! just used, it evicts the one with the farthest next use. No policy hits more often.

use std::collections::BinaryHeap;
use std::num::NonZeroUsize;

use foreread_types::SampleId;
use lru::LruCache;

use crate::next_use::CacheUse;

/// The result of a policy on a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheOutcome {
    /// Uses that needed no origin read.
    pub hits: u64,
    /// Samples that were written to the cache.
    pub writes: u64,
}

impl CacheOutcome {
    /// Adds one use.
    pub fn count(&mut self, CacheUse { hit, kept }: CacheUse) {
        self.hits += u64::from(hit);
        self.writes += u64::from(kept && !hit);
    }
}

/// For each position of a stream, the position of the next use of the same sample. `u64::MAX` if
/// there is none.
fn next_uses(stream: &[SampleId]) -> Vec<u64> {
    let mut ahead = vec![u64::MAX; samples(stream)];
    let mut next = vec![u64::MAX; stream.len()];
    for (at, id) in stream.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut ahead[id.0 as usize], at as u64);
    }
    next
}

/// Keeps the first `capacity` samples permanently. Calls `each` for each use and its position.
pub fn never_evict_each(stream: &[SampleId], capacity: u64, mut each: impl FnMut(usize, CacheUse)) {
    let mut is_kept = vec![false; samples(stream)];
    let mut resident = 0;
    for (at, id) in stream.iter().enumerate() {
        let hit = is_kept[id.0 as usize];
        let kept = hit || resident < capacity;
        resident += u64::from(kept && !hit);
        is_kept[id.0 as usize] = kept;
        each(at, CacheUse { hit, kept });
    }
}

/// Evicts the least recently used sample. Calls `each` for each use and its position.
pub fn lru_each(stream: &[SampleId], capacity: u64, mut each: impl FnMut(usize, CacheUse)) {
    // The cache allocates its capacity at the start.
    let capacity = capacity.min(samples(stream) as u64);
    let mut residents = NonZeroUsize::new(capacity as usize).map(LruCache::new);
    for (at, id) in stream.iter().enumerate() {
        let hit = residents.as_mut().is_some_and(|residents| residents.put(*id, ()).is_some());
        each(at, CacheUse { hit, kept: residents.is_some() });
    }
}

/// Belady's MIN with bypass: the most hits that are possible on demand. Calls `each` for each use
/// and its position.
pub fn min_each(stream: &[SampleId], capacity: u64, mut each: impl FnMut(usize, CacheUse)) {
    let next = next_uses(stream);
    // Residents are identified by the position of their next use, which is unique. The heap also
    // holds past uses. They are smaller than all others, and `resident` does not count them.
    let mut kept = vec![false; stream.len()];
    let mut heap = BinaryHeap::new();
    let mut resident = 0;
    for (at, &next) in next.iter().enumerate() {
        let hit = kept[at];
        resident -= u64::from(hit);
        if next != u64::MAX {
            heap.push(next);
            kept[next as usize] = true;
            resident += 1;
            if resident > capacity
                && let Some(farthest) = heap.pop()
            {
                kept[farthest as usize] = false;
                resident -= 1;
            }
        }
        each(at, CacheUse { hit, kept: next != u64::MAX && kept[next as usize] });
    }
}

/// The number of entries of a table over the ids of a stream.
fn samples(stream: &[SampleId]) -> usize {
    stream.iter().map(|id| id.0 as usize + 1).max().unwrap_or(0)
}
