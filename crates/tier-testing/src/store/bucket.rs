//! Buckets: objects, and pages of their listings.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use super::content::{Content, NumberedObjects};
use super::order::ListingOrder;

/// The current state of one object.
#[derive(Clone)]
pub(super) struct StoredObject {
    pub(super) content: Arc<dyn Content>,
    /// With its quotes.
    pub(super) tag: Arc<str>,
}

/// The objects of a bucket.
pub(super) enum BucketKeys {
    Map(BTreeMap<Arc<str>, StoredObject>),
    Numbered(NumberedObjects),
}

/// A bucket and its permissions.
pub(super) struct Bucket {
    pub(super) keys: BucketKeys,
    /// The order of its listings.
    pub(super) order: ListingOrder,
    pub(super) list_denied: bool,
    pub(super) read_denied: bool,
    /// The only region that it answers in.
    pub(super) region: Option<String>,
}

/// The tag of numbered objects.
const NUMBERED: &str = "\"6e756d6265726564\"";

/// The parameters of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListQuery {
    pub(super) prefix: String,
    pub(super) delimiter: String,
    /// Names up to and including this one are left out. If it is a common prefix, so is everything
    /// below it.
    pub(super) after: String,
    /// Whether `after` comes from a continuation token.
    pub(super) continues: bool,
    pub(super) max_keys: usize,
}

/// An entry of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListEntry {
    Key { key: String, size: u64, tag: Arc<str> },
    Prefix(String),
}

impl ListEntry {
    fn name(&self) -> &str {
        match self {
            Self::Key { key, .. } | Self::Prefix(key) => key,
        }
    }

    /// The common prefix of this key and others, if `delimiter` occurs after `prefix`.
    fn rolled_up(self, prefix: &str, delimiter: &str) -> Self {
        let name = self.name();
        match name
            .strip_prefix(prefix)
            .filter(|_| !delimiter.is_empty())
            .and_then(|rest| rest.find(delimiter))
        {
            Some(at) => Self::Prefix(name[..prefix.len() + at + delimiter.len()].to_owned()),
            None => self,
        }
    }
}

/// A page, and the start of the next one.
#[derive(Debug)]
pub(super) struct ListPage {
    pub(super) lines: Vec<ListEntry>,
    pub(super) next: Option<String>,
}

impl Bucket {
    pub(super) fn new(keys: BucketKeys) -> Self {
        Self { keys, order: ListingOrder::Bytes, list_denied: false, read_denied: false, region: None }
    }

    pub(super) fn find(&self, key: &str) -> Option<StoredObject> {
        match &self.keys {
            BucketKeys::Map(map) => map.get(key).cloned(),
            BucketKeys::Numbered(numbered) => {
                let (id, found) = numbered.rank(key);
                found.then(|| StoredObject { content: Arc::new(numbered.bytes(id)), tag: NUMBERED.into() })
            }
        }
    }

    /// The first object at or after `from`.
    fn next(&self, from: Bound<&str>) -> Option<ListEntry> {
        match &self.keys {
            BucketKeys::Map(map) => {
                let (key, stored) = map.range::<str, _>((from, Bound::Unbounded)).next()?;
                let (size, tag) = (stored.content.size(), Arc::clone(&stored.tag));
                Some(ListEntry::Key { key: key.to_string(), size, tag })
            }
            BucketKeys::Numbered(numbered) => {
                let id = match from {
                    Bound::Included(name) => numbered.rank(name).0,
                    Bound::Excluded(name) => {
                        let (id, found) = numbered.rank(name);
                        id + u64::from(found)
                    }
                    Bound::Unbounded => 0,
                };
                (id < numbered.count()).then(|| ListEntry::Key {
                    key: numbered.name(id),
                    size: numbered.size(),
                    tag: NUMBERED.into(),
                })
            }
        }
    }

    /// A page, in the bucket's order.
    pub(super) fn list(&self, query: &ListQuery) -> ListPage {
        match self.order {
            ListingOrder::Bytes => self.list_in_byte_order(query),
            other => self.list_in(other, query),
        }
    }

    /// A page costs as much as the whole bucket.
    fn list_in(&self, order: ListingOrder, query: &ListQuery) -> ListPage {
        let ListQuery { prefix, delimiter, after, continues, max_keys } = query;
        let mut keys = Vec::new();
        let mut from = Bound::Unbounded;
        while let Some(line) = self.next(from.as_ref().map(String::as_str)) {
            from = Bound::Excluded(line.name().to_owned());
            keys.push(line.rolled_up(prefix, delimiter));
        }
        let mut seen = HashSet::new();
        keys.retain(|line| seen.insert(line.name().to_owned()));
        order.sort(&mut keys, ListEntry::name);
        let at = keys.iter().position(|line| line.name() == after);
        let rest = keys.split_off(at.map_or(0, |at| at + 1)).into_iter();
        let mut rest = rest
            .filter(|line| at.is_some() || *continues || order.is_after(line.name(), after))
            .filter(|line| line.name().starts_with(&**prefix));
        let lines: Vec<ListEntry> = rest.by_ref().take(*max_keys).collect();
        let next = rest.next().and(lines.last()).map(|line| line.name().to_owned());
        ListPage { lines, next }
    }

