//! Room for a sample: which residents leave for it.
//!
//! The resident of the highest cost leaves first. Bounds of datasets come before costs: a dataset
//! at its cap makes room within itself, and one at its floor gives none to others. If the residents
//! of a higher cost do not suffice, all of them stay, and the sample does not.

use std::ops::Range;

use foreread_types::{DatasetId, SampleId, SampleKey};

use super::NextUseCache;
use super::calendar::UNKNOWN;
use super::dataset_residents::CacheBounds;

/// The need that room is made for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoomFor {
    /// The dataset whose own residents may leave at its floor, too.
    pub(super) dataset: Option<usize>,
    /// For a sample that no job has announced: only datasets that were not used since then give
    /// room, and only samples without uses to come. The own dataset gives second copies.
    pub(super) unused_since: Option<u64>,
    /// For a sample without a known next use. Datasets without jobs give room to it.
    pub(super) takes_unused: bool,
    /// For the capacity itself.
    pub(super) ignores_floors: bool,
}

impl NextUseCache {
    /// Keeps an absent sample if there is room or a resident of higher cost.
    pub(super) fn keep(&mut self, dataset: usize, id: u32, evicted: &mut Vec<SampleKey>) -> bool {
        self.keep_with(dataset, id, None, evicted)
    }

    /// The same, or as [`fill`](Self::fill) has it.
    pub(super) fn keep_with(
        &mut self,
        dataset: usize,
        id: u32,
        fill: Option<u64>,
        evicted: &mut Vec<SampleKey>,
    ) -> bool {
        let bytes = self.datasets[dataset].bytes(id);
        let span = self.span(dataset);
        let class = self.datasets[dataset].class(id, span, self.now);
        let time = self.next_use(&self.datasets[dataset], id);
        let chosen = &self.datasets[dataset].classes[usize::from(class)];
        let list = chosen.calendar.list(time);
        let cost = chosen.cost(list, self.now, self.epoch_ns(dataset));
        let CacheBounds { floor, cap } = self.datasets[dataset].bounds;
        // Up to its floor, a dataset gets room whatever its samples cost.
        let is_due = self.datasets[dataset].held.saturating_add(bytes) <= floor;
        // The next order of a job may not be announced yet.
        let is_wanted = !self.datasets[dataset].jobs.is_empty() && !self.datasets[dataset].has_other_copy(id);
        let takes_unused = is_wanted && cost >= UNKNOWN && fill.is_none();
        let room =
            RoomFor { dataset: Some(dataset), unused_since: fill, takes_unused, ignores_floors: false };
        let due_room = RoomFor { dataset: None, takes_unused: false, ..room };
        let before = evicted.len();
        let kept = bytes <= self.capacity.min(cap)
            && self.make_room_within(dataset, bytes, cost, evicted)
            && (is_due && self.make_room(bytes, f64::NEG_INFINITY, due_room, evicted)
                || self.make_room(bytes, cost, room, evicted));
        if kept {
            self.insert(dataset, id, class, list);
        } else {
            for key in evicted.drain(before..) {
                self.restore(key);
            }
        }
        kept
    }

    /// Evicts residents of a higher cost until `bytes` more fit. Returns whether they suffice.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        cost: f64,
        room: RoomFor,
        evicted: &mut Vec<SampleKey>,
    ) -> bool {
        while self.held.saturating_add(bytes) > self.capacity {
            let all = 0..self.datasets.len();
            let Some((dataset, id)) = self.costliest(all, cost, room) else { return false };
            self.evict(dataset, id, evicted);
        }
        true
    }

    /// The same within the cap of a dataset, by its own residents.
    pub(super) fn make_room_within(
        &mut self,
        dataset: usize,
        bytes: u64,
        cost: f64,
        evicted: &mut Vec<SampleKey>,
    ) -> bool {
        while self.datasets[dataset].held.saturating_add(bytes) > self.datasets[dataset].bounds.cap {
            let room = RoomFor { dataset: Some(dataset), ..RoomFor::default() };
            let found = self.costliest(dataset..dataset + 1, cost, room);
            let Some((_, id)) = found else { return false };
            self.evict(dataset, id, evicted);
        }
        true
    }

    pub(super) fn evict(&mut self, dataset: usize, id: u32, evicted: &mut Vec<SampleKey>) {
        self.remove(dataset, id);
        evicted.push(SampleKey::new(DatasetId(dataset as u32), SampleId(u64::from(id))));
    }

    pub(super) fn insert(&mut self, dataset: usize, id: u32, class: u16, list: u16) {
        self.held += self.datasets[dataset].bytes(id);
        self.datasets[dataset].admit(id, class, list);
    }

    pub(super) fn remove(&mut self, dataset: usize, id: u32) {
        self.held -= self.datasets[dataset].bytes(id);
        self.datasets[dataset].remove(id);
    }

    /// The resident of the highest cost among these datasets, if that is above `cost`. A dataset at
    /// its floor gives room to its own samples only. Residents win ties, except those of datasets
    /// without jobs if `room` takes them.
    pub(super) fn costliest(
        &mut self,
        among: Range<usize>,
        cost: f64,
        room: RoomFor,
    ) -> Option<(usize, u32)> {
        // To fill, only samples without uses give room, and of the own dataset second copies.
        let takes_copies = cost < f64::INFINITY;
        let cost = if room.unused_since.is_some() { UNKNOWN.next_down() } else { cost };
        let (mut highest, mut found): (_, Option<(usize, u32)>) = (cost, None);
        for dataset in among {
            let is_own = room.dataset == Some(dataset);
            let is_used = |since| !is_own && self.datasets[dataset].latest >= since;
            let gives_copies = is_own && room.unused_since.is_some();
            let gives_room = is_own || room.ignores_floors || self.datasets[dataset].gives_room();
            if !gives_room || room.unused_since.is_some_and(is_used) || gives_copies && !takes_copies {
                continue;
            }
            let epoch_ns = self.epoch_ns(dataset);
            let is_older_than = |other: usize| self.datasets[dataset].latest < self.datasets[other].latest;
            let wins_ties = room.takes_unused && !is_own && self.datasets[dataset].jobs.is_empty();
            let is_older = match found {
                Some((other, _)) => is_older_than(other) && (wins_ties || !room.takes_unused),
                None => wins_ties,
            };
            for class in &mut self.datasets[dataset].classes {
                class.calendar.contest();
                if let Some((id, list)) = class.calendar.furthest(self.now, epoch_ns) {
                    let cost = class.cost(list, self.now, epoch_ns);
                    if gives_copies && cost < f64::INFINITY {
                        continue;
                    }
                    // Of datasets without uses, the least recently used one is first.
                    let is_first = cost >= UNKNOWN && cost == highest && is_older;
                    if cost > highest || is_first {
                        (highest, found) = (cost, Some((dataset, id)));
                    }
                }
            }
        }
        found
    }

    /// Makes a sample resident that was evicted a moment ago.
    pub(super) fn restore(&mut self, key: SampleKey) {
        let (dataset, id) = (key.dataset.0 as usize, key.id.0 as u32);
        let class = self.datasets[dataset].class(id, 0, self.now);
        let time = self.next_use(&self.datasets[dataset], id);
        let list = self.datasets[dataset].classes[usize::from(class)].calendar.list(time);
        self.insert(dataset, id, class, list);
    }
}
