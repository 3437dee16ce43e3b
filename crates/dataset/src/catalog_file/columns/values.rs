//! The columns of values in one batch of a catalog, in memory.
//!
//! They are read where their sample is used, so no read of a sample waits for them. Texts of which
//! there are many stay in the catalog's file, as paths do.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::catalog_file::columns::integers::{NullableIntegers, PackedIntegers};
use crate::catalog_file::columns::shared_numbers::PackedColumns;
use crate::catalog_file::columns::texts::{TextRows, decode_texts};
use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::layout::column::validity;
use crate::catalog_file::layout::values::{ValueKind, ValueLayout, ValuesLayout};
use crate::catalog_file::source::CatalogBytes;

/// A value as the catalog stores it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoredValue<'a> {
    Integer(i64),
    Float(f64),
    Text(Cow<'a, str>),
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
    /// Texts in the catalog's file.
    LongTexts(TextRows),
    /// The length of each value, and all of them.
    Bytes(usize, Bytes),
}

impl ValueRows {
    /// Decodes a column of `rows` rows of the batch at offset `start` of the catalog.
    pub(crate) fn decode(
        layout: &ValueLayout,
        texts: Option<&Arc<[Arc<str>]>>,
        bytes: &[u8],
        start: u64,
        rows: usize,
    ) -> Result<Self, CatalogFault> {
        let numbers = match &layout.column {
            ValuesLayout::Numbers(numbers) => numbers,
            ValuesLayout::Texts(column) => {
                return decode_texts(column, bytes, start, rows).map(Self::LongTexts);
            }
        };
        let wide = || -> Result<NullableIntegers, CatalogFault> {
            let values = numbers.values(bytes, rows)?.iter().map(|value| u64::from_le_bytes(*value));
            let validity = validity(bytes, numbers.validity, rows)?;
            Ok(NullableIntegers::new(validity, PackedIntegers::of(&values.collect::<Vec<_>>())))
        };
        Ok(match layout.kind {
            ValueKind::Integer => Self::Integers(wide()?),
            ValueKind::Float => Self::Floats(wide()?),
            ValueKind::Text => {
                let texts = texts.ok_or_else(|| corrupt("a column lacks its texts"))?;
                let validity = validity(bytes, numbers.validity, rows)?;
                let of_row = numbers.values(bytes, rows)?.iter();
                // An absent value may have any number.
                let of_row = of_row.map(|number| u64::from(u32::from_le_bytes(*number)));
                let of_row = NullableIntegers::new(validity, PackedIntegers::of(&of_row.collect::<Vec<_>>()));
                Self::Texts(of_row, Arc::clone(texts))
            }
            ValueKind::LongText => return Err(corrupt("a column lacks its texts")),
            ValueKind::Bytes(width) => {
                Self::Bytes(width, Bytes::copy_from_slice(numbers.raw(bytes, rows, width)?))
            }
        })
    }

    /// The value of an existing row.
    pub(crate) fn get<'a>(
        &'a self,
        source: &'a CatalogBytes,
        row: usize,
    ) -> Result<Option<StoredValue<'a>>, CatalogFault> {
        Ok(match self {
            Self::Integers(values) => values.get(row).map(|value| StoredValue::Integer(value.cast_signed())),
            Self::Floats(values) => values.get(row).map(|bits| StoredValue::Float(f64::from_bits(bits))),
            Self::Texts(numbers, texts) => numbers
                .get(row)
                .and_then(|number| texts.get(number as usize))
                .map(|text| StoredValue::Text(Cow::Borrowed(text))),
            Self::LongTexts(texts) => texts.get(source, row)?.map(StoredValue::Text),
            Self::Bytes(width, bytes) => bytes.get(row * width..(row + 1) * width).map(StoredValue::Bytes),
        })
    }
}

impl PackedColumns for ValueRows {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        match self {
            Self::Integers(numbers) | Self::Floats(numbers) | Self::Texts(numbers, _) => {
                numbers.each_column(visit);
            }
            Self::LongTexts(texts) => texts.each_column(visit),
            Self::Bytes(_, bytes) => visit(bytes),
        }
    }
}
