//! Values in the names of directories: `label=3/part-0.parquet`, as Spark and Hive partition
//! tables.
//!
//! The column of a partition is not in the files. Readers of tables add it, and so does the index
//! for the column with the labels and for requested columns. Values are integers if all of them
//! are, else texts.

use std::sync::Arc;

use foreread_formats::{ColumnValues, ValueColumn};
use foreread_tier::Object;
use foreread_types::setting;

use crate::catalog_file::column_names::LABEL;
use crate::packed::IndexedShard;
use crate::{FormatOptions, IndexOptions};

/// The names of columns with labels, as parsers of tables know them.
const NAMES: [&str; 5] = ["label", "labels", "target", "class", "cls"];

/// Hive's text for a missing value.
const MISSING: &str = "__HIVE_DEFAULT_PARTITION__";

/// The choices with the columns that are in the files. No file has the columns that are partitions
/// of all of these shards.
pub(crate) fn in_files(choices: &FormatOptions, shards: &[Object]) -> FormatOptions {
    let mut rest = choices.clone();
    rest.label.take_if(|label| are_partitions(label, shards));
    rest.columns.retain(|column| !are_partitions(column, shards));
    rest
}

/// Whether all shards are in a partition of this column.
fn are_partitions(name: &str, shards: &[Object]) -> bool {
    shards.iter().all(|shard| value(&shard.path, &[name]).is_some())
}

/// Adds the values of partitions to the samples of shards: labels, and the requested columns.
/// `rest` are the columns that were [looked for in the files](in_files).
pub(crate) fn add_values(
    base_url: &str,
    options: &IndexOptions,
    rest: &FormatOptions,
    shards: &mut [IndexedShard],
) {
    let FormatOptions { label, columns, .. } = &options.format_options;
    match label {
        Some(label) if rest.label.is_none() => {
            // Another column may have been taken for labels.
            for shard in shards.iter_mut() {
                let mut extra = shard.rows.extra().clone();
                extra.values.retain(|column| column.name != LABEL);
                shard.rows = std::mem::take(&mut shard.rows).with_extra(extra);
                shard.rows.expand();
            }
            add_labels(base_url, options, &[label], shards);
        }
        Some(_) => {}
        None => {
            let has_labels = |shard: &IndexedShard| {
                shard.rows.computed() > 0
                    || shard.rows.extra().values.iter().any(|column| column.name == LABEL)
            };
            // A column in one of the files precedes them.
            if !shards.iter().any(has_labels) {
                add_labels(base_url, options, &NAMES, shards);
            }
        }
    }
    for name in columns.iter().filter(|name| !rest.columns.contains(name)) {
        if let Some(texts) = values(shards, &[name]) {
            add_column(name, &texts, true, shards);
        }
    }
}

/// The values of the first of these columns in the path of each shard, if all have one.
fn values(shards: &[IndexedShard], names: &[&str]) -> Option<Vec<String>> {
    shards.iter().map(|shard| value(&shard.object.path, names)).collect()
}

/// Adds the labels of partitions, if all shards are in one.
fn add_labels(base_url: &str, options: &IndexOptions, names: &[&str], shards: &mut [IndexedShard]) {
    let Some(labels) = values(shards, names) else { return };
    // The user's classes are texts, also if these are digits.
    let are_integers = add_column(LABEL, &labels, options.classes.is_none(), shards);
    if are_integers && options.is_selected() {
        tracing::warn!(
            "{base_url}: the labels of the selected partitions are integers; if other partitions have \
             texts, set {} to all of them, for the numbers of the whole dataset",
            setting("classes")
        );
    }
}

/// Adds a column with one text for each shard. Returns whether they are integers, which they are
/// only with `may_be_integers`.
fn add_column(name: &str, texts: &[String], may_be_integers: bool, shards: &mut [IndexedShard]) -> bool {
    let integer = |text: &String| if text == MISSING { Some(None) } else { text.parse().ok().map(Some) };
    let numbers: Option<Vec<Option<i64>>> = texts.iter().map(integer).collect();
    let numbers = numbers.filter(|_| may_be_integers);
    for (at, shard) in shards.iter_mut().enumerate() {
        let count = shard.rows.rows();
        let values = match &numbers {
            Some(numbers) => ColumnValues::Integers(vec![numbers[at]; count]),
            None => {
                let text: Option<Arc<str>> = (texts[at] != MISSING).then(|| texts[at].as_str().into());
                ColumnValues::Texts(vec![text; count])
            }
        };
        let mut extra = shard.rows.extra().clone();
        extra.values.push(ValueColumn { name: name.to_owned(), values });
        shard.rows = std::mem::take(&mut shard.rows).with_extra(extra);
    }
    numbers.is_some()
}

/// The value of the first of these columns in the directories of a path.
fn value(path: &str, names: &[&str]) -> Option<String> {
    let (directories, _) = path.rsplit_once('/')?;
    let (_, value) = directories
        .split('/')
        .filter_map(|directory| directory.split_once('='))
        .find(|(name, _)| names.contains(name))?;
    unescaped(value)
}

/// A text without the escapes of special characters, `%20`.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped =
            digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &more[2..] } else { more };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::{FormatColumns, SampleRows};

    fn labels(paths: &[&str]) -> Vec<Option<ColumnValues>> {
        values(paths, &IndexOptions::default())
    }

    /// The values of the first column that is added.
    fn values(paths: &[&str], options: &IndexOptions) -> Vec<Option<ColumnValues>> {
        let shard = |path: &&str| {
            let mut rows = SampleRows::new(FormatColumns::default());
            rows.push("", 0, 10, 0);
            let object = Object { path: (*path).into(), size: 10, version: None };
            IndexedShard { object, rows, skipped: 0 }
        };
        let mut shards: Vec<IndexedShard> = paths.iter().map(shard).collect();
        let objects: Vec<Object> = shards.iter().map(|shard| shard.object.clone()).collect();
        let rest = in_files(&options.format_options, &objects);
        add_values("", options, &rest, &mut shards);
        shards.iter().map(|shard| Some(shard.rows.extra().values.first()?.values.clone())).collect()
    }

    #[test]
    // semantics: FORMAT-2
    fn partition_of_the_label_is_the_label() {
        let integer = |value| Some(ColumnValues::Integers(vec![value]));
        let missing = "label=__HIVE_DEFAULT_PARTITION__/x";
        assert_eq!(
            labels(&["label=3/x", "day=1/label=-4/x", missing]),
            [integer(Some(3)), integer(Some(-4)), integer(None)]
        );
        let text = |value: &str| Some(ColumnValues::Texts(vec![Some(value.into())]));
        assert_eq!(labels(&["class=a%20b/x", "class=7/x"]), [text("a b"), text("7")]);
        assert_eq!(labels(&["label=3/x", "x"]), [None, None]);
        assert_eq!(labels(&["day=3/x"]), [None]);
    }

    #[test]
    // semantics: FORMAT-2
    fn requested_columns_may_be_partitions() {
        let text = |value: &str| Some(ColumnValues::Texts(vec![Some(value.into())]));
        let mut options = IndexOptions::default();
        options.format_options.columns = vec!["day".to_owned()];
        assert_eq!(values(&["day=3/a", "day=x%3A/b"], &options), [text("3"), text("x:")]);
        assert_eq!(values(&["day=3/a", "b"], &options), [None, None]);
        options.format_options.columns.clear();
        options.format_options.label = Some("day".to_owned());
        let integer = |value| Some(ColumnValues::Integers(vec![Some(value)]));
        assert_eq!(values(&["label=1/day=3/a", "label=1/day=4/b"], &options), [integer(3), integer(4)]);
    }
}
