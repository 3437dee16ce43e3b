//! Maps by sample, fast enough for a lookup per use.
//!
//! The standard hash resists adversaries and costs most of such a lookup. Keys come from the run's
//! own catalogs. The order of a map is never visible: it is accessed by key alone.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::SampleKey;

/// Values by sample.
pub type KeyMap<V> = HashMap<SampleKey, V, BuildHasherDefault<KeyHasher>>;

/// Hashes the two numbers of a [`SampleKey`] with one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = self.0.rotate_left(32) ^ value;
    }

    fn finish(&self) -> u64 {
        let product = u128::from(self.0 ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15_u128;
        (product >> 64) as u64 ^ product as u64
    }
}
