//! A sample's bytes and the charge that counts them.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use crate::Charge;

type Slot = Arc<Shared>;

/// What all clones of a sample have in common.
#[derive(Default)]
struct Shared {
    charge: Mutex<Option<Charge>>,
    /// For readers on this node.
    crc32c: OnceLock<u32>,
    /// For readers on others.
    tag: OnceLock<SampleTag>,
}

/// A keyed tag of a sample's bytes. Whoever has the key makes and checks it; here it is only kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTag {
    /// Which of this process's keys has made it.
    pub by: u32,
    /// The number that the key was used with.
    pub number: u64,
    /// The tag.
    pub tag: [u8; 16],
}

/// The bytes of one sample; clones share both the bytes and the charge.
///
/// The charge sits in the owner of the bytes, so that any slice of [`data`](Self::data) keeps it, and ends with the
/// last of them. [`recharge`](Self::recharge) moves a sample from one budget to another (from look-ahead to the
/// memory tier) under the feet of everyone who holds it, without a copy. The price is one more allocation a sample.
#[derive(Clone)]
pub struct Sample {
    data: Bytes,
    shared: Slot,
}

struct Owner {
    data: Bytes,
    _shared: Slot,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Sample {
    /// `data`, counted by `charge` until the last handle on either is dropped.
    pub fn new(data: Bytes, charge: Charge) -> Self {
        let shared = Shared { charge: Mutex::new(Some(charge)), ..Shared::default() };
        let shared: Slot = Arc::new(shared);
        Self { data: Bytes::from_owner(Owner { data, _shared: Arc::clone(&shared) }), shared }
    }

    /// `data` that nobody counts.
    pub fn uncharged(data: Bytes) -> Self {
        Self { data, shared: Slot::default() }
    }

    /// The bytes; any clone or slice of them keeps the charge.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The CRC-32C of the bytes. Computed when it is first asked for (5 us for 110 KB), and then known to all clones.
    pub fn crc32c(&self) -> u32 {
        *self.shared.crc32c.get_or_init(|| crc32c::crc32c(&self.data))
    }

    /// The tag of the bytes by the key `by`, which `make` computes when it is first asked for; then it is known to all
    /// clones. Only the first key's tag is kept.
    pub fn tag(&self, by: u32, make: impl Fn(&[u8]) -> SampleTag) -> SampleTag {
        let kept = *self.shared.tag.get_or_init(|| make(&self.data));
        if kept.by == by { kept } else { make(&self.data) }
    }

    /// The bytes that it is counted as now; more than it has where its allocation is longer.
    pub fn charged(&self) -> u64 {
        let charge = self.shared.charge.lock().unwrap_or_else(PoisonError::into_inner);
        charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Counts the sample under `charge` from now on; what counted it before is given back here.
    ///
    /// On a sample made by [`uncharged`](Self::uncharged) the new charge ends with the last `Sample`, not with the
    /// last slice of its bytes.
    pub fn recharge(&self, charge: Charge) {
        let before = self.shared.charge.lock().unwrap_or_else(PoisonError::into_inner).replace(charge);
        drop(before); // outside the lock: ending a charge may call back
    }
}

impl Deref for Sample {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").field("bytes", &self.data.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;

    #[test]
    fn the_charge_ends_with_the_last_slice() {
        let budget = Budget::new(100);
        let sample = Sample::new(Bytes::from(vec![1, 2, 3]), budget.charge(3));
        let slice = sample.data().slice(1..2);
        drop(sample);
        assert_eq!(budget.used(), 3);
        drop(slice);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_checksum_is_that_of_the_bytes_on_every_clone() {
        let sample = Sample::uncharged(Bytes::from_static(b"123456789"));
        let clone = sample.clone();
        assert_eq!(sample.crc32c(), 0xe306_9283);
        assert_eq!(clone.shared.crc32c.get(), Some(&0xe306_9283));
        assert_eq!(Sample::uncharged(Bytes::new()).crc32c(), 0);
    }

    #[test]
    fn tag_is_kept_for_the_first_key_and_made_anew_for_others() {
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
    fn recharging_moves_a_held_sample_without_copying_it() {
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
