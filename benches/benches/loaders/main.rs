//! The Python package beside other loaders: `cargo xtask bench --bench loaders [-- FILE.svg] [GROUPS] [CONTENDERS]`.
//!
//! 20,000 samples of 90 to 130 kB, shuffled batches of 64, delivered as bytes to the process that trains, which looks at each
//! sample: from page-cached files (`local`), from this project's own S3 store over loopback as fast as it answers
//! (`s3-0ms`) and 40 ms late (`s3-40ms`), and from Ceph's gateway (`ceph`). Words choose groups by their names and contenders by
//! parts of theirs.
//!
//! Each loader reads the form that its documentation recommends, converted beforehand, with the workers that suit it best: all
//! numbers are tried first, and the best has the further rounds. Contenders are measured in turns, each in a process of its own
//! (`peers/contend.py`), whose CPU time is that of all its threads and processes, the server's not among it.
//!
//! `FOREREAD_BENCH_PYTHON_PEERS` names a Python that has them; what it cannot import is left out, and said.

mod asked;
mod contenders;
mod outcome;
mod place;
mod plot;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::contenders::{CONTENDERS, Contender, Form, Kind, Libraries};
use crate::outcome::{Outcome, Row, Settings};
use crate::place::{Group, Place, Places};

/// An epoch that goes on longer after its first batch is cut short, in seconds: while the best number of workers is looked
/// for; of those who read sample by sample and keep nothing; of those whose warm epochs need the whole of the cold one.
const MOST_OF_TRIAL: f64 = 2.5;
const MOST: f64 = 6.0;
const MOST_OF_WHOLE: f64 = 20.0;

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let mut words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let file = words.extract_if(.., |word| word.ends_with(".svg")).last();
    let file = file.map_or_else(|| PathBuf::from("loaders.svg"), PathBuf::from);
    let mut groups: Vec<Group> =
        Group::ALL.into_iter().filter(|group| words.contains(&group.name())).collect();
    words.retain(|word| Group::ALL.iter().all(|group| group.name() != *word));
    if groups.is_empty() {
        groups.extend(Group::ALL);
    }
    let is_meant =
        |of: &&Contender| words.is_empty() || words.iter().any(|word| of.name.contains(word.as_str()));
    let contenders: Vec<_> = CONTENDERS.iter().filter(is_meant).collect();
    let python = std::env::var_os("FOREREAD_BENCH_PYTHON_PEERS")
        .context("FOREREAD_BENCH_PYTHON_PEERS names no Python; see benches/README.md")?;
    let package = std::env::var_os("FOREREAD_BENCH_PACKAGE")
        .context("FOREREAD_BENCH_PACKAGE names no package: run `cargo xtask bench --bench loaders`")?;
    let mut libraries = Libraries::new(python.into(), package.into());
    let home = tempfile::tempdir()?;
    let mut places = Places::new(home.path());
    let mut found = Vec::new();
    for group in groups {
        let Some(place) = places.open(group, &contenders, &mut libraries)? else {
            eprintln!("{}: none, as Ceph is not there", group.name());
            continue;
        };
        let rows = contest(&place, &contenders, &mut libraries)?;
        table::print(group, &rows);
        found.push((group, rows));
    }
    if found.iter().all(|(_, rows)| rows.is_empty()) {
        bail!("nothing was measured: no contender is called {words:?}");
    }
    table::versions(libraries.versions());
    foreread_benches::table::print(
        &found.iter().flat_map(|(group, rows)| asked::figures(*group, rows)).collect::<Vec<_>>(),
    );
    draw(&file, &found)
}

fn draw(file: &Path, found: &[(Group, Vec<Row>)]) -> Result<()> {
    plot::draw(file, found).with_context(|| format!("drawing {}", file.display()))?;
    println!("\nplot: {}", file.display());
    Ok(())
}

/// All contenders from one place: the best setting of each, then rounds in turns.
fn contest(
    place: &Place<'_>,
    contenders: &[&'static Contender],
    libraries: &mut Libraries,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for contender in contenders {
        let settings = contender.settings(place.group);
        if settings.is_empty() || !libraries.has(contender.module)? {
            continue;
        }
        let mut tried = Vec::new();
        for &setting in settings {
            // One setting needs no trial.
            if settings.len() == 1 {
                break;
            }
            match place.ask(
                libraries,
                contender,
                setting,
                MOST_OF_TRIAL,
                u64::from(place.group == Group::Local),
            )? {
                Ok(outcome) => tried.push((setting, outcome.steady())),
                Err(why) => eprintln!("{}, {setting}: {why}", contender.name),
            }
        }
        let best = tried.iter().max_by(|one, other| one.1.total_cmp(&other.1)).map(|(setting, _)| *setting);
        let Some(best) = best.or((settings.len() == 1).then(|| settings[0])) else { continue };
        rows.push(Row::new(contender, Settings { best, tried }));
    }
    for round in 1..=place.group.rounds() {
        for row in &mut rows {
            let cuts = row.is(Kind::Peer) && row.contender.form == Form::Raw;
            let most = if cuts { MOST } else { MOST_OF_WHOLE };
            let warm = if place.group == Group::Local { 2 } else { 1 };
            match place.ask(libraries, row.contender, row.settings.best, most, warm)? {
                Ok(outcome) => row.outcomes.push(outcome),
                Err(why) => eprintln!("{}: {why}", row.contender.name),
            }
        }
        eprintln!("{}: round {round} of {} done", place.group.name(), place.group.rounds());
    }
    rows.retain(|row| !row.outcomes.is_empty());
    Ok(rows)
}

impl Place<'_> {
    /// One contender's outcome, and a line that says how it goes.
    fn ask(
        &self,
        libraries: &mut Libraries,
        contender: &Contender,
        setting: u32,
        most: f64,
        warm: u64,
    ) -> Result<std::result::Result<Outcome, String>> {
        self.reset();
        let answer = libraries.ask(contender.module, &self.job(contender.who, setting, most, warm))?;
        let outcome = answer.and_then(|answer| self.outcome(&answer));
        if let Ok(outcome) = &outcome {
            eprintln!("{}: {} ({setting}): {outcome}", self.group.name(), contender.name);
        }
        Ok(outcome)
    }
}
