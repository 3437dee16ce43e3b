//! The listing of an origin without order. It uses continuation tokens alone, is held in memory and
//! then sorted.
//!
//! The price is memory, some 150 bytes per key until the last is handed out. Also, pages come one
//! by one.
//!
//! A key that is listed twice with the same size and ETag is one object. Origins without order may
//! repeat keys during writes to others. With another size or ETag it is handed out twice, and the
//! catalog refuses it by name. A repeated token or page would make the listing endless and is an
//! error.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::vec::IntoIter;

use foreread_tier::{Object, TierError};

use crate::lister::BucketListing;
use crate::ordered::EMPTY_PAGES;
use crate::pages::{ListPage, PageRequest};

type ListResult = Result<Object, TierError>;

pub(crate) struct UnorderedListing {
    listing: Arc<BucketListing>,
    base: String,
    below: Arc<str>,
    token: Option<String>,
    found: Vec<ListResult>,
    /// Hashes of listed keys.
    seen: HashSet<u64>,
    hasher: RandomState,
    /// Consecutive empty pages.
    empty: u32,
    /// Whether the last page was received.
    whole: bool,
    sorted: Option<IntoIter<ListResult>>,
}

impl UnorderedListing {
    pub(crate) fn new(listing: Arc<BucketListing>, base: String, below: Arc<str>) -> Self {
        Self {
            listing,
            base,
            below,
            token: None,
            found: Vec::new(),
            seen: HashSet::new(),
            hasher: RandomState::new(),
            empty: 0,
            whole: false,
            sorted: None,
        }
    }

    /// Adopts the objects that were found from the beginning, and the page after them.
    pub(crate) fn resume(&mut self, found: VecDeque<ListResult>, page: ListPage) {
        for object in found.iter().flatten() {
            self.seen.insert(self.hasher.hash_one(format!("{}{}", self.base, object.path)));
        }
        self.found = found.into();
        // If none of its keys is new, the next page shows it too.
        self.take(page);
    }

    pub(crate) async fn next(&mut self) -> Option<ListResult> {
        loop {
            if let Some(sorted) = &mut self.sorted {
                return sorted.next();
            }
            if let Err(error) = self.gather().await {
                self.sorted = Some(Vec::new().into_iter());
                return Some(Err(error));
            }
            let mut found = std::mem::take(&mut self.found);
            self.seen = HashSet::new();
            // Errors first, because they have no path.
            found.sort_by(|a, b| match (a, b) {
                (Ok(a), Ok(b)) => a.path.as_bytes().cmp(b.path.as_bytes()),
                (a, b) => a.is_ok().cmp(&b.is_ok()),
            });
            found.dedup_by(|a, b| matches!((a, b), (Ok(a), Ok(b)) if a == b));
            self.sorted = Some(found.into_iter());
        }
    }

    /// Lists to the end.
    async fn gather(&mut self) -> Result<(), TierError> {
        while !self.whole {
            let page_request =
                PageRequest { token: self.token.as_deref(), ..PageRequest::first(&self.below) };
            let page = self.listing.page(&page_request).await?;
            let again = page.token.is_some() && page.token == self.token;
            let new = self.take(page);
            if again {
                return Err(self.listing.endless("a page names itself as the next"));
            }
            if !new {
                return Err(self.listing.endless("a page came twice"));
            }
            if self.empty > EMPTY_PAGES {
                return Err(self.listing.endless("its pages are empty and each names another"));
            }
        }
        Ok(())
    }

    /// Adds a page. `false` if it has keys and none of them is new.
    fn take(&mut self, page: ListPage) -> bool {
        let ListPage { entries, token, .. } = page;
        self.whole = token.is_none();
        self.token = token;
        self.empty = if entries.is_empty() { self.empty + 1 } else { 0 };
        let mut new = entries.is_empty();
        for entry in entries {
            new |= self.seen.insert(self.hasher.hash_one(&entry.key));
            self.found.extend(entry.object(&self.listing.place, &self.base, &self.below));
        }
        new
    }
}
