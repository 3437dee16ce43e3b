//! The rows of a table as samples.

use std::collections::{BTreeSet, HashMap};

use arrow_array::{Array, BooleanArray, Int32Array, LargeStringArray, UInt64Array};
use foreread_dataset::{DatasetError, TableLabel, TableRows};
use foreread_types::setting;

use crate::column::{self, Column};
use crate::options::{LABEL, columns, filters};
use crate::read::{SampleTable, path_names};
use crate::{TableOptions, filter};

/// The rows that a message names.
const NAMED: usize = 5;

impl SampleTable {
    /// The rows that `options` select, as samples.
    ///
    /// # Errors
    /// [`Invalid`](foreread_dataset::DatasetErrorKind::Invalid) for missing columns, columns of
    /// types that catalogs do not have, rows without a label, and classes that lack a label.
    pub fn rows(&self, options: &TableOptions) -> Result<TableRows, DatasetError> {
        let paths = path_names(self.name(), self.names(), options)?;
        let path_setting = setting("path").to_string();
        let unusable =
            |name: &str, why: String| self.invalid(format!("the column {name:?} cannot be used: {why}"));
        let texts = |name: &str, what: &str| {
            column::texts(self.array(name, what)?).map_err(|why| unusable(name, why))
        };
        let counts = |name: &str, what: &str| {
            column::counts(self.array(name, what)?).map_err(|why| unusable(name, why))
        };
        let files = paths.iter().map(|path| texts(path, &path_setting));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let mut rows = match options.fields.is_empty() {
            true => files.into_iter().map(|paths| TableRows::new(self.name(), paths)).next(),
            false => {
                self.refuse_parts(options)?;
                let fields = options.fields.iter().map(|(name, _)| name.clone()).zip(files);
                Some(TableRows::of_fields(self.name(), fields))
            }
        }
        .ok_or_else(|| self.invalid("it has no column with files"))?;
        if let Some(size) = &options.size {
            rows = rows.with_sizes(counts(size, &setting("size").to_string())?);
        }
        if let Some(etag) = &options.etag {
            if options.size.is_none() {
                let (etag, size) = (setting("etag"), setting("size"));
                return Err(self.invalid(format!("{etag} needs {size}: the column with the files' lengths")));
            }
            rows = rows.with_tags(texts(etag, &setting("etag").to_string())?);
        }
        if options.start.is_some() || options.length.is_some() {
            let part = |name: &Option<String>, what: &str| match name {
                Some(name) => counts(name, &setting(what).to_string()),
                None => Ok(UInt64Array::new_null(self.len())),
            };
            rows = rows.with_parts(part(&options.start, "start")?, part(&options.length, "length")?);
        }
        let mask = filter::mask(self, &options.filters)?;
        if let Some(label) = self.label_column(options)? {
            rows = rows.with_label(self.label(label, options, mask.as_ref())?).with_label_column(label);
        }
        for name in self.value_columns(&paths, options) {
            self.check_value(name, options)?;
            let column =
                self.column(name, &columns().to_string()).map_err(|error| match options.columns {
                    Some(_) => error,
                    None => {
                        DatasetError::new(error.kind(), format!("{error}; choose others with {}", columns()))
                    }
                })?;
            rows = rows.with_values(name, column.into_table());
        }
        match mask {
            Some(mask) => rows.filtered(&mask),
            None => Ok(rows),
        }
    }

