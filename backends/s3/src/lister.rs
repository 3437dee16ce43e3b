//! Listing many keys at once.
//!
//! A store hands out keys in their order, a thousand a page, and says where the next page begins only with the page
//! before: a million keys are a thousand round trips in a row. But a listing may begin anywhere. So the keys are listed
//! in ranges side by side: a range that turns out to be longer than a page, while not enough others are under way, is
//! split at names that the page itself suggests. Where all names of a page begin with `train/n0144`, the next may begin
//! with `train/n0145`, `train/n015`, `train/n02`, `train/o`, `trainz`: everything beyond each of these is a range of its
//! own. An empty one costs one request and is never tried again, because what is left of it ends there; one that is not
//! empty is split further by its own pages. This needs no directories: a flat bucket is listed as quickly as a tree, and
//! a tree of a million directories with one file each no slower than a flat one.
//!
//! What is found is handed out in the order of the keys, so that a listing that was broken off can go on behind the last of
//! them: what a later range has found waits for the ranges before it. The price is that it comes in bursts.
//!
//! Ranges are cut, never guessed: together they always are what was asked for, so each key comes once whatever the names
//! look like. Pages that fail are asked for again here, because the layers do not see listings.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foreread_tier::{ErrorKind, Object, TierError, Version};
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep, timeout};

use crate::config::{Location, check_path};
use crate::error::{Place, invalid};
use crate::pages::{Ask, Entry, Page, Pages};

/// Pages under way at once.
pub(crate) const LISTS: usize = 16;

/// How long a page may take.
const PAGE: Duration = Duration::from_secs(60);

/// How often a page is asked for, and for how long altogether.
const ATTEMPTS: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest wait after a page's first failure, and after any.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What is to be listed of whom.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) pages: Arc<dyn Pages>,
    pub(crate) place: Place,
    pub(crate) location: Location,
    /// Pages under way at once.
    pub(crate) most: usize,
    /// Where jitter comes from.
    pub(crate) seed: u64,
}

/// Keys beyond `after`, up to and with `upto`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    /// Where it began, which no other range does.
    from: Arc<str>,
    after: String,
    upto: Option<String>,
    token: Option<String>,
}

impl Range {
    fn beyond(after: String, upto: Option<String>) -> Self {
        Self { from: after.as_str().into(), after, upto, token: None }
    }

    fn holds(&self, key: &str) -> bool {
        key > self.after.as_str() && self.upto.as_ref().is_none_or(|upto| key <= upto.as_str())
    }
}

impl Listing {
    /// The objects below `prefix` (a directory below the location) whose paths are greater than `after`.
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
        let range = Range::beyond(after, None);
        let walk = Walk {
            listing: Arc::new(self),
            base,
            below: below.into(),
            parts: BTreeMap::from([(Arc::clone(&range.from), Part::default())]),
            waiting: VecDeque::from([range]),
            running: FuturesUnordered::new(),
        };
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

    /// What to say where nothing lies below the location, because it is an object itself.
    async fn mistaken(&self) -> Option<TierError> {
        let Location { prefix, .. } = &self.location;
        if prefix.is_empty() {
            return None;
        }
        let page = self.page(prefix, &Range::beyond(String::new(), None)).await.ok()?;
        page.entries.first().filter(|entry| entry.key == *prefix && entry.size > 0)?;
        let why = format!(
            "{prefix} is an object and no prefix: name what it lies in; one shard alone is known by its name (.tar, \
             .tfrecord, .zip)"
        );
        Some(self.place.error(ErrorKind::Invalid, None, why))
    }

    /// One object by its path: the first key that begins with it is the key itself, or there is none. A listing and no `HEAD`, because
    /// whoever may list is told what is missing, and whoever may only read is not.
    pub(crate) async fn stat(self, path: Arc<str>) -> Result<Object, TierError> {
        let error = |kind, why: &str| self.place.error(kind, Some(&path), why);
        check_path(&path).map_err(|why| error(ErrorKind::Invalid, why))?;
        let key = self.location.key(&path);
        let range = Range::beyond(String::new(), None);
        let page = self.page(&key, &range).await?;
        match page.entries.into_iter().next() {
            Some(entry) if entry.key == key => {
                Ok(Object { path, size: entry.size, version: version(entry.tag) })
            }
            _ => Err(error(ErrorKind::NotFound, "there is no such object")),
        }
    }

