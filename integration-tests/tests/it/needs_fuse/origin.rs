//! The Lustre origin on the stand-in: the conformance suite, and the requests of each sample.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use foreread::backend::{HeapBuffers, OriginTier, Tier};
use foreread_lustre::open_lustre;
use foreread_lustre_testing::{Counts, LayoutSpec, StandIn, StandInOptions};
use foreread_tier_testing::{conformance, until};

use super::mount;
use crate::agent_node::Running;
use crate::packed::record;
use crate::support::{Samples, content, foreread, number, run};

#[test]
#[ignore = "needs FUSE"]
fn lustre_origin_conformance() {
    let directory = tempfile::tempdir().unwrap();
    let samples = conformance::samples(3);
    let write = |path: &str, content: &[u8]| {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    samples.iter().for_each(|sample| write(&sample.object.path, &sample.content));
    conformance::HIDDEN.iter().for_each(|&(path, size)| write(path, &vec![1; size as usize]));
    let stand_in = mount(directory.path(), StandInOptions::new(4));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let origin = open_lustre(stand_in.root(), Default::default(), Arc::new(HeapBuffers)).unwrap();
        assert_eq!((origin.name(), origin.profile().kernel_cached), ("lustre", false));
        assert_eq!(origin.profile().patience, Some(Duration::from_secs(1200)));
        conformance::origin(&origin, &samples).await;
        let paths: Vec<_> = samples.iter().map(|sample| Arc::clone(&sample.object.path)).collect();
        let layouts = origin.layouts(paths).unwrap().await;
        assert_eq!(layouts.len(), samples.len());
        for (layout, sample) in layouts.iter().zip(&samples) {
            let server = layout.as_ref().and_then(|layout| layout.server(0));
            assert!(server.is_some() || sample.object.size == 0, "{}", sample.object.path);
        }
        assert!(layouts.iter().flatten().count() > 0);
    });
}

/// The requests of an epoch without caches, from a saved catalog, and the number of samples.
fn requests(stand_in: &StandIn) -> (Counts, u64) {
    let directory = tempfile::tempdir().unwrap();
    let catalog = directory.path().join("x.foreread");
    let catalog = catalog.to_str().unwrap();
    run(&mut foreread(["index", stand_in.root().to_str().unwrap(), "-o", catalog])).ok();
    stand_in.reset_counts();
    let report =
        run(&mut foreread(["load", catalog, "--memory", "0", "--epochs", "1", "--report", "json"])).json();
    (stand_in.counts(), number(&report, "/samples"))
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-8
fn small_file_costs_an_open_and_a_close() {
    let samples = Samples::new();
    (0..4000u64).for_each(|id| samples.add(&format!("{:02}/{id:05}", id % 40), &content(id, 3000)));
    let stand_in = mount(samples.path(), StandInOptions::new(16));
    let (counts, of) = requests(&stand_in);
    assert_eq!((of, counts.opens, counts.flushes, counts.reads), (4000, 4000, 4000, 4000));
    // `foreread` itself looks at its target, and at nothing for each sample.
    assert!(counts.getattrs < 20 && counts.mdt_requests < 8_050, "{counts:?}");
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-7
fn shards_are_opened_once_and_their_samples_cost_one_read() {
    let samples = Samples::new();
    for shard in 0..64u64 {
        let records: Vec<u8> = (0..50).flat_map(|id| record(&content(shard * 50 + id, 5000))).collect();
        samples.add(&format!("train-{shard:03}.tfrecord"), &records);
    }
    let stand_in = mount(samples.path(), StandInOptions::new(16));
    let (counts, of) = requests(&stand_in);
    assert_eq!((of, counts.reads), (3200, 3200));
    // Threads that need one shard at the same time may each open it.
    assert!((64..200).contains(&counts.opens), "{counts:?}");
    assert!(counts.mdt_requests < 600, "{counts:?}");
}

#[test]
#[ignore = "needs FUSE"]
// semantics: FAIL-2, HPC-7
fn replaced_shard_is_noticed_while_it_is_kept_open() {
    let samples = Samples::new();
    let shard = |seed: u64| (0..400).flat_map(|id| record(&content(seed + id, 500))).collect::<Vec<u8>>();
    samples.add("a.tfrecord", &shard(0));
    let stand_in = mount(samples.path(), StandInOptions::new(4));
    let target = stand_in.root().join("a.tfrecord");
    let mut command = foreread(["load", target.to_str().unwrap(), "--memory", "0", "--look-ahead", "64KiB"]);
    command
        .args(["--batch-size", "4", "--compute-ms", "200", "--epochs", "2"])
        .env("RUST_LOG", "foreread_cli=debug");
    let new = samples.path().join("new");
    fs::write(&new, shard(5000)).unwrap();
    fs::File::open(&new).unwrap().set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
    let mut job = Running::start(command);
    until("it reads", || job.errors().contains("first batch"));
    fs::rename(&new, samples.path().join("a.tfrecord")).unwrap();
    until("it ends", || job.child.try_wait().unwrap().is_some());
    let error = job.errors();
    assert!(error.contains("a.tfrecord") && error.contains("changed since it was indexed"), "{error}");
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-9
fn listing_on_lustre_keeps_one_thread_per_directory() {
    let samples = Samples::new();
    (0..3000u64).for_each(|id| samples.add(&format!("{}/{id:05}", id % 3), b"x"));
    let options = StandInOptions::new(4).with_layout(|_, _| LayoutSpec::on([1], 1 << 20)).with_log(100_000);
    let stand_in = mount(samples.path(), options);
    let target = format!("lustre://{}", stand_in.root().display());
    let directory = tempfile::tempdir().unwrap();
    let catalog = directory.path().join("x.foreread");
    run(&mut foreread(["index", &target, "-o", catalog.to_str().unwrap()])).ok();
    let log = stand_in.counts().log;
    for directory in ["0/", "1/", "2/"] {
        let stats = log.iter().filter(|request| {
            request.kind == foreread_lustre_testing::RequestKind::Getattr
                && request.path.starts_with(directory)
        });
        let mut threads: Vec<u32> = stats.map(|request| request.thread).collect();
        assert!(threads.len() >= 1000, "{directory}: {}", threads.len());
        threads.sort_unstable();
        threads.dedup();
        assert_eq!(threads.len(), 1, "{directory}");
    }
}
