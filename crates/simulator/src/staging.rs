//! One worker's staging buffer: what is in it, what room is left, and when its threads are free.
//!
//! Entries are the worker's next accesses in order, each with the time at which it arrives; an access that nobody could
//! stage has an empty entry. How room is counted is the scenario's choice, see [`Accounting`]. What is really in the
//! buffer is counted beside it, so that a run can say how far the thesis's accounting overdraws.

use std::collections::{HashMap, VecDeque};

use crate::scenario::Accounting;
use crate::threads::Threads;

/// Where a read goes; the order is that of preference where times are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Local,
    Remote,
    Pfs,
}

/// An access that was staged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Seconds from the run's start.
    pub arrival: f64,
    /// Where its bytes come from.
    pub source: Source,
    /// When the read from the file system begins that was made for this entry, if one was.
    pub pfs_begins: Option<f64>,
}

/// A sample in the buffer.
#[derive(Clone, Copy, Debug)]
struct Present {
    entries: u32,
    /// When it is there, of its entries the first.
    from: f64,
}

/// Whether the next access may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Free,
    /// Not before something leaves.
    Full,
    /// The buffer is empty, and yet too small.
    TooSmall,
}

#[derive(Debug)]
pub(crate) struct Buffer {
    accounting: Accounting,
    free: u64,
    /// The position in the worker's stream that is staged next.
    next: usize,
    /// From the next access to be consumed up to `next`.
    entries: VecDeque<Option<Entry>>,
    /// By sample. Only looked up, never walked.
    present: HashMap<u32, Present>,
    /// For the thesis's accounting: the samples that were ever in the buffer, a bit each.
    ever: Vec<u64>,
    held: u64,
    most_held: u64,
    pub threads: Threads,
    /// The time of the worker's last request: no thread works before it.
    pub last_request: f64,
}

impl Buffer {
    pub(crate) fn new(
        accounting: Accounting,
        capacity: u64,
        threads: usize,
        samples: usize,
        from: f64,
    ) -> Self {
        let bits = if accounting == Accounting::Thesis { samples.div_ceil(64) } else { 0 };
        Self {
            accounting,
            free: capacity,
            next: 0,
            entries: VecDeque::new(),
            present: HashMap::new(),
            ever: vec![0; bits],
            held: 0,
            most_held: 0,
            threads: Threads::new(threads, from),
            last_request: from,
        }
    }

    /// The position in the worker's stream that is staged next.
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// The most bytes that were in the buffer at once.
    pub(crate) fn most_held(&self) -> u64 {
        self.most_held
    }

    /// Whether a sample enters for nothing.
    fn is_free_of_charge(&self, sample: u32) -> bool {
        match self.accounting {
            Accounting::Honest => self.present.contains_key(&sample),
            Accounting::Thesis => self.ever[sample as usize / 64] >> (sample % 64) & 1 == 1,
        }
    }

    /// Whether a sample may enter now.
    pub(crate) fn room(&self, sample: u32, bytes: u64) -> Room {
        if bytes <= self.free || self.is_free_of_charge(sample) {
            Room::Free
        } else if self.present.is_empty() {
            Room::TooSmall
        } else {
            Room::Full
        }
    }

    /// The next access cannot be staged.
    pub(crate) fn skip(&mut self) {
        self.entries.push_back(None);
        self.next += 1;
    }

    /// When a sample that is in the buffer for an earlier access is there.
    pub(crate) fn has(&self, sample: u32) -> Option<f64> {
        self.present.get(&sample).map(|present| present.from)
    }

    /// The next access, for which there is room, is staged.
    pub(crate) fn stage(&mut self, sample: u32, bytes: u64, entry: Entry) {
        if !self.is_free_of_charge(sample) {
            self.free -= bytes;
        }
        if self.accounting == Accounting::Thesis {
            self.ever[sample as usize / 64] |= 1 << (sample % 64);
        }
        let present = self.present.entry(sample).or_insert(Present { entries: 0, from: entry.arrival });
        if present.entries == 0 {
            self.held += bytes;
            self.most_held = self.most_held.max(self.held);
        }
        present.entries += 1;
        self.entries.push_back(Some(entry));
        self.next += 1;
    }

    /// The access at `position`, the next to be consumed, leaves the buffer.
    pub(crate) fn consume(&mut self, position: usize, sample: u32, bytes: u64) -> Option<Entry> {
        if self.next <= position {
            // Nothing could enter; staging goes on behind the access.
            self.next = position + 1;
            return None;
        }
        let entry = self.entries.pop_front()??;
        let mut gone = false;
        if let Some(present) = self.present.get_mut(&sample) {
            present.entries -= 1;
            gone = present.entries == 0;
        }
        if gone {
            self.present.remove(&sample);
            self.held -= bytes;
        }
        if gone || self.accounting == Accounting::Thesis {
            self.free = self.free.saturating_add(bytes);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Entry = Entry { arrival: 0.0, source: Source::Pfs, pfs_begins: None };

    #[test]
    fn a_sample_takes_its_room_once_and_gives_it_back_once() {
        let mut buffer = Buffer::new(Accounting::Honest, 10, 1, 3, 0.0);
        for sample in [0, 1, 0] {
            assert_eq!(buffer.room(sample, 5), Room::Free);
            buffer.stage(sample, 5, NOW);
        }
        assert_eq!(buffer.room(2, 5), Room::Full);
        assert!(buffer.consume(0, 0, 5).is_some());
        assert_eq!(buffer.room(2, 5), Room::Full, "the third access still needs sample 0");
        assert!(buffer.consume(1, 1, 5).is_some());
        assert_eq!(buffer.room(2, 5), Room::Free);
        assert_eq!((buffer.room(2, 6), buffer.most_held()), (Room::Full, 10));
        assert!(buffer.consume(2, 0, 5).is_some());
        assert_eq!(buffer.room(2, 11), Room::TooSmall);
        assert!(buffer.consume(3, 2, 11).is_none());
        assert_eq!(buffer.next(), 4);
    }

    #[test]
    fn the_thesis_gains_room_with_every_sample_that_comes_again() {
        let mut buffer = Buffer::new(Accounting::Thesis, 10, 1, 2, 0.0);
        for position in 0..3 {
            buffer.stage(0, 5, NOW);
            assert!(buffer.consume(position, 0, 5).is_some());
        }
        assert_eq!(buffer.room(1, 20), Room::Free);
        assert_eq!(buffer.room(1, 21), Room::TooSmall);
    }
}
