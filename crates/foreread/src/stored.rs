//! What samples cost in the storage, where they are decoded when they are read.
//!
//! Caches and the look-ahead hold decoded bytes, so plans are made in them. Only what the storage
//! sends is counted in stored bytes: the lower bound and the planned bytes. The speed of the origin
//! is converted to decoded bytes. The price is that a plan treats all samples as if they became
//! longer by one factor. The lower bound holds for any factors.

use foreread_dataset::Catalog;
use foreread_planner::Origin;
use foreread_types::{SampleId, Sizes};

/// The stored and the delivered length of each sample, by dataset.
#[derive(Clone, Debug)]
pub(crate) struct StoredSizes {
    pub(crate) stored: Vec<Sizes>,
    delivered: Vec<Sizes>,
}

impl StoredSizes {
    /// The lengths in these catalogs. `None` if no sample is decoded.
    pub(crate) fn of(catalogs: &[Catalog]) -> Option<Self> {
        if catalogs.iter().all(|catalog| catalog.stored_sizes().is_none()) {
            return None;
        }
        let stored = |catalog: &Catalog| catalog.stored_sizes().unwrap_or_else(|| catalog.sizes());
        Some(Self {
            stored: catalogs.iter().map(stored).collect(),
            delivered: catalogs.iter().map(Catalog::sizes).collect(),
        })
    }

    fn total(sizes: &[Sizes]) -> u64 {
        sizes.iter().map(Sizes::total).fold(0, u64::saturating_add)
    }

    /// About the stored length of `delivered` bytes.
    pub(crate) fn typical(&self, delivered: u64) -> u64 {
        scaled(delivered, Self::total(&self.stored), Self::total(&self.delivered))
    }

    /// The most stored bytes that `delivered` bytes of whole samples can be.
    pub(crate) fn most(&self, delivered: u64) -> u64 {
        let (stored, of) = self.extreme(|ratio, most| ratio > most);
        // Rounded up.
        scaled(delivered, stored, of).saturating_add(u64::from(delivered > 0))
    }

    /// The fewest stored bytes that `delivered` bytes of whole samples can be.
    pub(crate) fn fewest(&self, delivered: u64) -> u64 {
        let (stored, of) = self.extreme(|ratio, fewest| ratio < fewest);
        scaled(delivered, stored, of)
    }

    /// The sample whose stored and delivered lengths have the extreme ratio.
    fn extreme(&self, wins: impl Fn(u128, u128) -> bool) -> (u64, u64) {
        let mut extreme: Option<(u64, u64)> = None;
        for (stored, delivered) in self.stored.iter().zip(&self.delivered) {
            for id in (0..stored.len()).map(SampleId) {
                let (stored, delivered) = (stored.bytes(id), delivered.bytes(id));
                let is_next = extreme.is_none_or(|(most, of)| {
                    wins(u128::from(stored) * u128::from(of), u128::from(most) * u128::from(delivered))
                });
                if delivered > 0 && is_next {
                    extreme = Some((stored, delivered));
                }
            }
        }
        extreme.unwrap_or((1, 1))
    }

    /// The origin with its rates in delivered bytes.
    pub(crate) fn origin(&self, origin: Origin) -> Origin {
        origin.decoding(Self::total(&self.stored), Self::total(&self.delivered))
    }
}

/// `bytes * stored / delivered`, rounded down.
fn scaled(bytes: u64, stored: u64, delivered: u64) -> u64 {
    let product = u128::from(bytes) * u128::from(stored) / u128::from(delivered.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FORMAT-5
    fn bounds_hold_for_samples_of_any_factor() {
        let sizes = StoredSizes {
            stored: vec![Sizes::table(&[10, 50, 0]), Sizes::uniform(2, 20)],
            delivered: vec![Sizes::table(&[100, 100, 0]), Sizes::uniform(2, 20)],
        };
        assert_eq!((sizes.fewest(1000), sizes.typical(240), sizes.most(1000)), (100, 100, 1001));
        assert_eq!((sizes.fewest(0), sizes.typical(0), sizes.most(0)), (0, 0, 0));
        assert_eq!(sizes.most(u64::MAX), u64::MAX);
    }
}
