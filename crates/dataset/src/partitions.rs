//! Labels in the names of directories: `label=3/part-0.parquet`, as Spark and Hive partition
//! tables.
//!
//! The column of a partition is not in the files. Readers of tables add it, and so does the index
//! for the column with the labels. Values are integers if all of them are, else texts.

use std::sync::Arc;

use foreread_formats::{ColumnValues, ValueColumn};
use foreread_types::setting;

use crate::IndexOptions;
use crate::packed::IndexedShard;
use crate::values::LABEL;

/// The names of columns with labels, as parsers of tables know them.
const NAMES: [&str; 5] = ["label", "labels", "target", "class", "cls"];

/// What Hive writes for a missing value.
const MISSING: &str = "__HIVE_DEFAULT_PARTITION__";

/// Adds the labels of partitions to the samples of shards. A column in one of the files precedes
/// them.
pub(crate) fn add_labels(base_url: &str, options: &IndexOptions, shards: &mut [IndexedShard]) {
    let has_labels = |shard: &IndexedShard| {
        shard.rows.computed() > 0 || shard.rows.extra().values.iter().any(|column| column.name == LABEL)
    };
    let labels: Option<Vec<String>> = shards.iter().map(|shard| label(&shard.object.path)).collect();
    let Some(labels) = labels.filter(|_| !shards.iter().any(has_labels)) else { return };
    let numbers: Option<Vec<Option<i64>>> = (labels.iter())
        .map(|label| if label == MISSING { Some(None) } else { label.parse().ok().map(Some) })
        .collect();
    // The user's classes are texts, also if these are digits.
    let numbers = numbers.filter(|_| options.classes.is_none());
    if numbers.is_some() && options.is_selected() {
        tracing::warn!(
            "{base_url}: the labels of the selected partitions are integers; if other partitions have \
             texts, set {} to all of them, for the numbers of the whole dataset",
            setting("classes")
        );
    }
    for (at, shard) in shards.iter_mut().enumerate() {
        let count = shard.rows.rows();
        let values = match &numbers {
            Some(numbers) => ColumnValues::Integers(vec![numbers[at]; count]),
            None => {
                let text: Option<Arc<str>> = (labels[at] != MISSING).then(|| labels[at].as_str().into());
                ColumnValues::Texts(vec![text; count])
            }
        };
        let mut extra = shard.rows.extra().clone();
        extra.values.push(ValueColumn { name: LABEL.to_owned(), values });
        shard.rows = std::mem::take(&mut shard.rows).with_extra(extra);
    }
}

/// The label in the directories of a path.
fn label(path: &str) -> Option<String> {
    let (directories, _) = path.rsplit_once('/')?;
    let (_, value) = directories
        .split('/')
        .filter_map(|directory| directory.split_once('='))
        .find(|(name, _)| NAMES.contains(name))?;
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
    use foreread_tier::Object;

    use super::*;
    use crate::packed::{FormatColumns, SampleRows};

    fn labels(paths: &[&str]) -> Vec<Option<ColumnValues>> {
        let shard = |path: &&str| {
            let mut rows = SampleRows::new(FormatColumns::default());
            rows.push("", 0, 10, 0);
            let object = Object { path: (*path).into(), size: 10, version: None };
            IndexedShard { object, rows, skipped: 0 }
        };
        let mut shards: Vec<IndexedShard> = paths.iter().map(shard).collect();
        add_labels("", &IndexOptions::default(), &mut shards);
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
}
