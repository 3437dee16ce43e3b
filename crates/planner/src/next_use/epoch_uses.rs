//! Where a job uses each sample in one epoch: the inverse of its order.
//!
//! A table has 4 bytes per sample. With the epoch after it a job needs 8 bytes per sample. Orders
//! that repeat samples need 4 more bytes per use.
//!
//! A rank of a group announces the samples that it uses itself, and the samples that it serves to
//! ranks of other nodes. So an order may have several samples for one position, and
//! [holes](EpochUses::HOLE).

use std::num::NonZeroU32;

use foreread_types::SampleId;

use crate::demand::table;

/// No position.
const NONE: u32 = u32::MAX;

/// The positions of all samples in one epoch of one job. Made by
/// [`NextUseCache::order`](crate::NextUseCache::order).
#[derive(Clone, Debug)]
pub struct EpochUses {
    /// By sample, its first place that is not yet passed.
    first: Vec<u32>,
    /// By place, the next place of the same sample. `None` if no sample is repeated.
    again: Option<Vec<u32>>,
    /// Places, and those for one position.
    places: u32,
    per_position: NonZeroU32,
    /// Places with samples.
    used: u32,
}

/// Why an order is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderFault {
    /// The order has a sample that the dataset does not have.
    Unknown(SampleId),
    /// The tables do not fit in memory, or positions do not fit in 32 bits.
    TooLarge,
}

impl EpochUses {
    /// A place in an order without a sample. No dataset of a [`NextUseCache`](crate::NextUseCache)
    /// has a sample of this number.
    pub const HOLE: SampleId = SampleId(NONE as u64);

    /// The table of an order over a dataset of `samples` samples, so many for each position.
    pub(crate) fn new(
        samples: u64,
        per_position: NonZeroU32,
        order: impl IntoIterator<Item = SampleId>,
    ) -> Result<Self, OrderFault> {
        let mut ids = Vec::new();
        for id in order {
            if id.0 >= samples && id != Self::HOLE {
                return Err(OrderFault::Unknown(id));
            }
            ids.push(id.0 as u32);
        }
        let places = u32::try_from(ids.len()).ok().filter(|&places| places < NONE);
        let places = places.ok_or(OrderFault::TooLarge)?;
        let mut first: Vec<u32> = table(samples).ok_or(OrderFault::TooLarge)?;
        first.fill(NONE);
        let (mut is_repeating, mut used) = (false, 0);
        // In place: each place becomes the next place of its sample.
        for (at, id) in (0..places).zip(&mut ids).rev().filter(|(_, id)| **id != NONE) {
            let later = std::mem::replace(&mut first[*id as usize], at);
            is_repeating |= later != NONE;
            used += 1;
            *id = later;
        }
        Ok(Self { first, again: is_repeating.then_some(ids), places, per_position, used })
    }

    /// The number of positions.
    pub(crate) fn length(&self) -> u32 {
        self.places.div_ceil(self.per_position.get())
    }

    /// The number of positions.
    pub fn positions(&self) -> u64 {
        u64::from(self.length())
    }

    /// The number of samples of the dataset.
    pub(crate) fn samples(&self) -> u64 {
        self.first.len() as u64
    }

    /// Whether the epoch uses each sample of the dataset exactly once, or so many of its own ones.
    pub(crate) fn is_permutation(&self, own: u64) -> bool {
        self.again.is_none() && (self.used as usize == self.first.len() || u64::from(self.used) == own)
    }

    /// The first use of a sample at or after position `from`.
    pub(crate) fn position(&self, sample: u32, from: u32) -> Option<u32> {
        let at = self.place(sample, from);
        (at != NONE).then(|| at / self.per_position)
    }

    /// The place of that use, or `NONE`.
    fn place(&self, sample: u32, from: u32) -> u32 {
        let (mut at, from) = (self.first[sample as usize], from.saturating_mul(self.per_position.get()));
        while at < from {
            at = self.again.as_ref().map_or(NONE, |again| again[at as usize]);
        }
        at
    }

    /// Forgets the uses of a sample before position `from`, so that searches stay short, and uses
    /// before their position count once.
    pub(crate) fn pass(&mut self, sample: u32, from: u32) {
        self.first[sample as usize] = self.place(sample, from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(samples: u64, order: &[u64]) -> Result<EpochUses, OrderFault> {
        EpochUses::new(samples, NonZeroU32::MIN, order.iter().copied().map(SampleId))
    }

    #[test]
    fn several_samples_have_one_position() {
        const HOLE: SampleId = EpochUses::HOLE;
        let order = [SampleId(2), SampleId(0), HOLE, SampleId(3), SampleId(2), HOLE];
        let mut uses = EpochUses::new(4, NonZeroU32::new(2).unwrap(), order).unwrap();
        assert!(!uses.is_permutation(4) && uses.length() == 3);
        assert_eq!([0, 1, 2, 3].map(|sample| uses.position(sample, 0)), [Some(0), None, Some(0), Some(1)]);
        for passed in [false, true] {
            if passed {
                uses.pass(2, 1);
            }
            assert_eq!([1, 2, 3].map(|from| uses.position(2, from)), [Some(2), Some(2), None]);
        }
        let all = [SampleId(1), HOLE, SampleId(0), HOLE];
        assert!(EpochUses::new(2, NonZeroU32::new(2).unwrap(), all).unwrap().is_permutation(2));
    }

    #[test]
    fn positions_are_those_of_the_order() {
        let once = uses(4, &[2, 0, 3, 1]).unwrap();
        assert!(once.is_permutation(4) && once.length() == 4);
        assert_eq!([0, 1, 2, 3].map(|sample| once.position(sample, 1)), [Some(1), Some(3), None, Some(2)]);

        let mut repeated = uses(4, &[2, 0, 2, 2]).unwrap();
        assert!(!repeated.is_permutation(4) && !uses(4, &[2, 0]).unwrap().is_permutation(4));
        // Other nodes keep the others.
        assert!(uses(4, &[2, 0]).unwrap().is_permutation(2));
        for passed in [false, true] {
            if passed {
                repeated.pass(2, 1);
            }
            assert_eq!([1, 3, 4].map(|from| repeated.position(2, from)), [Some(2), Some(3), None]);
        }
        assert_eq!(repeated.position(1, 0), None);
        assert_eq!(uses(4, &[1, 4]).unwrap_err(), OrderFault::Unknown(SampleId(4)));
    }
}
