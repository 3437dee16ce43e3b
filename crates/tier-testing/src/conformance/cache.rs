//! The contract of every cache.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{Budget, CacheTier, Charge, ErrorKind, Lookup, Sample};
use foreread_types::{DatasetId, SampleId, SampleKey, mix};
use futures::FutureExt;

use super::{assert_bytes, assert_kind, read, tier};
use crate::{KnownSample, NEVER, content};

/// Checks the contract of every cache. The cache must be empty with a capacity of 4 MiB to 1 GiB,
/// and is empty again at the end. Also call it from a test on several threads (`flavor =
/// "multi_thread"`).
///
/// # Panics
/// If the cache breaks the contract.
pub async fn cache(cache: Arc<dyn CacheTier>) {
    let all = free(&*cache);
    assert!(
        (4 << 20..=1 << 30).contains(&all),
        "the suite needs an empty cache of 4 MiB to 1 GiB, not {all} bytes"
    );
    footprints_grow(&*cache);
    room_is_counted(&*cache, all);
    stored_samples_are_found_and_read(&*cache, all).await;
    the_first_of_two_stays(&*cache, all).await;
    the_look_ahead_is_given_back(&*cache).await;
    a_handle_keeps_its_room(&*cache, all).await;
    what_is_not_kept_is_absent(&*cache).await;
    another_length_is_a_change(&*cache).await;
    full_is_full(&*cache, all).await;
    a_dropped_store_is_whole_or_nothing(&*cache, all).await;
    everything_at_once(&cache, all).await;
    assert_eq!(free(&*cache), all, "everything was given back");
}

/// Checks that reads from a cache allocate at most the bytes that readers charge for them. Samples
/// in memory must allocate nothing. `live` returns the bytes that this program has in use. The
/// program must do nothing else meanwhile.
///
/// # Panics
/// If reads allocate more.
pub async fn reads_allocate_what_is_charged(cache: &dyn CacheTier, live: impl Fn() -> u64) {
    /// The overhead of an answer and its stream.
    const OVERHEAD: u64 = 400;
    for size in [1_000, 10_000, 110_000] {
        let known: Vec<KnownSample> =
            (0..(300_000 / size).max(16)).map(|id| sample(5000 + id, size)).collect();
        for known in &known {
            store(cache, known).await;
        }
        let requests = known.iter().zip(0..).map(|(known, tag)| known.whole(tag)).collect();
        // The first read may allocate lazily.
        read("a first time", cache, vec![known[0].whole(0)]).await;
        let before = live();
        let is_at_hand = matches!(cache.lookup(known[0].key), Lookup::Ready(_));
        let answers = read("samples of one length", cache, requests).await;
        for (known, answer) in known.iter().zip(answers.values()) {
            assert_bytes("of one length", answer, &known.content);
        }
        let taken = live().saturating_sub(before) / known.len() as u64;
        let most = OVERHEAD + if is_at_hand { 0 } else { cache.read_memory().of(size) };
        assert!(taken <= most, "{taken} bytes for each sample of {size}, which is counted as {most}");
        drop(answers);
        cache.remove(known.iter().map(|known| known.key).collect()).await;
    }
}

/// The bytes that can be reserved now.
fn free(cache: &dyn CacheTier) -> u64 {
    let mut held: Vec<Charge> = Vec::new();
    for shift in (0..=31).rev() {
        while let Some(charge) = cache.reserve(1 << shift) {
            held.push(charge);
            assert!(held.len() < 10_000, "a cache without bounds");
        }
    }
    held.iter().map(Charge::bytes).sum()
}

/// [`until`](crate::until) for any clock of tokio.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(NEVER, wait).await.is_ok(), "it never happened: {what}");
}

async fn free_becomes(what: &str, cache: &dyn CacheTier, expected: u64) {
    until(&format!("{what}: {expected} bytes are free"), async || free(cache) == expected).await;
}

fn sample(id: u64, size: u64) -> KnownSample {
    let path = format!("cached/{id}");
    let content = content(1, &path, size);
    let object = foreread_tier::Object { path: path.into(), size, version: None };
    KnownSample { key: SampleKey::new(DatasetId((id % 2) as u32), SampleId(id)), object, content }
}

async fn store(cache: &dyn CacheTier, known: &KnownSample) {
    let room = cache.footprint().of(known.object.size);
    let Some(room) = cache.reserve(room) else { panic!("no room for {room} bytes") };
    let sample = Sample::uncharged(known.content.clone());
    if let Err(error) = cache.store(room, known.key, sample).await {
        panic!("storing {}: {error}", known.key);
    }
}

