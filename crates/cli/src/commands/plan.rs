//! `foreread plan`: what would be kept where, the fewest bytes that must be read, how long epochs will take and what for,
//! and what more room would buy.

use std::io::Write;

use anyhow::{Result, bail};
use foreread::planner::{EpochForecast, LevelPlan, LocalPlan, Resource, Retention, Summary};
use foreread::types::Sizes;
use foreread::{BlockTable, ByteSize, Config, Knobs, Loader, Planned, Together, Worth};
use serde::Serialize;

use crate::arguments::Plan;
use crate::{output, progress, settings};

/// What is bought for comparison: a GB.
const MORE: u64 = 1_000_000_000;

/// What `--report json` prints.
#[derive(Serialize)]
struct Report {
    rank: u32,
    world_size: u32,
    /// The whole cluster's floor; `plan.floor_origin_bytes` is this rank's alone.
    floor_origin_bytes: u64,
    look_ahead_bytes: u64,
    epochs: u64,
    /// How much of a shard the first epoch reads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_bytes: Option<u64>,
    /// Bytes that the blocks bring and no sample has.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_waste_bytes: Option<u64>,
    plan: Summary,
    /// Where it is known how fast the origin is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forecast: Vec<Forecast>,
    one_more_gigabyte: Vec<More>,
    /// Where there are several ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    together: Option<AsOne>,
}

/// All ranks' caches as one.
#[derive(Serialize)]
struct AsOne {
    owner: &'static str,
    origin_bytes: u64,
    floor_origin_bytes: u64,
    uses: u64,
    local_uses: u64,
    /// What the forecast takes for granted between nodes.
    assumed_network_bytes_per_second: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forecast: Vec<Forecast>,
}

/// One epoch, predicted.
#[derive(Serialize)]
struct Forecast {
    epoch: u64,
    seconds: f64,
    /// What it waits for.
    limiting: String,
    origin_requests: u64,
    origin_bytes: u64,
}

