//! The cost of indexing, in requests and bytes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::{Catalog, IndexOptions, SampleChecksum};
use foreread_tier::Span;
use foreread_types::SampleId;
use tokio::time::Instant;

use crate::origin::{Content, Held};
use crate::shards::{end, header};

/// A tar of `members` members of `size` bytes, with holes for their data.
fn hollow(members: u64, size: impl Fn(u64) -> u64) -> Content {
    let mut content = Content::default();
    for number in 0..members {
        let size = size(number);
        content.push(header(&format!("{number:08}.jpg"), size, b'0'));
        content.hole(size.next_multiple_of(512));
    }
    content.push(end());
    content
}

fn check(catalog: &Catalog, members: u64) {
    assert_eq!(catalog.len(), members);
    for id in [0, 63, 64, 65, members / 2, members - 1] {
        assert_eq!(catalog.key(SampleId(id)).unwrap().as_deref(), Some(&*format!("{id:08}")));
    }
}

#[tokio::test(start_paused = true)]
// semantics: SHARD-9
async fn ten_gigabytes_of_large_members_cost_their_headers() {
    let origin = Held::new([("a.tar", hollow(1250, |_| 8_000_000))]).slow(Duration::from_millis(10));
    let began = Instant::now();
    let catalog = origin.index(&IndexOptions::default()).await.unwrap();
    let (requests, bytes) = (origin.requests.load(Relaxed), origin.bytes.load(Relaxed));
    check(&catalog, 1250);
    assert!(requests <= 1260 && bytes <= 2_000_000, "{requests} requests, {bytes} bytes");
    assert!(began.elapsed() <= Duration::from_secs(13));
}

#[tokio::test(start_paused = true)]
// semantics: SHARD-9
async fn large_shard_of_small_members_is_scanned_in_parallel() {
    let sizes = |number: u64| 60_000 + number * 7919 % 100_000;
    let origin = Held::new([("a.tar", hollow(90_000, sizes))]).slow(Duration::from_millis(10));
    let began = Instant::now();
    let catalog = origin.index(&IndexOptions::default()).await.unwrap();
    let (requests, bytes) = (origin.requests.load(Relaxed), origin.bytes.load(Relaxed));
    check(&catalog, 90_000);
    // One scan in sequence would take 900 s.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(requests < 100_000 && bytes < 300_000_000, "{requests} requests, {bytes} bytes of 10 GB");
}

#[tokio::test]
async fn tiny_members_cost_a_request_per_250() {
    let mut bytes = Vec::new();
    for number in 0..250_000 {
        bytes.extend(header(&format!("{number:08}.x"), 0, b'0'));
    }
    bytes.extend(end());
    let origin = Held::new([("a.tar", bytes)]);
    let catalog = origin.index(&IndexOptions::default()).await.unwrap();
    check(&catalog, 250_000);
    let (requests, bytes) = (origin.requests.load(Relaxed), origin.bytes.load(Relaxed));
    assert!(requests < 1000 && bytes < 150_000_000, "{requests} requests, {bytes} bytes");
}

#[tokio::test(start_paused = true)]
async fn shards_are_indexed_in_parallel() {
    let shards = (0..64).map(|number| (format!("{number:02}.tar"), hollow(100, |_| 1_000_000)));
    let origin = Held::new(shards).slow(Duration::from_millis(10));
    let began = Instant::now();
    assert_eq!(origin.index(&IndexOptions::default()).await.unwrap().len(), 6400);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

/// Data that looks like an archive must not count as a part of the archive that contains it.
#[tokio::test]
// semantics: SHARD-9
async fn nested_archive_is_one_sample() {
    let inner = hollow(40, |_| 0);
    let inner = Bytes::from(inner.read(0, inner.size));
    let mut content = Content::default();
    // Enough members that headers are guessed.
    for number in 0..14_000 {
        content.push(header(&format!("{number:08}.tar"), inner.len() as u64, b'0'));
        content.push(inner.clone());
        content.hole(inner.len().next_multiple_of(512) as u64 - inner.len() as u64);
    }
    content.push(end());
    let origin = Held::new([("a.tar", content)]);
    check(&origin.index(&IndexOptions::default()).await.unwrap(), 14_000);
}

#[tokio::test(start_paused = true)]
async fn records_are_scanned_in_parallel() {
    let mut content = Content::default();
    let mut places = Vec::new();
    for number in 0..10_000u64 {
        let length = 50_000 + number * 7919 % 30_001;
        let head = length.to_le_bytes();
        content.push(
            [&head[..], &crc32c::crc32c(&head).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()]
                .concat(),
        );
        places.push(content.size..content.size + length);
        content.hole(length);
        content.push(number.to_le_bytes()[..4].to_vec());
    }
    let origin = Held::new([("a.tfrecord", content)]).slow(Duration::from_millis(10));
    let began = Instant::now();
    let catalog = origin.index(&IndexOptions::default()).await.unwrap();
    // One scan in sequence would take 100 s.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    for (id, place) in places.into_iter().enumerate() {
        assert_eq!(catalog.entry(SampleId(id as u64)).unwrap().span, Span::Range(place));
    }
    let sum = |number: u32| number.wrapping_sub(0xa282_ead8).rotate_left(15);
    assert_eq!(catalog.checksum(SampleId(9_999)), Some(SampleChecksum::Crc32c(sum(9_999))));
}
