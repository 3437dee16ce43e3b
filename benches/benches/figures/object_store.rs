//! A bucket over loopback: foreread beside a bare loop of GETs at the same parallelism, each in a process of its own, in turns.
//! The store is the tests' own, in this process. Other loaders are beside it in the bench `loaders`.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use foreread::{Config, Loader, Memory};
use foreread_benches::table::{Asked, Figure};
use foreread_benches::usage::Usage;
use foreread_benches::{median, share};
use foreread_s3::S3Backend;
use foreread_tier::{Backend, Context, OpenOptions, RecycledBuffers};
use foreread_tier_testing::store::{Numbered, Requests, Store};
use futures::{StreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use serde::{Deserialize, Serialize};

const SAMPLES: u64 = 20_000;
const SIZE: u64 = 110_000;
const PARALLELISM: usize = 32;
const LATENCY: Duration = Duration::from_millis(20);
const AT_ONCE: usize = 64;
const ROUNDS: usize = 5;

/// Requests a second that a throttling store puts up with, and how many samples are read from it: 30 seconds' worth.
const CEILING: f64 = 200.0;
const THROTTLED: u64 = 6_000;

/// How long it may take to find what the store puts up with.
const SETTLING: Duration = Duration::from_secs(3);

/// What one process found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Found {
    samples: f64,
    used: Usage,
}

impl Found {
    fn rate(&self) -> f64 {
        self.samples / self.used.seconds
    }

    fn cpu(&self) -> f64 {
        self.used.cpu * 1e6 / self.samples
    }
}

pub fn figures() -> Result<Vec<Figure>> {
    let store = Store::start();
    store.numbered("bench", Numbered::new(SAMPLES, SIZE));
    store.numbered("slow", Numbered::new(THROTTLED, SIZE));
    let mut figures = beside_a_bare_loop(&store)?;
    figures.extend(with_latency(&store)?);
    figures.extend(throttled(&store)?);
    Ok(figures)
}

