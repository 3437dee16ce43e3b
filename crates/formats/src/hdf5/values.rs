//! All elements of a small dataset: labels, and the references of sequences.

use bytes::{Bytes, BytesMut};

use super::chunk::Chunks;
use super::chunk_layout::ChunkLayout;
use super::dataset::{Dataset, Layout};
use super::file::{BATCH, File};
use super::filtered;
use crate::FormatError;

/// The most decoded bytes of a small dataset, for each byte of the file.
const MOST_GROWTH: u64 = 32;

/// Reads all elements in row-major order. Those of compressed chunks are decoded.
pub(super) async fn read(file: &File<'_>, dataset: &Dataset) -> Result<Bytes, FormatError> {
    let length = dataset.bytes().unwrap_or(u64::MAX);
    if length == 0 {
        return Ok(Bytes::new());
    }
    match &dataset.layout {
        Layout::Contiguous(Some(at)) | Layout::Compact(at) => file.read(*at, length).await,
        Layout::Contiguous(None) => Err(dataset.refused("it was never written")),
        Layout::Refused(why) => Err(dataset.refused(why)),
        Layout::Chunked(layout) => {
            let chunks = all_chunks(file, dataset, layout).await?;
            if length.max(layout.bytes) > file.size().saturating_mul(MOST_GROWTH) {
                return Err(dataset.refused("its elements are far longer than the file"));
            }
            let mut bytes = BytesMut::zeroed(length as usize);
            for batch in chunks.stored.chunks(BATCH) {
                let ranges: Vec<_> = batch.iter().map(|chunk| (chunk.at, chunk.size)).collect();
                for (chunk, from) in batch.iter().zip(file.read_all(&ranges).await?) {
                    let from = filtered::elements(dataset, layout, &chunks, chunk, &from)?;
                    copy(dataset, layout, &chunks.grid.index(chunk.number), &from, &mut bytes);
                }
            }
            Ok(bytes.freeze())
        }
    }
}

/// The chunks of a dataset, all written. Those without filters have the right size.
pub(super) async fn all_chunks(
    file: &File<'_>,
    dataset: &Dataset,
    layout: &ChunkLayout,
) -> Result<Chunks, FormatError> {
    let chunks = Chunks::read(file, dataset, layout).await?;
    let (expected, found) = (chunks.grid.len(), chunks.stored.len() as u64);
    if found < expected {
        let missing = expected - found;
        return Err(dataset.refused(&format!(
            "{missing} of {expected} chunks were never written: write all rows, or rewrite by \
             `h5repack -f NONE -l {}:CONTI in.h5 out.h5`",
            dataset.path
        )));
    }
    if dataset.filters.is_empty() {
        if !are_plain(&chunks, dataset, layout) {
            return Err(dataset.damaged("a chunk has the wrong size"));
        }
        if dataset.bytes().is_none_or(|bytes| bytes > file.size()) {
            return Err(dataset.damaged("it is larger than the file: chunks overlap"));
        }
    }
    Ok(chunks)
}

/// Whether no chunk needs to be decoded.
pub(super) fn are_plain(chunks: &Chunks, dataset: &Dataset, layout: &ChunkLayout) -> bool {
    chunks.stored.iter().all(|chunk| chunks.is_plain(dataset, layout, chunk))
}

/// Copies the part of a chunk that lies in the dataset.
fn copy(dataset: &Dataset, layout: &ChunkLayout, index: &[u64], chunk: &[u8], all: &mut [u8]) {
    let element = dataset.datatype.size as usize;
    // Everything is at most as long as the file's bytes in memory, so it fits in `usize`.
    let lengths: Vec<usize> = layout.lengths.iter().map(|&length| length as usize).collect();
    let shape: Vec<usize> = dataset.shape.iter().map(|&length| length as usize).collect();
    let origin: Vec<usize> =
        index.iter().zip(&lengths).map(|(&index, &length)| index as usize * length).collect();
    let present: Vec<usize> = (0..shape.len()).map(|d| lengths[d].min(shape[d] - origin[d])).collect();
    let last = shape.len() - 1;
    let line = present[last] * element;
    let mut at = vec![0; shape.len()];
    loop {
        let (mut from, mut to) = (0, 0);
        for d in 0..shape.len() {
            from = from * lengths[d] + at[d];
            to = to * shape[d] + origin[d] + at[d];
        }
        let (from, to) = (from * element, to * element);
        all[to..to + line].copy_from_slice(&chunk[from..from + line]);
        // The next line: count up all dimensions except the last one.
        let Some(d) = (0..last).rev().find(|&d| at[d] + 1 < present[d]) else { return };
        at[d] += 1;
        at[d + 1..].fill(0);
    }
}
