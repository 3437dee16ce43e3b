//! The default shuffle.
//!
//! A Fisher-Yates shuffle with words of ChaCha8, reduced to ranges by Lemire's method. The key is
//! the seed and the stream number is the epoch. So any epoch is reached directly, and no two epochs
//! share words. The price is 4 bytes of memory per sample for each epoch in use, and some
//! milliseconds per million samples. [`Feistel`](crate::Feistel) needs neither, and is slower to
//! read.

use foreread_types::Fingerprint;

use crate::order::{check_samples, try_with_capacity};
use crate::random::{RandomPurpose, RandomStream};
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// A new uniform permutation in every epoch. Equal arguments give equal orders in every release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shuffle {
    samples: u64,
    seed: u64,
}

impl Shuffle {
    /// Over `samples` samples.
    ///
    /// # Errors
    /// More than 2^63 samples.
    pub fn new(samples: u64, seed: u64) -> Result<Self, OracleError> {
        check_samples(samples)?;
        Ok(Self { samples, seed })
    }
}

impl Sampler for Shuffle {
    fn population(&self) -> u64 {
        self.samples
    }

    fn is_distinct(&self) -> bool {
        true
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let mut stream = RandomStream::new(RandomPurpose::Shuffle, self.seed, epoch);
        Ok(match u32::try_from(self.samples) {
            Ok(samples) => Order::small(self.samples, narrow(samples, &mut stream)?, true),
            Err(_) => Order::large(self.samples, wide(self.samples, &mut stream)?, true),
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprinter::new("shuffle 1").number(self.samples).number(self.seed).finish()
    }
}

fn narrow(samples: u32, stream: &mut RandomStream) -> Result<Vec<u32>, OracleError> {
    let mut ids = try_with_capacity(u64::from(samples))?;
    ids.extend(0..samples);
    fisher_yates(&mut ids, |bound| stream.below_u32(bound as u32) as usize);
    Ok(ids)
}

/// Shuffles `ids`: each id is swapped with itself or a later one. `below` draws a number below its
/// argument.
#[inline]
pub(super) fn fisher_yates<T>(mut ids: &mut [T], mut below: impl FnMut(usize) -> usize) {
    while ids.len() > 1 {
        ids.swap(0, below(ids.len()));
        ids = &mut ids[1..];
    }
}

fn wide(samples: u64, stream: &mut RandomStream) -> Result<Vec<u64>, OracleError> {
    let mut ids = try_with_capacity(samples)?;
    ids.extend(0..samples);
    fisher_yates(&mut ids, |bound| stream.below_u64(bound as u64) as usize);
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use foreread_types::SampleId;

    use super::*;

    #[test]
    fn wide_tables_are_permutations() -> Result<(), OracleError> {
        for samples in [0, 1, 2, 1000] {
            let mut ids = wide(samples, &mut RandomStream::new(RandomPurpose::Shuffle, 1, 0))?;
            ids.sort_unstable();
            assert!(ids.into_iter().eq(0..samples));
        }
        Ok(())
    }

    #[test]
    fn order_beyond_memory_is_an_error() -> Result<(), OracleError> {
        let error = Shuffle::new(1 << 62, 0)?.order(0).unwrap_err();
        assert!(error.to_string().contains("does not fit in memory"), "{error}");
        Ok(())
    }

    #[test]
    fn orders_of_four_samples_are_equally_likely() -> Result<(), OracleError> {
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..24_000 {
            let order = Shuffle::new(4, 9)?.order(epoch)?;
            let ids: Vec<SampleId> = (0..4).map(|position| order.at(position)).collect();
            *counts.entry(ids).or_insert(0i64) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Chi-square with 23 degrees of freedom: above 55 in 2 of 10,000 trials.
        let chi: i64 = counts.values().map(|count| (count - 1000).pow(2)).sum();
        assert!(chi < 55 * 1000, "{counts:?}");
        Ok(())
    }
}
