//! A sample's bytes and their charge.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use crate::Charge;

/// The state shared by all clones of a sample.
struct SampleShared {
    data: Bytes,
    charge: Mutex<Option<Charge>>,
    /// Checksum for readers on this node.
    crc32c: OnceLock<u32>,
    /// Tag for readers on other nodes.
    tag: OnceLock<SampleTag>,
}

/// A keyed authentication tag of a sample's bytes. The connection computes and checks it. The
/// sample only stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTag {
    /// The number of the key within this process.
    pub by: u32,
    /// The nonce.
    pub number: u64,
    /// The tag.
    pub tag: [u8; 16],
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
        let (crc32c, tag) = Default::default();
        Self(Arc::new(SampleShared { data, charge: Mutex::new(charge), crc32c, tag }))
    }

    /// A handle to the bytes. Its clones and slices keep the sample and its charge.
    pub fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }

    /// The CRC-32C of the bytes. It is computed at the first call (5 us for 110 KB) and cached for
    /// all clones.
    pub fn crc32c(&self) -> u32 {
        *self.0.crc32c.get_or_init(|| crc32c::crc32c(self))
    }

    /// The tag of the bytes by the key `by`. `make` computes it at the first call, and all clones
    /// share it. Only the first key's tag is cached.
    pub fn tag(&self, by: u32, make: impl Fn(&[u8]) -> SampleTag) -> SampleTag {
        let kept = *self.0.tag.get_or_init(|| make(self));
        if kept.by == by { kept } else { make(self) }
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
    fn checksum_is_shared_by_clones() {
        let sample = Sample::uncharged(Bytes::from_static(b"123456789"));
        let clone = sample.clone();
        assert_eq!(sample.crc32c(), 0xe306_9283);
        assert_eq!(clone.0.crc32c.get(), Some(&0xe306_9283));
        assert_eq!(Sample::uncharged(Bytes::new()).crc32c(), 0);
    }

    #[test]
    fn tag_is_cached_for_the_first_key_only() {
        let sample = Sample::uncharged(Bytes::from_static(b"123456789"));
        let made = std::cell::Cell::new(0);
        let by = |by| {
            sample.clone().tag(by, |bytes| {
                made.set(made.get() + 1);
                SampleTag { by, number: bytes.len() as u64, tag: [by as u8; 16] }
            })
        };
        assert_eq!(
            (by(1), by(1).tag, made.get()),
            (SampleTag { by: 1, number: 9, tag: [1; 16] }, [1; 16], 1)
        );
        assert_eq!((by(2).tag, by(1).tag, made.get()), ([2; 16], [1; 16], 2));
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
