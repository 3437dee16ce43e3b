//! The places of a dataset's rows.
//!
//! A row is one piece of the file, a slice of a decoded chunk, or several of them. Rows in very
//! many pieces are refused, because each piece takes a read or the decoding of a chunk.

use super::chunk::Chunks;
use super::chunk_layout::{ChunkLayout, Stored};
use super::cursor::product;
use super::dataset::{Dataset, Layout};
use super::datatype::Element;
use super::file::File;
use super::filtered::{Part, Samples, Steps};
use super::pieces::{Piece, Pieces};
use super::{global_heap, values};
use crate::found::{MOST_DECODED, MOST_PARTS};
use crate::{ArrayType, Extents, FormatError, Run};

/// The most pieces of a row.
const MOST_PIECES: u64 = 64;

/// Bytes of the file's limit that each part of a dataset takes.
const PART: u64 = 8;

/// Where the rows of a dataset lie.
pub(super) enum Rows {
    /// In pieces of the file, as they are.
    Stored(Extents),
    /// Some are decoded, or have several parts.
    Made(Samples),
}

impl Rows {
    /// The parts of each row, one row after another.
    pub(super) fn parts(self, file: &File<'_>, dataset: &Dataset) -> Result<Vec<Vec<Part>>, FormatError> {
        let extents = match self {
            Self::Made(samples) => return Ok(samples.into_parts()),
            Self::Stored(extents) => extents,
        };
        let plain = |(at, length)| vec![Part::plain(at, length)];
        Ok(match extents {
            Extents::Rows(rows) => rows.into_iter().map(plain).collect(),
            Extents::Runs(runs) => {
                // Chunks that overlap would have more rows than the file has bytes.
                let bytes = runs.iter().map(|run| run.count.saturating_mul(run.length));
                if bytes.fold(0, u64::saturating_add) > file.size() {
                    return Err(dataset.damaged("its chunks overlap"));
                }
                let of_run =
                    |run: Run| (0..run.count).map(move |row| (run.start + row * run.stride, run.length));
                runs.into_iter().flat_map(of_run).map(plain).collect()
            }
        })
    }
}

/// The place of each row.
pub(super) async fn extents(file: &File<'_>, dataset: &Dataset) -> Result<Rows, FormatError> {
    match &dataset.datatype.element {
        Element::Sequence(number) if dataset.shape.len() == 1 => {
            let elements = values::read(file, dataset).await?;
            let references = global_heap::references(file, dataset, &elements, number.width as u64)?;
            Ok(Rows::Stored(Extents::Rows(global_heap::locate(file, &references).await?)))
        }
        Element::Sequence(_) => Err(dataset.refused("sequences are samples in one dimension only")),
        _ => runs(file, dataset).await,
    }
}

/// The parts that all elements are, in their order.
pub(super) async fn whole(file: &File<'_>, dataset: &Dataset) -> Result<Vec<Part>, FormatError> {
    check_element(dataset)?;
    let length = dataset.bytes().unwrap_or(u64::MAX);
    match (&dataset.layout, dataset.shape.is_empty()) {
        (Layout::Refused(why), _) => Err(dataset.refused(why)),
        _ if length == 0 => Ok(vec![Part::plain(0, 0)]),
        (Layout::Contiguous(Some(at)) | Layout::Compact(at), _) => {
            let end = at.checked_add(length).filter(|&end| end <= file.size());
            end.map(|_| vec![Part::plain(*at, length)])
                .ok_or_else(|| FormatError::cut_short(*at, file.size()))
        }
        (Layout::Contiguous(None), _) | (_, true) => Err(dataset.refused("it was never written")),
        (Layout::Chunked(layout), _) => {
            let pieces = Pieces::of_whole(&dataset.shape, &layout.lengths);
            if pieces.count().is_none_or(|count| count > file.size()) {
                return Err(in_pieces(dataset, &pieces));
            }
            let chunks = values::all_chunks(file, dataset, layout).await?;
            let mut cut = Cut { dataset, chunks: &chunks, steps: Steps::new(dataset, layout) };
            // Few bytes describe many datasets in many pieces each.
            file.spend(pieces.count().unwrap_or(u64::MAX).min(MOST_PARTS as u64) * PART)?;
            let mut parts = Vec::new();
            pieces.each(0, |piece| {
                cut.part(&piece)?.join(&mut parts);
                if parts.len() > MOST_PARTS { Err(in_pieces(dataset, &pieces)) } else { Ok(()) }
            })?;
            Ok(parts)
        }
    }
}

