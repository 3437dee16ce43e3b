//! The walk over the pages of a column, from one value to the next.
//!
//! In a plain page a value's length says where the next value begins. So the walk is a chain of
//! reads. Small values are read with their lengths, because one request then has many. Values of
//! 32 KiB and more are skipped, and each costs a request of 4 KiB.
//!
//! Compressed pages have no lengths outside, and the numbers of a dictionary's values are packed.
//! Such pages are read in whole and decoded, one per walk at a time. Their values are slices of the
//! decoded page, or of the dictionary's page. Pages of an offset index and row groups are walked at
//! once.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};
use foreread_types::{Decoder, MOST_PAGE_HEAD};

use super::codec::{Packed, PageMemory};
use super::delta::DeltaIntegers;
use super::levels::{Runs, bit_width, prefixed};
use super::metadata::encoding_name;
use super::page::{self, DELTA_LENGTH, DICTIONARY_ENCODINGS, Levels, PLAIN, PageHead, PageKind, RLE};
use super::values::{Base, Dictionary, PADDING, Value, Values};
use crate::{FileSource, FormatError, MadeRow, Run, le};

/// The remedy for columns whose values are not in one place each.
const REMEDY: &str = "write it again with pq.write_table(table, path, use_dictionary=False)";

/// The bytes of a read if the last value was large.
const SMALL_READ: u64 = 4 << 10;

/// The bytes of a read if the last value was small.
pub(super) const LARGE_READ: u64 = 128 << 10;

/// The bytes of a read of compressed pages.
pub(super) const PACKED_READ: u64 = 4 << 20;

/// The length from which a value is large.
const LARGE_VALUE: u64 = 32 << 10;

/// The most bytes of a page's header. Statistics may have two values in full.
const MAX_HEAD: u64 = 1 << 20;

/// The column with the samples.
#[derive(Debug)]
pub(super) struct SampleColumn<'a> {
    pub(super) path: &'a str,
    pub(super) max_definition: u32,
    /// The length of each value, if all are equal.
    pub(super) width: Option<u64>,
    /// The decoders of compressed chunks, without repetition. A [`Span`] has a number of them. The
    /// numbers after them are of the same decoders, for pages with a checksum.
    pub(super) decoders: Vec<Decoder>,
    /// Whether some chunk has a dictionary.
    pub(super) has_dictionary: bool,
    pub(super) memory: PageMemory,
    /// Values that may still be found. Few bytes of compressed or repeated values can have any
    /// number, so there are no more than bytes in the file.
    pub(super) left: AtomicU64,
}

impl SampleColumn<'_> {
    /// Whether values of equal length are runs. Otherwise each has an extent.
    pub(super) fn has_runs(&self) -> bool {
        self.width.is_some() && self.decoders.is_empty() && !self.has_dictionary
    }

    /// Takes `count` values from the number that may be found.
    fn take(&self, count: u64, at: u64) -> Result<(), FormatError> {
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(count));
        taken.map(drop).map_err(|_| not_plain(at, self.path, "has more values than the file has bytes"))
    }
}

/// Pages in a row: their range in the file, and the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) rows: u64,
    /// The number of its decoder, if it is compressed.
    pub(super) recipe: Option<u32>,
}

/// The values of a span.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SpanValues {
    /// Values of different lengths.
    pub(super) rows: Vec<(u64, u64)>,
    /// How each of these values is made, in a column with decoders.
    pub(super) made: Vec<MadeRow>,
    /// Values of equal length.
    pub(super) runs: Vec<Run>,
    /// Runs of rows, and whether they have a value.
    pub(super) present: Vec<(u64, bool)>,
}

impl SpanValues {
    fn add_rows(&mut self, count: u64, is_present: bool) {
        match self.present.last_mut() {
            Some(last) if last.1 == is_present => last.0 += count,
            _ => self.present.push((count, is_present)),
        }
    }

    /// Adds a value of the column.
    fn add(&mut self, value: Value, column: &SampleColumn<'_>) {
        let (extent, made) = value.placed();
        if column.has_runs() {
            // A dictionary that the metadata does not mention.
            self.runs.push(Run { start: extent.0, stride: extent.1, length: extent.1, count: 1 });
            return;
        }
        self.rows.push(extent);
        if !column.decoders.is_empty() {
            self.made.push(made);
        }
    }
}

