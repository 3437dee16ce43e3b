//! The cost of opening a catalog of ImageNet's size, in time and in resident memory.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::usage::resident_memory;
use foreread_benches::{IMAGENET, files, median, subprocess};
use foreread_dataset::Catalog;
use foreread_types::SampleId;
use serde::{Deserialize, Serialize};

const ROUNDS: usize = 7;

#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    milliseconds: f64,
    /// Resident bytes per sample after opening.
    opened: f64,
    /// Resident bytes per sample after one access to every entry.
    touched: f64,
    /// Per entry in shuffled order. Its name is read from the file, which is in the page cache.
    nanoseconds: f64,
}

pub fn figures() -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("catalog.foreread");
    let made: bool = subprocess::run(&[&"catalog", &"make", &path])?;
    let found = (0..ROUNDS)
        .map(|_| subprocess::run(&[&"catalog", &"open", &path]))
        .collect::<Result<Vec<Measurement>>>()?;
    let mid = |figure: fn(&Measurement) -> f64| median(found.iter().map(figure));
    let file = std::fs::metadata(&path)?.len() as f64 / IMAGENET as f64;
    if !made {
        bail!("no catalog was written");
    }
    let note =
        format!("{file:.0} bytes of file per sample; {:.0} resident after all entries", mid(|f| f.touched));
    Ok(vec![
        Figure::new("catalog of 1.28 M: open", Goal::AtMost(50.0), mid(|found| found.milliseconds), "ms"),
        Figure::new(
            "catalog of 1.28 M: resident memory",
            Goal::AtMost(64.0),
            mid(|found| found.opened),
            "B/sample",
        )
        .note(note),
        Figure::new(
            "catalog of 1.28 M: entry in shuffled order",
            Goal::AtMost(1000.0),
            mid(|found| found.nanoseconds),
            "ns",
        ),
    ])
}

/// Writes or opens a catalog. It is a separate process, so that no other memory is counted.
pub fn part(args: &[String]) -> Result<()> {
    let [what, path] = args else { bail!("expected an operation and a file") };
    match &**what {
        "make" => {
            Catalog::from_objects("/data/train", files::imagenet_objects(IMAGENET))?.save(path)?;
            subprocess::print_result(&true)
        }
        "open" => subprocess::print_result(&open(Path::new(path))?),
        _ => bail!("unknown operation {what}"),
    }
}

fn open(path: &Path) -> Result<Measurement> {
    let (before, start) = (resident_memory()?, Instant::now());
    let catalog = Catalog::open(path)?;
    let sizes = catalog.sizes();
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let grown =
        || Ok::<_, anyhow::Error>((resident_memory()?.saturating_sub(before)) as f64 / sizes.len() as f64);
    let opened = grown()?;
    let (samples, start) = (catalog.len(), Instant::now());
    // A prime step visits each sample once.
    for number in 0..samples {
        catalog.entry(SampleId(number * 1_000_003 % samples))?;
    }
    let nanoseconds = start.elapsed().as_secs_f64() * 1e9 / samples as f64;
    Ok(Measurement { milliseconds, opened, touched: grown()?, nanoseconds })
}
