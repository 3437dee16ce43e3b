//! Several ranks, each a process, in a cold first epoch over shards of a bucket with 5 ms per
//! request, with memory for everything. Blocks are compared with reads by extents, in turns. The
//! tests' S3 server runs in this process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use foreread::calibration::{Calibration, OriginSpeed, Point};
use foreread::ranks::Meeting;
use foreread::{Config, Loader, Memory, RankOf};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::{median, subprocess};
use foreread_tier_testing::store::{Archive, Content, HttpStore, NumberedObjects};
use serde::{Deserialize, Serialize};

const SHARDS: u64 = 64;
const SAMPLES_PER_SHARD: u64 = 200;
const SIZE: u64 = 20_480;
const LATENCY: Duration = Duration::from_millis(5);
const ROUNDS: usize = 3;
const URL: &str = "s3://train/shards";

/// The first epoch of one rank.
#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    requests: f64,
    bytes: f64,
    dataset: f64,
    seconds: f64,
}

pub fn figures() -> Result<Vec<Figure>> {
    let store = HttpStore::start();
    store.bucket("train");
    for shard in 0..SHARDS {
        let archive =
            Archive::new(NumberedObjects::named(SAMPLES_PER_SHARD, SIZE, |id| format!("{id:06}.bin")));
        ensure!(archive.size() <= 8 << 20, "a shard is one block");
        store.put_content("train", &format!("shards/{shard:03}.tar"), Arc::new(archive));
    }
    store.set_latency(LATENCY);
    let mut figures = Vec::new();
    for ranks in [2, 4] {
        let (mut ratios, mut times) = (Vec::new(), Vec::new());
        let (mut requests, mut bytes) = (0f64, 0f64);
        for _ in 0..ROUNDS {
            let [blocks, extents] = [run(&store, ranks, "blocks")?, run(&store, ranks, "extents")?];
            let sum = |of: fn(&Measurement) -> f64| blocks.iter().map(of).sum::<f64>();
            let seconds = |found: &[Measurement]| found.iter().map(|found| found.seconds).fold(0.0, f64::max);
            requests = requests.max(sum(|found| found.requests) / SHARDS as f64);
            bytes = bytes.max(sum(|found| found.bytes) / blocks[0].dataset);
            ratios.push(seconds(&blocks) / seconds(&extents));
            times.push((seconds(&blocks), seconds(&extents)));
        }
        let about = format!("{ranks} ranks, {SHARDS} tar shards, cold, memory for all, 5 ms per request");
        figures.push(Figure::new(
            format!("{about}: requests / blocks"),
            Goal::AtMost(1.1),
            requests,
            "times",
        ));
        let what = format!("{about}: storage bytes / samples' bytes");
        figures.push(Figure::new(what, Goal::None, bytes, "times").note("tar headers are 2.5 %"));
        let what = format!("{about}: first epoch in blocks / by extents");
        let note = times.iter().map(|(blocks, extents)| format!("{blocks:.2} and {extents:.2} s"));
        let note = note.collect::<Vec<_>>().join("; ");
        figures.push(Figure::new(what, Goal::AtMost(0.7), median(ratios), "times").note(note));
    }
    Ok(figures)
}

fn run(store: &HttpStore, ranks: u32, how: &str) -> Result<Vec<Measurement>> {
    subprocess::run_ranks(ranks, |command| {
        command
            .args(["rank_blocks", how])
            .env("AWS_ENDPOINT_URL", store.endpoint())
            .envs([("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "us-east-1")])
            .envs([("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
    })
}

/// Figures of a store whose requests take this long, so that blocks pay or do not.
fn calibration(latency: Duration) -> Calibration {
    let read = Point { parallelism: 32, bytes_per_second: 1_000_000_000, spread: 0.0, samples: 100 };
    let origin = OriginSpeed {
        url: URL.to_owned(),
        sample_bytes: SIZE,
        latency_seconds: latency.as_secs_f64(),
        stream_bytes_per_second: 200_000_000,
        read: vec![read],
        large: None,
        servers: None,
    };
    let version = Calibration::VERSION;
    Calibration { version, made: 0, origin: Some(origin), memory: None, disk: Vec::new() }
}

pub fn part(args: &[String]) -> Result<()> {
    let latency = match args {
        [how] if how == "blocks" => LATENCY,
        [how] if how == "extents" => Duration::ZERO,
        _ => anyhow::bail!("unknown part {args:?}"),
    };
    let variable = |name: &str| std::env::var(name).ok();
    let number =
        |name: &str| variable(name).with_context(|| format!("no {name}"))?.parse().context("not a number");
    let mut config = Config::default();
    config.rank = RankOf { rank: number("RANK")?, ranks: number("WORLD_SIZE")? };
    (config.batch_size, config.epochs, config.look_ahead) = (64, 2, 64 << 20);
    config.memory = Memory::Bytes(1 << 30);
    config.calibration = Some(Arc::new(calibration(latency)));
    let meeting = Meeting::of(&config, &variable)?.context("no rendezvous is configured")?;
    let loader = Loader::builder_with(URL, config).peers(meeting).start()?;
    for batch in &loader {
        drop(batch?);
    }
    loader.leave(Duration::from_secs(60))?;
    let report = loader.report();
    let first = report.epochs.first().context("the report has no epochs")?;
    subprocess::print_result(&Measurement {
        requests: report.origin_requests as f64,
        bytes: report.origin_bytes as f64,
        dataset: report.dataset_bytes as f64,
        seconds: first.seconds,
    })
}
