//! The command over shards: files of real programs are delivered byte for byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use foreread_dataset::Catalog;
use foreread_tier_testing::store::{Archive, Content, HttpStore, NumberedObjects};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::s3::{at, kill};
use crate::support::{DEADLINE, content, foreread, number, order, run, watch};

/// A shard written by another program (`crates/dataset/tests/files`).
fn made(name: &str) -> Vec<u8> {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/dataset/tests/files");
    fs::read(files.join(name)).unwrap()
}

pub fn record(data: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &sum(&length), data, &sum(data)].concat()
}

/// Four TFRecord shards of 50 records of very different lengths, and all records in their order.
fn records() -> (TempDir, Vec<Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for shard in 0..4u64 {
        let records: Vec<Vec<u8>> = (0..50)
            .map(|number| content(shard * 50 + number, (number * number * 37 % 60_000) as usize))
            .collect();
        let bytes: Vec<u8> = records.iter().flat_map(|data| record(data)).collect();
        fs::write(directory.path().join(format!("train-{shard:03}.tfrecord")), bytes).unwrap();
        all.extend(records);
    }
    (directory, all)
}

fn assert_delivered(report: &Value, samples: &[Vec<u8>]) {
    assert_digests(report, samples, &[]);
}

/// Compares the digests of a rank's epochs with those of its order. `rank` are the rank's
/// arguments.
fn assert_digests(report: &Value, samples: &[Vec<u8>], rank: &[&str]) {
    assert_eq!(number(report, "/samples"), samples.len() as u64);
    for epoch in report["epochs"].as_array().unwrap() {
        let count = samples.len().to_string();
        let mut digest = Sha256::new();
        let number = epoch["epoch"].to_string();
        for id in order(&[&["--samples", &count, "--epoch", &number][..], rank].concat()) {
            digest.update(id.to_le_bytes());
            digest.update(&samples[id as usize]);
        }
        let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(epoch["digest"], digest);
    }
}

fn load(target: &str, arguments: &[&str]) -> Value {
    run(&mut foreread(["load", target, "--report", "json", "--digest"].iter().chain(arguments))).json()
}

#[test]
// semantics: SHARD-4
fn records_are_delivered_from_all_kinds_of_targets() {
    let (directory, samples) = records();
    let path = directory.path().to_str().unwrap();
    let braces = format!("{path}/train-{{000..003}}.tfrecord");
    for target in [path, &braces] {
        assert_delivered(&load(target, &[]), &samples);
        assert_delivered(&load(target, &["--memory", "1MB"]), &samples);
    }
    let catalog = directory.path().join("c.foreread").to_str().unwrap().to_owned();
    let printed = run(&mut foreread(["index", &braces, "-o", &catalog])).ok();
    let mut lines = printed.lines();
    assert!(lines.next().unwrap().contains("200 samples"), "{printed}");
    let cost = lines.next().unwrap();
    assert!(cost.starts_with("indexed ") && cost.contains(" of tfrecord in "), "{cost}");
    assert_delivered(&load(&catalog, &[]), &samples);
    let opened = Catalog::open(&catalog).unwrap();
    assert_eq!(opened.base_url(), path);
    // The same shards by their names, individually, and as files that are samples.
    let names: Vec<PathBuf> =
        (0..4).map(|number| directory.path().join(format!("train-{number:03}.tfrecord"))).collect();
    let names: Vec<&str> = names.iter().map(|name| name.to_str().unwrap()).collect();
    let mut command = foreread(["index", "-o", &catalog].iter().chain(&names));
    run(&mut command).ok();
    assert_eq!(Catalog::open(&catalog).unwrap().fingerprint(), opened.fingerprint());
    run(&mut foreread(["index", path, "--format", "files", "-o", &catalog])).ok();
    assert_eq!(Catalog::open(&catalog).unwrap().len(), 4);
}

