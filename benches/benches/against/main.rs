//! Compares two builds of the command: `cargo xtask bench --against COMMIT`.
//!
//! Both builds run each scenario in turn, eleven times. The figure is the ratio of their times, new
//! to old, per pair. A machine that gets slower or busier affects both runs of a pair. The table
//! has the median of the ratios and the interval between the third and the ninth of eleven. The
//! interval holds the true median in 93 of 100 cases for any distribution. A scenario passes if the
//! interval begins at 1.03 or below. The price is twenty-two runs of some seconds for every
//! scenario.
//!
//! The time is that of the epochs after the first, from the runs' own reports. It does not include
//! startup.

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod pairs;
mod scenario;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use foreread_benches::files;
use foreread_tier_testing::store::{HttpStore, NumberedObjects};

use pairs::{PairRatios, median};
use scenario::{CommandScenario, scenarios};

/// Pairs of each scenario. `pairs::PairRatios::interval` assumes this number.
const PAIRS: usize = 11;

/// The highest start of an interval that passes.
const MAX_RATIO: f64 = 1.03;

const FILES: usize = 4000;
const BYTES: u64 = 100_000;

/// The path of a build of the command.
fn build(variable: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable);
    Ok(path
        .with_context(|| format!("{variable} is not set: run `cargo xtask bench --against COMMIT`"))?
        .into())
}

fn main() -> Result<()> {
    let (new, old) = (build("FOREREAD_BENCH_NEW")?, build("FOREREAD_BENCH_OLD")?);
    let made = tempfile::tempdir()?;
    let data = made.path().join("data");
    std::fs::create_dir(&data)?;
    let bytes = files::write_samples(&data, FILES, BYTES * 9 / 10, BYTES * 11 / 10)?;
    let store = HttpStore::start();
    store.numbered("bench", NumberedObjects::new(FILES as u64, BYTES));
    println!("{FILES} samples of {} MB in all; {PAIRS} pairs, new / old", bytes / 1_000_000);
    println!("{:<22} {:>8} {:>16} {:>10} {:>10}", "", "median", "93 % interval", "new, s", "old, s");
    let mut slower = Vec::new();
    for scenario in scenarios(&data, &store.endpoint()) {
        let ratios = measure(&scenario, &new, &old)?;
        let (low, high) = ratios.interval();
        println!(
            "{:<22} {:>8.3} {:>7.3} to {:>5.3} {:>10.3} {:>10.3}",
            scenario.name,
            ratios.median(),
            low,
            high,
            median(&ratios.new),
            median(&ratios.old),
        );
        if low > MAX_RATIO {
            slower.push(scenario.name);
        }
    }
    anyhow::ensure!(slower.is_empty(), "slower by more than 3 %: {}", slower.join(", "));
    Ok(())
}

fn measure(scenario: &CommandScenario, new: &Path, old: &Path) -> Result<PairRatios> {
    let mut ratios = PairRatios::default();
    // Warm-up: one run of each build fills the page cache and opens connections.
    scenario.run(old)?;
    scenario.run(new)?;
    for pair in 0..PAIRS {
        // The builds alternate as the first of a pair.
        let (first, second) = if pair % 2 == 0 { (new, old) } else { (old, new) };
        let (first, second) = (scenario.run(first)?, scenario.run(second)?);
        let (new, old) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        ratios.push(new, old);
    }
    Ok(ratios)
}
