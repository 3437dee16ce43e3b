//! Which samples of a dataset are kept, and where: eight bytes a sample, looked up without a lock.
//!
//! The table is as long as the dataset, so a lookup is one load and a removal one exchange. A map of what is kept
//! would be smaller where little is, and six times as large where everything is, which is where memory counts.

use std::sync::atomic::{AtomicU64, Ordering};

use foreread_types::SampleId;
use metrics::Gauge;

use super::config::Stored;
use super::format::Place;

#[derive(Debug)]
pub(super) struct Table {
    words: Box<[AtomicU64]>,
    samples: AtomicU64,
    bytes: AtomicU64,
    /// The bytes of all tables.
    held: Gauge,
}

impl Table {
    /// A table for so many samples that says to `held` what it keeps.
    pub(super) fn new(samples: u64, held: Gauge) -> Self {
        let words = (0..samples).map(|_| AtomicU64::new(0)).collect();
        Self { words, samples: AtomicU64::new(0), bytes: AtomicU64::new(0), held }
    }

    /// Whether the dataset has such a sample.
    pub(super) fn knows(&self, id: SampleId) -> bool {
        id.0 < self.words.len() as u64
    }

    fn word(&self, id: SampleId) -> Option<&AtomicU64> {
        self.words.get(usize::try_from(id.0).ok()?)
    }

    pub(super) fn get(&self, id: SampleId) -> Option<Place> {
        Place::unpack(self.word(id)?.load(Ordering::Acquire))
    }

    /// Puts a sample in; what was there before is returned.
    pub(super) fn put(&self, id: SampleId, place: Place) -> Option<Place> {
        let before = Place::unpack(self.word(id)?.swap(place.pack(), Ordering::AcqRel));
        self.samples.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(place.bytes(), Ordering::Relaxed);
        self.held.increment(place.bytes() as f64);
        self.gone(before);
        before
    }

    /// Takes a sample out, wherever it is.
    pub(super) fn take(&self, id: SampleId) -> Option<Place> {
        let before = Place::unpack(self.word(id)?.swap(0, Ordering::AcqRel));
        self.gone(before);
        before
    }

    /// Takes a sample out if it is at `place`.
    pub(super) fn take_from(&self, id: SampleId, place: Place) -> bool {
        let exchanged = self.word(id).is_some_and(|word| {
            word.compare_exchange(place.pack(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if exchanged {
            self.gone(Some(place));
        }
        exchanged
    }

    /// Takes out all samples that are in a directory.
    pub(super) fn clear(&self, directory: u8) {
        self.of(directory).for_each(|(id, place)| _ = self.take_from(id, place));
    }

    fn gone(&self, place: Option<Place>) {
        if let Some(place) = place {
            self.samples.fetch_sub(1, Ordering::Relaxed);
            self.bytes.fetch_sub(place.bytes(), Ordering::Relaxed);
            self.held.decrement(place.bytes() as f64);
        }
    }

    /// What is kept, in the order of the ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SampleId, Place)> {
        (0..)
            .zip(&self.words)
            .filter_map(|(id, word)| Some((SampleId(id), Place::unpack(word.load(Ordering::Acquire))?)))
    }

    /// What is kept in one directory, in the order of the ids.
    pub(super) fn of(&self, directory: u8) -> impl Iterator<Item = (SampleId, Place)> {
        self.iter().filter(move |(_, place)| place.directory == directory)
    }

    pub(super) fn stored(&self) -> Stored {
        Stored { samples: self.samples.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.held.decrement(*self.bytes.get_mut() as f64);
    }
}
