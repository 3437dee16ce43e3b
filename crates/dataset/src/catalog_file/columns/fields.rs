//! The fields of samples in one batch of a catalog, in memory.
//!
//! Names of fields are few, so each is stored once. Offsets and lengths are packed as other numbers
//! are. The price: a field is found by comparing the names of its sample's fields.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::catalog_file::columns::integers::PackedIntegers;
use crate::catalog_file::columns::shared_numbers::PackedColumns;
use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::layout::column::{FieldsColumn, NumberColumn};

/// The fields of each row's sample.
#[derive(Debug)]
pub(crate) struct FieldLists {
    /// A zero, then for each row the number of fields of all rows up to it.
    ends: PackedIntegers,
    name: PackedIntegers,
    offset: PackedIntegers,
    length: PackedIntegers,
}

/// One field of a sample.
pub(crate) struct FieldRow {
    /// The index of its name.
    pub(crate) name: usize,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl FieldLists {
    /// The fields of an existing row.
    pub(crate) fn of(&self, row: usize) -> impl Iterator<Item = FieldRow> {
        (self.ends.get(row)..self.ends.get(row + 1)).map(|field| {
            let field = field as usize;
            FieldRow {
                name: self.name.get(field) as usize,
                offset: self.offset.get(field),
                length: self.length.get(field),
            }
        })
    }
}

/// The distinct names of fields. They are few, however many fields there are.
#[derive(Debug, Default)]
pub(crate) struct NameTable {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, usize>,
    /// The last name at each of the first positions in a sample. The next sample most likely has it
    /// too.
    last: [usize; 8],
}

impl NameTable {
    fn number(&mut self, name: &[u8], place: usize) -> Result<usize, CatalogFault> {
        let place = place % self.last.len();
        if self.names.get(self.last[place]).is_some_and(|last| last.as_bytes() == name) {
            return Ok(self.last[place]);
        }
        let name = std::str::from_utf8(name).map_err(|_| corrupt("the name of a field is not UTF-8"))?;
        let number = if let Some(&number) = self.numbers.get(name) {
            number
        } else {
            let name: Arc<str> = name.into();
            self.names.push(Arc::clone(&name));
            self.numbers.insert(name, self.names.len() - 1);
            self.names.len() - 1
        };
        self.last[place] = number;
        Ok(number)
    }

    pub(crate) fn into_names(self) -> Vec<Arc<str>> {
        self.names
    }
}

impl PackedColumns for FieldLists {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        let Self { ends, name, offset, length } = self;
        [ends, name, offset, length].each_column(visit);
    }
}

/// The fields of the rows of a batch. Checks that each lies in its sample.
pub(crate) fn decode_fields(
    fields: &FieldsColumn,
    bytes: &[u8],
    lengths: &[u64],
    names: &mut NameTable,
    bad: impl Fn(usize, &str) -> CatalogFault,
) -> Result<FieldLists, CatalogFault> {
    let wide = |numbers: &NumberColumn| -> Result<Vec<u64>, CatalogFault> {
        Ok(numbers.values(bytes, fields.count)?.iter().map(|value| u64::from_le_bytes(*value)).collect())
    };
    let ends = fields.ends(bytes, lengths.len())?;
    let (offset, length) = (wide(&fields.offset)?, wide(&fields.length)?);
    let (text_ends, text) = fields.name.decode(bytes, fields.count)?;
    let mut name = Vec::with_capacity(fields.count);
    // Fields before the first row's are not checked, because no row refers to them.
    let none = ends.first().copied().unwrap_or(0) as usize;
    name.resize(none, 0);
    for (row, of) in ends.windows(2).enumerate() {
        for field in of[0] as usize..of[1] as usize {
            let end = offset[field].checked_add(length[field]);
            if end.is_none_or(|end| end > lengths[row]) {
                return Err(bad(row, "has a field outside of it"));
            }
            let text = &text[text_ends[field] as usize..text_ends[field + 1] as usize];
            name.push(names.number(text, field - of[0] as usize)? as u64);
        }
    }
    Ok(FieldLists {
        ends: PackedIntegers::of(&ends),
        name: PackedIntegers::of(&name),
        offset: PackedIntegers::of(&offset),
        length: PackedIntegers::of(&length),
    })
}