/// Finds the values of a span.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the pages do not have as many rows as the span.
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for encodings whose values are not in one
/// place.
pub(super) async fn walk(
    source: &dyn FileSource,
    column: &SampleColumn<'_>,
    span: Span,
) -> Result<SpanValues, FormatError> {
    // Pages as small as a small value take one request.
    let is_small = span.end - span.start < LARGE_VALUE;
    let read = match span.recipe {
        Some(_) => PACKED_READ,
        None if is_small => LARGE_VALUE,
        None => SMALL_READ,
    };
    let window = Window { source, start: span.start, end: span.end, bytes: Bytes::new(), read };
    let mut walk =
        Walk { window, column, recipe: span.recipe, dictionary: None, found: SpanValues::default() };
    let (mut at, mut left) = (span.start, span.rows);
    while left > 0 {
        let head = walk.head(at).await?;
        let body = at + head.length;
        let end = body.checked_add(head.stored).filter(|&end| end <= span.end);
        let end = end.ok_or_else(|| FormatError::damaged(at, "a page ends after its column chunk"))?;
        if let PageKind::Data(levels) = head.kind {
            let rest = left.checked_sub(head.values);
            left = rest.ok_or_else(|| FormatError::damaged(at, "the pages have more rows than the file"))?;
            walk.page(&head, levels, body, end).await?;
        } else if head.kind == PageKind::Dictionary {
            walk.dictionary(&head, body, end).await?;
        }
        at = end;
    }
    Ok(walk.found)
}

/// An error about a column that has no values in one place each.
fn not_plain(at: u64, path: &str, problem: &str) -> FormatError {
    FormatError::unsupported(at, format!("column {path} {problem}: {REMEDY}"))
}

struct Walk<'a> {
    window: Window<'a>,
    column: &'a SampleColumn<'a>,
    /// The number of the decoder of compressed pages.
    recipe: Option<u32>,
    dictionary: Option<Arc<Dictionary>>,
    found: SpanValues,
}

