//! The types of arrays in a catalog: those of samples, of columns of values and of fields.
//!
//! They are JSON in the metadata. So a column has one type, and no row repeats it.

use std::collections::BTreeMap;

use foreread_formats::ArrayType;

/// The name under which the type of the samples' own bytes is stored.
pub(crate) const SAMPLE: &str = "";

/// Types of arrays by column, as the catalog's metadata has them. `None` if there are none.
pub(crate) fn arrays_text(arrays: &BTreeMap<&str, &ArrayType>) -> Option<String> {
    (!arrays.is_empty()).then(|| serde_json::to_string(arrays).ok()).flatten()
}

/// The types of arrays in a catalog.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ArrayTypes {
    values: BTreeMap<String, ArrayType>,
    fields: BTreeMap<String, ArrayType>,
}

impl ArrayTypes {
    /// Parses the text of an index.
    pub(crate) fn parse(values: Option<&str>, fields: Option<&str>) -> Option<Self> {
        let parse = |text: Option<&str>| match text {
            None => Some(BTreeMap::new()),
            Some(text) => serde_json::from_str(text).ok(),
        };
        Some(Self { values: parse(values)?, fields: parse(fields)? })
    }

    /// The type of the samples' own bytes.
    pub(crate) fn of_samples(&self) -> Option<&ArrayType> {
        self.values.get(SAMPLE)
    }

    /// The type of a column's values.
    pub(crate) fn of_column(&self, name: &str) -> Option<&ArrayType> {
        self.values.get(name)
    }

    /// The type of a field.
    pub(crate) fn of_field(&self, name: &str) -> Option<&ArrayType> {
        self.fields.get(name)
    }
}
