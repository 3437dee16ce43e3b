//! Parquet files: each value of a column of bytes is a sample.
//!
//! The metadata at the end of the file has the chunks of each column. A chunk has pages, and in a
//! page each value follows its length. Hugging Face `datasets` writes columns of images, audio and
//! video without compression and dictionaries. Then each value lies in one place.
//!
//! Decision: such a sample is one extent, found by a walk over the lengths of values. The price is
//! up to one request per large value when the file is indexed. A sample of a compressed page is a
//! slice of the decoded page, or of its dictionary. The price is that these pages are read and
//! decoded when the file is indexed. Where such a page's header has a checksum, it is read with the
//! page. Values of other pages are read alone, so that checksums of whole pages cannot be compared.
//!
//! Rows whose value is null are skipped and counted. A column `label`, `labels`, `target`, `class`
//! or `cls` is decoded.

mod codec;
mod delta;
mod labels;
mod levels;
mod metadata;
mod page;
mod thrift;
mod values;
mod walk;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use futures::StreamExt;

use crate::columns::{self, Candidate, SharedTexts};
use crate::joined::{self, JoinedColumn};
use crate::{
    BlockReader, ColumnValues, Extents, FileSource, FormatError, FormatErrorKind, FoundSamples, MadeRow,
    MadeRows, Run, ValueColumn, le,
};
use codec::PageMemory;
use foreread_types::Decoder;
use metadata::{Chunk, Leaf, Meaning, PagePlace, Physical, RowGroup};
pub(crate) use page::checked_values;
use walk::{SampleColumn, Span};

/// The first and the last bytes of a file.
const MAGIC: &[u8; 4] = b"PAR1";

/// The last bytes of a file with encrypted metadata.
const ENCRYPTED_MAGIC: &[u8; 4] = b"PARE";

/// The size of blocks in bytes. The metadata often fits in the last one.
const BLOCK: u64 = 64 << 10;

/// The most bytes in one request for offset indexes.
const REQUEST: u64 = 8 << 20;

/// Spans of pages that are walked at once.
const SPANS_AT_ONCE: usize = 32;

/// Spans of compressed pages that are walked at once. Each has a page in memory.
const PACKED_AT_ONCE: usize = 8;

/// Chunks of labels that are read at once.
const LABELS_AT_ONCE: usize = 8;

/// The most bytes of a chunk of labels.
const MAX_LABELS: u64 = 256 << 20;

/// How to read a Parquet file.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct ParquetOptions {
    /// The column with the samples, such as `image.bytes` or `image`. Without it the only column of
    /// bytes is used.
    pub column: Option<String>,
    /// The column with the labels. Without it a column with a usual name is used: `label`,
    /// `labels`, `target`, `class` or `cls`.
    pub label: Option<String>,
    /// More columns of bytes. A sample has a value of each, as its fields.
    pub joined: Vec<String>,
    /// Columns of numbers and texts whose values samples have.
    pub columns: Vec<String>,
}

