//! The samples of a part of a catalog: their numbers, in memory and in a file.
//!
//! In a file, the numbers are text in the metadata. The price: the file of a small part is that of
//! the whole.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::reader::FileReader;
use arrow_schema::{ArrowError, Schema};
use foreread_types::{Fingerprint, SampleId, Sizes};

use crate::catalog_file::keys::{SAMPLES_KEY, VERSION_KEY};
use crate::catalog_file::version::VERSION_TABLE;
use crate::catalog_file::writer::{begin_with, finish};

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
