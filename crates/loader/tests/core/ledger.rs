//! Bytes and who answers for them: what budgets, charges and samples are to the engine.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use foreread_types::SampleKey;

use crate::scenario::{Cache, content};

/// Sums that are kept right by handles being dropped.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Staging memory in use.
    pub staging: Cell<u64>,
    /// What of it was given back and the core has not been told of.
    pub untold: Cell<u64>,
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
enum Payer {
    Staging(u64),
    Level(usize, u64),
}

/// Bytes that are counted somewhere until this is dropped.
#[derive(Debug)]
pub struct Charge {
    ledger: Rc<Ledger>,
    payer: Cell<Payer>,
}

impl Charge {
    pub fn staging(ledger: &Rc<Ledger>, bytes: u64) -> Self {
        add(&ledger.staging, bytes);
        Self { ledger: Rc::clone(ledger), payer: Cell::new(Payer::Staging(bytes)) }
    }

    fn level(ledger: &Rc<Ledger>, level: usize, room: u64) -> Self {
        add(&ledger.room[level], room);
        Self { ledger: Rc::clone(ledger), payer: Cell::new(Payer::Level(level, room)) }
    }

    fn give_back(&self) {
        match self.payer.get() {
            Payer::Staging(bytes) => {
                take(&self.ledger.staging, bytes);
                add(&self.ledger.untold, bytes);
            }
            Payer::Level(level, room) => take(&self.ledger.room[level], room),
        }
    }

    /// Lets another pay from now on; nothing is left of `other`.
    fn pass_to(&self, other: &Self) {
        self.give_back();
        self.payer.set(other.payer.replace(Payer::Staging(0)));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A sample at hand.
#[derive(Debug)]
pub struct Sample {
    pub key: SampleKey,
    pub content: u64,
    charge: Charge,
}

impl Sample {
    pub fn read(key: SampleKey, charge: Charge) -> Rc<Self> {
        Rc::new(Self { key, content: content(key), charge })
    }
}

/// What a cache keeps of a sample.
#[derive(Debug)]
enum Kept {
    /// The sample itself.
    Ready(Rc<Sample>),
    /// A copy, which may be unreadable, and may not be there yet.
    Copy { _room: Charge, broken: bool, published: bool },
}

/// What a lookup finds.
pub enum Found {
    Ready(Rc<Sample>),
    Stored,
    Nothing,
}

#[derive(Debug)]
pub struct Store {
    level: usize,
    of: Cache,
    ledger: Rc<Ledger>,
    kept: HashMap<SampleKey, Kept>,
}

impl Store {
    pub fn new(level: usize, of: Cache, ledger: &Rc<Ledger>) -> Self {
        Self { level, of, ledger: Rc::clone(ledger), kept: HashMap::new() }
    }

    pub fn lookup(&self, key: SampleKey) -> Found {
        match self.kept.get(&key) {
            Some(Kept::Ready(sample)) => Found::Ready(Rc::clone(sample)),
            Some(Kept::Copy { published: true, .. }) => Found::Stored,
            Some(Kept::Copy { .. }) | None => Found::Nothing,
        }
    }

    /// Whether a read of it would succeed.
    pub fn is_readable(&self, key: SampleKey) -> bool {
        matches!(self.kept.get(&key), Some(Kept::Copy { published: true, broken: false, .. }))
    }

    pub fn holds(&self, key: SampleKey) -> bool {
        self.kept.contains_key(&key)
    }

    /// Keeps a sample of `bytes` if there is room; says whether there was.
    pub fn store(&mut self, sample: &Rc<Sample>, bytes: u64, broken: bool, published: bool) -> bool {
        let room = self.of.footprint.of(bytes);
        if self.ledger.room[self.level].get() + room > self.of.capacity {
            return false;
        }
        let charge = Charge::level(&self.ledger, self.level, room);
        let ready = self.of.ready;
        self.kept.entry(sample.key).or_insert_with(|| {
            if ready {
                sample.charge.pass_to(&charge);
                Kept::Ready(Rc::clone(sample))
            } else {
                Kept::Copy { _room: charge, broken, published }
            }
        });
        true
    }

    pub fn remove(&mut self, key: SampleKey) {
        self.kept.remove(&key);
    }

    /// Loses what `which` picks.
    pub fn lose(&mut self, which: u64) {
        let mut keys: Vec<_> = self.kept.keys().copied().collect();
        keys.sort_unstable();
        if !keys.is_empty() {
            self.kept.remove(&keys[which as usize % keys.len()]);
        }
    }

    /// What was written is there now.
    pub fn publish(&mut self) {
        for kept in self.kept.values_mut() {
            if let Kept::Copy { published, .. } = kept {
                *published = true;
            }
        }
    }
}
