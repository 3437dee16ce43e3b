//! Stored units that samples share, in a plan: their cost, and the best use of memory.
//!
//! A unit is decoded as a whole, so each sample that memory does not hold costs a read of all. If
//! the caches hold every sample, each unit is read once: its samples go into their caches together,
//! as a [block](foreread_loader::BlockTable). Otherwise the memory is taken from the memory tier
//! and keeps the samples of units until their next use ([`Units`]). A tier whose content is fixed
//! would leave nearly every unit to be read for nearly every sample.

use std::fmt;
use std::sync::Arc;

use foreread_dataset::{Catalog, Format};
use foreread_layers::Units;
use foreread_local::disk::DiskTier;
use foreread_memory::MemoryTier;
use foreread_planner::{Origin, unit_reads};
use foreread_tier::{CacheTier, Span, StoredPart};
use foreread_types::{Footprint, SampleId, Sizes, setting};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::size::ByteSize;
use crate::stored::Ratios;

/// The memory that a sample takes in the store of a node. Known without the feature `share`,
/// because all ranks compute the same plan.
pub const STORE_FOOTPRINT: Footprint = Footprint::new(0, 64).with_fixed(192);

/// The units of the datasets of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitFacts {
    /// The number of units.
    pub units: u64,
    /// The samples in them, once for each unit.
    pub samples: u64,
    /// The bytes of the units as they are stored.
    pub stored: u64,
    /// The bytes of their samples.
    pub delivered: u64,
    /// The stored and decoded bytes of the largest one.
    pub largest: u64,
    /// The units that are whole objects: compressed tar and TFRecord shards.
    pub whole: u64,
}

/// A unit whose samples are being counted.
struct OpenUnit {
    path: Arc<str>,
    part: StoredPart,
    /// Its samples, and their bytes in it.
    samples: Vec<(usize, u64)>,
}

/// The facts of a dataset while its entries are read.
#[derive(Default)]
struct UnitCount {
    facts: UnitFacts,
    ratios: Ratios,
    /// The stored bytes of each sample.
    shares: Vec<u64>,
}

impl UnitCount {
    /// Divides the stored bytes of a unit among its samples, by their bytes.
    fn close(&mut self, unit: &OpenUnit, is_whole: bool) {
        let stored = unit.part.stored.end - unit.part.stored.start;
        let delivered =
            unit.samples.iter().map(|(_, bytes)| bytes).fold(0, |sum: u64, &b| sum.saturating_add(b));
        self.facts.units += 1;
        self.facts.whole += u64::from(is_whole);
        self.facts.samples += unit.samples.len() as u64;
        self.facts.stored = self.facts.stored.saturating_add(stored);
        self.facts.delivered = self.facts.delivered.saturating_add(delivered);
        self.facts.largest = self.facts.largest.max(stored.saturating_add(unit.part.recipe.length()));
        self.ratios.add(stored, delivered);
        // Rounded so that the shares add up to the unit.
        let before = |bytes: u64| u128::from(stored) * u128::from(bytes) / u128::from(delivered.max(1));
        let mut counted: u64 = 0;
        for &(sample, bytes) in &unit.samples {
            let after = counted.saturating_add(bytes);
            let share = u64::try_from(before(after) - before(counted)).unwrap_or(u64::MAX);
            self.shares[sample] = self.shares[sample].saturating_add(share);
            counted = after;
        }
    }
}

impl UnitFacts {
    /// The units in a catalog, the stored bytes of each sample with its share of its units, and the
    /// extreme ratios. `None` if samples share no units. Reads every entry, some tenths of a second
    /// for a million.
    pub fn of(catalog: &Catalog) -> Option<(Self, Sizes, Ratios)> {
        let (whole, sizes) = (catalog.stored_sizes()?, catalog.sizes());
        let is_whole = matches!(catalog.format(), Format::Tar | Format::TfRecord);
        let (mut count, mut open) = (UnitCount::default(), Vec::<OpenUnit>::new());
        for id in (0..catalog.len()).map(SampleId) {
            let (sample, bytes) = (count.shares.len(), sizes.bytes(id));
            let Ok((path, parts)) = catalog.entry(id).map(|entry| match entry.span {
                Span::Made(parts) if bytes > 0 => (entry.object.path, parts),
                _ => (entry.object.path, [].into()),
            }) else {
                count.shares.push(whole.bytes(id));
                continue;
            };
            if parts.is_empty() {
                count.ratios.add(whole.bytes(id), bytes);
                count.shares.push(whole.bytes(id));
                continue;
            }
            count.shares.push(0);
            // Samples that share a unit follow one another. Empty ones may lie between.
            let is_in = |unit: &OpenUnit| {
                unit.path == path
                    && parts.iter().any(|part| part.is_shared() && part.is_same_unit(&unit.part))
            };
            open.retain(|unit| {
                let stays = is_in(unit);
                if !stays {
                    count.close(unit, is_whole);
                }
                stays
            });
            for part in &*parts {
                let bytes = part.delivered.end - part.delivered.start;
                if !part.is_shared() {
                    let stored = part.stored.end - part.stored.start;
                    count.shares[sample] = count.shares[sample].saturating_add(stored);
                    count.ratios.add(stored, bytes);
                    continue;
                }
                let at = open.iter().position(|unit| unit.path == path && part.is_same_unit(&unit.part));
                let unit = match at {
                    Some(at) => &mut open[at],
                    None => {
                        let (path, part) = (Arc::clone(&path), part.clone());
                        open.push(OpenUnit { path, part, samples: Vec::new() });
                        let last = open.len() - 1;
                        &mut open[last]
                    }
                };
                match unit.samples.last_mut().filter(|last| last.0 == sample) {
                    Some(last) => last.1 = last.1.saturating_add(bytes),
                    None => unit.samples.push((sample, bytes)),
                }
            }
        }
        open.iter().for_each(|unit| count.close(unit, is_whole));
        (count.facts.units > 0).then(|| (count.facts, Sizes::table(&count.shares), count.ratios))
    }

