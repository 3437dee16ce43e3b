//! Samples that are made from stored bytes: their columns in a catalog.
//!
//! A row has the number of stored bytes, the number of decoded ones, where the sample begins in
//! them, and the number of a list of decoders in the metadata `foreread.recipes`. The columns exist
//! only if some sample is decoded. A row without a list is stored as it is. The price is four
//! numbers per sample, of which only those that differ take memory.

use std::sync::Arc;

use arrow_array::{ArrayRef, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use foreread_formats::found::fits;
use foreread_formats::{MadeRow, recipes};
use foreread_tier::StoredPart;
use foreread_types::{Decoder, Recipe};
use xxhash_rust::xxh3::Xxh3;

use crate::batch_layout::{MadeLayout, is_present, validity};
use crate::catalog_file::{CatalogFault, corrupt};
use crate::columns::{NullableIntegers, PackedIntegers};
use crate::encode::hash_text;
use crate::packed::{IndexedShard, SampleRows};

/// The names of the columns, in their order.
pub(crate) const COLUMNS: [&str; 4] = ["stored", "decoded", "slice", "recipe"];

/// The most lists of decoders.
const MOST_RECIPES: usize = 1 << 16;

/// The lists of decoders of all shards.
#[derive(Debug, Default)]
pub(crate) struct RecipeTable {
    recipes: Vec<Vec<Decoder>>,
    /// For each shard, and each of its lists, the number in `recipes`.
    numbers: Vec<Vec<u32>>,
}

impl RecipeTable {
    /// The lists of these shards. `None` if no sample is decoded.
    pub(crate) fn of(shards: &[IndexedShard]) -> Option<Self> {
        if shards.iter().all(|shard| shard.rows.extra().made.is_none()) {
            return None;
        }
        let mut table = Self::default();
        for shard in shards {
            let of_shard = shard.rows.extra().made.iter().flat_map(|made| &made.recipes);
            let numbers = of_shard.map(|decoders| table.number(decoders)).collect();
            table.numbers.push(numbers);
        }
        Some(table)
    }

    fn number(&mut self, decoders: &[Decoder]) -> u32 {
        let known = self.recipes.iter().position(|known| known == decoders);
        let number = known.unwrap_or_else(|| {
            self.recipes.push(decoders.to_vec());
            self.recipes.len() - 1
        });
        number as u32
    }

    /// The catalog's metadata.
    pub(crate) fn json(&self) -> String {
        recipes::to_json(&self.recipes)
    }

    pub(crate) fn fields() -> [Field; 4] {
        let [stored, decoded, slice, recipe] = COLUMNS;
        let number = |name| Field::new(name, DataType::UInt64, false);
        [number(stored), number(decoded), number(slice), Field::new(recipe, DataType::UInt32, true)]
    }

    /// The columns of these rows.
    pub(crate) fn arrays(&self, shards: &[IndexedShard], rows: &[(usize, usize)]) -> [ArrayRef; 4] {
        let made = |&(shard, row): &(usize, usize)| shards[shard].rows.made(row);
        let numbers = |number: fn(MadeRow) -> u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|at| number(made(at)))))
        };
        let recipe = |at: &(usize, usize)| {
            self.numbers.get(at.0)?.get(made(at).recipe? as usize).copied()
        };
        let recipes: UInt32Array = rows.iter().map(recipe).collect();
        [numbers(|made| made.stored), numbers(|made| made.decoded), numbers(|made| made.slice), Arc::new(recipes)]
    }
}

/// The part of a fingerprint of how a sample is made. Nothing for a sample that is stored as it is.
pub(crate) fn hash_row(hash: &mut Xxh3, rows: &SampleRows, row: usize) {
    let MadeRow { stored, decoded, slice, recipe } = rows.made(row);
    let Some(decoders) = recipe.and_then(|recipe| rows.decoders(recipe)) else { return };
    hash.update(&[8]);
    for number in [stored, decoded, slice, decoders.len() as u64] {
        hash.update(&number.to_le_bytes());
    }
    decoders.iter().for_each(|decoder| hash_text(hash, 9, &decoder.to_string()));
}

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
}

/// The rows of a batch: its bytes, and each row's offset, length and size of object.
pub(crate) struct MadeBatch<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) offsets: &'a [u64],
    pub(crate) lengths: &'a [u64],
    pub(crate) sizes: &'a [u64],
}

impl MadeColumns {
    /// The columns of a batch, and the number of stored bytes of each row. Every sample can be made:
    /// its stored bytes lie in the object, and can become what its decoders result in. The error is
    /// the row and the reason.
    pub(crate) fn decode(
        layout: &MadeLayout,
        recipes: &[Arc<[Decoder]>],
        batch: &MadeBatch<'_>,
        bad: impl Fn(usize, &str) -> CatalogFault,
    ) -> Result<(Self, Vec<u64>), CatalogFault> {
        let rows = batch.lengths.len();
        let wide = |numbers: &crate::batch_layout::NumberColumn| -> Result<Vec<u64>, CatalogFault> {
            Ok(numbers.values(batch.bytes, rows)?.iter().map(|value| u64::from_le_bytes(*value)).collect())
        };
        let (stored, decoded, slice) = (wide(&layout.stored)?, wide(&layout.decoded)?, wide(&layout.slice)?);
        let present = validity(batch.bytes, layout.recipe.validity, rows)?;
        let numbers = layout.recipe.values(batch.bytes, rows)?;
        let mut numbers: Vec<u32> = numbers.iter().map(|value| u32::from_le_bytes(*value)).collect();
        for (row, number) in numbers.iter_mut().enumerate() {
            let recipe = is_present(present, row).then_some(*number);
            let decoders = match recipe {
                None => None,
                Some(recipe) => Some(
                    &**recipes.get(recipe as usize).ok_or_else(|| bad(row, "has unknown decoders"))?,
                ),
            };
            let made = MadeRow { stored: stored[row], decoded: decoded[row], slice: slice[row], recipe };
            let extent = (batch.offsets[row], batch.lengths[row]);
            if !fits(&made, decoders, extent, batch.sizes[row]) {
                return Err(bad(row, "cannot be made of its stored bytes"));
            }
            *number = recipe.unwrap_or(0);
        }
        let numbers: Vec<u64> = numbers.into_iter().map(u64::from).collect();
        let columns = Self {
            stored: PackedIntegers::of(&stored),
            decoded: PackedIntegers::of(&decoded),
            slice: PackedIntegers::of(&slice),
            recipe: NullableIntegers::new(present, PackedIntegers::of(&numbers)),
        };
        Ok((columns, stored))
    }

    /// How an existing row of `length` bytes at `offset` is made. `None` if it is stored as it is.
    pub(crate) fn part(
        &self,
        recipes: &[Arc<[Decoder]>],
        row: usize,
        (offset, length): (u64, u64),
    ) -> Option<StoredPart> {
        let decoders = recipes.get(self.recipe.get(row)? as usize)?;
        let slice = self.slice.get(row);
        Some(StoredPart {
            stored: offset..offset + self.stored.get(row),
            // It was checked when the catalog was opened.
            recipe: Recipe::new(Arc::clone(decoders), self.decoded.get(row)).ok()?,
            delivered: slice..slice + length,
        })
    }
}