/// What more room would save over the run.
#[derive(Serialize)]
struct More {
    level: String,
    origin_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

impl Forecast {
    fn of(epoch: &EpochForecast, planned: &Planned) -> Self {
        Self {
            epoch: epoch.epoch,
            seconds: epoch.seconds(),
            limiting: resource(epoch.limiting, planned),
            origin_requests: epoch.requests.samples,
            origin_bytes: epoch.requests.bytes,
        }
    }
}

/// What a resource is called; levels by their names.
fn resource(resource: Resource, planned: &Planned) -> String {
    match resource {
        Resource::Level(level) => {
            let levels = planned.plan().levels();
            levels.get(usize::from(level.0)).map_or_else(|| resource.to_string(), |level| level.name.clone())
        }
        resource => resource.to_string(),
    }
}

pub fn run(options: &Plan) -> Result<()> {
    let knobs = settings::gather(options.given())?;
    if options.running.explain {
        return settings::explain(&knobs);
    }
    let json = settings::is_json(&knobs)?;
    let mut config = Config::from_knobs(&knobs)?;
    config.format = settings::format(&knobs)?;
    let mut out = output::stdout();
    match &options.target {
        Some(target) => {
            let ready = Loader::builder(target).config(config).prepare_with(progress::listing(target))?;
            print(&mut out, ready.prepared(), ready.prepared().blocks(), json)?;
        }
        None => print(&mut out, &Planned::new(config, &[imagined(&knobs)?])?, None, json)?,
    }
    Ok(out.flush()?)
}

/// The sizes of a dataset that is only described.
fn imagined(knobs: &Knobs) -> Result<Sizes> {
    let missing =
        |name: &str| knobs.refuse(name, "name a dataset, or give both --samples and --sample-bytes");
    let samples: u64 = knobs.parse("samples")?.ok_or_else(|| missing("samples"))?;
    let bytes: ByteSize = knobs.parse("sample-bytes")?.ok_or_else(|| missing("sample-bytes"))?;
    if samples == 0 {
        return Err(knobs.refuse("samples", "it is at least 1").into());
    }
    Ok(Sizes::uniform(samples, bytes.0))
}

/// The first epoch's requests and bytes, where it reads `blocks` of shards instead of their samples.
fn in_blocks(forecast: &mut [EpochForecast], blocks: &BlockTable) {
    let Some(first) = forecast.first_mut() else { return };
    let alone = first.requests.samples.saturating_sub(blocks.samples());
    first.requests.samples = alone + blocks.len() as u64;
    first.requests.bytes = first.requests.bytes.saturating_add(blocks.waste());
}

fn print(out: &mut impl Write, planned: &Planned, blocks: Option<&BlockTable>, json: bool) -> Result<()> {
    let config = planned.config();
    // This command meets no other ranks.
    let LocalPlan::Alone(plan) = planned.plan() else { bail!("there is no plan of this rank alone") };
    let summary = plan.summary();
    let mut forecast = planned.forecast()?.unwrap_or_default();
    if let Some(blocks) = blocks {
        in_blocks(&mut forecast, blocks);
    }
    let worth = planned.worth(MORE)?;
    let together = planned.together()?;
    if json {
        let report = Report {
            rank: config.rank,
            world_size: config.world_size,
            floor_origin_bytes: planned.floor(),
            look_ahead_bytes: config.look_ahead,
            epochs: config.epochs,
            block_bytes: planned.block_bytes(),
            block_waste_bytes: blocks.map(BlockTable::waste),
            plan: summary,
            forecast: forecast.iter().map(|epoch| Forecast::of(epoch, planned)).collect(),
            one_more_gigabyte: worth.into_iter().map(More::of).collect(),
            together: together.map(|together| AsOne::of(together, planned)),
        };
        serde_json::to_writer(&mut *out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    writeln!(out, "rank {} of {}, {} epochs", config.rank, config.world_size, config.epochs)?;
    for (dataset, name) in summary.datasets.iter().zip(["train", "validation"]) {
        writeln!(
            out,
            "{name:12} {} samples, {}; this rank uses {} in {} uses, {} of it from the origin",
            dataset.samples,
            ByteSize(dataset.bytes),
            ByteSize(dataset.used_bytes),
            dataset.uses,
            ByteSize(dataset.origin_bytes)
        )?;
    }
    for level in &summary.levels {
        writeln!(out, "{:12} {}", level.name, keeps(level, planned.plan().retention()))?;
    }
    match summary.horizon {
        None if summary.levels.is_empty() => {
            writeln!(out, "retention    nothing is kept: there is no memory tier")?
        }
        None => writeln!(out, "retention    keep: what is placed stays for the whole run")?,
        Some(horizon) => {
            writeln!(
                out,
                "retention    threshold: a sample stays if its next use is at most {horizon} samples away"
            )?;
        }
    }
    if let Some(bytes) = planned.block_bytes() {
        let waste = match blocks.map_or(0, BlockTable::waste) {
            0 => String::new(),
            waste => format!(", {} of that between samples", ByteSize(waste)),
        };
        writeln!(out, "cold start   the first epoch reads shards in blocks of {}{waste}", ByteSize(bytes))?;
    }
    writeln!(out, "look-ahead   {}", ByteSize(config.look_ahead))?;
    writeln!(out, "this plan    {} from the origin", ByteSize(summary.origin_bytes))?;
    let floor = if summary.floor_is_exact { "" } else { " (estimated)" };
    writeln!(
        out,
        "floor        {}{floor}: no policy reads less for this rank",
        ByteSize(summary.floor_origin_bytes)
    )?;
    if config.world_size > 1 {
        writeln!(
            out,
            "             {}: no policy reads less for all ranks together",
            ByteSize(planned.floor())
        )?;
    }
    if forecast.is_empty() {
        writeln!(
            out,
            "time         unknown: nobody said how fast the origin is (--calibration, as `foreread calibrate` \
             writes it, or --origin-limit)"
        )?;
    }
    spans(out, planned, &forecast)?;
    for worth in &worth {
        let seconds = match worth.seconds {
            Some(seconds) => format!(", {seconds:.1} s less"),
            None => String::new(),
        };
        writeln!(
            out,
            "1 GB more    of {}: {} less from the origin over the run{seconds}",
            worth.level,
            ByteSize(worth.origin_bytes)
        )?;
    }
    if let Some(together) = &together {
        as_one(out, planned, together)?;
    }
    writeln!(out, "fingerprint  {}", summary.fingerprint)?;
    Ok(())
}

impl AsOne {
    fn of(together: Together, planned: &Planned) -> Self {
        let forecast = together.forecast.as_deref().unwrap_or_default();
        Self {
            owner: together.owner,
            origin_bytes: together.origin_bytes,
            floor_origin_bytes: together.floor_origin_bytes,
            uses: together.uses.samples,
            local_uses: together.local.samples,
            assumed_network_bytes_per_second: together.network.bytes_per_second,
            forecast: forecast.iter().map(|epoch| Forecast::of(epoch, planned)).collect(),
        }
    }
}

fn as_one(out: &mut impl Write, planned: &Planned, together: &Together) -> Result<()> {
    writeln!(
        out,
        "together     the caches of {} ranks as one (this release's ranks read for themselves): {} from the origin, of {} at \
         least; the {} keeps a sample, {:.1} % of the uses are its own",
        together.ranks,
        ByteSize(together.origin_bytes),
        ByteSize(together.floor_origin_bytes),
        together.owner,
        100.0 * together.local.samples as f64 / together.uses.samples.max(1) as f64
    )?;
    let Some(forecast) = &together.forecast else { return Ok(()) };
    writeln!(
        out,
        "             over a network of {}/s between nodes, which nobody has measured:",
        ByteSize(together.network.bytes_per_second)
    )?;
    spans(out, planned, forecast)
}

impl More {
    fn of(worth: Worth) -> Self {
        Self { level: worth.level, origin_bytes: worth.origin_bytes, seconds: worth.seconds }
    }
}

/// How long epochs take; those that are alike in one line.
fn spans(out: &mut impl Write, planned: &Planned, forecast: &[EpochForecast]) -> Result<()> {
    let alike = |a: &EpochForecast, b: &EpochForecast| {
        a.limiting == b.limiting && a.nanoseconds.abs_diff(b.nanoseconds) <= a.nanoseconds / 100
    };
    for epochs in forecast.chunk_by(alike) {
        let [first, .., last] = epochs else {
            let [only] = epochs else { continue };
            writeln!(out, "{:12} {}", format!("epoch {}", only.epoch), time(only, planned))?;
            continue;
        };
        let name = format!("epochs {}-{}", first.epoch, last.epoch);
        writeln!(out, "{name:12} {} each", time(first, planned))?;
    }
    Ok(())
}

fn time(epoch: &EpochForecast, planned: &Planned) -> String {
    format!(
        "{:.2} s, limited by {}: {} from the origin in {} requests",
        epoch.seconds(),
        resource(epoch.limiting, planned),
        ByteSize(epoch.requests.bytes),
        epoch.requests.samples
    )
}

/// What a level will hold, in words.
pub fn keeps(level: &LevelPlan, retention: Retention) -> String {
    let (capacity, bytes, footprint) =
        (ByteSize(level.capacity), ByteSize(level.bytes), ByteSize(level.footprint));
    if level.slower_than_origin {
        return format!("{capacity}: stays empty, for it is read more slowly than the origin");
    }
    match retention {
        Retention::Threshold { .. } => {
            format!("{capacity}: samples come and go, about {footprint} at a time")
        }
        _ => format!(
            "{capacity}: keeps {} samples, {bytes} ({footprint} with what they take beside)",
            level.samples
        ),
    }
}
