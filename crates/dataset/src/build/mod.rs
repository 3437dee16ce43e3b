//! Making catalogs: of files, and of the samples in shards.

pub(crate) mod changes;
pub(crate) mod class_numbers;
pub(crate) mod files;
pub(crate) mod header;
pub(crate) mod object_layouts;
pub(crate) mod recipe_table;
pub(crate) mod released;
pub(crate) mod runs;
pub(crate) mod schema;
pub(crate) mod shard_columns;
pub(crate) mod shards;
pub(crate) mod value_table;

use std::collections::HashSet;

use arrow_schema::ArrowError;
use foreread_tier::{Object, Version};
use foreread_types::setting;

use crate::build::files::{CatalogSample, encode};
use crate::build::header::{CatalogHeader, IndexNotes};
use crate::build::object_layouts::Layouts;
use crate::build::recipe_table::RecipeTable;
use crate::build::released::in_pieces;
use crate::catalog_file::keys::{ARRAYS_KEY, FIELD_ARRAYS_KEY, RECIPES_KEY, SUMMARY_KEY};
use crate::catalog_file::listing::Listing;
use crate::catalog_file::server_column;
use crate::catalog_file::writer::ROWS;
use crate::messages::shortened;
use crate::names::{MAX_TEXT, SplitName, compare, refuse};
use crate::packed::IndexedShard;
use crate::{Catalog, DatasetError, DatasetErrorKind, Format};

/// The most samples in runs that are stored one by one, because their lengths differ. They take 4
/// GB of memory.
const MOST_EXPANDED: u64 = 1 << 26;

/// How the samples and the classes of files are numbered.
#[derive(Debug, Default)]
pub(crate) struct SampleOrder {
    /// The names of all classes. `None` are those of the samples, and an empty list is none.
    pub(crate) classes: Option<Vec<String>>,
    /// Whether the order of the objects is kept, because the user has listed them.
    pub(crate) is_listed: bool,
}

impl Catalog {
    /// The catalog of these objects, one sample each. They may come in any order. `base_url` is
    /// kept unchanged.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Empty`] without objects. [`DatasetErrorKind::Invalid`] if a path leaves
    /// the origin or occurs twice, or a path or ETag is longer than 16,384 bytes.
    /// [`DatasetErrorKind::Io`] if the versions do not suffice and the system has no random
    /// numbers.
    pub fn from_objects(
        base_url: &str,
        objects: impl IntoIterator<Item = Object>,
    ) -> Result<Self, DatasetError> {
        Self::of_files(base_url, IndexNotes::default(), objects, SampleOrder::default(), &Layouts::new())
    }

    /// Like [`from_objects`](Self::from_objects), with the user's name for the place of the data,
    /// and the numbers of samples and classes.
    pub(crate) fn of_files(
        base_url: &str,
        notes: IndexNotes<'_>,
        objects: impl IntoIterator<Item = Object>,
        order: SampleOrder,
        layouts: &Layouts,
    ) -> Result<Self, DatasetError> {
        let invalid = |path: &str, why: &str| invalid(base_url, path, why);
        let objects: Vec<Object> = objects.into_iter().collect();
        let mut samples = Vec::with_capacity(objects.len());
        let mut total = 0u64;
        let has_labels = order.classes.as_ref().is_none_or(|classes| !classes.is_empty());
        for object in in_pieces(objects, ROWS).flatten() {
            if let Some(error) = refused(base_url, &object) {
                return Err(error);
            }
            let sum = total.checked_add(object.size);
            total = sum.ok_or_else(|| invalid(&shortened(&object.path), "it is impossibly long"))?;
            let layout = layouts.get(&object.path);
            let server = layout.and_then(|layout| server_column::encode(&**layout, 0));
            samples.push(CatalogSample { cut: SplitName::of(&object.path), object, server, has_labels });
        }
        if samples.is_empty() {
            return Err(DatasetError::new(
                DatasetErrorKind::Empty,
                format!("{base_url}: there are no samples"),
            ));
        }
        if !order.is_listed {
            samples.sort_unstable_by(|a, b| compare((&a.object.path, a.cut), (&b.object.path, b.cut)));
        }
        let mut seen = HashSet::with_capacity(if order.is_listed { samples.len() } else { 0 });
        let twice = match order.is_listed {
            true => samples.iter().find(|sample| !seen.insert(&sample.object.path)),
            false => {
                samples.array_windows().find(|[a, b]| a.object.path == b.object.path).map(|[twice, _]| twice)
            }
        };
        if let Some(twice) = twice {
            return Err(invalid(&twice.object.path, "it was listed twice"));
        }
        let listing = Listing::of(samples.iter().map(|sample| &sample.object));
        let listing = listing.map_err(|error| no_randomness(base_url, error))?;
        let head = CatalogHeader { base_url, notes, listing, extra: &[] };
        let bytes = encode(head, Format::Files.name(), samples, order.classes.as_deref());
        Self::of_encoded(base_url, bytes)
    }