/// Finds the samples of a Parquet file: the values of one column of bytes.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for columns that are compressed or encoded,
/// and if the column is not clear.
/// [`Damaged`](crate::FormatErrorKind::Damaged) for files that the format does not permit.
/// [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
pub async fn index(source: &dyn FileSource, options: &ParquetOptions) -> Result<FoundSamples, FormatError> {
    let reader = BlockReader::new(source, BLOCK);
    let (at, bytes) = read_metadata(&reader).await?;
    let malformed = || FormatError::damaged(at, "the metadata is malformed");
    let leaves = metadata::leaves(&bytes).ok_or_else(malformed)?;
    let chosen =
        choose(&leaves, options.column.as_deref()).map_err(|why| FormatError::unsupported(at, why))?;
    let label = label_leaf(&leaves, chosen, options.label.as_deref());
    let label = label.map_err(|why| FormatError::unsupported(at, why))?;
    joined::names(options.column.iter().chain(&options.joined).map(String::as_str), &options.columns)?;
    let mut samples = vec![chosen];
    for name in &options.joined {
        samples.push(choose(&leaves, Some(name)).map_err(|why| FormatError::unsupported(at, why))?);
    }
    // Labels have that name already.
    let is_other = |name: &&String| label.is_none() || *name != "label";
    let names: BTreeSet<&String> = options.columns.iter().filter(is_other).collect();
    let named = names.iter().map(|name| value_leaf(&leaves, name));
    let named = named.collect::<Result<Vec<_>, _>>().map_err(|why| FormatError::unsupported(at, why))?;
    let mut wanted: Vec<usize> = Vec::new();
    for leaf in samples.iter().chain(&label).chain(&named) {
        if !wanted.contains(leaf) {
            wanted.push(*leaf);
        }
    }
    let place_of = |leaf: usize| wanted.iter().position(|known| *known == leaf).unwrap_or_default();
    let mut groups = metadata::row_groups(&bytes, &wanted).ok_or_else(malformed)?;
    groups.retain(|group| group.rows > 0);
    for (place, &leaf) in wanted.iter().enumerate() {
        check_chunks(&groups, place, &leaves[leaf].path, at)?;
    }
    let mut columns = Vec::with_capacity(samples.len());
    for &leaf in &samples {
        let groups = of_column(&groups, place_of(leaf));
        let column = sample_column(source, &leaves[leaf], &groups, at)?;
        let spans = spans(&reader, &groups, &column).await?;
        columns.push((find(source, &column, spans).await?, column.decoders));
    }
    let memory = PageMemory::new(source);
    let (mut found, present, decoders) = samples_of(options, &leaves[chosen].path, columns)?;
    let paths: Vec<&str> = samples.iter().map(|leaf| &*leaves[*leaf].path).collect();
    let mut summary = format!(
        "Parquet, column {}: {} values in {} row groups",
        paths.join(" and "),
        found.len(),
        groups.len()
    );
    for (place, decoder) in decoders.iter().enumerate() {
        summary += &format!("{} {decoder}", if place == 0 { ", compressed with" } else { " and" });
    }
    for (&leaf, name) in named.iter().zip(names) {
        let groups = of_column(&groups, place_of(leaf));
        let values = read_labels(&reader, &leaves[leaf], &groups, &present, &memory).await?;
        found.columns.push(ValueColumn { name: name.clone(), values });
    }
    if let Some(label) = label {
        let (leaf, groups) = (&leaves[label], of_column(&groups, place_of(label)));
        match read_labels(&reader, leaf, &groups, &present, &memory).await {
            Ok(values) => {
                summary += &format!(", labels of column {}", leaf.path);
                found.columns.push(ValueColumn { name: "label".to_owned(), values });
            }
            Err(error) if error.kind() == FormatErrorKind::Unsupported && options.label.is_none() => {
                found.notes.push(format!("no labels: {}", error.why()));
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(named) = named_label(&leaves, chosen).filter(|_| label.is_none()) {
        found.notes.push(columns::no_label_type(named));
    }
    summary.extend(found.notes.iter().flat_map(|note| [", ", note]));
    found.summary = summary;
    let samples = columns::described(&paths.join(" and "), leaves[chosen].meaning == Meaning::Plain);
    Ok(found.with_chosen(samples, label.map(|label| &*leaves[label].path)))
}

/// The samples of one column, or of several, and the rows that have one. Also the decoders of
/// samples that are decoded.
fn samples_of(
    options: &ParquetOptions,
    first: &str,
    columns: Vec<(Values, Vec<Decoder>)>,
) -> Result<(FoundSamples, PresentRows, Vec<Decoder>), FormatError> {
    let mut decoders: Vec<Decoder> = Vec::new();
    for decoder in columns.iter().filter(|(values, _)| values.made.is_some()).flat_map(|(_, of)| of) {
        if !decoders.contains(decoder) {
            decoders.push(*decoder);
        }
    }
    if options.joined.is_empty() {
        let found = columns.into_iter().next().map(|(Values { extents, made, present }, _)| {
            let skipped = present.iter().filter(|run| !run.1).map(|run| run.0).sum();
            (FoundSamples { skipped, made, ..FoundSamples::at(extents, "") }, present)
        });
        let (found, present) =
            found.unwrap_or_else(|| (FoundSamples::at(Extents::Rows(Vec::new()), ""), Vec::new()));
        return Ok((found, present, decoders));
    }
    let named = options.column.as_deref().unwrap_or(first);
    let all = std::iter::once(named).chain(options.joined.iter().map(String::as_str));
    let names = joined::names(all, &options.columns)?;
    let column =
        |(name, (Values { extents, made, present }, _))| JoinedColumn { name, extents, made, present };
    let (found, present) = joined::join(names.into_iter().zip(columns).map(column).collect())?;
    Ok((found, present, decoders))
}

/// The row groups with the chunk of one column.
fn of_column(groups: &[RowGroup], place: usize) -> Vec<RowGroup> {
    let one = |group: &RowGroup| RowGroup { rows: group.rows, chunks: vec![group.chunks[place].clone()] };
    groups.iter().map(one).collect()
}

/// The column with values that samples have.
fn value_leaf(leaves: &[Leaf], name: &str) -> Result<usize, String> {
    let found = leaves.iter().position(|leaf| leaf.path == name && labels::kind(leaf).is_some());
    found.ok_or_else(|| columns::no_label(name, leaves.iter().map(|leaf| &*leaf.path)))
}

/// The metadata, and its offset in the file.
async fn read_metadata(reader: &BlockReader<'_>) -> Result<(u64, Bytes), FormatError> {
    let size = reader.size();
    let tail_at = size.saturating_sub(8);
    let tail = reader.read(tail_at, size.min(8)).await?;
    if tail.ends_with(ENCRYPTED_MAGIC) {
        return Err(FormatError::unsupported(tail_at, "the file is encrypted: decrypt it first"));
    }
    let length = le::u32(&tail, 0).filter(|_| tail.len() == 8 && tail.ends_with(MAGIC));
    let length = length.ok_or_else(|| {
        FormatError::damaged(tail_at, "the end of the Parquet file is missing: the file was cut short")
    })?;
    let at = tail_at.checked_sub(length.into());
    let at = at.ok_or_else(|| FormatError::damaged(tail_at, "the metadata is longer than the file"))?;
    Ok((at, reader.read(at, length.into()).await?))
}

/// The column with the samples.
fn choose(leaves: &[Leaf], field: Option<&str>) -> Result<usize, String> {
    let is_usable =
        |leaf: &Leaf| !leaf.is_repeated && matches!(leaf.physical, Physical::ByteArray | Physical::Fixed(_));
    let usable: Vec<usize> = (0..leaves.len()).filter(|&at| is_usable(&leaves[at])).collect();
    let candidate =
        |&at: &usize| Candidate { path: &leaves[at].path, is_bytes: leaves[at].meaning == Meaning::Plain };
    let candidates: Vec<_> = usable.iter().map(candidate).collect();
    columns::choose(&candidates, field).map(|chosen| usable[chosen])
}

/// The column with the labels.
fn label_leaf(leaves: &[Leaf], samples: usize, chosen: Option<&str>) -> Result<Option<usize>, String> {
    let usable = (0..leaves.len()).filter(|&at| at != samples && labels::kind(&leaves[at]).is_some());
    let ranked = usable.filter_map(|at| Some((columns::label_rank(&leaves[at].path, chosen)?, at)));
    match (ranked.min(), chosen) {
        (None, Some(chosen)) => Err(columns::no_label(chosen, leaves.iter().map(|leaf| &*leaf.path))),
        (first, _) => Ok(first.map(|(_, at)| at)),
    }
}

/// A column with the name of labels, whatever its type.
fn named_label(leaves: &[Leaf], samples: usize) -> Option<&str> {
    let top =
        |leaf: &Leaf| leaf.path.split('.').next().and_then(|name| columns::label_rank(name, None)).is_some();
    let mut named = leaves.iter().enumerate().filter(|&(at, leaf)| at != samples && top(leaf));
    named.next().map(|(_, leaf)| leaf.path.as_str())
}

/// Checks that the chunks of a column have as many values as rows, lie before the metadata at
/// `end`, and do not overlap. Otherwise a small file could have any number of samples.
fn check_chunks(groups: &[RowGroup], place: usize, path: &str, end: u64) -> Result<(), FormatError> {
    let mut sorted: Vec<(&Chunk, u64)> =
        groups.iter().map(|group| (&group.chunks[place], group.rows)).collect();
    sorted.sort_unstable_by_key(|(chunk, _)| chunk.start);
    let mut free = 0;
    for (chunk, rows) in sorted {
        if chunk.is_elsewhere {
            let why = format!("column {path} is encrypted or in another file: write it again into one file");
            return Err(FormatError::unsupported(end, why));
        }
        let next = chunk.start.checked_add(chunk.length).filter(|&next| next <= end && chunk.start >= free);
        let why = "the chunks of a column overlap, or do not fit in the file";
        free = next.ok_or_else(|| FormatError::damaged(end, why))?;
        if chunk.values != rows {
            return Err(FormatError::damaged(end, "a chunk has another number of values than rows"));
        }
    }
    Ok(())
}

/// The column with the samples.
fn sample_column<'a>(
    source: &dyn FileSource,
    leaf: &'a Leaf,
    groups: &[RowGroup],
    at: u64,
) -> Result<SampleColumn<'a>, FormatError> {
    let path = &leaf.path;
    let mut decoders = Vec::new();
    for chunk in groups.iter().map(|group| &group.chunks[0]) {
        match codec::decoder(chunk.codec, path, chunk.start)? {
            Some(decoder) if !decoders.contains(&decoder) => decoders.push(decoder),
            _ => {}
        }
    }
    let width = match leaf.physical {
        Physical::Fixed(0) => {
            return Err(FormatError::damaged(at, format!("the values of column {path} have no bytes")));
        }
        Physical::Fixed(width) => Some(width),
        _ => None,
    };
    Ok(SampleColumn {
        path,
        max_definition: leaf.max_definition,
        width,
        decoders,
        has_dictionary: groups.iter().any(|group| group.chunks[0].has_dictionary),
        memory: PageMemory::new(source),
        left: AtomicU64::new(source.size()),
    })
}

/// The spans of pages that can be walked at once: pages of the offset index, or whole chunks.
async fn spans(
    reader: &BlockReader<'_>,
    groups: &[RowGroup],
    column: &SampleColumn<'_>,
) -> Result<Vec<Span>, FormatError> {
    // The pages of a chunk with a dictionary need its first page.
    let index_of =
        |group: &RowGroup| group.chunks[0].offset_index.filter(|_| !group.chunks[0].has_dictionary);
    let indexes: Vec<_> = groups.iter().filter_map(index_of).collect();
    // An index that does not fit is not used.
    let fits =
        |&(start, length): &(u64, u64)| start.checked_add(length).is_some_and(|end| end <= reader.size());
    let total = indexes.iter().try_fold(0_u64, |total, &(_, length)| total.checked_add(length));
    let is_usable = indexes.iter().all(fits) && total.is_some_and(|total| total <= reader.size());
    let mut read = match is_usable {
        true => reader.read_all(&indexes, REQUEST).await?.into_iter(),
        false => Vec::new().into_iter(),
    };
    let mut spans = Vec::new();
    for group in groups {
        let chunk = &group.chunks[0];
        let decoder = codec::decoder(chunk.codec, column.path, chunk.start)?;
        let recipe = column.decoders.iter().position(|known| Some(*known) == decoder).map(|at| at as u32);
        let whole = Span { start: chunk.start, end: chunk.start + chunk.length, rows: group.rows, recipe };
        let index = index_of(group).and_then(|_| read.next());
        let pages = index.and_then(|bytes| metadata::offset_index(&bytes));
        match pages.and_then(|pages| page_spans(&pages, whole)) {
            Some(pages) => spans.extend(joined(pages)),
            None => spans.push(whole),
        }
    }
    Ok(spans)
}

/// The pages of an offset index, if they are exactly the pages of the chunk.
fn page_spans(pages: &[PagePlace], whole: Span) -> Option<Vec<Span>> {
    let mut spans = Vec::with_capacity(pages.len());
    let (mut at, mut row) = (whole.start, 0);
    for (number, &(offset, length, first_row)) in pages.iter().enumerate() {
        let next_row = pages.get(number + 1).map_or(whole.rows, |next| next.2);
        if offset != at || first_row != row || length == 0 {
            return None;
        }
        at = at.checked_add(length)?;
        row = next_row;
        spans.push(Span { start: offset, end: at, rows: next_row.checked_sub(first_row)?, ..whole });
    }
    (at == whole.end && !pages.is_empty()).then_some(spans)
}

/// Joins small pages in a row, which are walked with fewer requests than one each.
fn joined(pages: Vec<Span>) -> Vec<Span> {
    let mut spans = Vec::<Span>::new();
    for page in pages {
        let most = if page.recipe.is_some() { walk::PACKED_READ } else { walk::LARGE_READ };
        match spans.last_mut() {
            Some(last) if page.end - last.start <= most => {
                last.end = page.end;
                last.rows += page.rows;
            }
            _ => spans.push(page),
        }
    }
    spans
}

/// The values of the column.
struct Values {
    extents: Extents,
    made: Option<MadeRows>,
    present: PresentRows,
}

/// Runs of rows, and whether they have a value.
type PresentRows = Vec<(u64, bool)>;

/// The places of all values.
async fn find(
    source: &dyn FileSource,
    column: &SampleColumn<'_>,
    spans: Vec<Span>,
) -> Result<Values, FormatError> {
    let (mut rows, mut runs, mut present) = (Vec::new(), Vec::<Run>::new(), Vec::new());
    let mut made = Vec::<MadeRow>::new();
    let at_once = if column.decoders.is_empty() { SPANS_AT_ONCE } else { PACKED_AT_ONCE };
    let walks = futures::stream::iter(spans).map(|span| walk::walk(source, column, span));
    let mut walks = walks.buffered(at_once);
    while let Some(found) = walks.next().await {
        let found = found?;
        rows.extend(found.rows);
        runs.extend(found.runs);
        made.extend(found.made);
        present.extend(found.present);
    }
    let extents = if column.has_runs() { Extents::Runs(runs) } else { Extents::Rows(rows) };
    let mut recipes: Vec<_> = column.decoders.iter().map(|decoder| vec![*decoder]).collect();
    // Lists that no page needs would keep older versions from reading the catalog.
    let plain = recipes.len() as u32;
    if made.iter().any(|row| row.recipe.is_some_and(|recipe| recipe >= plain)) {
        recipes.extend(column.decoders.iter().map(|decoder| vec![Decoder::ParquetPage, *decoder]));
    }
    let is_made = made.iter().any(|row| row.recipe.is_some());
    let made = is_made.then_some(MadeRows { recipes, rows: made, more: Vec::new() });
    Ok(Values { extents, made, present })
}

/// The labels of the rows that have a sample.
async fn read_labels(
    reader: &BlockReader<'_>,
    leaf: &Leaf,
    groups: &[RowGroup],
    present: &[(u64, bool)],
    memory: &PageMemory,
) -> Result<ColumnValues, FormatError> {
    let unsupported = |problem: &str| FormatError::unsupported(0, format!("column {} {problem}", leaf.path));
    let kind = labels::kind(leaf).ok_or_else(|| unsupported("has no labels"))?;
    let rows = groups.iter().try_fold(0_u64, |rows, group| rows.checked_add(group.rows));
    // A run of equal labels takes few bytes, and a step for each row.
    if rows.is_none_or(|rows| rows > reader.size()) {
        return Err(unsupported("has more rows than the file has bytes"));
    }
    if groups.iter().any(|group| group.chunks[0].length > MAX_LABELS) {
        return Err(unsupported("is too large for labels"));
    }
    let mut values = columns::no_labels(kind);
    let mut texts = SharedTexts::default();
    let mut rows = present.iter().flat_map(|&(count, is_present)| (0..count).map(move |_| is_present));
    // Places are copied, because a lazy iterator over groups makes a future that no thread can
    // take.
    let places: Vec<_> = groups.iter().map(|group| (group.chunks[0].start, group.chunks[0].length)).collect();
    let reads = places.into_iter().map(|(start, length)| reader.read(start, length));
    let bytes = futures::stream::iter(reads).buffered(LABELS_AT_ONCE);
    let mut chunks = bytes.zip(futures::stream::iter(groups));
    while let Some((bytes, group)) = chunks.next().await {
        let mut emit = |label| {
            if rows.next() == Some(true) {
                columns::push_label(&mut values, label);
            }
        };
        labels::decode(&bytes?, leaf, &group.chunks[0], memory, &mut texts, &mut emit)?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_index_is_used_if_it_covers_the_chunk() {
        let whole = Span { start: 100, end: 160, rows: 9, recipe: None };
        let pages = [(100, 20, 0), (120, 30, 4), (150, 10, 4)];
        let expected = [(100, 120, 4), (120, 150, 0), (150, 160, 5)];
        let expected = expected.map(|(start, end, rows)| Span { start, end, rows, ..whole });
        assert_eq!(page_spans(&pages, whole), Some(expected.to_vec()));
        for (at, wrong) in [
            (0, (100, 21, 0)),
            (0, (99, 21, 0)),
            (0, (100, 20, 1)),
            (1, (120, 30, 5)),
            (2, (150, 0, 4)),
            (2, (150, 9, 4)),
            (2, (150, u64::MAX, 4)),
            (2, (150, 10, 10)),
        ] {
            let mut pages = pages;
            pages[at] = wrong;
            assert_eq!(page_spans(&pages, whole), None, "{pages:?}");
        }
        assert_eq!(page_spans(&[], whole), None);
    }

    /// Three pages in a chunk with an index, and a chunk without one.
    #[test]
    fn large_pages_of_an_index_are_walked_at_once() {
        let places = [(100_u64, 9_u64, 0_u64), (109, 150_000, 3), (150_109, 7, 4)];
        let mut index = vec![0x19, 0x3c];
        for (offset, length, row) in places {
            for value in [offset, length, row] {
                index.push(0x16);
                let mut value = value * 2;
                while value > 0x7f {
                    index.push(value as u8 | 0x80);
                    value >>= 7;
                }
                index.push(value as u8);
            }
            index.push(0);
        }
        index.push(0);
        let length = index.len() as u64;
        index.resize(1000, 0);
        let chunk = |start, length, offset_index| Chunk { start, length, offset_index, ..Chunk::default() };
        let group = |rows, chunk| RowGroup { rows, chunks: vec![chunk] };
        let groups = [group(5, chunk(100, 150_016, Some((0, length)))), group(8, chunk(200_000, 40, None))];
        let file = Bytes::from(index);
        let reader = BlockReader::new(&file, BLOCK);
        let leaf = Leaf {
            path: "jpg".to_owned(),
            physical: Physical::ByteArray,
            meaning: Meaning::Plain,
            max_definition: 0,
            is_repeated: false,
        };
        let column = sample_column(&file, &leaf, &groups, 0).unwrap();
        let found = futures::executor::block_on(spans(&reader, &groups, &column)).unwrap();
        let found: Vec<_> = found.iter().map(|span| (span.start, span.end, span.rows)).collect();
        assert_eq!(found, [(100, 109, 3), (109, 150_109, 1), (150_109, 150_116, 1), (200_000, 200_040, 8)]);
        let small = [(0, 9), (9, 100), (100, 200_000), (200_000, 200_001)];
        let small = small.map(|(start, end)| Span { start, end, rows: 2, recipe: None });
        let expected = [Span { end: 100, rows: 4, ..small[0] }, small[2], small[3]];
        assert_eq!(joined(small.to_vec()), expected);
    }

    /// A small file could have any number of samples if its row groups shared their chunks.
    #[test]
    fn chunks_that_overlap_are_damaged() {
        let group = |start, length, values| {
            let chunk = Chunk { start, length, values, ..Chunk::default() };
            RowGroup { rows: 5, chunks: vec![chunk] }
        };
        let check = |groups: &[RowGroup]| check_chunks(groups, 0, "jpg", 100).map_err(|error| error.kind());
        assert_eq!(check(&[group(50, 50, 5), group(4, 46, 5)]), Ok(()));
        for wrong in
            [group(4, 47, 5), group(50, 50, 5), group(0, 101, 5), group(4, u64::MAX, 5), group(4, 9, 4)]
        {
            assert_eq!(check(&[group(50, 50, 5), wrong]), Err(FormatErrorKind::Damaged));
        }
        let mut elsewhere = group(4, 9, 5);
        elsewhere.chunks[0].is_elsewhere = true;
        assert_eq!(check(&[elsewhere]), Err(FormatErrorKind::Unsupported));
    }
}
