//! The walk over the pages of a plain column, from the length of one value to the next.
//!
//! A value's length says where the next value begins. So the walk is a chain of reads. Small values
//! are read with their lengths, because one request then has many. Values of 32 KiB and more are
//! skipped, and each costs a request of 4 KiB. Pages of an offset index and row groups are walked
//! at once.

use std::cmp::Ordering;

use bytes::Bytes;

use super::levels::Runs;
use super::metadata::encoding_name;
use super::page::{self, DICTIONARY_ENCODINGS, Levels, PLAIN, PageHead, PageKind, RLE};
use super::{REMEDY, bit_width};
use crate::{FileSource, FormatError, Run, le};

/// The bytes of a read if the last value was large.
const SMALL_READ: u64 = 4 << 10;

/// The bytes of a read if the last value was small.
pub(super) const LARGE_READ: u64 = 128 << 10;

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
}

/// Pages in a row: their range in the file, and the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) rows: u64,
}

/// The values of a span.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SpanValues {
    /// Values of different lengths.
    pub(super) rows: Vec<(u64, u64)>,
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
}

/// Finds the values of a span.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the pages do not have as many rows as the span.
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for other encodings than `PLAIN`.
pub(super) async fn walk(
    source: &dyn FileSource,
    column: &SampleColumn<'_>,
    span: Span,
) -> Result<SpanValues, FormatError> {
    // Pages as small as a small value take one request.
    let is_small = span.end - span.start < LARGE_VALUE;
    let read = if is_small { LARGE_VALUE } else { SMALL_READ };
    let window = Window { source, start: span.start, end: span.end, bytes: Bytes::new(), read };
    let mut walk = Walk { window, column, found: SpanValues::default() };
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
            return Err(not_plain(at, column.path, "is encoded by a dictionary"));
        }
        at = end;
    }
    Ok(walk.found)
}

/// An error about a column that has no values in one place each.
pub(super) fn not_plain(at: u64, path: &str, problem: &str) -> FormatError {
    FormatError::unsupported(at, format!("column {path} {problem}: {REMEDY}"))
}

struct Walk<'a> {
    window: Window<'a>,
    column: &'a SampleColumn<'a>,
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
        let path = self.column.path;
        if DICTIONARY_ENCODINGS.contains(&head.encoding) {
            return Err(not_plain(body, path, "is encoded by a dictionary"));
        }
        if head.encoding != PLAIN {
            let problem = format!("has the encoding {}", encoding_name(head.encoding));
            return Err(not_plain(body, path, &problem));
        }
        let (definition, mut at) = self.definition_levels(levels, body, end).await?;
        if self.column.max_definition == 0 {
            at = self.values(head.values, at, end).await?;
        } else {
            let malformed = || FormatError::damaged(body, "the levels of a page are malformed");
            let width = bit_width(self.column.max_definition);
            let mut runs = Runs::new(&definition, width).ok_or_else(malformed)?;
            let mut left = head.values;
            while left > 0 {
                let (count, level) = runs.next().ok_or_else(malformed)?;
                // The last group of packed levels is padded.
                let count = count.min(left);
                left -= count;
                match level.cmp(&self.column.max_definition) {
                    Ordering::Equal => at = self.values(count, at, end).await?,
                    Ordering::Less => self.found.add_rows(count, false),
                    Ordering::Greater => return Err(malformed()),
                }
            }
        }
        if at != end {
            return Err(FormatError::damaged(at, "a page has more bytes than values"));
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
            Levels::Before { encoding } if encoding != RLE => {
                let problem = format!("has levels in the encoding {}", encoding_name(encoding));
                return Err(not_plain(body, self.column.path, &problem));
            }
            Levels::Before { .. } => (body + 4, self.length(body, end).await?),
            Levels::Apart { repetition, definition, .. } => (body.saturating_add(repetition), definition),
        };
        let after = start.checked_add(length).filter(|&after| after <= end);
        let after = after.ok_or_else(|| FormatError::damaged(body, "the levels do not fit in a page"))?;
        if length == 0 {
            return Ok((Bytes::new(), after));
        }
        let bytes = self.window.at_least(start, length).await?;
        Ok((bytes.slice(..length as usize), after))
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

    /// Finds `count` values from `at` on, and returns where they end.
    async fn values(&mut self, count: u64, mut at: u64, end: u64) -> Result<u64, FormatError> {
        if count == 0 {
            return Ok(at);
        }
        if let Some(width) = self.column.width {
            let after = count.checked_mul(width).and_then(|length| at.checked_add(length));
            let after = after.filter(|&after| after <= end);
            let after = after.ok_or_else(|| FormatError::damaged(at, "a value ends after its page"))?;
            self.found.runs.push(Run { start: at, stride: width, length: width, count });
            self.found.add_rows(count, true);
            return Ok(after);
        }
        for _ in 0..count {
            let length = self.length(at, end).await?;
            let value = at + 4;
            if length > end - value {
                return Err(FormatError::damaged(at, "a value ends after its page"));
            }
            self.found.rows.push((value, length));
            self.window.read = if length < LARGE_VALUE { LARGE_READ } else { SMALL_READ };
            at = value + length;
        }
        self.found.add_rows(count, true);
        Ok(at)
    }
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
    /// At least `length` bytes at `at`, and what is in memory after them.
    async fn at_least(&mut self, at: u64, length: u64) -> Result<Bytes, FormatError> {
        let end = at.checked_add(length).filter(|&end| end <= self.end && length > 0);
        let end = end.ok_or_else(|| FormatError::damaged(at, "a page ends after its column chunk"))?;
        if at < self.start || end > self.start + self.bytes.len() as u64 {
            let range = at..end.max(at.saturating_add(self.read).min(self.end));
            self.bytes = self.source.read(range).await?;
            self.start = at;
        }
        Ok(self.bytes.slice((at - self.start) as usize..))
    }
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
        SampleColumn { path: "jpg", max_definition: 0, width: None }
    }

    fn span(file: &Bytes, rows: usize) -> Span {
        Span { start: 0, end: file.size(), rows: rows as u64 }
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
