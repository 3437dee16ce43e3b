//! A bucket over loopback: foreread compared with a bare loop of GETs at the same parallelism, in
//! turns, each in a separate process. The store is the tests' own, in this process. The bench
//! `loaders` has the comparison with other loaders.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use foreread::{Config, Loader, Memory};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::usage::Usage;
use foreread_benches::{median, subprocess};
use foreread_s3::S3Backend;
use foreread_tier::{ArenaBuffers, Backend, OpenContext, OpenOptions};
use foreread_tier_testing::store::{HttpStore, NumberedObjects, RequestCounts};
use futures::{StreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use serde::{Deserialize, Serialize};

const SAMPLES: u64 = 20_000;
const SIZE: u64 = 110_000;
const PARALLELISM: usize = 32;
const LATENCY: Duration = Duration::from_millis(20);
const STORE_CONCURRENCY: usize = 64;
const ROUNDS: usize = 5;

/// Requests per second that a throttling store tolerates, and samples read from it, which take
/// 30 s.
const RATE_LIMIT: f64 = 200.0;
const THROTTLED: u64 = 6_000;

/// Fixed numbers of requests that a run without settings is compared with.
const FIXED: [usize; 8] = [2, 4, 8, 16, 32, 64, 128, 256];

/// Time in which the adaptive limit must find the store's rate limit.
const SETTLING_TIME: Duration = Duration::from_secs(3);

/// The measurement of one epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measurement {
    samples: f64,
    used: Usage,
}

impl Measurement {
    fn rate(&self) -> f64 {
        self.samples / self.used.seconds
    }

    fn cpu(&self) -> f64 {
        self.used.cpu * 1e6 / self.samples
    }
}

pub fn figures() -> Result<Vec<Figure>> {
    let store = HttpStore::start();
    store.numbered("bench", NumberedObjects::new(SAMPLES, SIZE));
    store.numbered("slow", NumberedObjects::new(THROTTLED, SIZE));
    let mut figures = compare_with_bare_loop(&store)?;
    figures.extend(with_latency(&store)?);
    figures.extend(throttled(&store)?);
    Ok(figures)
}

/// The speed of a run without settings, compared with the best fixed number of requests. The rate
/// is that of two epochs, the search for the number included.
pub fn adaptive_figures() -> Result<Vec<Figure>> {
    let store = HttpStore::start();
    store.numbered("bench", NumberedObjects::new(SAMPLES, SIZE));
    let mut figures = Vec::new();
    for latency in [0, 2, 10, 40] {
        store.set_latency(Duration::from_millis(latency));
        let rate = |who: &str| -> Result<f64> {
            let (found, _) = ask(&store, who)?;
            let seconds: f64 = found.iter().map(|epoch| epoch.used.seconds).sum();
            Ok(found.iter().map(|epoch| epoch.samples).sum::<f64>() / seconds)
        };
        let mut fixed = Vec::new();
        // Fewer requests could not come near, and would take minutes.
        for parallelism in FIXED.into_iter().filter(|&count| count as u64 * 5 >= latency * 8) {
            fixed.push((rate(&format!("foreread-{parallelism}"))?, parallelism));
        }
        let (_, best) =
            fixed.iter().copied().fold((0.0, 0), |best, found| if found.0 > best.0 { found } else { best });
        // In turns with the best one.
        let mut ratios = Vec::new();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            ours.push(rate("foreread-free")?);
            theirs.push(rate(&format!("foreread-{best}"))?);
            ratios.extend(ours.last().zip(theirs.last()).map(|(ours, theirs)| ours / theirs));
        }
        let all: Vec<String> = fixed.iter().map(|(rate, at)| format!("{at}: {rate:.0}")).collect();
        figures.push(
            Figure::new(
                format!("bucket, {latency} ms, nothing set: samples/s / the best fixed number of requests"),
                Goal::AtLeast(0.9),
                median(ratios),
                "x",
            )
            .note(format!(
                "{:.0} samples/s, {best} requests {:.0}; {}",
                median(ours),
                median(theirs),
                all.join(", ")
            )),
        );
    }
    Ok(figures)
}