/// The error of a dataset that is one sample in too many pieces.
fn in_pieces(dataset: &Dataset, pieces: &Pieces<'_>) -> FormatError {
    let count = pieces.count().unwrap_or(u64::MAX);
    let is_chunk = !dataset.filters.is_empty() && dataset.bytes().is_some_and(|bytes| bytes <= MOST_DECODED);
    let shape: Vec<String> = dataset.shape.iter().map(u64::to_string).collect();
    let layout = match is_chunk {
        true => format!("-l {}:CHUNK={}", dataset.path, shape.join("x")),
        false => format!("-f NONE -l {}:CONTI", dataset.path),
    };
    dataset.refused(&format!(
        "it lies in {count} pieces of chunks, more than {MOST_PARTS}: rewrite by `h5repack {layout} in.h5 \
         out.h5`"
    ))
}

/// The chunks that cut samples.
struct Cut<'a> {
    dataset: &'a Dataset,
    chunks: &'a Chunks,
    steps: Steps<'a>,
}

impl Cut<'_> {
    /// Where a piece lies.
    fn part(&mut self, piece: &Piece<'_>) -> Result<Part, FormatError> {
        let size = self.dataset.datatype.size;
        let number = self.chunks.grid.number(piece.chunk);
        // All chunks are there, in the order of their numbers.
        let chunk = number.and_then(|number| self.chunks.stored.get(usize::try_from(number).ok()?));
        let chunk = chunk.ok_or_else(|| self.dataset.damaged("it has no chunk"))?;
        self.steps.part(self.chunks, chunk, piece.offset * size, piece.length * size)
    }
}

/// The array that a row is, or with `whole` the dataset.
pub(super) fn array_type(dataset: &Dataset, whole: bool) -> Option<ArrayType> {
    if let Element::Sequence(number) = dataset.datatype.element {
        return Some(ArrayType { dtype: number.dtype(), shape: vec![None] });
    }
    let shape = dataset.shape.iter().skip(if whole { 0 } else { 1 });
    let shape = shape.chain(&dataset.datatype.inner).copied().map(Some).collect();
    Some(ArrayType { dtype: dataset.datatype.dtype()?, shape })
}

/// Whether elements are bytes in the dataset that NumPy can read.
fn check_element(dataset: &Dataset) -> Result<(), FormatError> {
    match &dataset.datatype.element {
        Element::Number(_) | Element::Opaque => Ok(()),
        Element::Text(_) | Element::LongText => Err(dataset.refused("texts cannot be samples, only labels")),
        Element::Sequence(_) => Err(dataset.refused("sequences are samples as rows only")),
        Element::Other(name) => Err(dataset.refused(&format!("elements of type {name} cannot be samples"))),
    }
}

