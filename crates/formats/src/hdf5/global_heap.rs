//! The global heap: where sequences and texts of any length lie.
//!
//! An element refers to a collection of objects and to an object in it. Collections are read in
//! parallel, and each is followed from object to object. The price is one read per collection, and
//! one more for each further object of a large collection.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};

use super::dataset::Dataset;
use super::file::{BATCH, File};
use crate::{BlockReader, FormatError};

/// The head of a collection and of an object in bytes, for lengths of 4 and of 8 bytes.
const HEAD: u64 = 16;

/// A collection of at most this length is read at once, in bytes.
const SMALL: u64 = 16 * 1024;

/// Sequences of at least this mean length are alone in their collections, in bytes.
const ALONE: u64 = 2048;

/// The block of reads of long sequences' heads, in bytes. It is short: the data follows the head.
const HEAD_BLOCK: u64 = 512;

/// Collections that are followed at once.
const AT_ONCE: usize = 32;

/// The place of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// The length in bytes.
    length: u64,
    /// The place of the collection. `None` for an empty sequence.
    collection: Option<u64>,
    index: u32,
}

/// The references in the elements of a dataset. Each item of a sequence has `width` bytes.
pub(super) fn references(
    file: &File<'_>,
    dataset: &Dataset,
    elements: &Bytes,
    width: u64,
) -> Result<Vec<Reference>, FormatError> {
    let size = 8 + file.widths().offset;
    if dataset.datatype.size != size as u64 {
        return Err(dataset.damaged("its sequences have elements of an invalid size"));
    }
    let mut found = Vec::with_capacity(elements.len() / size);
    for element in elements.chunks_exact(size) {
        let mut cursor = file.cursor("sequence", 0, element);
        let count = u64::from(cursor.u32()?);
        let length = count.checked_mul(width).ok_or_else(|| cursor.damaged("it is longer than any file"))?;
        // The address of an empty sequence has no meaning.
        let at = cursor.address();
        let collection = if count == 0 { None } else { at? };
        if count > 0 && collection.is_none() {
            return Err(cursor.damaged("it has a length, but no place"));
        }
        found.push(Reference { length, collection, index: cursor.u32()? });
    }
    Ok(found)
}

/// The place and the length of each sequence.
pub(super) async fn locate(
    file: &File<'_>,
    references: &[Reference],
) -> Result<Vec<(u64, u64)>, FormatError> {
    let mut wanted: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (number, reference) in references.iter().enumerate() {
        if let Some(at) = reference.collection {
            wanted.entry(at).or_default().push(number);
        }
    }
    let bytes: u64 = references.iter().map(|reference| reference.length).fold(0, u64::saturating_add);
    // A collection of short sequences has 4 KiB, and the reads of several join.
    let mean = bytes / (references.len() as u64).max(1);
    let (first, block) = if mean < ALONE { (4096, 4096) } else { (2 * HEAD, HEAD_BLOCK) };
    let blocks = file.blocks_of(block);
    let wanted: Vec<(u64, Vec<usize>)> = wanted.into_iter().collect();
    let mut found = vec![(0, 0); references.len()];
    for batch in wanted.chunks(BATCH) {
        let ranges: Vec<_> =
            batch.iter().map(|&(at, _)| (at, first.min(file.size().saturating_sub(at)))).collect();
        let heads = file.read_all_by(&blocks, &ranges).await?;
        let follow = |((at, members), head): (&(u64, Vec<usize>), Bytes)| {
            let (at, members) = (*at, members.clone());
            let blocks = &blocks;
            async move { follow(file, blocks, at, head, references, members).await }
        };
        let mut coming = futures::stream::iter(batch.iter().zip(heads).map(follow)).buffer_unordered(AT_ONCE);
        while let Some(places) = coming.try_next().await? {
            for (number, place, length) in places {
                found[number] = (place, length);
            }
        }
    }
    Ok(found)
}

/// Follows a collection to the objects of `members`. Returns each one's number, place and length.
async fn follow(
    file: &File<'_>,
    blocks: &BlockReader<'_>,
    at: u64,
    head: Bytes,
    references: &[Reference],
    mut members: Vec<usize>,
) -> Result<Vec<(usize, u64, u64)>, FormatError> {
    let mut cursor = file.cursor("global heap", at, &head);
    cursor.signature(b"GCOL")?;
    cursor.version(1)?;
    cursor.skip(3)?;
    let length = cursor.length()?;
    let end = at.checked_add(length).filter(|&end| end <= file.size());
    let end = end.ok_or_else(|| FormatError::cut_short(at, file.size()))?;
    let whole = length <= SMALL;
    let (mut window, mut window_at) = (head, at);
    let mut found = Vec::with_capacity(members.len());
    members.sort_unstable_by_key(|&number| references[number].index);
    let mut place = at + HEAD;
    while !members.is_empty() && place + HEAD <= end {
        if place + HEAD > window_at + window.len() as u64 {
            let length = if whole { end - place } else { HEAD };
            file.spend(length)?;
            window = blocks.read(place, length).await?;
            window_at = place;
        }
        let mut cursor = file.cursor("global heap", place, &window[(place - window_at) as usize..]);
        let index = u32::from(cursor.u16()?);
        if index == 0 {
            // The rest is free.
            break;
        }
        cursor.skip(6)?;
        let size = cursor.length()?;
        let data = place + HEAD;
        let after = size.checked_next_multiple_of(8).and_then(|size| data.checked_add(size));
        // The last object may lack its padding.
        if data.checked_add(size).is_none_or(|last| last > end) {
            return Err(cursor.damaged("an object ends after its collection"));
        }
        let from = members.partition_point(|&number| references[number].index < index);
        let until = members.partition_point(|&number| references[number].index <= index);
        for number in members.drain(from..until) {
            let length = references[number].length;
            if length > size {
                return Err(cursor.damaged("a sequence is longer than its object"));
            }
            found.push((number, data, length));
        }
        place = after.unwrap_or(end);
    }
    match members.first() {
        None => Ok(found),
        Some(&number) => {
            let index = references[number].index;
            Err(FormatError::damaged(at, format!("HDF5 global heap: object {index} is missing")))
        }
    }
}
