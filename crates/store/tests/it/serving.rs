//! One process, several threads: contents, errors, calls, interruption, the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_store::{Client, StoreErrorKind};
use foreread_tier::{ArenaBuffers, ErrorKind};
use foreread_tier_testing::until;
use foreread_types::SampleId;

use crate::rig::{FORGOTTEN, MISSING, PARKED, TestEngine, client, content, get, get_all, server, sized};

const MIB: u64 = 1 << 20;

#[test]
fn samples_arrive_unchanged() {
    for engine in [TestEngine::direct(), TestEngine::threaded()] {
        let server = server(engine, 16 * MIB);
        let client = client(&server);
        let ids: Vec<_> = (0..2000).map(SampleId).collect();
        // Every sample twice, with empty ones, and all held at once. They are short.
        let held = get_all(&client, &[&ids[..], &ids[..]].concat());
        assert!(held.iter().all(|held| !held.is_shared()));
        let longer: Vec<_> = (0..900).map(|number| sized(8193 + number, number)).collect();
        let longer = get_all(&client, &longer);
        assert!(longer.iter().all(|held| held.is_shared()));
        drop((held, longer));
        drop(client);
        until("all is given back", || server.status().used_bytes == 0 && server.status().clients == 0);
    }
}

#[test]
fn empty_request_returns_nothing() {
    let server = server(TestEngine::direct(), MIB);
    assert!(client(&server).get(&[]).is_empty());
}

#[test]
// semantics: WORKER-1
fn many_workers_and_threads_get_their_samples() {
    let server = server(TestEngine::threaded(), 4 * MIB);
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let client = client(&server);
            for thread in 0..3 {
                let client = client.clone();
                scope.spawn(move || {
                    for round in 0..30 {
                        let first = worker * 1000 + thread * 300 + round;
                        let ids: Vec<_> = (first..first + 1 + round * 3).map(SampleId).collect();
                        let held = get_all(&client, &ids);
                        if round % 3 == 0 {
                            let _ = get(&client, sized(MIB, thread));
                        }
                        drop(held);
                        assert_eq!(client.call("echo", &[worker as u8; 100]).unwrap(), [worker as u8; 100]);
                    }
                });
            }
        }
    });
    until("all is given back", || server.status().used_bytes == 0);
}

#[test]
// semantics: WORKER-2
fn failed_sample_harms_no_other_and_reports_why() {
    let server = server(TestEngine::threaded(), MIB);
    let client = client(&server);
    let got = client.get(&[SampleId(1), MISSING, FORGOTTEN, SampleId(2)]);
    assert_eq!(got[0].as_ref().unwrap().as_ref(), content(SampleId(1)));
    assert_eq!(got[3].as_ref().unwrap().as_ref(), content(SampleId(2)));
    let missing = got[1].as_ref().unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::Sample);
    assert_eq!(missing.tier_error().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(missing.to_string(), "local: images/a.jpg: not found: no such file");
    let forgotten = got[2].as_ref().unwrap_err();
    assert!(forgotten.to_string().contains("unanswered"), "{forgotten}");
}

#[test]
// semantics: WORKER-2
fn slow_sample_delays_no_other() {
    let engine = TestEngine::threaded();
    let server = server(Arc::clone(&engine), MIB);
    let (slow, quick) = (client(&server), client(&server));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&slow, SampleId(PARKED)));
        until("it is requested", || engine.waiting() == 1);
        get_all(&quick, &(0..100).map(SampleId).collect::<Vec<_>>());
        // It does not delay another thread of the same worker either.
        get_all(&slow, &(0..100).map(SampleId).collect::<Vec<_>>());
        assert!(!waiting.is_finished());
        engine.unpark();
        waiting.join().unwrap();
    });
}

#[test]
fn requests_beyond_the_limit_are_sent_in_steps() {
    let engine = TestEngine::threaded();
    let server = server(Arc::clone(&engine), 16 * MIB);
    let client = client(&server);
    let ids: Vec<_> = (0..3000).map(|number| SampleId(PARKED + number)).collect();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get_all(&client, &ids));
        let mut most = 0;
        while !waiting.is_finished() {
            most = most.max(engine.waiting());
            engine.unpark();
        }
        assert!((1..=256).contains(&most), "{most} at once");
        assert_eq!(waiting.join().unwrap().len(), 3000);
    });
}

#[test]
fn waiting_caller_can_be_stopped() {
    let engine = TestEngine::threaded();
    let server = server(Arc::clone(&engine), MIB);
    let client = client(&server);
    let mut requested = 0;
    let got = client.get_with(&[SampleId(1), SampleId(PARKED)], &mut || {
        requested += 1;
        requested == 2
    });
    assert_eq!(got[0].as_ref().unwrap().as_ref(), content(SampleId(1)));
    assert_eq!(got[1].as_ref().unwrap_err().kind(), StoreErrorKind::Interrupted);
    drop(got);
    let stopped = client.call_with("park", b"", &mut || true).unwrap_err();
    assert_eq!(stopped.kind(), StoreErrorKind::Interrupted);
    // Late samples have no caller and are released.
    engine.unpark();
    get(&client, SampleId(3));
    drop(client);
    until("all is given back", || server.status().used_bytes == 0);
}

