//! A listing in ranges, whose order is checked during the listing.
//!
//! Two things hold a listing together. Within a range, each page begins after the last key of the
//! page before it and ascends. Where two ranges meet at a name `B`, the first key beyond `B` that
//! the earlier range sees is the key that the later range begins with; or both find that there is
//! none.
//!
//! Why this is enough: within a range pages follow each other by tokens, so its keys follow each
//! other in the store's order, whatever that is. A later range begins at a key that exists, found
//! by a request for one key beyond `B`, and goes on after that key. So if the ranges meet, all keys
//! together are one run of the store's order, from its beginning to its end: none is missing. And
//! they ascend: none comes twice. The one assumption is that starting after an existing key goes on
//! as a token does. Objects of a range are handed out only when it has met the one before it.
//!
//! A store that changes while it is listed can look as one without order. That costs time and
//! nothing else.
//!
//! The nearest range to the next object that is due is always requested first, so that objects are
//! handed out soon after they come. More ranges are split off than are requested at once, so that
//! there are always near ones. If many objects wait all the same (the nearest range is large, or
//! its store is late), it alone is requested further. The price is that such a part of the listing
//! goes page by page.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use foreread_tier::{ErrorKind, Object, TierError};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use crate::lister::BucketListing;
use crate::pages::{ListPage, PageRequest};
use crate::unordered::UnorderedListing;

/// So many pages come one by one, and are held, before ranges are split. If they are out of order,
/// no request was in vain. At 40 ms a page the price is a second.
pub(crate) const FIRST_PAGES: usize = 24;

/// So many empty pages in a row, each with a token, and the listing is called endless. Stores list
/// a few where many objects have been removed.
pub(crate) const EMPTY_PAGES: u32 = 1_000;

/// Keys beyond `from`, up to and with `upto`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyRange {
    /// Where it began, which no other range does.
    from: Arc<str>,
    upto: Option<String>,
    /// What the next request starts after, if it has no token.
    after: String,
    token: Option<String>,
    /// The greatest key so far.
    last: Option<String>,
    /// Whether it was split off, and its first key is not known yet.
    first_key_unknown: bool,
    /// Whether the next request is for one key.
    probe: bool,
    /// Empty pages in a row.
    empty: u32,
}

impl KeyRange {
    /// One that is asked for all of its keys, beyond `after`.
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

    /// One that is split off another.
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
    /// The store lists in another order.
    Order,
    /// The store's tokens lead nowhere.
    Endless,
}

/// What two neighbouring ranges have found beyond the name where they meet: a key, or that there is
/// none.
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

/// What one range has found.
#[derive(Debug, Default)]
struct RangeObjects {
    found: VecDeque<Result<Object, TierError>>,
    /// Whether no more will come.
    over: bool,
}

type PageFuture = BoxFuture<'static, (KeyRange, Result<ListPage, TierError>)>;

pub(crate) struct OrderedListing {
    pub(crate) listing: Arc<BucketListing>,
    /// What paths are relative to.
    base: String,
    /// What every key begins with.
    below: Arc<str>,
    /// What every key that is listed is greater than.
    after: String,
    /// Ranges with no request under way, by where they began.
    waiting: BTreeMap<Arc<str>, KeyRange>,
    running: FuturesUnordered<PageFuture>,
    /// What has been found and not handed out, by where its range began.
    parts: BTreeMap<Arc<str>, RangeObjects>,
    /// How much that is, in all parts.
    held_objects: usize,
    borders: BTreeMap<String, RangeBorder>,
    /// PageSource so far, without requests for one key.
    pages: usize,
    /// Ranges split off so far. Each costs up to two requests, and there is one for four pages at
    /// most.
    cuts: usize,
    /// The listing of a store without order, once that is known.
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
                // Some stores refuse to start anywhere; those that have no order, for instance.
                (range, Err(error))
                    if error.kind() == ErrorKind::Unsupported
                        && range.token.is_none()
                        && !range.after.is_empty() =>
                {
                    self.fall_back(None);
                    Some(WalkError::Order)
                }
                (_, Err(error)) => {
                    // What one page cannot do after all attempts, the others cannot either.
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

    /// Requests pages of the nearest ranges; where too much is held, of the one alone whose objects
    /// are due.
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
                let ask =
                    PageRequest { prefix: &below, after, token: token.as_deref(), limit: probe.then_some(1) };
                let page = listing.page(&ask).await;
                (range, page)
            }));
        }
    }

    /// Adds a page, checks its order, and schedules the next request.
    fn take(&mut self, mut range: KeyRange, mut page: ListPage) -> Result<(), WalkError> {
        let probe = std::mem::take(&mut range.probe);
        let anywhere = self.listing.pages.begins_anywhere();
        self.pages += usize::from(!probe);
        // Some stores begin with the very key that was to be started after.
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
        // What follows a key that was probed for is known only when it was started after.
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
        let ListPage { entries, token } = page;
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

    /// Notes what one side has found beyond a border; false if the other side has found something
    /// else.
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

    /// Splits a range whose page has these keys, if that is worth it by now.
    fn split(&mut self, range: &mut KeyRange, first: &str, last: &str) {
        if self.pages < FIRST_PAGES {
            return;
        }
        // Twice as many as are requested at once, and none where pages come one by one anyway.
        let ranges = 2 * self.listing.parallel_pages.saturating_sub(1);
        let room = ranges.saturating_sub(self.running.len() + self.waiting.len());
        let worth = (self.pages / 4).saturating_sub(self.cuts);
        let cut = split(range, &self.below, first, last, room.min(worth));
        self.cuts += cut.len();
        self.parts.extend(cut.iter().map(|range| (Arc::clone(&range.from), RangeObjects::default())));
        self.waiting.extend(cut.into_iter().map(|range| (Arc::clone(&range.from), range)));
    }

    /// Drops what was found and begins to list in one sequence; or goes on where the only range
    /// was, if that one began at the beginning and none of it was handed out. The page is the one
    /// that is out of order.
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
        let why = "the store does not list keys in the order of their bytes, or they changed meanwhile; the \
                   listing \
                   starts again, in one sequence, and is held_objects in memory; one that is interrupted \
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

/// Cuts ranges off the end of one whose keys up to `last` are known, at most so many, the farthest
/// first. Each begins after a name that has more in common with this page's than the names beyond
/// it.
fn split(range: &mut KeyRange, below: &str, first: &str, last: &str, parallel_pages: usize) -> Vec<KeyRange> {
    let common = first.chars().zip(last.chars()).take_while(|(a, b)| a == b).count();
    let fixed = below.chars().count();
    let mut cut = Vec::new();
    for at in fixed..common {
        if cut.len() == parallel_pages {
            break;
        }
        let Some(beyond) = beyond(last, at) else { continue };
        // Where a range before this one has ended, nothing is left to cut off.
        if range.upto.as_ref().is_none_or(|upto| beyond < *upto) {
            let upto = range.upto.replace(beyond.clone());
            cut.push(KeyRange::beyond(beyond, upto));
        }
    }
    cut
}

/// The first name after all that share the first `at + 1` characters of `name`.
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
