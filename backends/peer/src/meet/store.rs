//! What ranks have put down for each other: values by key, and of each rank its part.
//!
//! A key has at most one value, which stays once it is put, and one part from each rank. Everything may be said again: a
//! part that comes twice replaces itself, and a value is there for whoever asks later, so a rank that lost its
//! connection, or was started again, repeats what it said. The price is that values stay in memory for the run.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::messages::key::REPORT;

/// Keys that a run may have; more are a mistake of whoever names them.
const MOST_KEYS: usize = 4096;

/// What keys of steps begin with.
const STEP: &str = "step/";

/// The longest key.
const LONGEST_KEY: usize = 64;

#[derive(Debug, Default)]
struct Entry {
    parts: BTreeMap<usize, Bytes>,
    value: Option<Bytes>,
}

/// Values and parts by key.
#[derive(Debug)]
pub(super) struct Store {
    /// Ranks that a key has parts of.
    world: usize,
    keys: BTreeMap<String, Entry>,
}

impl Store {
    pub(super) fn new(world: usize) -> Self {
        Self { world, keys: BTreeMap::new() }
    }

    fn entry(&mut self, key: &str) -> Option<&mut Entry> {
        if !self.keys.contains_key(key) && (self.keys.len() >= MOST_KEYS || key.len() > LONGEST_KEY) {
            return None;
        }
        Some(self.keys.entry(key.to_owned()).or_default())
    }

    /// Puts the value of a key, if it has none. The parts it was made of are forgotten.
    pub(super) fn put(&mut self, key: &str, value: Bytes) {
        if let Some(entry) = self.entry(key) {
            entry.parts.clear();
            entry.value.get_or_insert(value);
        }
    }

    /// A rank's part of a key; `false` where there is no room for the key.
    pub(super) fn part(&mut self, rank: usize, key: &str, part: Bytes) -> bool {
        let is_rank = rank < self.world;
        let Some(entry) = self.entry(key).filter(|_| is_rank) else { return false };
        // What comes when the value is there changes nothing, and is not kept.
        if entry.value.is_none() || key == REPORT {
            entry.parts.insert(rank, part);
        }
        true
    }

    /// A key is waited for; `false` where there is no room for it.
    pub(super) fn want(&mut self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// A rank that was started again has not said what it said before of these keys.
    pub(super) fn forget(&mut self, rank: usize, keys: &[&str]) {
        for key in keys {
            if let Some(entry) = self.keys.get_mut(*key) {
                entry.parts.remove(&rank);
            }
        }
    }

    pub(super) fn value(&self, key: &str) -> Option<&Bytes> {
        self.keys.get(key).and_then(|entry| entry.value.as_ref())
    }

    /// The step of this number that has another name: `step/3/compare` where `step/3/share` is asked for.
    pub(super) fn differs_in_end(&self, key: &str) -> Option<&str> {
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

    /// Whether all ranks have given their part.
    pub(super) fn is_whole(&self, key: &str) -> bool {
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
    fn parts_may_be_said_again_and_values_stay() {
        let mut store = Store::new(2);
        assert!(store.part(0, "a", bytes("x")) && store.part(0, "a", bytes("x")));
        assert!(!store.is_whole("a"));
        assert!(store.part(1, "a", bytes("y")) && store.is_whole("a"));
        assert!(!store.part(2, "a", bytes("z")), "there is no such rank");
        assert_eq!(store.parts("a"), [Some(bytes("x")), Some(bytes("y"))]);
        store.put("a", bytes("all"));
        store.put("a", bytes("other"));
        assert_eq!((store.value("a"), store.part_of(0, "a")), (Some(&bytes("all")), None));
        // A rank that was started again is told the value, whatever it brings.
        assert!(store.part(1, "a", bytes("late")));
        assert_eq!(store.value("a"), Some(&bytes("all")));
    }

    #[test]
    fn steps_of_one_number_have_one_name() {
        let mut store = Store::new(1);
        store.part(0, "step/1/share", bytes(""));
        store.part(0, "step/11/share", bytes(""));
        assert_eq!(store.differs_in_end("step/1/compare"), Some("step/1/share"));
        assert_eq!(store.differs_in_end("step/1/share"), None);
        assert_eq!(store.differs_in_end("step/2/share"), None);
        assert_eq!(store.differs_in_end("report"), None);
        store.part(0, "moved/1", bytes(""));
        assert_eq!(store.differs_in_end("moved/2"), None);
    }

    #[test]
    fn keys_are_bounded() {
        let mut store = Store::new(1);
        assert!(!store.part(0, &"k".repeat(LONGEST_KEY + 1), bytes("")));
        for number in 0..MOST_KEYS {
            assert!(store.part(0, &number.to_string(), bytes("")));
        }
        assert!(!store.part(0, "one more", bytes("")));
        assert!(store.part(0, "0", bytes("again")));
    }
}
