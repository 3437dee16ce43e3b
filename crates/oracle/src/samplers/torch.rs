//! PyTorch's order, bit for bit: the order of `DistributedSampler(shuffle=True)`.
//!
//! In epoch `e` PyTorch takes `torch.randperm(n)` from a CPU generator seeded with `seed + e`. The
//! generator is MT19937, initialised from the low 32 bits of the seed. `randperm` has two
//! algorithms, chosen by size (ATen's `native/TensorFactories.cpp`). The first is a Fisher-Yates
//! shuffle with 32-bit words. From (2^32 - 1) / 20 samples on, it is an inside-out shuffle with
//! 64-bit words, high half first. Both reduce by remainder, so they are slightly biased. That is
//! the price of equality, and [`Shuffle`](crate::Shuffle) does not pay it.

use foreread_types::Fingerprint;
use rand_mt::Mt;

use crate::order::{check_samples, try_with_capacity};
use crate::samplers::shuffle::fisher_yates;
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// From this many samples on, PyTorch 2 shuffles inside out with 64-bit words.
const LARGE: u64 = u32::MAX as u64 / 20;

/// The order of PyTorch's `DistributedSampler` with `shuffle=True`, before it is dealt to ranks.
///
/// ```
/// use foreread_oracle::{Sampler, Torch};
/// # fn main() -> Result<(), foreread_oracle::OracleError> {
/// let order = Torch::new(10, 0)?.order(0)?;
/// let ids: Vec<u64> = (0..10).map(|position| order.at(position).0).collect();
/// assert_eq!(ids, [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torch {
    samples: u64,
    seed: u64,
}

impl Torch {
    /// Over `samples` samples, with PyTorch's `seed`.
    ///
    /// # Errors
    /// More than 2^63 samples.
    pub fn new(samples: u64, seed: u64) -> Result<Self, OracleError> {
        check_samples(samples)?;
        Ok(Self { samples, seed })
    }
}

impl Sampler for Torch {
    fn population(&self) -> u64 {
        self.samples
    }

    fn is_distinct(&self) -> bool {
        true
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let mut words = Mt::new(self.seed.wrapping_add(epoch) as u32);
        Ok(match u32::try_from(self.samples) {
            Ok(samples) if self.samples < LARGE => {
                Order::small(self.samples, swapped(samples, &mut words)?, true)
            }
            Ok(_) => Order::small(self.samples, inside_out(self.samples, &mut words, |id| id as u32)?, true),
            Err(_) => Order::large(self.samples, inside_out(self.samples, &mut words, |id| id)?, true),
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        // The generator uses 32 bits of seed + epoch, but the fingerprint covers the whole seed.
        // Equal orders with different fingerprints cost a refused resume. The reverse would cost a
        // wrong resume.
        Fingerprinter::new("torch 1").number(self.samples).number(self.seed).finish()
    }
}

/// Below [`LARGE`]: `for i in 0..n - 1 { swap(i, i + next_u32 % (n - i)) }`.
fn swapped(samples: u32, words: &mut Mt) -> Result<Vec<u32>, OracleError> {
    let mut ids = try_with_capacity(u64::from(samples))?;
    ids.extend(0..samples);
    fisher_yates(&mut ids, |bound| (words.next_u32() % bound as u32) as usize);
    Ok(ids)
}

/// From [`LARGE`] on: `for i in 0..n { z = next_u64 % (i + 1); a[i] = i; a[i] = a[z]; a[z] = i }`.
fn inside_out<T: Copy>(samples: u64, words: &mut Mt, id: impl Fn(u64) -> T) -> Result<Vec<T>, OracleError> {
    let mut ids = try_with_capacity(samples)?;
    for next in 0..samples {
        let other = (words.next_u64() % (next + 1)) as usize;
        ids.push(id(next));
        ids[next as usize] = ids[other];
        ids[other] = id(next);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MT19937 as its authors publish it (Matsumoto and Nishimura, mt19937ar.c), without a library.
    struct Reference {
        state: Vec<u32>,
        index: usize,
    }

    impl Reference {
        fn new(seed: u32) -> Self {
            let mut state = vec![seed];
            for i in 1..624u32 {
                let before = state[i as usize - 1];
                state.push(1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(i));
            }
            Self { state, index: 624 }
        }

        fn next_u32(&mut self) -> u32 {
            if self.index == 624 {
                for i in 0..624 {
                    let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % 624] & 0x7fff_ffff);
                    let twist = if y & 1 == 0 { 0 } else { 0x9908_b0df };
                    self.state[i] = self.state[(i + 397) % 624] ^ (y >> 1) ^ twist;
                }
                self.index = 0;
            }
            let mut y = self.state[self.index];
            self.index += 1;
            y ^= y >> 11;
            y ^= (y << 7) & 0x9d2c_5680;
            y ^= (y << 15) & 0xefc6_0000;
            y ^ (y >> 18)
        }
    }

    #[test]
    fn large_path_equals_a_simple_model() -> Result<(), OracleError> {
        for (samples, seed) in [(0u64, 3), (1, 3), (2, 4), (1000, 7), (5000, u32::MAX)] {
            let mut reference = Reference::new(seed);
            let mut model: Vec<u64> = (0..samples).collect();
            for i in 0..samples {
                let high = u64::from(reference.next_u32());
                let word = (high << 32) | u64::from(reference.next_u32());
                let z = (word % (i + 1)) as usize;
                model[i as usize] = i;
                model[i as usize] = model[z];
                model[z] = i;
            }
            assert_eq!(inside_out(samples, &mut Mt::new(seed), |id| id)?, model);
            let narrow = inside_out(samples, &mut Mt::new(seed), |id| id as u32)?;
            assert!(narrow.into_iter().map(u64::from).eq(model));
        }
        Ok(())
    }

    #[test]
    fn small_path_equals_a_simple_model() -> Result<(), OracleError> {
        for (samples, seed) in [(0u32, 3), (1, 3), (2, 4), (1000, 7), (5000, u32::MAX)] {
            let mut reference = Reference::new(seed);
            let mut model: Vec<u32> = (0..samples).collect();
            for i in 0..samples.saturating_sub(1) {
                let z = reference.next_u32() % (samples - i);
                model.swap(i as usize, (i + z) as usize);
            }
            assert_eq!(swapped(samples, &mut Mt::new(seed))?, model);
        }
        Ok(())
    }
}
