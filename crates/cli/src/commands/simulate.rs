//! `foreread simulate`: simulates a run on described machines, several jobs with one cache, or
//! whole files of a program that is not changed.
//!
//! Figures go to standard output as a table, JSON or CSV. Refusals of policies go to standard
//! error. Plots follow the figures: bars from them, and the curve of time against cache size from
//! more runs.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use foreread::calibration::Calibration;
use foreread::{Error, ErrorKind};
use foreread_settings::Knobs;
use foreread_simulator::{
    AnyScenario, Comparison, Curve as Rates, FilesComparison, FilesPolicy, FilesScenario, JobsComparison,
    JobsPolicy, JobsScenario, Policy, Scenario, SimulateError, SimulationOutcome,
};
use serde::Serialize;

use crate::arguments::Simulate;
use crate::progress::{ProgressMode, WorkProgress};
use crate::{output, plots, settings};

/// How figures are printed.
#[derive(Clone, Copy)]
enum ReportFormat {
    Text,
    Json,
    Csv,
}

pub fn run(options: &Simulate) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let seeds: u64 = knobs.value("seeds")?;
    if !(1..=Comparison::MAX_SEEDS).contains(&seeds) {
        return Err(knobs.refuse("seeds", format!("must be from 1 to {}", Comparison::MAX_SEEDS)).into());
    }
    match read(&options.scenario)? {
        AnyScenario::Machines(scenario) => machines(&knobs, *scenario, seeds),
        AnyScenario::SeveralJobs(scenario) => several_jobs(&knobs, scenario, seeds),
        AnyScenario::WholeFiles(scenario) => whole_files(&knobs, scenario, seeds),
    }
}

fn machines(knobs: &Knobs, mut scenario: Scenario, seeds: u64) -> Result<()> {
    let show = ProgressMode::of(knobs, 0);
    let policies = policies(knobs, &Policy::ALL)?;
    let plot = plots::file(knobs)?;
    if let Some(path) = calibration(knobs) {
        let measured = foreread_settings::calibration::read(Path::new(path));
        speed(&mut scenario, &measured.map_err(|error| knobs.refuse("calibration", error))?)?;
    }

    let name = scenario.name.clone();
    let compared = WorkProgress::watch(show, format!("simulating {name}"), "batches", |tell| {
        Comparison::run(scenario, &policies, seeds, tell)
    })?;
    for outcome in compared.outcomes() {
        if let Some(why) = &outcome.refused {
            output::complain(&format!("{} refuses {name}: {why}", outcome.policy));
        }
    }
    print(knobs, &compared, &compared.report(), || {
        let rows = compared.outcomes().iter().map(SimulationOutcome::csv);
        let lines = std::iter::once(SimulationOutcome::CSV_HEADER.to_owned()).chain(rows);
        lines.map(|line| line + "\n").collect()
    })?;
    if let Some(path) = plot {
        plots::comparison(&path, &compared, show)?;
    }
    Ok(())
}

fn several_jobs(knobs: &Knobs, scenario: JobsScenario, seeds: u64) -> Result<()> {
    let show = ProgressMode::of(knobs, 0);
    let policies: Vec<JobsPolicy> = policies(knobs, &JobsPolicy::ALL)?;
    without_machines(knobs, "several jobs")?;
    let compared = WorkProgress::watch(show, format!("simulating {}", scenario.name), "policies", |tell| {
        JobsComparison::run(scenario, &policies, seeds, tell)
    })?;
    print(knobs, &compared, &compared.report(), || compared.csv())
}

fn whole_files(knobs: &Knobs, scenario: FilesScenario, seeds: u64) -> Result<()> {
    let show = ProgressMode::of(knobs, 0);
    let policies: Vec<FilesPolicy> = policies(knobs, &FilesPolicy::ALL)?;
    without_machines(knobs, "whole files")?;
    let compared = WorkProgress::watch(show, format!("simulating {}", scenario.name), "policies", |tell| {
        FilesComparison::run(scenario, &policies, seeds, tell)
    })?;
    print(knobs, &compared, &compared.report(), || compared.csv())
}

/// Refuses speeds and plots of time for a scenario that has no machines.
fn without_machines(knobs: &Knobs, kind: &str) -> Result<()> {
    if calibration(knobs).is_some() {
        return Err(knobs.refuse("calibration", format!("does not apply to a scenario of {kind}")).into());
    }
    if knobs.get("plot").is_some() {
        return Err(knobs.refuse("plot", format!("a scenario of {kind} has no plot")).into());
    }
    Ok(())
}

/// Prints figures in the form that was requested.
fn print(
    knobs: &Knobs,
    text: &impl Display,
    report: &impl Serialize,
    csv: impl FnOnce() -> String,
) -> Result<()> {
    let mut out = output::stdout();
    match figures(knobs) {
        ReportFormat::Text => write!(out, "{text}")?,
        ReportFormat::Json => {
            serde_json::to_writer(&mut out, report)?;
            writeln!(out)?;
        }
        ReportFormat::Csv => write!(out, "{}", csv())?,
    }
    Ok(out.flush()?)
}

/// The calibration that was named. A file that was only found would change the machines that the
/// scenario describes.
fn calibration(knobs: &Knobs) -> Option<&str> {
    let calibration = knobs.get("calibration").map(|(path, _)| path);
    calibration.filter(|path| !matches!(*path, "auto" | "off"))
}

fn figures(knobs: &Knobs) -> ReportFormat {
    match knobs.get("report") {
        Some(("json", _)) => ReportFormat::Json,
        Some(("csv", _)) => ReportFormat::Csv,
        _ => ReportFormat::Text,
    }
}

fn policies<P: Copy + FromStr<Err = SimulateError>>(knobs: &Knobs, all: &[P]) -> Result<Vec<P>> {
    match knobs.get("policy").map_or("all", |(value, _)| value) {
        "all" => Ok(all.to_vec()),
        name => match name.parse() {
            Ok(policy) => Ok(vec![policy]),
            Err(error) => Err(Error::new(ErrorKind::Usage, format!("{error} (or all)")).into()),
        },
    }
}

/// Replaces the scenario's speeds by measured ones: the file system's for one client (the total
/// cannot be measured from one client), memory's for the staging buffer and the next class, the
/// first disk's for the class after that.
fn speed(scenario: &mut Scenario, measured: &Calibration) -> Result<()> {
    const MB: f64 = 1e6;
    if let Some(best) = measured.origin.as_ref().and_then(|origin| origin.best()) {
        scenario.pfs_client = best.bytes_per_second as f64 / MB;
    }
    if let Some(memory) = &measured.memory {
        for class in scenario.storage.iter_mut().take(2) {
            let rate = Rates::through(vec![(1, memory.bytes_per_second as f64 / MB)])?;
            (class.read, class.write) = (rate.clone(), rate);
        }
    }
    if let (Some(disk), Some(class)) = (measured.disk.first(), scenario.storage.get_mut(2)) {
        let points = disk.read.iter().map(|point| (point.parallelism, point.bytes_per_second as f64 / MB));
        class.read = Rates::through(points.collect())?;
        class.write = Rates::through(vec![(1, disk.write_bytes_per_second as f64 / MB)])?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<AnyScenario> {
    let usage = |problem: String| Error::new(ErrorKind::Usage, format!("{}: {problem}", path.display()));
    let text = match foreread::read_text(path) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(usage("is not text".to_owned()).into());
        }
        text => text.with_context(|| format!("{} cannot be read", path.display()))?,
    };
    Ok(AnyScenario::from_toml(&text).map_err(|error| usage(error.to_string()))?)
}
