//! `foreread simulate`: a run played through on machines that are only described.
//!
//! Figures go to standard output as a table, JSON or CSV; why a policy refuses a scenario goes to standard error. Plots
//! are drawn after the figures are known: bars from them, and the curve of time against cache size from further runs.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use foreread::{Calibration, Error, ErrorKind, Knobs};
use foreread_simulator::{Curve as Rates, Figures, Outcome, Policy, Scenario, Simulation};
use serde::Serialize;

use crate::arguments::Simulate;
use crate::plot::{self, Curve};
use crate::progress::Work;
use crate::{output, settings};

/// The cache sizes of the second plot, as parts of the dataset.
const SHARES: [f64; 10] = [0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0];

/// The most seeds that are averaged.
const MOST_SEEDS: u64 = 1000;

/// How figures are printed.
#[derive(Clone, Copy)]
enum Format {
    Table,
    Json,
    Csv,
}

pub fn run(options: &Simulate) -> Result<()> {
    let knobs = settings::gather(options.given())?;
    if options.explain {
        return settings::explain(&knobs);
    }
    let format = format(&knobs)?;
    let policies = policies(&knobs)?;
    let seeds: u64 = knobs.parse("seeds")?.unwrap_or(1);
    if !(1..=MOST_SEEDS).contains(&seeds) {
        return Err(knobs.refuse("seeds", format!("it is from 1 to {MOST_SEEDS}")).into());
    }
    let plot = knobs.get("plot").map(|(path, _)| PathBuf::from(path));
    let mut scenario = read(&options.scenario)?;
    if let Some((path, _)) = knobs.get("calibration") {
        let measured = Calibration::read(Path::new(path));
        speed(&mut scenario, &measured.map_err(|error| knobs.refuse("calibration", error))?)?;
    }
    if let Some(plot) = &plot {
        check_writable(plot)?;
    }

    let simulated = simulate(&scenario, &policies, seeds)?;
    for outcome in &simulated.outcomes {
        if let Some(why) = &outcome.refused {
            output::complain(&format!("{} refuses {}: {why}", outcome.policy, scenario.name));
        }
    }
    let mut out = output::stdout();
    match format {
        Format::Table => print_table(&mut out, &scenario, &simulated)?,
        Format::Json => {
            serde_json::to_writer(&mut out, &Report::new(&scenario, &simulated))?;
            writeln!(out)?;
        }
        Format::Csv => {
            writeln!(out, "{}", Outcome::CSV_HEADER)?;
            for outcome in &simulated.outcomes {
                writeln!(out, "{}", outcome.csv())?;
            }
        }
    }
    out.flush()?;
    if let Some(path) = plot {
        draw(&path, &scenario, &policies, &simulated)?;
    }
    Ok(())
}

fn format(knobs: &Knobs) -> Result<Format> {
    match knobs.get("format").map_or("table", |(value, _)| value) {
        "table" => Ok(Format::Table),
        "json" => Ok(Format::Json),
        "csv" => Ok(Format::Csv),
        _ => Err(knobs.refuse("format", "it is table, json or csv").into()),
    }
}

fn policies(knobs: &Knobs) -> Result<Vec<Policy>> {
    match knobs.get("policy").map_or("all", |(value, _)| value) {
        "all" => Ok(Policy::ALL.to_vec()),
        name => match name.parse() {
            Ok(policy) => Ok(vec![policy]),
            Err(error) => Err(Error::new(ErrorKind::Usage, format!("{error} (or all)")).into()),
        },
    }
}

/// Puts measured speeds in the place of the scenario's: what one client gets from the file system (how many clients share
/// it nobody can measure from one), memory's for the staging buffer and the class after it, the first disk's for the
/// next.
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

fn read(path: &Path) -> Result<Scenario> {
    let usage = |problem: String| Error::new(ErrorKind::Usage, format!("{}: {problem}", path.display()));
    let text = match foreread::read_text(path) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(usage("is not text".to_owned()).into());
        }
        text => text.with_context(|| format!("{} cannot be read", path.display()))?,
    };
    Ok(Scenario::from_toml(&text).map_err(|error| usage(error.to_string()))?)
}

/// What was simulated.
struct Simulated {
    outcomes: Vec<Outcome>,
    /// MB of the dataset, the mean over the seeds.
    dataset_mb: f64,
    seeds: u64,
}