    /// A page, after as many attempts as it takes and are worth it.
    async fn page(&self, below: &str, range: &Range) -> Result<Page, TierError> {
        let ask = Ask { prefix: below, after: &range.after, token: range.token.as_deref() };
        let began = Instant::now();
        let mut failures = 0;
        loop {
            let error = match timeout(PAGE, self.pages.page(&ask)).await {
                Ok(Ok(page)) => return Ok(page),
                Ok(Err(error)) => error,
                Err(_) => {
                    let why = format!("no page of the listing in {} s", PAGE.as_secs());
                    self.place.error(ErrorKind::Transient, None, why)
                }
            };
            failures += 1;
            let wait = self.wait(failures, &range.after, error.retry_after());
            let again = matches!(error.kind(), ErrorKind::Transient | ErrorKind::Throttled)
                && failures < ATTEMPTS
                && began.elapsed() + wait < PATIENCE;
            if !again {
                return Err(error);
            }
            tracing::debug!(%error, failures, ?wait, "asking for a page again");
            sleep(wait).await;
        }
    }

    /// What the store asked for and some jitter.
    fn wait(&self, failures: u32, after: &str, asked: Option<Duration>) -> Duration {
        let drawn = after
            .bytes()
            .fold(mix(self.seed ^ u64::from(failures)), |hash, byte| mix(hash ^ u64::from(byte)));
        let part = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        let bound = FIRST_WAIT.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST_WAIT);
        asked.unwrap_or_default() + bound.mul_f64(part)
    }
}

/// SplitMix64's output function.
const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

type Running = futures::future::BoxFuture<'static, (Range, Result<Page, TierError>)>;

struct Walk {
    listing: Arc<Listing>,
    /// What paths are relative to.
    base: String,
    /// What every key begins with.
    below: Arc<str>,
    waiting: VecDeque<Range>,
    running: FuturesUnordered<Running>,
    /// What has been found and not handed out, by where its range began.
    parts: BTreeMap<Arc<str>, Part>,
}

/// What one range has found.
#[derive(Debug, Default)]
struct Part {
    found: VecDeque<Result<Object, TierError>>,
    /// Whether no more will come.
    over: bool,
}

impl Walk {
    async fn next(&mut self) -> Option<Result<Object, TierError>> {
        loop {
            while let Some(mut first) = self.parts.first_entry() {
                match first.get_mut().found.pop_front() {
                    Some(found) => return Some(found),
                    None if first.get().over => drop(first.remove()),
                    None => break,
                }
            }
            self.start();
            match self.running.next().await? {
                (range, Ok(page)) => self.take(range, page),
                (_, Err(error)) => {
                    // What one page cannot do after all attempts, the others cannot either.
                    self.waiting.clear();
                    self.running = FuturesUnordered::new();
                    self.parts.clear();
                    return Some(Err(error));
                }
            }
        }
    }

    fn start(&mut self) {
        while self.running.len() < self.listing.most
            && let Some(range) = self.waiting.pop_front()
        {
            let (listing, below) = (Arc::clone(&self.listing), Arc::clone(&self.below));
            self.running.push(Box::pin(async move {
                let page = listing.page(&below, &range).await;
                (range, page)
            }));
        }
    }