impl Walk<'_> {
    /// The header of the page at `at`.
    async fn head(&mut self, at: u64) -> Result<PageHead, FormatError> {
        let most = MAX_HEAD.min(self.window.end - at.min(self.window.end));
        let mut length = most.min(64);
        loop {
            let bytes = self.window.at_least(at, length).await?;
            if let Some(head) = page::head(&bytes) {
                return Ok(head);
            }
            if bytes.len() as u64 >= most {
                return Err(FormatError::damaged(at, "a page's header is malformed"));
            }
            length = (bytes.len() as u64 * 8).min(most);
        }
    }

    /// Finds the values of a data page whose body lies at `body..end`.
    async fn page(
        &mut self,
        head: &PageHead,
        levels: Levels,
        body: u64,
        end: u64,
    ) -> Result<(), FormatError> {
        let encoding = head.encoding;
        let is_dictionary = DICTIONARY_ENCODINGS.contains(&encoding);
        if !is_dictionary && encoding != PLAIN && (encoding != DELTA_LENGTH || self.column.width.is_some()) {
            let problem = format!("has the encoding {}", encoding_name(encoding));
            return Err(not_plain(body, self.column.path, &problem));
        }
        if is_dictionary && self.dictionary.is_none() {
            return Err(FormatError::damaged(body, "the dictionary of a page is missing"));
        }
        match (self.recipe, levels) {
            (None, _) | (_, Levels::Apart { is_compressed: false, .. }) => {
                self.plain_page(head, levels, body, end).await
            }
            (Some(recipe), _) => self.packed_page(head, levels, body..end, recipe).await,
        }
    }

    /// Finds the values of a page that is not compressed.
    async fn plain_page(
        &mut self,
        head: &PageHead,
        levels: Levels,
        body: u64,
        end: u64,
    ) -> Result<(), FormatError> {
        let (definition, at) = self.definition_levels(levels, body, end).await?;
        if head.encoding == PLAIN {
            return self.rows(head, &definition, &mut Source::File { at, end }, body).await;
        }
        let column = self.column;
        let malformed = || FormatError::damaged(at, "a page is malformed");
        if head.encoding == DELTA_LENGTH && at < end {
            // The lengths stand first, and the values are not read.
            let mut read = SMALL_READ;
            loop {
                let bytes = self.window.at_least(at, read.min(end - at)).await?;
                let bytes = bytes.slice(..bytes.len().min((end - at) as usize));
                if let Some((lengths, length)) = DeltaIntegers::new(&bytes) {
                    let (base, offset) = (Base::File(at), length as u64);
                    let values = Values::Lengths { base, lengths, offset, end: end - at };
                    return self.rows(head, &definition, &mut Source::Memory(values), body).await;
                }
                if bytes.len() as u64 == end - at {
                    return Err(malformed());
                }
                read = bytes.len() as u64 * 4;
            }
        }
        let memory = column.memory.reserve(end - at, 0).await;
        let bytes = self.window.part(at..end).await?;
        let dictionary = self.dictionary.clone();
        let values = Values::new(head.encoding, Base::File(at), &bytes, 0, column.width, dictionary.as_ref());
        let values = values.ok_or_else(malformed)?;
        self.rows(head, &definition, &mut Source::Memory(values), body).await?;
        self.window.release(memory.is_some());
        Ok(())
    }

    /// Finds the values of a compressed page.
    async fn packed_page(
        &mut self,
        head: &PageHead,
        levels: Levels,
        body: std::ops::Range<u64>,
        recipe: u32,
    ) -> Result<(), FormatError> {
        let column = self.column;
        let malformed = || FormatError::damaged(body.start, "a page is malformed");
        let memory = column.memory.reserve(head.stored, head.plain).await;
        self.check(head, body.clone()).await?;
        // Levels of version 2 stand before the compressed values.
        let (apart, start) = match levels {
            Levels::Before { .. } => (None, body.start),
            Levels::Apart { .. } => {
                let (definition, start) = self.definition_levels(levels, body.start, body.end).await?;
                (Some(definition), start)
            }
        };
        let plain = head.plain.checked_sub(start - body.start).ok_or_else(malformed)?;
        let decoded = self.unpacked(start..body.end, plain, recipe).await?;
        let (definition, values) = match (&apart, levels) {
            (Some(definition), _) => (&definition[..], &decoded[..]),
            (None, _) if column.max_definition == 0 => (&[][..], &decoded[..]),
            (None, Levels::Before { encoding }) if encoding != RLE => {
                return Err(self.other_levels(encoding, body.start));
            }
            (None, _) => prefixed(&decoded).ok_or_else(malformed)?,
        };
        let base = self.unit(head, start..body.end, plain, recipe);
        let offset = (decoded.len() - values.len()) as u64;
        let dictionary = self.dictionary.clone();
        let values = Values::new(head.encoding, base, values, offset, column.width, dictionary.as_ref());
        let values = values.ok_or_else(malformed)?;
        self.rows(head, definition, &mut Source::Memory(values), body.start).await?;
        self.window.release(memory.is_some());
        Ok(())
    }

    /// Compares the bytes after a page's header with their checksum.
    async fn check(&mut self, head: &PageHead, body: std::ops::Range<u64>) -> Result<(), FormatError> {
        if head.crc.is_some() {
            let bytes = self.window.part(body.clone()).await?;
            let path = self.column.path;
            let damaged = |why| format!("a page of column {path} is damaged: {why}");
            head.check(&bytes).map_err(|why| FormatError::damaged(body.start, damaged(why)))?;
        }
        Ok(())
    }

    /// The unit of a page whose compressed values lie at `part`, and become `decoded` bytes. A page
    /// with a checksum is read with its header.
    fn unit(&self, head: &PageHead, part: std::ops::Range<u64>, decoded: u64, recipe: u32) -> Base {
        let (at, stored) = (part.start, part.end - part.start);
        let page = head.length + head.stored;
        if head.crc.is_none() || page - stored > MOST_PAGE_HEAD {
            return Base::Unit { at, stored, decoded, recipe };
        }
        let recipe = recipe + self.column.decoders.len() as u32;
        Base::Unit { at: part.end - page, stored: page, decoded, recipe }
    }

    /// The decoded bytes of a compressed part of a page.
    async fn unpacked(
        &mut self,
        part: std::ops::Range<u64>,
        plain: u64,
        recipe: u32,
    ) -> Result<Bytes, FormatError> {
        let column = self.column;
        let malformed = || FormatError::damaged(part.start, "a page is malformed");
        let stored = part.end.checked_sub(part.start).ok_or_else(malformed)?;
        let decoder = *column.decoders.get(recipe as usize).ok_or_else(malformed)?;
        // A page of nulls may have no bytes.
        if plain == 0 || stored == 0 {
            return Ok(Bytes::new());
        }
        let bytes = self.window.part(part.clone()).await?;
        let packed = Packed { at: part.start, stored, plain, decoder };
        Ok(column.memory.decode(&packed, &bytes, column.path)?.into_owned().into())
    }

    /// Finds the values of a dictionary page whose body lies at `body..end`.
    async fn dictionary(&mut self, head: &PageHead, body: u64, end: u64) -> Result<(), FormatError> {
        let column = self.column;
        let malformed = || FormatError::damaged(body, "a dictionary is malformed");
        if head.encoding != PLAIN && !DICTIONARY_ENCODINGS.contains(&head.encoding) {
            let problem = format!("has a dictionary in the encoding {}", encoding_name(head.encoding));
            return Err(not_plain(body, column.path, &problem));
        }
        if !column.memory.has_room(head.values) {
            return Err(malformed());
        }
        if let Some(recipe) = self.recipe {
            let memory = column.memory.reserve(head.stored, head.plain).await;
            self.check(head, body..end).await?;
            let decoded = self.unpacked(body..end, head.plain, recipe).await?;
            let base = self.unit(head, body..end, head.plain, recipe);
            let dictionary = Dictionary::new(base, &decoded, head.values, column.width);
            self.dictionary = Some(Arc::new(dictionary.ok_or_else(malformed)?));
            self.window.release(memory.is_some());
            return Ok(());
        }
        let (mut entries, mut at) = (Vec::new(), body);
        for _ in 0..head.values {
            let (value, length) = match column.width {
                Some(width) => (at, width),
                None => (at + 4, self.length(at, end).await?),
            };
            at = value.checked_add(length).filter(|&after| after <= end).ok_or_else(malformed)?;
            self.expect(length);
            entries.push(((value - body) as u32, length as u32));
        }
        self.dictionary = Some(Arc::new(Dictionary { base: Base::File(body), entries }));
        Ok(())
    }

    /// Adds the rows of a page, with their values.
    async fn rows(
        &mut self,
        head: &PageHead,
        definition: &[u8],
        values: &mut Source<'_>,
        body: u64,
    ) -> Result<(), FormatError> {
        if self.column.max_definition == 0 {
            self.values(head.values, values, body).await?;
        } else {
            let malformed = || FormatError::damaged(body, "the levels of a page are malformed");
            let width = bit_width(self.column.max_definition);
            let mut runs = Runs::new(definition, width).ok_or_else(malformed)?;
            let mut left = head.values;
            while left > 0 {
                let (count, level) = runs.next().ok_or_else(malformed)?;
                // The last group of packed levels is padded.
                let count = count.min(left);
                left -= count;
                match level.cmp(&self.column.max_definition) {
                    Ordering::Equal => self.values(count, values, body).await?,
                    Ordering::Less => self.found.add_rows(count, false),
                    Ordering::Greater => return Err(malformed()),
                }
            }
        }
        let is_used_up = match values {
            Source::File { at, end } if *end - *at == PADDING.len() as u64 => {
                self.window.part(*at..*end).await? == PADDING[..]
            }
            Source::File { at, end } => at == end,
            Source::Memory(values) => values.is_used_up(),
        };
        if !is_used_up {
            return Err(FormatError::damaged(body, "a page has more bytes than values"));
        }
        Ok(())
    }

    /// The definition levels of a page, and where its values begin.
    async fn definition_levels(
        &mut self,
        levels: Levels,
        body: u64,
        end: u64,
    ) -> Result<(Bytes, u64), FormatError> {
        let (start, length) = match levels {
            Levels::Before { .. } if self.column.max_definition == 0 => (body, 0),
            Levels::Before { encoding } if encoding != RLE => return Err(self.other_levels(encoding, body)),
            Levels::Before { .. } => (body + 4, self.length(body, end).await?),
            Levels::Apart { repetition, definition, .. } => (body.saturating_add(repetition), definition),
        };
        let after = start.checked_add(length).filter(|&after| after <= end);
        let after = after.ok_or_else(|| FormatError::damaged(body, "the levels do not fit in a page"))?;
        Ok((self.window.part(start..after).await?, after))
    }

    fn other_levels(&self, encoding: i64, at: u64) -> FormatError {
        let problem = format!("has levels in the encoding {}", encoding_name(encoding));
        not_plain(at, self.column.path, &problem)
    }

    /// The next reads are for values of `length` bytes.
    fn expect(&mut self, length: u64) {
        self.window.read = if length < LARGE_VALUE { LARGE_READ } else { SMALL_READ };
    }

    /// The length at `at`, which has 4 bytes.
    async fn length(&mut self, at: u64, end: u64) -> Result<u64, FormatError> {
        let cut = || FormatError::damaged(at, "a value ends after its page");
        if end - at < 4 {
            return Err(cut());
        }
        let bytes = self.window.at_least(at, 4).await?;
        le::u32(&bytes, 0).map(u64::from).ok_or_else(cut)
    }

    /// Finds the next `count` values of a page.
    async fn values(&mut self, count: u64, values: &mut Source<'_>, body: u64) -> Result<(), FormatError> {
        if count == 0 {
            return Ok(());
        }
        self.column.take(count, body)?;
        self.found.add_rows(count, true);
        let cut = |at| FormatError::damaged(at, "a value ends after its page");
        let (at, end) = match values {
            Source::File { at, end } => (at, *end),
            Source::Memory(values) => {
                for _ in 0..count {
                    let value = values.next().ok_or_else(|| cut(body))?;
                    self.found.add(value, self.column);
                }
                return Ok(());
            }
        };
        match self.column.width {
            Some(length) if self.column.has_runs() => {
                let after = count.checked_mul(length).and_then(|length| at.checked_add(length));
                let after = after.filter(|&after| after <= end).ok_or_else(|| cut(*at))?;
                self.found.runs.push(Run { start: *at, stride: length, length, count });
                *at = after;
            }
            width => {
                for _ in 0..count {
                    let (value, length) = match width {
                        Some(width) => (*at, width),
                        None => (*at + 4, self.length(*at, end).await?),
                    };
                    if value > end || length > end - value {
                        return Err(cut(*at));
                    }
                    self.found.add(Value { base: Base::File(value), offset: 0, length }, self.column);
                    if width.is_none() {
                        self.expect(length);
                    }
                    *at = value + length;
                }
            }
        }
        Ok(())
    }
}

