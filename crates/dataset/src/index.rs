//! Builds a catalog: lists an origin and reads the headers in its shards.

use std::collections::BTreeSet;
use std::path::PathBuf;

use foreread_tier::{ErrorKind, Object, OriginTier, TierError};
use foreread_types::setting;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::directory_markers::DirectoryMarkers;
use crate::format::DetectedFormat;
use crate::format_options::FormatOptions;
use crate::listing_journal::{self, ListingJournal};
use crate::names::refuse;
use crate::packed::{FormatChoice, ResumeState};
use crate::servers;
use crate::shard_journal::{self, ShardJournal};
use crate::{CATALOG_SUFFIX, Catalog, DatasetError, DatasetErrorKind, Format, format, packed};

/// A single `.bin` file of more bytes more likely has tokens than one sample.
const LARGE_SAMPLE: u64 = 64 << 20;

/// The number of names that cannot be listed at which the index is aborted.
const MOST_ERRORS: u64 = 100;

/// The options that select the objects of an origin that become samples.
///
/// Globs are matched against the whole path below the base URL. `*` and `?` stop at `/`. `**/` is
/// any number of directories. `[a-z]` and `{a,b}` are alternatives. So `*.jpg` matches objects at
/// the top and `**/*.jpg` matches at any depth. Catalogs are never samples: names that end in
/// `.foreread`, or in a suffix of an unfinished index. Empty objects whose path is a directory of
/// another object are never samples either. Hidden files are not listed in the first place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexOptions {
    /// If not empty, only objects that match one of these globs.
    pub include: Vec<String>,
    /// Objects that match one of these globs are excluded, even if they are included.
    pub exclude: Vec<String>,
    /// The format of the objects. If `None`, it is detected from their names. They are shards
    /// ([`Format::of_shard`]) if all but their companions ([`Format::is_companion`]) have one
    /// format, else files. If shards are only numbered (`train-00000-of-01024`), the first bytes of
    /// one shard decide. If a packed format is set, every object but companions is a shard of it,
    /// whatever its name.
    pub format: Option<Format>,
    /// Choices within the format.
    pub format_options: FormatOptions,
    /// If not empty, only these objects (their paths below the base URL). A missing one is an
    /// error.
    pub objects: Vec<String>,
    /// The file that an unfinished listing is stored in, so that the next index resumes it. Samples
    /// found in shards are stored next to it (suffix `-shards`). `None` stores nothing. The caller
    /// removes both files after the catalog is saved ([`forget_listing`](crate::forget_listing)).
    /// Only origins that list in the order of paths can resume a listing. Most object stores do. If
    /// a store turns out to list in another order, the file is removed, one warning is logged and
    /// the listing restarts. Only shards that have a version are stored.
    pub partial: Option<PathBuf>,
    /// A name that stands for the place of the data. Cached data stays valid when the data is
    /// moved, or reached through other endpoints. The user guarantees that all places with this
    /// name hold the same data.
    pub name: Option<String>,
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
    /// out.
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

struct GlobFilter {
    include: Option<GlobSet>,
    exclude: GlobSet,
}

impl GlobFilter {
    fn new(options: &IndexOptions) -> Result<Self, DatasetError> {
        let include = (!options.include.is_empty()).then(|| set(&options.include)).transpose()?;
        Ok(Self { include, exclude: set(&options.exclude)? })
    }

    fn wants(&self, path: &str) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(path)) && !self.exclude.is_match(path)
    }

    /// Whether the name that could not be listed is excluded. If it is a directory, all of its
    /// content must be excluded. A name that is only *not included* may be a directory with
    /// included objects.
    fn excludes(&self, error: &TierError) -> bool {
        error
            .object()
            .is_some_and(|path| self.exclude.is_match(path) || self.exclude.is_match(format!("{path}/")))
    }
}

fn set(globs: &[String]) -> Result<GlobSet, DatasetError> {
    let mut set = GlobSetBuilder::new();
    for text in globs {
        set.add(
            GlobBuilder::new(text).literal_separator(true).build().map_err(|error| bad_glob(text, error))?,
        );
    }
    set.build().map_err(|error| bad_glob(&globs.join(" "), error))
}

fn bad_glob(text: &str, error: globset::Error) -> DatasetError {
    let message = format!("{text:?} is not a valid glob: {}", error.kind());
    DatasetError::new(DatasetErrorKind::Invalid, message).with_source(error)
}

/// Whether a name is that of a catalog, or of a file of an unfinished index.
fn is_catalogs(path: &str) -> bool {
    let kept = path.strip_suffix("-shards").unwrap_or(path).strip_suffix(".partial");
    path.ends_with(CATALOG_SUFFIX) || kept.is_some_and(|path| path.ends_with(CATALOG_SUFFIX))
}

/// The objects that a listing has found.
#[derive(Default)]
struct FoundObjects {
    objects: Vec<Object>,
    progress: IndexProgress,
    catalogs: u64,
    unwanted: u64,
}

