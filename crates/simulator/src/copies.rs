//! The copies of each sample with their times, and the free space of caches.
//!
//! A copy is made once, with the time from which it can be read, and never removed: no policy here
//! evicts from a cache class. Space is taken in whole bytes before a copy is made, and cannot be
//! exceeded. Copies of one sample form a list in one arena. Most samples have one or two copies,
//! and with a thousand workers some have many.

use crate::scenario::Scenario;
use crate::workload::MB;

const NONE: u32 = u32::MAX;

/// One worker's copy of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SampleCopy {
    pub worker: u32,
    pub class: u8,
    /// Seconds from the run's start.
    pub from: f64,
    next: u32,
}

/// All copies, by sample.
#[derive(Clone, Debug)]
pub(crate) struct CopyTable {
    first: Vec<u32>,
    all: Vec<SampleCopy>,
}

impl CopyTable {
    pub(crate) fn new(samples: usize) -> Self {
        Self { first: vec![NONE; samples], all: Vec::new() }
    }

    /// Adds a copy. Its space must have been taken.
    pub(crate) fn add(&mut self, sample: u32, worker: usize, class: usize, from: f64) {
        let next = std::mem::replace(&mut self.first[sample as usize], self.all.len() as u32);
        self.all.push(SampleCopy { worker: worker as u32, class: class as u8, from, next });
    }

    /// The copies of a sample, the latest first.
    pub(crate) fn of(&self, sample: u32) -> impl Iterator<Item = SampleCopy> {
        let mut at = self.first[sample as usize];
        std::iter::from_fn(move || {
            let copy = *self.all.get(at as usize)?;
            at = copy.next;
            Some(copy)
        })
    }

    /// A worker's own copy of a sample.
    pub(crate) fn held_by(&self, sample: u32, worker: usize) -> Option<SampleCopy> {
        self.of(sample).find(|copy| copy.worker as usize == worker)
    }

    /// Whether a worker holds the sample or will hold it.
    pub(crate) fn is_held(&self, sample: u32) -> bool {
        self.first[sample as usize] != NONE
    }

    /// Makes all copies readable from `time` on.
    pub(crate) fn all_from(&mut self, time: f64) {
        for copy in &mut self.all {
            copy.from = time;
        }
    }
}

/// The free space of each class, by worker, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct ClassSpace {
    /// By class. Entry 0, the staging buffer's, is not used.
    capacity: Vec<u64>,
    /// By worker, then class.
    left: Vec<Vec<u64>>,
}

impl ClassSpace {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let capacity: Vec<u64> = scenario.storage.iter().map(|class| (class.capacity * MB) as u64).collect();
        Self { left: vec![capacity.clone(); scenario.workers], capacity }
    }

    /// The number of classes, including the staging buffer.
    pub(crate) fn classes(&self) -> usize {
        self.capacity.len()
    }

    /// The capacity of one worker's class.
    pub(crate) fn capacity(&self, class: usize) -> u64 {
        self.capacity[class]
    }

    /// The capacity of the whole cluster, including staging buffers. Saturates.
    pub(crate) fn cluster(&self) -> u64 {
        let worker = self.capacity.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
        worker.saturating_mul(self.left.len() as u64)
    }

    /// The free space of some of a worker's cache classes. Saturates.
    pub(crate) fn left(&self, worker: usize, of: impl Fn(usize) -> bool) -> u64 {
        let left = self.left[worker].iter().enumerate().skip(1).filter(|&(class, _)| of(class));
        left.fold(0u64, |sum, (_, &bytes)| sum.saturating_add(bytes))
    }

    /// Takes space in one class. Returns false, and takes nothing, if there is not enough.
    pub(crate) fn take(&mut self, worker: usize, class: usize, bytes: u64) -> bool {
        let left = &mut self.left[worker][class];
        match left.checked_sub(bytes) {
            Some(rest) => {
                *left = rest;
                true
            }
            None => false,
        }
    }

    /// Takes space in the first of some cache classes that has enough.
    pub(crate) fn take_any(
        &mut self,
        worker: usize,
        bytes: u64,
        of: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        (1..self.classes()).find(|&class| of(class) && self.take(worker, class, bytes))
    }

    /// The largest used fraction of a cache class over all workers, from 0 to 1.
    pub(crate) fn fullest(&self) -> f64 {
        let taken = self.left.iter().flat_map(|left| {
            left.iter().zip(&self.capacity).skip(1).map(|(left, all)| match all {
                0 => 0.0,
                all => (all - left) as f64 / *all as f64,
            })
        });
        taken.fold(0.0, f64::max)
    }
}
