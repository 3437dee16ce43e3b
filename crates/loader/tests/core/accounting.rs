//! Budgets, charges and samples of the simulated engine.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use foreread_types::SampleKey;

use crate::scenario::{CacheSpec, content};

/// Sums that are updated when handles are dropped.
#[derive(Debug, Default)]
pub struct ByteCounts {
    /// Staging memory in use.
    pub staging: Cell<u64>,
    /// Released staging memory that was not reported to the core yet.
    pub unreported: Cell<u64>,
    /// Room in use, by level.
    pub room: [Cell<u64>; 2],
}

fn add(cell: &Cell<u64>, bytes: u64) {
    cell.set(cell.get() + bytes);
}

fn take(cell: &Cell<u64>, bytes: u64) {
    cell.set(cell.get().checked_sub(bytes).expect("more was given back than taken"));
}

#[derive(Clone, Copy, Debug)]
enum ChargedTo {
    Staging(u64),
    Level(usize, u64),
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct ByteCharge {
    accounting: Rc<ByteCounts>,
    charged_to: Cell<ChargedTo>,
}

impl ByteCharge {
    pub fn staging(accounting: &Rc<ByteCounts>, bytes: u64) -> Self {
        add(&accounting.staging, bytes);
        Self { accounting: Rc::clone(accounting), charged_to: Cell::new(ChargedTo::Staging(bytes)) }
    }

    fn level(accounting: &Rc<ByteCounts>, level: usize, room: u64) -> Self {
        add(&accounting.room[level], room);
        Self { accounting: Rc::clone(accounting), charged_to: Cell::new(ChargedTo::Level(level, room)) }
    }

    fn give_back(&self) {
        match self.charged_to.get() {
            ChargedTo::Staging(bytes) => {
                take(&self.accounting.staging, bytes);
                add(&self.accounting.unreported, bytes);
            }
            ChargedTo::Level(level, room) => take(&self.accounting.room[level], room),
        }
    }

    /// Moves the charge of `other` to this one.
    fn pass_to(&self, other: &Self) {
        self.give_back();
        self.charged_to.set(other.charged_to.replace(ChargedTo::Staging(0)));
    }
}

impl Drop for ByteCharge {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A sample in memory.
#[derive(Debug)]
pub struct HeldSample {
    pub key: SampleKey,
    pub content: u64,
    charge: ByteCharge,
}

impl HeldSample {
    pub fn read(key: SampleKey, charge: ByteCharge) -> Rc<Self> {
        Rc::new(Self { key, content: content(key), charge })
    }
}

/// The contents of a cache slot.
#[derive(Debug)]
enum CachedSample {
    /// The sample itself.
    Ready(Rc<HeldSample>),
    /// A copy, which may be unreadable, and may not be visible yet.
    Copy { _room: ByteCharge, broken: bool, published: bool },
}

/// The result of a look-up.
pub enum LookupResult {
    Ready(Rc<HeldSample>),
    Stored,
    Nothing,
}

#[derive(Debug)]
pub struct FakeCache {
    level: usize,
    of: CacheSpec,
    accounting: Rc<ByteCounts>,
    kept: HashMap<SampleKey, CachedSample>,
}

impl FakeCache {
    pub fn new(level: usize, of: CacheSpec, accounting: &Rc<ByteCounts>) -> Self {
        Self { level, of, accounting: Rc::clone(accounting), kept: HashMap::new() }
    }

    pub fn lookup(&self, key: SampleKey) -> LookupResult {
        match self.kept.get(&key) {
            Some(CachedSample::Ready(sample)) => LookupResult::Ready(Rc::clone(sample)),
            Some(CachedSample::Copy { published: true, .. }) => LookupResult::Stored,
            Some(CachedSample::Copy { .. }) | None => LookupResult::Nothing,
        }
    }

    /// Whether a read of it would succeed.
    pub fn is_readable(&self, key: SampleKey) -> bool {
        matches!(self.kept.get(&key), Some(CachedSample::Copy { published: true, broken: false, .. }))
    }

    pub fn holds(&self, key: SampleKey) -> bool {
        self.kept.contains_key(&key)
    }

    /// Stores a sample of `bytes` bytes. Returns false if it does not fit.
    pub fn store(&mut self, sample: &Rc<HeldSample>, bytes: u64, broken: bool, published: bool) -> bool {
        let room = self.of.footprint.of(bytes);
        if self.accounting.room[self.level].get() + room > self.of.capacity {
            return false;
        }
        let charge = ByteCharge::level(&self.accounting, self.level, room);
        let ready = self.of.ready;
        self.kept.entry(sample.key).or_insert_with(|| {
            if ready {
                sample.charge.pass_to(&charge);
                CachedSample::Ready(Rc::clone(sample))
            } else {
                CachedSample::Copy { _room: charge, broken, published }
            }
        });
        true
    }

    pub fn remove(&mut self, key: SampleKey) {
        self.kept.remove(&key);
    }

    /// Loses the sample picked by `which`.
    pub fn lose(&mut self, which: u64) {
        let mut keys: Vec<_> = self.kept.keys().copied().collect();
        keys.sort_unstable();
        if !keys.is_empty() {
            self.kept.remove(&keys[which as usize % keys.len()]);
        }
    }

    /// Makes all written copies visible.
    pub fn publish(&mut self) {
        for kept in self.kept.values_mut() {
            if let CachedSample::Copy { published, .. } = kept {
                *published = true;
            }
        }
    }
}
