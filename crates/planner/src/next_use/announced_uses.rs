//! The rule without tables of orders, for datasets of which each sample may cost one byte.
//!
//! Jobs announce their uses some time ahead. A sample stays after a use if a job has announced
//! another one. The time ahead is chosen so that as many samples stay as fit (see
//! [`SharedMiss::horizon`](crate::SharedMiss)). The price: a full cache refuses samples, because
//! nothing ranks its residents. That costs up to 4 points of hits with two jobs, and up to 1 point
//! with more.

use foreread_types::SampleId;

use crate::demand::table;
use crate::error::{PlanError, PlanReason};
use crate::next_use::cache_use::CacheUse;

/// The bit of a resident. The others count announced uses.
const RESIDENT: u8 = 1 << 7;

/// The most announced uses that are counted. Later ones are ignored, which may cost a hit.
const MOST: u8 = RESIDENT - 1;

/// The residents and announced uses of one dataset.
///
/// ```
/// use foreread_planner::AnnouncedUses;
/// use foreread_types::SampleId;
/// # fn main() -> Result<(), foreread_planner::PlanError> {
/// let mut cache = AnnouncedUses::new(1000, 64)?;
/// cache.announce(SampleId(7));
/// cache.announce(SampleId(7));
/// assert!(cache.used(SampleId(7), 64).kept);
/// let last = cache.used(SampleId(7), 64);
/// assert!(last.hit && !last.kept);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AnnouncedUses {
    samples: Vec<u8>,
    capacity: u64,
    held: u64,
}

impl AnnouncedUses {
    /// An empty cache of `capacity` bytes for a dataset of `samples` samples.
    ///
    /// # Errors
    /// If a byte for each sample does not fit in memory.
    pub fn new(samples: u64, capacity: u64) -> Result<Self, PlanError> {
        let dataset = foreread_types::DatasetId(0);
        let table = table(samples).ok_or(PlanReason::Memory { dataset, samples })?;
        Ok(Self { samples: table, capacity, held: 0 })
    }

    /// Announces one use of a sample by any job.
    ///
    /// # Panics
    /// If the dataset has no such sample.
    pub fn announce(&mut self, sample: SampleId) {
        let byte = &mut self.samples[sample.0 as usize];
        *byte += u8::from(*byte & MOST < MOST);
    }

    /// Withdraws an announced use of a sample that occupies `bytes` bytes. Returns whether the
    /// sample leaves the cache.
    ///
    /// # Panics
    /// If the dataset has no such sample.
    pub fn withdraw(&mut self, sample: SampleId, bytes: u64) -> bool {
        let byte = &mut self.samples[sample.0 as usize];
        *byte -= u8::from(*byte & MOST > 0);
        let leaves = *byte == RESIDENT;
        if leaves {
            *byte = 0;
            self.held -= bytes;
        }
        leaves
    }

    /// Counts an announced use of a sample that occupies `bytes` bytes, and decides whether the
    /// sample stays.
    ///
    /// # Panics
    /// If the dataset has no such sample.
    pub fn used(&mut self, sample: SampleId, bytes: u64) -> CacheUse {
        let hit = self.samples[sample.0 as usize] >= RESIDENT;
        self.withdraw(sample, bytes);
        let byte = &mut self.samples[sample.0 as usize];
        let is_new = *byte > 0 && *byte < RESIDENT;
        if is_new && self.held.saturating_add(bytes) <= self.capacity {
            *byte |= RESIDENT;
            self.held += bytes;
        }
        CacheUse { hit, kept: *byte >= RESIDENT }
    }

    /// The bytes of all residents.
    pub fn held_bytes(&self) -> u64 {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_cache_refuses_and_withdrawn_samples_leave() {
        let mut cache = AnnouncedUses::new(3, 15).unwrap();
        let [a, b, c] = [0, 1, 2].map(SampleId);
        for sample in [a, a, a, b, b, c] {
            cache.announce(sample);
        }
        assert_eq!(cache.used(a, 10), CacheUse { hit: false, kept: true });
        assert_eq!(cache.used(b, 10), CacheUse { hit: false, kept: false });
        assert_eq!(cache.used(c, 5), CacheUse { hit: false, kept: false });
        assert_eq!(cache.held_bytes(), 10);
        assert!(!cache.withdraw(a, 10));
        assert!(cache.withdraw(a, 10));
        assert_eq!(cache.held_bytes(), 0);
        assert_eq!(cache.used(b, 10), CacheUse { hit: false, kept: false });
    }

    #[test]
    fn excess_announcements_are_ignored() {
        let mut cache = AnnouncedUses::new(1, 10).unwrap();
        (0..300).for_each(|_| cache.announce(SampleId(0)));
        let kept = (0..300).filter(|_| cache.used(SampleId(0), 1).kept).count();
        assert_eq!((kept, cache.held_bytes()), (usize::from(MOST) - 1, 0));
    }
}
