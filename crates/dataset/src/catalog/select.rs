//! A part of a dataset: chosen samples of a catalog, as a catalog.
//!
//! A part has the whole catalog and the numbers of its samples in it. So labels keep the numbers of
//! their classes, and a part of a part is a part. Above all, a sample has one number in every part,
//! and caches of the whole serve all its parts: for training and validation, for the folds of a
//! cross-validation. The price: the file and the memory of a small part are those of the whole.

use std::sync::Arc;

use foreread_types::{Fingerprint, SampleId};
use xxhash_rust::xxh3::Xxh3;

use crate::catalog::part::ChosenSamples;
use crate::{Catalog, DatasetError, DatasetErrorKind};

impl Catalog {
    /// The catalog of these samples, in this order. Classes keep their numbers. A sample may occur
    /// several times.
    ///
    /// # Errors
    /// [`DatasetErrorKind::OutOfRange`] for an unknown sample, [`DatasetErrorKind::Empty`] without
    /// samples.
    pub fn select(&self, ids: &[u64]) -> Result<Self, DatasetError> {
        if ids.is_empty() {
            let message = format!("{}: the selection has no samples", self.base_url());
            return Err(DatasetError::new(DatasetErrorKind::Empty, message));
        }
        let number = |id: &u64| self.number(SampleId(*id)).ok_or_else(|| self.out_of_range(SampleId(*id)));
        let ids = ids.iter().map(number).collect::<Result<Vec<u64>, _>>()?;
        Ok(self.with_gone().part(ids))
    }

    /// The part of a catalog with gone samples that has these numbers, which are in range.
    pub(crate) fn part(&self, ids: Vec<u64>) -> Self {
        let mut hash = Xxh3::new();
        hash.update(b"foreread part 1\0");
        hash.update(&self.fingerprint().0.to_le_bytes());
        ids.iter().for_each(|id| hash.update(&id.to_le_bytes()));
        let fingerprint = Fingerprint(hash.digest128());
        let chosen = ChosenSamples::of(ids, &self.sizes(), self.stored_sizes().as_ref(), fingerprint);
        Self(Arc::clone(&self.0), Some(Arc::new(chosen)))
    }

    /// All samples of the catalog that this one is a [part](Self::select) of. Itself, if it is
    /// none.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self(Arc::clone(&self.0), self.0.existing().cloned())
    }

    /// Whether it is a [part](Self::select) of a whole catalog.
    pub fn is_part(&self) -> bool {
        match (&self.1, self.0.existing()) {
            (Some(chosen), Some(existing)) => !Arc::ptr_eq(chosen, existing),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// All numbers of the whole catalog, also those of samples that [are gone](Self::grown).
    /// Caches are keyed by these.
    #[must_use]
    pub fn with_gone(&self) -> Self {
        Self(Arc::clone(&self.0), None)
    }

    /// The number of a sample in the whole catalog, [with gone ones](Self::with_gone). `None` if
    /// there is no such sample.
    pub fn number(&self, id: SampleId) -> Option<u64> {
        match &self.1 {
            None => (id.0 < self.len()).then_some(id.0),
            Some(part) => part.ids.get(usize::try_from(id.0).ok()?).copied(),
        }
    }

    /// The numbers of all samples in the whole catalog, if they are others than `0..len()`.
    pub fn numbers(&self) -> Option<&Arc<[u64]>> {
        self.1.as_ref().map(|part| &part.ids)
    }

    /// The row of the file that each sample is in, where that is not the sample's own number.
    pub fn file_rows(&self) -> Option<Vec<u64>> {
        let numbers = self.numbers()?;
        Some(numbers.iter().map(|number| self.image().runs().row_of(*number).0).collect())
    }

    /// [`number`](Self::number), or a number without a sample.
    pub(crate) fn number_or_none(&self, id: SampleId) -> u64 {
        self.number(id).unwrap_or(u64::MAX)
    }
}
