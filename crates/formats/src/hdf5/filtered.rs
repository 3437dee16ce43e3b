//! Samples in chunks that went through filters.
//!
//! A sample is a slice of a decoded chunk, or several slices of several chunks. The steps of
//! decoding are the filters backwards, without the filters that the chunk's mask leaves out. Rows
//! that share a chunk share its recipe.

use std::borrow::Cow;

use foreread_types::{Decoder, Recipe};

use super::chunk::Chunks;
use super::chunk_layout::{ChunkLayout, Stored};
use super::dataset::Dataset;
use crate::decode::decode;
use crate::found::MOST_DECODED;
use crate::{FormatError, MadeRow, MadeRows};

/// A part of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The offset in the file.
    pub(super) at: u64,
    /// The number of delivered bytes.
    pub(super) length: u64,
    /// The stored bytes, the steps, and where the part begins in the decoded bytes.
    pub(super) made: Option<(u64, Recipe, u64)>,
}

impl Part {
    /// Bytes that are stored as they are.
    pub(super) const fn plain(at: u64, length: u64) -> Self {
        Self { at, length, made: None }
    }

    /// Adds the part to those of a sample. Bytes that follow each other are one part.
    pub(super) fn join(self, parts: &mut Vec<Self>) {
        match parts.last_mut() {
            Some(Self { at, length, made: None }) if self.made.is_none() && *at + *length == self.at => {
                *length += self.length;
            }
            _ => parts.push(self),
        }
    }
}

/// Samples: their extents, and how they are made if some are.
#[derive(Debug, Default)]
pub(super) struct Samples {
    extents: Vec<(u64, u64)>,
    made: MadeRows,
    is_made: bool,
    /// The sample that is not complete.
    parts: Vec<Part>,
}

impl Samples {
    /// No samples, with room for `more` parts after the first ones.
    pub(super) fn with_room(more: u64) -> Self {
        let made = MadeRows { more: Vec::with_capacity(more as usize), ..MadeRows::default() };
        Self { made, ..Self::default() }
    }

    /// Adds a part of the sample that is not complete.
    pub(super) fn part(&mut self, part: Part) {
        self.parts.push(part);
    }

    /// Completes a sample, which has a part or more.
    pub(super) fn complete(&mut self) {
        let more = self.made.more.len();
        let (made, is_made) = (&mut self.made, &mut self.is_made);
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in self.parts.drain(..) {
            let row = match part.made {
                None => MadeRow::plain(part.length),
                Some((stored, recipe, slice)) => {
                    *is_made = true;
                    let number = made.recipe(recipe.decoders());
                    MadeRow { stored, decoded: recipe.length(), slice, recipe: Some(number) }
                }
            };
            parts.push((part.at, part.length, row));
        }
        self.extents.push(made.push_parts(parts));
        *is_made |= made.more.len() > more;
    }

    /// The parts of each sample.
    pub(super) fn into_parts(self) -> Vec<Vec<Part>> {
        let recipes = &self.made.recipes;
        let part = |at, length, made: MadeRow| {
            let decoders = made.recipe.and_then(|recipe| recipes.get(recipe as usize));
            // It was a recipe before.
            let recipe = decoders.and_then(|steps| Recipe::new(steps.clone(), made.decoded).ok());
            Part { at, length, made: recipe.map(|recipe| (made.stored, recipe, made.slice)) }
        };
        let of_sample = |(row, (extent, first)): (usize, (&(u64, u64), &MadeRow))| {
            let more = self.made.more(row);
            let of_more: u64 = more.iter().map(|part| part.length).sum();
            let first = part(extent.0, extent.1 - of_more, *first);
            let more = more.iter().map(|more| part(more.offset, more.length, more.made));
            std::iter::once(first).chain(more).collect()
        };
        self.extents.iter().zip(&self.made.rows).enumerate().map(of_sample).collect()
    }

    /// The extents, and how samples are made if some are.
    pub(super) fn finish(self) -> (Vec<(u64, u64)>, Option<MadeRows>) {
        (self.extents, self.is_made.then_some(self.made))
    }
}

