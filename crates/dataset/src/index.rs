//! Builds a catalog: lists an origin and reads the headers in its shards.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use foreread_tier::{ErrorKind, Object, OriginTier, TierError};
use foreread_types::setting;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use serde::{Deserialize, Serialize};

use crate::build_catalog::SampleOrder;
use crate::classes::{self, listed};
use crate::directory_markers::DirectoryMarkers;
use crate::encode::IndexNotes;
use crate::format_options::FormatOptions;
use crate::found_objects::FoundObjects;
use crate::listing_journal::{self, ListingJournal};
use crate::names::refuse;
use crate::packed::{FormatChoice, IndexedShard, ResumeState};
use crate::selection::{GlobFilter, Selection, is_catalogs};
use crate::shard_journal::{self, ShardJournal};
use crate::{
    Catalog, DatasetError, DatasetErrorKind, Format, Grouping, choose_format, groups, large_listing, packed,
    partitions, servers, values,
};

/// The number of names that cannot be listed at which the index is aborted.
const MOST_ERRORS: u64 = 100;

/// The options that select the objects of an origin that become samples.
///
/// Globs are matched against the whole path below the base URL. `*` and `?` stop at `/`. `**/` is
/// any number of directories. `[a-z]` and `{a,b}` are alternatives. So `*.jpg` matches objects at
/// the top and `**/*.jpg` matches at any depth. Catalogs are never samples: names that end in
/// `.foreread`, or in a suffix of an unfinished index. Empty objects whose path is a directory of
/// another object are never samples either. Hidden files are not listed in the first place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct IndexOptions {
    /// If not empty, only objects that match one of these globs, or have one of these paths. A glob
    /// or path without a match is an error.
    pub include: Vec<String>,
    /// Objects that match one of these globs are excluded, even if they are included.
    pub exclude: Vec<String>,
    /// The format of the objects. If `None`, it is detected from their names. They are shards
    /// ([`Format::of_shard`]) if all but the files that accompany them (indexes, checksums,
    /// descriptions) have one format, else files. If names show nothing (`train-00000-of-01024`),
    /// the first bytes of one object decide. If a packed format is set, every object that does not
    /// accompany others is a shard of it, whatever its name.
    pub format: Option<Format>,
    /// Choices within the format.
    pub format_options: FormatOptions,
    /// If not empty, only these objects (their paths below the base URL), each once. A missing one
    /// is an error. Files are numbered in this order.
    pub objects: Vec<String>,
    /// The names of all classes. A class's number is its position here. Each label must be among
    /// them. If the list is empty, samples have no labels. If it is `None`, the directories below
    /// the base URL are the classes, whichever objects are selected.
    pub classes: Option<Vec<String>>,
    /// The file that an unfinished listing is stored in, so that the next index resumes it. Samples
    /// found in shards are stored next to it (suffix `-shards`). `None` stores nothing. The caller
    /// removes both files after the catalog is saved ([`forget_listing`](crate::forget_listing)).
    /// Only origins that list in the order of paths can resume a listing. Most object stores do. If
    /// a store turns out to list in another order, the file is removed, one warning is logged and
    /// the listing restarts. Only shards that have a version are stored.
    #[serde(skip)]
    pub partial: Option<PathBuf>,
    /// A name that stands for the place of the data. Cached data stays valid when the data is
    /// moved, or reached through other endpoints. The user guarantees that all places with this
    /// name hold the same data.
    pub name: Option<String>,
    /// Whether files are samples alone or together. Formats of shards are not looked for then.
    pub grouping: Grouping,
    /// How the index was requested, for a program that repeats it
    /// ([`Catalog::request`]). The catalog keeps the text.
    #[serde(skip)]
    pub request: Option<String>,
    /// The most objects of a listing in memory, some 200 bytes each, by default two million. More
    /// are sorted in a file of the directory of [`partial`](Self::partial), or of that for
    /// temporary files, which takes about 200 bytes per object meanwhile. The catalog is the same.
    #[serde(skip)]
    pub objects_in_memory: Option<usize>,
    /// Whether rows of a [table](Catalog::of_table) whose file does not exist are left out, and
    /// [groups](Self::grouping) without all of their files. Else they are an error.
    pub skip_missing: bool,
}

