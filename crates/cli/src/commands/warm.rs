//! `foreread warm`: fills the memory of the node's agent with a dataset, ahead of its jobs.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use foreread::report::WarmDataset;
use foreread::size::ByteSize;
use foreread::{Loader, Memory, Registry};
use serde::Serialize;

use crate::arguments::Warm;
use crate::progress::{ProgressMode, WorkProgress, listing};
use crate::{output, settings};

const POLL: Duration = Duration::from_millis(100);

/// The name of this command for the agent.
const JOB: &str = "foreread warm";

#[derive(Serialize)]
struct WarmReport {
    #[serde(flatten)]
    dataset: WarmDataset,
    seconds: f64,
}

pub fn run(options: &Warm, registry: Registry) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let json = settings::is_json(&knobs)?;
    let mut config = foreread_settings::config(&knobs)?;
    // Caches of its own would be a reason to use the agent for data that the kernel caches.
    (config.memory, config.disk, config.job_name) = (Memory::Auto, Vec::new(), Some(JOB.to_owned()));
    let mode = ProgressMode::of(&knobs, 0);
    // Blocks of shards are for samples that are used again.
    let builder = Loader::builder_with(&options.target, config).registry(registry).epochs(2);
    let began = Instant::now();
    let ready = builder.prepare_with(listing(mode, &options.target))?;
    let Some(mut dataset) = ready.warm_agent(true)? else {
        bail!(
            "no agent keeps {}: `foreread agent start` starts one; files that the kernel caches are read \
             through an agent only if --agent names its socket",
            options.target
        );
    };
    if let Some(wait) = options.wait {
        let least = (dataset.samples as f64 * wait.0 / 100.0).ceil() as u64;
        let mut shown = WorkProgress::new(mode, "warming", dataset.samples, "samples");
        while dataset.is_active && dataset.kept_samples < least {
            std::thread::sleep(POLL);
            match ready.warm_agent(false)? {
                Some(now) => dataset = now,
                None => break,
            }
            shown.at(dataset.kept_samples);
        }
    }
    let report = WarmReport { dataset, seconds: began.elapsed().as_secs_f64() };
    if json { settings::print_json(&report) } else { print(&report) }
}

fn print(report: &WarmReport) -> Result<()> {
    let WarmDataset { is_active, held_samples, held_bytes, disk_samples, disk_bytes, samples, .. } =
        report.dataset;
    let goes_on = if is_active { ", and more are being read" } else { "" };
    let on_disk = match disk_samples {
        0 => String::new(),
        _ => format!(", and {disk_samples} on its disks ({})", ByteSize(disk_bytes)),
    };
    let mut out = output::stdout();
    writeln!(
        out,
        "{held_samples} of {samples} samples are in the agent's memory ({}){on_disk}{goes_on}",
        ByteSize(held_bytes)
    )?;
    Ok(out.flush()?)
}
