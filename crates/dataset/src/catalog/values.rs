//! The data of samples in a catalog in addition to their bytes: labels, classes, values and types.

use std::sync::Arc;

use foreread_formats::ArrayType;
use foreread_types::SampleId;

use crate::catalog_file::column_names::LABEL;
use crate::catalog_file::columns::values::StoredValue;
use crate::catalog_file::keys::{LABEL_COLUMN_KEY, SUMMARY_KEY};
use crate::sample_value::SampleValue;
use crate::{Catalog, DatasetError};

impl Catalog {
    /// A sample's label: the first directory of its path. `None` for a file at the top, and if
    /// there is no such sample.
    pub fn label(&self, id: SampleId) -> Option<&str> {
        self.labels().get(self.label_index(id)? as usize).map(|label| &**label)
    }

    /// The position of a sample's label in [`labels`](Self::labels).
    pub fn label_index(&self, id: SampleId) -> Option<u32> {
        self.image().label(self.number_or_none(id))
    }

    /// The names of the values that samples have, beyond a [`label`](Self::label) that is a text.
    /// Some formats have them: the columns of a table, the labels next to an array.
    pub fn value_names(&self) -> &[String] {
        self.image().value_names()
    }

    /// A sample's value of this name. `None` if it has none. Texts of a table may be read from the
    /// catalog's file.
    ///
    /// # Errors
    /// [`Io`](crate::DatasetErrorKind::Io) or [`Changed`](crate::DatasetErrorKind::Changed) if the
    /// catalog's file is no longer readable or was overwritten.
    pub fn value(&self, id: SampleId, name: &str) -> Result<Option<SampleValue<'_>>, DatasetError> {
        let Some(column) = self.value_names().iter().position(|known| known == name) else {
            return match self.label_column() == Some(name) {
                true => self.label_value(id),
                false => Ok(None),
            };
        };
        let stored =
            self.image().value(self.number_or_none(id), column).map_err(|fault| self.failed(id, fault))?;
        let typed = |stored| {
            Some(match stored {
                StoredValue::Integer(value) => SampleValue::Integer(value),
                StoredValue::Float(value) => SampleValue::Float(value),
                StoredValue::Text(text) => SampleValue::Text(text),
                StoredValue::Bytes(bytes) => SampleValue::Array(self.array_types().of_column(name)?, bytes),
            })
        };
        Ok(stored.and_then(typed))
    }

    /// The column of a table that has the labels.
    pub fn label_column(&self) -> Option<&str> {
        self.image().metadata(LABEL_COLUMN_KEY)
    }

    /// A label as the table has it: the name of the class, or a value.
    fn label_value(&self, id: SampleId) -> Result<Option<SampleValue<'_>>, DatasetError> {
        match self.label(id) {
            Some(name) => Ok(Some(SampleValue::Text(name.into()))),
            None if self.label_column() == Some(LABEL) => Ok(None),
            None => self.value(id, LABEL),
        }
    }

    /// The type of the samples' bytes, if their format knows it: rows of arrays, windows of tokens.
    pub fn array(&self) -> Option<&ArrayType> {
        self.array_types().of_samples()
    }

    /// The type of the field of this name, if the format knows it: one of several datasets.
    pub fn field_array(&self, name: &str) -> Option<&ArrayType> {
        self.array_types().of_field(name)
    }

    /// The findings of the index in the first shard, in one line. `None` for formats without a
    /// choice.
    pub fn summary(&self) -> Option<&str> {
        self.image().metadata(SUMMARY_KEY)
    }

    /// The names of all classes, also of those without samples. A label's index is its class. Those
    /// of directories are sorted as bytes, as `ImageFolder` numbers them (`class_to_idx`). The
    /// user's ([`IndexOptions::classes`](crate::IndexOptions::classes)) are in the user's order.
    pub fn labels(&self) -> &[Arc<str>] {
        self.image().labels()
    }
}
