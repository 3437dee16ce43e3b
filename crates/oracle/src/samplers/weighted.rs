//! Draws with replacement, each sample in proportion to its weight.
//!
//! The weights are turned into integers once, from the bits of the floating-point numbers.
//! Everything after that is exact integer arithmetic, so no platform, library or optimiser can
//! change a draw. A draw takes constant time by the alias method (Walker, 1977, with Vose's tables,
//! 1991): one table entry and two random words. Each epoch has its own random stream, so any epoch
//! is reached directly. The price is 16 bytes per sample for the table, and rounded weights. Below
//! about 2^-43 of the largest, for a million samples, a positive weight counts as that small
//! weight.

use std::fmt;
use std::sync::Arc;

use foreread_types::Fingerprint;

use crate::error::OracleReason;
use crate::order::{check_samples, try_with_capacity};
use crate::random::{RandomPurpose, RandomStream};
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// Draws an epoch's samples independently and with replacement, in proportion to weights.
///
/// ```
/// use foreread_oracle::{Sampler, Weighted};
/// # fn main() -> Result<(), foreread_oracle::OracleError> {
/// let sampler = Weighted::new(&[1.0, 0.0, 3.0], 400, 7)?;
/// let order = sampler.order(0)?;
/// let twos = (0..400).filter(|&position| order.at(position).0 == 2).count();
/// assert!((250..350).contains(&twos));
/// assert!((0..400).all(|position| order.at(position).0 != 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Weighted {
    columns: Arc<[Column]>,
    total: u64,
    len: u64,
    seed: u64,
    fingerprint: Fingerprint,
}

/// One column of the alias table: `own` parts of `total` belong to the column's own sample, the
/// rest to `other`.
#[derive(Clone, Copy, Debug)]
struct Column {
    own: u64,
    other: u64,
}

impl Weighted {
    /// `len` draws per epoch from the samples `0..weights.len()`. The weights may have any sum.
    ///
    /// # Errors
    /// A weight that is negative, infinite or not a number, or weights that are all zero. Draws
    /// from no samples, or more than 2^63 draws.
    pub fn new(weights: &[f64], len: u64, seed: u64) -> Result<Self, OracleError> {
        check_samples(len)?;
        check_weights(weights, len)?;
        let parts = integers(weights);
        let print = Fingerprinter::new("weighted 1").numbers(parts.iter().copied()).number(len).number(seed);
        let total = parts.iter().sum();
        Ok(Self { columns: alias(&parts, total).into(), total, len, seed, fingerprint: print.finish() })
    }

    #[inline]
    fn draw(&self, stream: &mut RandomStream) -> u64 {
        let column = stream.below_u64(self.columns.len() as u64);
        let Column { own, other } = self.columns[column as usize];
        if stream.below_u64(self.total) < own { column } else { other }
    }
}

impl Sampler for Weighted {
    fn population(&self) -> u64 {
        self.columns.len() as u64
    }

    fn len(&self) -> u64 {
        self.len
    }