/// Runs every policy with every seed, and averages each policy's runs.
fn simulate(scenario: &Scenario, policies: &[Policy], seeds: u64) -> Result<Simulated> {
    let mut runs: Vec<Vec<Outcome>> = vec![Vec::new(); policies.len()];
    let mut work: Option<Steps> = None;
    let mut dataset_mb = 0.0;
    for seed in 0..seeds {
        let simulation = Simulation::new(scenario, scenario.seed.wrapping_add(seed))?;
        dataset_mb += simulation.dataset_mb() / seeds as f64;
        let total = policies.iter().map(|&policy| simulation.steps(policy)).sum::<u64>() * seeds;
        let work = work.get_or_insert_with(|| Steps::new(format!("simulating {}", scenario.name), total));
        for (&policy, runs) in policies.iter().zip(&mut runs) {
            runs.push(work.run(&simulation, policy));
        }
    }
    let outcomes = runs.iter().filter_map(|runs| Outcome::mean(runs)).collect();
    Ok(Simulated { outcomes, dataset_mb, seeds })
}

/// Progress over batches; a policy that refuses is done at once.
struct Steps {
    work: Work,
    done: u64,
}

impl Steps {
    fn new(label: String, total: u64) -> Self {
        Self { work: Work::new(label, total, "batches"), done: 0 }
    }

    fn run(&mut self, simulation: &Simulation, policy: Policy) -> Outcome {
        let began = self.done;
        let outcome = simulation.run(policy, &mut || {
            self.done += 1;
            // A bar that is told of every batch would cost more than the batches.
            if self.done.is_multiple_of(256) {
                self.work.at(self.done);
            }
        });
        self.done = began + simulation.steps(policy);
        self.work.at(self.done);
        outcome
    }
}

/// What `--format json` prints.
#[derive(Serialize)]
struct Report<'a> {
    scenario: &'a str,
    workers: usize,
    samples: u32,
    epochs: u32,
    batch: u32,
    dataset_mb: f64,
    cache_mb: f64,
    seed: u64,
    seeds: u64,
    policies: &'a [Outcome],
}

impl<'a> Report<'a> {
    fn new(scenario: &'a Scenario, simulated: &'a Simulated) -> Self {
        Self {
            scenario: &scenario.name,
            workers: scenario.workers,
            samples: scenario.samples,
            epochs: scenario.epochs,
            batch: scenario.batch,
            dataset_mb: simulated.dataset_mb,
            cache_mb: cache_mb(scenario),
            seed: scenario.seed,
            seeds: simulated.seeds,
            policies: &simulated.outcomes,
        }
    }
}

/// The MB of all workers' cache classes together.
fn cache_mb(scenario: &Scenario) -> f64 {
    // The sum of nothing is -0.0.
    scenario.storage.iter().skip(1).map(|class| class.capacity).sum::<f64>() * scenario.workers as f64 + 0.0
}

/// The scenario in one line.
fn headline(scenario: &Scenario, dataset_mb: f64, seeds: u64) -> String {
    let mut line = format!(
        "{} workers, {} samples, {}, {} epochs; caches of {} in all",
        scenario.workers,
        scenario.samples,
        quantity(dataset_mb),
        scenario.epochs,
        quantity(cache_mb(scenario))
    );
    if seeds > 1 {
        let _ = write!(line, "; means of {seeds} seeds");
    }
    line
}

/// MB, GB or TB, whichever reads best.
fn quantity(mb: f64) -> String {
    match mb {
        mb if mb >= 1e6 => format!("{:.4} TB", mb / 1e6),
        mb if mb >= 1e3 => format!("{:.1} GB", mb / 1e3),
        mb => format!("{mb:.1} MB"),
    }
}

fn print_table(out: &mut impl Write, scenario: &Scenario, simulated: &Simulated) -> Result<()> {
    writeln!(out, "{}: {}", scenario.name, headline(scenario, simulated.dataset_mb, simulated.seeds))?;
    writeln!(
        out,
        "{:18} {:>11} {:>9} | {:>6} {:>6} {:>6} | {:>12} {:>8}",
        "policy", "seconds", "stalled", "origin", "peers", "local", "origin MB", "x floor"
    )?;
    for outcome in &simulated.outcomes {
        match &outcome.figures {
            None => writeln!(out, "{:18} {:>11}", outcome.policy, "refused")?,
            Some(f) => {
                let [origin, peers, local] = shares(f);
                writeln!(
                    out,
                    "{:18} {:>11.2} {:>9.2} | {origin:>6} {peers:>6} {local:>6} | {:>12.1} {:>8.3}",
                    outcome.policy,
                    f.seconds,
                    f.init_stall_seconds,
                    f.pfs_mb,
                    f.pfs_mb / f.floor_pfs_mb
                )?;
            }
        }
    }
    writeln!(
        out,
        "stalled: seconds before the first batch. origin, peers, local: where accesses were served from, ahead or on \
         demand."
    )?;
    Ok(())
}

