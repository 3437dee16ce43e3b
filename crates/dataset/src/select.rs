//! A part of a dataset: chosen samples of a catalog, as a catalog.
//!
//! A part has the whole catalog and the numbers of its samples in it. So labels keep the numbers of
//! their classes, and a part of a part is a part. Above all, a sample has one number in every part,
//! and caches of the whole serve all its parts: for training and validation, for the folds of a
//! cross-validation. In a file, the numbers are text in the metadata. The price: the file and the
//! memory of a small part are those of the whole.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::reader::FileReader;
use arrow_schema::{ArrowError, Schema};
use foreread_types::{Fingerprint, SampleId, Sizes};
use xxhash_rust::xxh3::Xxh3;

use crate::catalog_file::{SAMPLES_KEY, VERSION_KEY};
use crate::catalog_version::VERSION_TABLE;
use crate::encode::{begin_with, finish};
use crate::{Catalog, DatasetError, DatasetErrorKind};

/// The samples of a part.
#[derive(Debug)]
pub(crate) struct ChosenSamples {
    /// Their numbers in the whole catalog.
    pub(crate) ids: Arc<[u64]>,
    pub(crate) sizes: Sizes,
    pub(crate) stored: Option<Sizes>,
    pub(crate) fingerprint: Fingerprint,
}

impl ChosenSamples {
    /// Samples of a whole with these sizes.
    pub(crate) fn of(ids: Vec<u64>, sizes: &Sizes, stored: Option<&Sizes>, fingerprint: Fingerprint) -> Self {
        let of = |sizes: &Sizes| {
            Sizes::table(&ids.iter().map(|id| sizes.bytes(SampleId(*id))).collect::<Vec<u64>>())
        };
        Self { sizes: of(sizes), stored: stored.map(of), ids: ids.into(), fingerprint }
    }
}

/// Numbers below `population` as text: single ones and ranges (`0-4,7,9-12`).
pub(crate) fn number_text(ids: &[u64], population: u64) -> String {
    let mut text = String::new();
    // A reader accepts ranges of as many samples as the whole has, so that a short text cannot
    // fill its memory.
    let has_ranges = ids.len() as u64 <= population;
    let mut rest = ids;
    while let Some((&first, _)) = rest.split_first() {
        let run = (first..).zip(rest).take_while(|(next, id)| next == *id).count();
        let run = if has_ranges { run } else { 1 };
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _ = match run {
            1 => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}-{}", first + run as u64 - 1),
        };
        rest = &rest[run..];
    }
    text
}

/// The numbers in a text, if all are below `population` and there is at least one.
pub(crate) fn parse_numbers(text: &str, population: u64) -> Option<Vec<u64>> {
    let most = population.max(text.len() as u64);
    let mut ids = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= population || last - first >= most - ids.len() as u64 {
            return None;
        }
        ids.extend(first..=last);
    }
    Some(ids)
}

/// A catalog file of the same samples, which names the numbers of a part, or none.
pub(crate) fn rewritten(bytes: &[u8], numbers: Option<String>) -> Result<Vec<u8>, ArrowError> {
    let reader = FileReader::try_new(Cursor::new(bytes), None)?;
    let schema = reader.schema();
    let mut metadata: HashMap<String, String> = schema.metadata().clone().into();
    metadata.remove(SAMPLES_KEY);
    if let Some(numbers) = numbers {
        metadata.insert(SAMPLES_KEY.to_owned(), numbers);
        // Earlier versions would read the whole.
        metadata.insert(VERSION_KEY.to_owned(), VERSION_TABLE.to_owned());
    }
    let new = Arc::new(Schema::new(schema.fields().clone()).with_metadata(metadata));
    let mut writer = begin_with(&new, Vec::new())?;
    for batch in reader {
        writer.write(&RecordBatch::try_new(Arc::clone(&new), batch?.columns().to_vec())?)?;
    }
    finish(writer)
}

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

    /// [`number`](Self::number), or a number that no sample has.
    pub(crate) fn number_or_none(&self, id: SampleId) -> u64 {
        self.number(id).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_ranges_where_they_follow_each_other() {
        assert_eq!(number_text(&[0, 1, 2, 3, 4, 7, 9, 10], 20), "0-4,7,9-10");
        assert_eq!(number_text(&[0, 1, 0, 1], 2), "0,1,0,1");
    }

    #[test]
    fn damaged_numbers_are_refused() {
        for text in ["", "x", "3-1", "0-9,10", "-", "1-", "0,,1", "0-9,0-9", "18446744073709551615"] {
            assert_eq!(parse_numbers(text, 10), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_of_numbers_is_read_back(ids in prop::collection::vec(0u64..50, 1..120)) {
            prop_assert_eq!(parse_numbers(&number_text(&ids, 50), 50), Some(ids));
        }
    }
}
