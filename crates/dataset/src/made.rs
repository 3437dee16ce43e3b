//! Samples that are made from stored bytes: their columns in a catalog.
//!
//! A row has the number of stored bytes, the number of decoded ones, and where the sample begins in
//! them. It also has the number of a list of decoders in the metadata `foreread.recipes`. The
//! columns exist only if some sample is decoded. A row without a list is stored as it is. The price
//! is four numbers per sample, of which only those that differ take memory.

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
        let recipe = |at: &(usize, usize)| self.numbers.get(at.0)?.get(made(at).recipe? as usize).copied();
        let recipes: UInt32Array = rows.iter().map(recipe).collect();
        [
            numbers(|made| made.stored),
            numbers(|made| made.decoded),
            numbers(|made| made.slice),
            Arc::new(recipes),
        ]
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
    /// The columns of a batch, and the number of stored bytes of each row. Checks that every sample
    /// can be made: its stored bytes lie in the object, and can become what its decoders result in.
    ///
    /// # Errors
    /// What `bad` returns for a row and the reason.
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
                Some(recipe) => {
                    Some(&**recipes.get(recipe as usize).ok_or_else(|| bad(row, "has unknown decoders"))?)
                }
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

#[cfg(test)]
mod tests {
    use foreread_formats::MadeRows;
    use foreread_tier::{Object, Span, Version};
    use foreread_types::SampleId;

    use super::*;
    use crate::packed::{FormatColumns, ShardExtra};
    use crate::servers::Layouts;
    use crate::{Catalog, DatasetError, DatasetErrorKind, Format};

    fn made(recipes: &[&[Decoder]], rows: Vec<MadeRow>) -> MadeRows {
        MadeRows { recipes: recipes.iter().map(|recipe| recipe.to_vec()).collect(), rows, more: Vec::new() }
    }

    fn row(stored: u64, decoded: u64, slice: u64, recipe: impl Into<Option<u32>>) -> MadeRow {
        MadeRow { stored, decoded, slice, recipe: recipe.into() }
    }

    /// A shard of 1,000 bytes.
    fn shard(path: &str, extents: &[(u64, u64)], made: Option<MadeRows>) -> IndexedShard {
        let mut rows = SampleRows::new(FormatColumns::default());
        extents.iter().for_each(|&(at, length)| rows.push("", at, length, 0));
        let rows = rows.with_extra(ShardExtra { made, ..ShardExtra::default() });
        let object = Object { path: path.into(), size: 1000, version: Some(Version::ETag("1".into())) };
        IndexedShard { object, rows, skipped: 0 }
    }

    fn catalog(shards: Vec<IndexedShard>) -> Result<Catalog, DatasetError> {
        Catalog::from_shards("/data", None, Format::Hdf5, shards, &Layouts::new())
    }

    const ZLIB: &[Decoder] = &[Decoder::Fletcher32, Decoder::Zlib, Decoder::Shuffle(4)];

    fn shards() -> Vec<IndexedShard> {
        let first = made(&[ZLIB, &[Decoder::Lzf]], vec![row(100, 5000, 40, 0), row(50, 50, 0, None)]);
        let second = made(&[&[Decoder::Lzf], ZLIB], vec![row(300, 900, 0, 1)]);
        vec![
            shard("a", &[(10, 400), (200, 50)], Some(first)),
            shard("b", &[(700, 900)], Some(second)),
            shard("c", &[(0, 1000)], None),
        ]
    }

    fn part(stored: std::ops::Range<u64>, decoded: u64, delivered: std::ops::Range<u64>) -> Span {
        let recipe = Recipe::new(ZLIB, decoded).unwrap();
        Span::Made(Arc::new([StoredPart { stored, recipe, delivered }]))
    }

    #[test]
    // semantics: FORMAT-5
    fn decoded_samples_are_read_back_from_a_catalog() {
        let built = catalog(shards()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.foreread");
        built.save(&path).unwrap();
        for catalog in [&built, &Catalog::open(&path).unwrap()] {
            let spans: Vec<Span> = (0..4).map(|id| catalog.entry(SampleId(id)).unwrap().span).collect();
            let expected = [
                part(10..110, 5000, 40..440),
                Span::Range(200..250),
                part(700..1000, 900, 0..900),
                Span::Range(0..1000),
            ];
            assert_eq!(spans, expected);
            assert_eq!((catalog.total_bytes(), catalog.fingerprint()), (2350, built.fingerprint()));
            let stored = catalog.stored_sizes().unwrap();
            assert_eq!((0..4).map(|id| stored.bytes(SampleId(id))).collect::<Vec<_>>(), [100, 50, 300, 1000]);
        }
        assert!(catalog(shards().split_off(2)).unwrap().stored_sizes().is_none());
    }

    #[test]
    // semantics: FORMAT-5
    fn fingerprint_covers_how_samples_are_made() {
        let of = |recipes: &[&[Decoder]], row| {
            let shards = vec![shard("a", &[(10, 400)], Some(made(recipes, vec![row])))];
            catalog(shards).unwrap().fingerprint()
        };
        let all = [
            of(&[ZLIB], row(100, 5000, 40, 0)),
            of(&[ZLIB], row(101, 5000, 40, 0)),
            of(&[ZLIB], row(100, 5001, 40, 0)),
            of(&[ZLIB], row(100, 5000, 41, 0)),
            of(&[&[Decoder::Zlib]], row(100, 5000, 40, 0)),
            of(&[], row(400, 400, 0, None)),
        ];
        for (at, print) in all.iter().enumerate() {
            assert!(!all[..at].contains(print), "{at}");
        }
        // The numbers of lists are no part of it.
        assert_eq!(of(&[&[], ZLIB], row(100, 5000, 40, 1)), all[0]);
    }

    #[test]
    // semantics: FORMAT-5
    fn samples_that_cannot_be_made_are_refused() {
        for (recipes, (at, length), row) in [
            (&[ZLIB][..], (10, 400), row(991, 5000, 0, 0)),
            (&[ZLIB], (10, 400), row(u64::MAX, 5000, 0, 0)),
            (&[ZLIB], (10, 400), row(100, 399, 0, 0)),
            (&[ZLIB], (10, 400), row(100, 5000, 4601, 0)),
            (&[ZLIB], (10, 400), row(100, 5000, u64::MAX, 0)),
            (&[ZLIB], (10, 0), row(100, 5000, 0, 0)),
            // A bomb, and no room for a checksum.
            (&[ZLIB], (10, 400), row(5, 5000, 0, 0)),
            (&[ZLIB], (10, 400), row(3, 5000, 0, 0)),
            (&[&[Decoder::Zlib, Decoder::Lzf]], (10, 400), row(100, 5000, 0, 0)),
            // Stored as it is, of another length.
            (&[], (10, 400), row(100, 400, 0, None)),
            (&[], (10, 400), row(400, 400, 1, None)),
        ] {
            let shards = vec![shard("a", &[(at, length)], Some(made(recipes, vec![row])))];
            let error = catalog(shards).unwrap_err();
            assert_eq!(error.kind(), DatasetErrorKind::Corrupt, "{row:?}: {error}");
        }
    }

    #[test]
    // semantics: FORMAT-5
    fn unknown_decoders_are_refused() {
        assert!(recipes_of(Some(r#"[["lzma"]]"#)).is_err() && recipes_of(Some("{}")).is_err());
        assert_eq!(recipes_of(None), Ok(Vec::new()));
        let long = format!("[{}[]]", "[],".repeat(MOST_RECIPES));
        assert!(recipes_of(Some(&long)).is_err());
    }
}