fn environment(store: &Store) -> [(&'static str, String); 5] {
    [
        ("AWS_ENDPOINT_URL", store.endpoint()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ]
}

/// A part of this program that reads the store.
fn ask(store: &Store, who: &str) -> Result<(Vec<Found>, Requests)> {
    store.reset();
    let program = std::env::current_exe().context("which program is this?")?;
    let mut command = Command::new(program);
    command.args([share::PART, "object_store", who]).envs(environment(store));
    Ok((share::ask_of(&mut command)?, store.requests()))
}

fn beside_a_bare_loop(store: &Store) -> Result<Vec<Figure>> {
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.extend(ask(store, "bare")?.0);
        let (found, requests) = ask(store, "foreread")?;
        ensure!(requests.get <= SAMPLES * 103 / 100 && requests.head == 0, "{requests:?}");
        ours.extend(found);
    }
    let ratio = |figure: fn(&Found) -> f64| {
        median(ours.iter().zip(&bare).map(|(ours, bare)| figure(ours) / figure(bare)))
    };
    let mid = |found: &[Found], figure: fn(&Found) -> f64| median(found.iter().map(figure));
    let both = |figure: fn(&Found) -> f64, unit: &str| {
        format!("{:.1} {unit}, a bare loop {:.1}", mid(&ours, figure), mid(&bare, figure))
    };
    let name = format!("bucket, {SAMPLES} of {SIZE} B, {PARALLELISM} GETs at once");
    Ok(vec![
        Figure::new(
            format!("{name}: samples/s / a bare loop's"),
            Asked::AtLeast(0.95),
            ratio(Found::rate),
            "x",
        )
        .note(both(Found::rate, "samples/s")),
        Figure::new("the same: CPU a sample / a bare loop's", Asked::AtMost(1.15), ratio(Found::cpu), "x")
            .note(both(Found::cpu, "us")),
    ])
}

/// A store that works on so many requests at once. Nobody says how many to foreread; a bare loop is told.
fn with_latency(store: &Store) -> Result<Vec<Figure>> {
    store.set_latency(LATENCY);
    store.set_at_once(Some(AT_ONCE));
    let found =
        ask(store, "foreread-free").and_then(|found| Ok((found, ask(store, &format!("bare-{AT_ONCE}"))?)));
    store.set_latency(Duration::ZERO);
    store.set_at_once(None);
    let ((found, requests), (bare, _)) = found?;
    let bare = bare.first().map_or(0.0, Found::rate);
    // From the start on, the time in which it finds out included.
    let rate = found.iter().map(|epoch| epoch.samples).sum::<f64>()
        / found.iter().map(|epoch| epoch.used.seconds).sum::<f64>();
    let (most, possible) = (requests.peak_in_flight, AT_ONCE as f64 / LATENCY.as_secs_f64());
    let name = format!(
        "the same from a store of {} ms and {AT_ONCE} at once, found by itself: / a bare loop's",
        LATENCY.as_millis()
    );
    Ok(vec![Figure::new(name, Asked::AtLeast(0.95), rate / bare, "x").note(format!(
        "{rate:.0} samples/s, at most {most} asked for at once; a bare loop of {AT_ONCE} {bare:.0}; {AT_ONCE} / {} ms is {possible:.0}",
        LATENCY.as_millis()
    ))])
}

/// A store that refuses what is beyond so many requests a second.
fn throttled(store: &Store) -> Result<Vec<Figure>> {
    store.set_ceiling(Some(CEILING));
    let (found, early) = std::thread::scope(|scope| {
        let early = scope.spawn(|| {
            std::thread::sleep(SETTLING);
            store.requests()
        });
        (ask(store, "foreread-slow"), early.join())
    });
    store.set_ceiling(None);
    let (found, requests) = found?;
    let Ok(early) = early else { bail!("the store was not asked") };
    let rate = found.first().map_or(0.0, Found::rate);
    let (asked, refused) = (requests.get - early.get, requests.refused - early.refused);
    let name = format!("the same refused with 503 above {CEILING} requests/s: samples/s / {CEILING}");
    let settling = format!("in the first {} s {} of {}", SETTLING.as_secs(), early.refused, early.get);
    let share = refused as f64 / asked as f64;
    Ok(vec![
        Figure::new(name, Asked::AtLeast(0.9), rate / CEILING, "x")
            .note(format!("{rate:.1} samples/s, the start included")),
        Figure::new("the same, once settled: requests refused", Asked::AtMost(0.02), share, "of all")
            .note(format!("{refused} of {asked}; {settling}")),
    ])
}

pub fn part(args: &[String]) -> Result<()> {
    let found = match args.first().map(String::as_str) {
        Some("bare") => bare(PARALLELISM)?,
        Some("foreread-free") => foreread("s3://bench", None, 2)?,
        Some("foreread") => foreread("s3://bench", Some(PARALLELISM), 1)?,
        Some("foreread-slow") => foreread("s3://slow", None, 1)?,
        Some(who) if who.starts_with("bare-") => bare(who["bare-".len()..].parse()?)?,
        _ => bail!("there is no contender {args:?}"),
    };
    share::answer(&found)
}

/// A run's epochs, from the first batch asked for.
fn foreread(url: &str, parallelism: Option<usize>, epochs: u64) -> Result<Vec<Found>> {
    let mut config = Config::default();
    (config.memory, config.epochs) = (Memory::Bytes(0), epochs);
    config.origin_parallelism = parallelism;
    let loader = Loader::builder_with(url, config).prepare()?.start();
    let (mut found, mut start, mut samples, mut epoch) = (Vec::new(), Instant::now(), 0.0, 0);
    let mut before = Usage::since(start);
    for batch in &loader {
        let batch = batch?;
        if batch.epoch() != epoch {
            found.push(Found { samples, used: Usage::since(start) - before });
            (start, samples, epoch) = (Instant::now(), 0.0, batch.epoch());
            before = Usage::since(start);
        }
        samples += batch.len() as f64;
    }
    found.push(Found { samples, used: Usage::since(start) - before });
    Ok(found)
}

/// As many GETs at once, of the client that the S3 backend uses, and their bytes let go.
fn bare(parallelism: usize) -> Result<Vec<Found>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // It chooses the library for TLS, without which no client can be made.
    let context =
        Context { buffers: Arc::new(RecycledBuffers::default()), runtime: runtime.handle().clone(), seed: 0 };
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
    Ok(vec![Found { samples, used: Usage::since(start) - before }])
}