impl IndexOptions {
    /// Adds a glob to [`include`](Self::include).
    #[must_use]
    pub fn including(mut self, glob: impl Into<String>) -> Self {
        self.include.push(glob.into());
        self
    }

    /// Sets the format.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }

    /// Restricts the index to these objects.
    #[must_use]
    pub fn naming(mut self, objects: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.objects.extend(objects.into_iter().map(Into::into));
        self
    }

    /// Sets [`classes`](Self::classes).
    #[must_use]
    pub fn with_classes(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.classes = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// [`objects_in_memory`](Self::objects_in_memory), or its default.
    pub fn most_in_memory(&self) -> usize {
        self.objects_in_memory.unwrap_or(2_000_000).max(1)
    }

    /// Whether only a part of the objects is wanted.
    pub(crate) fn is_selected(&self) -> bool {
        !(self.include.is_empty() && self.exclude.is_empty() && self.objects.is_empty())
    }

    /// Adds a glob to [`exclude`](Self::exclude).
    #[must_use]
    pub fn excluding(mut self, glob: impl Into<String>) -> Self {
        self.exclude.push(glob.into());
        self
    }
}

/// The progress of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexProgress {
    /// Objects found so far.
    pub objects: u64,
    /// Their total length in bytes.
    pub bytes: u64,
    /// Samples found so far. While files are listed these are the objects, then the samples found
    /// in shards.
    pub samples: u64,
    /// Members of shards that are not samples: directories, links, names that WebDataset leaves
    /// out. Of a table the rows whose file does not exist.
    pub skipped: u64,
    /// Reads of shards so far.
    pub requests: u64,
    /// Bytes that these reads have returned.
    pub bytes_read: u64,
    /// Objects that an interrupted earlier listing had found.
    pub resumed: u64,
    /// Shards that an interrupted earlier index had completed.
    pub resumed_shards: u64,
}

impl Catalog {
    /// Lists an origin and builds the catalog of its objects. `progress` is called after each
    /// object that is found. For shards it is called after each read of one.
    ///
    /// A name that cannot be listed and is not excluded is an error. The listing continues, up to
    /// 100 of them, so that the message has their number and the first of them.
    ///
    /// For shards the headers of their members are read, by up to 64 requests at once.
    ///
    /// After the last object the future sorts and encodes without yielding, about 1 us per sample.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Listing`] if a name could not be listed. [`DatasetErrorKind::Empty`]
    /// without samples. [`DatasetErrorKind::Invalid`] for an invalid glob or a named object that is
    /// missing. [`DatasetErrorKind::BadShard`] or [`DatasetErrorKind::Unsupported`] if a shard is
    /// damaged or compressed. [`DatasetErrorKind::Reading`] if a shard cannot be read.
    /// [`DatasetErrorKind::InUse`] if another process writes the file of [`IndexOptions::partial`].
    /// Also those of [`Catalog::from_objects`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the listing. Only the file of [`IndexOptions::partial`] remains.
    pub async fn index(
        origin: &dyn OriginTier,
        base_url: &str,
        options: &IndexOptions,
        mut progress: impl FnMut(IndexProgress),
    ) -> Result<Self, DatasetError> {
        let mut found = list(origin, base_url, options, &mut progress).await?;
        if let Some(large) = found.take_large(options, &mut progress)? {
            return large_listing::index(origin, base_url, options, large, &mut progress).await;
        }
        found.catalogs += choose_format::drop_catalogs(origin, &mut found.objects).await;
        if found.objects.is_empty() {
            let why = left_out(options, found.unwanted, found.catalogs);
            let message = format!("{base_url}: there are no samples{why}");
            return Err(DatasetError::new(DatasetErrorKind::Empty, message));
        }
        if options.grouping != Grouping::None {
            return groups::index(origin, base_url, options, found.objects).await;
        }
        let format = choose_format::choose(origin, base_url, options, &found.objects).await?;
        match format.is_packed() {
            false => {
                let layouts = servers::layouts(origin, &found.objects).await;
                let labels = classes::labels_of(&found.objects);
                let classes = classes::of_files(origin, base_url, options, &labels).await?;
                let order = SampleOrder { classes, is_listed: !options.objects.is_empty() };
                Self::of_files(base_url, IndexNotes::of(options), found.objects, order, &layouts)
            }
            true => pack(origin, base_url, format, options, found, progress).await,
        }
    }
}