impl FoundObjects {
    /// Adds an object if it is selected.
    fn choose(&mut self, object: Object, filter: &GlobFilter, progress: &mut impl FnMut(IndexProgress)) {
        if is_catalogs(&object.path) {
            self.catalogs += 1;
        } else if !filter.wants(&object.path) {
            self.unwanted += 1;
        } else {
            self.add(object);
            progress(self.progress);
        }
    }

    fn add(&mut self, object: Object) {
        self.progress.objects += 1;
        self.progress.samples += 1;
        self.progress.bytes = self.progress.bytes.saturating_add(object.size);
        self.objects.push(object);
    }

    /// Removes the markers of directories.
    fn sift(&mut self, holders: DirectoryMarkers, progress: &mut impl FnMut(IndexProgress)) {
        let before = self.objects.len();
        holders.sift(&mut self.objects);
        let gone = (before - self.objects.len()) as u64;
        if gone > 0 {
            tracing::debug!(gone, "empty objects stand for directories and are not samples");
            self.progress.objects -= gone;
            self.progress.samples -= gone;
            progress(self.progress);
        }
    }
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
        let found = list(origin, base_url, options, &mut progress).await?;
        if found.objects.is_empty() {
            let why = left_out(options, found.unwanted, found.catalogs);
            let message = format!("{base_url}: there are no samples{why}");
            return Err(DatasetError::new(DatasetErrorKind::Empty, message));
        }
        let format = choose_format(origin, base_url, options, &found.objects).await?;
        match format.is_packed() {
            false => {
                let layouts = servers::layouts(origin, &found.objects).await;
                Self::of_files(base_url, options.name.as_deref(), found.objects, &layouts)
            }
            true => pack(origin, base_url, format, options, found, progress).await,
        }
    }
}

/// The format of the objects: the one that is set, or the one that their names show.
async fn choose_format(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    objects: &[Object],
) -> Result<Format, DatasetError> {
    let choices = &options.format_options;
    let paths = || objects.iter().map(|object| &*object.path);
    let detected = match options.format {
        Some(format) => DetectedFormat::Format(format),
        None => format::detect(base_url, paths())?,
    };
    if let ([only], DetectedFormat::Format(Format::Files)) = (objects, detected)
        && only.path.ends_with(".bin")
        && only.size > LARGE_SAMPLE
        && !choices.is_tokens()
    {
        let window = setting("window");
        tracing::warn!("{base_url}: {} is taken as one sample; for tokens, set {window}", only.path);
    }
    let format = match detected {
        DetectedFormat::Format(Format::Files | Format::Npy)
            if choices.is_tokens() && options.format.is_none() =>
        {
            Format::Tokens
        }
        DetectedFormat::Format(format) => format,
        DetectedFormat::Numbered => packed::sniff(origin, base_url, objects).await?,
        DetectedFormat::Chunks if packed::have_index(origin, objects).await => Format::LitData,
        DetectedFormat::Chunks if choices.is_tokens() => Format::Tokens,
        DetectedFormat::Chunks => Format::Files,
    };
    let why = match choices.misplaced(format) {
        Some(name) => format!("{name} has no effect for the format {}", format.name()),
        None => match choices.conflict() {
            Some(why) => why.to_owned(),
            None => return Ok(format),
        },
    };
    let message = format!("{base_url}: {why}; leave it out, or set the format");
    Err(DatasetError::new(DatasetErrorKind::Invalid, message))
}

/// Keeps the token files among files whose format was not set.
fn keep_tokens(base_url: &str, objects: &mut Vec<Object>) {
    let all = objects.len();
    objects.retain(|object| object.path.ends_with(".bin") || object.path.ends_with(".npy"));
    let others = all - objects.len();
    if others > 0 && !objects.is_empty() {
        tracing::warn!(
            "{base_url}: {others} of {all} files are no token files (.bin, .npy) and are left out"
        );
    }
}