/// The parts of all accesses that came from the origin, other workers and this worker; none where nothing was read.
fn shares(f: &Figures) -> [String; 3] {
    let all = f.served_pfs + f.served_remote + f.served_local;
    [f.served_pfs, f.served_remote, f.served_local].map(|part| match all {
        0.0 => "-".to_owned(),
        all => format!("{:.1}%", 100.0 * part / all),
    })
}

/// Fails early where the plot could not be written after minutes of work.
fn check_writable(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_there = directory.is_none_or(Path::is_dir);
    if path.is_dir() || !is_there || path.file_name().is_none() {
        let message = format!("--plot {}: give a file in a directory that exists", path.display());
        return Err(Error::new(ErrorKind::Usage, message).into());
    }
    Ok(())
}

/// `FILE.svg` and `FILE-cache.svg`.
fn cache_plot(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or_else(String::new, |text| format!(".{}", text.to_string_lossy()));
    path.with_file_name(format!("{stem}-cache{extension}"))
}

fn draw(path: &Path, scenario: &Scenario, policies: &[Policy], simulated: &Simulated) -> Result<()> {
    let bars = headline(scenario, simulated.dataset_mb, simulated.seeds);
    let svg = plot::bars(&scenario.name, &bars, &simulated.outcomes)?;
    std::fs::write(path, svg).with_context(|| format!("{} cannot be written", path.display()))?;
    if scenario.storage.len() < 2 {
        output::complain("the scenario has no cache class, so there is no plot of time against cache size");
        return Ok(());
    }
    let (bound, curves) = sweep(scenario, policies)?;
    // Curves are of the first seed alone.
    let curve = headline(scenario, simulated.dataset_mb, 1);
    let svg = plot::against_cache(&scenario.name, &curve, bound, &curves)?;
    let path = cache_plot(path);
    std::fs::write(&path, svg).with_context(|| format!("{} cannot be written", path.display()))
}

/// Every policy's seconds by cache size, and the bound's. Policies without a cache are run once.
fn sweep(scenario: &Scenario, policies: &[Policy]) -> Result<(f64, Vec<Curve>)> {
    let first = Simulation::new(scenario, scenario.seed)?;
    let cost =
        |policy: &Policy| first.steps(*policy) * if policy.has_cache() { SHARES.len() as u64 } else { 1 };
    let total = policies.iter().map(cost).sum();
    let mut work = Steps::new(format!("cache sizes of {}", scenario.name), total);
    let seconds = |outcome: Outcome| outcome.figures.map(|figures| figures.seconds);
    let mut curves: Vec<Curve> = policies
        .iter()
        .filter(|&&policy| policy != Policy::LowerBound)
        .map(|&policy| Curve { policy, points: Vec::new() })
        .collect();
    for curve in curves.iter_mut().filter(|curve| !curve.policy.has_cache()) {
        if let Some(seconds) = seconds(work.run(&first, curve.policy)) {
            curve.points = SHARES.map(|share| (share, seconds)).to_vec();
        }
    }
    for share in SHARES {
        let simulation = Simulation::new(&scenario.with_cache_share(share), scenario.seed)?;
        for curve in curves.iter_mut().filter(|curve| curve.policy.has_cache()) {
            if let Some(seconds) = seconds(work.run(&simulation, curve.policy)) {
                curve.points.push((share, seconds));
            }
        }
    }
    let bound = seconds(first.run(Policy::LowerBound, &mut || ())).unwrap_or_default();
    Ok((bound, curves))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_plot_lies_beside_the_first() {
        for (path, second) in [("a/b.svg", "a/b-cache.svg"), ("b", "b-cache"), ("x.y.svg", "x.y-cache.svg")] {
            assert_eq!(cache_plot(Path::new(path)), Path::new(second));
        }
    }
}