    /// Never: even if no draw of this epoch repeats, one of a later epoch may.
    fn is_distinct(&self) -> bool {
        false
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let mut stream = RandomStream::new(RandomPurpose::Weighted, self.seed, epoch);
        Ok(if self.population() <= 1 << 32 {
            let mut ids = try_with_capacity(self.len)?;
            ids.extend((0..self.len).map(|_| self.draw(&mut stream) as u32));
            Order::small(self.population(), ids, false)
        } else {
            let mut ids = try_with_capacity(self.len)?;
            ids.extend((0..self.len).map(|_| self.draw(&mut stream)));
            Order::large(self.population(), ids, false)
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for Weighted {
    /// The numbers, not the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weighted")
            .field("population", &self.columns.len())
            .field("len", &self.len)
            .field("seed", &self.seed)
            .finish()
    }
}

/// Checks that `len` draws from these weights are possible.
pub(super) fn check_weights(weights: &[f64], len: u64) -> Result<(), OracleError> {
    if weights.is_empty() && len > 0 {
        return Err(OracleReason::NothingToDraw { len }.into());
    }
    if let Some(id) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
        return Err(OracleReason::Weight { id: id as u64, weight: weights[id].to_string() }.into());
    }
    if !weights.is_empty() && weights.iter().all(|weight| *weight == 0.0) {
        return Err(OracleReason::NoWeight.into());
    }
    Ok(())
}

/// The weights as integers whose sum fits in 63 bits. Each is the weight's 53-bit significand,
/// shifted to the largest weight's exponent and then right until the sum fits. A positive weight
/// stays at least 1.
fn integers(weights: &[f64]) -> Vec<u64> {
    let exponents = weights.iter().filter(|weight| **weight > 0.0).map(|weight| parts(*weight).1);
    let largest = exponents.max().unwrap_or(0);
    // n weights below 2^53 have a sum below 2^63 if each loses log2(n) - 10 bits, rounded up.
    let spare = weights.len().max(1).next_power_of_two().ilog2().saturating_sub(10);
    let integer = |&weight: &f64| {
        if weight == 0.0 {
            return 0;
        }
        let (significand, exponent) = parts(weight);
        significand.checked_shr(largest - exponent + spare).unwrap_or(0).max(1)
    };
    weights.iter().map(integer).collect()
}

/// A positive number as significand (below 2^53) and exponent, up to a common factor.
fn parts(weight: f64) -> (u64, u32) {
    let bits = weight.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    match (bits >> 52) as u32 & 0x7ff {
        0 => (fraction, 1),
        exponent => (fraction | 1 << 52, exponent),
    }
}

/// Cuts `parts` into columns of `total` each. A column that its own sample does not fill is filled
/// up by a sample with more than a column's worth. In integers this comes out even, so nothing is
/// lost and no zero weight is ever drawn.
fn alias(parts: &[u64], total: u64) -> Vec<Column> {
    let mut left: Vec<u128> = parts.iter().map(|&part| u128::from(part) * parts.len() as u128).collect();
    let mut columns: Vec<Column> =
        (0..parts.len() as u64).map(|own| Column { own: total, other: own }).collect();
    let full = u128::from(total);
    let (mut short, mut long): (Vec<usize>, Vec<usize>) = (0..parts.len()).partition(|&id| left[id] < full);
    while let (Some(poor), Some(&rich)) = (short.pop(), long.last()) {
        columns[poor] = Column { own: left[poor] as u64, other: rich as u64 };
        left[rich] -= full - left[poor];
        if left[rich] < full {
            long.pop();
            short.push(rich);
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_table_holds_exactly_the_weights() {
        let cases: [&[f64]; 6] = [
            &[1.0],
            &[1.0, 0.0, 3.0],
            &[0.1; 7],
            &[f64::MAX, f64::MIN_POSITIVE, 5e-324, 0.0],
            &[1e-300, 2e-300],
            &[5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.0, 0.0, 100.0],
        ];
        for weights in cases {
            let parts = integers(weights);
            let total: u64 = parts.iter().sum();
            let columns = alias(&parts, total);
            let mut found = vec![0u128; parts.len()];
            for (id, column) in columns.iter().enumerate() {
                found[id] += u128::from(column.own);
                found[column.other as usize] += u128::from(total - column.own);
            }
            let expected: Vec<u128> =
                parts.iter().map(|&part| u128::from(part) * parts.len() as u128).collect();
            assert_eq!(found, expected, "{weights:?}");
            assert!(weights.iter().zip(&parts).all(|(&weight, &part)| (weight > 0.0) == (part > 0)));
        }
    }

    #[test]
    fn many_weights_do_not_overflow() {
        for count in [1023, 1024, 1025, 100_000] {
            let parts = integers(&vec![1.999_999_999; count]);
            let total: u128 = parts.iter().map(|&part| u128::from(part)).sum();
            assert!(total < 1 << 63 && total > 1 << 62, "{count}: {total:x}");
        }
    }

    #[test]
    fn bad_weights_are_named() {
        let message = |weights: &[f64]| Weighted::new(weights, 1, 0).unwrap_err().to_string();
        assert!(message(&[1.0, f64::NAN]).contains("weight NaN of sample 1"));
        assert!(message(&[-1.0]).contains("weight -1 of sample 0"));
        assert!(message(&[f64::INFINITY]).contains("weight inf of sample 0"));
        assert!(message(&[0.0, -0.0]).contains("all weights are zero"));
        assert!(message(&[]).contains("empty dataset"));
        assert_eq!(Weighted::new(&[], 0, 0).map(|sampler| sampler.len()), Ok(0));
    }
}