async fn list(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    let filter = GlobFilter::new(options)?;
    if !options.objects.is_empty() {
        return named(origin, base_url, options, &filter, progress).await;
    }
    let (mut found, mut holders, mut first, mut errors) =
        (FoundObjects::default(), DirectoryMarkers::default(), None, 0u64);
    let mut partial = None;
    let path = options.partial.as_deref().filter(|_| origin.profile().lists_in_order);
    let kept = path.map(|path| ListingJournal::open(path, base_url, options)).transpose()?.flatten();
    if let Some((unfinished, before)) = kept
        && is_of(origin, &before).await
    {
        found.progress.resumed = before.len() as u64;
        before.iter().for_each(|object| holders.note(object));
        before.into_iter().for_each(|object| found.add(object));
        partial = Some(unfinished);
    }
    let mut listing = origin.list("", partial.as_ref().and_then(ListingJournal::after));
    while let Some(object) = listing.next().await {
        if let Ok(object) = &object {
            holders.note(object);
            let wanted = !is_catalogs(&object.path) && filter.wants(&object.path);
            partial = partial.and_then(|partial| partial.note(object, wanted));
        }
        match object {
            Ok(object) => found.choose(object, &filter, progress),
            // The objects found so far are discarded, because the restarted listing returns all of
            // them again.
            Err(error) if error.kind() == ErrorKind::Unordered => {
                tracing::warn!("{base_url}: {error}");
                (found, holders, first, errors) = Default::default();
                partial = None;
                path.into_iter().for_each(listing_journal::forget);
                progress(found.progress);
            }
            Err(error) if filter.excludes(&error) => {
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
    found.sift(holders, progress);
    match first {
        Some(first) => Err(incomplete(base_url, errors, first)),
        None => Ok(found),
    }
}

/// The number of named objects that are requested at once.
const REQUESTED: usize = 32;

/// Requests each object by its name, because the directory may contain a million others.
async fn named(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    filter: &GlobFilter,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    let names: BTreeSet<&str> = options.objects.iter().map(String::as_str).collect();
    let mut found = FoundObjects::default();
    let (mut first, mut errors, mut gone) = (None, 0u64, BTreeSet::new());
    let (mut waiting, mut requested) = (names.into_iter(), FuturesUnordered::new());
    loop {
        while requested.len() < REQUESTED
            && let Some(name) = waiting.next()
        {
            let owned = name.to_owned();
            requested.push(origin.stat(name).map(move |object| (owned, object)));
        }
        let Some((name, object)) = requested.next().await else { break };
        match object {
            Ok(object) => found.choose(object, filter, progress),
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
        None => Ok(found),
    }
}

/// Whether the last object of the earlier listing is unchanged in this origin. The same URL may
/// lead to another store.
async fn is_of(origin: &dyn OriginTier, before: &[Object]) -> bool {
    match before.last() {
        None => true,
        Some(last) => origin.stat(&last.path).await.is_ok_and(|found| found == *last),
    }
}

/// The error for named objects that are missing.
fn missing(base_url: &str, named: &BTreeSet<String>) -> DatasetError {
    let some: Vec<&str> = named.iter().take(5).map(String::as_str).collect();
    let more = match named.len() - some.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let is_shard = |name: &String| Format::of_shard(name).is_some() || Format::is_numbered_shard(name);
    let remedy = match named.iter().all(is_shard) {
        true => "name what is, or wait until it is".to_owned(),
        false => format!(
            "these are no objects; of several directories, name one, or {base_url} for all of its samples"
        ),
    };
    let message = format!("{base_url}: not there: {}{more}; {remedy}", some.join(", "));
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
    objects.retain(|object| !Format::is_companion(&object.path));
    if format == Format::Tokens && options.format.is_none() {
        keep_tokens(base_url, &mut objects);
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
    let choices = &options.format_options;
    let partial =
        path.map(|path| ShardJournal::open(&path, base_url, format, choices)).transpose()?.flatten();
    let (partial, kept) = partial.unzip();
    let before = ResumeState { kept: kept.unwrap_or_default(), partial: partial.as_ref() };
    let is_selected =
        !(options.include.is_empty() && options.exclude.is_empty() && options.objects.is_empty());
    let chosen = FormatChoice { format, options: choices, is_selected };
    let shards = packed::index(origin, base_url, chosen, objects, before, |cost| {
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
    // A sum that does not fit is the largest number.
    let total = shards.iter().map(|shard| shard.rows.bytes()).fold(0, u64::saturating_add);
    if total == u64::MAX {
        let message = format!("{base_url}: its samples are impossibly long together");
        return Err(DatasetError::new(DatasetErrorKind::Invalid, message));
    }
    if so_far.samples == 0 {
        let skipped: u64 = shards.iter().map(|shard| shard.skipped).sum();
        if format == Format::Tokens && count > 0 {
            let message =
                format!("{base_url}: no file is as long as the window; set a shorter {}", setting("window"));
            return Err(DatasetError::new(DatasetErrorKind::Empty, message));
        }
        let message = format!(
            "{base_url}: there are no samples in {count} {} shards ({skipped} members that are none)",
            format.name()
        );
        return Err(DatasetError::new(DatasetErrorKind::Empty, message));
    }
    Catalog::from_shards(base_url, options.name.as_deref(), format, shards, &layouts)
}

fn incomplete(base_url: &str, errors: u64, first: TierError) -> DatasetError {
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
        parts.push(format!("{catalogs} left out as catalogs (*{CATALOG_SUFFIX})"));
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
            Box::pin(std::future::pending())
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
            let error = TierError::new(ErrorKind::NotFound, "listed").with_object(path);
            Box::pin(std::future::ready(Err(error)))
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
        let counted = "2 excluded by the globs and 1 left out as catalogs (*.foreread)";
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