/// The places of rows that lie in the dataset's pieces.
async fn runs(file: &File<'_>, dataset: &Dataset) -> Result<Rows, FormatError> {
    check_element(dataset)?;
    let Some(&count) = dataset.shape.first() else {
        return Err(dataset.refused("it has one element only, no rows"));
    };
    if count == 0 {
        return Ok(Rows::Stored(Extents::Runs(Vec::new())));
    }
    let length = dataset.row_bytes().unwrap_or(u64::MAX);
    if length == 0 {
        return Err(dataset.refused("its rows have no bytes"));
    }
    match &dataset.layout {
        Layout::Contiguous(Some(at)) | Layout::Compact(at) => {
            let run = Run { start: *at, stride: length, length, count };
            match run.end() {
                Some(end) if end <= file.size() => Ok(Rows::Stored(Extents::Runs(vec![run]))),
                _ => Err(FormatError::cut_short(*at, file.size())),
            }
        }
        Layout::Contiguous(None) => Err(dataset.refused("it was never written")),
        Layout::Refused(why) => Err(dataset.refused(why)),
        Layout::Chunked(layout) => {
            let pieces = Pieces::of_rows(&dataset.shape, &layout.lengths);
            let per_row = pieces.count().unwrap_or(u64::MAX);
            if per_row > MOST_PIECES {
                return Err(dataset.to_rechunk(&format!("a row lies in {per_row} pieces of chunks")));
            }
            let chunks = values::all_chunks(file, dataset, layout).await?;
            if per_row == 1 && values::are_plain(&chunks, dataset, layout) {
                return Ok(Rows::Stored(Extents::Runs(of_chunks(dataset, layout, length, &chunks.stored))));
            }
            // Few bytes of compressed chunks can have any number of rows.
            if count.checked_mul(per_row).is_none_or(|parts| parts > file.size()) {
                return Err(dataset.to_rewrite("it has more rows than the file has bytes"));
            }
            let mut cut = Cut { dataset, chunks: &chunks, steps: Steps::new(dataset, layout) };
            let mut samples = Samples::with_room(count * (per_row - 1));
            for row in 0..count {
                pieces.each(row, |piece| {
                    samples.part(cut.part(&piece)?);
                    Ok::<_, FormatError>(())
                })?;
                samples.complete();
            }
            Ok(Rows::Made(samples))
        }
    }
}

/// Rows of chunks, as few runs as possible.
fn of_chunks(dataset: &Dataset, layout: &ChunkLayout, length: u64, stored: &[Stored]) -> Vec<Run> {
    let rows = layout.lengths[0];
    // It divides the chunk's bytes, which fit in 64 bits.
    let stride = product(&layout.lengths[1..]).unwrap_or(0) * dataset.datatype.size;
    let mut runs: Vec<Run> = Vec::new();
    for (chunk, number) in stored.iter().zip(0u64..) {
        let count = rows.min(dataset.shape[0] - number * rows);
        let run = Run { start: chunk.at, stride, length, count };
        match runs.last_mut() {
            Some(last) if joins(last, &run) => {
                last.stride = (run.start - last.start) / last.count;
                last.count += run.count;
            }
            _ => runs.push(run),
        }
    }
    runs
}

/// Whether one run continues another one at the same distances.
fn joins(last: &Run, next: &Run) -> bool {
    let Some(distance) = next.start.checked_sub(last.start) else { return false };
    let fits = |stride: u64| last.count.checked_mul(stride) == Some(distance);
    match (last.count, next.count) {
        // Two rows: any distance.
        (1, 1) => true,
        (1, _) => fits(next.stride),
        (_, 1) => fits(last.stride),
        _ => last.stride == next.stride && fits(next.stride),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_at_one_distance_join() {
        let run = |start, stride, count| Run { start, stride, length: 10, count };
        assert!(joins(&run(100, 10, 4), &run(140, 10, 4)));
        assert!(joins(&run(100, 10, 4), &run(140, 99, 1)));
        assert!(joins(&run(100, 99, 1), &run(300, 10, 1)));
        assert!(joins(&run(100, 99, 1), &run(110, 10, 3)));
        assert!(!joins(&run(100, 10, 4), &run(150, 10, 4)));
        assert!(!joins(&run(100, 10, 4), &run(60, 10, 4)));
        assert!(!joins(&run(100, 10, 1), &run(10, 10, 1)));
    }
}
