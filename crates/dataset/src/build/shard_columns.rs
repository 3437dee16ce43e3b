//! The columns of a catalog that all rows of a shard share: its path and its version.
//!
//! They are dictionaries, because a thousand rows share one shard.

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, StringArray, TimestampNanosecondArray};
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};

use crate::build::changes::FileChanges;
use crate::build::header::CatalogHeader;
use crate::catalog_file::object_versions::{etag, modified};
use crate::catalog_file::writer::ROWS;
use crate::packed::IndexedShard;

/// These columns over all shards.
pub(crate) struct ShardColumns<'a> {
    shards: &'a [IndexedShard],
    has_times: bool,
    changes: FileChanges,
    paths: ArrayRef,
    /// The distinct ETags, sorted.
    tags: ArrayRef,
    /// The number of each shard's ETag.
    tag_numbers: Vec<Option<i32>>,
}

impl<'a> ShardColumns<'a> {
    pub(crate) fn of(shards: &'a [IndexedShard], head: CatalogHeader<'_>) -> Result<Self, ArrowError> {
        let mut tags: Vec<&str> = shards.iter().filter_map(|shard| etag(&shard.object)).collect();
        tags.sort_unstable();
        tags.dedup();
        let number = |shard: &IndexedShard| Some(tags.binary_search(&etag(&shard.object)?).ok()? as i32);
        Ok(Self {
            shards,
            has_times: shards.iter().any(|shard| modified(&shard.object).is_some()),
            changes: FileChanges::of(shards.iter().map(|shard| &shard.object), head),
            paths: Arc::new(strings(shards.iter().map(|shard| &*shard.object.path))?),
            tag_numbers: shards.iter().map(number).collect(),
            tags: Arc::new(strings(tags.iter().copied())?),
        })
    }

    /// The column of paths.
    pub(crate) fn object_field() -> Field {
        Field::new_dictionary("object", DataType::Int32, DataType::Utf8, false)
    }

    /// The columns of versions, as far as shards have them.
    pub(crate) fn version_fields(&self) -> [Option<Field>; 3] {
        let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
        [
            self.has_times.then(|| Field::new("modified", time, true)),
            self.changes.field(),
            self.has_tags().then(|| Field::new_dictionary("etag", DataType::Int32, DataType::Utf8, true)),
        ]
    }

    /// Its entries of the shards' last changes.
    pub(crate) fn changes(&self) -> FileChanges {
        self.changes
    }

    fn has_tags(&self) -> bool {
        !self.tags.is_empty()
    }

    /// The paths of rows of these shards, by number.
    pub(crate) fn objects(&self, rows: impl Iterator<Item = usize>) -> Result<ArrayRef, ArrowError> {
        let numbers = Int32Array::from_iter_values(rows.map(|shard| shard as i32));
        Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(numbers, Arc::clone(&self.paths))?))
    }

    /// The versions of rows of these shards, by number: a column for each of
    /// [`version_fields`](Self::version_fields).
    pub(crate) fn versions(
        &self,
        rows: impl Iterator<Item = usize> + Clone,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let mut columns: Vec<ArrayRef> = Vec::new();
        if self.has_times {
            let times: TimestampNanosecondArray =
                rows.clone().map(|shard| modified(&self.shards[shard].object)).collect();
            columns.push(Arc::new(times.with_timezone("UTC")));
        }
        columns.extend(self.changes.column(rows.clone().map(|shard| &self.shards[shard].object)));
        if self.has_tags() {
            let numbers: Int32Array = rows.map(|shard| self.tag_numbers[shard]).collect();
            columns.push(Arc::new(DictionaryArray::<Int32Type>::try_new(numbers, Arc::clone(&self.tags))?));
        }
        Ok(columns)
    }
}

/// A column of texts. Its ends are 31-bit numbers, but the length of a shard's names is unlimited.
pub(crate) fn strings<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Result<StringArray, ArrowError> {
    let length = texts.clone().try_fold(0usize, |sum, text| sum.checked_add(text.len()));
    if length.is_none_or(|length| i32::try_from(length).is_err()) {
        let why =
            format!("the names of {ROWS} samples exceed 2 GiB; exclude the shards that have such names");
        return Err(ArrowError::InvalidArgumentError(why));
    }
    Ok(StringArray::from_iter_values(texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_two_gib_are_an_error() {
        let name = "n".repeat(1 << 20);
        let error = strings(std::iter::repeat_n(&*name, 2048)).unwrap_err();
        assert!(error.to_string().contains("2 GiB"), "{error}");
        assert_eq!(strings(std::iter::repeat_n("ab", 3)).unwrap().value(2), "ab");
    }
}
