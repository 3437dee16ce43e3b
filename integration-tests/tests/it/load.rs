//! `foreread load` on real directories: content, order, origin reads, memory.

use crate::support::{Samples, foreread, four_thousand, load, number, order, run};

/// Asserts that every pass of a report has the digest of its order and files.
#[track_caller]
fn assert_digests(samples: &Samples, report: &serde_json::Value, sampler: &str, seed: &str) {
    let count = number(report, "/samples").to_string();
    for epoch in report["epochs"].as_array().unwrap().iter().filter(|epoch| epoch["phase"] == "train") {
        let number = epoch["epoch"].to_string();
        let ids = order(&["--samples", &count, "--sampler", sampler, "--seed", seed, "--epoch", &number]);
        assert_eq!(epoch["digest"], samples.digest(&ids), "epoch {number}");
    }
}

#[test]
// semantics: SAMPLE-1, SAMPLE-3, ORDER-3
fn everything_in_memory_reads_each_sample_once() {
    let samples = four_thousand();
    let report = load(samples, &["--seed", "11", "--epochs", "3", "--memory", "1GiB", "--digest"]);
    assert_eq!(number(&report, "/samples"), 4000);
    assert_eq!(number(&report, "/dataset_bytes"), samples.bytes());
    assert_eq!(number(&report, "/origin_bytes"), samples.bytes());
    assert_eq!(number(&report, "/origin_requests"), 4000);
    assert_eq!(number(&report, "/floor_origin_bytes"), samples.bytes());
    assert_eq!(number(&report, "/epochs/2/reads/memory/samples"), 4000);
    assert_eq!(number(&report, "/epochs/2/batches"), 63);
    assert_digests(samples, &report, "shuffle", "11");
}

/// Custom storage backends could once be used from Rust only, not by the command.
#[test]
fn command_with_a_custom_backend_opens_its_urls() {
    let samples = Samples::awkward(20, 2000);
    let url = format!("mirror://{}", samples.path().display());
    let read = |own: bool| {
        let mut command = foreread(["load", &url, "--report", "json", "--digest"]);
        if own {
            command.env("FOREREAD_TEST_MIRROR", "1");
        }
        run(&mut command)
    };
    let report = read(true).json();
    assert_digests(&samples, &report, "shuffle", "0");
    assert_eq!(number(&report, "/epochs/1/samples"), 20);
    let printed = read(false).fails(1);
    assert!(printed.contains("no backend opens 'mirror' URLs"), "{printed}");
}

/// Reports once had an entry per pass, and every line of text used all of them.
#[test]
// semantics: CACHE-8
fn report_of_many_epochs_sums_up_its_middle() {
    let samples = Samples::awkward(5, 200);
    let path = samples.path().to_str().unwrap();
    let run_of = |more: &[&str]| {
        let arguments = ["load", path, "--epochs", "1300", "--memory", "1MiB", "--digest"];
        run(&mut foreread(arguments.iter().chain(more)))
    };
    let report = run_of(&["--report", "json"]).json();
    let epochs = report["epochs"].as_array().unwrap();
    let count: u64 = epochs.iter().map(|epoch| epoch["passes"].as_u64().unwrap_or(1)).sum();
    let delivered: u64 = epochs.iter().map(|epoch| epoch["samples"].as_u64().unwrap()).sum();
    assert_eq!((count, delivered), (1300, 6500));
    let (sums, own): (Vec<_>, Vec<_>) = epochs.iter().partition(|epoch| epoch.get("passes").is_some());
    assert!(own.len() >= 512 && sums.len() == 1 && epochs.len() <= 1024, "{} entries", epochs.len());
    assert!(sums[0].get("digest").is_none());
    for epoch in [own[0], own[255], own[own.len() - 256], own[own.len() - 1]] {
        let ids = order(&["--samples", "5", "--epoch", &epoch["epoch"].to_string()]);
        assert_eq!(epoch["digest"], samples.digest(&ids), "epoch {}", epoch["epoch"]);
    }
    // The text output has a row per epoch.
    let text = run_of(&[]).ok();
    let rows = text.lines().filter(|line| line.contains(" train "));
    let numbers = rows.filter_map(|line| line.split_whitespace().next());
    assert!(numbers.eq((0..1300).map(|epoch| epoch.to_string()).collect::<Vec<_>>()), "{text}");
}