async fn list(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    let mut filter = GlobFilter::new(options)?;
    if !options.objects.is_empty() {
        return named(origin, base_url, options, &mut filter, progress).await;
    }
    let (found, selection) = (FoundObjects::with_disk(options), &mut Selection::Globs(Box::new(filter)));
    list_into(found, origin, base_url, selection, options.partial.as_deref(), progress).await
}

/// Lists the selected objects. `partial` is the file of an unfinished listing.
pub(crate) async fn list_selected(
    origin: &dyn OriginTier,
    base_url: &str,
    selection: &mut Selection<'_>,
    partial: Option<&Path>,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    list_into(FoundObjects::default(), origin, base_url, selection, partial, progress).await
}

async fn list_into(
    mut found: FoundObjects,
    origin: &dyn OriginTier,
    base_url: &str,
    selection: &mut Selection<'_>,
    partial: Option<&Path>,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    let path = partial.filter(|_| origin.profile().lists_in_order);
    let (mut holders, mut first, mut errors) = (DirectoryMarkers::default(), None, 0u64);
    let mut partial = None;
    if let Some(path) = path {
        let mut last = None;
        let kept = ListingJournal::open(path, base_url, selection, |objects| {
            last = objects.last().cloned().or(last.take());
            objects.iter().for_each(|object| holders.note(object));
            objects.into_iter().try_for_each(|object| found.add(object))
        })?;
        if kept.is_some() && is_of(origin, last).await {
            found.progress.resumed = found.progress.objects;
            partial = kept;
        } else {
            found.cleared();
            holders = DirectoryMarkers::default();
        }
    }
    let mut listing = origin.list(selection.directory(), partial.as_ref().and_then(ListingJournal::after));
    while let Some(object) = listing.next().await {
        match object {
            Ok(object) => {
                holders.note(&object);
                let wanted = selection.wants(&object.path);
                let is_kept = wanted && !is_catalogs(&object.path);
                partial = partial.and_then(|partial| partial.note(&object, is_kept));
                found.choose(object, wanted, progress)?;
            }
            // The objects found so far are discarded, because the restarted listing returns all of
            // them again.
            Err(error) if error.kind() == ErrorKind::Unordered => {
                tracing::warn!("{base_url}: {error}");
                found.cleared();
                (holders, first, errors) = Default::default();
                partial = None;
                path.into_iter().for_each(listing_journal::forget);
                progress(found.progress);
            }
            Err(error) if selection.excludes(&error) => {
                tracing::debug!(%error, "not listed, and excluded");
            }
            Err(error) => {
                errors += 1;
                // Later objects are not stored, so that the next index meets this error again.
                if let Some(mut unfinished) = partial.take() {
                    unfinished.keep();
                }
                first.get_or_insert(error);
                if errors == MOST_ERRORS {
                    break;
                }
            }
        }
    }
    if let Some(mut finished) = partial {
        finished.keep();
    }
    found.complete(holders, progress)?;
    match first {
        Some(first) => Err(incomplete(base_url, errors, first)),
        None if found.is_empty() => Ok(found),
        None => selection.check_matched(base_url, found.progress.resumed > 0).map(|()| found),
    }
}

/// The number of named objects that are requested at once.
pub(crate) const REQUESTED: usize = 32;

