//! The owner of each sample, for the whole cluster and the whole run.
//!
//! Queried once per read, from any thread. There are two forms. A table takes 4 bytes per sample.
//! If an order is computed and all samples are equal, a [`rule`](crate::rule) needs no memory per
//! sample, whatever their number.

use std::fmt;
use std::sync::Arc;

use foreread_oracle::Fingerprinter;
use foreread_types::SampleKey;

use crate::level::LevelIndex;
use crate::rule::OwnerRule;

/// The owner of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleOwner {
    /// The position of the store in [`Cluster::stores`](crate::Cluster::stores).
    pub store: usize,
    /// The level of that store.
    pub level: LevelIndex,
}

/// An owner in a table: `(store + 1) << 2 | level`.
pub(crate) type PackedOwner = u32;

/// No owner.
pub(crate) const NO_OWNER: PackedOwner = 0;

pub(crate) fn pack(store: usize, level: LevelIndex) -> PackedOwner {
    (store as u32 + 1) << 2 | u32::from(level.0)
}

pub(crate) fn unpack(packed: PackedOwner) -> Option<(usize, LevelIndex)> {
    (packed >> 2).checked_sub(1).map(|store| (store as usize, LevelIndex((packed & 3) as u8)))
}

/// The owners of all samples. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Owners {
    datasets: Arc<[DatasetOwners]>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum DatasetOwners {
    Unowned,
    Table(Arc<Vec<PackedOwner>>),
    Rule(OwnerRule),
}

impl Owners {
    pub(crate) fn new(datasets: Vec<DatasetOwners>) -> Self {
        Self { datasets: datasets.into() }
    }

    /// The owner of a sample. `None` if it has none or is unknown.
    pub fn of(&self, key: SampleKey) -> Option<SampleOwner> {
        let (store, level) = match self.datasets.get(key.dataset.0 as usize)? {
            DatasetOwners::Unowned => None,
            DatasetOwners::Table(table) => unpack(*table.get(usize::try_from(key.id.0).ok()?)?),
            DatasetOwners::Rule(rule) => rule.owner(key.id),
        }?;
        Some(SampleOwner { store, level })
    }

    /// The size in memory, in bytes.
    pub fn memory(&self) -> u64 {
        let heap = |of: &DatasetOwners| match of {
            DatasetOwners::Unowned => 0,
            DatasetOwners::Table(table) => size_of_val::<[PackedOwner]>(table),
            DatasetOwners::Rule(rule) => rule.memory(),
        };
        self.datasets.iter().map(|of| (size_of::<DatasetOwners>() + heap(of)) as u64).sum()
    }

    /// Whether all datasets use a rule, without a table.
    pub fn is_rule(&self) -> bool {
        !self.datasets.iter().any(|of| matches!(of, DatasetOwners::Table(_)))
    }

    pub(crate) fn describe(&self, print: Fingerprinter) -> Fingerprinter {
        self.datasets.iter().fold(print.number(self.datasets.len() as u64), |print, of| match of {
            DatasetOwners::Unowned => print.number(0),
            DatasetOwners::Table(table) => {
                // Two owners per number, because the digest's time is that of its calls.
                print.number(1).numbers(
                    table
                        .chunks(2)
                        .map(|pair| u64::from(pair[0]) << 32 | pair.get(1).copied().map_or(0, u64::from)),
                )
            }
            DatasetOwners::Rule(rule) => rule.describe(print.number(2)),
        })
    }
}

impl fmt::Debug for Owners {
    /// The form per dataset, not every sample.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.datasets.iter().map(|of| match of {
            DatasetOwners::Unowned => "unowned",
            DatasetOwners::Table(_) => "table",
            DatasetOwners::Rule(_) => "rule",
        });
        f.debug_list().entries(names).finish()
    }
}