/// The elements of a chunk, from its bytes in the file.
pub(super) fn elements<'a>(
    dataset: &Dataset,
    layout: &ChunkLayout,
    chunks: &Chunks,
    chunk: &Stored,
    stored: &'a [u8],
) -> Result<Cow<'a, [u8]>, FormatError> {
    match Steps::new(dataset, layout).part(chunks, chunk, 0, layout.bytes)?.made {
        None => Ok(Cow::Borrowed(stored)),
        Some((_, recipe, _)) => decode(&recipe, stored).map_err(|error| {
            FormatError::damaged(chunk.at, format!("HDF5 dataset {}: a chunk: {error}", dataset.path))
        }),
    }
}

/// The decoders of a dataset's chunks.
pub(super) struct Steps<'a> {
    dataset: &'a Dataset,
    layout: &'a ChunkLayout,
    /// One for each filter, in the order of writing. `None`: nothing here undoes it.
    decoders: Vec<Option<Decoder>>,
    /// The last mask, and its recipe.
    last: Option<(u32, Recipe)>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(dataset: &'a Dataset, layout: &'a ChunkLayout) -> Self {
        let decoders = dataset.filters.iter().map(|filter| filter.decoder(dataset.datatype.size)).collect();
        Self { dataset, layout, decoders, last: None }
    }

    /// The `length` bytes from `slice` on of a chunk's elements.
    pub(super) fn part(
        &mut self,
        chunks: &Chunks,
        chunk: &Stored,
        slice: u64,
        length: u64,
    ) -> Result<Part, FormatError> {
        let Self { dataset, layout, .. } = self;
        if chunks.is_plain(dataset, layout, chunk) {
            return Ok(Part::plain(chunk.at + slice, length));
        }
        if layout.bytes > MOST_DECODED.max(length) {
            let why = format!("its chunks of {} bytes are compressed and too large", layout.bytes);
            return Err(dataset.to_rewrite(&why));
        }
        let recipe = match &self.last {
            Some((mask, recipe)) if *mask == chunk.mask => recipe.clone(),
            _ => self.recipe(chunk.mask)?,
        };
        if recipe.lengths(chunk.size).is_none() {
            return Err(self.dataset.damaged("a chunk has the wrong size"));
        }
        self.last = Some((chunk.mask, recipe.clone()));
        Ok(Part { at: chunk.at, length, made: Some((chunk.size, recipe, slice)) })
    }

    /// The recipe of chunks with this mask.
    fn recipe(&self, mask: u32) -> Result<Recipe, FormatError> {
        let Self { dataset, layout, decoders, .. } = self;
        let mut steps = Vec::with_capacity(decoders.len());
        for (at, decoder) in decoders.iter().enumerate().rev() {
            // The mask has a bit for each of the first 32 filters.
            if at < 32 && mask >> at & 1 == 1 {
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
        recipe.map_err(|why| dataset.to_rewrite(&format!("its filters: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_follow_each_other_are_one() {
        let recipe = Recipe::new([Decoder::Zlib], 100).unwrap();
        let made = |at, slice| Part { at, length: 10, made: Some((90, recipe.clone(), slice)) };
        let mut samples = Samples::default();
        for part in [Part::plain(50, 10), Part::plain(60, 5), Part::plain(70, 3)] {
            samples.part(part);
        }
        samples.complete();
        samples.part(Part::plain(100, 7));
        samples.complete();
        // Decoded bytes are never joined.
        for part in [made(200, 0), made(200, 10), Part::plain(290, 4)] {
            samples.part(part);
        }
        samples.complete();
        let (extents, made) = samples.finish();
        assert_eq!(extents, [(50, 18), (100, 7), (200, 24)]);
        let made = made.unwrap();
        assert_eq!((made.more(0).len(), made.more(1).len(), made.more(2).len()), (1, 0, 2));
        assert_eq!((made.more(0)[0].offset, made.more(0)[0].made), (70, MadeRow::plain(3)));
        assert!((0..3).all(|row| made.fits(row, extents[row], 300)));
    }

    #[test]
    fn samples_in_one_piece_each_have_no_recipes() {
        let mut samples = Samples::with_room(9);
        for at in [0, 10] {
            samples.part(Part::plain(at, 4));
            samples.part(Part::plain(at + 4, 4));
            samples.complete();
        }
        assert_eq!(samples.finish(), (vec![(0, 8), (10, 8)], None));
    }
}
