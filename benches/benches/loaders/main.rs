//! The Python package compared with other loaders:
//! `cargo xtask bench --bench loaders [-- FILE.svg] [GROUPS] [CONTENDERS]`.
//!
//! 20,000 samples of 90 to 130 kB in shuffled batches of 64 are delivered as bytes to the training
//! process, which accesses each sample. The sources are page-cached files (`local`), the tests' S3
//! server over loopback without latency (`s3-0ms`) and with 40 ms (`s3-40ms`), and Ceph's gateway
//! (`ceph`). Arguments select groups by name and contenders by a part of the name.
//!
//! Each loader reads the format that its documentation recommends, converted in advance. All
//! numbers of workers are tried first, and the best one runs the rounds. Contenders are measured in
//! turns, each in a separate process (`peers/contend.py`). CPU time is that of all threads and
//! processes of the contender, without the server's.
//!
//! `FOREREAD_BENCH_PYTHON_PEERS` is a Python interpreter with the other loaders installed. Modules
//! that cannot be imported are reported and skipped.

mod contenders;
mod plot;
mod results;
mod sources;
mod table;
mod targets;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::contenders::{CONTENDERS, Contender, LoaderProcesses, Role, SampleFormat};
use crate::results::{ContenderRow, RoundResult, WorkerSettings};
use crate::sources::{DataSource, DataSources, SourceGroup};

/// Time limits of an epoch after its first batch, in seconds. A longer epoch is cut short. The
/// first applies to trials of settings, the second to loaders that read raw samples and cache none.
/// The third applies to loaders whose warm epochs need the complete cold epoch.
const TRIAL_LIMIT: f64 = 2.5;
const EPOCH_LIMIT: f64 = 6.0;
const COMPLETE_EPOCH_LIMIT: f64 = 20.0;

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let mut words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let file = words.extract_if(.., |word| word.ends_with(".svg")).last();
    let file = file.map_or_else(|| PathBuf::from("loaders.svg"), PathBuf::from);
    let mut groups: Vec<SourceGroup> =
        SourceGroup::ALL.into_iter().filter(|group| words.contains(&group.name())).collect();
    words.retain(|word| SourceGroup::ALL.iter().all(|group| group.name() != *word));
    if groups.is_empty() {
        groups.extend(SourceGroup::ALL);
    }
    let is_selected =
        |of: &&Contender| words.is_empty() || words.iter().any(|word| of.name.contains(word.as_str()));
    let contenders: Vec<_> = CONTENDERS.iter().filter(is_selected).collect();
    let python = std::env::var_os("FOREREAD_BENCH_PYTHON_PEERS")
        .context("FOREREAD_BENCH_PYTHON_PEERS is not set: see benches/README.md")?;
    let package = std::env::var_os("FOREREAD_BENCH_PACKAGE")
        .context("FOREREAD_BENCH_PACKAGE is not set: run `cargo xtask bench --bench loaders`")?;
    let mut libraries = LoaderProcesses::new(python.into(), package.into());
    let home = tempfile::tempdir()?;
    let mut sources = DataSources::new(home.path());
    let mut measured = Vec::new();
    for group in groups {
        let Some(source) = sources.open(group, &contenders, &mut libraries)? else {
            eprintln!("{}: skipped, Ceph is not running", group.name());
            continue;
        };
        let rows = measure_contenders(&source, &contenders, &mut libraries)?;
        table::print(group, &rows);
        measured.push((group, rows));
    }
    if measured.iter().all(|(_, rows)| rows.is_empty()) {
        bail!("nothing was measured: no contender matches {words:?}");
    }
    table::versions(libraries.versions());
    foreread_benches::table::print(
        &measured.iter().flat_map(|(group, rows)| targets::figures(*group, rows)).collect::<Vec<_>>(),
    );
    draw(&file, &measured)
}

fn draw(file: &Path, measured: &[(SourceGroup, Vec<ContenderRow>)]) -> Result<()> {
    plot::draw(file, measured).with_context(|| format!("drawing {}", file.display()))?;
    println!("\nplot: {}", file.display());
    Ok(())
}

/// Measures all contenders with one data source: the best setting of each, then rounds in turns.
fn measure_contenders(
    source: &DataSource<'_>,
    contenders: &[&'static Contender],
    libraries: &mut LoaderProcesses,
) -> Result<Vec<ContenderRow>> {
    let mut rows = Vec::new();
    for contender in contenders {
        let settings = contender.settings(source.group);
        if settings.is_empty() || !libraries.has(contender.module)? {
            continue;
        }
        let mut tried = Vec::new();
        for &setting in settings {
            // A single setting needs no trial.
            if settings.len() == 1 {
                break;
            }
            match source.measure(
                libraries,
                contender,
                setting,
                TRIAL_LIMIT,
                u64::from(source.group == SourceGroup::Local),
            )? {
                Ok(result) => tried.push((setting, result.steady())),
                Err(why) => eprintln!("{}, {setting}: {why}", contender.name),
            }
        }
        let best = tried.iter().max_by(|one, other| one.1.total_cmp(&other.1)).map(|(setting, _)| *setting);
        let Some(best) = best.or((settings.len() == 1).then(|| settings[0])) else { continue };
        rows.push(ContenderRow::new(contender, WorkerSettings { best, tried }));
    }
    for round in 1..=source.group.rounds() {
        for row in &mut rows {
            let cuts = row.has_role(Role::Peer) && row.contender.format == SampleFormat::Raw;
            let limit = if cuts { EPOCH_LIMIT } else { COMPLETE_EPOCH_LIMIT };
            let warm = if source.group == SourceGroup::Local { 2 } else { 1 };
            match source.measure(libraries, row.contender, row.settings.best, limit, warm)? {
                Ok(result) => row.results.push(result),
                Err(why) => eprintln!("{}: {why}", row.contender.name),
            }
        }
        eprintln!("{}: round {round} of {} done", source.group.name(), source.group.rounds());
    }
    rows.retain(|row| !row.results.is_empty());
    Ok(rows)
}

impl DataSource<'_> {
    /// Measures one contender and prints a progress line.
    fn measure(
        &self,
        libraries: &mut LoaderProcesses,
        contender: &Contender,
        setting: u32,
        limit: f64,
        warm: u64,
    ) -> Result<std::result::Result<RoundResult, String>> {
        self.reset();
        let answer =
            libraries.run_job(contender.module, &self.job(contender.function, setting, limit, warm))?;
        let result = answer.and_then(|answer| self.result(&answer));
        if let Ok(result) = &result {
            eprintln!("{}: {} ({setting}): {result}", self.group.name(), contender.name);
        }
        Ok(result)
    }
}
