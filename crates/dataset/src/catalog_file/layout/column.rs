//! The positions of one column's values in a batch of a catalog file.
//!
//! A column refers to the bytes of its batch, and each read of it checks the bounds once more.

use std::ops::Range;

use crate::catalog_file::fault::{CatalogFault, corrupt};

/// A column of numbers: the positions of its validity bits (if some value is absent) and its
/// values.
#[derive(Debug)]
pub(crate) struct NumberColumn {
    pub(crate) validity: Option<usize>,
    pub(super) values: usize,
}

/// A column of text: the positions of its validity bits, its `rows + 1` ends and its text.
#[derive(Debug)]
pub(crate) struct TextColumn {
    pub(crate) validity: Option<usize>,
    pub(super) ends: usize,
    pub(super) text: Range<usize>,
}

/// A column of lists of fields: the position of its `rows + 1` ends, the number of all fields, and
/// the fields' columns.
#[derive(Debug)]
pub(crate) struct FieldsColumn {
    pub(super) ends: usize,
    pub(crate) count: usize,
    pub(crate) name: TextColumn,
    pub(crate) offset: NumberColumn,
    pub(crate) length: NumberColumn,
}

/// The values of the column that begins at `values`.
fn values<const BYTES: usize>(
    bytes: &[u8],
    values: usize,
    rows: usize,
) -> Result<&[[u8; BYTES]], CatalogFault> {
    let column = bytes.get(values..).and_then(|rest| rest.get(..rows * BYTES));
    column.map(|column| column.as_chunks().0).ok_or_else(|| corrupt("a column ends early"))
}

/// Which rows of a column have a value, if not all. `bits` is the position of its validity bits.
pub(crate) fn validity(
    bytes: &[u8],
    bits: Option<usize>,
    rows: usize,
) -> Result<Option<&[u8]>, CatalogFault> {
    let Some(bits) = bits else { return Ok(None) };
    let bits = bytes.get(bits..).and_then(|rest| rest.get(..rows.div_ceil(8)));
    bits.map(Some).ok_or_else(|| corrupt("a column ends early"))
}

/// Whether a row has a value.
pub(crate) fn is_present(validity: Option<&[u8]>, row: usize) -> bool {
    validity.is_none_or(|bits| bits.get(row / 8).is_some_and(|byte| byte >> (row % 8) & 1 == 1))
}

/// The ends at `start`, which must ascend up to `most`.
fn ends(bytes: &[u8], start: usize, rows: usize, most: usize) -> Result<Vec<u64>, CatalogFault> {
    // A negative end becomes far too large.
    let ends = values(bytes, start, rows + 1)?.iter().map(|end| u64::from(u32::from_le_bytes(*end)));
    let ends: Vec<u64> = ends.collect();
    if !ends.is_sorted() || ends.last().is_none_or(|&last| last > most as u64) {
        return Err(corrupt("what a row has lies outside its column"));
    }
    Ok(ends)
}

impl NumberColumn {
    /// The values of all rows, including rows without a value.
    pub(crate) fn values<'a, const BYTES: usize>(
        &self,
        bytes: &'a [u8],
        rows: usize,
    ) -> Result<&'a [[u8; BYTES]], CatalogFault> {
        values(bytes, self.values, rows)
    }

    /// The values of all rows, of `width` bytes each.
    pub(crate) fn raw<'a>(
        &self,
        bytes: &'a [u8],
        rows: usize,
        width: usize,
    ) -> Result<&'a [u8], CatalogFault> {
        let length = rows.checked_mul(width);
        let column = bytes.get(self.values..).zip(length).and_then(|(rest, length)| rest.get(..length));
        column.ok_or_else(|| corrupt("a column ends early"))
    }
}

impl TextColumn {
    /// The rows' ends after a zero, and all text, which is not yet checked for being UTF-8.
    pub(crate) fn decode<'a>(
        &self,
        bytes: &'a [u8],
        rows: usize,
    ) -> Result<(Vec<u64>, &'a [u8]), CatalogFault> {
        let text = bytes.get(self.text.clone()).ok_or_else(|| corrupt("a column ends early"))?;
        // Without rows, the zero may be absent.
        let ends = if rows == 0 { vec![0] } else { ends(bytes, self.ends, rows, text.len())? };
        Ok((ends, text))
    }

    /// The position of the text.
    pub(crate) fn start(&self) -> usize {
        self.text.start
    }
}

impl FieldsColumn {
    /// The ends of each row's range among the batch's fields, preceded by the first row's
    /// beginning.
    pub(crate) fn ends(&self, bytes: &[u8], rows: usize) -> Result<Vec<u64>, CatalogFault> {
        ends(bytes, self.ends, rows, self.count)
    }
}
