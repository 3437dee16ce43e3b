//! Stored units that samples share, in a plan: what they cost, and where memory helps most.
//!
//! A unit is decoded as a whole, so each sample that memory does not hold costs a read of all. If
//! the caches hold every sample, each unit is read once: its samples go into their caches together,
//! as a [block](foreread_loader::BlockTable). Otherwise the memory is taken from the memory tier
//! and keeps what units bring until its next use ([`Units`](foreread_layers::Units)). A tier whose
//! content is fixed would leave nearly every unit to be read for nearly every sample.

use std::sync::Arc;

use foreread_dataset::Catalog;
use foreread_planner::{Origin, unit_reads};
use foreread_tier::Span;
use foreread_types::{SampleId, Sizes};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::size::ByteSize;

/// The units of the datasets of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitFacts {
    /// The number of units.
    pub(crate) units: u64,
    /// The samples in them.
    pub(crate) samples: u64,
    /// The bytes of the units as they are stored.
    pub(crate) stored: u64,
    /// The bytes of their samples.
    pub(crate) delivered: u64,
    /// The stored and decoded bytes of the largest one.
    pub(crate) largest: u64,
    /// The units that are whole objects: compressed tar and TFRecord shards.
    pub(crate) whole: u64,
}

impl UnitFacts {
    /// The units in a catalog, and the stored bytes of each sample: its share of its unit. `None`
    /// if samples share no units. Reads every entry, some tenths of a second for a million.
    pub(crate) fn of(catalog: &Catalog) -> Option<(Self, Sizes)> {
        let whole = catalog.stored_sizes()?;
        let (mut facts, mut shares) = (Self::default(), Vec::new());
        let mut last = None;
        for id in (0..catalog.len()).map(SampleId) {
            let share = match catalog.entry(id).map(|entry| (entry.object, entry.span)) {
                Ok((object, Span::Made(parts))) => {
                    for part in parts.iter().filter(|part| part.is_shared()) {
                        let unit = Some((Arc::clone(&object.path), part.stored.clone()));
                        facts.samples += u64::from(part == &parts[0]);
                        facts.delivered += part.delivered.end - part.delivered.start;
                        if unit != last {
                            let stored = part.stored.end - part.stored.start;
                            facts.units += 1;
                            facts.whole += u64::from(stored == object.size);
                            facts.stored = facts.stored.saturating_add(stored);
                            facts.largest = facts.largest.max(stored.saturating_add(part.recipe.length()));
                            last = unit;
                        }
                    }
                    parts.iter().map(foreread_tier::StoredPart::stored_share).fold(0, u64::saturating_add)
                }
                _ => whole.bytes(id),
            };
            shares.push(share);
        }
        (facts.units > 0).then(|| (facts, Sizes::table(&shares)))
    }

    /// Checks that `memory` bytes hold all samples if units are whole shards. Otherwise each sample
    /// would decompress a shard of thousands.
    ///
    /// # Errors
    /// What the caches need, and the other way.
    pub(crate) fn check(&self, memory: u64, disk: u64, url: Option<&str>) -> Result<()> {
        // A part of the memory is for units in flight.
        if self.whole == 0 || memory / 4 * 3 >= self.delivered {
            return Ok(());
        }
        let (url, shards) = (url.unwrap_or("the dataset"), self.whole);
        let needed = ByteSize(self.delivered.saturating_add(self.delivered / 3));
        let (memory, disk, data) = (ByteSize(memory), ByteSize(disk), ByteSize(self.delivered));
        Err(Error::usage(format!(
            "{url}: its {shards} shards are compressed as a whole, so memory and disk must hold all samples: \
             {data}, and there are {memory} of memory and {disk} of disk; set --memory or --disk to \
             {needed}, or unpack the shards (gunzip, unzstd) into {data} and index them again"
        )))
    }

    /// The units of two datasets together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            units: self.units + other.units,
            samples: self.samples + other.samples,
            stored: self.stored.saturating_add(other.stored),
            delivered: self.delivered.saturating_add(other.delivered),
            largest: self.largest.max(other.largest),
            whole: self.whole + other.whole,
        }
    }
}

/// Units that samples share, and how a run reads them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UnitPlan {
    /// The number of units: compressed pages, chunks of many rows.
    pub units: u64,
    /// Their samples per unit, on average.
    pub samples_per_unit: f64,
    /// The bytes of all units in the storage.
    pub stored_bytes: u64,
    /// The bytes of their samples.
    pub delivered_bytes: u64,
    /// The memory that keeps samples until their next use, in bytes. 0 if the caches hold all
    /// samples.
    pub memory_bytes: u64,
    /// How often an epoch reads each unit: an estimate. If the caches hold all samples, the first
    /// epoch reads each unit once, and later epochs read none.
    pub reads_per_epoch: f64,
    /// Stored and decoded bytes of the largest unit, which memory must hold at once.
    pub largest_bytes: u64,
}

impl UnitPlan {
    /// The plan of units with `memory` bytes for their samples. `None`: the caches hold all.
    pub(crate) fn new(facts: UnitFacts, memory: Option<u64>) -> Self {
        let samples_per_unit = facts.samples as f64 / facts.units.max(1) as f64;
        let share = |memory: u64| memory as f64 / facts.delivered.max(1) as f64;
        Self {
            units: facts.units,
            samples_per_unit,
            stored_bytes: facts.stored,
            delivered_bytes: facts.delivered,
            memory_bytes: memory.unwrap_or(0),
            reads_per_epoch: memory.map_or(1.0, |memory| unit_reads(samples_per_unit, share(memory))),
            largest_bytes: facts.largest,
        }
    }

    /// The origin as the plan's samples see it: several reads of a unit for each of its samples,
    /// but fewer requests than samples.
    pub(crate) fn origin(&self, origin: Origin) -> Origin {
        /// Parts of a read.
        const PRECISION: f64 = 1000.0;
        let requests = self.units as f64 * self.reads_per_epoch;
        let samples = (self.units as f64 * self.samples_per_unit).max(1.0);
        let latency_ns = (origin.latency_ns as f64 * (requests / samples).min(1.0)) as u64;
        let origin = Origin { latency_ns, ..origin };
        origin.decoding((self.reads_per_epoch * PRECISION) as u64, PRECISION as u64)
    }

    /// Whether the caches hold all samples after the first epoch.
    pub fn is_cached(&self) -> bool {
        self.memory_bytes == 0
    }

    /// The bytes that an epoch reads of units.
    pub fn bytes_per_epoch(&self) -> u64 {
        (self.stored_bytes as f64 * self.reads_per_epoch) as u64
    }
}
