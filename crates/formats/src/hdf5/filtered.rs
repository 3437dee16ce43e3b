//! Chunks that went through filters.
//!
//! A chunk with one row is a sample that is decoded when it is read. The steps are the filters
//! backwards, without those that the chunk's mask leaves out.

use std::borrow::Cow;

use foreread_types::{Decoder, Recipe};

use super::chunk::{ChunkLayout, Chunks, Stored};
use super::dataset::Dataset;
use crate::decode::decode;
use crate::{FormatError, MadeRow, MadeRows};

/// Where a sample lies, and how it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The offset in the file.
    pub(super) at: u64,
    /// The number of delivered bytes.
    pub(super) length: u64,
    /// The stored bytes and the steps, if they are decoded.
    pub(super) made: Option<(u64, Recipe)>,
}

impl Place {
    /// Bytes that are stored as they are.
    pub(super) const fn plain(at: u64, length: u64) -> Self {
        Self { at, length, made: None }
    }
}

/// The extents of samples, and how they are made if some are decoded.
pub(super) fn rows(places: &[Place]) -> (Vec<(u64, u64)>, Option<MadeRows>) {
    let extents = places.iter().map(|place| (place.at, place.length)).collect();
    if places.iter().all(|place| place.made.is_none()) {
        return (extents, None);
    }
    let mut made = MadeRows::default();
    for place in places {
        let row = made_row(&mut made, place);
        made.rows.push(row);
    }
    (extents, Some(made))
}

/// How a place is made, with its steps in the lists of `made`.
pub(super) fn made_row(made: &mut MadeRows, place: &Place) -> MadeRow {
    match &place.made {
        None => MadeRow::plain(place.length),
        Some((stored, recipe)) => MadeRow {
            stored: *stored,
            decoded: recipe.length(),
            slice: 0,
            recipe: Some(made.recipe(recipe.decoders())),
        },
    }
}

/// The place of the first `length` bytes of each chunk.
pub(super) fn places(
    dataset: &Dataset,
    layout: &ChunkLayout,
    chunks: &Chunks,
    length: u64,
) -> Result<Vec<Place>, FormatError> {
    let steps = Steps::new(dataset, layout);
    chunks.stored.iter().map(|chunk| steps.place(chunks, chunk, length)).collect()
}

/// The elements of a chunk, from its bytes in the file.
pub(super) fn elements<'a>(
    dataset: &Dataset,
    layout: &ChunkLayout,
    chunks: &Chunks,
    chunk: &Stored,
    stored: &'a [u8],
) -> Result<Cow<'a, [u8]>, FormatError> {
    match Steps::new(dataset, layout).place(chunks, chunk, layout.bytes)?.made {
        None => Ok(Cow::Borrowed(stored)),
        Some((_, recipe)) => decode(&recipe, stored).map_err(|error| {
            FormatError::damaged(chunk.at, format!("HDF5 dataset {}: a chunk: {error}", dataset.path))
        }),
    }
}

/// The decoders of a dataset's chunks.
struct Steps<'a> {
    dataset: &'a Dataset,
    layout: &'a ChunkLayout,
    /// One for each filter, in the order of writing. `None`: nothing here undoes it.
    decoders: Vec<Option<Decoder>>,
}

impl<'a> Steps<'a> {
    fn new(dataset: &'a Dataset, layout: &'a ChunkLayout) -> Self {
        let decoders = dataset.filters.iter().map(|filter| filter.decoder(dataset.datatype.size)).collect();
        Self { dataset, layout, decoders }
    }

    fn place(&self, chunks: &Chunks, chunk: &Stored, length: u64) -> Result<Place, FormatError> {
        let Self { dataset, layout, decoders } = self;
        if chunks.is_plain(dataset, layout, chunk) {
            return Ok(Place::plain(chunk.at, length));
        }
        let mut steps = Vec::with_capacity(decoders.len());
        for (at, decoder) in decoders.iter().enumerate().rev() {
            // The mask has a bit for each of the first 32 filters.
            if at < 32 && chunk.mask >> at & 1 == 1 {
                continue;
            }
            match decoder {
                Some(decoder) => steps.push(*decoder),
                None => {
                    let name = dataset.filters[at].name();
                    return Err(dataset.to_rewrite(&format!("its chunks went through the filter {name}")));
                }
            }
        }
        let recipe = Recipe::new(steps, layout.bytes);
        let recipe = recipe.map_err(|why| dataset.to_rewrite(&format!("its filters: {why}")))?;
        if recipe.lengths(chunk.size).is_none() {
            return Err(dataset.damaged("a chunk has the wrong size"));
        }
        Ok(Place { at: chunk.at, length, made: Some((chunk.size, recipe)) })
    }
}
