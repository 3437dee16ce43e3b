//! What one per cent of a fault costs a run from a bucket: the time of the same run with it and without, in turns. The
//! store is the tests' own, in this process; it takes so long for an answer that waiting, and not this machine's CPU,
//! decides what a run takes.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use foreread::{Config, Loader, Memory};
use foreread_benches::table::{Asked, Figure};
use foreread_benches::{median, share};
use foreread_tier_testing::store::{Fault, Kind, Numbered, Store, When};
use serde::{Deserialize, Serialize};

const SAMPLES: u64 = 10_000;
const SIZE: u64 = 100_000;
const BATCH: u64 = 64;
const LATENCY: Duration = Duration::from_millis(10);

/// So many requests are worked on at once: 3,200 samples a second, which leaves most of two cores idle.
const AT_ONCE: usize = 32;

/// What a trainer computes on each batch: 1,500 samples a second.
const COMPUTE: Duration = Duration::from_micros(42_667);

const CHANCE: f64 = 0.01;
const ROUNDS: usize = 3;

/// Longer than anybody should wait for one answer.
const STALL: Duration = Duration::from_secs(20);

const PASSING: [(&str, Fault); 8] = [
    ("500", Fault::Internal),
    ("503", Fault::SlowDown(None)),
    ("403, expired", Fault::Expired),
    ("closed instead of an answer", Fault::Close),
    ("closed in the body", Fault::CloseInBody),
    ("half a body", Fault::Half),
    ("no answer for 20 s", Fault::StallHeaders(STALL)),
    ("a body that stops for 20 s", Fault::StallBody(STALL)),
];

/// What one run found.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    samples: u64,
    seconds: f64,
    retried: u64,
    hedged: u64,
    /// Why it ended before its end.
    ended: Option<String>,
}

pub fn figures() -> Result<Vec<Figure>> {
    let store = Store::start();
    store.numbered("faults", Numbered::new(SAMPLES, SIZE));
    store.set_latency(LATENCY);
    store.set_at_once(Some(AT_ONCE));
    let mut figures = Vec::new();
    for (who, name) in [("greedy", "as fast as it goes"), ("paced", "a trainer of 1,500 samples/s")] {
        figures.extend(beside_none(&store, who, name)?);
    }
    figures.push(replaced(&store)?);
    Ok(figures)
}

fn ask(store: &Store, who: &str, fault: Option<Fault>) -> Result<Found> {
    store.mend();
    store.reset();
    if let Some(fault) = fault {
        store.on(Kind::Get, When::Chance(CHANCE), fault);
    }
    let program = std::env::current_exe().context("which program is this?")?;
    let mut command = Command::new(program);
    command.args([share::PART, "faults", who]).env("AWS_ENDPOINT_URL", store.endpoint()).envs([
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ]);
    share::ask_of(&mut command)
}

/// Each fault's runs beside those without.
fn beside_none(store: &Store, who: &str, name: &str) -> Result<Vec<Figure>> {
    let mut without = Vec::new();
    let mut with: Vec<Vec<(Found, u64)>> = PASSING.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        without.push(ask(store, who, None)?);
        for ((what, fault), runs) in PASSING.iter().zip(&mut with) {
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
        Figure::new(format!("- bucket, {SAMPLES} of {SIZE} B, {name}: no faults"), Asked::Nothing, none, "s")
            .note(format!("{:.2} to {:.2} s", spread.0, spread.1)),
    ];
    for ((what, _), runs) in PASSING.iter().zip(&with) {
        let lost = median(runs.iter().zip(&without).map(|((run, _), none)| run.seconds / none.seconds - 1.0));
        let seconds = median(runs.iter().map(|(run, _)| run.seconds));
        let mid = |figure: fn(&(Found, u64)) -> u64| median(runs.iter().map(|run| figure(run) as f64));
        let (faults, retried, hedged) = (mid(|run| run.1), mid(|run| run.0.retried), mid(|run| run.0.hedged));
        figures.push(
            Figure::new(format!("the same, 1 % {what}: time lost"), Asked::AtMost(10.0), 100.0 * lost, "%")
                .note(format!(
                    "{seconds:.2} s; {faults} faults, {retried} asked again, {hedged} asked twice"
                )),
        );
    }
    Ok(figures)
}

/// A changed object must end the run; what is measured is that it does so soon.
fn replaced(store: &Store) -> Result<Figure> {
    let found = ask(store, "greedy", Some(Fault::Replaced))?;
    let Some(why) = &found.ended else { bail!("objects were replaced and the run went on: {found:?}") };
    ensure!(why.contains("changed since it was indexed") && why.contains(".bin"), "{why}");
    Ok(Figure::new("the same, 1 % replaced: the run ends after", Asked::Nothing, found.seconds, "s")
        .note(format!("{} samples; {why}", found.samples)))
}

pub fn part(args: &[String]) -> Result<()> {
    let compute = match args.first().map(String::as_str) {
        Some("greedy") => None,
        Some("paced") => Some(COMPUTE),
        _ => bail!("there is no trainer {args:?}"),
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
    share::answer(&Found { samples, seconds, retried: report.retried, hedged: report.hedged, ended })
}
