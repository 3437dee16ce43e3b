//! Two builds of the command against each other: `cargo xtask bench --against COMMIT`.
//!
//! Each scenario is run by both builds in turn, eleven times, and the figure is the ratio of their times pair by pair, new
//! to old: a machine that gets slower or busier meanwhile is in both halves of a pair. Printed are the median of the ratios
//! and the interval between the third and the ninth of eleven, which holds the true median in 93 of 100 cases whatever the
//! distribution. A scenario passes if that interval begins at 1.03 or below. The price is a run of every scenario of some
//! seconds, twenty-two times.
//!
//! Epochs after the first are measured, as the runs' own reports have them: what starting costs is not in it.

#![allow(clippy::print_stdout, reason = "a bench prints its table")]

mod pairs;
mod scenario;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use foreread_benches::files;
use foreread_tier_testing::store::{Numbered, Store};

use pairs::{Ratios, median};
use scenario::{Scenario, scenarios};

/// Pairs of each scenario; `pairs::Ratios::interval` is for this many.
const PAIRS: usize = 11;

/// The highest lower end of an interval that passes.
const MOST: f64 = 1.03;

const FILES: usize = 4000;
const BYTES: u64 = 100_000;

/// A build of the command.
fn build(variable: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable);
    Ok(path
        .with_context(|| format!("{variable} names no build; run `cargo xtask bench --against COMMIT`"))?
        .into())
}

fn main() -> Result<()> {
    let (new, old) = (build("FOREREAD_BENCH_NEW")?, build("FOREREAD_BENCH_OLD")?);
    let made = tempfile::tempdir()?;
    let data = made.path().join("data");
    std::fs::create_dir(&data)?;
    let bytes = files::make(&data, FILES, BYTES * 9 / 10, BYTES * 11 / 10)?;
    let store = Store::start();
    store.numbered("bench", Numbered::new(FILES as u64, BYTES));
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
        if low > MOST {
            slower.push(scenario.name);
        }
    }
    anyhow::ensure!(slower.is_empty(), "slower by more than 3 %: {}", slower.join(", "));
    Ok(())
}

fn measure(scenario: &Scenario, new: &Path, old: &Path) -> Result<Ratios> {
    let mut ratios = Ratios::default();
    // One of each before anything counts: pages and connections are there for both.
    scenario.run(old)?;
    scenario.run(new)?;
    for pair in 0..PAIRS {
        // Who is first in a pair takes turns.
        let (first, second) = if pair % 2 == 0 { (new, old) } else { (old, new) };
        let (one, two) = (scenario.run(first)?, scenario.run(second)?);
        let (new, old) = if pair % 2 == 0 { (one, two) } else { (two, one) };
        ratios.push(new, old);
    }
    Ok(ratios)
}
