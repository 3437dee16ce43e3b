//! Whole processes measured against the performance targets, with one table in Markdown at the end.
//!
//! `cargo xtask bench --bench figures` measures all groups, `... -- local_directory` those whose
//! name contains the word. A missed target is reported and is no failure, because a busy machine
//! must not break a build.

mod catalog;
mod disk_tier;
mod faults;
mod local_directory;
mod lustre;
mod memory_tier;
mod network;
mod object_store;
mod oracle;
mod planner;
mod predictions;
mod rank_blocks;
mod ranks;
mod resume;
mod throttled_origin;

use std::path::Path;

use anyhow::{Result, bail};
use foreread_benches::table::Figure;
use foreread_benches::{files, subprocess, table};

/// Samples in the dataset's directory, and their lengths.
const FILES: usize = 4000;
const LENGTHS: (u64, u64) = (80_000, 120_000);

type MeasureFn = fn(&Path) -> Result<Vec<Figure>>;

const ALL: [(&str, MeasureFn); 16] = [
    ("oracle", |_| oracle::figures()),
    ("planner", |_| planner::figures()),
    ("catalog", |_| catalog::figures()),
    ("resume", |_| resume::figures()),
    ("memory_tier", |_| memory_tier::figures()),
    ("local_directory", local_directory::figures),
    ("lustre", |_| lustre::figures()),
    ("throttled_origin", throttled_origin::figures),
    ("adaptive", |_| object_store::adaptive_figures()),
    ("disk_tier", disk_tier::figures),
    ("object_store", |_| object_store::figures()),
    ("faults", |_| faults::figures()),
    ("predictions", |_| predictions::figures()),
    ("ranks", ranks::figures),
    ("rank_blocks", |_| rank_blocks::figures()),
    ("network", network::figures),
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = args.split_first()
        && first == subprocess::FLAG
    {
        return part(rest);
    }
    let word = args.iter().find(|arg| !arg.starts_with('-')).map_or("", |word| word);
    let chosen: Vec<_> = ALL.iter().filter(|(name, _)| name.contains(word)).collect();
    if chosen.is_empty() {
        return Ok(()); // the argument may select another benchmark
    }
    let directory = tempfile::tempdir()?;
    files::write_samples(directory.path(), FILES, LENGTHS.0, LENGTHS.1)?;
    let mut figures = Vec::new();
    for (name, measure) in chosen {
        eprintln!("measuring {name}");
        figures.extend(measure(directory.path())?);
    }
    table::print(&figures);
    Ok(())
}

/// Runs the part that the arguments of a separate process select.
fn part(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((name, rest)) if name == "catalog" => catalog::part(rest),
        Some((name, rest)) if name == "disk_tier" => disk_tier::part(rest),
        Some((name, rest)) if name == "faults" => faults::part(rest),
        Some((name, rest)) if name == "planner" => planner::part(rest),
        Some((name, _)) if name == "memory_tier" => memory_tier::part(),
        Some((name, rest)) if name == "ranks" => ranks::part(rest),
        Some((name, rest)) if name == "rank_blocks" => rank_blocks::part(rest),
        Some((name, rest)) if name == "object_store" => object_store::part(rest),
        Some((name, rest)) if name == "local_directory" => local_directory::part(rest),
        Some((name, rest)) if name == "throttled_origin" => throttled_origin::part(rest),
        _ => bail!("unknown part {args:?}"),
    }
}