/// Requests each object by its name, because the directory may contain a million others. The
/// objects are in the order of their names.
async fn named(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    filter: &mut GlobFilter,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    let names = &options.objects;
    let positions: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
    if positions.len() < names.len() {
        return Err(repeated(base_url, names));
    }
    let mut found = FoundObjects::default();
    let (mut first, mut errors, mut gone) = (None, 0u64, BTreeSet::new());
    let (mut waiting, mut requested) = (names.iter(), FuturesUnordered::new());
    loop {
        while requested.len() < REQUESTED
            && let Some(name) = waiting.next()
        {
            let owned = name.clone();
            requested.push(origin.stat(name).map(move |object| (owned, object)));
        }
        let Some((name, object)) = requested.next().await else { break };
        match object {
            Ok(object) => {
                let wanted = filter.wants(&object.path);
                found.choose(object, wanted, progress)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                gone.insert(name);
            }
            Err(error) => {
                errors += 1;
                first.get_or_insert(error);
            }
        }
    }
    match first {
        Some(first) => Err(incomplete(base_url, errors, first)),
        None if !gone.is_empty() => Err(missing(base_url, &gone)),
        None => {
            found.objects.sort_by_key(|object| positions.get(&*object.path));
            filter.check_matched(base_url, false).map(|()| found)
        }
    }
}

/// The error for names that occur twice in a list.
fn repeated(base_url: &str, names: &[String]) -> DatasetError {
    let mut seen = HashSet::new();
    let twice: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| !seen.insert(*name)).collect();
    let count = twice.len();
    let message = format!(
        "{base_url}: {count} of the {} names occur more than once: {}; name each once",
        names.len(),
        listed(twice.into_iter(), count)
    );
    DatasetError::new(DatasetErrorKind::Invalid, message)
}

/// Whether the last object of the earlier listing is unchanged in this origin. The same URL may
/// lead to another store.
async fn is_of(origin: &dyn OriginTier, last: Option<Object>) -> bool {
    match last {
        None => true,
        Some(last) => origin.stat(&last.path).await.is_ok_and(|found| found == last),
    }
}

/// The error for named objects that are missing.
fn missing(base_url: &str, named: &BTreeSet<String>) -> DatasetError {
    let names = listed(named.iter().map(String::as_str), named.len());
    let is_shard = |name: &String| Format::of_shard(name).is_some() || Format::is_numbered_shard(name);
    let remedy = match named.iter().all(is_shard) {
        true => "name what is, or wait until it is".to_owned(),
        false => format!(
            "these are no objects; of several directories, name one, or {base_url} for all of its samples"
        ),
    };
    let message = format!("{base_url}: not there: {names}; {remedy}");
    DatasetError::new(DatasetErrorKind::Invalid, message)
}

/// Indexes the shards.
async fn pack(
    origin: &dyn OriginTier,
    base_url: &str,
    format: Format,
    options: &IndexOptions,
    found: FoundObjects,
    mut progress: impl FnMut(IndexProgress),
) -> Result<Catalog, DatasetError> {
    let FoundObjects { mut objects, progress: mut so_far, .. } = found;
    // Paths that the user has named are data.
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
    let layouts = servers::layouts(origin, &objects).await;
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
    Catalog::from_shards(base_url, IndexNotes::of(options), format, shards, classes, &layouts)
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
    if label != values::LABEL && columns.iter().any(|column| column == values::LABEL) {
        return invalid(format!(
            "the column {:?} is a value, and the labels are another one: rename it, or leave out \
             {label_setting}",
            values::LABEL
        ));
    }
    let missing = |shard: &&IndexedShard| values::missing_labels(&shard.rows) > 0;
    let count: u64 = shards.iter().map(|shard| values::missing_labels(&shard.rows)).sum();
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
    if options.is_selected() && options.classes.is_none() && values::have_classes(shards) {
        tracing::warn!(
            "{base_url}: the labels of the selected shards are texts, and their classes are numbered by \
             these shards alone; set {} to the names of all classes for the numbers of the whole dataset",
            setting("classes")
        );
    }
}

