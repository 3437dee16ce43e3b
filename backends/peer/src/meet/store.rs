//! Rank 0's key-value store: a value per key, and a part of each rank.
//!
//! A key has at most one value, which never changes, and one part per rank. All operations are
//! idempotent: a repeated part replaces itself, and a value stays available for later requests. A
//! rank that lost its connection or was restarted repeats its requests. The price is that values
//! stay in memory for the run. The number of keys and the sum of all bytes are bounded.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::messages::key::{REPORT, STEP, step};

/// Keys of a run. More are a protocol violation.
const MAX_KEYS: usize = 4096;

/// Bytes of all parts and values.
const MAX_STORE_BYTES: u64 = 4 << 30;

/// The longest key.
const MAX_KEY_LENGTH: usize = 64;

#[derive(Debug, Default)]
struct KeyEntry {
    parts: BTreeMap<usize, Bytes>,
    value: Option<Bytes>,
}

/// Values and parts by key.
#[derive(Debug, Default)]
pub(super) struct KeyValueStore {
    /// The number of ranks.
    world: usize,
    keys: BTreeMap<String, KeyEntry>,
    /// The limit of bytes of parts and values, and their sum.
    most: u64,
    bytes: u64,
}

impl KeyValueStore {
    pub(super) fn new(world: usize) -> Self {
        Self { world, keys: BTreeMap::new(), most: MAX_STORE_BYTES, bytes: 0 }
    }

    fn entry(&mut self, key: &str) -> Option<&mut KeyEntry> {
        if !self.keys.contains_key(key) && (self.keys.len() >= MAX_KEYS || key.len() > MAX_KEY_LENGTH) {
            return None;
        }
        Some(self.keys.entry(key.to_owned()).or_default())
    }

    /// Sets the value of a key, if it has none, and drops the parts.
    pub(super) fn put(&mut self, key: &str, value: Bytes) {
        let Some(entry) = self.entry(key) else { return };
        let parts: u64 = std::mem::take(&mut entry.parts).values().map(|part| part.len() as u64).sum();
        let mut added = 0;
        entry.value.get_or_insert_with(|| {
            added = value.len() as u64;
            value
        });
        self.bytes = self.bytes - parts + added;
    }

    /// Stores a rank's part of a key. `false` if it exceeds a limit.
    pub(super) fn part(&mut self, rank: usize, key: &str, part: Bytes) -> bool {
        let (is_rank, most, bytes) = (rank < self.world, self.most, self.bytes);
        let Some(entry) = self.entry(key).filter(|_| is_rank) else { return false };
        // A part that arrives after the value has no effect, and is not stored.
        if entry.value.is_none() || key == REPORT {
            let before = entry.parts.get(&rank).map_or(0, |part| part.len() as u64);
            let after = bytes - before + part.len() as u64;
            if after > most {
                return false;
            }
            entry.parts.insert(rank, part);
            self.bytes = after;
        }
        true
    }

