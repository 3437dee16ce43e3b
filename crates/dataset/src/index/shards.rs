//! The catalog of the shards that a listing has found.
//!
//! Names and sizes are checked before the first request. Labels are checked after the last one,
//! because only then it is known whether any sample has one.

use foreread_tier::OriginTier;
use foreread_types::setting;

use crate::build::{object_layouts, value_table};
use crate::catalog_file::column_names::LABEL;
use crate::index::partitions;
use crate::list::choose_format;
use crate::list::found_objects::FoundObjects;
use crate::messages::listed;
use crate::names::refuse;
use crate::packed::shard_journal::{self, ShardJournal};
use crate::packed::{self, FormatChoice, IndexedShard, ResumeState};
use crate::{Catalog, DatasetError, DatasetErrorKind, Format, FormatOptions, IndexOptions, IndexProgress};

/// The catalog of the samples in the shards that were found.
pub(super) async fn index(
    origin: &dyn OriginTier,
    base_url: &str,
    format: Format,
    options: &IndexOptions,
    found: FoundObjects,
    mut progress: impl FnMut(IndexProgress),
) -> Result<Catalog, DatasetError> {
    let FoundObjects { mut objects, progress: mut so_far, .. } = found;
    // Objects that the user has named are data.
    if options.objects.is_empty() {
        choose_format::drop_companions(base_url, &mut objects);
    }
    if format == Format::Tokens && options.format.is_none() {
        choose_format::keep_tokens(base_url, &mut objects);
    }
    objects.sort_unstable_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    let twice = objects
        .array_windows()
        .find(|[a, b]| a.path == b.path)
        .map(|[twice, _]| (twice, "it was listed twice"));
    let bad = || objects.iter().find_map(|object| Some((object, refuse(&object.path)?)));
    if let Some((object, why)) = twice.or_else(bad) {
        let message = format!("{base_url}: {:?} cannot be a shard: {why}; rename or exclude it", object.path);
        return Err(DatasetError::new(DatasetErrorKind::Invalid, message));
    }
    let count = objects.len();
    if options.format_options.pack.is_some() && count > 1 {
        let message = format!(
            "{base_url}: pack makes samples of one pair of Megatron's files, and there are {count}: index \
             each of them, or choose one with {}",
            setting("include")
        );
        return Err(DatasetError::new(DatasetErrorKind::Invalid, message));
    }
    let layouts = object_layouts::layouts(origin, &objects).await;
    // Only shards have versions in the journal, and their companions may have changed.
    let partial = options.partial.as_deref().filter(|_| !format.has_companions());
    let path = partial.map(shard_journal::next_to);
    let choices = &partitions::in_files(&options.format_options, &objects);
    let partial =
        path.map(|path| ShardJournal::open(&path, base_url, format, choices)).transpose()?.flatten();
    let (partial, kept) = partial.unzip();
    let before = ResumeState { kept: kept.unwrap_or_default(), partial: partial.as_ref() };
    let (is_selected, is_named) = (options.is_selected(), !options.objects.is_empty());
    let chosen = FormatChoice { format, options: choices, is_selected, is_named };
    let mut shards = packed::index(origin, base_url, chosen, objects, before, |cost| {
        so_far = IndexProgress {
            samples: cost.samples,
            resumed_shards: cost.resumed,
            skipped: cost.skipped,
            requests: cost.requests,
            bytes_read: cost.bytes_read,
            ..so_far
        };
        progress(so_far);
    })
    .await?;
    partitions::add_values(base_url, options, choices, &mut shards);
    check_values(base_url, format, options, &shards)?;
    // A sum that does not fit is the largest number.
    let total = shards.iter().map(|shard| shard.rows.bytes()).fold(0, u64::saturating_add);
    if total == u64::MAX {
        let message = format!("{base_url}: its samples are impossibly long together");
        return Err(DatasetError::new(DatasetErrorKind::Invalid, message));
    }
    if so_far.samples == 0 {
        let why = packed::why_empty(format, &shards);
        let (name, plural) = (format.name(), if shards.len() == 1 { "" } else { "s" });
        let message =
            format!("{base_url}: there are no samples in {} {name} shard{plural}: {why}", shards.len());
        return Err(DatasetError::new(DatasetErrorKind::Empty, message));
    }
    let classes = options.classes.as_deref();
    warn_of_new_numbers(base_url, options, &shards);
    Catalog::from_shards(base_url, options.notes(), format, shards, classes, &layouts)
}

/// Checks the labels that the user has named, and reports rows that are left out.
fn check_values(
    base_url: &str,
    format: Format,
    options: &IndexOptions,
    shards: &[IndexedShard],
) -> Result<(), DatasetError> {
    let named = |shards: &mut dyn Iterator<Item = &IndexedShard>| {
        let paths: Vec<&str> = shards.map(|shard| &*shard.object.path).collect();
        listed(paths.iter().copied(), paths.len())
    };
    let skipped: u64 = shards.iter().map(|shard| shard.skipped).sum();
    if skipped > 0 && matches!(format, Format::Parquet | Format::Arrow) {
        let which = named(&mut shards.iter().filter(|shard| shard.skipped > 0));
        tracing::warn!("{base_url}: {skipped} rows lack a value, and are left out: {which}");
    }
    let FormatOptions { label: Some(label), columns, .. } = &options.format_options else { return Ok(()) };
    let label_setting = setting("label");
    let invalid =
        |why: String| Err(DatasetError::new(DatasetErrorKind::Invalid, format!("{base_url}: {why}")));
    if label != LABEL && columns.iter().any(|column| column == LABEL) {
        return invalid(format!(
            "the column {:?} is a value, and the labels are another one: rename it, or leave out \
             {label_setting}",
            LABEL
        ));
    }
    let missing = |shard: &&IndexedShard| value_table::missing_labels(&shard.rows) > 0;
    let count: u64 = shards.iter().map(|shard| value_table::missing_labels(&shard.rows)).sum();
    let all: u64 = shards.iter().map(|shard| shard.rows.len()).sum();
    if count > 0 && count == all {
        return invalid(format!("no sample has a label by {label:?}: correct or leave out {label_setting}"));
    }
    if count > 0 {
        let which = named(&mut shards.iter().filter(missing));
        tracing::warn!("{base_url}: {count} of {all} samples have no label by {label:?}: {which}");
    }
    Ok(())
}

/// Warns about classes that are numbered by a part of the shards.
fn warn_of_new_numbers(base_url: &str, options: &IndexOptions, shards: &[IndexedShard]) {
    if options.is_selected() && options.classes.is_none() && value_table::have_classes(shards) {
        tracing::warn!(
            "{base_url}: the labels of the selected shards are texts, and their classes are numbered by \
             these shards alone; set {} to the names of all classes for the numbers of the whole dataset",
            setting("classes")
        );
    }
}
