//! Making a catalog: listing an origin, and reading the headers in its shards.

use std::collections::BTreeSet;
use std::path::PathBuf;

use foreread_tier::{ErrorKind, Object, OriginTier, TierError};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::directory_markers::DirectoryMarkers;
use crate::format::DetectedFormat;
use crate::listing_journal::{self, ListingJournal};
use crate::names::refuse;
use crate::packed::ResumeState;
use crate::shard_journal::{self, ShardJournal};
use crate::{CATALOG_SUFFIX, Catalog, DatasetError, DatasetErrorKind, Format, format, packed};

/// Names that cannot be listed, from which on the index is given up.
const MOST_ERRORS: u64 = 100;

/// Which objects of an origin become samples.
///
/// Globs are matched against the path below the base URL, as a whole: `*` and `?` stop at `/`,
/// `**/` is any number of directories, `[a-z]` and `{a,b}` are alternatives. So `*.jpg` is what
/// lies at the top, and `**/*.jpg` is all of it. Catalogs (names that end in `.foreread`, and in
/// what is kept while one is made) are never samples, nor are empty objects whose path is a
/// directory of another object; and hidden files are not listed in the first place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexOptions {
    /// If there are any, only objects that match one of these.
    pub include: Vec<String>,
    /// No object that matches one of these, included or not.
    pub exclude: Vec<String>,
    /// How samples lie in the objects. If nobody says, it is told from their names: shards (`.tar`,
    /// `.tfrecord`, `.tfrecords`, `.zip`) where all are of one kind, else files; and of shards that
    /// are numbered only (`train-00000-of-01024`) by the first bytes of one. If a packed format is
    /// said, every object is taken for a shard of it, whatever its name.
    pub format: Option<Format>,
    /// If there are any, these objects alone (their paths below the base URL); it is an error if
    /// one is not there.
    pub objects: Vec<String>,
    /// Where a listing is kept while it goes on, to be gone on with the next time, and beside it
    /// (`-shards` at its end) what was found in shards; nowhere if `None`. Whoever has saved the
    /// catalog removes them ([`forget_listing`](crate::forget_listing)). Only origins that list in
    /// the order of paths (most object stores do) can go on with a listing; of a store that turns
    /// out not to, the file is removed, one warning says so, and the listing starts again. Only
    /// shards that have a version are kept.
    pub partial: Option<PathBuf>,
    /// A name that stands for the place of the data: what caches hold is kept when the data are
    /// moved, or reached by other endpoints. Whoever sets it vouches that all places that it is
    /// given to hold the same data.
    pub name: Option<String>,
}

impl IndexOptions {
    /// The same with one more glob of what is wanted.
    #[must_use]
    pub fn including(mut self, glob: impl Into<String>) -> Self {
        self.include.push(glob.into());
        self
    }

    /// The same with the format said.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }

    /// The same of these objects alone.
    #[must_use]
    pub fn naming(mut self, objects: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.objects.extend(objects.into_iter().map(Into::into));
        self
    }

    /// The same with one more glob of what is not.
    #[must_use]
    pub fn excluding(mut self, glob: impl Into<String>) -> Self {
        self.exclude.push(glob.into());
        self
    }
}

/// How far an index has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexProgress {
    /// Objects found so far.
    pub objects: u64,
    /// Their length together, in bytes.
    pub bytes: u64,
    /// Samples found so far: objects while they are listed as files, then what was found in shards.
    pub samples: u64,
    /// MemberScan of shards that are no samples (directories, links, names that WebDataset leaves
    /// out).
    pub skipped: u64,
    /// Reads of shards so far.
    pub requests: u64,
    /// What they have read, in bytes.
    pub bytes_read: u64,
    /// Objects that an earlier listing, which was broken off, had found.
    pub resumed: u64,
    /// Shards that an earlier index, which was broken off, had come to the end of.
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

    /// Whether what could not be listed was not wanted anyway: it, or (if it is a directory) all
    /// that is in it, is excluded. What is merely not *included* may be a directory with something
    /// in it that is.
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
    let message = format!("{text:?} is no glob: {}", error.kind());
    DatasetError::new(DatasetErrorKind::Invalid, message).with_source(error)
}

/// Whether a name is that of a catalog, or of what is kept while one is made.
fn is_catalogs(path: &str) -> bool {
    let kept = path.strip_suffix("-shards").unwrap_or(path).strip_suffix(".partial");
    path.ends_with(CATALOG_SUFFIX) || kept.is_some_and(|path| path.ends_with(CATALOG_SUFFIX))
}

/// What listing has found.
#[derive(Default)]
struct FoundObjects {
    objects: Vec<Object>,
    progress: IndexProgress,
    catalogs: u64,
    unwanted: u64,
}

impl FoundObjects {
    /// Takes an object in, if it is wanted.
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

    /// Takes directory markers of directories out.
    fn sift(&mut self, holders: DirectoryMarkers, progress: &mut impl FnMut(IndexProgress)) {
        let before = self.objects.len();
        holders.sift(&mut self.objects);
        let gone = (before - self.objects.len()) as u64;
        if gone > 0 {
            tracing::debug!(gone, "empty objects stand for directories and are no samples");
            self.progress.objects -= gone;
            self.progress.samples -= gone;
            progress(self.progress);
        }
    }
}

