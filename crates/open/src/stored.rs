//! The cost of samples in the storage, where they are decoded when they are read.
//!
//! Caches and the look-ahead hold decoded bytes, so plans are made in them. Only the bytes that the
//! storage sends are counted as stored bytes: the lower bound and the planned bytes. The speed of
//! the origin is converted to decoded bytes. The price is that a plan treats all samples as if they
//! became longer by one factor. The lower bound holds for any factors. A sample of a shared unit
//! counts with its share of it, by the bytes of all its samples, because no policy reads less.

use foreread_dataset::Catalog;
use foreread_planner::{Origin, OriginServers};
use foreread_types::{SampleId, Sizes};

use crate::units::UnitFacts;

/// The stored length of each sample, by dataset.
#[derive(Clone, Debug)]
pub struct StoredSizes {
    /// By dataset.
    pub stored: Vec<Sizes>,
    /// The stored units that samples share, if some do.
    pub units: Option<UnitFacts>,
    /// Their ratios to delivered bytes.
    pub factors: StoredFactors,
}

impl StoredSizes {
    /// The lengths in these catalogs. `None` if no sample is decoded. Reads every entry of catalogs
    /// with decoded samples.
    pub fn of(catalogs: &[Catalog]) -> Option<Self> {
        if catalogs.iter().all(|catalog| catalog.stored_sizes().is_none()) {
            return None;
        }
        let (mut stored, mut units, mut ratios) = (Vec::new(), None, Ratios::default());
        for catalog in catalogs {
            stored.push(match UnitFacts::of(catalog) {
                Some((facts, shares, extremes)) => {
                    units = Some(units.map_or(facts, |others: UnitFacts| others.and(facts)));
                    ratios = ratios.and(extremes);
                    shares
                }
                None => {
                    let stored = catalog.stored_sizes().unwrap_or_else(|| catalog.sizes());
                    ratios = ratios.and(Ratios::of(&stored, &catalog.sizes()));
                    stored
                }
            });
        }
        let delivered: Vec<Sizes> = catalogs.iter().map(Catalog::sizes).collect();
        let factors = StoredFactors::of(&stored, &delivered, ratios);
        Some(Self { stored, units, factors })
    }

    /// Datasets of these lengths, for tests.
    #[doc(hidden)]
    pub fn with<const N: usize>(stored: [Sizes; N], delivered: &[Sizes; N]) -> Self {
        let ratios = stored.iter().zip(delivered).map(|(stored, delivered)| Ratios::of(stored, delivered));
        let factors = StoredFactors::of(&stored, delivered, ratios.fold(Ratios::default(), Ratios::and));
        Self { stored: stored.into(), units: None, factors }
    }

    /// The servers with their rates in delivered bytes.
    pub fn servers(&self, servers: &OriginServers) -> OriginServers {
        let (stored, delivered) = self.factors.typical;
        servers.decoding(stored, delivered)
    }

    /// The origin with its rates in delivered bytes.
    pub fn origin(&self, origin: Origin) -> Origin {
        let (stored, delivered) = self.factors.typical;
        origin.decoding(stored, delivered)
    }
}

/// Stored bytes and the delivered bytes that they become: of all samples, and of the samples with
/// the largest and the smallest part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredFactors {
    typical: (u64, u64),
    most: (u64, u64),
    fewest: (u64, u64),
    /// How often an epoch reads a stored unit.
    reads: f64,
}

impl StoredFactors {
    fn of(stored: &[Sizes], delivered: &[Sizes], Ratios { most, fewest }: Ratios) -> Self {
        let total = |sizes: &[Sizes]| sizes.iter().map(Sizes::total).fold(0, u64::saturating_add);
        Self {
            typical: (total(stored), total(delivered)),
            most: most.unwrap_or((1, 1)),
            fewest: fewest.unwrap_or((1, 1)),
            reads: 1.0,
        }
    }

    /// The same, where an epoch reads each stored unit `reads` times.
    pub fn reading_units(self, reads: f64) -> Self {
        Self { reads, ..self }
    }

    /// About the stored bytes that are read for `delivered` bytes.
    pub fn typical(&self, delivered: u64) -> u64 {
        let (stored, of) = self.typical;
        (scaled(delivered, stored, of) as f64 * self.reads) as u64
    }

    /// The most stored bytes that `delivered` bytes of whole samples can be.
    pub fn most(&self, delivered: u64) -> u64 {
        let (stored, of) = self.most;
        // Rounded up.
        scaled(delivered, stored, of).saturating_add(u64::from(delivered > 0))
    }

    /// The fewest stored bytes that `delivered` bytes of whole samples can be.
    pub fn fewest(&self, delivered: u64) -> u64 {
        let (stored, of) = self.fewest;
        scaled(delivered, stored, of)
    }
}

/// Stored bytes and the delivered bytes that they become, where their ratio is extreme: of samples,
/// or of units with all their samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ratios {
    most: Option<(u64, u64)>,
    fewest: Option<(u64, u64)>,
}

impl Ratios {
    fn of(stored: &Sizes, delivered: &Sizes) -> Self {
        let mut ratios = Self::default();
        for id in (0..stored.len()).map(SampleId) {
            ratios.add(stored.bytes(id), delivered.bytes(id));
        }
        ratios
    }

    /// Adds stored bytes that become `delivered` ones.
    pub fn add(&mut self, stored: u64, delivered: u64) {
        let is_less = |(one, of): (u64, u64), (other, than): (u64, u64)| {
            u128::from(one) * u128::from(than) < u128::from(other) * u128::from(of)
        };
        if delivered == 0 {
            return;
        }
        let new = (stored, delivered);
        if self.most.is_none_or(|most| is_less(most, new)) {
            self.most = Some(new);
        }
        if self.fewest.is_none_or(|fewest| is_less(new, fewest)) {
            self.fewest = Some(new);
        }
    }

    fn and(mut self, other: Self) -> Self {
        for (stored, delivered) in other.most.into_iter().chain(other.fewest) {
            self.add(stored, delivered);
        }
        self
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
        let stored = [Sizes::table(&[10, 50, 0]), Sizes::uniform(2, 20)];
        let delivered = [Sizes::table(&[100, 100, 0]), Sizes::uniform(2, 20)];
        let sizes = StoredSizes::with(stored, &delivered).factors;
        assert_eq!((sizes.fewest(1000), sizes.typical(240), sizes.most(1000)), (100, 100, 1001));
        assert_eq!((sizes.fewest(0), sizes.typical(0), sizes.most(0)), (0, 0, 0));
        assert_eq!(sizes.most(u64::MAX), u64::MAX);
        assert_eq!(sizes.reading_units(7.0).typical(240), 700);
    }
}
