//! The contract of every origin.

use std::collections::BTreeMap;
use std::sync::Arc;

use foreread_tier::{ErrorKind, Object, OriginTier, Span, Version};
use futures::StreamExt;

use super::{ANSWER_TIMEOUT, HIDDEN, assert_bytes, assert_kind, read, tier};
use crate::KnownSample;

/// Checks the contract of every origin. `known` is everything that it lists: whole objects, usually
/// [`samples`](super::samples), without versions. The versions are those of the listing.
///
/// # Panics
/// If the origin breaks the contract.
pub async fn origin<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    every_object_is_listed_once(origin, known).await;
    listing_continues_after_a_path(origin, known).await;
    listing_stays_below_its_prefix(origin, known).await;
    directories_are_named(origin, known).await;
    an_object_is_found_by_its_path(origin, known).await;
    let listed = with_versions(origin, known).await;
    tier(origin, known).await;
    tier(origin, &listed).await;
    ranges(origin, &listed).await;
    ranges_have_allocations_of_their_own(origin, &listed).await;
    a_missing_object_harms_no_other(origin, &listed).await;
    another_size_is_a_change(origin, &listed).await;
    another_version_is_a_change(origin, &listed).await;
    climbing_paths_are_refused(origin, &listed).await;
}

async fn list<T: OriginTier + ?Sized>(
    origin: &T,
    prefix: &str,
    after: Option<&str>,
) -> BTreeMap<String, Object> {
    let what = format!("listing {prefix:?} after {after:?}");
    let mut found = BTreeMap::new();
    let mut stream = origin.list(prefix, after);
    let mut last = String::new();
    loop {
        match tokio::time::timeout(ANSWER_TIMEOUT, stream.next()).await {
            Ok(Some(Ok(object))) => {
                let path = object.path.to_string();
                if origin.profile().lists_in_order {
                    assert!(
                        last < path,
                        "{what}: {path} after {last}, although its profile has lists_in_order"
                    );
                    last.clone_from(&path);
                }
                assert!(found.insert(path, object.clone()).is_none(), "{what}: {} twice", object.path);
            }
            Ok(Some(Err(error))) => panic!("{what}: {error}"),
            Ok(None) => return found,
            Err(_) => panic!("{what}: nothing in {ANSWER_TIMEOUT:?}"),
        }
    }
}

fn assert_listed<'a>(
    what: &str,
    found: &BTreeMap<String, Object>,
    known: impl Iterator<Item = &'a KnownSample>,
) {
    let expected: BTreeMap<_, _> =
        known.map(|sample| (sample.object.path.to_string(), sample.object.size)).collect();
    let found: BTreeMap<_, _> = found.iter().map(|(path, object)| (path.clone(), object.size)).collect();
    for (hidden, _) in HIDDEN {
        assert!(!found.contains_key(*hidden), "{what}: {hidden} is hidden");
    }
    assert_eq!(found, expected, "{what}: every object with its size");
}

async fn every_object_is_listed_once<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    assert_listed("listing all", &list(origin, "", None).await, known.iter());
}

async fn listing_continues_after_a_path<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    let paths = known.iter().map(|sample| &*sample.object.path);
    for after in paths.chain(["", "a", "a/", "a0", "b/c/", "b/c/d", "zzz"]) {
        let rest = known.iter().filter(|sample| sample.object.path.as_bytes() > after.as_bytes());
        assert_listed(&format!("listing after {after:?}"), &list(origin, "", Some(after)).await, rest);
    }
}

async fn directories_are_named<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    let expected = known.iter().filter_map(|sample| sample.object.path.split_once('/'));
    let mut expected: Vec<&str> = expected.map(|(first, _)| first).collect();
    expected.sort_unstable();
    expected.dedup();
    match tokio::time::timeout(ANSWER_TIMEOUT, origin.directories()).await {
        Ok(Ok(mut names)) => {
            names.sort_unstable();
            assert_eq!(names, expected, "the directories directly below the origin, each once");
        }
        Ok(Err(error)) => panic!("the names of directories: {error}"),
        Err(_) => panic!("the names of directories: nothing in {ANSWER_TIMEOUT:?}"),
    }
}

async fn listing_stays_below_its_prefix<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    let mut prefixes: Vec<&str> = known
        .iter()
        .flat_map(|sample| sample.object.path.match_indices('/').map(|(at, _)| &sample.object.path[..at]))
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    for prefix in prefixes {
        let below = |sample: &&KnownSample| {
            sample.object.path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
        };
        let what = format!("listing below {prefix:?}");
        let found = list(origin, prefix, None).await;
        assert_listed(&what, &found, known.iter().filter(below));
        if let Some(first) = found.keys().next() {
            let rest =
                known.iter().filter(below).filter(|sample| sample.object.path.as_bytes() > first.as_bytes());
            assert_listed(&format!("{what} after {first:?}"), &list(origin, prefix, Some(first)).await, rest);
        }
    }
}

async fn with_versions<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) -> Vec<KnownSample> {
    let listed = list(origin, "", None).await;
    known
        .iter()
        .map(|sample| KnownSample { object: listed[&*sample.object.path].clone(), ..sample.clone() })
        .collect()
}

