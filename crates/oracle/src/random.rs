//! Random numbers: ChaCha8 in a newtype, and unbiased reduction to a range.
//!
//! `rand` promises no stability of shuffles and ranges between releases. So the generator is used
//! for its raw words alone, a specified stream (RFC 8439 with 8 rounds). Everything above it is
//! implemented here and pinned by golden vectors. Each (purpose, seed, epoch) has its own stream,
//! so any epoch is reached directly.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// The purpose of a stream. It is part of the key, so one seed serves several samplers without
/// correlation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RandomPurpose {
    Shuffle,
    Feistel,
    Weighted,
}

impl RandomPurpose {
    const fn label(self) -> &'static [u8; 24] {
        match self {
            Self::Shuffle => b"foreread/order/shuffle/1",
            Self::Feistel => b"foreread/order/feistel/1",
            Self::Weighted => b"foreread/order/weights/1",
        }
    }
}

/// A reproducible stream of words.
#[derive(Debug)]
pub(crate) struct RandomStream(ChaCha8Rng);

impl RandomStream {
    /// The stream of one epoch. Key: the seed in little endian, then the label of the purpose.
    /// Stream number: the epoch.
    pub(crate) fn new(purpose: RandomPurpose, seed: u64, epoch: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..].copy_from_slice(purpose.label());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(epoch);
        Self(rng)
    }

    #[inline]
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A uniform number below `bound`, from 32-bit words (Lemire, "Fast Random Integer Generation
    /// in an Interval", 2019). It multiplies, keeps the high half, and rejects the few low halves
    /// that would favour some numbers.
    #[inline]
    pub(crate) fn below_u32(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0);
        let mut product = u64::from(self.0.next_u32()) * u64::from(bound);
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = u64::from(self.0.next_u32()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// A uniform number below `bound`, from 64-bit words.
    #[inline]
    pub(crate) fn below_u64(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        let mut product = u128::from(self.0.next_u64()) * u128::from(bound);
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.0.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_purpose_seed_and_epoch() {
        let first = |purpose, seed, epoch| RandomStream::new(purpose, seed, epoch).next_u64();
        let words = [
            first(RandomPurpose::Shuffle, 1, 0),
            first(RandomPurpose::Shuffle, 1, 1),
            first(RandomPurpose::Shuffle, 2, 0),
            first(RandomPurpose::Feistel, 1, 0),
            first(RandomPurpose::Weighted, 1, 0),
        ];
        for (i, a) in words.iter().enumerate() {
            assert!(words[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn bounded_numbers_are_uniform() {
        let mut stream = RandomStream::new(RandomPurpose::Shuffle, 3, 0);
        for bound in [1u32, 3, 6, 10] {
            let mut counts = vec![0i64; bound as usize];
            for _ in 0..60_000 {
                counts[stream.below_u32(bound) as usize] += 1;
                counts[stream.below_u64(u64::from(bound)) as usize] += 1;
            }
            let expected = 120_000 / i64::from(bound);
            assert!(counts.iter().all(|count| (count - expected).abs() < 1_200), "{counts:?}");
        }
    }

    #[test]
    fn bounds_near_the_word_size_terminate() {
        let mut stream = RandomStream::new(RandomPurpose::Shuffle, 4, 0);
        for _ in 0..1000 {
            assert!(stream.below_u32((1 << 31) + 1) <= 1 << 31);
            assert!(stream.below_u64((1 << 63) + 1) <= 1 << 63);
        }
    }
}
