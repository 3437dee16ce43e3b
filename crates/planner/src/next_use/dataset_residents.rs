//! The residents of one dataset, in one calendar for each class of cost per second.

use std::num::NonZeroU32;
use std::sync::Arc;

use foreread_types::{SampleId, Sizes};

use crate::demand::table;
use crate::next_use::calendar::{Calendar, CalendarSlot, UNKNOWN};
use crate::next_use::node_owners::{NodeOwner, NodeOwners};
use crate::next_use::sample_set::SampleSet;

/// The value of a hit of a dataset's samples, and the bytes that they occupy.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetCosts {
    /// The bytes that each sample occupies in the cache, with all overhead.
    pub sizes: Sizes,
    /// How much a second of this dataset's reads counts, relative to other datasets.
    pub weight: NonZeroU32,
    /// Nanoseconds until a read from the origin brings its first byte.
    pub origin_latency_ns: u64,
    /// Bytes per second of a read from the origin.
    pub origin_bytes_per_second: u64,
}

impl DatasetCosts {
    /// The costs of a dataset of weight 1 whose reads from the origin take one second each.
    pub const fn new(sizes: Sizes) -> Self {
        let weight = NonZeroU32::MIN;
        Self { sizes, weight, origin_latency_ns: 1_000_000_000, origin_bytes_per_second: u64::MAX }
    }

    /// Bytes per nanosecond that a hit saves: the cost of a resident per second to its next use.
    fn slope(&self, bytes: u64) -> f64 {
        let transfer = bytes as f64 * 1e9 / self.origin_bytes_per_second.max(1) as f64;
        let saved = (self.origin_latency_ns as f64 + transfer).max(1.0);
        bytes as f64 / (f64::from(self.weight.get()) * saved)
    }
}

/// How many bytes of the cache a dataset has in any case, and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBounds {
    /// Other datasets get no room from this one while it has at most this many bytes.
    pub floor: u64,
    /// It never has more bytes than this.
    pub cap: u64,
}

impl Default for CacheBounds {
    /// Neither.
    fn default() -> Self {
        Self { floor: 0, cap: u64::MAX }
    }
}

/// Residents whose cost grows equally fast with the time to their next use.
#[derive(Clone, Debug)]
pub(crate) struct CostClass {
    /// The leading bits of the slope. All slopes of a class lie within a fourth of each other.
    key: u64,
    slope: f64,
    pub(crate) calendar: Calendar,
}

impl CostClass {
    /// The cost of a hit on a sample in a list of the calendar.
    pub(crate) fn cost(&self, list: u16, now: u64, epoch_ns: f64) -> f64 {
        let distance = self.calendar.distance_ns(list, now, epoch_ns);
        if distance < UNKNOWN { self.slope * distance } else { distance }
    }
}

/// Where a sample is: in no class unless it is resident.
#[derive(Clone, Copy, Debug)]
struct ResidentSlot {
    class: u16,
    calendar: CalendarSlot,
}

const ABSENT: u16 = u16::MAX;

impl Default for ResidentSlot {
    fn default() -> Self {
        Self { class: ABSENT, calendar: CalendarSlot { list: 0, index: 0 } }
    }
}

/// One dataset with its residents.
#[derive(Clone, Debug)]
pub(crate) struct DatasetResidents {
    costs: DatasetCosts,
    slots: Vec<ResidentSlot>,
    /// The number of residents, and their bytes.
    pub(crate) residents: u64,
    pub(crate) held: u64,
    pub(crate) bounds: CacheBounds,
    /// The time of the latest use of any sample.
    pub(crate) latest: u64,
    /// The samples that a disk of the node has.
    on_disk: SampleSet,
    /// The samples of this node's own that are resident or on a disk.
    kept: u64,
    /// `None`: this node owns all samples.
    owners: Option<Arc<dyn NodeOwners>>,
    pub(crate) classes: Vec<CostClass>,
    /// Indices of the jobs that use it.
    pub(crate) jobs: Vec<usize>,
}

impl DatasetResidents {
    /// A dataset without residents. `None` if its table of 12 bytes per sample does not fit in
    /// memory.
    pub(crate) fn new(costs: DatasetCosts) -> Option<Self> {
        let slots = table(costs.sizes.len())?;
        let (bounds, on_disk, owners, classes, jobs) = Default::default();
        let (residents, held, latest, kept) = Default::default();
        Some(Self { costs, slots, residents, held, bounds, latest, on_disk, kept, owners, classes, jobs })
    }

    /// Whether a disk has a sample, too.
    pub(crate) fn is_on_disk(&self, sample: u32) -> bool {
        self.on_disk.contains(sample)
    }

    /// The owner of a sample.
    pub(crate) fn owner(&self, sample: u32) -> NodeOwner {
        let owners = self.owners.as_ref();
        owners.map_or(NodeOwner::This, |owners| owners.owner(SampleId(u64::from(sample))))
    }

    /// Whether this node owns a sample.
    fn is_own(&self, sample: u32) -> bool {
        self.owner(sample) == NodeOwner::This
    }