    /// Refuses names of values that stand for something else.
    fn check_value(&self, name: &str, options: &TableOptions) -> Result<(), DatasetError> {
        let columns = columns();
        match name {
            "" => {
                let why = format!("a column has no name; name it, or choose others with {columns}");
                Err(self.invalid(why))
            }
            "label" if self.label_name(options).is_some_and(|label| label != name) => {
                Err(self.invalid(format!(
                    "the column \"label\" is a value, and {} names another one; rename it, or leave it out \
                 with {columns}",
                    setting("label")
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses columns that samples of several files do not have.
    fn refuse_parts(&self, options: &TableOptions) -> Result<(), DatasetError> {
        let columns = [("size", &options.size), ("etag", &options.etag), ("start", &options.start)];
        let given = columns.into_iter().chain([("length", &options.length)]);
        match given.into_iter().find(|(_, column)| column.is_some()) {
            Some((name, _)) => {
                let name = setting(name);
                Err(self.invalid(format!("{name} is of one file, and samples have several; leave it out")))
            }
            None => Ok(()),
        }
    }

    /// The columns that samples have as values.
    fn value_columns<'a>(&'a self, paths: &[String], options: &'a TableOptions) -> Vec<&'a str> {
        if let Some(columns) = &options.columns {
            return columns.iter().map(String::as_str).collect();
        }
        let [size, etag, start, length] =
            [&options.size, &options.etag, &options.start, &options.length].map(|used| used.as_deref());
        let used = [self.label_name(options), size, etag, start, length];
        let is_path = |name: &str| paths.iter().any(|path| path == name);
        let is_used = |name: &&str| is_path(name) || used.contains(&Some(*name));
        let is_unwanted = |name: &str| name == LABEL && options.wants_no_labels();
        self.columns().filter(|name| !is_used(name) && !is_unwanted(name)).collect()
    }

    /// The column with the labels: the named column, or the column `label`. None if the list of
    /// classes is empty.
    fn label_name<'a>(&self, options: &'a TableOptions) -> Option<&'a str> {
        let usual = || self.columns().any(|name| name == LABEL).then_some(LABEL);
        options.label.as_deref().or_else(|| usual().filter(|_| !options.wants_no_labels()))
    }

    /// The same, unless the user wants none.
    fn label_column<'a>(&self, options: &'a TableOptions) -> Result<Option<&'a str>, DatasetError> {
        if options.wants_no_labels() {
            return Ok(None);
        }
        let found = self.label_name(options);
        match (&options.classes, found) {
            (Some(_), None) => Err(self.invalid(format!(
                "{} needs {}: the column with the labels",
                setting("classes"),
                setting("label")
            ))),
            _ => Ok(found),
        }
    }

    /// The error for a column of integers and texts. A typing error would give all rows other
    /// numbers.
    fn check_mixed(&self, name: &str, texts: &LargeStringArray) -> Result<(), DatasetError> {
        let is_integer = |text: &str| text.parse::<i64>().is_ok();
        let integers = texts.iter().flatten().filter(|text| is_integer(text)).count();
        let other = texts.iter().position(|text| text.is_some_and(|text| !is_integer(text)));
        let Some(row) = other.filter(|_| self.is_untyped() && integers > 0) else { return Ok(()) };
        Err(self.invalid(format!(
            "the labels in the column {name:?} are integers in {integers} of {} rows, and {:?} in row {}; \
             correct them, or name all classes with {}, as texts",
            self.len(),
            texts.value(row),
            row + 1,
            setting("classes")
        )))
    }

    /// The labels of all rows. Rows that `mask` leaves out may lack one.
    fn label(
        &self,
        name: &str,
        options: &TableOptions,
        mask: Option<&BooleanArray>,
    ) -> Result<TableLabel, DatasetError> {
        let column = self.column(name, &setting("label").to_string())?;
        // A list of classes means texts, also if they are digits.
        let column = match (&options.classes, column) {
            (Some(_), Column::Integers(_) | Column::Floats(_)) if self.is_untyped() => {
                let texts = column::texts(self.array(name, "")?);
                Column::Texts(texts.map_err(|why| self.invalid(why))?)
            }
            (_, column) => column,
        };
        let is_wanted = |row: &usize| mask.is_none_or(|mask| mask.value(*row));
        let is_missing = |row: &usize| match &column {
            Column::Floats(array) => array.is_null(*row) || array.value(*row).is_nan(),
            column => column.array().is_null(*row),
        };
        let missing: Vec<usize> = (0..self.len()).filter(|row| is_wanted(row) && is_missing(row)).collect();
        if !missing.is_empty() {
            let which: Vec<String> =
                missing.iter().take(NAMED).map(|row| format!("row {}", row + 1)).collect();
            return Err(self.invalid(format!(
                "{} of {} rows have no label in the column {name:?}: {}; correct them, or choose rows \
                 with {}",
                missing.len(),
                self.len(),
                which.join(", "),
                filters()
            )));
        }
        match column {
            Column::Texts(texts) => {
                if options.classes.is_none() {
                    self.check_mixed(name, &texts)?;
                }
                let found: BTreeSet<&str> = texts.iter().flatten().collect();
                let names: Vec<String> = match &options.classes {
                    Some(given) => given.clone(),
                    None => found.iter().map(|name| (*name).to_owned()).collect(),
                };
                let numbers: HashMap<&str, i32> = names.iter().map(String::as_str).zip(0..).collect();
                self.check_classes(&names, &numbers, &found)?;
                let of_row = texts.iter().map(|text| text.and_then(|text| numbers.get(text).copied()));
                let of_row: Int32Array = of_row.collect();
                Ok(TableLabel::Classes(names, of_row))
            }
            _ if options.classes.is_some() => {
                let classes = setting("classes");
                Err(self.invalid(format!(
                    "{classes} has no effect: the column {name:?} has {} and no texts; leave it out",
                    column.kind()
                )))
            }
            column => Ok(TableLabel::Values(column.into_table())),
        }
    }

    /// Checks that classes are named once, and that labels are among them.
    fn check_classes(
        &self,
        names: &[String],
        numbers: &HashMap<&str, i32>,
        found: &BTreeSet<&str>,
    ) -> Result<(), DatasetError> {
        let classes = setting("classes");
        if numbers.len() < names.len() {
            return Err(self.invalid(format!("{classes} has a name twice; name each class once")));
        }
        let unknown: Vec<&str> = found.iter().copied().filter(|name| !numbers.contains_key(name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let some: Vec<&str> = unknown.iter().take(NAMED).copied().collect();
        Err(self.invalid(format!(
            "{classes} lacks {} of the labels: {}; add them",
            unknown.len(),
            some.join(", ")
        )))
    }
}
