//! The columns of samples that are made from stored bytes, in memory.
//!
//! A row has the number of stored bytes, the number of decoded ones, and where the sample begins in
//! them. It also has the number of a list of decoders in the metadata `foreread.recipes`. A row
//! without a list is stored as it is. These numbers are of a sample's first part. The others are in
//! a [column](super::parts) of their own. The price is four numbers per sample, which take memory
//! where they differ.

use std::sync::Arc;

use bytes::Bytes;
use foreread_formats::found::fits_parts;
use foreread_formats::{MadeRow, MorePart, recipes};
use foreread_tier::StoredPart;
use foreread_types::{Decoder, Recipe};

use crate::catalog_file::columns::integers::{NullableIntegers, PackedIntegers};
use crate::catalog_file::columns::parts::PartRows;
use crate::catalog_file::columns::shared_numbers::PackedColumns;
use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::layout::MadeLayout;
use crate::catalog_file::layout::column::{NumberColumn, is_present, validity};

/// The most lists of decoders.
const MOST_RECIPES: usize = 1 << 16;

/// The lists of decoders in a catalog's metadata.
pub(crate) fn recipes_of(json: Option<&str>) -> Result<Vec<Arc<[Decoder]>>, CatalogFault> {
    let Some(json) = json else { return Ok(Vec::new()) };
    let recipes = recipes::from_json(json).filter(|recipes| recipes.len() <= MOST_RECIPES);
    let recipes = recipes.ok_or_else(|| corrupt("its decoders are unknown or damaged"))?;
    Ok(recipes.into_iter().map(Arc::from).collect())
}

/// How the samples of one batch are made.
#[derive(Debug)]
pub(crate) struct MadeColumns {
    stored: PackedIntegers,
    decoded: PackedIntegers,
    slice: PackedIntegers,
    recipe: NullableIntegers,
    /// The other parts, if some sample has several.
    more: Option<PartRows>,
}

/// The rows of a batch: its bytes, and each row's offset, length and size of object.
pub(crate) struct MadeBatch<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) offsets: &'a [u64],
    pub(crate) lengths: &'a [u64],
    pub(crate) sizes: &'a [u64],
}

impl MadeColumns {
    /// The columns of a batch, and the number of stored bytes of each row. Checks that every sample
    /// can be made: its stored bytes lie in the object, and can become its decoded bytes.
    ///
    /// # Errors
    /// The error of `bad` for a row and the reason.
    pub(crate) fn decode(
        layout: &MadeLayout,
        recipes: &[Arc<[Decoder]>],
        batch: &MadeBatch<'_>,
        bad: impl Fn(usize, &str) -> CatalogFault,
    ) -> Result<(Self, Vec<u64>), CatalogFault> {
        let rows = batch.lengths.len();
        let wide = |numbers: &NumberColumn| -> Result<Vec<u64>, CatalogFault> {
            Ok(numbers.values(batch.bytes, rows)?.iter().map(|value| u64::from_le_bytes(*value)).collect())
        };
        let (stored, decoded, slice) = (wide(&layout.stored)?, wide(&layout.decoded)?, wide(&layout.slice)?);
        let present = validity(batch.bytes, layout.recipe.validity, rows)?;
        let numbers: &[[u8; 4]] = layout.recipe.values(batch.bytes, rows)?;
        let recipe = |row: usize| is_present(present, row).then(|| u32::from_le_bytes(numbers[row]));
        let decoders = |recipe: u32| recipes.get(recipe as usize).map(|decoders| &**decoders);
        let mut sums = stored.clone();
        let check = |row: usize, more: Option<&[MorePart]>| {
            let more = more.ok_or_else(|| bad(row, "has damaged parts"))?;
            let recipe = recipe(row);
            let used = more.iter().map(|part| part.made.recipe).chain([recipe]).flatten();
            if used.into_iter().any(|recipe| decoders(recipe).is_none()) {
                return Err(bad(row, "has unknown decoders"));
            }
            let made = MadeRow { stored: stored[row], decoded: decoded[row], slice: slice[row], recipe };
            let extent = (batch.offsets[row], batch.lengths[row]);
            if !fits_parts(&made, more, decoders, extent, batch.sizes[row]) {
                return Err(bad(row, "cannot be made of its stored bytes"));
            }
            let of_more = more.iter().map(|part| part.made.stored);
            sums[row] = of_more.fold(stored[row], u64::saturating_add);
            Ok(())
        };
        let more = match &layout.parts {
            Some(column) => Some(PartRows::decode(column, batch.bytes, rows, check)?),
            None => {
                let mut check = check;
                (0..rows).try_for_each(|row| check(row, Some(&[])))?;
                None
            }
        };
        let numbers: Vec<u64> = (0..rows).map(|row| recipe(row).unwrap_or(0).into()).collect();
        let columns = Self {
            stored: PackedIntegers::of(&stored),
            decoded: PackedIntegers::of(&decoded),
            slice: PackedIntegers::of(&slice),
            recipe: NullableIntegers::new(present, PackedIntegers::of(&numbers)),
            more,
        };
        Ok((columns, sums))
    }

    /// How an existing row of `length` bytes at `offset` is made. `None` if it is stored as it is,
    /// in one piece.
    pub(crate) fn parts(
        &self,
        recipes: &[Arc<[Decoder]>],
        row: usize,
        (offset, length): (u64, u64),
    ) -> Option<Arc<[StoredPart]>> {
        let recipe = self.recipe.get(row).map(|recipe| recipe as u32);
        let first = MadeRow {
            stored: self.stored.get(row),
            decoded: self.decoded.get(row),
            slice: self.slice.get(row),
            recipe,
        };
        let more: Vec<MorePart> = self.more.iter().flat_map(|more| more.get(row)).collect();
        if more.is_empty() {
            recipe?;
            return Some(Arc::new([stored_part(recipes, (offset, length), &first)?]));
        }
        let own = length.checked_sub(more.iter().map(|part| part.length).sum())?;
        let first = stored_part(recipes, (offset, own), &first);
        let more = more.iter().map(|part| stored_part(recipes, (part.offset, part.length), &part.made));
        // They were checked when the catalog was opened.
        std::iter::once(first).chain(more).collect()
    }
}

impl PackedColumns for MadeColumns {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        let Self { stored, decoded, slice, recipe, more } = self;
        [stored, decoded, slice].each_column(visit);
        recipe.each_column(visit);
        more.each_column(visit);
    }
}

/// A part of `length` delivered bytes that is stored at `offset`.
fn stored_part(
    recipes: &[Arc<[Decoder]>],
    (offset, length): (u64, u64),
    made: &MadeRow,
) -> Option<StoredPart> {
    let decoders = match made.recipe {
        Some(recipe) => Arc::clone(recipes.get(recipe as usize)?),
        None => Arc::default(),
    };
    Some(StoredPart {
        object: None,
        stored: offset..offset + made.stored,
        recipe: Recipe::new(decoders, made.decoded).ok()?,
        delivered: made.slice..made.slice + length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FORMAT-5
    fn unknown_decoders_are_refused() {
        assert!(recipes_of(Some(r#"[["lzma"]]"#)).is_err() && recipes_of(Some("{}")).is_err());
        assert_eq!(recipes_of(None), Ok(Vec::new()));
        let long = format!("[{}[]]", "[],".repeat(MOST_RECIPES));
        assert!(recipes_of(Some(&long)).is_err());
    }
}
