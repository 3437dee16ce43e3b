//! `foreread plan`: the placement of samples, the lower bound of bytes from storage, predicted
//! times, and what larger caches would save.

use std::io::Write;

use anyhow::Result;
use foreread::plan::{Planned, Sizes};
use foreread::size::ByteSize;
use foreread::{Loader, Registry};
use foreread_estimate::PlanReport;
use foreread_settings::Knobs;

use crate::arguments::Plan;
use crate::progress::ProgressMode;
use crate::{output, progress, settings};

pub fn run(options: &Plan, registry: Registry) -> Result<()> {
    let knobs = settings::gather(options.given())?;
    if options.running.explain {
        return settings::explain(&knobs);
    }
    let json = settings::is_json(&knobs)?;
    let config = foreread_settings::config(&knobs)?;
    let report = match &options.target {
        Some(target) => {
            let listing = progress::listing(ProgressMode::of(&knobs, 0)?, target);
            let ready = Loader::builder_with(target, config).registry(registry).prepare_with(listing)?;
            // This command joins no group of ranks.
            PlanReport::of(ready.prepared(), ready.prepared().blocks())?
        }
        None => PlanReport::of(&Planned::new(config, &[imagined(&knobs)?])?, None)?,
    };
    let mut out = output::stdout();
    if json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(out.flush()?)
}

/// The sizes of a dataset that is given by numbers only.
fn imagined(knobs: &Knobs) -> Result<Sizes> {
    let missing =
        |name: &str| knobs.refuse(name, "name a dataset, or give both --samples and --sample-bytes");
    let samples: u64 = knobs.parse("samples")?.ok_or_else(|| missing("samples"))?;
    let bytes: ByteSize = knobs.parse("sample-bytes")?.ok_or_else(|| missing("sample-bytes"))?;
    if samples == 0 {
        return Err(knobs.refuse("samples", "must be at least 1").into());
    }
    Ok(Sizes::uniform(samples, bytes.0))
}
