//! Listings of a simulated origin, for any keys, order and faults.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use proptest::prelude::*;
use tokio::time::{Instant, sleep};

use super::*;
use crate::pages::ListedKey;
use crate::retry::ATTEMPTS;

/// A simulated origin of keys with small pages.
#[derive(Debug)]
struct Model {
    /// The keys in the origin's order.
    keys: Vec<String>,
    page: usize,
    begins_anywhere: bool,
    /// The number of page failures before each success.
    failures: u64,
    kind: ErrorKind,
    /// Whether the last page's token leads to the first page. The token is new each time.
    circular: bool,
    /// Pages that begin after a name in this range take 30 s.
    late: Option<Range<&'static str>>,
    /// The keys that the origin has returned.
    given: Mutex<BTreeSet<String>>,
    requests: AtomicU64,
}

impl Model {
    /// An origin in byte order.
    fn new(keys: impl IntoIterator<Item = String>, page: usize) -> Self {
        Self::in_this_order(keys.into_iter().collect::<BTreeSet<_>>(), page)
    }

    fn in_this_order(keys: impl IntoIterator<Item = String>, page: usize) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            page,
            begins_anywhere: true,
            failures: 0,
            kind: ErrorKind::Transient,
            circular: false,
            late: None,
            given: Mutex::default(),
            requests: AtomicU64::new(0),
        }
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The position of a key.
    fn find(&self, key: &str) -> Option<usize> {
        self.keys.iter().position(|known| known == key)
    }
}

#[async_trait]
impl PageSource for Model {
    async fn page(&self, page_request: &PageRequest<'_>) -> Result<ListPage, TierError> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        if !(request + 1).is_multiple_of(self.failures + 1) {
            return Err(TierError::new(self.kind, "s3").with_object("s3://b"));
        }
        sleep(Duration::from_millis(1 + request % 3)).await; // responses overtake each other
        // An origin that cannot start after a key starts at the beginning.
        let after = if self.begins_anywhere { page_request.after } else { "" };
        let token = page_request.token.map(|token| token.rsplit_once('#').unwrap().0);
        if self.late.as_ref().is_some_and(|late| late.contains(&token.unwrap_or(after))) {
            sleep(Duration::from_secs(30)).await;
        }
        // After an existing key it continues at that key's position. Other names are compared with
        // each key, until the next token. Gateways to file systems do the same.
        let (from, beyond) = match token.or(Some(after)).map(|name| (name, self.find(name))) {
            Some((_, Some(at))) => (at + 1, ""),
            Some((name, None)) if token.is_none() => (0, name),
            _ => (0, ""),
        };
        let mut keys = self.keys[from..].iter().filter(|key| {
            key.starts_with(page_request.prefix) && (beyond.is_empty() || key.as_str() > beyond)
        });
        let entry = |key: &String| ListedKey { key: key.clone(), size: 1, tag: Some("\"t\"".into()) };
        let entries: Vec<ListedKey> =
            keys.by_ref().take(page_request.limit.unwrap_or(self.page)).map(entry).collect();
        self.given.lock().unwrap().extend(entries.iter().map(|entry| entry.key.clone()));
        let next = match keys.next() {
            Some(_) => entries.last().map(|entry| entry.key.as_str()),
            None => self.circular.then_some("the beginning"),
        };
        Ok(ListPage { token: next.map(|key| format!("{key}#{request}")), entries, ..ListPage::default() })
    }

    fn begins_anywhere(&self) -> bool {
        self.begins_anywhere
    }
}

fn listing(model: &Arc<Model>, prefix: &str) -> BucketListing {
    let endpoint = Some("http://store".to_owned());
    let place = BucketContext {
        tier: "s3",
        bucket: "s3://b".into(),
        endpoint,
        region: None,
        signed: true,
        proxy: None,
    };
    let location = BucketPrefix { bucket: "b".into(), prefix: prefix.into() };
    BucketListing {
        pages: Arc::clone(model) as _,
        place,
        location,
        parallel_pages: PARALLEL_PAGES,
        max_held: MAX_HELD_OBJECTS,
        seed: 1,
    }
}

