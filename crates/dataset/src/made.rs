//! Samples that are made from stored bytes: their columns in a catalog.
//!
//! A row has the number of stored bytes, the number of decoded ones, and where the sample begins in
//! them. It also has the number of a list of decoders in the metadata `foreread.recipes`. The
//! columns exist only if some sample is decoded or has several parts. A row without a list is
//! stored as it is. These numbers are of a sample's first part. The others are in a
//! [column](crate::part_column) of their own. The price is four numbers per sample, of which only
//! different ones take memory.

use std::sync::Arc;

use arrow_array::{ArrayRef, UInt32Array, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field};
use bytes::Bytes;
use foreread_formats::found::fits_parts;
use foreread_formats::{MadeRow, MadeRows, MorePart, recipes};
use foreread_tier::StoredPart;
use foreread_types::{Decoder, Recipe};
use xxhash_rust::xxh3::Xxh3;

use crate::batch_layout::{MadeLayout, is_present, validity};
use crate::catalog_file::{CatalogFault, corrupt};
use crate::columns::{NullableIntegers, PackedIntegers};
use crate::encode::hash_text;
use crate::packed::{IndexedShard, SampleRows};
use crate::part_column::{self, PartRows};
use crate::shared_numbers::PackedColumns;

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
    /// Whether some sample has several parts.
    has_parts: bool,
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
            table.has_parts |= shard.rows.extra().made.as_ref().is_some_and(has_parts);
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

    pub(crate) fn fields(&self) -> Vec<Field> {
        let [stored, decoded, slice, recipe] = COLUMNS;
        let number = |name| Field::new(name, DataType::UInt64, false);
        let recipe = Field::new(recipe, DataType::UInt32, true);
        let mut fields = vec![number(stored), number(decoded), number(slice), recipe];
        fields.extend(self.has_parts.then(part_column::field));
        fields
    }

    /// The number of a shard's list of decoders.
    fn number_of(&self, shard: usize, recipe: u32) -> Option<u32> {
        self.numbers.get(shard)?.get(recipe as usize).copied()
    }

    /// The columns of these rows.
    pub(crate) fn arrays(
        &self,
        shards: &[IndexedShard],
        rows: &[(usize, usize)],
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let made = |&(shard, row): &(usize, usize)| shards[shard].rows.made(row);
        let numbers = |number: fn(MadeRow) -> u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|at| number(made(at)))))
        };
        let recipe = |at: &(usize, usize)| self.number_of(at.0, made(at).recipe?);
        let recipes: UInt32Array = rows.iter().map(recipe).collect();
        let mut arrays = vec![
            numbers(|made| made.stored),
            numbers(|made| made.decoded),
            numbers(|made| made.slice),
            Arc::new(recipes),
        ];
        if self.has_parts {
            let more = rows.iter().map(|&(shard, row)| (shard, shards[shard].rows.more(row)));
            arrays.push(part_column::array(more, |shard, recipe| self.number_of(shard, recipe))?);
        }
        Ok(arrays)
    }
}

/// Whether some sample has several parts.
fn has_parts(made: &MadeRows) -> bool {
    !made.more.is_empty()
}

/// The part of a fingerprint of how a sample is made. Nothing for a sample that is stored as it is.
pub(crate) fn hash_row(hash: &mut Xxh3, rows: &SampleRows, row: usize) {
    hash_made(hash, rows, &rows.made(row));
    for MorePart { offset, length, made, .. } in rows.more(row) {
        hash.update(&[12]);
        hash.update(&offset.to_le_bytes());
        hash.update(&length.to_le_bytes());
        hash_made(hash, rows, made);
    }
}

