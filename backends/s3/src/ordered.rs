//! A listing in ranges, whose order is checked during the listing.
//!
//! Two conditions make a listing complete. Within a range, each page begins after the last key of
//! the page before it and ascends. Where two ranges meet at a name `B`, both must agree. The first
//! key beyond `B` that the earlier range finds is the key that the later range begins with. Or both
//! find that there is none.
//!
//! Why this is enough: within a range pages follow each other by tokens. So its keys follow each
//! other in the origin's order, whatever it is. A later range begins at a key that exists, found by
//! a request for one key beyond `B`, and continues after that key. So if the ranges meet, all keys
//! together are one run of the origin's order, from its beginning to its end. So none is missing.
//! And they ascend, so none comes twice. The one assumption is that a listing after an existing key
//! continues as a token does. Objects of a range are handed out only when it has met the one before
//! it.
//!
//! An origin that changes during the listing can look like an origin without order. That costs only
//! time.
//!
//! The range nearest to the next object to hand out is always requested first. So objects are
//! handed out soon after they come. More ranges are split off than are requested at once, so that
//! there are always near ones. Many objects may wait all the same, if the nearest range is large or
//! its requests are slow. Then only that range is requested further. The price is that such a part
//! of the listing goes page by page.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use foreread_tier::{ErrorKind, Object, TierError};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use crate::lister::BucketListing;
use crate::pages::{ListPage, PageRequest};
use crate::unordered::UnorderedListing;

/// The number of pages that come one by one, and are held, before ranges are split. If they are out
/// of order, no request was wasted. At 40 ms per page the price is a second.
pub(crate) const FIRST_PAGES: usize = 24;

/// The number of consecutive empty pages with a token at which a listing counts as endless. Origins
/// list a few where many objects have been removed.
pub(crate) const EMPTY_PAGES: u32 = 1_000;

/// Keys after `from`, up to and including `upto`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyRange {
    /// The start of the range, which is unique.
    from: Arc<str>,
    upto: Option<String>,
    /// The key after which the next request starts, if it has no token.
    after: String,
    token: Option<String>,
    /// The greatest key so far.
    last: Option<String>,
    /// Whether the range was split off and its first key is still unknown.
    first_key_unknown: bool,
    /// Whether the next request is for one key.
    probe: bool,
    /// Empty pages in a row.
    empty: u32,
}

impl KeyRange {
    /// A range whose keys are all requested, beyond `after`.
    fn first(after: String) -> Self {
        let from = after.as_str().into();
        Self {
            from,
            upto: None,
            after,
            token: None,
            last: None,
            first_key_unknown: false,
            probe: false,
            empty: 0,
        }
    }

    /// A range that is split off another.
    fn beyond(after: String, upto: Option<String>) -> Self {
        Self { upto, first_key_unknown: true, probe: true, ..Self::first(after) }
    }

    fn is_beyond(&self, key: &str) -> bool {
        self.upto.as_ref().is_some_and(|upto| key > upto.as_str())
    }
}

/// Why a listing cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkError {
    /// The origin lists in another order.
    Order,
    /// The origin's tokens do not end.
    Endless,
}

/// The first key that each of two neighbouring ranges has found beyond the name where they meet, or
/// that there is none.
#[derive(Debug, Default)]
struct RangeBorder {
    earlier: Option<Option<String>>,
    later: Option<Option<String>>,
}

#[derive(Clone, Copy, Debug)]
enum BorderSide {
    Earlier,
    Later,
}

/// The objects that one range has found.
#[derive(Debug, Default)]
struct RangeObjects {
    found: VecDeque<Result<Object, TierError>>,
    /// Whether the range is complete.
    over: bool,
}

type PageFuture = BoxFuture<'static, (KeyRange, Result<ListPage, TierError>)>;

pub(crate) struct OrderedListing {
    pub(crate) listing: Arc<BucketListing>,
    /// The base that paths are relative to.
    base: String,
    /// The common prefix of all keys.
    below: Arc<str>,
    /// The lower limit: every listed key is greater.
    after: String,
    /// Ranges without a request in flight, by their start.
    waiting: BTreeMap<Arc<str>, KeyRange>,
    running: FuturesUnordered<PageFuture>,
    /// Objects that have been found and not handed out, by the start of their range.
    parts: BTreeMap<Arc<str>, RangeObjects>,
    /// The number of these objects, in all ranges.
    held_objects: usize,
    borders: BTreeMap<String, RangeBorder>,
    /// Pages so far, without requests for one key.
    pages: usize,
    /// Ranges split off so far. Each costs up to two requests. There is at most one per four pages.
    cuts: usize,
    /// The listing of an origin without order, once that is detected.
    sequence: Option<UnorderedListing>,
}