/// No field of the report names a sample that was read twice.
#[test]
fn trace_log_names_each_sample_read_from_storage() {
    let samples = Samples::awkward(40, 100_000);
    let path = samples.path().to_str().unwrap();
    let arguments = ["--memory", "0", "--look-ahead", "300KB", "--batch-size", "1"];
    let mut command = foreread(["load", path, "--epochs", "2", "--report", "json"].iter().chain(&arguments));
    let finished = run(command.env("RUST_LOG", "foreread_layers=trace"));
    let lines = finished.stderr.lines().filter_map(|line| Some(line.split_once("reading from storage ")?.1));
    let mut reads: Vec<String> = lines.map(str::to_owned).collect();
    reads.sort();
    assert_eq!(reads.len() as u64, number(&finished.json(), "/origin_requests"));
    assert!(reads[0].starts_with("key=sample 0 object=\""), "{}", reads[0]);
    assert!(reads.len() == 80 && reads.chunks(2).all(|two| two[0] == two[1]), "{reads:?}");
}

#[test]
// semantics: CACHE-3
fn partial_memory_reads_the_lower_bound() {
    let samples = four_thousand();
    let (size, epochs) = (samples.bytes(), 4);
    let capacity = size * 6 / 10;
    let report = load(
        samples,
        &[
            "--epochs",
            "4",
            "--memory",
            &capacity.to_string(),
            "--look-ahead",
            "16MiB",
            "--sampler",
            "torch",
            "--digest",
        ],
    );
    let bound = size + (epochs - 1) * (size - capacity);
    let read = number(&report, "/origin_bytes");
    assert!(read as f64 <= 1.01 * bound as f64, "{read} of at most {bound}");
    assert!(read >= number(&report, "/floor_origin_bytes"));
    assert_digests(samples, &report, "torch", "0");
}

#[test]
// semantics: ORDER-5
fn validation_set_is_read_after_each_epoch_and_cached() {
    let train = Samples::awkward(600, 50_000);
    let validation = Samples::awkward(150, 50_000);
    let path = validation.path().to_str().unwrap();
    let report = load(
        &train,
        &["--epochs", "3", "--memory", "1GiB", "--batch-size", "32", "--validate", path, "--digest", "--ids"],
    );
    let phases: Vec<_> =
        report["epochs"].as_array().unwrap().iter().map(|epoch| epoch["phase"].clone()).collect();
    assert_eq!(phases, ["train", "validation", "train", "validation", "train", "validation"]);
    let ids: Vec<u64> = (0..150).collect();
    for pass in [1, 3, 5] {
        assert_eq!(report["epochs"][pass]["digest"], validation.digest(&ids));
        assert_eq!(report["epochs"][pass]["ids"], serde_json::json!(ids));
    }
    assert_digests(&train, &report, "shuffle", "0");
    assert_eq!(number(&report, "/origin_bytes"), train.bytes() + validation.bytes());
    assert_eq!(number(&report, "/origin_requests"), 750);
    assert_eq!(number(&report, "/epochs/5/reads/memory/samples"), 150);
}

#[test]
// semantics: ORDER-4
fn ranks_share_an_epoch_as_order_prints_it() {
    let samples = Samples::awkward(101, 1000);
    for deal in ["torch", "blocks"] {
        for rank in ["0", "1", "2"] {
            let common =
                ["--world-size", "3", "--rank", rank, "--batch-size", "8", "--deal", deal, "--seed", "5"];
            let report =
                load(&samples, &[&common[..], &["--epochs", "1", "--ids", "--memory", "1MB"]].concat());
            let ids = order(&[&common[..], &["--samples", "101"]].concat());
            assert_eq!(report["epochs"][0]["ids"], serde_json::json!(ids), "{deal} {rank}");
            assert_eq!(number(&report, "/rank").to_string(), rank);
        }
    }
}

#[test]
fn drop_last_drops_the_short_batch() {
    let samples = Samples::awkward(101, 1000);
    let report = load(&samples, &["--batch-size", "8", "--drop-last", "--epochs", "1"]);
    assert_eq!((number(&report, "/epochs/0/samples"), number(&report, "/epochs/0/batches")), (96, 12));
}

#[test]
fn limited_origin_gets_a_memory_tier() {
    // The file system decides in general. Only the effect of a limit is known here.
    let samples = Samples::awkward(50, 1000);
    let report = load(&samples, &["--origin-limit", "100MB/s", "--look-ahead", "1MB"]);
    assert_eq!(number(&report, "/origin_requests"), 50);
    assert_eq!(number(&report, "/epochs/1/reads/memory/samples"), 50);
}

