//! The column of a catalog that has the further parts of samples.
//!
//! Few samples have several parts, and their number differs. So a value is a text of bytes, empty
//! for a sample of one part. A part is numbers in LEB128: one more than the number of its decoders
//! and its offset, then the delivered bytes. A part that is decoded has three more: the stored
//! bytes, the decoded ones, and where the delivered ones begin in them. Zero decoders means bytes
//! that are stored as they are. The same bytes are in memory. The price is that a read decodes
//! numbers, some ten bytes per part.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field};
use bytes::Bytes;
use foreread_formats::{MadeRow, MorePart};

use crate::catalog_file::column_names::PARTS;
use crate::catalog_file::columns::integers::PackedIntegers;
use crate::catalog_file::columns::shared_numbers::PackedColumns;
use crate::catalog_file::fault::CatalogFault;
use crate::catalog_file::layout::column::TextColumn;
use crate::catalog_file::writer::ROWS;

/// The column in the schema.
pub(crate) fn field() -> Field {
    Field::new(PARTS, DataType::Binary, false)
}

fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number from the front of `bytes`. `None` if there is none, or it has another form than
/// [`write_number`] makes.
fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let digits = u64::from(byte & 0x7f);
        if digits << shift >> shift != digits {
            return None;
        }
        number |= digits << shift;
        if byte & 0x80 == 0 {
            return (byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}

/// Appends a part whose list of decoders has this number in the catalog.
fn write_part(bytes: &mut Vec<u8>, part: &MorePart, recipe: Option<u32>) {
    write_number(bytes, recipe.map_or(0, |recipe| u64::from(recipe) + 1));
    write_number(bytes, part.offset);
    write_number(bytes, part.length);
    if recipe.is_some() {
        let MadeRow { stored, decoded, slice, .. } = part.made;
        [stored, decoded, slice].into_iter().for_each(|number| write_number(bytes, number));
    }
}

/// The parts in a value. Each is `None` if it is damaged, and then the last one.
fn read_parts(mut bytes: &[u8]) -> impl Iterator<Item = Option<MorePart>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let part = read_part(&mut bytes);
        if part.is_none() {
            bytes = &[];
        }
        Some(part)
    })
}

fn read_part(bytes: &mut &[u8]) -> Option<MorePart> {
    let recipe = read_number(bytes)?.checked_sub(1);
    let (offset, length) = (read_number(bytes)?, read_number(bytes)?);
    let made = match recipe {
        None => MadeRow::plain(length),
        Some(recipe) => MadeRow {
            stored: read_number(bytes)?,
            decoded: read_number(bytes)?,
            slice: read_number(bytes)?,
            recipe: Some(u32::try_from(recipe).ok()?),
        },
    };
    Some(MorePart { row: 0, offset, length, made })
}

/// The column of rows with these parts. `number` has the number of a list of decoders in the
/// catalog, from the part's shard and the number there.
pub(crate) fn array<'a>(
    rows: impl Iterator<Item = (usize, &'a [MorePart])>,
    number: impl Fn(usize, u32) -> Option<u32>,
) -> Result<ArrayRef, ArrowError> {
    let (mut bytes, mut ends) = (Vec::new(), vec![0_i32]);
    for (shard, parts) in rows {
        for part in parts {
            write_part(&mut bytes, part, part.made.recipe.and_then(|recipe| number(shard, recipe)));
        }
        ends.push(i32::try_from(bytes.len()).map_err(|_| {
            let why = format!("the parts of {ROWS} samples exceed 2 GiB; choose samples with fewer parts");
            ArrowError::InvalidArgumentError(why)
        })?);
    }
    let ends = OffsetBuffer::new(ends.into());
    Ok(Arc::new(BinaryArray::try_new(ends, Buffer::from_vec(bytes), None)?))
}

/// The column of one batch, in memory.
#[derive(Debug)]
pub(crate) struct PartRows {
    ends: PackedIntegers,
    bytes: Bytes,
}

impl PartRows {
    /// Decodes the column of `rows` rows. `check` gets each row's parts.
    ///
    /// # Errors
    /// Those of `check`, which gets `None` for a value that is damaged.
    pub(crate) fn decode(
        column: &TextColumn,
        bytes: &[u8],
        rows: usize,
        mut check: impl FnMut(usize, Option<&[MorePart]>) -> Result<(), CatalogFault>,
    ) -> Result<Self, CatalogFault> {
        let (ends, all) = column.decode(bytes, rows)?;
        let mut parts = Vec::new();
        for (row, of) in ends.windows(2).enumerate() {
            parts.clear();
            let mut is_whole = true;
            for part in read_parts(&all[of[0] as usize..of[1] as usize]) {
                is_whole &= part.is_some();
                parts.extend(part);
            }
            check(row, is_whole.then_some(&*parts))?;
        }
        Ok(Self { ends: PackedIntegers::of(&ends), bytes: Bytes::copy_from_slice(all) })
    }

    /// The further parts of an existing row.
    pub(crate) fn get(&self, row: usize) -> impl Iterator<Item = MorePart> {
        let range = self.ends.get(row) as usize..self.ends.get(row + 1) as usize;
        // They were checked when the catalog was opened.
        read_parts(self.bytes.get(range).unwrap_or_default()).flatten()
    }
}

impl PackedColumns for PartRows {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        self.ends.each_column(visit);
        visit(&mut self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            write_number(&mut bytes, number);
            assert_eq!(bytes.len(), (64 - number.leading_zeros()).div_ceil(7).max(1) as usize);
            assert_eq!(read_number(&mut &*bytes), Some(number));
            assert_eq!(read_number(&mut &bytes[..bytes.len() - 1]), None);
        }
        for bad in [&[0x80, 0][..], &[0xff; 11], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]] {
            assert_eq!(read_number(&mut &*bad), None, "{bad:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parts_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(parts) = read_parts(&bytes).collect::<Option<Vec<_>>>() {
                let mut again = Vec::new();
                parts.iter().for_each(|part| write_part(&mut again, part, part.made.recipe));
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
