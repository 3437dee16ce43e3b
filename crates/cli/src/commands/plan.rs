//! `foreread plan`: what would be kept where, and the fewest bytes that must be read.

use std::io::Write;

use anyhow::Result;
use foreread::planner::{LevelPlan, Retention, Summary};
use foreread::types::Sizes;
use foreread::{ByteSize, Config, Knobs, Loader, Planned};
use serde::Serialize;

use crate::arguments::Plan;
use crate::{output, progress, settings};

/// What `--report json` prints.
#[derive(Serialize)]
struct Report {
    rank: u32,
    world_size: u32,
    /// The whole cluster's floor; `plan.floor_origin_bytes` is this rank's alone.
    floor_origin_bytes: u64,
    look_ahead_bytes: u64,
    epochs: u64,
    plan: Summary,
}

pub fn run(options: &Plan) -> Result<()> {
    let knobs = settings::gather(options.given())?;
    if options.running.explain {
        return settings::explain(&knobs);
    }
    let json = settings::is_json(&knobs)?;
    let config = Config::from_knobs(&knobs)?;
    let mut out = output::stdout();
    match &options.target {
        Some(target) => {
            let ready = Loader::builder(target).config(config).prepare_with(progress::listing(target))?;
            print(&mut out, ready.prepared(), json)?;
        }
        None => print(&mut out, &Planned::new(config, &[imagined(&knobs)?])?, json)?,
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

fn print(out: &mut impl Write, planned: &Planned, json: bool) -> Result<()> {
    let config = planned.config();
    let summary = planned.plan().summary();
    if json {
        let report = Report {
            rank: config.rank,
            world_size: config.world_size,
            floor_origin_bytes: planned.floor(),
            look_ahead_bytes: config.look_ahead,
            epochs: config.epochs,
            plan: summary,
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
    writeln!(out, "fingerprint  {}", summary.fingerprint)?;
    Ok(())
}

/// What a level will hold, in words.
pub fn keeps(level: &LevelPlan, retention: Retention) -> String {
    let (capacity, bytes, footprint) =
        (ByteSize(level.capacity), ByteSize(level.bytes), ByteSize(level.footprint));
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
