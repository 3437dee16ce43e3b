//! The order of the ids, for validation passes and for training without shuffling.

use foreread_types::Fingerprint;

use crate::order::check_samples;
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// Every epoch reads `0, 1, .., n - 1`. Needs no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequential {
    samples: u64,
}

impl Sequential {
    /// Over `samples` samples.
    ///
    /// # Errors
    /// More than 2^63 samples.
    pub fn new(samples: u64) -> Result<Self, OracleError> {
        check_samples(samples)?;
        Ok(Self { samples })
    }
}

impl Sampler for Sequential {
    fn population(&self) -> u64 {
        self.samples
    }

    fn is_distinct(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        true
    }

    fn is_computed(&self) -> bool {
        true
    }

    fn order(&self, _epoch: u64) -> Result<Order, OracleError> {
        Order::identity(self.samples)
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprinter::new("sequential 1").number(self.samples).finish()
    }
}