/// The objects of a listing, as a caller stores them.
#[derive(Debug, Default)]
struct Listed {
    paths: Vec<String>,
    errors: Vec<TierError>,
    /// Whether the listing detected another order.
    unordered: bool,
}

/// The first `parallel_pages` results of a listing, on a paused clock.
fn list_some(
    model: &Arc<Model>,
    root: &str,
    prefix: &str,
    after: Option<&str>,
    parallel_pages: usize,
) -> Listed {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let found =
        runtime.block_on(listing(model, root).list(prefix, after).take(parallel_pages).collect::<Vec<_>>());
    let mut listed = Listed::default();
    for found in found {
        match found {
            Ok(object) => listed.paths.push(object.path.to_string()),
            Err(error) if error.kind() == ErrorKind::Unordered => {
                assert!(!listed.unordered, "it is reported once");
                listed = Listed { unordered: true, ..Listed::default() };
            }
            Err(error) => listed.errors.push(error),
        }
    }
    listed
}

fn list(model: &Arc<Model>, root: &str, prefix: &str, after: Option<&str>) -> Listed {
    list_some(model, root, prefix, after, usize::MAX)
}

/// The expected result of a listing, computed without ranges.
fn expected(model: &Model, root: &str, prefix: &str, after: Option<&str>) -> Vec<String> {
    let root = if root.is_empty() { String::new() } else { format!("{root}/") };
    let below = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    let paths = model.keys.iter().filter_map(|key| key.strip_prefix(&root));
    let wanted = |path: &&str| {
        path.strip_prefix(&*below)
            .is_some_and(|rest| rest.split('/').all(|part| !part.is_empty() && !part.starts_with('.')))
            && after.is_none_or(|after| *path > after)
    };
    let mut paths: Vec<String> = paths.filter(wanted).map(str::to_owned).collect();
    paths.sort_unstable();
    paths
}

fn name() -> impl Strategy<Value = String> {
    // Few letters, so that names share prefixes. Some are at the limits of the range of characters.
    let letter =
        prop::sample::select(vec!['a', 'b', '0', '9', '/', '-', 'z', '\u{e9}', '\u{d7ff}', '\u{10ffff}']);
    prop::collection::vec(letter, 1..7).prop_map(|letters| letters.into_iter().collect())
}

/// The order of an origin's keys.
#[derive(Clone, Debug)]
enum Order {
    Bytes,
    Directories,
    /// In byte order, except some runs of keys, which are moved.
    Moved(Vec<(prop::sample::Index, prop::sample::Index, usize)>),
}

impl Order {
    fn of(&self, names: &BTreeSet<String>) -> Vec<String> {
        let mut names: Vec<String> = names.iter().cloned().collect();
        match self {
            Self::Bytes => {}
            Self::Directories => names.sort_by(|a, b| a.split('/').cmp(b.split('/'))),
            Self::Moved(moves) => {
                let count = names.len();
                for (from, to, length) in moves.iter().filter(|_| count > 0) {
                    let from = from.index(names.len());
                    let run: Vec<String> = names.drain(from..(from + length).min(names.len())).collect();
                    let to = to.index(names.len() + 1);
                    names.splice(to..to, run);
                }
            }
        }
        names
    }
}

fn order() -> impl Strategy<Value = Order> {
    let moved = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..20_usize);
    prop_oneof![
        Just(Order::Bytes),
        Just(Order::Directories),
        prop::collection::vec(moved, 1..3).prop_map(Order::Moved),
    ]
}