/// The cache's answer for a sample, by lookup or by a read.
async fn fetch(cache: &dyn CacheTier, known: &KnownSample) -> Option<Bytes> {
    match cache.lookup(known.key) {
        Lookup::Ready(sample) => Some(sample.bytes()),
        Lookup::Absent => None,
        Lookup::Stored => match read("a stored sample", cache, vec![known.whole(0)]).await.remove(&0) {
            Some(Ok(bytes)) => Some(bytes),
            Some(Err(error)) if error.kind() == ErrorKind::Absent => None, // removed in between
            Some(Err(error)) => panic!("{}: {error}", known.key),
            None => None,
        },
    }
}

fn footprints_grow(cache: &dyn CacheTier) {
    let footprint = cache.footprint();
    for size in [0u64, 1, 100, 4096, 100_003, 10_000_000] {
        assert!(footprint.of(size) >= size, "a footprint covers its sample");
        assert!(footprint.of(size + 1) >= footprint.of(size), "a footprint grows with its sample");
        assert!(
            footprint.of(size) < size + (64 << 10),
            "a footprint of {size} bytes is {}",
            footprint.of(size)
        );
    }
}

fn room_is_counted(cache: &dyn CacheTier, all: u64) {
    let bytes = cache.footprint().of(100_000);
    let Some(room) = cache.reserve(bytes) else { panic!("an empty cache has room for {bytes} bytes") };
    assert!(room.bytes() >= bytes, "the requested room");
    assert_eq!(free(cache), all - room.bytes(), "room that is set aside is not free");
    assert!(cache.reserve(all).is_none(), "no more than there is");
    assert!(cache.reserve(u64::MAX).is_none(), "no more than there is");
    drop(room);
    assert_eq!(free(cache), all, "dropped room is free again");
}

async fn stored_samples_are_found_and_read(cache: &dyn CacheTier, all: u64) {
    let known: Vec<KnownSample> =
        (0..).zip([0, 1, 100, 4096, 4097, 100_003, 1 << 20]).map(|(id, n)| sample(id, n)).collect();
    let keys: Vec<SampleKey> = known.iter().map(|known| known.key).collect();
    let mut used = 0;
    for known in &known {
        assert!(matches!(cache.lookup(known.key), Lookup::Absent), "{} before it is stored", known.key);
        store(cache, known).await;
        used += cache.footprint().of(known.object.size);
        free_becomes("after a store", cache, all - used).await;
        let bytes = fetch(cache, known).await;
        assert_eq!(bytes.as_ref(), Some(&known.content), "{} after it was stored", known.key);
    }
    tier(cache, &known).await;
    cache.remove(keys).await;
    for known in &known {
        assert!(matches!(cache.lookup(known.key), Lookup::Absent), "{} after it was removed", known.key);
    }
    free_becomes("after everything was removed", cache, all).await;
}

async fn the_first_of_two_stays(cache: &dyn CacheTier, all: u64) {
    let (first, mut second) = (sample(1, 5000), sample(2, 5000));
    second.key = first.key;
    store(cache, &first).await;
    let used = free(cache);
    store(cache, &second).await;
    free_becomes("after a key was stored again", cache, used).await;
    assert_eq!(fetch(cache, &first).await.as_ref(), Some(&first.content), "the first of two under one key");
    cache.remove(vec![first.key]).await;
    free_becomes("after a key that was stored twice was removed", cache, all).await;
}

async fn the_look_ahead_is_given_back(cache: &dyn CacheTier) {
    let look_ahead = Budget::new(1 << 20);
    let known = sample(3, 3000);
    let Some(room) = cache.reserve(cache.footprint().of(3000)) else { panic!("an empty cache has room") };
    let stored = Sample::new(known.content.clone(), look_ahead.charge(3000));
    assert!(cache.store(room, known.key, stored).await.is_ok(), "a sample with a separate charge");
    assert_eq!(look_ahead.used(), 0, "a stored sample is the cache's to count, not the look-ahead's");
    cache.remove(vec![known.key]).await;
}

async fn a_handle_keeps_its_room(cache: &dyn CacheTier, all: u64) {
    let known = sample(4, 40_000);
    store(cache, &known).await;
    let used = free(cache);
    match cache.lookup(known.key) {
        Lookup::Ready(handle) => {
            let slice = handle.bytes().slice(10..20);
            cache.remove(vec![known.key, known.key]).await;
            assert!(matches!(cache.lookup(known.key), Lookup::Absent), "removed while a handle is out");
            assert_eq!(free(cache), used, "a handle keeps its room after the removal");
            assert_eq!(*handle, *known.content, "a handle stays valid after the removal");
            drop(handle);
            // Only slices of a sample with an initial charge keep the charge.
            assert_eq!(slice, known.content.slice(10..20));
        }
        Lookup::Stored => cache.remove(vec![known.key, known.key]).await,
        Lookup::Absent => panic!("{} was just stored", known.key),
    }
    free_becomes("after the last handle", cache, all).await;
}