async fn ranges<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    let mut batch = Vec::new();
    let mut expected = Vec::new();
    for sample in known.iter().filter(|sample| sample.object.size > 0) {
        let size = sample.object.size;
        let ends = [(0, 1), (0, size), (size - 1, size), (size / 3, size / 3 * 2), (1, 4096), (4095, 4098)];
        for (start, end) in ends.into_iter().filter(|&(start, end)| start < end && end <= size) {
            batch.push(sample.range(batch.len() as u32, start..end));
            expected.push((sample, start as usize..end as usize));
        }
    }
    let answers = read("ranges", origin, batch).await;
    for (answer, (sample, range)) in answers.values().zip(expected) {
        let what = format!("{range:?} of {}", sample.object.path);
        assert_bytes(&what, answer, &sample.content[range]);
    }
}

/// Neighbouring ranges must not be slices of one joined read. Slices are exactly as far apart in
/// memory as in the object. Separate allocations, even page-aligned ones with some bytes before,
/// are not at this distance.
async fn ranges_have_allocations_of_their_own<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    const STEP: usize = 1001;
    let Some(sample) = known.iter().find(|sample| sample.object.size >= 3 * STEP as u64) else { return };
    let part = |tag: u32| sample.range(tag, u64::from(tag) * STEP as u64..u64::from(tag + 1) * STEP as u64);
    let answers = read("neighbouring ranges", origin, (0..3).map(part).collect()).await;
    let starts: Vec<usize> = answers.values().flatten().map(|bytes| bytes.as_ptr() as usize).collect();
    for pair in starts.windows(2) {
        assert_ne!(pair[1].wrapping_sub(pair[0]), STEP, "two ranges are slices of one allocation");
    }
}

async fn a_missing_object_harms_no_other<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    let mut batch = Vec::new();
    for (sample, tag) in known.iter().zip((0..).step_by(3)) {
        batch.push(sample.whole(tag));
        for (path, tag) in [("no/such/object", tag + 1), ("a/none", tag + 2)] {
            let mut missing = sample.whole(tag);
            (missing.object.path, missing.object.version) = (path.into(), None);
            batch.push(missing);
        }
    }
    let answers = read("some missing", origin, batch).await;
    for (sample, tag) in known.iter().zip((0..).step_by(3)) {
        assert_bytes("next to missing ones", &answers[&tag], &sample.content);
        assert_kind("a missing object", &answers[&(tag + 1)], origin.name(), ErrorKind::NotFound);
        assert_kind("a missing object", &answers[&(tag + 2)], origin.name(), ErrorKind::NotFound);
    }
}

async fn another_size_is_a_change<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    let mut batch = Vec::new();
    for sample in known {
        let size = sample.object.size;
        for wrong in
            [size + 1, size + 5000, size.saturating_sub(1), 0].into_iter().filter(|&wrong| wrong != size)
        {
            let mut request = sample.whole(batch.len() as u32);
            (request.object.size, request.object.version) = (wrong, None);
            batch.push(request);
        }
        let mut beyond = sample.range(batch.len() as u32, size..size + 10);
        (beyond.object.size, beyond.object.version) = (size + 10, None);
        batch.push(beyond);
    }
    let requests = batch.clone();
    for (answer, request) in read("wrong sizes", origin, batch).await.values().zip(requests) {
        let what =
            format!("{} taken for {} bytes, {:?}", request.object.path, request.object.size, request.span);
        assert_kind(&what, answer, origin.name(), ErrorKind::Changed);
    }
}

async fn an_object_is_found_by_its_path<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    let listed = list(origin, "", None).await;
    for object in listed.values().take(3) {
        let found = origin.stat(&object.path).await;
        assert_eq!(found.as_ref().ok(), Some(object), "{} by its path", object.path);
    }
    for missing in ["nothing/of/this/name", "nothing"] {
        let kind = origin.stat(missing).await.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::NotFound), "{missing}");
    }
    for climbing in ["../etc/passwd", "/etc/passwd", "a/.."] {
        let kind = origin.stat(climbing).await.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Invalid), "{climbing}");
    }
    let directory = known.iter().find_map(|sample| sample.object.path.rsplit_once('/'));
    if let Some((directory, _)) = directory {
        // Some stores do not distinguish a directory from a denied object.
        assert!(origin.stat(directory).await.is_err(), "{directory} is not an object");
    }
}

async fn another_version_is_a_change<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    for sample in known {
        let version = match &sample.object.version {
            Some(Version::Modified(modified) | Version::Written { modified, .. }) => {
                Version::Modified(modified - 1_000_000_000)
            }
            Some(Version::ETag(_)) => Version::ETag("0123456789abcdef0123456789abcdef".into()),
            _ => continue,
        };
        let mut request = sample.whole(0);
        request.object.version = Some(version);
        let what = format!("another version of {}", sample.object.path);
        assert_kind(&what, &read(&what, origin, vec![request]).await[&0], origin.name(), ErrorKind::Changed);
    }
}

async fn climbing_paths_are_refused<T: OriginTier + ?Sized>(origin: &T, known: &[KnownSample]) {
    for path in ["../etc/passwd", "/etc/passwd", "a/../../x", "..", "a/.."] {
        let mut request = known[0].whole(0);
        request.object = Object { path: Arc::from(path), size: 10, version: None };
        let whole = request.clone();
        request.span = Span::Range(0..5);
        let answers =
            read(&format!("the path {path:?}"), origin, vec![whole, request, known[0].whole(2)]).await;
        for tag in 0..2 {
            assert_kind(&format!("the path {path:?}"), &answers[&tag], origin.name(), ErrorKind::Invalid);
        }
        assert_bytes("next to a path that is refused", &answers[&2], &known[0].content);
    }
}
