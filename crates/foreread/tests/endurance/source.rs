//! Samples by id: any request after any announcement gets the right samples.

use std::collections::HashSet;

use foreread::{Memory, Source};
use foreread_tier_testing::{FakeOrigin, NEVER, TestRandom};
use foreread_types::SampleId;

use crate::small::{builder, eight_callers, origin, shuffled};

/// Requests samples and checks that each arrives once, with its bytes.
#[track_caller]
fn get(source: &Source, origin: &FakeOrigin, ids: &[u64]) {
    let (mut requested, mut missing) = (source.request(ids), (0..ids.len()).collect::<HashSet<_>>());
    while !missing.is_empty() {
        let Some((at, came)) = requested.wait(NEVER) else { panic!("{missing:?} of {ids:?} never came") };
        assert!(missing.remove(&at), "{at} came twice");
        assert_eq!(came.unwrap(), origin.expected(SampleId(ids[at])), "sample {}", ids[at]);
    }
    assert!(requested.wait(NEVER).is_none());
    assert_eq!(requested.remaining(), 0);
}

fn direct(source: &Source) -> u64 {
    let direct = source.report().direct.unwrap();
    [direct.origin, direct.memory].iter().map(|count| count.samples.unwrap_or(0)).sum()
}

#[test]
// semantics: ID-1
fn announced_samples_are_read_once_and_not_directly() {
    let origin = origin(300);
    let source = builder(&origin).memory(Memory::Bytes(10 << 20)).source().unwrap();
    let mut draw = TestRandom::new();
    let orders: Vec<Vec<u64>> = (0..3).map(|_| shuffled(&mut draw, 300)).collect();
    source.announce(orders.clone(), true).unwrap();
    for order in &orders {
        for ids in order.chunks(7) {
            get(&source, &origin, ids);
        }
    }
    let report = source.report();
    assert_eq!((direct(&source), report.origin_requests), (0, 300), "seed {}", draw.seed);
    assert_eq!(report.epochs.len(), 3);
}

#[test]
// semantics: ID-1
fn unannounced_samples_are_read_on_request_and_cached() {
    let origin = origin(100);
    let source = builder(&origin).memory(Memory::Bytes(10 << 20)).source().unwrap();
    for _ in 0..2 {
        for id in (0..100).rev() {
            get(&source, &origin, &[id]);
        }
    }
    let report = source.report();
    assert_eq!((direct(&source), report.origin_requests), (200, 100));
    assert_eq!(report.direct.unwrap().memory.samples, Some(100));
}

#[test]
// semantics: ID-2
fn requests_out_of_the_announced_order_get_their_samples() {
    let origin = origin(200);
    let source = builder(&origin).memory(Memory::Bytes(0)).look_ahead(4000).source().unwrap();
    source.announce(vec![(0..200).collect()], false).unwrap();
    for id in (0..200).rev() {
        get(&source, &origin, &[id, id, 0]);
    }
}

#[test]
// semantics: ID-3
fn next_order_finds_samples_that_are_still_in_memory() {
    let origin = origin(200);
    // Capacity for half of them. The order of each epoch is known only when it begins.
    let half = origin_bytes(&origin) / 2 + 200 * 320 / 2;
    let source = builder(&origin).memory(Memory::Bytes(half)).look_ahead(20_000).source().unwrap();
    let mut draw = TestRandom::new();
    let mut read = Vec::new();
    for _ in 0..4 {
        let order = shuffled(&mut draw, 200);
        source.announce(vec![order.clone()], true).unwrap();
        for ids in order.chunks(8) {
            get(&source, &origin, ids);
        }
        read.push(source.report().origin_requests);
    }
    let later: Vec<u64> = read.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(read[0], 200);
    assert!(later.iter().all(|&requests| requests <= 120), "{read:?} of seed {}", draw.seed);
}

fn origin_bytes(origin: &FakeOrigin) -> u64 {
    (0..origin.samples()).map(|id| origin.expected(SampleId(id)).len() as u64).sum()
}

#[test]
// semantics: ID-2
fn eight_concurrent_callers_get_their_samples() {
    let origin = origin(600);
    let mut draw = TestRandom::new();
    for look_ahead in [0, 50_000, 1 << 20] {
        let source = builder(&origin).memory(Memory::Bytes(100_000)).look_ahead(look_ahead).source().unwrap();
        let order = shuffled(&mut draw, 600);
        source.announce(vec![order.clone()], true).unwrap();
        eight_callers(&order, || source.clone(), |source, ids| get(source, &origin, ids));
        if look_ahead == 1 << 20 {
            assert_eq!((direct(&source), source.report().origin_requests), (0, 600), "seed {}", draw.seed);
        }
    }
}

