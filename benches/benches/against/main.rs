//! Compares two builds of the command: `cargo xtask bench --against COMMIT`.
//!
//! Both builds run each scenario in turn, eleven times. The figure is the ratio of their times, new
//! to old, per pair. A machine that gets slower or busier affects both runs of a pair. The table
//! has the median of the ratios and the interval between the third and the ninth of eleven. The
//! interval holds the true median in 93 of 100 cases for any distribution. A scenario passes if the
//! interval begins at 1.03 or below. The price is twenty-two runs of some seconds for every
//! scenario.
//!
//! The time is that of the epochs after the first, from the runs' own reports. Some scenarios
//! measure the first epoch instead. It does not include startup. The CPU time is that of the whole
//! process. Before each run memory is touched and freed, so that no run pays for pages that a
//! virtual machine's host has to provide.

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod pairs;
mod scenario;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use foreread_benches::files;
use foreread_tier_testing::store::{HttpStore, NumberedObjects};

use pairs::{PairRatios, median};
use scenario::{CommandScenario, Data, RunCost, scenarios};

/// Pairs of each scenario. `pairs::PairRatios::interval` assumes this number.
const PAIRS: usize = 11;

/// The highest start of an interval that passes.
const MAX_RATIO: f64 = 1.03;

const FILES: usize = 4000;
const BYTES: u64 = 100_000;

/// Larger files, and the files in a shard.
const LARGE_FILES: usize = 2000;
const LARGE_BYTES: u64 = 320_000;
const SHARD_FILES: usize = 500;

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
    let [data, large, shards] = ["data", "large", "shards"].map(|name| made.path().join(name));
    for directory in [&data, &large, &shards] {
        std::fs::create_dir(directory)?;
    }
    let bytes = files::write_samples(&data, FILES, BYTES * 9 / 10, BYTES * 11 / 10)?;
    files::write_samples(&large, LARGE_FILES, LARGE_BYTES * 9 / 10, LARGE_BYTES * 11 / 10)?;
    let store = HttpStore::start();
    store.numbered("bench", NumberedObjects::new(FILES as u64, BYTES));
    store.bucket("shards");
    for (name, shard) in pack(&data, &shards)? {
        store.put("shards", &name, shard);
    }
    println!("{FILES} samples of {} MB in all; {PAIRS} pairs, new / old", bytes / 1_000_000);
    println!("{}", huge_pages());
    println!(
        "{:<22} {:>8} {:>16} {:>10} {:>10} {:>8} {:>10} {:>10}",
        "", "median", "93 % interval", "new, s", "old, s", "CPU", "new, s", "old, s"
    );
    let mut slower = Vec::new();
    let data = Data { files: &data, large: &large, shards: &shards };
    for scenario in scenarios(&data, &store.endpoint()) {
        let (ratios, cpu) = measure(&scenario, &new, &old)?;
        let (low, high) = ratios.interval();
        println!(
            "{:<22} {:>8.3} {:>7.3} to {:>5.3} {:>10.3} {:>10.3} {:>8.3} {:>10.3} {:>10.3}",
            scenario.name,
            ratios.median(),
            low,
            high,
            median(&ratios.new),
            median(&ratios.old),
            cpu.median(),
            median(&cpu.new),
            median(&cpu.old),
        );
        if low > MAX_RATIO {
            slower.push(scenario.name);
        }
    }
    anyhow::ensure!(slower.is_empty(), "slower by more than 3 %: {}", slower.join(", "));
    Ok(())
}

/// Packs the files of `data` into tar shards in `shards`. Returns their names and bytes.
fn pack(data: &Path, shards: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut names: Vec<_> =
        std::fs::read_dir(data)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    let mut packed = Vec::new();
    for (number, names) in names.chunks(SHARD_FILES).enumerate() {
        let name = format!("{number:03}.tar");
        let shard = shards.join(&name);
        let mut tar = Command::new("tar");
        tar.arg("--create").arg("--file").arg(&shard).arg("--directory").arg(data).args(names);
        anyhow::ensure!(tar.status().context("tar cannot be run")?.success(), "tar failed");
        packed.push((name, std::fs::read(&shard)?));
    }
    Ok(packed)
}

/// The kernel's settings of huge pages, which decide the cost of memory.
fn huge_pages() -> String {
    let read = |name: &str| {
        let path = Path::new("/sys/kernel/mm/transparent_hugepage").join(name);
        std::fs::read_to_string(path).map_or("unknown".to_owned(), |text| text.trim().to_owned())
    };
    format!("transparent huge pages: {}; of shared memory: {}", read("enabled"), read("shmem_enabled"))
}

fn measure(scenario: &CommandScenario, new: &Path, old: &Path) -> Result<(PairRatios, PairRatios)> {
    let (mut ratios, mut cpu) = (PairRatios::default(), PairRatios::default());
    // Warm-up: one run of each build fills the page cache and opens connections.
    scenario.run(old)?;
    scenario.run(new)?;
    for pair in 0..PAIRS {
        // The builds alternate as the first of a pair.
        let (first, second) = if pair % 2 == 0 { (new, old) } else { (old, new) };
        let (first, second) = (scenario.run(first)?, scenario.run(second)?);
        let (new, old): (RunCost, RunCost) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        ratios.push(new.seconds, old.seconds);
        cpu.push(new.cpu, old.cpu);
    }
    Ok((ratios, cpu))
}