/// Where the values of a page are read.
enum Source<'a> {
    /// In the file, at `at..end`.
    File { at: u64, end: u64 },
    /// They were read and decoded.
    Memory(Values<'a>),
}

/// A part of the file in memory, which moves forward.
struct Window<'a> {
    source: &'a dyn FileSource,
    /// The offset of `bytes`.
    start: u64,
    /// The end of the span. Nothing after it is read.
    end: u64,
    bytes: Bytes,
    /// The number of bytes of the next read, unless more are needed.
    read: u64,
}

impl Window<'_> {
    /// At least `length` bytes at `at`, and the bytes in memory after them.
    async fn at_least(&mut self, at: u64, length: u64) -> Result<Bytes, FormatError> {
        let end = at.checked_add(length).filter(|&end| end <= self.end && length > 0);
        let end = end.ok_or_else(|| FormatError::damaged(at, "a page ends after its column chunk"))?;
        let known = self.start + self.bytes.len() as u64;
        if at < self.start || end > known {
            // The beginning may be in memory.
            let kept =
                if (self.start..known).contains(&at) { (at - self.start) as usize } else { self.bytes.len() };
            let kept = self.bytes.slice(kept..);
            let from = at + kept.len() as u64;
            let read = self.source.read(from..end.max(from.saturating_add(self.read).min(self.end))).await?;
            self.bytes = if kept.is_empty() { read } else { joined(&kept, &read) };
            self.start = at;
        }
        Ok(self.bytes.slice((at - self.start) as usize..))
    }

    /// The bytes of a range, which may be empty.
    async fn part(&mut self, range: std::ops::Range<u64>) -> Result<Bytes, FormatError> {
        let length = range.end.saturating_sub(range.start);
        if length == 0 {
            return Ok(Bytes::new());
        }
        Ok(self.at_least(range.start, length).await?.slice(..length as usize))
    }

    /// Frees the memory of a large page.
    fn release(&mut self, is_large: bool) {
        if is_large {
            self.bytes = Bytes::new();
        }
    }
}

