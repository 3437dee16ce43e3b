//! The Python package compared with other loaders:
//! `cargo xtask bench --bench loaders [-- [publish] [GROUPS] [CONTENDERS]]`.
//!
//! 20,000 samples of 90 to 130 kB in shuffled batches of 64 are delivered as bytes to the training
//! process, which accesses each sample. The sources are page-cached files (`local`), the tests' S3
//! server over loopback without latency (`s3-0ms`) and with 40 ms (`s3-40ms`), and Ceph's gateway
//! (`ceph`). Arguments select groups by name and contenders by a part of the name.
//!
//! Each loader reads the format that its documentation recommends, converted in advance. All
//! numbers of workers are tried first, and the best two run the rounds. Contenders are measured in
//! turns, each in a separate process (`peers/contend.py`). CPU time is that of all threads and
//! processes of the contender, without the server's.
//!
//! `publish` replaces the measured groups in the record, and renders the pages and the plot from
//! it. Without it the pages of this run are printed and nothing is written.
//!
//! `FOREREAD_BENCH_PYTHON_PEERS` is a Python interpreter with the other loaders installed. Modules
//! that cannot be imported are reported and skipped.

mod contenders;
mod machine;
mod results;
mod sources;

use anyhow::{Context, Result, bail, ensure};
use foreread_benches::loaders::pages;
use foreread_benches::loaders::record::{GroupRecord, Record, SourceGroup};

use crate::contenders::{CONTENDERS, Contender, LoaderProcesses};
use crate::results::{ContenderRow, RoundResult};
use crate::sources::{DataSource, DataSources};

/// Time limits of an epoch after its first batch, in seconds, in trials of settings and in rounds.
/// A longer epoch is cut short.
const TRIAL_LIMIT: f64 = 2.5;
const EPOCH_LIMIT: f64 = 20.0;

/// The second-best setting has rounds too, if its trial reached this share of the best one's rate.
const CLOSE_SECOND: f64 = 0.5;

/// The word that publishes a run.
const PUBLISH: &str = "publish";

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let mut words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let publishes = words.extract_if(.., |word| word == PUBLISH).count() > 0;
    let mut groups: Vec<SourceGroup> =
        SourceGroup::ALL.into_iter().filter(|group| words.contains(&group.name())).collect();
    words.retain(|word| SourceGroup::ALL.iter().all(|group| group.name() != *word));
    ensure!(
        !publishes || words.is_empty(),
        "only a run of all contenders can be published, not of {words:?}"
    );
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
        let (date, machine) = (machine::today()?, machine::description());
        let rows = measure_contenders(&source, &contenders, &mut libraries)?;
        let rows: Vec<_> = rows.iter().filter_map(ContenderRow::medians).collect();
        let mut versions = libraries.versions().clone();
        versions.insert("foreread".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        measured.push(GroupRecord { group, date, machine, versions, rows });
    }
    if measured.iter().all(|group| group.rows.is_empty()) {
        bail!("nothing was measured: no contender matches {words:?}");
    }
    if !publishes {
        println!("{}", pages::summary(&Record { groups: measured }));
        return Ok(());
    }
    let unavailable = libraries.unavailable();
    ensure!(unavailable.is_empty(), "a published run needs the contenders of {unavailable:?}");
    let directory = pages::directory();
    let path = directory.join(pages::RECORD);
    let mut record = Record::load(&path)?;
    record.update(measured);
    record.save(&path)?;
    pages::write(&directory, &record)
}

/// Measures all contenders with one data source: trials of the settings, then rounds in turns.
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
        let chosen = if settings.len() == 1 { settings.to_vec() } else { best_settings(&tried) };
        rows.extend(chosen.into_iter().map(|setting| ContenderRow::new(contender, setting, tried.clone())));
    }
    for round in 1..=source.group.rounds() {
        for row in &mut rows {
            let later = if source.group == SourceGroup::Local { 2 } else { 1 };
            match source.measure(libraries, row.contender, row.setting, EPOCH_LIMIT, later)? {
                Ok(result) => row.results.push(result),
                Err(why) => eprintln!("{}: {why}", row.contender.name),
            }
        }
        eprintln!("{}: round {round} of {} done", source.group.name(), source.group.rounds());
    }
    Ok(rows)
}

/// The best setting of the trials, and the second-best one if it is close.
fn best_settings(tried: &[(u32, f64)]) -> Vec<u32> {
    let mut ranked = tried.to_vec();
    ranked.sort_by(|one, other| other.1.total_cmp(&one.1));
    let close = ranked.first().map_or(0.0, |best| best.1 * CLOSE_SECOND);
    ranked.iter().take(2).filter(|(_, rate)| *rate >= close).map(|(setting, _)| *setting).collect()
}

impl DataSource<'_> {
    /// Measures one contender and prints a progress line.
    fn measure(
        &self,
        libraries: &mut LoaderProcesses,
        contender: &Contender,
        setting: u32,
        limit: f64,
        later: u64,
    ) -> Result<std::result::Result<RoundResult, String>> {
        self.reset();
        let answer = libraries.run_job(contender.module, &self.job(contender, setting, limit, later))?;
        let result = answer.and_then(|answer| self.result(&answer));
        if let Ok(result) = &result {
            eprintln!("{}: {} ({setting}): {result}", self.group.name(), contender.name);
        }
        Ok(result)
    }
}