#[test]
// semantics: CACHE-6, CACHE-8
fn resident_memory_stays_within_its_bound() {
    const MIB: u64 = 1 << 20;
    let samples = Samples::new();
    // Samples up to 64 MB make the largest batch exceed the look-ahead.
    for id in 0..400u64 {
        let length = match id % 100 {
            0 => 64_000_000,
            1..=10 => 3_000_000 + id * 1001,
            11..=60 => 150_000 + id * 77,
            61..=90 => 500 * id,
            _ => 0,
        };
        samples.add(&format!("{}/{id}", id % 7), &crate::support::content(id, length as usize));
    }
    let batch = 8;
    let sizes: Vec<u64> =
        samples.in_order().iter().map(|path| std::fs::metadata(path).unwrap().len()).collect();
    let mut largest = [0, 0];
    for epoch in 0..10 {
        let ids = order(&["--samples", "400", "--epoch", &epoch.to_string()]);
        for batch in ids.chunks(batch) {
            let bytes = batch.iter().map(|&id| sizes[id as usize]).sum::<u64>();
            if bytes > largest[0] {
                largest = [bytes, largest[0]];
            } else if bytes > largest[1] {
                largest[1] = bytes;
            }
        }
    }
    for (memory, look_ahead) in [(100 * MIB, 32 * MIB), (200 * MIB, 256 * MIB), (0, 16 * MIB)] {
        let finished = run(&mut foreread([
            "load",
            samples.path().to_str().unwrap(),
            "--epochs=10",
            "--batch-size=8",
            &format!("--memory={memory}"),
            &format!("--look-ahead={look_ahead}"),
            "--report=json",
        ]));
        let bound = memory + look_ahead.max(largest[0] + largest[1]) + 96 * MIB;
        let peak = finished.peak;
        finished.ok();
        println!("memory {memory}, look-ahead {look_ahead}: peak {} MiB of {} MiB", peak / MIB, bound / MIB);
        assert!(peak <= bound, "peak {} MiB of {} MiB", peak / MIB, bound / MIB);
    }
}

#[test]
fn report_has_the_automatic_settings() {
    let samples = Samples::awkward(2600, 50_000);
    let report = load(
        &samples,
        &["--epochs", "1", "--batch-size", "20", "--compute-ms", "100", "--origin-parallelism", "4"],
    );
    let limit = &report["adapted"]["origin_parallelism"];
    assert_eq!(
        (number(limit, "/now"), number(limit, "/highest"), limit["why"].as_str()),
        (4, 4, Some("fixed"))
    );
    assert!((1..=4).contains(&number(limit, "/peak")), "{limit}");
    // The look-ahead ends within an epoch of this small dataset. At 5 MB/s most of it would be
    // useless.
    let look_ahead = &report["adapted"]["look_ahead"];
    let epoch = samples.bytes() + 2600 * 512;
    assert_eq!(number(look_ahead, "/allowed_bytes"), epoch);
    assert!(number(look_ahead, "/lowest_bytes") < 100_000_000, "{look_ahead}");
}

#[test]
// semantics: SAMPLE-2
fn disk_tier_inside_the_dataset_is_ignored() {
    let samples = Samples::awkward(60, 20_000);
    let directory = samples.path().to_str().unwrap();
    let disk = format!("{directory}=20MB");
    let arguments = ["--epochs", "2", "--digest", "--disk", &disk];
    let first = load(&samples, &arguments);
    let second = load(&samples, &arguments);
    assert_eq!(number(&second, "/samples"), number(&first, "/samples"));
    assert_eq!(second["epochs"][0]["digest"], first["epochs"][0]["digest"]);
    assert!(number(&second, "/epochs/0/reads/disk/samples") > 0, "{second}");
}

#[test]
// semantics: FAIL-24
fn closed_output_ends_the_run_with_141() {
    use std::io::Read;
    let samples = Samples::awkward(200, 20_000);
    let mut command =
        foreread(["load", samples.path().to_str().unwrap(), "--epochs", "50", "--compute-ms", "10"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0; 20]).unwrap();
    drop(output);
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

/// A PNG of one pixel.
const PNG: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc\x10\
    P0\0\0\0\xa4\0a4f}r\0\0\0\0IEND\xaeB`\x82";

#[test]
// semantics: IMAGE-2
fn decoding_counts_images_and_names_damaged_ones() {
    let samples = Samples::new();
    for number in 0..20 {
        samples.add(&format!("class{}/{number:02}.png", number % 2), PNG);
    }
    let options = ["--decode", "image:8", "--decode-threads", "2", "--batch-size", "3"];
    let report = load(&samples, &options);
    assert_eq!(number(&report, "/decode/images"), 40);
    assert_eq!((number(&report, "/decode/failed"), number(&report, "/decode/threads")), (0, 2));
    samples.add("class1/21.png", &PNG[..40]);
    let path = samples.path().to_str().unwrap();
    let run_with = |more: &[&str]| run(&mut foreread(["load", path].iter().chain(&options).chain(more)));
    let failed = run_with(&[]).fails(1);
    assert!(failed.contains("(class1/21.png) of epoch 0 cannot be decoded: "), "{failed}");
    let text = run_with(&["--on-error", "skip", "--epochs", "1"]).ok();
    assert!(text.contains("20 images decoded: ") && text.contains("; 1 could not be decoded"), "{text}");
    let refused = run(&mut foreread(["load", path, "--decode", "sound"])).fails(2);
    assert!(refused.contains("expected image, or image:SIZE"), "{refused}");
}