impl Catalog {
    /// Lists an origin and makes the catalog of what it holds. `progress` is called after each
    /// object that is found, and where those are shards, whenever some of one has been read.
    ///
    /// What cannot be listed and is not excluded is an error, but the listing goes on (to 100 of
    /// them), so that the message can say how many there are beside the first.
    ///
    /// Of shards the heads of their members are read, from up to 64 places at once.
    ///
    /// When all has been found the future sorts and encodes without yielding, about 1 us a sample.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Listing`] if something could not be listed, [`DatasetErrorKind::Empty`]
    /// if there is no sample, [`DatasetErrorKind::Invalid`] for a broken glob or a named object
    /// that is not there, [`DatasetErrorKind::BadShard`] or [`DatasetErrorKind::Unsupported`] if a
    /// shard is damaged or compressed, [`DatasetErrorKind::Reading`] if one cannot be read,
    /// [`DatasetErrorKind::InUse`] if another process writes the file of [`IndexOptions::partial`],
    /// and those of [`Catalog::from_objects`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the listing and leaves nothing behind but the file of
    /// [`IndexOptions::partial`].
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
        let paths = || found.objects.iter().map(|object| &*object.path);
        let format = match options.format {
            Some(format) => format,
            None => match format::detect(base_url, paths())? {
                DetectedFormat::Format(format) => format,
                DetectedFormat::Numbered => packed::sniff(origin, base_url, &found.objects).await?,
            },
        };
        match format.is_packed() {
            false => Self::of_files(base_url, options.name.as_deref(), found.objects),
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
            // All that was found counts for nothing, and all of it comes again.
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
                // What comes behind is not noted: the next time, this is met again.
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

/// How many named objects are asked for at once.
const ASKED: usize = 32;

/// Asks for each object by its name: what lies beside them may be a million others.
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
    let (mut waiting, mut asked) = (names.into_iter(), FuturesUnordered::new());
    loop {
        while asked.len() < ASKED
            && let Some(name) = waiting.next()
        {
            let owned = name.to_owned();
            asked.push(origin.stat(name).map(move |object| (owned, object)));
        }
        let Some((name, object)) = asked.next().await else { break };
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

/// Whether the last of the objects that were listed before is in this origin as it was: another
/// store may be reached by the same URL.
async fn is_of(origin: &dyn OriginTier, before: &[Object]) -> bool {
    match before.last() {
        None => true,
        Some(last) => origin.stat(&last.path).await.is_ok_and(|found| found == *last),
    }
}

/// Some of what was named is not there.
fn missing(base_url: &str, named: &BTreeSet<String>) -> DatasetError {
    let some: Vec<&str> = named.iter().take(5).map(String::as_str).collect();
    let more = match named.len() - some.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message =
        format!("{base_url}: not there: {}{more}; name what is, or wait until it is", some.join(", "));
    DatasetError::new(DatasetErrorKind::Invalid, message)
}

/// Looks into the shards.
async fn pack(
    origin: &dyn OriginTier,
    base_url: &str,
    format: Format,
    options: &IndexOptions,
    found: FoundObjects,
    mut progress: impl FnMut(IndexProgress),
) -> Result<Catalog, DatasetError> {
    let FoundObjects { mut objects, progress: mut so_far, .. } = found;
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
    let path = options.partial.as_deref().map(shard_journal::beside);
    let partial = path.map(|path| ShardJournal::open(&path, base_url, format)).transpose()?.flatten();
    let (partial, kept) = partial.unzip();
    let before = ResumeState { kept: kept.unwrap_or_default(), partial: partial.as_ref() };
    let shards = packed::index(origin, base_url, format, objects, before, |cost| {
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
    let total = shards.iter().try_fold(0u64, |sum, shard| {
        shard.rows.extents().iter().try_fold(sum, |sum, &(_, length)| sum.checked_add(length))
    });
    if total.is_none() {
        let message = format!("{base_url}: its samples are impossibly long together");
        return Err(DatasetError::new(DatasetErrorKind::Invalid, message));
    }
    if so_far.samples == 0 {
        let skipped: u64 = shards.iter().map(|shard| shard.skipped).sum();
        let message = format!(
            "{base_url}: there are no samples in {count} {} shards ({skipped} members that are none)",
            format.name()
        );
        return Err(DatasetError::new(DatasetErrorKind::Empty, message));
    }
    Catalog::from_shards(base_url, options.name.as_deref(), format, shards)
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

/// What was found and is no sample.
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
        false => format!(": of what is there, {}", parts.join(" and ")),
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

    /// An origin that only lists: a path, one of an empty object (`path=`), or an error about one
    /// (`!path`).
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
    }

    async fn index(paths: &[&'static str], options: IndexOptions) -> Result<Vec<String>, DatasetError> {
        let origin = Listed(paths.to_vec(), TierProfile::new(1));
        let mut last = IndexProgress::default();
        let catalog = Catalog::index(&origin, "/data", &options, |progress| {
            // Place-holders are known for what they are at the end.
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
        let told = "2 excluded by the globs and 1 left out as catalogs (*.foreread)";
        assert_eq!(error.to_string(), format!("/data: there are no samples: of what is there, {told}"));
    }

    #[tokio::test]
    // semantics: SAMPLE-7
    async fn directory_markers_are_not_samples() {
        let paths = ["shards=", "shards/a.tar=", "shards/a=", "shards/a/1", "empty="];
        let any = IndexOptions::default;
        assert_eq!(index(&paths, any()).await.unwrap(), ["empty", "shards/a.tar", "shards/a/1"]);
        // Also where what lies below them is not wanted.
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
        // A directory of which something is wanted is not decided by what is not.
        assert!(index(&paths, IndexOptions::default().excluding("private/*.txt")).await.is_err());
    }
}
