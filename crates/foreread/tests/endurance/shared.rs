//! A source that serves other processes: they get the same samples as callers in this process.
//! Workers are threads with their own connections. The tests of `crates/store` cover the effects of
//! processes on each other.

use foreread::{Memory, Source};
use foreread_store::{Client, Server, ServerSettings, StoreErrorKind};
use foreread_tier_testing::{FakeOrigin, TestRandom};
use foreread_types::SampleId;

use crate::executors::{broken, ends};
use crate::small::{builder, eight_callers, origin, shuffled};

fn share(source: &Source) -> Server {
    source.share(ServerSettings::default().with_shared_bytes(1 << 20)).unwrap()
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.address()).unwrap()
}

#[track_caller]
fn get(client: &Client, origin: &FakeOrigin, ids: &[u64]) {
    let got = client.get(&ids.iter().copied().map(SampleId).collect::<Vec<_>>());
    assert_eq!(got.len(), ids.len());
    for (held, &id) in got.iter().zip(ids) {
        assert_eq!(held.as_ref().unwrap().as_ref(), origin.expected(SampleId(id)), "sample {id}");
    }
}

#[test]
// semantics: WORKER-1
fn concurrent_workers_get_announced_samples_read_once() {
    let origin = origin(600);
    let mut draw = TestRandom::new();
    for look_ahead in [0, 50_000, 1 << 20] {
        let source = builder(&origin).memory(Memory::Bytes(100_000)).look_ahead(look_ahead).source().unwrap();
        let server = share(&source);
        let order = shuffled(&mut draw, 600);
        source.announce(vec![order.clone()], true).unwrap();
        eight_callers(&order, || connect(&server), |client, ids| get(client, &origin, ids));
        if look_ahead == 1 << 20 {
            let report = source.report();
            let direct = report.direct.unwrap();
            let direct = direct.origin.samples.unwrap_or(0) + direct.memory.samples.unwrap_or(0);
            assert_eq!((direct, report.origin_requests), (0, 600), "seed {}", draw.seed);
        }
    }
}

#[test]
// semantics: FAIL-19
fn panicking_read_is_a_workers_error() {
    let error = ends(|| {
        let source = broken("read").source().unwrap();
        let server = share(&source);
        connect(&server).get(&[SampleId(3)]).remove(0).map(drop).unwrap_err().to_string()
    });
    assert!(error.contains("the tier panicked: read was not thought of"), "{error}");
}

#[test]
fn worker_gets_missing_ids_as_errors_and_the_report() {
    let origin = origin(10);
    let source = builder(&origin).source().unwrap();
    let server = share(&source);
    let client = connect(&server);
    for announced in [false, true] {
        if announced {
            source.announce(vec![(0..10).collect()], false).unwrap();
        }
        let got = client.get(&[SampleId(99), SampleId(3)]);
        let error = got[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Sample);
        assert!(error.to_string().contains("sample 99: invalid: the dataset has 10"), "{error}");
        assert_eq!(got[1].as_ref().unwrap().as_ref(), origin.expected(SampleId(3)));
    }
    let report = String::from_utf8(client.call("report", b"").unwrap()).unwrap();
    assert!(report.contains("\"origin_requests\""), "{report}");
    assert!(client.call("pets", b"").unwrap_err().to_string().contains("pets"));
}

#[test]
fn end_of_sharing_ends_workers_but_not_the_source() {
    let origin = origin(50);
    let source = builder(&origin).source().unwrap();
    for _ in 0..3 {
        let server = share(&source);
        let client = connect(&server);
        get(&client, &origin, &[1, 2, 3]);
        drop(server);
        assert_eq!(client.get(&[SampleId(1)])[0].as_ref().unwrap_err().kind(), StoreErrorKind::Gone);
    }
    let server = share(&source);
    drop(source);
    get(&connect(&server), &origin, &[4, 5]);
}
