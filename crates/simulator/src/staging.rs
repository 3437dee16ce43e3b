//! One worker's staging buffer: its content, its free space and its threads.
//!
//! Entries are the worker's next accesses in order, each with its arrival time. An access that
//! could not be staged has an empty entry. The scenario selects the accounting of space, see
//! [`Accounting`]. The real content is counted in addition, so a run can report how far the
//! thesis's accounting exceeds the capacity.

use std::collections::{HashMap, VecDeque};

use crate::scenario::Accounting;
use crate::threads::Threads;

/// The source of a read. The order is that of preference at equal times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReadSource {
    Local,
    Remote,
    Pfs,
}

/// An access that was staged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    /// Seconds from the run's start.
    pub arrival: f64,
    /// The source of its bytes.
    pub source: ReadSource,
    /// The begin of the read from the file system that was made for this entry, if any.
    pub pfs_begins: Option<f64>,
}

/// A sample in the buffer.
#[derive(Clone, Copy, Debug)]
struct BufferedSample {
    entries: u32,
    /// The arrival of the first of its entries.
    from: f64,
}

/// Whether the next access may enter the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StagingAdmission {
    Free,
    /// Not before an access leaves.
    Full,
    /// The buffer is empty, but too small.
    TooSmall,
}

#[derive(Debug)]
pub(crate) struct StagingBuffer {
    accounting: Accounting,
    free: u64,
    /// The position in the worker's stream that is staged next.
    next: usize,
    /// From the next access to be consumed up to `next`.
    entries: VecDeque<Option<Staged>>,
    /// By sample. Only looked up, never iterated.
    present: HashMap<u32, BufferedSample>,
    /// For the thesis's accounting: the samples that were ever in the buffer, one bit each.
    ever: Vec<u64>,
    held: u64,
    most_held: u64,
    pub threads: Threads,
    /// The time of the worker's last request. No thread works before it.
    pub last_request: f64,
}

impl StagingBuffer {
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

    /// The maximum number of bytes in the buffer.
    pub(crate) fn most_held(&self) -> u64 {
        self.most_held
    }

    /// Whether a sample enters without taking space.
    fn is_free_of_charge(&self, sample: u32) -> bool {
        match self.accounting {
            Accounting::Honest => self.present.contains_key(&sample),
            Accounting::Thesis => self.ever[sample as usize / 64] >> (sample % 64) & 1 == 1,
        }
    }

    /// Whether a sample may enter now.
    pub(crate) fn room(&self, sample: u32, bytes: u64) -> StagingAdmission {
        if bytes <= self.free || self.is_free_of_charge(sample) {
            StagingAdmission::Free
        } else if self.present.is_empty() {
            StagingAdmission::TooSmall
        } else {
            StagingAdmission::Full
        }
    }

    /// The next access cannot be staged.
    pub(crate) fn skip(&mut self) {
        self.entries.push_back(None);
        self.next += 1;
    }

    /// The arrival of a sample that is in the buffer for an earlier access.
    pub(crate) fn has(&self, sample: u32) -> Option<f64> {
        self.present.get(&sample).map(|present| present.from)
    }

    /// Stages the next access. There must be space for it.
    pub(crate) fn stage(&mut self, sample: u32, bytes: u64, entry: Staged) {
        if !self.is_free_of_charge(sample) {
            self.free -= bytes;
        }
        if self.accounting == Accounting::Thesis {
            self.ever[sample as usize / 64] |= 1 << (sample % 64);
        }
        let present =
            self.present.entry(sample).or_insert(BufferedSample { entries: 0, from: entry.arrival });
        if present.entries == 0 {
            self.held += bytes;
            self.most_held = self.most_held.max(self.held);
        }
        present.entries += 1;
        self.entries.push_back(Some(entry));
        self.next += 1;
    }

    /// Removes the access at `position`, the next to be consumed, from the buffer.
    pub(crate) fn consume(&mut self, position: usize, sample: u32, bytes: u64) -> Option<Staged> {
        if self.next <= position {
            // No access could enter. Staging resumes after this access.
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

    const NOW: Staged = Staged { arrival: 0.0, source: ReadSource::Pfs, pfs_begins: None };

    #[test]
    fn sample_takes_and_releases_its_space_once() {
        let mut buffer = StagingBuffer::new(Accounting::Honest, 10, 1, 3, 0.0);
        for sample in [0, 1, 0] {
            assert_eq!(buffer.room(sample, 5), StagingAdmission::Free);
            buffer.stage(sample, 5, NOW);
        }
        assert_eq!(buffer.room(2, 5), StagingAdmission::Full);
        assert!(buffer.consume(0, 0, 5).is_some());
        assert_eq!(buffer.room(2, 5), StagingAdmission::Full, "the third access still needs sample 0");
        assert!(buffer.consume(1, 1, 5).is_some());
        assert_eq!(buffer.room(2, 5), StagingAdmission::Free);
        assert_eq!((buffer.room(2, 6), buffer.most_held()), (StagingAdmission::Full, 10));
        assert!(buffer.consume(2, 0, 5).is_some());
        assert_eq!(buffer.room(2, 11), StagingAdmission::TooSmall);
        assert!(buffer.consume(3, 2, 11).is_none());
        assert_eq!(buffer.next(), 4);
    }

    #[test]
    fn thesis_accounting_gains_space_with_every_reuse() {
        let mut buffer = StagingBuffer::new(Accounting::Thesis, 10, 1, 2, 0.0);
        for position in 0..3 {
            buffer.stage(0, 5, NOW);
            assert!(buffer.consume(position, 0, 5).is_some());
        }
        assert_eq!(buffer.room(1, 20), StagingAdmission::Free);
        assert_eq!(buffer.room(1, 21), StagingAdmission::TooSmall);
    }
}