    /// Checks that no units are whole shards, or that `memory` keeps all that they bring. Otherwise
    /// each sample would decompress a shard of thousands. For caches that do not hold all samples.
    ///
    /// # Errors
    /// An error with the needs of the caches, and the alternative.
    pub fn check(&self, memory: u64, room: &RoomForAll, url: Option<&str>) -> Result<()> {
        let kept = self.delivered.saturating_add(self.samples.saturating_mul(Units::OVERHEAD));
        if self.whole == 0 || Units::kept_of(memory) >= kept {
            return Ok(());
        }
        let (url, shards) = (url.unwrap_or("the dataset"), self.whole);
        let data = ByteSize(self.delivered);
        Err(Error::usage(format!(
            "{url}: its {shards} shards are compressed as a whole, so memory and disk must hold all samples: \
             {room}, or unpack the shards (gunzip, unzstd) into {data} and index them again"
        )))
    }

    /// The memory in which caches for several processes hold all samples of these sizes, so that
    /// each unit is read once.
    pub fn room(sizes: &[Sizes]) -> u64 {
        let all = sizes.iter().map(|sizes| STORE_FOOTPRINT.most(sizes.len(), sizes.total()));
        all.fold(0, u64::saturating_add)
    }

    /// The units of two datasets together.
    pub fn and(self, other: Self) -> Self {
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

/// The bytes that the caches of a rank need to hold all samples of its run.
pub struct RoomForAll {
    /// The capacity of memory and disk.
    has: [u64; 2],
    /// The size of a memory that has all samples, and of a disk cache, with its indexes.
    needs: [u64; 2],
}

impl RoomForAll {
    /// For samples of these sizes, with so much memory and disk.
    pub fn new(sizes: &[Sizes], has: [u64; 2]) -> Self {
        let sum = |of: fn(u64, u64) -> u64| {
            let all = sizes.iter().map(|sizes| of(sizes.len(), sizes.total()));
            all.fold(0, u64::saturating_add)
        };
        let in_memory = |samples, bytes| MemoryTier::new(0).footprint().most(samples, bytes);
        Self { has, needs: [sum(in_memory), sum(DiskTier::room_for)] }
    }
}

impl fmt::Display for RoomForAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [memory, disk] = self.needs.map(|bytes| ByteSize(bytes).rounded_up());
        let [own_memory, own_disk] = self.has.map(ByteSize);
        write!(f, "{memory} of memory or {disk} of disk, and there are {own_memory} and {own_disk}; ")?;
        write!(f, "set {} or {}", setting("memory"), setting("disk"))
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
    /// Whether the caches hold all samples after the first epoch.
    pub cached: bool,
    /// The memory that keeps samples until their next use, in bytes.
    pub memory_bytes: u64,
    /// The part of the samples that this memory holds, from 0 to 1: with a part of the look-ahead
    /// where that is more, and without the bytes of units in flight.
    pub kept_share: f64,
    /// How often an epoch reads each unit: an estimate. If the caches hold all samples, the first
    /// epoch reads each unit once, and later epochs read none.
    pub reads_per_epoch: f64,
    /// Stored and decoded bytes of the largest unit, which memory must hold at once.
    pub largest_bytes: u64,
}

impl UnitPlan {
    /// The plan of units with `memory` bytes for their samples, and this look-ahead. `cached`: the
    /// caches hold all samples.
    pub fn new(facts: UnitFacts, memory: u64, look_ahead: u64, cached: bool) -> Self {
        let plan = Self {
            units: facts.units,
            samples_per_unit: facts.samples as f64 / facts.units.max(1) as f64,
            stored_bytes: facts.stored,
            delivered_bytes: facts.delivered,
            cached,
            memory_bytes: memory,
            kept_share: 1.0,
            reads_per_epoch: 1.0,
            largest_bytes: facts.largest,
        };
        if cached { plan } else { plan.with_memory(memory, look_ahead) }
    }

    /// The same with another memory, where the caches do not hold all samples.
    pub fn with_memory(self, memory: u64, look_ahead: u64) -> Self {
        let kept = Units::kept_of(unit_memory(memory, look_ahead)) as f64;
        let overhead = self.units as f64 * self.samples_per_unit * Units::OVERHEAD as f64;
        let share = kept / (self.delivered_bytes as f64 + overhead).max(1.0);
        let reads_per_epoch = unit_reads(self.samples_per_unit, share);
        Self { memory_bytes: memory, kept_share: share.min(1.0), reads_per_epoch, ..self }
    }

    /// The origin as the plan's samples see it: several reads of a unit for each of its samples,
    /// but fewer requests than samples.
    pub fn origin(&self, origin: Origin) -> Origin {
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
        self.cached
    }

    /// The stored bytes of reads that deliver so many bytes, with units that are read again.
    pub fn stored_of(&self, delivered: u64) -> u64 {
        let ratio = self.stored_bytes as f64 / self.delivered_bytes.max(1) as f64;
        (delivered as f64 * ratio * self.reads_per_epoch) as u64
    }

    /// The bytes that an epoch reads of units.
    pub fn bytes_per_epoch(&self) -> u64 {
        (self.stored_bytes as f64 * self.reads_per_epoch) as u64
    }
}

/// The memory of units in flight and of their samples, where a plan has `memory` bytes for it. If
/// the caches hold all samples, units are in flight only.
pub fn unit_memory(memory: u64, look_ahead: u64) -> u64 {
    memory.max(look_ahead / 2)
}