proptest! {
    #[test]
    // semantics: SAMPLE-8
    fn listing_has_each_key_once_in_byte_order(
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
        let listed = list(&model, root, prefix, after.as_deref());
        prop_assert!(!listed.unordered);
        prop_assert_eq!(listed.paths, expected(&model, root, prefix, after.as_deref()));
        prop_assert!(listed.errors.iter().all(|error| error.kind() == ErrorKind::Invalid));
    }

    #[test]
    // semantics: SAMPLE-8
    fn listing_has_each_key_once_in_any_store_order(
        names in prop::collection::btree_set(name(), 0..400),
        page in 1..12_usize,
        order in order(),
        stop in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let model = Arc::new(Model::in_this_order(order.of(&names), page));
        // An interrupted listing resumes after the last key that came, unless another order was
        // detected.
        let parallel_pages = stop.map_or(usize::MAX, |stop| stop.index(names.len() + 2));
        let mut listed = list_some(&model, "", "", None, parallel_pages);
        if parallel_pages < usize::MAX {
            let before = if listed.unordered { Vec::new() } else { listed.paths };
            listed = list(&model, "", "", before.last().map(String::as_str));
            if !listed.unordered {
                listed.paths.splice(0..0, before);
            }
        }
        prop_assert_eq!(&listed.paths, &expected(&model, "", "", None));
        prop_assert!(listed.unordered || model.keys.is_sorted());
    }
}

#[test]
// semantics: SAMPLE-9
fn flat_bucket_is_listed_in_ranges_with_few_pages_more() {
    let model = Arc::new(Model::new((0..200_000).map(|id| format!("img{id:08}.jpg")), 100));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // The bound holds as many pages as for a real origin.
    let listing = BucketListing { max_held: MAX_HELD_OBJECTS / 10, ..listing(&model, "") };
    let (found, took) = runtime.block_on(async {
        let began = Instant::now();
        let found = listing.list("", None).count().await;
        (found, began.elapsed())
    });
    let pages = model.requests();
    assert_eq!(found, 200_000);
    assert!(pages < 2600, "{pages} pages for 2000");
    // In sequence they would take 4 s.
    assert!(took < Duration::from_millis(800), "{took:?}");
}

#[test]
// semantics: SAMPLE-9
fn late_range_holds_a_bounded_number_of_objects() {
    const PAGE: usize = 10;
    let mut model = Model::new((0..20_000).map(|id| format!("{id:08}")), PAGE);
    model.late = Some("00001000".."00001020");
    let model = Arc::new(model);
    let listing = BucketListing { max_held: 1_000, ..listing(&model, "") };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (mut paths, mut parallel_pages) = (Vec::new(), 0);
    runtime.block_on(async {
        let mut found = std::pin::pin!(listing.list("", None));
        while let Some(object) = found.next().await {
            // The number of keys that the origin has returned and the listing has not.
            parallel_pages = parallel_pages.max(model.given.lock().unwrap().len() - paths.len());
            paths.push(object.unwrap().path.to_string());
        }
    });
    assert_eq!(paths, model.keys);
    // The bound, the pages in flight when it was reached, and the keys that each range has seen
    // beyond its end.
    assert!(parallel_pages <= 1_000 + 16 * PAGE + 31 * PAGE, "{parallel_pages} objects were held");
    assert!(parallel_pages > 500, "ranges are listed side by side: {parallel_pages}");
}

#[test]
fn tree_of_small_directories_costs_no_more_than_a_flat_bucket() {
    let names = (0..20_000_u64).map(|id| format!("{:016x}/x", mix(id)));
    let model = Arc::new(Model::new(names, 100));
    assert_eq!(list(&model, "", "", None).paths.len(), 20_000);
    let pages = model.requests();
    assert!(pages < 600, "{pages} pages for 200");
}