    /// Whether a sample is not to be kept in memory at the cost of others: a disk has it, or this
    /// node does not own it.
    pub(crate) fn has_other_copy(&self, sample: u32) -> bool {
        self.is_on_disk(sample) || !self.is_own(sample)
    }

    /// The samples of this node's own that are resident or on a disk.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// The samples that this node owns.
    pub(crate) fn own_samples(&self) -> u64 {
        self.owners.as_ref().map_or(self.samples(), |owners| owners.own_samples())
    }

    /// The bytes of the samples that this node owns.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.owners.as_ref().map_or(self.costs.sizes.total(), |owners| owners.own_bytes())
    }

    /// Notes whether a disk has a sample, which is not resident.
    pub(crate) fn set_on_disk(&mut self, sample: u32, is_on_disk: bool) {
        let before = u64::from(self.has_on_disk_alone(sample));
        self.on_disk.set(sample, self.samples(), is_on_disk);
        self.kept = self.kept - before + u64::from(self.has_on_disk_alone(sample));
    }

    fn has_on_disk_alone(&self, sample: u32) -> bool {
        self.is_on_disk(sample) && self.is_own(sample)
    }

    /// The residents that this node owns under either the present owners or these, and not both.
    pub(crate) fn moved_by(&self, owners: Option<&dyn NodeOwners>) -> Vec<u32> {
        let is_own =
            |id: u32| owners.is_none_or(|owners| owners.owner(SampleId(u64::from(id))) == NodeOwner::This);
        let residents = self.classes.iter().flat_map(|class| class.calendar.all());
        residents.filter(|id| self.is_own(*id) != is_own(*id)).collect()
    }

    /// Sets the owners. No resident may [move](Self::moved_by) by that.
    pub(crate) fn set_owners(&mut self, owners: Option<Arc<dyn NodeOwners>>) {
        self.owners = owners;
        let on_disk = self.on_disk.iter().filter(|sample| self.is_own(*sample)).count();
        let residents = self.classes.iter().flat_map(|class| class.calendar.all());
        let resident = residents.filter(|sample| !self.has_other_copy(*sample)).count();
        self.kept = (on_disk + resident) as u64;
    }

    /// Changes the savings by a hit. Returns the residents, which have to be inserted again: their
    /// classes are those of the costs before.
    pub(crate) fn set_costs(&mut self, costs: DatasetCosts) -> Vec<u32> {
        self.costs = costs;
        let mut residents = Vec::new();
        for class in &mut self.classes {
            class.calendar.drain(&mut residents);
        }
        self.classes.clear();
        residents
    }

    pub(crate) fn costs(&self) -> &DatasetCosts {
        &self.costs
    }

    /// Whether other datasets may get the room of a resident.
    pub(crate) fn gives_room(&self) -> bool {
        self.held > self.bounds.floor
    }

    pub(crate) fn samples(&self) -> u64 {
        self.costs.sizes.len()
    }

    pub(crate) fn bytes(&self, sample: u32) -> u64 {
        self.costs.sizes.bytes(SampleId(u64::from(sample)))
    }

    pub(crate) fn is_resident(&self, sample: u32) -> bool {
        self.slots[sample as usize].class != ABSENT
    }

    /// The class of a sample, which is made if it is new. `span` is the time in nanoseconds that
    /// its calendar covers at first.
    pub(crate) fn class(&mut self, sample: u32, span: u64, now: u64) -> u16 {
        let slope = self.costs.slope(self.bytes(sample));
        // The sign, the exponent and two bits of the mantissa.
        let key = if self.costs.sizes.is_uniform() { 0 } else { slope.to_bits() >> 50 };
        if let Some(known) = self.classes.iter().position(|class| class.key == key) {
            return known as u16;
        }
        let middle = f64::from_bits(key << 50 | 1 << 49);
        let slope = if self.costs.sizes.is_uniform() { slope } else { middle };
        self.classes.push(CostClass { key, slope, calendar: Calendar::new(span, now) });
        (self.classes.len() - 1) as u16
    }

    /// Makes an absent sample resident, and counts it.
    pub(crate) fn admit(&mut self, sample: u32, class: u16, list: u16) {
        self.residents += 1;
        self.kept += u64::from(!self.has_other_copy(sample));
        self.held += self.bytes(sample);
        self.insert(sample, class, list);
    }

    /// Puts a resident, or a sample that becomes one, into a list of its calendar.
    pub(crate) fn insert(&mut self, sample: u32, class: u16, list: u16) {
        let calendar = self.classes[usize::from(class)].calendar.push(list, sample);
        self.slots[sample as usize] = ResidentSlot { class, calendar };
    }

    /// Removes a resident.
    pub(crate) fn remove(&mut self, sample: u32) {
        self.residents -= 1;
        self.kept -= u64::from(!self.has_other_copy(sample));
        self.held -= self.bytes(sample);
        let slot = std::mem::take(&mut self.slots[sample as usize]);
        let moved = self.classes[usize::from(slot.class)].calendar.remove(slot.calendar);
        if let Some(moved) = moved {
            self.slots[moved as usize].calendar = slot.calendar;
        }
    }
}
