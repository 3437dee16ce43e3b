//! Random numbers that depend on the seed, the epoch and the sample only.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// The last eight bytes of each key. Another use of the same generator has another tag.
const TAG: [u8; 8] = *b"augment1";

/// The inputs of a decoded sample's random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The sample's id in its catalog.
    pub sample: u64,
}

impl Draw {
    /// The generator: ChaCha8 with the key seed, epoch, sample and a tag, 8 bytes each, little
    /// endian.
    pub(crate) fn random(self) -> Random {
        let mut key = [0; 32];
        let parts = [self.seed.to_le_bytes(), self.epoch.to_le_bytes(), self.sample.to_le_bytes(), TAG];
        for (part, to) in parts.iter().zip(key.chunks_exact_mut(8)) {
            to.copy_from_slice(part);
        }
        Random(ChaCha8Rng::from_seed(key))
    }
}

/// The generator of one sample's draws.
#[derive(Debug)]
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    /// A number in `[0, 1)`, a multiple of 2^-53.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in `[from, to)`.
    pub(crate) fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// An integer in `0..count`. The bias is at most `count / 2^64`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(count)) >> 64) as u64
    }
}
