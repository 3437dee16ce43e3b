//! Lists the keys of a bucket in parallel.
//!
//! An origin lists keys in order, 1,000 per page, and each page holds the token of the next. A
//! million keys are 1,000 round trips in a row. But a listing may begin at any key. So the keys are
//! listed in parallel ranges. A range that is longer than a page is split at names that the page
//! suggests. For example, all names of a page begin with `train/n0144`. The next may begin with
//! `train/n0145`, `train/n015`, `train/n02`, `train/o`, `trainz`. The keys beyond each of these
//! names become a range. An empty range costs one request and is never requested again. A range
//! with keys is split further by its own pages. This needs no directories: a flat bucket is listed
//! as fast as a tree.
//!
//! Objects come in the order of their keys, so that an interrupted listing can resume after the
//! last of them. So objects of a later range wait for the ranges before it. The price is that
//! objects come in bursts. The number of waiting objects is bounded (see `ordered.rs`).
//!
//! This is correct only if the origin lists in byte order. Most do. Some gateways to file systems
//! walk directories, and some origins have no order at all. So the order is checked. The check is
//! complete if a listing that starts after an *existing* key continues as with a continuation token
//! (`ordered.rs` has the argument). The first 24 pages come one by one and are held. So a listing
//! of up to 24,000 keys costs only its pages, whatever the order. An origin that violates the order
//! is listed by continuation token alone (`unordered.rs`), held in memory and sorted. The price for
//! other origins is 24 round trips before ranges are split.
//!
//! Failed pages are retried here, because the retry layer does not see listings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use foreread_tier::{ErrorKind, Object, TierError};
use foreread_types::mix;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tokio::time::timeout;

use crate::config::{BucketPrefix, check_path};
use crate::error::{BucketContext, invalid};
use crate::ordered::OrderedListing;
use crate::pages::{ListPage, PageRequest, PageSource, version};
use crate::reader::ObjectReader;
use crate::retry::retry;

/// The number of parallel page requests.
const PARALLEL_PAGES: usize = 16;

/// The number of objects that may wait for earlier ranges before later ranges are requested no
/// further. They take some 80 MB.
const MAX_HELD_OBJECTS: usize = 400_000;

/// The timeout of a page, and of every other response that the layers do not see.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest wait after a page's first failure, and after any failure.
const MAX_FIRST_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The listing of a prefix.
#[derive(Clone, Debug)]
pub(crate) struct BucketListing {
    pub(crate) pages: Arc<dyn PageSource>,
    pub(crate) place: BucketContext,
    pub(crate) location: BucketPrefix,
    /// The number of parallel page requests.
    pub(crate) parallel_pages: usize,
    /// The number of objects that may wait for earlier ranges.
    pub(crate) max_held: usize,
    /// The seed of jitter.
    pub(crate) seed: u64,
}

impl BucketListing {
    /// A listing of the objects below the reader's prefix.
    pub(crate) fn new(
        pages: impl PageSource,
        reader: &ObjectReader,
        parallelism: Option<usize>,
        seed: u64,
    ) -> Self {
        Self {
            pages: Arc::new(pages),
            place: reader.place.clone(),
            location: reader.location.clone(),
            parallel_pages: parallelism.map_or(PARALLEL_PAGES, |most| most.min(PARALLEL_PAGES)),
            max_held: MAX_HELD_OBJECTS,
            seed,
        }
    }

    /// Lists the objects below `prefix` (a directory below the location) whose paths are greater
    /// than `after`.
    pub(crate) fn list(
        self,
        prefix: &str,
        after: Option<&str>,
    ) -> impl Stream<Item = Result<Object, TierError>> + Send + use<> {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty()
            && let Err(why) = check_path(prefix)
        {
            let error = invalid(prefix, format!("in {}: {why}", self.place.bucket));
            return futures::stream::iter([Err(error)]).boxed();
        }
        let base = self.location.base();
        let below = if prefix.is_empty() { base.clone() } else { format!("{base}{prefix}/") };
        let whole = prefix.is_empty() && after.is_none();
        let after = after.map(|after| format!("{base}{after}")).unwrap_or_default();
        let walk = OrderedListing::new(Arc::new(self), base, below.into(), after);
        let begin = (walk, whole);
        futures::stream::unfold(begin, |(mut walk, nothing_yet)| async move {
            let found = match walk.next().await {
                None if nothing_yet => Err(walk.listing.mistaken().await?),
                found => found?,
            };
            Some((found, (walk, false)))
        })
        .boxed()
    }