    /// The catalog of the samples in these shards. Each shard occurs once. There is at least one
    /// sample.
    pub(crate) fn from_shards(
        base_url: &str,
        notes: IndexNotes<'_>,
        format: Format,
        mut shards: Vec<IndexedShard>,
        classes: Option<&[String]>,
        layouts: &Layouts,
    ) -> Result<Self, DatasetError> {
        let invalid =
            |why: String| DatasetError::new(DatasetErrorKind::Invalid, format!("{base_url}: {why}"));
        shards.retain(|shard| shard.rows.len() > 0);
        shards.sort_unstable_by(|a, b| a.object.path.as_bytes().cmp(b.object.path.as_bytes()));
        let listing = Listing::of(shards.iter().map(|shard| &shard.object));
        let listing = listing.map_err(|error| no_randomness(base_url, error))?;
        let tables = value_table::tables(base_url, &shards, classes)?;
        let summary = shards.first().map(|shard| shard.rows.extra().summary.clone());
        let summary = summary.filter(|text| !text.is_empty()).map(|text| (SUMMARY_KEY, text));
        let arrays = value_table::arrays(&shards, &tables).map(|text| (ARRAYS_KEY, text));
        let fields = value_table::field_arrays(&shards).map(|text| (FIELD_ARRAYS_KEY, text));
        let made = RecipeTable::of(&shards);
        let recipes = made.as_ref().map(|made| (RECIPES_KEY, made.json()));
        let extra: Vec<_> = summary.into_iter().chain(arrays).chain(fields).chain(recipes).collect();
        let head = CatalogHeader { base_url, notes, listing, extra: &extra };
        let bytes = if runs::are_computed(&shards) {
            runs::encode(head, format.name(), &shards)
        } else {
            let computed = shards.iter().map(|shard| shard.rows.computed());
            let computed = computed.fold(0, u64::saturating_add);
            if computed > MOST_EXPANDED {
                return Err(invalid(format!(
                    "{computed} samples have computed places, but their lengths or labels differ from shard \
                     to shard: index the shards of one length together, or leave out {} (at most \
                     {MOST_EXPANDED} places are stored)",
                    setting("label")
                )));
            }
            shards.iter_mut().for_each(|shard| shard.rows.expand());
            shards::encode(head, format.name(), &shards, layouts, &tables, made.as_ref())
        };
        drop(shards);
        Self::of_encoded(base_url, bytes)
    }

    pub(crate) fn of_encoded(
        base_url: &str,
        bytes: Result<Vec<u8>, ArrowError>,
    ) -> Result<Self, DatasetError> {
        let bytes = bytes.map_err(|error| {
            let message = format!("{base_url}: the catalog cannot be made: {error}");
            DatasetError::new(DatasetErrorKind::Invalid, message).with_source(error)
        })?;
        Self::from_bytes(bytes, format!("the catalog of {base_url}"))
    }
}

/// The error for an object that cannot be a sample.
pub(crate) fn invalid(base_url: &str, path: &str, why: &str) -> DatasetError {
    let message = format!("{base_url}: {path:?} cannot be a sample: {why}; rename or exclude it");
    DatasetError::new(DatasetErrorKind::Invalid, message)
}

/// The error for an object that cannot be a sample because of its name or tag.
pub(crate) fn refused(base_url: &str, object: &Object) -> Option<DatasetError> {
    let is_long = matches!(&object.version, Some(Version::ETag(tag)) if tag.len() > MAX_TEXT);
    let tag = is_long.then_some("its ETag is longer than 16,384 bytes");
    Some(invalid(base_url, &shortened(&object.path), refuse(&object.path).or(tag)?))
}

pub(crate) fn no_randomness(base_url: &str, error: std::io::Error) -> DatasetError {
    let message =
        format!("{base_url}: the catalog cannot be made: the system has no random numbers: {error}");
    DatasetError::new(DatasetErrorKind::Io, message).with_source(error)
}
