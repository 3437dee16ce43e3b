//! Columns of texts that stay in the catalog's file.
//!
//! Texts that differ from row to row (paths, keys, ETags of files) are most of a catalog and are
//! used once per sample and epoch. For a file only their ends are in memory, and the text is read
//! on request. Each group of [`ROWS_PER_CHECKSUM`] rows has a checksum of its text, computed when
//! the whole file was checked. So a file that was overwritten or truncated since is an error, and
//! never another name. The price is one `pread` per sample, of about a kilobyte.

use std::borrow::Cow;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::catalog_file::checksum::written_to;
use crate::catalog_file::columns::integers::PackedIntegers;
use crate::catalog_file::columns::shared_numbers::PackedColumns;
use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::layout::column::{TextColumn, is_present, validity};
use crate::catalog_file::source::{CatalogBytes, unreadable};

/// The number of rows whose texts share a checksum and are read together.
const ROWS_PER_CHECKSUM: usize = 16;

/// Texts, one per row.
#[derive(Debug)]
pub(crate) struct TextRows {
    validity: Option<Bytes>,
    /// A zero, then the end of each row's text.
    ends: PackedIntegers,
    rows: usize,
    /// The offset of the texts in the catalog.
    start: u64,
    /// The checksum of each group's text. Empty if the text is in memory.
    checksums: Bytes,
}

impl TextRows {
    /// The row's text, or `None` if it has none.
    pub(crate) fn get<'a>(
        &self,
        source: &'a CatalogBytes,
        row: usize,
    ) -> Result<Option<Cow<'a, str>>, CatalogFault> {
        self.read(source, row, Cow::Borrowed, |text| Cow::Owned(text.to_owned()))
    }

    /// Like [`get`](Self::get), but shared: copied once from the buffer that it was read into.
    pub(crate) fn shared(&self, source: &CatalogBytes, row: usize) -> Result<Option<Arc<str>>, CatalogFault> {
        self.read(source, row, Arc::from, |text| Arc::from(text))
    }

    /// Converts the row's text. `kept` converts text that lives as long as the source, `read`
    /// converts text in the buffer of this call.
    fn read<'a, R>(
        &self,
        source: &'a CatalogBytes,
        row: usize,
        kept: impl FnOnce(&'a str) -> R,
        read: impl FnOnce(&str) -> R,
    ) -> Result<Option<R>, CatalogFault> {
        if !is_present(self.validity.as_deref(), row) {
            return Ok(None);
        }
        let no_text = |_| corrupt("a text is not UTF-8");
        let outside = || corrupt("a text lies outside its column");
        let (start, end) = (self.ends.get(row), self.ends.get(row + 1));
        let file = match source {
            CatalogBytes::Memory(bytes) => {
                let place = (self.start + start) as usize..(self.start + end) as usize;
                let text = std::str::from_utf8(bytes.get(place).ok_or_else(outside)?);
                return text.map(kept).map(Some).map_err(no_text);
            }
            CatalogBytes::File(file, _) => file,
        };
        // Before the file is read, so that the two waits for memory overlap.
        let checksum = self.checksums.as_chunks().0.get(row / ROWS_PER_CHECKSUM);
        let first = row / ROWS_PER_CHECKSUM * ROWS_PER_CHECKSUM;
        let group = self.ends.get(first)..self.ends.get(self.rows.min(first + ROWS_PER_CHECKSUM));
        let own = (start - group.start) as usize..(end - group.start) as usize;
        with_room((group.end - group.start) as usize, |room| {
            file.read_exact_at(room, self.start + group.start).map_err(|error| unreadable(&error))?;
            if checksum != Some(&xxh3_64(room).to_le_bytes()) {
                return Err(written_to());
            }
            let text = room.get(own).ok_or_else(outside)?;
            let text = std::str::from_utf8(text).map_err(no_text)?;
            Ok(Some(read(text)))
        })
    }
}

impl PackedColumns for TextRows {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        self.validity.iter_mut().for_each(&mut *visit);
        self.ends.each_column(visit);
        visit(&mut self.checksums);
    }
}

/// Provides a buffer for a group's text. It is on the stack for most groups, because most are
/// short.
fn with_room<R>(length: usize, read: impl FnOnce(&mut [u8]) -> R) -> R {
    const SHORT: usize = 1024;
    if length <= SHORT { read(&mut [0; SHORT][..length]) } else { read(&mut vec![0; length]) }
}

/// The texts of a column of the batch at offset `start` of the catalog.
pub(crate) fn decode_texts(
    text: &TextColumn,
    bytes: &[u8],
    start: u64,
    rows: usize,
) -> Result<TextRows, CatalogFault> {
    let (ends, all) = text.decode(bytes, rows)?;
    let groups = (0..rows)
        .step_by(ROWS_PER_CHECKSUM)
        .map(|first| ends[first]..ends[rows.min(first + ROWS_PER_CHECKSUM)]);
    let checksum = |group: Range<u64>| xxh3_64(&all[group.start as usize..group.end as usize]).to_le_bytes();
    let checksums: Vec<u8> = groups.flat_map(checksum).collect();
    Ok(TextRows {
        validity: validity(bytes, text.validity, rows)?.map(Bytes::copy_from_slice),
        ends: PackedIntegers::of(&ends),
        rows,
        start: start + text.start() as u64,
        checksums: checksums.into(),
    })
}