    /// The names of the directories directly below the location. An origin that ignores the
    /// delimiter returns all keys, which have the same names.
    pub(crate) async fn directories(&self) -> Result<Vec<String>, TierError> {
        let base = self.location.base();
        let (mut names, mut token) = (BTreeSet::new(), None);
        loop {
            let first = PageRequest { directories: true, ..PageRequest::first(&base) };
            let page = self.page(&PageRequest { token: token.as_deref(), ..first }).await?;
            let keys = page.entries.iter().map(|entry| &entry.key).chain(&page.directories);
            let below = keys.filter_map(|key| Some(key.strip_prefix(&*base)?.split_once('/')?.0));
            names.extend(below.filter(|name| is_directory_name(name)).map(str::to_owned));
            if page.token.is_none() {
                return Ok(names.into_iter().collect());
            }
            if page.token == token {
                return Err(self.endless("a page names itself as the next"));
            }
            token = page.token;
        }
    }

    /// The error if the location is itself an object, with nothing below it.
    async fn mistaken(&self) -> Option<TierError> {
        let BucketPrefix { prefix, .. } = &self.location;
        if prefix.is_empty() {
            return None;
        }
        let page = self.page(&PageRequest::first(prefix)).await.ok()?;
        page.entries.iter().find(|entry| entry.key == *prefix && entry.size > 0)?;
        let why = format!(
            "{prefix} is an object and no prefix: name what it lies in; one shard alone is known by its name \
             (.tar, .tfrecord, .zip)"
        );
        Some(self.place.error(ErrorKind::Invalid, None, why))
    }

    /// One object by its path. It uses a listing and not a `HEAD`, because only a caller that may
    /// list learns that a key is missing. In byte order the first key that begins with a name is
    /// the name itself. In another order the rest of the page is searched. [`ErrorKind::Unordered`]
    /// reports that more pages would be needed.
    pub(crate) async fn stat(&self, path: &Arc<str>) -> Result<Object, TierError> {
        let error = |kind, why: &str| self.place.error(kind, Some(path), why);
        check_path(path).map_err(|why| error(ErrorKind::Invalid, why))?;
        let key = self.location.key(path);
        let page = self.page(&PageRequest::first(&key)).await?;
        let unsure = page.token.is_some() && !page.is_ascending();
        match page.entries.into_iter().find(|entry| entry.key == key) {
            Some(entry) => {
                Ok(Object { path: Arc::clone(path), size: entry.size, version: version(entry.tag) })
            }
            None if unsure => Err(error(ErrorKind::Unordered, "the storage does not list in byte order")),
            None => Err(error(ErrorKind::NotFound, "there is no such object")),
        }
    }

    /// The error of an origin whose listing does not end.
    pub(crate) fn endless(&self, what: &str) -> TierError {
        let at = self.place.endpoint.as_deref().map(|at| format!(" at {at}")).unwrap_or_default();
        let why = format!(
            "the storage{at} returns pages endlessly: {what}; name the objects, or list a smaller prefix"
        );
        self.place.error(ErrorKind::Other, None, why)
    }

    /// Requests a page, with retries.
    pub(crate) async fn page(&self, page_request: &PageRequest<'_>) -> Result<ListPage, TierError> {
        self.repeated(page_request.after, "page of the listing", || self.pages.page(page_request)).await
    }

    /// Retries an attempt that the layers do not see. `name` seeds the jitter.
    pub(crate) async fn repeated<T, F>(
        &self,
        name: &str,
        what: &str,
        attempt: impl Fn() -> F,
    ) -> Result<T, TierError>
    where
        F: Future<Output = Result<T, TierError>>,
    {
        let attempt = || async {
            let late = || {
                let why = format!("no {what} in {} s", PAGE_TIMEOUT.as_secs());
                self.place.error(ErrorKind::Transient, None, why)
            };
            timeout(PAGE_TIMEOUT, attempt()).await.unwrap_or_else(|_| Err(late()))
        };
        retry(attempt, |failures, error| self.wait(failures, name, error.retry_after())).await
    }

    /// The wait that the origin requested, with jitter.
    fn wait(&self, failures: u32, name: &str, requested: Option<Duration>) -> Duration {
        let drawn =
            name.bytes().fold(mix(self.seed ^ u64::from(failures)), |hash, byte| mix(hash ^ u64::from(byte)));
        let part = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        let bound = MAX_FIRST_WAIT.saturating_mul(1 << (failures - 1).min(10)).min(MAX_WAIT);
        requested.unwrap_or_default() + bound.mul_f64(part)
    }
}

/// Whether a directory of this name may hold samples.
pub(crate) fn is_directory_name(name: &str) -> bool {
    !name.starts_with('.') && check_path(name).is_ok()
}

/// The stream of a listing, as defined by the trait's contract.
pub(crate) type ObjectStream = BoxStream<'static, Result<Object, TierError>>;

#[cfg(test)]
mod tests;