    /// A page costs as much as its entries, whatever the size of the bucket.
    fn list_in_byte_order(&self, query: &ListQuery) -> ListPage {
        let ListQuery { prefix, delimiter, after, max_keys, .. } = query;
        let mut page = ListPage { lines: Vec::new(), next: None };
        let below = after.strip_prefix(&**prefix).is_some_and(|rest| !rest.is_empty());
        let mut from = if !delimiter.is_empty() && below && after.ends_with(&**delimiter) {
            beyond(after).map_or(Bound::Unbounded, Bound::Included)
        } else if after < prefix {
            Bound::Included(prefix.clone())
        } else {
            Bound::Excluded(after.clone())
        };
        while let Some(line) = self.next(from.as_ref().map(String::as_str)) {
            let name = line.name();
            if !name.starts_with(&**prefix) {
                break;
            }
            if page.lines.len() == *max_keys {
                page.next = page.lines.last().map(|line| line.name().to_owned());
                break;
            }
            let line = line.rolled_up(prefix, delimiter);
            from = match &line {
                ListEntry::Key { key, .. } => Bound::Excluded(key.clone()),
                ListEntry::Prefix(common) => beyond(common).map_or(Bound::Unbounded, Bound::Included),
            };
            page.lines.push(line);
            if from == Bound::Unbounded {
                break;
            }
        }
        page
    }
}

/// The first name after all names that start with `prefix`.
fn beyond(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            last => char::from_u32(last as u32 + 1),
        };
        if let Some(next) = next {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn bucket(keys: &[&str]) -> Bucket {
        let stored = |key: &&str| {
            let stored =
                StoredObject { content: Arc::new(Bytes::from(key.to_string())), tag: "\"1\"".into() };
            (Arc::from(*key), stored)
        };
        Bucket::new(BucketKeys::Map(keys.iter().map(stored).collect()))
    }

    fn all(bucket: &Bucket, prefix: &str, delimiter: &str, max_keys: usize) -> Vec<String> {
        let mut query = ListQuery {
            prefix: prefix.into(),
            delimiter: delimiter.into(),
            max_keys,
            ..ListQuery::default()
        };
        let mut found = Vec::new();
        loop {
            let page = bucket.list(&query);
            assert!(page.lines.len() <= max_keys);
            found.extend(page.lines.iter().map(|line| line.name().to_owned()));
            match page.next {
                Some(next) => query.after = next,
                None => return found,
            }
        }
    }

    #[test]
    fn pages_of_any_size_form_the_listing() {
        let bucket = bucket(&["a", "a/1", "a/2", "a/b/3", "a0", "b/4", "c"]);
        for max_keys in 1..9 {
            assert_eq!(all(&bucket, "", "", max_keys).len(), 7);
            assert_eq!(all(&bucket, "", "/", max_keys), ["a", "a/", "a0", "b/", "c"]);
            assert_eq!(all(&bucket, "a/", "/", max_keys), ["a/1", "a/2", "a/b/"]);
            assert_eq!(all(&bucket, "a", "", max_keys).len(), 5);
            assert_eq!(all(&bucket, "zz", "/", max_keys), [""; 0]);
        }
        let bucket = Bucket { order: ListingOrder::CaseInsensitive, ..bucket };
        for max_keys in 1..9 {
            assert_eq!(all(&bucket, "", "/", max_keys), ["a", "a/", "a0", "b/", "c"]);
            assert_eq!(all(&bucket, "a/", "/", max_keys), ["a/1", "a/2", "a/b/"]);
        }
        let bucket = Bucket { order: ListingOrder::Bytes, ..bucket };
        let query = ListQuery { after: "a/2".into(), max_keys: 2, ..ListQuery::default() };
        let page = bucket.list(&query);
        assert_eq!(page.lines.iter().map(ListEntry::name).collect::<Vec<_>>(), ["a/b/3", "a0"]);
        assert_eq!(page.next.as_deref(), Some("a0"));
    }

    #[test]
    fn listing_in_other_orders_is_paged() {
        let mut bucket = bucket(&["B", "a", "b", "c-d/1", "c/1", "c/2"]);
        for (order, expected) in [
            (ListingOrder::CaseInsensitive, ["a", "B", "b", "c-d/1", "c/1", "c/2"]),
            (ListingOrder::Directories, ["B", "a", "b", "c/1", "c/2", "c-d/1"]),
            (ListingOrder::Ascending(2), ["B", "a", "c/2", "c/1", "c-d/1", "b"]),
        ] {
            bucket.order = order;
            for max_keys in 1..9 {
                assert_eq!(all(&bucket, "", "", max_keys), expected);
            }
            let query = ListQuery { after: expected[3].into(), max_keys: 9, ..ListQuery::default() };
            let rest = bucket.list(&query).lines;
            assert_eq!(rest.iter().map(ListEntry::name).collect::<Vec<_>>(), expected[4..]);
        }
        // A name that is not a key is compared with each key.
        bucket.order = ListingOrder::Directories;
        let query = ListQuery { after: "c.".into(), max_keys: 9, ..ListQuery::default() };
        let rest = bucket.list(&query).lines;
        assert_eq!(rest.iter().map(ListEntry::name).collect::<Vec<_>>(), ["c/1", "c/2"]);
    }

    #[test]
    fn numbered_objects_are_listed_without_a_walk() {
        let bucket = Bucket::new(BucketKeys::Numbered(NumberedObjects::new(1_000_000, 10)));
        assert_eq!(all(&bucket, "", "/", 1000).len(), 1000);
        assert_eq!(all(&bucket, "000999/", "", 300).len(), 1000);
        let found = bucket.find("000999/00999999.bin").unwrap();
        assert_eq!(found.content.size(), 10);
        assert!(bucket.find("000999/00999999.bi").is_none());
    }
}
