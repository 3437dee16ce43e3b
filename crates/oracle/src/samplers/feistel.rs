//! A shuffle without a table: a keyed permutation that is computed at any position, forwards and
//! backwards.
//!
//! # The algorithm
//!
//! A position `x` is split into `(x / b, x % b)` in Z_a x Z_b. `a` is the root of n rounded up, and
//! `b` is n / a rounded up to an even number. With both odd, every round would be an even
//! permutation, and so would the whole: half of all orders would never occur. Each round adds a
//! keyed hash of one half to the other, modulo the other's size, and the halves alternate. This is
//! a generalised Feistel network (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
//! 2002). Subtracting in reverse inverts it. `a * b` exceeds n by less than `2 * a`. Results
//! outside 0..n are permuted again ("cycle walking"). This leaves a permutation of 0..n and happens
//! at most twice in about root n positions.
//!
//! The hash is SplitMix64's finaliser over the half and a round key, reduced to the range by its
//! high bits. It is not a cipher: it spreads reads and keeps no secrets.
//!
//! # The price
//!
//! Tens of nanoseconds per position, compared with one for a table. So [`Shuffle`](crate::Shuffle)
//! is the default. With 10^10 samples and more, no table fits.

use std::sync::Arc;

use foreread_types::{Fingerprint, finalize};

use crate::order::check_samples;
use crate::random::{RandomPurpose, RandomStream};
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// Rounds of the network, in pairs. For large orders 8 rounds pass the tests, and 2 more are a
/// margin.
const ROUNDS: usize = 10;

/// Rounds below [`SMALL`] samples, where a round mixes little. With 12 rounds, some orders of 6
/// samples are visibly rarer than others. With 16, none are.
const SMALL_ROUNDS: usize = 24;
const SMALL: u64 = 1 << 16;

/// A new pseudo-random permutation in every epoch, in constant memory. Equal arguments give equal
/// orders in every release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feistel {
    samples: u64,
    seed: u64,
}

impl Feistel {
    /// Over `samples` samples, 0 to 2^63.
    ///
    /// # Errors
    /// More than 2^63 samples.
    pub fn new(samples: u64, seed: u64) -> Result<Self, OracleError> {
        check_samples(samples)?;
        Ok(Self { samples, seed })
    }
}

impl Sampler for Feistel {
    fn population(&self) -> u64 {
        self.samples
    }

    fn is_distinct(&self) -> bool {
        true
    }

    fn is_computed(&self) -> bool {
        true
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        Ok(Order::feistel(Permutation::new(self.samples, self.seed, epoch)))
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprinter::new("feistel 1").number(self.samples).number(self.seed).finish()
    }
}

/// One epoch's permutation of `0..samples`.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    samples: u64,
    a: u64,
    b: u64,
    /// Two keys for each pair of rounds.
    keys: Arc<[[u64; 2]]>,
}

impl Permutation {
    fn new(samples: u64, seed: u64, epoch: u64) -> Self {
        let root = samples.isqrt();
        let a = if root * root == samples { root } else { root + 1 }.max(1);
        let b = samples.div_ceil(a).max(1).next_multiple_of(2);
        let rounds = if samples < SMALL { SMALL_ROUNDS } else { ROUNDS };
        let mut stream = RandomStream::new(RandomPurpose::Feistel, seed, epoch);
        let keys = (0..rounds / 2).map(|_| [stream.next_u64(), stream.next_u64()]).collect();
        Self { samples, a, b, keys }
    }

    pub(crate) fn len(&self) -> u64 {
        self.samples
    }

    /// The id at `position`. `position` must lie below the length.
    #[inline]
    pub(crate) fn forward(&self, position: u64) -> u64 {
        debug_assert!(position < self.samples);
        let mut value = position;
        loop {
            let (mut left, mut right) = self.split(value);
            for keys in self.keys.iter() {
                left = add(left, hash(right ^ keys[0], self.a), self.a);
                right = add(right, hash(left ^ keys[1], self.b), self.b);
            }
            value = left * self.b + right;
            if value < self.samples {
                return value;
            }
        }
    }

    /// The position of `id`. `id` must lie below the length.
    #[inline]
    pub(crate) fn backward(&self, id: u64) -> u64 {
        debug_assert!(id < self.samples);
        let mut value = id;
        loop {
            let (mut left, mut right) = self.split(value);
            for keys in self.keys.iter().rev() {
                right = sub(right, hash(left ^ keys[1], self.b), self.b);
                left = sub(left, hash(right ^ keys[0], self.a), self.a);
            }
            value = left * self.b + right;
            if value < self.samples {
                return value;
            }
        }
    }

    #[inline]
    fn split(&self, value: u64) -> (u64, u64) {
        (value / self.b, value % self.b)
    }
}

/// SplitMix64's finaliser (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
/// 2014), reduced to `0..bound`. The constants are Stafford's variant 13. For bounds up to 2^32 the
/// bias of the reduction is below 2^-32.
#[inline]
fn hash(word: u64, bound: u64) -> u64 {
    ((u128::from(finalize(word)) * u128::from(bound)) >> 64) as u64
}

#[inline]
fn add(x: u64, y: u64, modulus: u64) -> u64 {
    let sum = x + y;
    if sum >= modulus { sum - modulus } else { sum }
}

#[inline]
fn sub(x: u64, y: u64, modulus: u64) -> u64 {
    if x >= y { x - y } else { x + modulus - y }
}