    /// Registers a key. `false` if it exceeds a limit.
    pub(super) fn register(&mut self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Drops the parts of a restarted rank.
    pub(super) fn forget(&mut self, rank: usize, keys: &[&str]) {
        for key in keys {
            if let Some(part) = self.keys.get_mut(*key).and_then(|entry| entry.parts.remove(&rank)) {
                self.bytes -= part.len() as u64;
            }
        }
    }

    pub(super) fn value(&self, key: &str) -> Option<&Bytes> {
        self.keys.get(key).and_then(|entry| entry.value.as_ref())
    }

    /// The step of this number, counted from 1, and its value, if it has one.
    pub(super) fn step(&self, number: u32) -> Option<(&str, &Bytes)> {
        let start = step(number, "");
        let (key, entry) = self.keys.range(start.clone()..).next()?;
        key.starts_with(&start)
            .then_some(key)
            .zip(entry.value.as_ref())
            .map(|(key, value)| (key.as_str(), value))
    }

    /// A step of the same number with another name: `step/3/compare` for `step/3/share`.
    pub(super) fn conflicting_step(&self, key: &str) -> Option<&str> {
        let start = &key[..=key.rfind('/').filter(|_| key.starts_with(STEP))?];
        let known = self.keys.range(start.to_owned()..).map(|(known, _)| known.as_str());
        known.take_while(|known| known.starts_with(start)).find(|known| *known != key)
    }

    pub(super) fn part_of(&self, rank: usize, key: &str) -> Option<&Bytes> {
        self.keys.get(key).and_then(|entry| entry.parts.get(&rank))
    }

    /// The parts of a key, by rank.
    pub(super) fn parts(&self, key: &str) -> Vec<Option<Bytes>> {
        (0..self.world).map(|rank| self.part_of(rank, key).cloned()).collect()
    }

    /// Whether all ranks have sent their part.
    pub(super) fn is_complete(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|entry| entry.parts.len() == self.world)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn parts_may_be_repeated_and_values_stay() {
        let mut store = KeyValueStore::new(2);
        assert!(store.part(0, "a", bytes("x")) && store.part(0, "a", bytes("x")));
        assert!(!store.is_complete("a"));
        assert!(store.part(1, "a", bytes("y")) && store.is_complete("a"));
        assert!(!store.part(2, "a", bytes("z")), "there is no such rank");
        assert_eq!(store.parts("a"), [Some(bytes("x")), Some(bytes("y"))]);
        store.put("a", bytes("all"));
        store.put("a", bytes("other"));
        assert_eq!((store.value("a"), store.part_of(0, "a")), (Some(&bytes("all")), None));
        // A restarted rank gets the value, whatever its part.
        assert!(store.part(1, "a", bytes("late")));
        assert_eq!(store.value("a"), Some(&bytes("all")));
    }

    #[test]
    fn steps_of_one_number_have_one_name() {
        let mut store = KeyValueStore::new(1);
        store.part(0, "step/1/share", bytes(""));
        store.part(0, "step/11/share", bytes(""));
        assert_eq!(store.conflicting_step("step/1/compare"), Some("step/1/share"));
        assert_eq!(store.conflicting_step("step/1/share"), None);
        assert_eq!(store.conflicting_step("step/2/share"), None);
        assert_eq!(store.conflicting_step("report"), None);
        store.part(0, "moved/1", bytes(""));
        assert_eq!(store.conflicting_step("moved/2"), None);
    }

    #[test]
    // semantics: RANK-28
    fn sum_of_all_parts_is_bounded() {
        let mut store = KeyValueStore { most: 10, ..KeyValueStore::new(3) };
        assert!(store.part(0, "a", bytes("four")) && store.part(1, "a", bytes("four")));
        assert!(!store.part(2, "a", bytes("four")), "each alone has room");
        assert!(store.part(2, "a", bytes("2b")) && store.part(0, "a", bytes("4444")), "it is replaced");
        store.put("a", bytes("all"));
        assert_eq!(store.bytes, 3);
        assert!(store.part(2, REPORT, bytes("seven b")));
        store.forget(2, &[REPORT]);
        assert_eq!(store.bytes, 3);
    }

    #[test]
    fn steps_have_values_in_their_order() {
        let mut store = KeyValueStore::new(1);
        store.put("step/1/share", bytes("x"));
        store.part(0, "step/2/exchange", bytes("y"));
        store.put("step/10/share", bytes("z"));
        assert_eq!(store.step(1), Some(("step/1/share", &bytes("x"))));
        assert_eq!((store.step(2), store.step(3)), (None, None));
        assert_eq!(store.step(10), Some(("step/10/share", &bytes("z"))));
    }

    #[test]
    // semantics: RANK-28
    fn keys_are_bounded() {
        let mut store = KeyValueStore::new(1);
        assert!(!store.part(0, &"k".repeat(MAX_KEY_LENGTH + 1), bytes("")));
        for number in 0..MAX_KEYS {
            assert!(store.part(0, &number.to_string(), bytes("")));
        }
        assert!(!store.part(0, "one more", bytes("")));
        assert!(store.part(0, "0", bytes("again")));
    }
}
