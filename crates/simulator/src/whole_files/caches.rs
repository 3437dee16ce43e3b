//! The simulated caches of whole files.
//!
//! A cache has room for a number of equal files, and a budget of writes, which all policies obey. A
//! copy is refused if the budget lacks its bytes. At each open, a cache makes at most one copy.

use std::collections::BTreeMap;
use std::time::Duration;

use foreread_planner::{FileChoice, FileCopy, WearBudget};

use super::scenario::FilesScenario;

/// The counts of one epoch, in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EpochCounts {
    /// Opens that found a copy.
    pub served: u64,
    /// Reads from the origin: by the program, and for copies that were made ahead of it.
    pub origin: u64,
    /// Copies that were made.
    pub written: u64,
    /// Opens at which the budget refused a copy.
    pub refused: u64,
}

/// A cache under some policy.
pub(super) trait FileCache {
    /// The program opens a file.
    fn open(&mut self, file: u32, now: Duration, counts: &mut EpochCounts);
}

/// The copies, their room, and the budget of writes.
#[derive(Debug)]
pub(super) struct CopyRoom {
    is_cached: Vec<bool>,
    held: u32,
    capacity: u32,
    bytes: u64,
    wear: Option<WearBudget>,
}

impl CopyRoom {
    pub(super) fn new(scenario: &FilesScenario) -> Self {
        let (capacity, bytes) = (scenario.capacity(), scenario.bytes);
        let size = u64::from(capacity) * bytes;
        let wear = scenario.writes_per_day;
        let wear = wear.map(|per_day| WearBudget::new(size, size, per_day, Duration::ZERO));
        Self { is_cached: vec![false; scenario.files as usize], held: 0, capacity, bytes, wear }
    }

    /// Whether an open finds a copy. If not, the program reads the origin.
    fn serves(&self, file: u32, counts: &mut EpochCounts) -> bool {
        let is_served = self.is_cached[file as usize];
        counts.served += u64::from(is_served);
        counts.origin += u64::from(!is_served);
        is_served
    }

    fn is_full(&self) -> bool {
        self.held >= self.capacity
    }

    /// Whether the budget allows a copy. Then it counts.
    fn takes(&mut self, now: Duration, counts: &mut EpochCounts) -> bool {
        let allowed = self.wear.as_mut().is_none_or(|wear| wear.take(self.bytes, now));
        counts.refused += u64::from(!allowed);
        allowed
    }

    /// A copy that the budget allowed is not made.
    fn gives_back(&mut self) {
        if let Some(wear) = &mut self.wear {
            wear.give_back(self.bytes);
        }
    }

    fn insert(&mut self, file: u32, counts: &mut EpochCounts) {
        self.is_cached[file as usize] = true;
        self.held += 1;
        debug_assert!(self.held <= self.capacity, "a cache holds more than it has room for");
        counts.written += 1;
    }

    fn remove(&mut self, file: u32) {
        self.is_cached[file as usize] = false;
        self.held -= 1;
    }
}

/// The first files stay.
#[derive(Debug)]
pub(super) struct FixedPart(pub CopyRoom);

impl FileCache for FixedPart {
    fn open(&mut self, file: u32, now: Duration, counts: &mut EpochCounts) {
        if !self.0.serves(file, counts) && !self.0.is_full() && self.0.takes(now, counts) {
            self.0.insert(file, counts);
        }
    }
}

/// The least recently used file leaves for each file that is opened.
#[derive(Debug)]
pub(super) struct LeastRecent {
    room: CopyRoom,
    opens: u64,
    /// The latest open of each file.
    opened: Vec<u64>,
    /// Copies by their latest open.
    by_open: BTreeMap<u64, u32>,
}

impl LeastRecent {
    pub(super) fn new(room: CopyRoom) -> Self {
        let opened = vec![0; room.is_cached.len()];
        Self { room, opens: 0, opened, by_open: BTreeMap::new() }
    }
}

impl FileCache for LeastRecent {
    fn open(&mut self, file: u32, now: Duration, counts: &mut EpochCounts) {
        self.opens += 1;
        let before = std::mem::replace(&mut self.opened[file as usize], self.opens);
        if self.room.serves(file, counts) {
            self.by_open.remove(&before);
        } else if self.room.capacity == 0 || !self.room.takes(now, counts) {
            return;
        } else {
            if self.room.is_full()
                && let Some((_, oldest)) = self.by_open.pop_first()
            {
                self.room.remove(oldest);
            }
            self.room.insert(file, counts);
        }
        self.by_open.insert(self.opens, file);
    }
}

/// The rule of `foreread run`, driven as its host drives it.
pub(super) struct ChosenFiles<'a> {
    room: CopyRoom,
    choice: FileChoice,
    /// The order of an epoch, if it is announced.
    order: Option<&'a dyn Fn(u64) -> Vec<u32>>,
    announced: Option<u64>,
}

impl<'a> ChosenFiles<'a> {
    pub(super) fn new(room: CopyRoom, files: u32, order: Option<&'a dyn Fn(u64) -> Vec<u32>>) -> Self {
        let mut cache = Self { room, choice: FileChoice::default(), order, announced: None };
        (0..files).for_each(|file| cache.choice.add(file));
        cache.announce();
        cache
    }

    /// Announces the order of an epoch that the rule has seen begin.
    fn announce(&mut self) {
        let epoch = self.choice.epoch();
        if let Some(order) = self.order
            && self.announced.replace(epoch) != Some(epoch)
        {
            self.choice.announce(order(epoch));
        }
    }

    /// Whether the next file may be looked at: there was no room next to the reader.
    fn copy(&mut self, copy: FileCopy, now: Duration, counts: &mut EpochCounts) -> bool {
        let is_full = self.room.is_full();
        if is_full && !copy.is_ahead {
            self.choice.copied(copy.file, false);
            return true;
        }
        if !self.room.takes(now, counts) {
            self.give_up(copy);
            return false;
        }
        if is_full {
            let Some(victim) = self.choice.victim() else {
                self.room.gives_back();
                self.give_up(copy);
                return false;
            };
            self.room.remove(victim);
        }
        self.choice.copied(copy.file, true);
        self.room.insert(copy.file, counts);
        // The pages of a file that was just opened are in memory.
        counts.origin += u64::from(copy.is_ahead);
        false
    }

    fn give_up(&mut self, copy: FileCopy) {
        if copy.is_ahead { self.choice.wait(copy.file) } else { self.choice.copied(copy.file, false) }
    }
}

impl FileCache for ChosenFiles<'_> {
    fn open(&mut self, file: u32, now: Duration, counts: &mut EpochCounts) {
        self.room.serves(file, counts);
        self.choice.opened(file);
        self.announce();
        while let Some(copy) = self.choice.next_copy()
            && self.copy(copy, now, counts)
        {}
    }
}
