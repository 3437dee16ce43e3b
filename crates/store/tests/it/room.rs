//! Clients that hold too much: samples arrive through the socket, never wrong and never not at all.

use std::sync::Arc;

use foreread_tier_testing::until;
use foreread_types::SampleId;

use crate::rig::{PARKED, TestEngine, client, get, get_all, server, sized};

const MIB: u64 = 1 << 20;

#[test]
// semantics: WORKER-3
fn full_memory_still_serves_all_workers() {
    let server = server(TestEngine::threaded(), MIB);
    let (greedy, modest) = (client(&server), client(&server));
    let ids: Vec<_> = (0..50).map(|number| sized(100_000, number)).collect();
    let all = get_all(&greedy, &ids);
    let shared = all.iter().filter(|held| held.is_shared()).count();
    assert!((9..=10).contains(&shared), "{shared} of 1 MiB");
    let others = get_all(&modest, &ids);
    assert_eq!(others.iter().filter(|held| held.is_shared()).count(), 0);
    assert_eq!(server.status().over_the_socket, 50 + 50 - shared as u64);
    drop(all);
    drop(greedy);
    until("it gives back", || server.status().used_bytes == 0);
    assert!(get(&modest, ids[0]).is_shared());
}

#[test]
// semantics: WORKER-3
fn huge_sample_uses_the_socket_and_delays_no_other() {
    let server = server(TestEngine::threaded(), MIB);
    let (one, other) = (client(&server), client(&server));
    std::thread::scope(|scope| {
        let giants = scope.spawn(|| {
            let giants = get_all(&one, &[sized(60 * MIB, 1), sized(9000, 3), sized(3 * MIB, 2)]);
            assert!(!giants[0].is_shared() && giants[1].is_shared() && !giants[2].is_shared());
        });
        while !giants.is_finished() {
            get(&other, SampleId(11));
        }
        giants.join().unwrap();
    });
    assert_eq!(server.status().over_the_socket, 2);
}

#[test]
fn sample_as_large_as_the_memory_fits() {
    let server = server(TestEngine::direct(), MIB);
    let client = client(&server);
    assert!(get(&client, sized(MIB, 0)).is_shared());
    assert!(!get(&client, sized(MIB + 1, 0)).is_shared());
    // The first was released with the second request.
    assert!(get(&client, sized(MIB - 63, 0)).is_shared());
}

#[test]
// semantics: WORKER-3
fn memory_smaller_than_any_sample_still_serves() {
    let server = server(TestEngine::threaded(), 0);
    assert_eq!(server.status().shared_bytes, 0);
    let client = client(&server);
    let ids: Vec<_> = (0..300).map(SampleId).chain((0..20).map(|number| sized(50_000, number))).collect();
    get_all(&client, &ids);
}

#[test]
fn unreleased_room_of_idle_workers_is_small() {
    let server = server(TestEngine::threaded(), 4 * MIB);
    let clients: Vec<_> = (0..10).map(|_| client(&server)).collect();
    for client in &clients {
        drop(get_all(client, &(0..100).map(|number| sized(20_000, number)).collect::<Vec<_>>()));
    }
    until("all but a little is given back", || {
        server.status().used_bytes <= 10 * 4 * MIB / 256 + 10 * 20_032
    });
}

#[test]
fn worker_that_stops_reading_is_bounded() {
    let engine = TestEngine::threaded();
    let server = server(Arc::clone(&engine), MIB);
    let silent = client(&server);
    // It requests, stops, and never reads: its answers stay in the socket and its slots are taken.
    let ids: Vec<_> = (0..256).map(|number| SampleId(PARKED + number)).collect();
    silent.get_with(&ids, &mut || true);
    until("all are requested", || engine.waiting() == 256);
    engine.unpark();
    let other = client(&server);
    for round in 0..5 {
        get_all(&other, &(0..20).map(|number| sized(100_000, number + round)).collect::<Vec<_>>());
    }
    // When it reads again, it gets its samples.
    get_all(&silent, &(0..500).map(SampleId).collect::<Vec<_>>());
}
