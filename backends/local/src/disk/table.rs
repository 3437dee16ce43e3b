//! The location of each cached sample of a dataset: eight bytes per sample, looked up without a
//! lock.
//!
//! The table is as long as the dataset. A lookup is one load and a removal one exchange. A hash map
//! would be smaller where few samples are cached. It would be six times as large where all are,
//! which is where memory counts.

use std::sync::atomic::{AtomicU64, Ordering};

use foreread_types::SampleId;
use metrics::Gauge;

use super::config::DatasetUsage;
use super::place::RecordPlace;

#[derive(Debug)]
pub(super) struct PlaceTable {
    slots: Box<[AtomicU64]>,
    /// Samples that are not kept any more, ascending.
    gone: Vec<u64>,
    samples: AtomicU64,
    bytes: AtomicU64,
    /// The bytes of all tables.
    held: Gauge,
}

impl PlaceTable {
    /// A table for `samples` samples, without the `gone` ones. It reports its bytes to `held`.
    pub(super) fn new(samples: u64, gone: Vec<u64>, held: Gauge) -> Self {
        let slots = (0..samples).map(|_| AtomicU64::new(0)).collect();
        Self { slots, gone, samples: AtomicU64::new(0), bytes: AtomicU64::new(0), held }
    }

    /// Whether the dataset has such a sample.
    pub(super) fn knows(&self, id: SampleId) -> bool {
        id.0 < self.slots.len() as u64 && self.gone.binary_search(&id.0).is_err()
    }

    fn slot(&self, id: SampleId) -> Option<&AtomicU64> {
        self.slots.get(usize::try_from(id.0).ok()?)
    }

    pub(super) fn get(&self, id: SampleId) -> Option<RecordPlace> {
        RecordPlace::unpack(self.slot(id)?.load(Ordering::Acquire))
    }

    /// Inserts a sample and returns its old location.
    pub(super) fn put(&self, id: SampleId, place: RecordPlace) -> Option<RecordPlace> {
        let before = RecordPlace::unpack(self.slot(id)?.swap(place.pack(), Ordering::AcqRel));
        self.samples.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(place.footprint(), Ordering::Relaxed);
        self.held.increment(place.footprint() as f64);
        self.subtract(before);
        before
    }

    /// Removes a sample from any location.
    pub(super) fn take(&self, id: SampleId) -> Option<RecordPlace> {
        let before = RecordPlace::unpack(self.slot(id)?.swap(0, Ordering::AcqRel));
        self.subtract(before);
        before
    }

    /// Removes a sample if it is at `place`.
    pub(super) fn take_from(&self, id: SampleId, place: RecordPlace) -> bool {
        let exchanged = self.slot(id).is_some_and(|slot| {
            slot.compare_exchange(place.pack(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if exchanged {
            self.subtract(Some(place));
        }
        exchanged
    }

    /// Changes the location of a sample that is at `place`. `false` if it is no longer there.
    pub(super) fn relocate(&self, id: SampleId, place: RecordPlace, to: RecordPlace) -> bool {
        debug_assert_eq!(place.length, to.length);
        self.slot(id).is_some_and(|slot| {
            slot.compare_exchange(place.pack(), to.pack(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Removes all samples in a directory.
    pub(super) fn clear(&self, directory: u8) {
        self.of(directory).for_each(|(id, place)| _ = self.take_from(id, place));
    }

    fn subtract(&self, place: Option<RecordPlace>) {
        if let Some(place) = place {
            self.samples.fetch_sub(1, Ordering::Relaxed);
            self.bytes.fetch_sub(place.footprint(), Ordering::Relaxed);
            self.held.decrement(place.footprint() as f64);
        }
    }

    /// The cached samples in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SampleId, RecordPlace)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(id, slot)| Some((SampleId(id), RecordPlace::unpack(slot.load(Ordering::Acquire))?)))
    }

    /// The cached samples of one directory in the order of their ids.
    pub(super) fn of(&self, directory: u8) -> impl Iterator<Item = (SampleId, RecordPlace)> {
        self.iter().filter(move |(_, place)| place.directory == directory)
    }

    pub(super) fn stored(&self) -> DatasetUsage {
        DatasetUsage {
            samples: self.samples.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for PlaceTable {
    fn drop(&mut self) {
        self.held.decrement(*self.bytes.get_mut() as f64);
    }
}
