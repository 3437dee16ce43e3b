//! PyTorch's draws by weights, bit for bit: the order of `WeightedRandomSampler`.
//!
//! In epoch `e` PyTorch takes `torch.multinomial(weights, n, replacement=True)` from a CPU
//! generator seeded with `seed + e` (ATen's `native/cpu/MultinomialKernel.cpp`). It divides the
//! running sums of the weights by their total, in double precision. The draw is the first sum that
//! a uniform number of 53 bits does not exceed. The price of equality: it knows at most 2^24
//! weights, and never draws a sample whose weight is below 2^-53 of the total.
//! [`Weighted`](crate::Weighted) has neither limit. PyTorch has another algorithm for a single
//! draw, which is not repeated here.

use std::fmt;
use std::sync::Arc;

use foreread_types::Fingerprint;
use rand_mt::Mt;

use super::weighted::check_weights;
use crate::error::OracleReason;
use crate::order::{check_samples, try_with_capacity};
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// Draws an epoch's samples as PyTorch's `WeightedRandomSampler(weights, n, replacement=True)`.
///
/// ```
/// use foreread_oracle::{Sampler, TorchWeighted};
/// # fn main() -> Result<(), foreread_oracle::OracleError> {
/// let order = TorchWeighted::new(&[1.0, 0.0, 3.0], 6, 0)?.order(0)?;
/// let ids: Vec<u64> = (0..6).map(|position| order.at(position).0).collect();
/// assert_eq!(ids, [2, 2, 2, 2, 2, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TorchWeighted {
    /// The running sums of the weights, as parts of their total.
    sums: Arc<[f64]>,
    len: u64,
    seed: u64,
    fingerprint: Fingerprint,
}

impl TorchWeighted {
    /// The most weights.
    pub const MOST: u64 = 1 << 24;

    /// `len` draws per epoch from the samples `0..weights.len()`, with PyTorch's `seed`.
    ///
    /// # Errors
    /// Those of [`Weighted::new`](crate::Weighted::new), and more than [`MOST`](Self::MOST)
    /// weights.
    pub fn new(weights: &[f64], len: u64, seed: u64) -> Result<Self, OracleError> {
        check_samples(len)?;
        check_weights(weights, len)?;
        if weights.len() as u64 > Self::MOST {
            return Err(OracleReason::TorchWeights { found: weights.len() as u64 }.into());
        }
        let mut sums = Vec::with_capacity(weights.len());
        let mut total = 0.0;
        for weight in weights {
            total += weight;
            sums.push(total);
        }
        if !total.is_finite() {
            return Err(OracleReason::WeightSum.into());
        }
        sums.iter_mut().for_each(|sum| *sum /= total);
        if let Some(last) = sums.last_mut() {
            *last = 1.0;
        }
        let print = Fingerprinter::new("torch weighted 1").numbers(weights.iter().map(|it| it.to_bits()));
        let fingerprint = print.number(len).number(seed).finish();
        Ok(Self { sums: sums.into(), len, seed, fingerprint })
    }
}

impl Sampler for TorchWeighted {
    fn population(&self) -> u64 {
        self.sums.len() as u64
    }

    fn len(&self) -> u64 {
        self.len
    }

    /// Never: even if no draw of this epoch repeats, one of a later epoch may.
    fn is_distinct(&self) -> bool {
        false
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
        let mut words = Mt::new(self.seed.wrapping_add(epoch) as u32);
        let mut ids = try_with_capacity(self.len)?;
        ids.extend((0..self.len).map(|_| {
            let uniform = (words.next_u64() & ((1 << 53) - 1)) as f64 * UNIT;
            self.sums.partition_point(|sum| *sum < uniform) as u32
        }));
        Ok(Order::small(self.population(), ids, false))
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for TorchWeighted {
    /// The numbers, not the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TorchWeighted")
            .field("population", &self.sums.len())
            .field("len", &self.len)
            .field("seed", &self.seed)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named() {
        let message = |weights: &[f64], len| TorchWeighted::new(weights, len, 0).unwrap_err().to_string();
        assert!(message(&[1.0, -1.0], 1).contains("weight -1 of sample 1"));
        assert!(message(&[f64::MAX, f64::MAX], 1).contains("sum"));
        assert!(message(&[], 1).contains("empty dataset"));
        let many = vec![1.0; (1 << 24) + 1];
        assert!(message(&many, 1).contains("16777217 weights"));
    }
}