async fn what_is_not_kept_is_absent(cache: &dyn CacheTier) {
    let (kept, none) = (sample(5, 500), sample(99, 500));
    store(cache, &kept).await;
    let answers = read("some absent", cache, vec![none.whole(0), kept.whole(1), none.whole(2)]).await;
    for tag in [0, 2] {
        assert_kind("a sample that is not kept", &answers[&tag], cache.name(), ErrorKind::Absent);
    }
    assert_bytes("next to absent ones", &answers[&1], &kept.content);
    cache.remove(vec![none.key]).await;
    cache.remove(vec![]).await;
    let other = SampleKey { dataset: DatasetId(7), ..kept.key };
    assert!(matches!(cache.lookup(other), Lookup::Absent), "the same id of another dataset");
    cache.remove(vec![kept.key]).await;
}

async fn another_length_is_a_change(cache: &dyn CacheTier) {
    let known = sample(6, 600);
    store(cache, &known).await;
    let mut request = known.whole(0);
    request.object.size = 601;
    let answers = read("another length", cache, vec![request]).await;
    assert_kind("a sample of another length than kept", &answers[&0], cache.name(), ErrorKind::Changed);
    cache.remove(vec![known.key]).await;
}

async fn full_is_full(cache: &dyn CacheTier, all: u64) {
    let size = all / 40;
    let mut kept = Vec::new();
    while let Some(room) = cache.reserve(cache.footprint().of(size)) {
        let known = sample(1000 + kept.len() as u64, size);
        let stored = cache.store(room, known.key, Sample::uncharged(known.content.clone())).await;
        assert!(stored.is_ok(), "storing in room that was reserved: {stored:?}");
        kept.push(known);
        assert!(kept.len() as u64 * cache.footprint().of(size) <= all, "more is kept than there is room for");
    }
    assert!(kept.len() as u64 >= all / cache.footprint().of(size), "all room can be used");
    for known in &kept {
        assert_eq!(fetch(cache, known).await.as_ref(), Some(&known.content), "{} of a full cache", known.key);
    }
    cache.remove(kept.iter().map(|known| known.key).collect()).await;
    free_becomes("after a full cache was emptied", cache, all).await;
}

async fn a_dropped_store_is_whole_or_nothing(cache: &dyn CacheTier, all: u64) {
    for polls in 0..4 {
        let known = sample(50 + polls, 70_000);
        let Some(room) = cache.reserve(cache.footprint().of(70_000)) else {
            panic!("an empty cache has room")
        };
        {
            let mut store = pin!(cache.store(room, known.key, Sample::uncharged(known.content.clone())));
            for _ in 0..polls {
                if store.as_mut().now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        // A started store may end.
        let is_whole_or_nothing = async || match fetch(cache, &known).await {
            Some(bytes) => {
                assert_eq!(bytes, known.content, "a store that was dropped and kept");
                true
            }
            None => free(cache) == all,
        };
        until("a store that was dropped is kept or gives its room back", is_whole_or_nothing).await;
        cache.remove(vec![known.key]).await;
        free_becomes("after a store was dropped", cache, all).await;
    }
}

async fn everything_at_once(cache: &Arc<dyn CacheTier>, all: u64) {
    const KEYS: u64 = 20;
    let known: Arc<Vec<KnownSample>> =
        Arc::new((0..KEYS).map(|id| sample(200 + id, 1000 + id * 300)).collect());
    let worker = |seed: u64| {
        let (cache, known) = (Arc::clone(cache), Arc::clone(&known));
        async move {
            for step in 0..200u64 {
                let draw = mix(seed << 32 | step);
                let known = &known[(draw % KEYS) as usize];
                match draw >> 32 & 3 {
                    0 | 1 => store(&*cache, known).await,
                    2 => cache.remove(vec![known.key]).await,
                    _ => {}
                }
                if let Some(bytes) = fetch(&*cache, known).await {
                    assert_eq!(bytes, known.content, "{} under concurrent stores and removals", known.key);
                }
                tokio::task::yield_now().await;
            }
        }
    };
    let workers: Vec<_> = (0..4).map(|seed| tokio::spawn(worker(seed))).collect();
    for worker in workers {
        if let Err(error) = worker.await {
            panic!("one of several users of a cache: {error}");
        }
    }
    cache.remove(known.iter().map(|known| known.key).collect()).await;
    free_becomes("after everything at once", &**cache, all).await;
}
