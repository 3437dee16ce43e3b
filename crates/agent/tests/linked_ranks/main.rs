//! Ranks of several nodes, in one process, whose nodes' caches read from each other.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

mod neighbours;
mod rig;

use std::sync::Arc;
use std::time::Duration;

use foreread::calibration::{Calibration, OriginSpeed, Point};
use foreread_tier_testing::store::{Archive, Fault, HttpStore, Kind, NumberedObjects, When};
use foreread_tier_testing::until;

use self::rig::{Job, LENGTH, SAMPLES, Without, read, samples_read, store};

#[test]
// semantics: RANK-1, RANK-2, RANK-39
fn linked_caches_read_what_one_cache_would() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    let epochs = 4;
    let of_nodes: [&[u32]; 6] =
        [&[0, 0, 1, 1], &[0, 0, 1], &[0, 0, 0, 1], &[0, 0, 0, 0], &[0, 1], &[0, 1, 2, 3]];
    for nodes in of_nodes {
        for kept in [SAMPLES, SAMPLES / 2] {
            let memory = kept / nodes.len() as u64 + u64::from(kept == SAMPLES) * 20;
            let before = store.requests().get;
            let job = Job { epochs, memory, ..Job::new(&store, meet.path(), nodes) };
            let reports = job.run();
            let from_store = store.requests().get - before;
            // A hedge may end before its request has left.
            let hedged: u64 = reports.iter().map(|report| report.hedged).sum();
            let reported = read(&reports);
            assert!(
                (from_store..=from_store + hedged).contains(&reported),
                "{nodes:?}: {reported}, {from_store}"
            );
            let bound = SAMPLES + (epochs - 1) * (SAMPLES - kept);
            println!("{nodes:?}, {kept} samples in memory: {from_store} reads, at best {bound}");
            // The plan of small memories leaves a few samples' room. A sample that is read for one
            // rank may be there for the next.
            let bounds = bound - bound / 50..=bound + bound / 50 + hedged;
            assert!(bounds.contains(&from_store), "{nodes:?}: {from_store}, {bound}");
            let direct: u64 =
                reports.iter().map(|report| report.agent.as_ref().unwrap().direct_samples).sum();
            assert_eq!(direct, 0, "{nodes:?}");
        }
    }
}

/// A store with 50 ms latency, limited by requests and not by bytes.
fn late() -> Calibration {
    let point = Point { parallelism: 8, bytes_per_second: 500_000_000, spread: 0.0, samples: 100 };
    let origin = OriginSpeed {
        url: "s3://shards".to_owned(),
        sample_bytes: LENGTH,
        latency_seconds: 0.05,
        stream_bytes_per_second: 80_000_000,
        read: vec![point],
        large: None,
        servers: None,
    };
    Calibration {
        version: Calibration::VERSION,
        made: 0,
        origin: Some(origin),
        memory: None,
        disk: Vec::new(),
    }
}

/// Guards against this fault: a rank requested samples before its cache knew that it reads blocks.
#[test]
// semantics: AGENT-27, RANK-39
fn linked_caches_read_blocks_of_shards_once() {
    let (store, meet) = (HttpStore::start(), tempfile::tempdir().unwrap());
    store.bucket("shards");
    let (shards, members) = (8, SAMPLES / 8);
    let mut contents = Vec::new();
    for shard in 0..shards {
        // Of different lengths, so that no sample has the bytes of one in another shard.
        let members = NumberedObjects::named(members, LENGTH - shard, |id| format!("{id:04}.bin"));
        contents.extend((0..members.count()).map(|id| members.bytes(id)));
        store.put_content("shards", &format!("{shard}.tar"), Arc::new(Archive::new(members)));
    }
    for nodes in [&[0, 0][..], &[0, 0, 0, 0], &[0, 0, 1, 1]] {
        let (contents, calibration) = (contents.clone(), Some(Arc::new(late())));
        let (bucket, memory) = ("shards", SAMPLES);
        let job = Job { bucket, contents, memory, calibration, ..Job::new(&store, meet.path(), nodes) };
        // Four in each.
        assert_eq!(read(&job.run()), 4 * shards, "{nodes:?}");
    }
}

/// The others keep the samples that the plan gives them.
#[test]
// semantics: RANK-39
fn cache_that_cannot_start_costs_its_ranks_reads_only() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    let without = Without::Host;
    let job = Job { without, memory: SAMPLES, ..Job::new(&store, meet.path(), &[0, 0, 1, 1, 2]) };
    let reports = job.run();
    // Two ranks of five read each of their samples in both epochs, and the others all samples once
    // at most.
    assert!(store.requests().get <= read(&reports));
    let read = samples_read(&reports);
    assert!((SAMPLES..=SAMPLES + 2 * SAMPLES * 2 / 5).contains(&read), "{read}");
    for rank in [2, 3] {
        let alone = &reports[rank..=rank];
        assert!(alone[0].agent.is_none() && samples_read(alone) == 2 * SAMPLES / 5);
    }
}