#[test]
fn webdataset_is_delivered_by_extents() {
    let directory = tempfile::tempdir().unwrap();
    let mut samples = Vec::new();
    for name in ["gnutar-pax", "python-gnu", "webdataset"] {
        fs::write(directory.path().join(format!("{name}.tar")), made(&format!("{name}.tar"))).unwrap();
    }
    let path = directory.path().to_str().unwrap();
    let catalog_path = directory.path().join("c.foreread");
    let printed = run(&mut foreread(["index", path, "-o", catalog_path.to_str().unwrap()])).ok();
    assert!(printed.contains("members are not samples"), "{printed}");
    let catalog = Catalog::open(&catalog_path).unwrap();
    for id in 0..catalog.len() {
        let entry = catalog.entry(id.into()).unwrap();
        let foreread_tier::Span::Range(range) = entry.span else { panic!("a part is a range") };
        let shard = made(&entry.object.path);
        samples.push(shard[range.start as usize..range.end as usize].to_vec());
    }
    assert_eq!(samples.len(), 13);
    assert_delivered(&load(path, &[]), &samples);
    let disk = tempfile::tempdir().unwrap();
    let cached = ["--memory", "0", &format!("--disk={}=100MB", disk.path().display())];
    assert_delivered(&load(path, &cached), &samples);
    let again = load(path, &cached);
    assert_delivered(&again, &samples);
    assert_eq!(number(&again, "/origin_requests"), 0);
}

/// The calibration of a store with 50 ms latency, limited by requests and not by bytes.
const LATE: &str = "version = 1\nmade = 0\n[origin]\nurl = \"s3://train/shards\"\nsample_bytes = 20000\n\
    latency_seconds = 0.05\nstream_bytes_per_second = 80000000\n\
    [[origin.read]]\nparallelism = 8\nbytes_per_second = 500000000\nspread = 0.0\nsamples = 100\n";

