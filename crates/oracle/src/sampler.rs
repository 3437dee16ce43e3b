//! The contract of samplers.

use std::fmt;

use foreread_types::Fingerprint;

use crate::{OracleError, Order};

/// Draws the global order of each epoch from a seed, or knows it otherwise.
///
/// Implementations are pure. The same sampler gives the same order for the same epoch, on every
/// rank and platform. It reaches any epoch directly, without computing earlier ones. Constructors
/// validate their arguments, so later calls only fail if the failure could not be known before.
pub trait Sampler: fmt::Debug + Send + Sync {
    /// The number of samples in the dataset. All ids lie below it.
    fn population(&self) -> u64;

    /// The number of samples in every epoch: by default, all samples of the dataset.
    fn len(&self) -> u64 {
        self.population()
    }

    /// The most different samples that all epochs together have: by default, all samples of the
    /// dataset.
    fn readable(&self) -> u64 {
        self.population()
    }

    /// Whether an epoch has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no sample occurs twice in an epoch.
    fn is_distinct(&self) -> bool;

    /// Whether orders are computed position by position, forwards and backwards, without a table.
    /// `false` by default. With such orders even runs over 10^9 samples are planned in constant
    /// memory.
    fn is_computed(&self) -> bool {
        false
    }

    /// Whether all epochs have the same order. `false` by default. Then a rank reads the same
    /// samples in each epoch, and an estimate that takes orders as drawn is wrong.
    fn repeats(&self) -> bool {
        false
    }

    /// The number of epochs with a known order. `None`, the default, means all epochs.
    fn epochs(&self) -> Option<u64> {
        None
    }

    /// The order of one epoch, counted from 0. Its length is [`len`](Self::len).
    ///
    /// # Errors
    /// An epoch without a known order, or an order that does not fit in memory.
    fn order(&self, epoch: u64) -> Result<Order, OracleError>;

    /// The fingerprint of everything that the orders depend on: the kind of sampler, its sizes, its
    /// seed, its tables.
    fn fingerprint(&self) -> Fingerprint;
}
