//! `foreread plan`: the placement of samples, the lower bound of bytes from storage, predicted
//! times, and the savings by larger caches. With `--unchanged`, also the plan of `foreread run`.

use std::io::Write;

use anyhow::Result;
use foreread::plan::{Planned, Sizes};
use foreread::size::ByteSize;
use foreread::{Loader, Registry};
use foreread_estimate::PlanReport;
use foreread_settings::Knobs;
use serde::Serialize;

use super::load::{compute, text};
use super::unchanged_plan::{OpenedFiles, UnchangedReport};
use crate::arguments::Plan;
use crate::progress::ProgressMode;
use crate::{output, progress, settings};

/// The plan of a loader and, if requested, that of a program that is not changed.
#[derive(Serialize)]
struct PlannedRun<'a> {
    #[serde(flatten)]
    plan: &'a PlanReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    unchanged: Option<UnchangedReport>,
}

pub fn run(options: &Plan, registry: Registry) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let json = settings::is_json(&knobs)?;
    let config = foreread_settings::config(&knobs)?;
    let compute = compute(&knobs)?;
    let mut notes = Vec::new();
    let run_config = config.clone();
    let unchanged =
        |files: OpenedFiles| UnchangedReport::new(options, &knobs, &run_config, files, compute).map(Some);
    let (report, unchanged) = match &options.target {
        Some(target) => {
            let listing = progress::listing(ProgressMode::of(&knobs, 0), target);
            let builder = Loader::builder_with(target, config).compute_per_batch(compute).plan_only(true);
            let ready = builder.registry(registry).prepare_with(listing)?;
            notes.extend(text::memory_off(ready.prepared()));
            notes.extend(text::calibration(&knobs, ready.prepared()));
            // This command joins no group of ranks.
            let prepared = ready.prepared();
            let train = prepared.catalogs().next();
            let report = PlanReport::of(prepared, train)?.with_servers(train);
            let train = train.filter(|_| options.unchanged);
            (report, train.map_or(Ok(None), |train| unchanged(OpenedFiles::of(train)))?)
        }
        None => {
            let sizes = imagined(&knobs)?;
            let files = options.unchanged.then(|| OpenedFiles::samples(&sizes));
            let unchanged = files.map_or(Ok(None), unchanged)?;
            (PlanReport::of(&Planned::with_compute(config, &[sizes], compute)?, None)?, unchanged)
        }
    };
    if json {
        return settings::print_json(&PlannedRun { plan: &report, unchanged });
    }
    let mut out = output::stdout();
    write!(out, "{report}")?;
    if let Some(unchanged) = &unchanged {
        write!(out, "{unchanged}")?;
    }
    for note in notes {
        writeln!(out, "{note}")?;
    }
    if options.settings.verbose {
        writeln!(out, "fingerprint  {}", report.fingerprint())?;
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
