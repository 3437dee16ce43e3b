//! The contract of samplers.

use std::fmt;

use foreread_types::Fingerprint;

use crate::{OracleError, Order};

/// Draws the global order of each epoch from a seed, or knows it otherwise.
///
/// Implementations are pure: the same sampler gives the same order for the same epoch, on every rank and platform, and
/// reaches any epoch directly, without computing those before it. Constructors validate, so that asking later does
/// not fail where it can be known.
pub trait Sampler: fmt::Debug + Send + Sync {
    /// How many samples the dataset has; all ids lie below it.
    fn population(&self) -> u64;

    /// How many samples an epoch has, the same in every epoch: by default as many as the dataset.
    fn len(&self) -> u64 {
        self.population()
    }

    /// Whether an epoch has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no sample occurs twice in an epoch.
    fn is_distinct(&self) -> bool;

    /// Whether orders are computed position by position, forwards and backwards, without a table; `false` by default.
    /// Of such orders even runs over 10^9 samples are planned in constant memory.
    fn is_computed(&self) -> bool {
        false
    }

    /// For how many epochs the order is known; `None`, the default, where it is known for all.
    fn epochs(&self) -> Option<u64> {
        None
    }

    /// The order of one epoch, counted from 0; its length is [`len`](Self::len).
    ///
    /// # Errors
    /// An epoch that the sampler does not know, or an order that does not fit in memory.
    fn order(&self, epoch: u64) -> Result<Order, OracleError>;

    /// Names everything that the orders depend on: the kind of sampler, its sizes, its seed, its tables.
    fn fingerprint(&self) -> Fingerprint;
}