impl OrderedListing {
    pub(crate) fn new(listing: Arc<BucketListing>, base: String, below: Arc<str>, after: String) -> Self {
        let range = KeyRange::first(after.clone());
        Self {
            listing,
            base,
            below,
            after,
            parts: BTreeMap::from([(Arc::clone(&range.from), RangeObjects::default())]),
            waiting: BTreeMap::from([(Arc::clone(&range.from), range)]),
            running: FuturesUnordered::new(),
            held_objects: 0,
            borders: BTreeMap::new(),
            pages: 0,
            cuts: 0,
            sequence: None,
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Object, TierError>> {
        loop {
            if let Some(sequence) = &mut self.sequence {
                return sequence.next().await;
            }
            let idle = self.running.is_empty() && self.waiting.is_empty();
            while (idle || self.pages >= FIRST_PAGES)
                && let Some(mut first) = self.parts.first_entry()
            {
                match first.get_mut().found.pop_front() {
                    Some(found) => {
                        self.held_objects -= 1;
                        return Some(found);
                    }
                    None if first.get().over => drop(first.remove()),
                    None => break,
                }
            }
            self.start();
            let broken = match self.running.next().await? {
                (range, Ok(page)) => self.take(range, page).err(),
                // Some origins refuse to start after a key, for instance those without order.
                (range, Err(error))
                    if error.kind() == ErrorKind::Unsupported
                        && range.token.is_none()
                        && !range.after.is_empty() =>
                {
                    self.fall_back(None);
                    Some(WalkError::Order)
                }
                (_, Err(error)) => {
                    // If a page fails after all attempts, the others would fail too.
                    self.end();
                    return Some(Err(error));
                }
            };
            match broken {
                None => {}
                Some(WalkError::Order) => return Some(Err(self.unordered())),
                Some(WalkError::Endless) => {
                    self.end();
                    return Some(Err(self.listing.endless("its pages are empty and each names another")));
                }
            }
        }
    }

    /// Requests pages of the nearest ranges. If too many objects are held, only the range of the
    /// next object is requested.
    fn start(&mut self) {
        while self.running.len() < self.listing.parallel_pages
            && let Some(nearest) = self.waiting.first_entry()
        {
            let is_due = self.parts.first_key_value().is_some_and(|(due, _)| due == nearest.key());
            if self.held_objects > self.listing.max_held && !is_due {
                break;
            }
            let range = nearest.remove();
            let (listing, below) = (Arc::clone(&self.listing), Arc::clone(&self.below));
            self.running.push(Box::pin(async move {
                let KeyRange { after, token, probe, .. } = &range;
                let page_request = PageRequest {
                    after,
                    token: token.as_deref(),
                    limit: probe.then_some(1),
                    ..PageRequest::first(&below)
                };
                let page = listing.page(&page_request).await;
                (range, page)
            }));
        }
    }

    /// Adds a page, checks its order, and schedules the next request.
    fn take(&mut self, mut range: KeyRange, mut page: ListPage) -> Result<(), WalkError> {
        let probe = std::mem::take(&mut range.probe);
        let anywhere = self.listing.pages.begins_anywhere();
        self.pages += usize::from(!probe);
        // Some origins include the start key itself.
        if range.token.is_none() && page.entries.first().is_some_and(|first| first.key == range.after) {
            page.entries.remove(0);
        }
        let least = match &range.last {
            Some(last) => last.as_str(),
            None if anywhere => &range.after,
            None => "",
        };
        if !page.is_ascending() || page.entries.first().is_some_and(|first| first.key.as_str() <= least) {
            self.fall_back(Some((range, page)));
            return Err(WalkError::Order);
        }
        range.empty = if page.entries.is_empty() { range.empty + 1 } else { 0 };
        let stands = page.token.is_some() && page.entries.is_empty() && page.token == range.token;
        if stands || range.empty > EMPTY_PAGES {
            return Err(WalkError::Endless);
        }
        let passed = page.entries.iter().find(|entry| range.is_beyond(&entry.key)).map(|e| e.key.clone());
        let first = page.entries.first().map(|entry| entry.key.clone());
        // The keys after a probed key are known only from a request that starts after it.
        let ends = page.token.is_none() && !(probe && first.is_some());
        let over = ends || passed.is_some();
        let mut met = true;
        if range.first_key_unknown && (first.is_some() || page.token.is_none()) {
            range.first_key_unknown = false;
            met &= self.compare_border(&range.from.clone(), BorderSide::Later, first.clone());
        }
        if let Some(upto) = range.upto.as_ref().filter(|_| over) {
            met &= self.compare_border(&upto.clone(), BorderSide::Earlier, passed);
        }
        if !met {
            self.fall_back(None);
            return Err(WalkError::Order);
        }
        let ListPage { entries, token, .. } = page;
        let (from, upto) = (Arc::clone(&range.from), range.upto.clone());
        if !over {
            if let (Some(first), Some(last)) = (first, entries.last()) {
                if anywhere && !probe {
                    self.split(&mut range, &first, &last.key);
                }
                range.last = Some(last.key.clone());
                range.after.clone_from(&last.key);
            }
            range.token = token.filter(|_| !probe || range.last.is_none());
            self.waiting.insert(Arc::clone(&range.from), range);
        }
        let held_objects = entries
            .into_iter()
            .filter(|entry| entry.key > self.after && upto.as_ref().is_none_or(|upto| entry.key <= *upto));
        let found =
            held_objects.filter_map(|entry| entry.object(&self.listing.place, &self.base, &self.below));
        let part = self.parts.entry(from).or_default();
        let before = part.found.len();
        part.found.extend(found);
        part.over = over;
        self.held_objects += part.found.len() - before;
        Ok(())
    }

    /// Records the first key that one side has found beyond a border. `false` if the other side has
    /// found another key.
    fn compare_border(&mut self, border: &str, side: BorderSide, found: Option<String>) -> bool {
        let sides = self.borders.entry(border.to_owned()).or_default();
        match side {
            BorderSide::Earlier => sides.earlier = Some(found),
            BorderSide::Later => sides.later = Some(found),
        }
        let (Some(earlier), Some(later)) = (&sides.earlier, &sides.later) else { return true };
        let met = earlier == later;
        self.borders.remove(border);
        met
    }

    /// Splits a range whose page has these keys, if the split pays off.
    fn split(&mut self, range: &mut KeyRange, first: &str, last: &str) {
        if self.pages < FIRST_PAGES {
            return;
        }
        // Twice the number of parallel requests, and none if pages come one by one anyway.
        let ranges = 2 * self.listing.parallel_pages.saturating_sub(1);
        let room = ranges.saturating_sub(self.running.len() + self.waiting.len());
        let worth = (self.pages / 4).saturating_sub(self.cuts);
        let cut = split(range, &self.below, first, last, room.min(worth));
        self.cuts += cut.len();
        self.parts.extend(cut.iter().map(|range| (Arc::clone(&range.from), RangeObjects::default())));
        self.waiting.extend(cut.into_iter().map(|range| (Arc::clone(&range.from), range)));
    }

    /// Drops the found objects and restarts the listing in one sequence. It continues without a
    /// restart if there is one range, which began at the beginning, and none of its objects was
    /// handed out. The given page is out of order.
    fn fall_back(&mut self, at: Option<(KeyRange, ListPage)>) {
        let kept =
            (self.cuts == 0 && self.pages <= FIRST_PAGES && self.after.is_empty()).then_some(at).flatten();
        let mut sequence =
            UnorderedListing::new(Arc::clone(&self.listing), self.base.clone(), Arc::clone(&self.below));
        if let Some((range, page)) = kept {
            let found = self.parts.remove(&range.from).map(|part| part.found).unwrap_or_default();
            sequence.resume(found, page);
        }
        self.end();
        self.sequence = Some(sequence);
    }

    fn unordered(&self) -> TierError {
        let why = "the storage does not list keys in the order of their bytes, or they changed meanwhile; \
                   the listing starts again, in one sequence, and is held in memory; an interrupted one \
                   cannot resume";
        self.listing.place.error(ErrorKind::Unordered, None, why)
    }

    fn end(&mut self) {
        self.waiting.clear();
        self.running = FuturesUnordered::new();
        self.parts.clear();
        self.held_objects = 0;
        self.borders.clear();
    }
}

/// Splits ranges off the end of a range whose keys up to `last` are known. Returns at most
/// `parallel_pages` ranges, the farthest first. Each begins after a name that shares more with this
/// page's names than the names beyond it.
fn split(range: &mut KeyRange, below: &str, first: &str, last: &str, parallel_pages: usize) -> Vec<KeyRange> {
    let common = first.chars().zip(last.chars()).take_while(|(a, b)| a == b).count();
    let fixed = below.chars().count();
    let mut cut = Vec::new();
    for at in fixed..common {
        if cut.len() == parallel_pages {
            break;
        }
        let Some(beyond) = beyond(last, at) else { continue };
        // If an earlier range has ended here, nothing is left to split off.
        if range.upto.as_ref().is_none_or(|upto| beyond < *upto) {
            let upto = range.upto.replace(beyond.clone());
            cut.push(KeyRange::beyond(beyond, upto));
        }
    }
    cut
}

/// The first name after all names that share the first `at + 1` characters of `name`.
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
