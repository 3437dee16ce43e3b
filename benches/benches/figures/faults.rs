//! The time that faults in 1 % of the requests cost a run from a bucket. Runs with and without
//! faults alternate. The store is the tests' own, in this process. Its latency, and not this
//! machine's CPU, determines the duration of a run.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use foreread::{Config, Loader, Memory};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::{median, subprocess};
use foreread_tier_testing::store::{Fault, HttpStore, Kind, NumberedObjects, When};
use serde::{Deserialize, Serialize};

const SAMPLES: u64 = 10_000;
const SIZE: u64 = 100_000;
const BATCH: u64 = 64;
const LATENCY: Duration = Duration::from_millis(10);

/// Requests that the store handles concurrently: 3,200 samples per second, which leaves most of two
/// cores idle.
const STORE_CONCURRENCY: usize = 32;

/// The trainer's compute time per batch: 1,500 samples per second.
const COMPUTE: Duration = Duration::from_micros(42_667);

const CHANCE: f64 = 0.01;
const ROUNDS: usize = 3;

/// Longer than any acceptable wait for a response.
const STALL: Duration = Duration::from_secs(20);

const TRANSIENT_FAULTS: [(&str, Fault); 8] = [
    ("500", Fault::Internal),
    ("503", Fault::SlowDown(None)),
    ("403, expired", Fault::Expired),
    ("closed instead of an answer", Fault::Close),
    ("closed in the body", Fault::CloseInBody),
    ("half a body", Fault::Half),
    ("no answer for 20 s", Fault::StallHeaders(STALL)),
    ("a body that stops for 20 s", Fault::StallBody(STALL)),
];

/// The measurement of one run.
#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    samples: u64,
    seconds: f64,
    retried: u64,
    hedged: u64,
    /// The error that ended the run early.
    ended: Option<String>,
}

pub fn figures() -> Result<Vec<Figure>> {
    let store = HttpStore::start();
    store.numbered("faults", NumberedObjects::new(SAMPLES, SIZE));
    store.set_latency(LATENCY);
    store.set_at_once(Some(STORE_CONCURRENCY));
    let mut figures = Vec::new();
    for (who, name) in [("greedy", "as fast as it goes"), ("paced", "a trainer of 1,500 samples/s")] {
        figures.extend(compare_with_no_faults(&store, who, name)?);
    }
    figures.push(replaced(&store)?);
    Ok(figures)
}

fn ask(store: &HttpStore, who: &str, fault: Option<Fault>) -> Result<Measurement> {
    store.mend();
    store.reset();
    if let Some(fault) = fault {
        store.on(Kind::Get, When::Chance(CHANCE), fault);
    }
    let program = std::env::current_exe().context("which program is this?")?;
    let mut command = Command::new(program);
    command.args([subprocess::FLAG, "faults", who]).env("AWS_ENDPOINT_URL", store.endpoint()).envs([
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ]);
    subprocess::run_command(&mut command)
}

/// Compares the runs with each fault with the runs without faults.
fn compare_with_no_faults(store: &HttpStore, who: &str, name: &str) -> Result<Vec<Figure>> {
    let mut without = Vec::new();
    let mut with: Vec<Vec<(Measurement, u64)>> = TRANSIENT_FAULTS.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        without.push(ask(store, who, None)?);
        for ((what, fault), runs) in TRANSIENT_FAULTS.iter().zip(&mut with) {
            let found = ask(store, who, Some(*fault))?;
            ensure!(found.ended.is_none() && found.samples == SAMPLES, "{what}: {found:?}");
            runs.push((found, store.requests().faults));
        }
    }
    let none = median(without.iter().map(|found| found.seconds));
    let spread = without
        .iter()
        .map(|found| found.seconds)
        .fold((f64::MAX, 0.0f64), |(least, most), seconds| (least.min(seconds), most.max(seconds)));
    let mut figures = vec![
        Figure::new(format!("- bucket, {SAMPLES} of {SIZE} B, {name}: no faults"), Goal::None, none, "s")
            .note(format!("{:.2} to {:.2} s", spread.0, spread.1)),
    ];
    for ((what, _), runs) in TRANSIENT_FAULTS.iter().zip(&with) {
        let lost = median(runs.iter().zip(&without).map(|((run, _), none)| run.seconds / none.seconds - 1.0));
        let seconds = median(runs.iter().map(|(run, _)| run.seconds));
        let mid = |figure: fn(&(Measurement, u64)) -> u64| median(runs.iter().map(|run| figure(run) as f64));
        let (faults, retried, hedged) = (mid(|run| run.1), mid(|run| run.0.retried), mid(|run| run.0.hedged));
        figures.push(
            Figure::new(format!("the same, 1 % {what}: time lost"), Goal::AtMost(10.0), 100.0 * lost, "%")
                .note(format!("{seconds:.2} s; {faults} faults, {retried} retries, {hedged} hedges")),
        );
    }
    Ok(figures)
}

/// A changed object must end the run. The figure is the time until then.
fn replaced(store: &HttpStore) -> Result<Figure> {
    let found = ask(store, "greedy", Some(Fault::Replaced))?;
    let Some(why) = &found.ended else { bail!("the run continued after objects were replaced: {found:?}") };
    ensure!(why.contains("changed since it was indexed") && why.contains(".bin"), "{why}");
    Ok(Figure::new("the same, 1 % replaced: the run ends after", Goal::None, found.seconds, "s")
        .note(format!("{} samples; {why}", found.samples)))
}

pub fn part(args: &[String]) -> Result<()> {
    let compute = match args.first().map(String::as_str) {
        Some("greedy") => None,
        Some("paced") => Some(COMPUTE),
        _ => bail!("expected greedy or paced: {args:?}"),
    };
    let mut config = Config::default();
    (config.memory, config.epochs, config.batch_size) = (Memory::Bytes(0), 1, BATCH);
    let loader = Loader::builder_with("s3://faults", config).prepare()?.start();
    let (start, mut samples, mut ended) = (Instant::now(), 0, None);
    for batch in &loader {
        match batch {
            Ok(batch) => samples += batch.len() as u64,
            Err(error) => {
                ended = Some(format!("{:#}", anyhow::Error::from(error)));
                break;
            }
        }
        if let Some(compute) = compute {
            std::thread::sleep(compute);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let report = loader.report();
    subprocess::print_result(&Measurement {
        samples,
        seconds,
        retried: report.retried,
        hedged: report.hedged,
        ended,
    })
}