    fn take(&mut self, mut range: Range, page: Page) {
        let Page { entries, token } = page;
        let asked = range.clone();
        let ends = |key: &str| range.upto.as_ref().is_some_and(|upto| key >= upto.as_str());
        let over = token.is_none() || entries.last().is_some_and(|last| ends(&last.key));
        if !over {
            range.token = token;
            if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
                let room = self.listing.most.saturating_sub(self.running.len() + self.waiting.len() + 1);
                if self.listing.pages.begins_anywhere() {
                    let cut = split(&mut range, &self.below, &first.key, &last.key, room);
                    self.parts.extend(cut.iter().map(|range| (Arc::clone(&range.from), Part::default())));
                    self.waiting.extend(cut);
                }
                // Where a listing began before what was asked for, it is not there yet.
                if last.key > range.after {
                    last.key.clone_into(&mut range.after);
                }
            }
            self.waiting.push_front(range);
        }
        let found: Vec<_> = entries.into_iter().filter_map(|entry| self.object(&asked, entry)).collect();
        let part = self.parts.entry(asked.from).or_default();
        part.found.extend(found);
        part.over = over;
    }

    /// What a key is, if it is one that counts.
    fn object(&self, range: &Range, entry: Entry) -> Option<Result<Object, TierError>> {
        let Entry { key, size, tag } = entry;
        if !range.holds(&key) {
            return None;
        }
        let rest = key.strip_prefix(&*self.below)?;
        let path = key.strip_prefix(&self.base)?;
        // The place-holder of a directory; that of the prefix itself has no name.
        if rest.is_empty() || rest.ends_with('/') && size == 0 {
            return None;
        }
        if rest.split('/').any(|part| part.starts_with('.') && !matches!(part, "." | "..")) {
            return None;
        }
        if let Err(why) = check_path(path) {
            let path: String =
                path.chars().map(|c| if c.is_ascii_control() { '\u{fffd}' } else { c }).collect();
            let why = format!("{why}; rename or exclude it");
            return Some(Err(self.listing.place.error(ErrorKind::Invalid, Some(&path), why)));
        }
        Some(Ok(Object { path: path.into(), size, version: version(tag) }))
    }
}

/// The state of an object that has this tag.
fn version(tag: Option<String>) -> Option<Version> {
    tag.filter(|tag| !tag.is_empty()).map(|tag| Version::ETag(tag.into()))
}

/// Cuts ranges off the end of one whose keys up to `last` are known, at most so many, the farthest first. Each begins
/// behind a name that has more in common with this page's than the names beyond it.
fn split(range: &mut Range, below: &str, first: &str, last: &str, most: usize) -> Vec<Range> {
    let common = first.chars().zip(last.chars()).take_while(|(a, b)| a == b).count();
    let fixed = below.chars().count();
    let mut cut = Vec::new();
    for at in fixed..common {
        if cut.len() == most {
            break;
        }
        let Some(beyond) = beyond(last, at) else { continue };
        // Where a range before this one has ended, nothing is left to cut off.
        if range.upto.as_ref().is_none_or(|upto| beyond < *upto) {
            let upto = range.upto.replace(beyond.clone());
            cut.push(Range::beyond(beyond, upto));
        }
    }
    cut
}

/// The first name behind all that share the first `at + 1` characters of `name`.
fn beyond(name: &str, at: usize) -> Option<String> {
    let mut characters = name.char_indices().skip(at);
    let (start, character) = characters.next()?;
    let next = match character {
        '\u{d7ff}' => '\u{e000}',
        other => char::from_u32(u32::from(other) + 1)?,
    };
    let mut beyond = name[..start].to_owned();
    beyond.push(next);
    Some(beyond)
}

