//! Which columns and rows of a table become samples.

use std::collections::BTreeSet;

use foreread_types::{Interface, SettingName, setting};
use serde::{Deserialize, Serialize};

use crate::Filter;

/// The names that the column of paths has, if none is named. `file_name` is Hugging Face's.
pub(crate) const PATHS: [&str; 6] = ["file_name", "path", "file", "filename", "filepath", "key"];

/// The name of a column with labels, which needs no setting.
pub(crate) const LABEL: &str = "label";

/// The columns and the rows of a table that become samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TableOptions {
    /// The column with each sample's file. `None`: the only column with the name `file_name`,
    /// `path`, `file`, `filename`, `filepath` or `key`.
    pub path: Option<String>,
    /// Samples of several files: the names of their fields, and the columns with the files. Then
    /// [`path`](Self::path) is not used.
    pub fields: Vec<(String, String)>,
    /// The column with the labels. Texts are classes. `None`: the column `label`, if it exists.
    pub label: Option<String>,
    /// The columns that samples have as values. `None`: all others.
    pub columns: Option<Vec<String>>,
    /// The rows that are wanted: all filters of one of these lists hold, as in pyarrow. All rows if
    /// it is empty.
    pub filters: Vec<Vec<Filter>>,
    /// The names of all classes in the order of their numbers. `None`: the texts of the whole
    /// column of labels, sorted as bytes, whichever rows are wanted.
    pub classes: Option<Vec<String>>,
    /// The column with the length of each file in bytes.
    pub size: Option<String>,
    /// The column with the ETag of each file.
    pub etag: Option<String>,
    /// The column with the first byte of each sample in its file.
    pub start: Option<String>,
    /// The column with the length of each sample in bytes.
    pub length: Option<String>,
}

impl TableOptions {
    /// The columns that are read. `None`: all.
    pub(crate) fn wanted(&self, paths: &[String]) -> Option<BTreeSet<String>> {
        let columns = self.columns.as_ref()?;
        let named = [&self.label, &self.size, &self.etag, &self.start, &self.length];
        let filters = self.filters.iter().flatten().map(|filter| filter.column.clone());
        // Unless another column is named, one of this name has the labels.
        let label = self.label.is_none().then(|| LABEL.to_owned());
        let named = named.into_iter().flatten().chain(columns).cloned().chain(label);
        Some(named.chain(filters).chain(paths.iter().cloned()).collect())
    }

    /// Whether samples are to have no labels.
    pub(crate) fn wants_no_labels(&self) -> bool {
        self.classes.as_ref().is_some_and(Vec::is_empty)
    }
}

/// The setting that chooses rows, in the words of the user's interface.
pub(crate) fn filters() -> SettingName<'static> {
    setting(if Interface::current() == Interface::Command { "filter" } else { "filters" })
}

/// The setting that chooses columns of values.
pub(crate) fn columns() -> SettingName<'static> {
    setting(if Interface::current() == Interface::Command { "column" } else { "columns" })
}