#[test]
// semantics: CACHE-15, RANK-38
fn first_epoch_of_a_slow_store_reads_blocks_once() {
    let (directory, samples) = records();
    let store = HttpStore::start();
    store.bucket("train");
    let mut bytes = 0;
    for shard in 0..4 {
        let name = format!("train-{shard:03}.tfrecord");
        let content = fs::read(directory.path().join(&name)).unwrap();
        bytes += content.len() as u64;
        store.put("train", &format!("shards/{name}"), content);
    }
    let catalog = directory.path().join("shards.foreread");
    let catalog = catalog.to_str().unwrap();
    run(&mut at(&store, &["index", "s3://train/shards", "-o", catalog])).ok();
    let late = directory.path().join("late.toml");
    fs::write(&late, LATE).unwrap();
    let late = late.to_str().unwrap();
    // Calibration here also measures shards by large reads, which are at most a shard long.
    let (calibrate, file) =
        (["calibrate", catalog, "--seconds", "3", "--report", "json", "-o"], directory.path());
    let measured = run(at(&store, &calibrate).arg(file.join("measured.toml"))).json();
    assert_eq!(number(&measured, "/origin/large/bytes"), 8 << 20);
    assert!(number(&measured, "/origin/large/read/0/bytes_per_second") > 0);
    let memory = ["--epochs", "3", "--memory", "1GiB", "--calibration", late];
    let plan =
        run(&mut at(&store, &["plan", catalog].iter().chain(&memory).copied().collect::<Vec<_>>())).ok();
    assert!(plan.contains("the first epoch reads shards in blocks of"), "{plan}");
    let load = |arguments: &[&str]| {
        store.reset();
        let common = ["load", catalog, "--report", "json", "--digest"];
        let report =
            run(&mut at(&store, &common.iter().chain(arguments).copied().collect::<Vec<_>>())).json();
        assert_delivered(&report, &samples);
        (number(&report, "/origin_requests"), store.requests())
    };
    let (requests, requested) = load(&memory);
    assert_eq!((requests, requested.get), (4, 4), "{requested:?}");
    assert!(requested.bytes <= bytes, "{requested:?} of {bytes}");
    // Two ranks read the same blocks, each block by one of them.
    let planned = |more: &[&str]| {
        let arguments: Vec<_> = ["plan", catalog].iter().chain(&memory).chain(more).copied().collect();
        run(&mut at(&store, &arguments)).ok()
    };
    let plan = planned(&["--world-size", "2", "--rank", "0"]);
    assert!(
        // The four empty records count as requests.
        plan.contains("reads shards in 4 blocks") && plan.contains(": 8 requests instead of 200"),
        "{plan}"
    );
    let json: Value =
        serde_json::from_str(&planned(&["--world-size", "2", "--rank", "0", "--report", "json"])).unwrap();
    assert_eq!(number(&json, "/together/block_epoch_requests"), 8);
    store.reset();
    let meeting = tempfile::tempdir().unwrap();
    let of_rank = ["load", catalog, "--report", "json", "--digest"];
    let start = |rank: u32| {
        let mut command = at(&store, &of_rank.iter().chain(&memory).copied().collect::<Vec<_>>());
        command.env("FOREREAD_MEET", meeting.path()).env("WORLD_SIZE", "2").env("RANK", rank.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..2).map(start).collect();
    for (rank, process) in ranks.into_iter().enumerate() {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_digests(&report, &samples, &["--world-size", "2", "--rank", &rank.to_string()]);
    }
    let requested = store.requests();
    assert_eq!(requested.get, 4, "{requested:?}");
    assert!(requested.bytes <= bytes, "{requested:?} of {bytes}");
    // With almost no room, samples are read by their extents. Neighbours that are due together
    // share a request.
    let (requests, _) = load(&["--epochs", "2", "--memory", "50KB", "--calibration", late]);
    assert!(requests > 100, "{requests}");
    // A flipped byte in a block is found, and named.
    let mut damaged = fs::read(directory.path().join("train-002.tfrecord")).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    store.put("train", "shards/train-002.tfrecord", damaged);
    let arguments: Vec<_> = ["load", catalog].iter().chain(&memory).copied().collect();
    let printed = run(&mut at(&store, &arguments)).fails(1);
    assert!(printed.contains("train-002.tfrecord"), "{printed}");
}

#[test]
// semantics: SHARD-9
fn tar_of_10_gb_on_a_slow_store_is_indexed_by_headers() {
    const MEMBERS: u64 = 1250;
    let members = NumberedObjects::named(MEMBERS, 8 << 20, |id| format!("{id:06}.bin"));
    let archive = Archive::new(members.clone());
    assert!(archive.size() > 10_000_000_000);
    let store = HttpStore::start();
    store.bucket("train");
    store.set_latency(Duration::from_millis(10));
    store.put_content("train", "large.tar", Arc::new(archive.clone()));
    let directory = tempfile::tempdir().unwrap();
    let catalog = directory.path().join("large.foreread");
    let catalog = catalog.to_str().unwrap();
    let printed = run(&mut at(&store, &["index", "s3://train/large.tar", "-o", catalog])).ok();
    let requested = store.requests();
    // A header for each member, the end, and the requests that find the shard.
    assert!(requested.get + requested.head + requested.list <= MEMBERS + 8, "{requested:?}");
    assert!(requested.bytes <= 2_000_000, "{requested:?}");
    let cost = printed.lines().nth(1).unwrap();
    assert!(
        cost.contains(" of tar in ") && cost.contains(" s with ") && cost.contains(" requests, "),
        "{cost}"
    );
    println!("{cost}; {requested:?}");
    // The samples have the right bytes: one rank of 250 reads five of them by their extents.
    store.reset();
    let ranks = ["--rank", "7", "--world-size", "250"];
    let loaded = ["load", catalog, "--epochs", "1", "--report", "json", "--digest"];
    let report = run(&mut at(&store, &[&loaded[..], &ranks].concat())).json();
    let ids = order(&[&["--samples", "1250", "--epoch", "0"][..], &ranks].concat());
    assert_eq!(ids.len(), 5);
    let mut digest = Sha256::new();
    for id in ids {
        digest.update(id.to_le_bytes());
        digest.update(members.bytes(id));
    }
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(report["epochs"][0]["digest"], digest);
    let requested = store.requests();
    assert!(requested.bytes <= 6 * (8 << 20), "{requested:?}");
}

#[test]
// semantics: SHARD-2
fn number_only_shards_are_detected_by_first_bytes_or_format() {
    let (directory, samples) = records();
    let numbered = tempfile::tempdir().unwrap();
    let odd = tempfile::tempdir().unwrap();
    let store = HttpStore::start();
    store.bucket("train");
    for shard in 0..4 {
        let bytes = fs::read(directory.path().join(format!("train-{shard:03}.tfrecord"))).unwrap();
        let name = format!("train-{shard:05}-of-00004");
        fs::write(numbered.path().join(&name), &bytes).unwrap();
        fs::write(odd.path().join(format!("{shard}.bin")), &bytes).unwrap();
        store.put("train", &format!("x/{name}"), bytes);
    }
    let path = numbered.path().to_str().unwrap();
    let braces = format!("{path}/train-{{00000..00003}}-of-00004");
    for target in [path, &braces] {
        assert_delivered(&load(target, &[]), &samples);
    }
    assert_delivered(&load(&format!("{path}/train-00002-of-00004"), &[]), &samples[100..150]);
    // Also in a bucket, for one shard by its URL, and for a non-shard, with one small read.
    let catalog = directory.path().join("c.foreread");
    let catalog = catalog.to_str().unwrap();
    for number in 0..3 {
        store.put("train", &format!("no/part-{number}-of-3"), content(number, 5000));
    }
    let index = |target: &str| {
        store.reset();
        run(&mut at(&store, &["index", target, "-o", catalog])).ok();
        (Catalog::open(catalog).unwrap().len(), store.requests())
    };
    let (files, requested) = index("s3://train/no");
    assert_eq!((files, requested.get, requested.bytes), (3, 1, 12));
    assert_eq!(index("s3://train/x/train-00002-of-00004").0, 50);
    assert_eq!(index("s3://train/x").0, 200);
    // The format setting overrides, from any source.
    let path = odd.path().to_str().unwrap();
    assert_eq!(number(&load(path, &[]), "/samples"), 4);
    assert_delivered(&load(path, &["--format", "tfrecord"]), &samples);
    assert_delivered(&load(&format!("{path}/2.bin"), &["--format", "tfrecord"]), &samples[100..150]);
    let report = run(foreread(["load", path, "--report", "json"]).env("FOREREAD_FORMAT", "tfrecord")).json();
    assert_eq!(number(&report, "/samples"), 200);
    let plan = run(&mut foreread(["plan", path, "--format", "tfrecord"])).ok();
    assert!(plan.contains("200 samples"), "{plan}");
    let explained = run(&mut foreread(["load", path, "--format", "zip", "--explain"])).ok();
    assert!(
        explained.lines().any(|line| line.starts_with("format ") && line.ends_with("argument")),
        "{explained}"
    );
    let refused = run(&mut foreread(["load", path, "--format", "rar"])).fails(2);
    assert!(refused.contains("auto, files, tar, tfrecord, zip"), "{refused}");
    let refused = run(&mut at(&store, &["load", catalog, "--format", "tar"])).fails(2);
    assert!(refused.contains("has the format tfrecord, but --format tar is set"), "{refused}");
    // Compressed shards are detected.
    store.put("train", "z/train-00000-of-00001", made("tensorflow-gzip.tfrecord"));
    let refused = run(&mut at(&store, &["load", "s3://train/z"])).fails(1);
    assert!(refused.contains("s3://train/z") && refused.contains("compressed shard"), "{refused}");
}

#[test]
// semantics: SAMPLE-16
fn killed_shard_indexing_resumes() {
    const SHARDS: u64 = 1000;
    let store = HttpStore::start();
    store.bucket("train");
    for number in 0..SHARDS {
        let members = if number % 2 == 0 { "gnutar-pax" } else { "webdataset" };
        store.put("train", &format!("s/{number:04}.tar"), made(&format!("{members}.tar")));
    }
    let directory = tempfile::tempdir().unwrap();
    let at_once = directory.path().join("at-once.foreread");
    run(&mut at(&store, &["index", "s3://train/s", "-o", at_once.to_str().unwrap()])).ok();
    let whole = store.requests().get;
    let catalog = directory.path().join("c.foreread");
    let kept = directory.path().join("c.foreread.partial-shards");
    let lines = || fs::read_to_string(&kept).map_or(0, |text| text.lines().count() as u64);
    let arguments = ["index", "s3://train/s", "-o", catalog.to_str().unwrap()];
    store.set_latency(Duration::from_millis(40));
    let killed = watch(&mut at(&store, &arguments), DEADLINE, |process| {
        if lines() > 602 {
            kill(process);
        }
    });
    assert_eq!(killed.code, None, "{}", killed.stderr);
    assert!(!catalog.exists());
    // After the header and the process that wrote it.
    let done = lines() - 2;
    assert!((600..SHARDS).contains(&done), "{done}");
    store.set_latency(Duration::ZERO);
    store.reset();
    let printed = run(&mut at(&store, &arguments)).ok();
    let requested = store.requests().get;
    // Only unfinished shards are read. One line may be torn, and the number of reads per shard
    // depends on their speed.
    assert!(
        requested * SHARDS <= whole * (SHARDS - done + 1) * 3 / 2,
        "{requested} of {whole} with {done} done"
    );
    assert!(printed.contains(" shards were already indexed"), "{printed}");
    let open = |path: &Path| Catalog::open(path).unwrap().fingerprint();
    assert_eq!(open(&catalog), open(&at_once));
    let left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