/// The stream of a listing, as the contract has it.
pub(crate) type Objects = BoxStream<'static, Result<Object, TierError>>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Bound;
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use proptest::prelude::*;

    use super::*;

    /// A store of keys, that hands out small pages.
    #[derive(Debug)]
    struct Model {
        keys: BTreeSet<String>,
        page: usize,
        begins_anywhere: bool,
        /// Pages that fail before each that does not.
        failures: u64,
        kind: ErrorKind,
        asked: AtomicU64,
    }

    impl Model {
        fn new(keys: impl IntoIterator<Item = String>, page: usize) -> Self {
            Self {
                keys: keys.into_iter().collect(),
                page,
                begins_anywhere: true,
                failures: 0,
                kind: ErrorKind::Transient,
                asked: AtomicU64::new(0),
            }
        }
    }

    #[async_trait]
    impl Pages for Model {
        async fn page(&self, ask: &Ask<'_>) -> Result<Page, TierError> {
            let asked = self.asked.fetch_add(1, Ordering::Relaxed);
            if !(asked + 1).is_multiple_of(self.failures + 1) {
                return Err(TierError::new(self.kind, "s3").with_object("s3://b"));
            }
            sleep(Duration::from_millis(1 + asked % 3)).await; // answers overtake each other
            // A store that cannot begin anywhere begins at the beginning.
            let after = ask.token.unwrap_or(if self.begins_anywhere { ask.after } else { "" }).to_owned();
            let mut keys = self
                .keys
                .range::<String, _>((Bound::Excluded(after), Bound::Unbounded))
                .skip_while(|key| key.as_str() < ask.prefix)
                .take_while(|key| key.starts_with(ask.prefix));
            let entry = |key: &String| Entry { key: key.clone(), size: 1, tag: Some("\"t\"".into()) };
            let entries: Vec<Entry> = keys.by_ref().take(self.page).map(entry).collect();
            let more = keys.next().is_some();
            let token = more.then(|| entries.last().map(|entry| entry.key.clone())).flatten();
            Ok(Page { entries, token })
        }

        fn begins_anywhere(&self) -> bool {
            self.begins_anywhere
        }
    }

    fn listing(model: &Arc<Model>, prefix: &str) -> Listing {
        let place = Place { tier: "s3", bucket: "s3://b".into(), endpoint: None, signed: true, proxy: None };
        let location = Location { bucket: "b".into(), prefix: prefix.into() };
        Listing { pages: Arc::clone(model) as _, place, location, most: LISTS, seed: 1 }
    }

    /// All paths, and all errors, of a listing; on a paused clock.
    fn list(
        model: &Arc<Model>,
        root: &str,
        prefix: &str,
        after: Option<&str>,
    ) -> (Vec<String>, Vec<TierError>) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let found = runtime.block_on(listing(model, root).list(prefix, after).collect::<Vec<_>>());
        let (mut paths, mut errors) = (Vec::new(), Vec::new());
        for found in found {
            match found {
                Ok(object) => paths.push(object.path.to_string()),
                Err(error) => errors.push(error),
            }
        }
        (paths, errors)
    }

    /// What a listing should find, said without ranges.
    fn expected(model: &Model, root: &str, prefix: &str, after: Option<&str>) -> Vec<String> {
        let root = if root.is_empty() { String::new() } else { format!("{root}/") };
        let below = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let paths = model.keys.iter().filter_map(|key| key.strip_prefix(&root));
        let wanted = |path: &&str| {
            path.strip_prefix(&*below)
                .is_some_and(|rest| rest.split('/').all(|part| !part.is_empty() && !part.starts_with('.')))
                && after.is_none_or(|after| *path > after)
        };
        paths.filter(wanted).map(str::to_owned).collect()
    }

    fn name() -> impl Strategy<Value = String> {
        // Few letters, so that names share beginnings; some at the edges of what a character can be.
        let letter =
            prop::sample::select(vec!['a', 'b', '0', '9', '/', 'z', '\u{e9}', '\u{d7ff}', '\u{10ffff}']);
        prop::collection::vec(letter, 1..7).prop_map(|letters| letters.into_iter().collect())
    }

    proptest! {
        #[test]
        fn each_key_comes_once_and_in_order_whatever_the_names(
            names in prop::collection::vec(name(), 0..200),
            page in 1..40_usize,
            root in prop::sample::select(vec!["", "a", "a/b"]),
            prefix in prop::sample::select(vec!["", "a", "0"]),
            after in prop::option::of(name()),
            anywhere in any::<bool>(),
        ) {
            let mut model = Model::new(names, page);
            model.begins_anywhere = anywhere;
            let model = Arc::new(model);
            let (paths, errors) = list(&model, root, prefix, after.as_deref());
            prop_assert_eq!(paths, expected(&model, root, prefix, after.as_deref()));
            prop_assert!(errors.iter().all(|error| error.kind() == ErrorKind::Invalid));
        }
    }

    #[test]
    fn a_flat_bucket_is_listed_side_by_side_with_few_pages_more() {
        let model = Arc::new(Model::new((0..200_000).map(|id| format!("img{id:08}.jpg")), 100));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (found, took) = runtime.block_on(async {
            let began = Instant::now();
            let found = listing(&model, "").list("", None).count().await;
            (found, began.elapsed())
        });
        let pages = model.asked.load(Ordering::Relaxed);
        assert_eq!(found, 200_000);
        assert!(pages < 2600, "{pages} pages for 2000");
        // One after another they would take 4 s.
        assert!(took < Duration::from_millis(800), "{took:?}");
    }

    #[test]
    fn a_tree_of_small_directories_costs_no_more_than_a_flat_bucket() {
        let names = (0..20_000_u64).map(|id| format!("{:016x}/x", mix(id)));
        let model = Arc::new(Model::new(names, 100));
        assert_eq!(list(&model, "", "", None).0.len(), 20_000);
        let pages = model.asked.load(Ordering::Relaxed);
        assert!(pages < 600, "{pages} pages for 200");
    }

    #[test]
    fn what_is_hidden_a_place_holder_or_no_path_is_told_apart() {
        let keys = ["d/", "d/a", ".git/config", "d/.hidden", "d//b", "d/../c", "e\u{7}", "top"];
        let mut model = Model::new(keys.map(str::to_owned), 100);
        model.begins_anywhere = false;
        let model = Arc::new(model);
        let found: Vec<_> = {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let zero = |entry: Entry| Entry { size: 0, ..entry };
            let mut walk = Walk {
                listing: Arc::new(listing(&model, "")),
                base: String::new(),
                below: "".into(),
                waiting: VecDeque::new(),
                running: FuturesUnordered::new(),
                parts: BTreeMap::new(),
            };
            let ask = Ask { prefix: "", after: "", token: None };
            let page = runtime.block_on(model.page(&ask)).unwrap();
            let entries = page.entries.into_iter().map(zero).collect();
            walk.take(Range::beyond(String::new(), None), Page { entries, token: None });
            walk.parts.into_values().flat_map(|part| part.found).collect()
        };
        let paths: Vec<_> = found.iter().flatten().map(|object| object.path.to_string()).collect();
        assert_eq!(paths, ["d/a", "top"]);
        let errors: Vec<_> =
            found.iter().filter_map(|found| found.as_ref().err()).map(ToString::to_string).collect();
        assert_eq!(errors.len(), 3, "{errors:?}");
        for error in errors {
            assert!(error.contains("in s3://b: ") && error.contains("rename or exclude it"), "{error}");
            assert!(!error.contains('\u{7}'), "{error:?}");
        }
    }

    #[test]
    fn pages_that_fail_are_asked_for_again_and_what_cannot_be_mended_ends_the_listing() {
        let mut model = Model::new((0..500).map(|id| format!("{id:04}")), 10);
        model.failures = 1;
        let model = Arc::new(model);
        let (paths, errors) = list(&model, "", "", None);
        assert_eq!((paths.len(), errors.len()), (500, 0));
        for (kind, asked) in [(ErrorKind::Denied, 1), (ErrorKind::Transient, u64::from(ATTEMPTS))] {
            let mut model = Model::new([], 10);
            (model.failures, model.kind) = (1000, kind);
            let model = Arc::new(model);
            let (_, errors) = list(&model, "", "", None);
            assert_eq!((errors.len(), errors[0].kind()), (1, kind));
            assert_eq!(model.asked.load(Ordering::Relaxed), asked);
        }
        let (_, errors) = list(&model, "", "a/../b", None);
        assert_eq!(errors[0].kind(), ErrorKind::Invalid);
    }
}