#[test]
// semantics: ID-2
fn new_announcement_delays_no_caller() {
    let origin = origin(300);
    let source = builder(&origin).memory(Memory::Bytes(50_000)).look_ahead(30_000).source().unwrap();
    let mut draw = TestRandom::new();
    std::thread::scope(|scope| {
        for worker in 0..3u64 {
            let (source, origin) = (source.clone(), &origin);
            scope.spawn(move || {
                for id in 0..200 {
                    get(&source, origin, &[(id * 7 + worker * 100) % 300, (id * 11) % 300]);
                }
            });
        }
        for round in 0..30 {
            let orders = match round % 3 {
                0 => Vec::new(),
                1 => vec![shuffled(&mut draw, 300), vec![1, 1, 2]],
                _ => vec![shuffled(&mut draw, 300); 2],
            };
            source.announce(orders, round % 2 == 0).unwrap();
        }
    });
}

#[test]
fn missing_id_is_an_error_and_other_samples_arrive() {
    let origin = origin(10);
    let source = builder(&origin).source().unwrap();
    assert!(source.announce(vec![vec![3, 10]], false).unwrap_err().to_string().contains("10"));
    let mut requested = source.request(&[99, 3]);
    let mut came = Vec::new();
    while requested.remaining() > 0 {
        came.extend(requested.wait(NEVER));
    }
    came.sort_by_key(|(at, _)| *at);
    assert!(came[0].1.as_ref().unwrap_err().to_string().contains("99"), "{came:?}");
    assert_eq!(came[1].1.as_ref().unwrap(), &origin.expected(SampleId(3)));
}

#[test]
fn cancelled_request_leaves_nothing_in_memory() {
    let origin = origin(50);
    let source = builder(&origin).source().unwrap();
    source.announce(vec![(0..50).collect()], false).unwrap();
    for id in 0..20 {
        drop(source.request(&[id, 49]));
    }
    get(&source, &origin, &(20..50).collect::<Vec<_>>());
}

#[test]
// semantics: ID-3
fn announced_samples_are_cached_until_they_are_unused() {
    let origin = origin(100);
    // Capacity for the longer half, with the overhead of each sample.
    let room = origin_bytes(&origin) / 2 + 50 * 432;
    let source = builder(&origin).memory(Memory::Bytes(room)).look_ahead(1 << 20).source().unwrap();
    let half = |first: u64| (first..100).step_by(2).collect::<Vec<_>>();
    let epoch = |ids: Vec<u64>| {
        let before = source.report().origin_requests;
        source.announce(vec![ids.clone()], true).unwrap();
        get(&source, &origin, &ids);
        source.report().origin_requests - before
    };
    assert_eq!((epoch(half(0)), epoch(half(0))), (50, 0));
    // Another half, then the first again: its samples are still cached.
    assert!(epoch(half(1)) >= 40);
    assert_eq!(epoch(half(0)), 0);
    // Permanently: after some epochs its samples fill the memory.
    let read: Vec<u64> = (0..12).map(|_| epoch(half(1))).collect();
    assert_eq!(*read.last().unwrap(), 0, "{read:?}");
}

/// Guards against this fault: 10,000 unannounced ids of one call were as many samples in memory,
/// outside of all limits.
#[test]
// semantics: ID-5
fn unannounced_samples_hold_at_most_the_look_ahead() {
    const LENGTH: u64 = 1000;
    let origin = FakeOrigin::new((0..600).map(|id| (format!("{id:04}"), LENGTH)));
    let look_ahead = 40 * LENGTH;
    let source = builder(&origin).memory(Memory::Bytes(0)).look_ahead(look_ahead).source().unwrap();
    let ids: Vec<u64> = (0..600).collect();
    // Two requests without a waiter hold the budget. Every other request still gets its samples.
    let idle = [source.request(&ids), source.request(&ids)];
    get(&source, &origin, &[7, 8, 9]);
    let begun = origin.counts().tally().requests;
    assert!(begun < 200, "{begun} reads of samples without a waiter");
    for mut requested in idle {
        let mut missing: HashSet<usize> = (0..ids.len()).collect();
        while let Some((at, came)) = requested.wait(NEVER) {
            assert!(missing.remove(&at));
            assert_eq!(came.unwrap(), origin.expected(SampleId(ids[at])));
        }
        assert!(missing.is_empty());
    }
}
