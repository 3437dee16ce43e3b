//! A sample's bytes and their charge.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::Charge;

/// The state shared by all clones of a sample.
struct SampleShared {
    data: Bytes,
    charge: Mutex<Option<Charge>>,
}

/// The bytes of one sample. Clones share both the bytes and the charge.
///
/// The charge ends with the last clone and the last slice of [`bytes`](Self::bytes).
/// [`recharge`](Self::recharge) moves a sample from one budget to another (from look-ahead to the
/// memory tier) without a copy, while other handles exist. The price is one allocation per sample,
/// and one more per call of `bytes`. Most samples are read through [`Deref`] and never need that.
#[derive(Clone)]
pub struct Sample(Arc<SampleShared>);

impl Sample {
    /// `data`, counted by `charge` until the last handle is dropped.
    pub fn new(data: Bytes, charge: Charge) -> Self {
        Self::with_charge(data, Some(charge))
    }

    /// `data` without a charge.
    pub fn uncharged(data: Bytes) -> Self {
        Self::with_charge(data, None)
    }

    fn with_charge(data: Bytes, charge: Option<Charge>) -> Self {
        Self(Arc::new(SampleShared { data, charge: Mutex::new(charge) }))
    }

    /// A handle to the bytes. Its clones and slices keep the sample and its charge.
    pub fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }

    /// The charged bytes. More than the sample's length if its allocation is longer.
    pub fn charged(&self) -> u64 {
        let charge = self.0.charge.lock().unwrap_or_else(PoisonError::into_inner);
        charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Replaces the charge and releases the previous one.
    pub fn recharge(&self, charge: Charge) {
        let before = self.0.charge.lock().unwrap_or_else(PoisonError::into_inner).replace(charge);
        drop(before); // outside the lock: ending a charge may call back
    }
}

impl Deref for Sample {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.data
    }
}

impl AsRef<[u8]> for Sample {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").field("bytes", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;

    #[test]
    fn charge_ends_with_the_last_slice() {
        let budget = Budget::new(100);
        let sample = Sample::new(Bytes::from(vec![1, 2, 3]), budget.charge(3));
        let slice = sample.bytes().slice(1..2);
        drop(sample);
        assert_eq!(budget.used(), 3);
        drop(slice);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    // semantics: CACHE-12
    fn recharge_moves_a_held_sample_without_a_copy() {
        let (look_ahead, memory) = (Budget::new(100), Budget::new(100));
        let sample = Sample::new(Bytes::from(vec![7; 10]), look_ahead.charge(10));
        let held = sample.clone();
        sample.recharge(memory.charge(12));
        assert_eq!((look_ahead.used(), memory.used()), (0, 12));
        assert_eq!(held.as_ptr(), sample.as_ptr());
        drop((sample, held));
        assert_eq!(memory.used(), 0);
    }
}