fn hash_made(hash: &mut Xxh3, rows: &SampleRows, made: &MadeRow) {
    let MadeRow { stored, decoded, slice, recipe } = *made;
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
    /// can be made: its stored bytes lie in the object, and can become the result of its decoders.
    ///
    /// # Errors
    /// The result of `bad` for a row and the reason.
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
    use foreread_tier::{Object, Span, Version};
    use foreread_types::SampleId;
    use proptest::prelude::*;

    use super::*;
    use crate::packed::{FormatColumns, ShardExtra};
    use crate::servers::Layouts;
    use crate::tests::{believable, request_all};
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
        Catalog::from_shards(
            "/data",
            crate::encode::IndexNotes::default(),
            Format::Hdf5,
            shards,
            None,
            &Layouts::new(),
        )
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
        Span::Made(Arc::new([StoredPart { object: None, stored, recipe, delivered }]))
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

    fn more(row: usize, offset: u64, length: u64, made: MadeRow) -> MorePart {
        MorePart { row, offset, length, made }
    }

    /// A sample of one part, one of two plain parts, and one of three.
    fn with_parts() -> Vec<IndexedShard> {
        let mut first = made(
            &[ZLIB, &[Decoder::Lzf]],
            vec![row(50, 50, 0, None), row(20, 20, 0, None), row(100, 5000, 40, 0)],
        );
        first.more = vec![
            more(1, 900, 30, MadeRow::plain(30)),
            more(2, 5, 1, MadeRow::plain(1)),
            more(2, 300, 70, row(80, 90, 20, 1)),
        ];
        vec![shard("a", &[(0, 50), (60, 50), (200, 400 + 71)], Some(first)), shard("b", &[(7, 8)], None)]
    }

    #[test]
    // semantics: FORMAT-8
    fn samples_of_several_parts_are_read_back_from_a_catalog() {
        let built = catalog(with_parts()).unwrap();
        let opened = Catalog::from_bytes(built.to_bytes().unwrap(), "x").unwrap();
        let part = |stored: std::ops::Range<u64>, decoders: &[Decoder], decoded, delivered| StoredPart {
            object: None,
            stored,
            recipe: Recipe::new(decoders, decoded).unwrap(),
            delivered,
        };
        for catalog in [built, opened] {
            let spans: Vec<Span> = (0..4).map(|id| catalog.entry(SampleId(id)).unwrap().span).collect();
            let two = [part(60..80, &[], 20, 0..20), part(900..930, &[], 30, 0..30)];
            let three = [
                part(200..300, ZLIB, 5000, 40..440),
                part(5..6, &[], 1, 0..1),
                part(300..380, &[Decoder::Lzf], 90, 20..90),
            ];
            let expected =
                [Span::Range(0..50), Span::Made(two.into()), Span::Made(three.into()), Span::Range(7..15)];
            assert_eq!(spans, expected);
            let stored = catalog.stored_sizes().unwrap();
            assert_eq!((0..4).map(|id| stored.bytes(SampleId(id))).collect::<Vec<_>>(), [50, 50, 181, 8]);
            assert_eq!(catalog.total_bytes(), 50 + 50 + 471 + 8);
        }
    }

    #[test]
    // semantics: FORMAT-8
    fn fingerprint_covers_all_parts() {
        let of = |change: fn(&mut MadeRows, &mut (u64, u64))| {
            let mut made = made(&[ZLIB, &[Decoder::Lzf]], vec![row(20, 20, 0, None)]);
            made.more = vec![more(0, 300, 70, row(80, 90, 20, 1)), more(0, 900, 30, MadeRow::plain(30))];
            let mut extent = (60, 120);
            change(&mut made, &mut extent);
            catalog(vec![shard("a", &[extent], Some(made))]).unwrap().fingerprint()
        };
        let all = [
            of(|_, _| ()),
            of(|made, _| made.more[1].offset = 901),
            of(|made, _| made.more.reverse()),
            of(|made, _| made.more[0].made.stored = 81),
            of(|made, _| made.more[0].made.decoded = 91),
            of(|made, _| made.more[0].made.slice = 19),
            of(|made, _| made.more[0].made.recipe = Some(0)),
            of(|made, extent| (made.more[0].length, extent.1) = (69, 119)),
            of(|made, extent| {
                made.more.pop();
                extent.1 = 90;
            }),
        ];
        for (at, print) in all.iter().enumerate() {
            assert!(!all[..at].contains(print), "{at}");
        }
    }

    #[test]
    // semantics: FORMAT-4
    fn impossible_parts_are_refused() {
        let of = |change: &dyn Fn(&mut MadeRows)| {
            let mut made = made(&[ZLIB, &[Decoder::Lzf]], vec![row(20, 20, 0, None)]);
            made.more = vec![more(0, 300, 70, row(80, 90, 20, 1)), more(0, 900, 30, MadeRow::plain(30))];
            change(&mut made);
            catalog(vec![shard("a", &[(60, 120)], Some(made))]).map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!(of(&|_| ()), Ok(()));
        let bad: [&dyn Fn(&mut MadeRows); 8] = [
            &|made| made.more[1].offset = 971,
            &|made| made.more[1].offset = u64::MAX,
            &|made| made.more[1].length = 31,
            &|made| made.more[0].made.slice = 21,
            &|made| made.more[0].made.stored = u64::MAX,
            &|made| made.more.clear(),
            &|made| made.more.push(more(0, 0, 0, MadeRow::plain(0))),
            &|made| {
                made.rows[0] = MadeRow::plain(0);
                made.more.push(more(0, 0, 20, MadeRow::plain(20)));
            },
        ];
        for (number, change) in bad.into_iter().enumerate() {
            assert_eq!(of(change), Err(DatasetErrorKind::Corrupt), "{number}");
        }
    }

    /// Changes the version of a catalog without more.
    fn of_version(bytes: &[u8], version: u8) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let places: Vec<usize> =
            (0..bytes.len() - 6).filter(|&at| bytes[at..at + 6] == *b"\x01\0\0\x004\0").collect();
        // In the schema at the beginning, and in the footer.
        assert_eq!(places.len(), 2);
        places.into_iter().for_each(|at| bytes[at + 4] = version);
        // The checksum of an unknown version is unknown.
        believable(bytes.clone()).unwrap_or(bytes)
    }

    #[test]
    // semantics: FORMAT-5
    fn catalogs_of_version_3_with_decoded_samples_are_read() {
        let bytes = catalog(shards()).unwrap().to_bytes().unwrap();
        let old = Catalog::from_bytes(of_version(&bytes, b'3'), "x").unwrap();
        assert_eq!(old.entry(SampleId(0)).unwrap().span, part(10..110, 5000, 40..440));
        let error = catalog_error(of_version(&bytes, b'9'));
        assert!(error.contains("version 9, and this foreread reads versions 1 to 8"), "{error}");
    }

    fn catalog_error(bytes: Vec<u8>) -> String {
        Catalog::from_bytes(bytes, "x").unwrap_err().to_string()
    }

    #[test]
    // semantics: FORMAT-4
    fn hostile_parts_with_a_valid_checksum_are_harmless() {
        let bytes = catalog(with_parts()).unwrap().to_bytes().unwrap();
        let mut opened = 0;
        for at in 0..bytes.len() {
            for value in [0x00, 0x01, 0x02, 0x7f, 0x80, 0xff] {
                let mut copy = bytes.to_vec();
                copy[at] = value;
                let copy = believable(copy).map(|copy| Catalog::from_bytes(copy, "x"));
                if let Some(Ok(catalog)) = copy {
                    request_all(&catalog);
                    opened += 1;
                }
            }
        }
        assert!(opened > 100 && opened < 5 * bytes.len(), "{opened}");
    }

    /// A part that can be made in an object of 1,000 bytes: delivered bytes, offset, how.
    fn parts() -> impl Strategy<Value = (u64, u64, MadeRow)> {
        let plain = (0..900_u64, 1..100_u64).prop_map(|(at, length)| (length, at, MadeRow::plain(length)));
        let lzf = (0..900_u64, 10..100_u64, 1..2000_u64).prop_flat_map(|(at, stored, decoded)| {
            (0..decoded).prop_flat_map(move |slice| {
                (1..=decoded - slice).prop_map(move |length| (length, at, row(stored, decoded, slice, 0)))
            })
        });
        prop_oneof![plain, lzf]
    }

    proptest! {
        #[test]
        // semantics: FORMAT-8
        fn any_parts_are_read_back(
            samples in prop::collection::vec(prop::collection::vec(parts(), 0..5), 1..30),
            split in 0..30_usize,
        ) {
            let split = split.min(samples.len());
            let shards = [("a", &samples[..split]), ("b", &samples[split..])];
            let shards = shards.map(|(path, samples)| {
                let mut all = MadeRows::default();
                all.recipe(if path == "a" { &[Decoder::Lzf] } else { &[Decoder::Lzf, Decoder::Shuffle(2)] });
                let extents: Vec<(u64, u64)> = samples
                    .iter()
                    .map(|parts| all.push_parts(parts.iter().map(|(length, at, made)| (*at, *length, *made))))
                    .collect();
                shard(path, &extents, Some(all))
            });
            let lists: Vec<Vec<StoredPart>> = shards
                .iter()
                .flat_map(|shard| {
                    let rows = &shard.rows;
                    (0..rows.rows()).map(move |row| {
                        let (at, length) = rows.extent(row);
                        let own = length - rows.more(row).iter().map(|part| part.length).sum::<u64>();
                        let more = rows.more(row).iter().map(|part| (part.offset, part.length, part.made));
                        let parts = [(at, own, rows.made(row))].into_iter().chain(more);
                        let parts = parts.filter(|(_, length, _)| *length > 0);
                        let decoders = |made: MadeRow| match made.recipe {
                            Some(recipe) => rows.decoders(recipe).unwrap(),
                            None => &[],
                        };
                        let part = |(at, length, made): (u64, u64, MadeRow)| StoredPart {
                            object: None,
                            stored: at..at + made.stored,
                            recipe: Recipe::new(decoders(made), made.decoded).unwrap(),
                            delivered: made.slice..made.slice + length,
                        };
                        parts.map(part).collect()
                    })
                })
                .collect();
            let catalog = catalog(shards.to_vec()).unwrap();
            let opened = Catalog::from_bytes(catalog.to_bytes().unwrap(), "x").unwrap();
            for (id, expected) in lists.into_iter().enumerate() {
                let id = SampleId(id as u64);
                let stored: u64 = expected.iter().map(|part| part.stored.end - part.stored.start).sum();
                match opened.entry(id).unwrap().span {
                    Span::Made(parts) => prop_assert_eq!(&parts[..], &expected[..]),
                    Span::Range(range) => {
                        prop_assert!(expected.len() < 2 && expected.iter().all(|part| part.stored == range));
                        prop_assert!(expected.iter().all(|part| part.recipe.decoders().is_empty()));
                        prop_assert_eq!(range.end - range.start, stored);
                    }
                    Span::Whole => prop_assert!(false),
                }
                prop_assert_eq!(opened.stored_sizes().unwrap().bytes(id), stored);
            }
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
