//! The places of a dataset's rows.

use super::chunk::{ChunkLayout, Stored};
use super::cursor::product;
use super::dataset::{Dataset, Layout};
use super::datatype::Element;
use super::file::File;
use super::filtered::{self, Place};
use super::{global_heap, values};
use crate::{ArrayType, Extents, FormatError, Run};

/// Where the rows of a dataset lie.
pub(super) enum Rows {
    /// In pieces of the file, as they are.
    Stored(Extents),
    /// Some are decoded.
    Made(Vec<Place>),
}

impl Rows {
    /// The place of each row, one by one.
    pub(super) fn places(self, file: &File<'_>, dataset: &Dataset) -> Result<Vec<Place>, FormatError> {
        let extents = match self {
            Self::Made(places) => return Ok(places),
            Self::Stored(extents) => extents,
        };
        let plain = |(at, length)| Place::plain(at, length);
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

/// The place of all elements, which must lie in one piece, or in one compressed chunk.
pub(super) async fn whole(file: &File<'_>, dataset: &Dataset) -> Result<Place, FormatError> {
    check_element(dataset)?;
    let length = dataset.bytes().unwrap_or(u64::MAX);
    let compressed = match &dataset.layout {
        Layout::Chunked(layout) if length > 0 && !is_one_chunk(&dataset.shape, &layout.lengths) => {
            is_compressed(file, dataset, layout).await?
        }
        _ => false,
    };
    match (&dataset.layout, dataset.shape.is_empty()) {
        (Layout::Refused(why), _) => Err(dataset.refused(why)),
        _ if length == 0 => Ok(Place::plain(0, 0)),
        (Layout::Contiguous(Some(at)) | Layout::Compact(at), _) => {
            let end = at.checked_add(length).filter(|&end| end <= file.size());
            end.map(|_| Place::plain(*at, length)).ok_or_else(|| FormatError::cut_short(*at, file.size()))
        }
        (_, true) => Err(dataset.refused("it was never written")),
        (Layout::Chunked(layout), _) if is_one_chunk(&dataset.shape, &layout.lengths) => {
            let chunks = values::all_chunks(file, dataset, layout).await?;
            let place = filtered::places(dataset, layout, &chunks, length)?.pop();
            place.ok_or_else(|| dataset.damaged("it has no chunk"))
        }
        (Layout::Chunked(_), _) if compressed => {
            let shape: Vec<String> = dataset.shape.iter().map(u64::to_string).collect();
            Err(dataset.refused(&format!(
                "it lies in several compressed chunks: rewrite by `h5repack -l {}:CHUNK={} in.h5 out.h5`",
                dataset.path,
                shape.join("x")
            )))
        }
        _ => match runs(file, dataset).await? {
            Rows::Stored(Extents::Runs(runs)) if is_one_piece(&runs) => {
                Ok(Place::plain(runs[0].start, length))
            }
            _ => Err(dataset.refused(&format!(
                "it lies in several pieces: rewrite by `h5repack -f NONE -l {}:CONTI in.h5 out.h5`",
                dataset.path
            ))),
        },
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
            if !spans(&dataset.shape, &layout.lengths) {
                return Err(dataset.to_rewrite("a row is not one piece of a chunk"));
            }
            let chunks = values::all_chunks(file, dataset, layout).await?;
            if values::are_plain(&chunks, dataset, layout) {
                return Ok(Rows::Stored(Extents::Runs(of_chunks(dataset, layout, length, &chunks.stored))));
            }
            if layout.lengths[0] > 1 && dataset.shape[0] > 1 {
                let names: Vec<String> = dataset.filters.iter().map(|filter| filter.name()).collect();
                return Err(dataset.to_rewrite(&format!(
                    "its chunks of {} rows are compressed ({})",
                    layout.lengths[0],
                    names.join(", ")
                )));
            }
            Ok(Rows::Made(filtered::places(dataset, layout, &chunks, length)?))
        }
    }
}

/// Whether the bytes of each row are one piece of a chunk.
fn spans(shape: &[u64], chunk: &[u64]) -> bool {
    // After the first dimension that is longer than one, every part of the chunk must be in use.
    let mut exact = false;
    shape.iter().zip(chunk).skip(1).all(|(&length, &chunk)| {
        let fits = if exact { chunk == length } else { chunk >= length };
        exact |= length > 1;
        fits
    })
}

/// Whether some chunk must be decoded.
async fn is_compressed(
    file: &File<'_>,
    dataset: &Dataset,
    layout: &ChunkLayout,
) -> Result<bool, FormatError> {
    if dataset.filters.is_empty() {
        return Ok(false);
    }
    let chunks = values::all_chunks(file, dataset, layout).await?;
    Ok(!values::are_plain(&chunks, dataset, layout))
}

/// Whether all elements are one piece of the only chunk.
fn is_one_chunk(shape: &[u64], chunk: &[u64]) -> bool {
    match (shape.first(), chunk.first()) {
        (Some(&length), Some(&rows)) if length <= rows => {
            spans(shape, chunk) && (length == 1 || shape[1..] == chunk[1..])
        }
        _ => false,
    }
}

/// Whether runs are all elements in one piece.
fn is_one_piece(runs: &[Run]) -> bool {
    matches!(runs, [run] if run.count == 1 || run.stride == run.length)
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
    fn rows_are_one_piece_if_the_chunk_spans_the_rest() {
        assert!(spans(&[9], &[4]));
        assert!(spans(&[9, 5, 3], &[1, 5, 3]));
        assert!(spans(&[9, 5, 3], &[2, 7, 3]));
        assert!(spans(&[9, 1, 3], &[2, 8, 4]));
        assert!(!spans(&[9, 5, 3], &[2, 5, 4]));
        assert!(!spans(&[9, 5, 3], &[2, 4, 3]));
    }

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