pub(crate) fn incomplete(base_url: &str, errors: u64, first: TierError) -> DatasetError {
    let more = match errors {
        1 => String::new(),
        MOST_ERRORS => format!(" (and {} more at least)", errors - 1),
        _ => format!(" (and {} more)", errors - 1),
    };
    let message = format!("{base_url}: not all of it could be listed: {first}{more}");
    DatasetError::new(DatasetErrorKind::Listing, message).with_source(first)
}

/// Describes the objects that were found and are not samples.
fn left_out(options: &IndexOptions, unwanted: u64, catalogs: u64) -> String {
    let mut parts = Vec::new();
    if unwanted > 0 {
        let how = match (options.include.is_empty(), options.exclude.is_empty()) {
            (true, _) => "excluded",
            (_, true) => "not included",
            _ => "excluded or not included",
        };
        parts.push(format!("{unwanted} {how} by the globs"));
    }
    if catalogs > 0 {
        parts.push(format!("{catalogs} left out as catalogs"));
    }
    match parts.is_empty() {
        true => " in it (hidden files do not count)".to_owned(),
        false => format!(": {}", parts.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_tier::{ErrorKind, ReadFuture, ReadRequest, Tier, TierProfile};
    use foreread_types::SampleId;
    use futures::future::BoxFuture;
    use futures::stream::BoxStream;

    use super::*;

    /// An origin that only lists. A name is a path, the path of an empty object (`path=`), or an
    /// error about one (`!path`).
    #[derive(Debug)]
    struct Listed(Vec<&'static str>, TierProfile);

    impl Tier for Listed {
        fn name(&self) -> &str {
            "listed"
        }
        fn profile(&self) -> &TierProfile {
            &self.1
        }
        fn read(&self, _: Arc<ReadRequest>) -> ReadFuture {
            Box::pin(std::future::ready(Err(TierError::new(ErrorKind::Denied, "listed"))))
        }
        fn submit(&self) {}
    }

    impl OriginTier for Listed {
        fn place(&self) -> &str {
            "listed"
        }

        fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
            let listed = self.0.clone().into_iter().map(|path| match path.strip_prefix('!') {
                Some(path) => Err(TierError::new(ErrorKind::Denied, "listed").with_object(path)),
                None => match path.strip_suffix('=') {
                    Some(path) => Ok(Object { path: path.into(), size: 0, version: None }),
                    None => Ok(Object { path: path.into(), size: 10, version: None }),
                },
            });
            futures::stream::iter(listed.collect::<Vec<_>>()).boxed()
        }

        fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
            let found = match self.0.contains(&path) {
                true => Ok(Object { path: path.into(), size: 10, version: None }),
                false => Err(TierError::new(ErrorKind::NotFound, "listed").with_object(path)),
            };
            Box::pin(std::future::ready(found))
        }

        fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
            None
        }
    }

    async fn index(paths: &[&'static str], options: IndexOptions) -> Result<Vec<String>, DatasetError> {
        let origin = Listed(paths.to_vec(), TierProfile::new(1));
        let mut last = IndexProgress::default();
        let catalog = Catalog::index(&origin, "/data", &options, |progress| {
            // Directory markers are detected at the end of the listing.
            assert!(progress.objects == last.objects + 1 || progress.objects < last.objects);
            last = progress;
        })
        .await?;
        assert_eq!((last.objects, last.bytes), (catalog.len(), catalog.total_bytes()));
        (0..catalog.len()).map(|id| catalog.path(SampleId(id)).map(std::borrow::Cow::into_owned)).collect()
    }

    /// The labels of a part of a dataset, and all classes.
    async fn labels(
        paths: &[&'static str],
        options: IndexOptions,
    ) -> Result<(Vec<Option<u32>>, Vec<String>), DatasetError> {
        let catalog =
            Catalog::index(&Listed(paths.to_vec(), TierProfile::new(1)), "/data", &options, |_| ()).await?;
        let catalog = Catalog::from_bytes(catalog.to_bytes()?, "saved")?;
        let labels = (0..catalog.len()).map(|id| catalog.label_index(SampleId(id))).collect();
        Ok((labels, catalog.labels().iter().map(ToString::to_string).collect()))
    }

    #[tokio::test]
    // semantics: SAMPLE-4
    async fn class_keeps_its_number_in_every_subset() {
        let paths = ["cat/1", "dog/1", "dog/2", "eel/1", "top"];
        let any = IndexOptions::default;
        let all: Vec<String> = ["cat", "dog", "eel"].map(str::to_owned).to_vec();
        for (options, numbers) in [
            (any(), vec![None, Some(0), Some(1), Some(1), Some(2)]),
            (any().including("dog/*").including("eel/*"), vec![Some(1), Some(1), Some(2)]),
            (any().excluding("cat/*").excluding("dog/1"), vec![None, Some(1), Some(2)]),
            (any().naming(["eel/1", "dog/2"]), vec![Some(2), Some(1)]),
        ] {
            assert_eq!(labels(&paths, options.clone()).await.unwrap(), (numbers, all.clone()), "{options:?}");
        }
    }

    #[tokio::test]
    // semantics: SAMPLE-4
    async fn named_classes_have_the_order_of_their_names() {
        let paths = ["cat/1", "dog/1"];
        let with = |names: &[&str]| IndexOptions::default().with_classes(names.iter().copied());
        let (numbers, names) = labels(&paths, with(&["eel", "dog", "cat"])).await.unwrap();
        assert_eq!(
            (numbers, names),
            (vec![Some(2), Some(1)], ["eel", "dog", "cat"].map(str::to_owned).to_vec())
        );
        assert_eq!(labels(&paths, with(&[])).await.unwrap(), (vec![None, None], Vec::new()));
        for (names, why) in [(&["dog"][..], "lacks 1 of the labels: cat"), (&["cat", "dog", "cat"], "twice")]
        {
            let error = labels(&paths, with(names)).await.unwrap_err();
            assert_eq!(error.kind(), DatasetErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[tokio::test]
    // semantics: SAMPLE-4
    async fn classes_that_cannot_be_listed_must_be_named() {
        let paths = ["cat/1", "dog/1", "!private"];
        let named = IndexOptions::default().naming(["dog/1"]);
        let error = labels(&paths, named.clone()).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Listing);
        assert!(error.to_string().contains("by an index with `classes`"), "{error}");
        let (numbers, _) = labels(&paths, named.with_classes(["cat", "dog"])).await.unwrap();
        assert_eq!(numbers, [Some(1)]);
    }

    #[tokio::test]
    // semantics: SAMPLE-24
    async fn names_that_match_nothing_are_counted_and_named() {
        let paths = ["a/1.jpg", "b[1].jpg"];
        let including =
            |globs: &[&str]| globs.iter().fold(IndexOptions::default(), |all, glob| all.including(*glob));
        let given = including(&["a/*", "a/2.jpg", "c/*", "c/1.jpg", "a/1.jpg"]);
        let error = index(&paths, given).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Invalid);
        assert!(
            error.to_string().contains("2 of 5 names in `include` match nothing: a/2.jpg, c/1.jpg;"),
            "{error}"
        );
        // Endings may be absent.
        assert_eq!(index(&paths, including(&["a/*", "**/*.png"])).await.unwrap(), ["a/1.jpg"]);
        // A name is a name, whatever characters are in it.
        assert_eq!(index(&paths, including(&["b[1].jpg"])).await.unwrap(), ["b[1].jpg"]);
    }

    #[tokio::test]
    // semantics: SAMPLE-3
    async fn list_keeps_its_order() {
        let paths = ["a/1", "a/2", "b/1", "b/2"];
        let listed = |names: &[&str]| IndexOptions::default().naming(names.iter().copied());
        let origin = Listed(paths.to_vec(), TierProfile::new(1));
        let catalog = async |names: &[&str]| Catalog::index(&origin, "/data", &listed(names), |_| ()).await;
        let (sorted, other) = (["a/1", "a/2", "b/1"], ["b/1", "a/2", "a/1"]);
        let made = catalog(&other).await.unwrap();
        let made = Catalog::from_bytes(made.to_bytes().unwrap(), "saved").unwrap();
        for (id, path) in (0..).zip(other) {
            assert_eq!(made.path(SampleId(id)).unwrap(), path);
            assert_eq!(made.find(path), Some(SampleId(id)));
        }
        assert_eq!(made.find("b/2"), None);
        let first = catalog(&sorted).await.unwrap();
        assert_ne!(first.fingerprint(), made.fingerprint());
        // A list in the order of names is the same as in earlier versions.
        let objects = sorted.map(|path| Object { path: path.into(), size: 10, version: None });
        let before = Catalog::from_objects("/data", objects).unwrap();
        assert_eq!(first.fingerprint(), before.fingerprint());
        let error = catalog(&["a/1", "b/1", "a/1"]).await.unwrap_err();
        assert!(error.to_string().contains("1 of the 3 names occur more than once: a/1"), "{error}");
    }

    #[tokio::test]
    async fn globs_match_the_whole_path_and_stars_stop_at_slashes() {
        let paths = ["a.jpg", "x/b.jpg", "x/c.txt", "x/y/d.jpg", "catalog.foreread", "c.foreread.partial"];
        let any = IndexOptions::default;
        assert_eq!(index(&paths, any()).await.unwrap(), ["a.jpg", "x/b.jpg", "x/c.txt", "x/y/d.jpg"]);
        assert_eq!(index(&paths, any().including("*.jpg")).await.unwrap(), ["a.jpg"]);
        let all = any().including("**/*.jpg");
        assert_eq!(index(&paths, all.clone()).await.unwrap(), ["a.jpg", "x/b.jpg", "x/y/d.jpg"]);
        assert_eq!(index(&paths, all.excluding("x/y/**")).await.unwrap(), ["a.jpg", "x/b.jpg"]);
        assert_eq!(index(&paths, any().including("x/*.{txt,jpg}")).await.unwrap(), ["x/b.jpg", "x/c.txt"]);
        let error = index(&paths, any().including("[a")).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Invalid);
        assert!(error.to_string().contains("[a"), "{error}");
    }

    #[tokio::test]
    async fn empty_result_names_what_was_excluded() {
        let error = index(&[], IndexOptions::default()).await.unwrap_err();
        assert_eq!(error.to_string(), "/data: there are no samples in it (hidden files do not count)");
        let paths = ["a", "b", "old.foreread"];
        let error = index(&paths, IndexOptions::default().excluding("*")).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Empty);
        let counted = "2 excluded by the globs and 1 left out as catalogs";
        assert_eq!(error.to_string(), format!("/data: there are no samples: {counted}"));
    }

    #[tokio::test]
    // semantics: SAMPLE-7
    async fn directory_markers_are_not_samples() {
        let paths = ["shards=", "shards/a.tar=", "shards/a=", "shards/a/1", "empty="];
        let any = IndexOptions::default;
        assert_eq!(index(&paths, any()).await.unwrap(), ["empty", "shards/a.tar", "shards/a/1"]);
        // Also if the objects below them are excluded.
        let without = any().excluding("shards/**");
        assert_eq!(index(&paths, without).await.unwrap(), ["empty"]);
        let error = index(&["a=", "a/b.jpg"], any().excluding("**/*.jpg")).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Empty);
    }

    #[tokio::test]
    async fn unlistable_file_is_an_error_unless_excluded() {
        let paths = ["a", "!private", "b", "!other/link"];
        let error = index(&paths, IndexOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Listing);
        let text = error.to_string();
        assert!(text.contains("listed: private: ") && text.ends_with("(and 1 more)"), "{text}");
        assert!(std::error::Error::source(&error).is_some());
        let options = IndexOptions::default().excluding("private/**").excluding("**/link");
        assert_eq!(index(&paths, options).await.unwrap(), ["a", "b"]);
        // A pattern for files does not exclude a directory that may contain included files.
        assert!(index(&paths, IndexOptions::default().excluding("private/*.txt")).await.is_err());
    }
}