fn environment(store: &HttpStore) -> [(&'static str, String); 5] {
    [
        ("AWS_ENDPOINT_URL", store.endpoint()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ]
}

/// Runs the part of this program that reads the store.
fn ask(store: &HttpStore, who: &str) -> Result<(Vec<Measurement>, RequestCounts)> {
    store.reset();
    let program = std::env::current_exe().context("which program is this?")?;
    let mut command = Command::new(program);
    command.args([subprocess::FLAG, "object_store", who]).envs(environment(store));
    Ok((subprocess::run_command(&mut command)?, store.requests()))
}

fn compare_with_bare_loop(store: &HttpStore) -> Result<Vec<Figure>> {
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.extend(ask(store, "bare")?.0);
        let (found, requests) = ask(store, "foreread")?;
        ensure!(requests.get <= SAMPLES * 103 / 100 && requests.head == 0, "{requests:?}");
        ours.extend(found);
    }
    let ratio = |figure: fn(&Measurement) -> f64| {
        median(ours.iter().zip(&bare).map(|(ours, bare)| figure(ours) / figure(bare)))
    };
    let mid = |found: &[Measurement], figure: fn(&Measurement) -> f64| median(found.iter().map(figure));
    let both = |figure: fn(&Measurement) -> f64, unit: &str| {
        format!("{:.1} {unit}, a bare loop {:.1}", mid(&ours, figure), mid(&bare, figure))
    };
    let name = format!("bucket, {SAMPLES} of {SIZE} B, {PARALLELISM} GETs in flight");
    Ok(vec![
        Figure::new(
            format!("{name}: samples/s / a bare loop's"),
            Goal::AtLeast(0.95),
            ratio(Measurement::rate),
            "x",
        )
        .note(both(Measurement::rate, "samples/s")),
        Figure::new(
            "the same: CPU per sample / a bare loop's",
            Goal::AtMost(1.15),
            ratio(Measurement::cpu),
            "x",
        )
        .note(both(Measurement::cpu, "us")),
    ])
}

/// A store with a limited concurrency. The bare loop has it as a setting, foreread has to find it.
fn with_latency(store: &HttpStore) -> Result<Vec<Figure>> {
    store.set_latency(LATENCY);
    store.set_at_once(Some(STORE_CONCURRENCY));
    let found = ask(store, "foreread-free")
        .and_then(|found| Ok((found, ask(store, &format!("bare-{STORE_CONCURRENCY}"))?)));
    store.set_latency(Duration::ZERO);
    store.set_at_once(None);
    let ((found, requests), (bare, _)) = found?;
    let bare = bare.first().map_or(0.0, Measurement::rate);
    // The rate includes the time in which the adaptive limit settles.
    let rate = found.iter().map(|epoch| epoch.samples).sum::<f64>()
        / found.iter().map(|epoch| epoch.used.seconds).sum::<f64>();
    let (most, possible) = (requests.peak_in_flight, STORE_CONCURRENCY as f64 / LATENCY.as_secs_f64());
    let name = format!(
        "the same, {} ms latency and store concurrency {STORE_CONCURRENCY}, adaptive: / a bare loop's",
        LATENCY.as_millis()
    );
    Ok(vec![Figure::new(name, Goal::AtLeast(0.95), rate / bare, "x").note(format!(
        "{rate:.0} samples/s, peak {most} in flight; a bare loop of {STORE_CONCURRENCY} {bare:.0}; \
         {STORE_CONCURRENCY} / {} ms is {possible:.0}",
        LATENCY.as_millis()
    ))])
}

/// A store that rejects requests above a rate limit.
fn throttled(store: &HttpStore) -> Result<Vec<Figure>> {
    store.set_ceiling(Some(RATE_LIMIT));
    let (found, early) = std::thread::scope(|scope| {
        let early = scope.spawn(|| {
            std::thread::sleep(SETTLING_TIME);
            store.requests()
        });
        (ask(store, "foreread-slow"), early.join())
    });
    store.set_ceiling(None);
    let (found, requests) = found?;
    let Ok(early) = early else { bail!("reading the store's counters panicked") };
    let rate = found.first().map_or(0.0, Measurement::rate);
    let (sent, rejected) = (requests.get - early.get, requests.refused - early.refused);
    let name = format!("the same, 503 above {RATE_LIMIT} requests/s: samples/s / {RATE_LIMIT}");
    let settling = format!("in the first {} s {} of {}", SETTLING_TIME.as_secs(), early.refused, early.get);
    let share = rejected as f64 / sent as f64;
    Ok(vec![
        Figure::new(name, Goal::AtLeast(0.9), rate / RATE_LIMIT, "x")
            .note(format!("{rate:.1} samples/s, startup included")),
        Figure::new("the same, after settling: requests rejected", Goal::AtMost(0.02), share, "of all")
            .note(format!("{rejected} of {sent}; {settling}")),
    ])
}

pub fn part(args: &[String]) -> Result<()> {
    let found = match args.first().map(String::as_str) {
        Some("bare") => bare(PARALLELISM)?,
        Some("foreread-free") => foreread("s3://bench", None, 2)?,
        Some("foreread") => foreread("s3://bench", Some(PARALLELISM), 1)?,
        Some("foreread-slow") => foreread("s3://slow", None, 1)?,
        Some(who) if who.starts_with("bare-") => bare(who["bare-".len()..].parse()?)?,
        Some(who) if who.starts_with("foreread-") => {
            foreread("s3://bench", Some(who["foreread-".len()..].parse()?), 1)?
        }
        _ => bail!("unknown contender {args:?}"),
    };
    subprocess::print_result(&found)
}

/// Measures each epoch of a run, from the request for the first batch.
fn foreread(url: &str, parallelism: Option<usize>, epochs: u64) -> Result<Vec<Measurement>> {
    let mut config = Config::default();
    (config.memory, config.epochs) = (Memory::Bytes(0), epochs);
    config.origin_parallelism = parallelism;
    let loader = Loader::builder_with(url, config).prepare()?.start();
    let (mut found, mut start, mut samples, mut epoch) = (Vec::new(), Instant::now(), 0.0, 0);
    let mut before = Usage::since(start);
    for batch in &loader {
        let batch = batch?;
        if batch.epoch() != epoch {
            found.push(Measurement { samples, used: Usage::since(start) - before });
            (start, samples, epoch) = (Instant::now(), 0.0, batch.epoch());
            before = Usage::since(start);
        }
        samples += batch.len() as f64;
    }
    found.push(Measurement { samples, used: Usage::since(start) - before });
    Ok(found)
}

/// `parallelism` concurrent GETs with the client of the S3 backend. The bytes are dropped.
fn bare(parallelism: usize) -> Result<Vec<Measurement>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Opening the backend selects the TLS library, which every client needs.
    let context = OpenContext {
        buffers: Arc::new(ArenaBuffers::default()),
        runtime: runtime.handle().clone(),
        seed: 0,
    };
    runtime.block_on(S3Backend::new().open("s3://bench", &OpenOptions::default(), &context))?;
    let client: Arc<dyn ObjectStore> = Arc::new(
        AmazonS3Builder::from_env()
            .with_bucket_name("bench")
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .build()?,
    );
    let listed: Vec<_> = runtime.block_on(client.list(None).collect::<Vec<_>>());
    let keys: Vec<Key> = listed.into_iter().map(|object| Ok(object?.location)).collect::<Result<_>>()?;
    let start = Instant::now();
    let before = Usage::since(start);
    let gets = stream::iter(keys).map(|key| {
        let client = Arc::clone(&client);
        async move { Ok::<_, object_store::Error>(client.get(&key).await?.bytes().await?.len()) }
    });
    let samples = runtime.block_on(async {
        let mut gets = gets.buffer_unordered(parallelism);
        let mut samples = 0.0;
        while let Some(length) = gets.next().await {
            ensure!(length? as u64 == SIZE);
            samples += 1.0;
        }
        Ok(samples)
    })?;
    Ok(vec![Measurement { samples, used: Usage::since(start) - before }])
}