#[test]
fn late_samples_of_a_stopped_caller_are_released() {
    let engine = TestEngine::threaded();
    let server = server(Arc::clone(&engine), MIB);
    let client = client(&server);
    let ids: Vec<_> = (0..200).map(|number| SampleId(PARKED + number)).collect();
    let got = client.get_with(&ids, &mut || true);
    assert!(got.iter().all(|one| one.as_ref().is_err_and(|e| e.kind() == StoreErrorKind::Interrupted)));
    until("all are requested", || engine.waiting() == 200);
    engine.unpark();
    for _ in 0..10 {
        get(&client, SampleId(5));
    }
    // Some may be kept until the next request.
    until("nearly all is given back", || server.status().used_bytes <= 8192);
}

#[test]
fn calls_are_answered_with_any_length() {
    let server = server(TestEngine::threaded(), MIB);
    let client = client(&server);
    assert_eq!(client.call("echo", b"").unwrap(), b"");
    let longest = vec![7; 65_270];
    assert_eq!(client.call("echo", &longest).unwrap(), longest);
    let long = client.call("repeat", &5_000_000_u64.to_le_bytes()).unwrap();
    assert!(long == content(sized(5_000_000, 0)));
    let unknown = client.call("labels", b"").unwrap_err();
    assert_eq!(unknown.tier_error().unwrap().kind(), ErrorKind::Unsupported);
    assert!(client.call("drop", b"").unwrap_err().to_string().contains("unanswered"));
    let too_long = client.call("echo", &vec![0; 65_271]).unwrap_err();
    assert_eq!(too_long.kind(), StoreErrorKind::Invalid);
    assert_eq!(client.call(&"x".repeat(257), b"").unwrap_err().kind(), StoreErrorKind::Invalid);
    get(&client, SampleId(1));
}

#[test]
fn calls_beyond_the_limit_wait() {
    let server = server(TestEngine::threaded(), MIB);
    let client = client(&server);
    std::thread::scope(|scope| {
        for thread in 0..100_u8 {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(client.call("echo", &[thread]).unwrap(), [thread]);
                }
            });
        }
    });
}

#[test]
// semantics: WORKER-5
fn server_end_ends_all_waits_at_once() {
    let engine = TestEngine::threaded();
    let server = server(Arc::clone(&engine), MIB);
    let address = server.address();
    let client = client(&server);
    let held = get(&client, SampleId(9));
    std::thread::scope(|scope| {
        let waiting = [(); 3]
            .map(|()| scope.spawn(|| client.get(&[SampleId(PARKED)]).pop().unwrap().unwrap_err().kind()));
        let calling = scope.spawn(|| client.call("park", b"").unwrap_err().kind());
        until("all wait", || engine.waiting() == 4);
        drop(server);
        for waiting in waiting.into_iter().chain([calling]) {
            assert_eq!(waiting.join().unwrap(), StoreErrorKind::Gone);
        }
    });
    // Held samples stay valid.
    assert_eq!(held.as_ref(), content(SampleId(9)));
    let gone = client.get(&[SampleId(1)]).pop().unwrap().unwrap_err();
    assert!(gone.to_string().starts_with("the main process is gone"), "{gone}");
    assert_eq!(Client::connect(&address).unwrap_err().kind(), StoreErrorKind::Gone);
    // Late answers have no worker.
    engine.unpark();
}

#[test]
fn requests_of_a_gone_worker_are_unwanted() {
    let engine = TestEngine::threaded();
    let server = server(Arc::clone(&engine), MIB);
    let leaving = client(&server);
    leaving.get_with(&[SampleId(PARKED)], &mut || true);
    until("it is requested", || engine.waiting() == 1);
    let request = engine.parked().pop().unwrap();
    assert!(request.is_wanted());
    drop(leaving);
    until("the request is unwanted", || !request.is_wanted());
    request.answer(Ok(content(SampleId(1))));
    get(&client(&server), SampleId(2));
    until("nothing is taken for it", || server.status().used_bytes == 0);
}

#[test]
fn round_trips_lose_no_wake_up() {
    let server = server(TestEngine::direct(), MIB);
    let client = client(&server);
    // A lost wake-up costs 100 ms each time. A round trip takes some tens of microseconds.
    let is_late = |id: &u64| {
        let begun = Instant::now();
        get(&client, SampleId(id % 50));
        begun.elapsed() >= Duration::from_millis(100)
    };
    let late = (0..2000).filter(is_late).count();
    assert!(late <= 200, "{late} of 2000 round trips");
}

#[test]
fn panicking_engine_ends_the_server_and_no_worker_hangs() {
    struct Broken;
    impl foreread_store::SampleProvider for Broken {
        fn get(&self, _: Vec<foreread_store::SampleRequest>) {
            panic!("as it should");
        }
        fn call(&self, _: foreread_store::WorkerCall) {}
    }
    let buffers = Arc::new(ArenaBuffers::default());
    let server = foreread_store::Server::start(Arc::new(Broken), buffers, Default::default()).unwrap();
    let client = client(&server);
    assert!(client.call("x", b"").unwrap_err().to_string().contains("unanswered"));
    assert_eq!(client.get(&[SampleId(1)]).pop().unwrap().unwrap_err().kind(), StoreErrorKind::Gone);
}
