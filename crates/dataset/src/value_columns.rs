//! The columns of values in one batch of a catalog, in memory.
//!
//! They are read where their sample is used, so no read of a sample waits for them.

use std::sync::Arc;

use crate::batch_layout::{ValueKind, ValueLayout, validity};
use crate::catalog_file::{CatalogFault, corrupt};
use crate::columns::{NullableIntegers, PackedIntegers};

/// A value as the catalog stores it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StoredValue<'a> {
    Integer(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// The values of one column.
#[derive(Debug)]
pub(crate) enum ValueRows {
    Integers(NullableIntegers),
    /// The bits of each number.
    Floats(NullableIntegers),
    /// The number of each text among the column's.
    Texts(NullableIntegers, Arc<[Arc<str>]>),
    /// The length of each value, and all of them.
    Bytes(usize, Box<[u8]>),
}

impl ValueRows {
    /// Decodes a column of `rows` rows.
    pub(crate) fn decode(
        layout: &ValueLayout,
        texts: Option<&Arc<[Arc<str>]>>,
        bytes: &[u8],
        rows: usize,
    ) -> Result<Self, CatalogFault> {
        let wide = || -> Result<NullableIntegers, CatalogFault> {
            let values = layout.numbers.values(bytes, rows)?.iter().map(|value| u64::from_le_bytes(*value));
            let validity = validity(bytes, layout.numbers.validity, rows)?;
            Ok(NullableIntegers::new(validity, PackedIntegers::of(&values.collect::<Vec<_>>())))
        };
        Ok(match layout.kind {
            ValueKind::Integer => Self::Integers(wide()?),
            ValueKind::Float => Self::Floats(wide()?),
            ValueKind::Text => {
                let texts = texts.ok_or_else(|| corrupt("a column lacks its texts"))?;
                let validity = validity(bytes, layout.numbers.validity, rows)?;
                let numbers = layout.numbers.values(bytes, rows)?.iter();
                // An absent value may have any number.
                let numbers = numbers.map(|number| u64::from(u32::from_le_bytes(*number)));
                let numbers =
                    NullableIntegers::new(validity, PackedIntegers::of(&numbers.collect::<Vec<_>>()));
                Self::Texts(numbers, Arc::clone(texts))
            }
            ValueKind::Bytes(width) => Self::Bytes(width, layout.numbers.raw(bytes, rows, width)?.into()),
        })
    }

    /// The value of an existing row.
    pub(crate) fn get(&self, row: usize) -> Option<StoredValue<'_>> {
        match self {
            Self::Integers(values) => values.get(row).map(|value| StoredValue::Integer(value.cast_signed())),
            Self::Floats(values) => values.get(row).map(|bits| StoredValue::Float(f64::from_bits(bits))),
            Self::Texts(numbers, texts) => numbers
                .get(row)
                .and_then(|number| texts.get(number as usize))
                .map(|text| StoredValue::Text(text)),
            Self::Bytes(width, bytes) => bytes.get(row * width..(row + 1) * width).map(StoredValue::Bytes),
        }
    }
}