/// The host's own rank and the other nodes use it all the same.
#[test]
// semantics: RANK-39
fn rank_that_does_not_reach_the_cache_of_its_node_reads_storage() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    let without = Without::Way;
    let job = Job { without, memory: SAMPLES, ..Job::new(&store, meet.path(), &[0, 0, 1, 1]) };
    let reports = job.run();
    assert!(store.requests().get <= read(&reports));
    let direct = 2 * SAMPLES / 4;
    assert!(reports[3].agent.is_none() && samples_read(&reports[3..]) == direct);
    let read = samples_read(&reports);
    assert!(read <= SAMPLES + direct, "{read}");
    assert!(reports[2].agent.is_some() && reports[2].peers.unwrap().served > 0);
}

/// A rank without memory uses the caches of others.
#[test]
// semantics: RANK-39
fn nodes_without_memory_read_from_those_with_some() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    let memory_of = |rank: u32, _: u64| if rank < 2 { 2 * SAMPLES } else { 0 };
    let job = Job { memory_of, ..Job::new(&store, meet.path(), &[0, 0, 1, 2]) };
    assert_eq!(samples_read(&job.run()), SAMPLES);
}

#[test]
// semantics: RANK-4
fn dealing_by_locality_moves_fewer_samples_between_nodes() {
    let received = |locality| {
        let (store, meet) = (store(), tempfile::tempdir().unwrap());
        let job = Job { locality, memory: SAMPLES, ..Job::new(&store, meet.path(), &[0, 0, 1, 1]) };
        let reports = Job { epochs: 3, ..job }.run();
        assert_eq!(samples_read(&reports), SAMPLES);
        reports.iter().map(|report| report.peers.unwrap().received).sum::<u64>()
    };
    let (near, far) = (received(true), received(false));
    assert!(2 * near < far, "{near} and {far}");
}

/// Guards against this fault: the caches of nodes repeated requests that no report counted.
#[test]
// semantics: RANK-39, FAIL-4
fn requests_that_caches_repeat_are_in_their_reports() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    store.on(Kind::Get, When::Burst { length: 1, of: 12 }, Fault::Internal);
    let reports = Job { epochs: 1, ..Job::new(&store, meet.path(), &[0, 0, 1, 1]) }.run();
    let retried: u64 = reports.iter().map(|report| report.retried).sum();
    assert!(retried >= SAMPLES / 12, "{retried}");
    let hedged: u64 = reports.iter().map(|report| report.hedged).sum();
    let counted = read(&reports);
    assert!((counted - hedged..=counted).contains(&store.requests().get), "{counted}");
}

/// Guards against this fault: a store that waited for the same storage counted as slow, and its
/// samples were read twice.
#[test]
// semantics: RANK-17, RANK-18, AGENT-7
fn silent_storage_is_not_read_twice() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    let is_soak = std::env::var_os("FOREREAD_SOAK").is_some();
    let silence = Duration::from_secs(if is_soak { 30 } else { 4 });
    store.on(Kind::Get, When::Always, Fault::Late(silence));
    let nodes = [0, 0, 0, 0, 1, 1, 1, 1];
    store.numbered("few", NumberedObjects::new(48, LENGTH));
    let job = Job { look_ahead: 30, bucket: "few", ..Job::new(&store, meet.path(), &nodes) };
    let job = Job { contents: job.contents[..48].to_vec(), ..job };
    let reports = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a request", || store.requests().get > 0);
            std::thread::sleep(silence);
            store.mend();
        });
        job.run()
    });
    let direct: u64 = reports.iter().map(|report| report.agent.as_ref().unwrap().direct_samples).sum();
    // Late requests are sent again, within a budget, and after a read's deadline.
    let hedged: u64 = reports.iter().map(|report| report.hedged).sum();
    let retried: u64 = reports.iter().map(|report| report.retried).sum();
    let requests = store.requests().get;
    println!(
        "{requests} requests, {} reads, {hedged} hedges, {retried} after deadlines, {direct} without caches",
        read(&reports)
    );
    assert_eq!(read(&reports) - hedged - retried, 48);
}

#[test]
// semantics: RANK-37, RANK-39
fn ranks_with_other_disks_have_caches_that_are_linked() {
    let (store, directory) = (store(), tempfile::tempdir().unwrap());
    let path = directory.path().to_owned();
    std::fs::create_dir(path.join("meet")).unwrap();
    let meet = path.join("meet");
    let (disks, compute) = (Some(path.clone()), |_, _| Duration::from_millis(2));
    let job = Job { memory: 10, disks, compute, ..Job::new(&store, &meet, &[0; 4]) };
    let first = read(&job.run());
    assert!((SAMPLES..SAMPLES + SAMPLES / 10).contains(&first), "{first}");
    // The disks have nearly all samples, and the next run finds them.
    let second = read(&job.run());
    assert!(second <= SAMPLES / 4, "{second}");
}