fn joined(first: &[u8], second: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(first.len() + second.len());
    bytes.extend_from_slice(first);
    bytes.extend_from_slice(second);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use futures::executor::block_on;
    use futures::future::BoxFuture;
    use proptest::prelude::*;

    use super::*;
    use crate::ReadError;

    /// Counts requests and bytes.
    struct Counted(Bytes, AtomicUsize, AtomicUsize);

    impl FileSource for Counted {
        fn size(&self) -> u64 {
            self.0.size()
        }

        fn read(&self, range: std::ops::Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
            self.1.fetch_add(1, Relaxed);
            self.2.fetch_add((range.end - range.start) as usize, Relaxed);
            self.0.read(range)
        }
    }

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value > 0x7f {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// A page of version 1 with required values, and statistics of `statistics` bytes.
    fn page(lengths: &[usize], statistics: usize) -> Vec<u8> {
        let values = lengths.iter().flat_map(|&length| {
            let mut value = (length as u32).to_le_bytes().to_vec();
            value.resize(4 + length, 7);
            value
        });
        let values: Vec<u8> = values.collect();
        let integer = |value: usize| varint(value as u64 * 2);
        let mut page =
            [vec![0x15, 0, 0x15], integer(values.len()), vec![0x15], integer(values.len())].concat();
        page.extend([&[0x2c, 0x15][..], &integer(lengths.len()), &[0x15, 0, 0x15, 6, 0x15, 6]].concat());
        page.extend(
            [&[0x1c, 0x18][..], &varint(statistics as u64), &vec![1; statistics], &[0, 0, 0]].concat(),
        );
        page.extend(values);
        page
    }

    fn column() -> SampleColumn<'static> {
        SampleColumn {
            path: "jpg",
            max_definition: 0,
            width: None,
            decoders: Vec::new(),
            has_dictionary: false,
            memory: PageMemory::new(&Bytes::from_static(&[0; 1000])),
            left: AtomicU64::new(u64::from(u32::MAX)),
        }
    }

    fn span(file: &Bytes, rows: usize) -> Span {
        Span { start: 0, end: file.size(), rows: rows as u64, recipe: None }
    }

    #[test]
    fn large_values_are_skipped_in_a_request_each() {
        let file = Bytes::from(page(&[200_000; 30], 10));
        let source = Counted(file.clone(), AtomicUsize::new(0), AtomicUsize::new(0));
        let found = block_on(walk(&source, &column(), span(&file, 30))).unwrap();
        assert_eq!((found.rows.len(), found.present), (30, vec![(30, true)]));
        assert_eq!(source.1.load(Relaxed), 30);
        assert!(source.2.load(Relaxed) <= 30 * SMALL_READ as usize);
    }

    #[test]
    fn small_values_are_read_many_at_once() {
        let file = Bytes::from(page(&[1000; 1000], 10));
        let source = Counted(file.clone(), AtomicUsize::new(0), AtomicUsize::new(0));
        block_on(walk(&source, &column(), span(&file, 1000))).unwrap();
        assert!(source.1.load(Relaxed) <= 10, "{:?}", source.1);
    }

    #[test]
    fn page_header_may_be_longer_than_a_read() {
        let file = Bytes::from(page(&[5, 6], 100_000));
        let found = block_on(walk(&file, &column(), span(&file, 2))).unwrap();
        assert_eq!(found.rows, [(file.size() - 11 - 4, 5), (file.size() - 6, 6)]);
        let file = Bytes::from(page(&[5], MAX_HEAD as usize));
        assert!(block_on(walk(&file, &column(), span(&file, 1))).is_err());
    }

    /// Runs of levels take few bytes for any number of rows.
    #[test]
    fn run_of_nulls_takes_no_memory_per_row() {
        let rows = i32::MAX as u64;
        let count = varint(rows * 2);
        let levels = [&count[..], &[0]].concat();
        let integer = |value: u64| varint(value * 2);
        let length = integer(levels.len() as u64);
        let head = [&[0x15, 6, 0x15][..], &length, &[0x15], &length, &[0x5c, 0x15], &count, &[0x15], &count];
        let tail = [&[0x15][..], &count, &[0x15, 0, 0x15], &length, &[0x15, 0, 0, 0], &levels];
        let file = Bytes::from([head.concat(), tail.concat()].concat());
        let column = SampleColumn { max_definition: 2, ..column() };
        let found = block_on(walk(&file, &column, Span { rows, ..span(&file, 0) })).unwrap();
        assert_eq!(found, SpanValues { present: vec![(rows, false)], ..SpanValues::default() });
        // A level that the column does not have.
        let mut wrong = file.to_vec();
        *wrong.last_mut().unwrap() = 3;
        let wrong = Bytes::from(wrong);
        let error = block_on(walk(&wrong, &column, Span { rows, ..span(&wrong, 0) })).unwrap_err();
        assert!(error.why().contains("levels"), "{error}");
    }

    /// A page of type 0 (data) or 2 (dictionary), with `count` values.
    fn raw_page(kind: usize, encoding: usize, count: usize, plain: usize, stored: &[u8]) -> Vec<u8> {
        let integer = |value: usize| [vec![0x15], varint(value as u64 * 2)].concat();
        let numbers = [kind, plain, stored.len()].map(integer).concat();
        let of_kind = [integer(count), integer(encoding)].concat();
        let more: &[u8] = if kind == 0 { &[0x15, 6, 0x15, 6, 0, 0] } else { &[0, 0] };
        let mark = if kind == 0 { 0x2c } else { 0x4c };
        [&numbers[..], &[mark], &of_kind, more, stored].concat()
    }

    fn prefixed_value(value: &[u8]) -> Vec<u8> {
        [&(value.len() as u32).to_le_bytes()[..], value].concat()
    }

    /// Few bytes repeat a value of a dictionary, or an empty value, any number of times.
    #[test]
    // semantics: FORMAT-4
    fn repeated_values_are_no_more_than_the_bytes() {
        let count = 1 << 30;
        let dictionary = raw_page(2, 0, 1, 5, &prefixed_value(b"a"));
        let numbers = [&[1][..], &varint(count as u64 * 2), &[0]].concat();
        let repeated = [dictionary, raw_page(0, 8, count, numbers.len(), &numbers)].concat();
        // Blocks of 2^20 differences without bits.
        let lengths =
            [&[0x80, 0x80, 0x40, 1][..], &varint(count as u64), &[0], &[0, 0].repeat(1 << 10)].concat();
        let empty = raw_page(0, 6, count, lengths.len(), &lengths);
        for file in [repeated, empty].map(Bytes::from) {
            let column = SampleColumn { left: AtomicU64::new(file.size()), ..column() };
            let error = block_on(walk(&file, &column, span(&file, count))).unwrap_err();
            assert_eq!(error.kind(), crate::FormatErrorKind::Unsupported);
            assert!(error.why().contains("more values than the file has bytes: write it again"), "{error}");
        }
    }

    #[test]
    fn compressed_pages_are_read_once() {
        // Bytes that do not become shorter.
        let mut state = 1_u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let pages: Vec<Vec<u8>> = (0..7).map(|_| (0..1_500_000).map(|_| noise()).collect()).collect();
        let packed = pages.iter().flat_map(|value| {
            let plain = prefixed_value(value);
            let stored = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
            raw_page(0, 0, 1, plain.len(), &stored)
        });
        let file: Bytes = packed.collect();
        let source = Counted(file.clone(), AtomicUsize::new(0), AtomicUsize::new(0));
        let column = SampleColumn { decoders: vec![Decoder::Snappy], ..column() };
        let column = SampleColumn { memory: PageMemory::new(&file), ..column };
        let of = Span { recipe: Some(0), ..span(&file, 7) };
        let found = block_on(walk(&source, &column, of)).unwrap();
        assert_eq!(found.rows.iter().map(|row| row.1).collect::<Vec<_>>(), [1_500_000; 7]);
        assert!(found.made.iter().all(|made| made.slice == 4 && made.decoded == 1_500_004));
        assert_eq!(source.2.load(Relaxed), file.len());
        assert!(source.1.load(Relaxed) <= 4, "{:?}", source.1);
    }

    #[test]
    fn large_page_is_a_unit() {
        let plain = [prefixed_value(&vec![7; 20 << 20]), prefixed_value(b"end")].concat();
        let stored = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
        let page = raw_page(0, 0, 2, plain.len(), &stored);
        let file = Bytes::from([&page[..], &page].concat());
        let memory = PageMemory::new(&file);
        let column = SampleColumn { decoders: vec![Decoder::Snappy], memory, ..column() };
        let found = block_on(walk(&file, &column, Span { recipe: Some(0), ..span(&file, 4) })).unwrap();
        let at = (page.len() - stored.len()) as u64;
        let unit =
            MadeRow { stored: stored.len() as u64, decoded: plain.len() as u64, slice: 4, recipe: Some(0) };
        let second = MadeRow { slice: (20 << 20) + 8, ..unit };
        assert_eq!(found.made, [unit, second, unit, second]);
        let next = at + page.len() as u64;
        assert_eq!(found.rows, [(at, 20 << 20), (at, 3), (next, 20 << 20), (next, 3)]);
    }

    #[test]
    fn dictionary_must_come_first() {
        let numbers = raw_page(0, 2, 1, 3, &[1, 2, 0]);
        for (page, kind) in [
            (numbers, crate::FormatErrorKind::Damaged),
            (raw_page(2, 6, 1, 5, &prefixed_value(b"a")), crate::FormatErrorKind::Unsupported),
            (raw_page(2, 0, 2, 5, &prefixed_value(b"a")), crate::FormatErrorKind::Damaged),
            (raw_page(2, 0, 2000, 5, &prefixed_value(b"a")), crate::FormatErrorKind::Damaged),
            (raw_page(0, 7, 1, 5, &prefixed_value(b"a")), crate::FormatErrorKind::Unsupported),
        ] {
            let file = Bytes::from(page);
            assert_eq!(block_on(walk(&file, &column(), span(&file, 1))).unwrap_err().kind(), kind);
        }
    }

    /// Values of a dictionary that the metadata does not mention, in a column of equal lengths.
    #[test]
    fn unexpected_dictionary_of_equal_lengths_is_runs() {
        let dictionary = raw_page(2, 0, 2, 6, b"abcdef");
        let file = Bytes::from([&dictionary[..], &raw_page(0, 8, 3, 4, &[1, 3, 0b011, 0])].concat());
        let column = SampleColumn { width: Some(3), ..column() };
        let found = block_on(walk(&file, &column, span(&file, 3))).unwrap();
        let start = (dictionary.len() - 6) as u64;
        let run = |start| Run { start, stride: 3, length: 3, count: 1 };
        assert_eq!(found.runs, [run(start + 3), run(start + 3), run(start)]);
    }

    proptest! {
        #[test]
        fn values_of_all_lengths_are_found(
            pages in proptest::collection::vec(proptest::collection::vec(0_usize..50_000, 0..6), 1..6),
        ) {
            let file: Bytes = pages.iter().flat_map(|lengths| page(lengths, 3)).collect();
            let lengths: Vec<_> = pages.concat().iter().map(|&length| length as u64).collect();
            let found = block_on(walk(&file, &column(), span(&file, lengths.len()))).unwrap();
            prop_assert_eq!(found.rows.iter().map(|row| row.1).collect::<Vec<_>>(), lengths.clone());
            for (at, length) in found.rows {
                prop_assert!(file[at as usize..(at + length) as usize].iter().all(|&byte| byte == 7));
            }
            // A row more than the pages have is an error, and does not read after the span.
            prop_assert!(block_on(walk(&file, &column(), span(&file, lengths.len() + 1))).is_err());
        }
    }
}