#[test]
// semantics: SAMPLE-8
fn listing_of_24_pages_costs_24_requests_in_any_order() {
    let names = |count: u64| (0..count).map(|id| format!("{:04}/{:02}", id / 20, id % 20));
    for count in [480, 479, 20] {
        let mut reversed: Vec<String> = names(count).collect();
        reversed.reverse();
        let mut late: Vec<String> = names(count).collect();
        late.rotate_left(1);
        for keys in [names(count).collect(), reversed, late] {
            let model = Arc::new(Model::in_this_order(keys, 20));
            assert_eq!(list(&model, "", "", None).paths.len() as u64, count);
            assert_eq!(model.requests(), count.div_ceil(20));
        }
    }
}

#[test]
// semantics: SAMPLE-8
fn listing_with_circular_tokens_is_an_error() {
    for keys in [vec![], vec!["b", "a", "c"], vec!["a", "b", "c"]] {
        let mut model = Model::in_this_order(keys.into_iter().map(str::to_owned), 2);
        model.circular = true;
        let model = Arc::new(model);
        let listed = list(&model, "", "", None);
        let error = listed.errors.last().unwrap().to_string();
        assert!(
            error.contains("s3://b: ") && error.contains("at http://store returns pages endlessly"),
            "{error}"
        );
        assert!(model.requests() < 1_100);
    }
}

#[test]
fn key_with_two_tags_in_a_sequence_comes_twice() {
    let entry = |key: &str, tag: &str| ListedKey { key: key.into(), size: 1, tag: Some(tag.into()) };
    let model = Arc::new(Model::new([], 10));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut sequence =
        crate::unordered::UnorderedListing::new(Arc::new(listing(&model, "")), String::new(), "".into());
    let entries = vec![entry("b", "1"), entry("a", "1"), entry("b", "1"), entry("a", "2")];
    sequence.resume(Default::default(), ListPage { entries, ..ListPage::default() });
    let mut paths = Vec::new();
    while let Some(found) = runtime.block_on(sequence.next()) {
        paths.push(found.unwrap().path.to_string());
    }
    assert_eq!(paths, ["a", "a", "b"]);
    assert_eq!(model.requests(), 0);
}

#[test]
// semantics: SAMPLE-6
fn hidden_keys_directory_markers_and_bad_paths_are_left_out() {
    let keys = ["d/", "d/a", ".git/config", "d/.hidden", "d//b", "d/../c", "e\u{7}", "top"];
    let listing = listing(&Arc::new(Model::new([], 100)), "");
    let found: Vec<_> = keys
        .into_iter()
        .filter_map(|key| ListedKey { key: key.into(), size: 0, tag: None }.object(&listing.place, "", ""))
        .collect();
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
fn stat_finds_an_object_in_any_listing_order() {
    let model = Arc::new(Model::in_this_order(["ab", "a-", "a"].map(str::to_owned), 2));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let stat = |path: &str| runtime.block_on(listing(&model, "").stat(&path.into()));
    assert_eq!(stat("a-").unwrap().size, 1);
    // The object may be on another page, which is not requested here.
    assert_eq!(stat("a").unwrap_err().kind(), ErrorKind::Unordered);
    assert_eq!(stat("b").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn failed_page_is_retried_unless_the_failure_is_final() {
    let mut model = Model::new((0..500).map(|id| format!("{id:04}")), 10);
    model.failures = 1;
    let model = Arc::new(model);
    let listed = list(&model, "", "", None);
    assert_eq!((listed.paths.len(), listed.errors.len()), (500, 0));
    for (kind, requests) in [(ErrorKind::Denied, 1), (ErrorKind::Transient, u64::from(ATTEMPTS))] {
        let mut model = Model::new([], 10);
        (model.failures, model.kind) = (1000, kind);
        let model = Arc::new(model);
        let errors = list(&model, "", "", None).errors;
        assert_eq!((errors.len(), errors[0].kind()), (1, kind));
        assert_eq!(model.requests(), requests);
    }
    let errors = list(&model, "", "a/../b", None).errors;
    assert_eq!(errors[0].kind(), ErrorKind::Invalid);
}
