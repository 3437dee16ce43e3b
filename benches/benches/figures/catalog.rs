//! What opening a catalog of ImageNet's size costs, in time and in resident memory.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use foreread_benches::table::{Asked, Figure};
use foreread_benches::usage::resident;
use foreread_benches::{IMAGENET, files, median, share};
use foreread_dataset::Catalog;
use foreread_types::SampleId;
use serde::{Deserialize, Serialize};

const ROUNDS: usize = 7;

#[derive(Debug, Serialize, Deserialize)]
struct Found {
    milliseconds: f64,
    /// Resident bytes a sample after opening.
    opened: f64,
    /// The same after every entry was asked for once.
    touched: f64,
    /// For an entry in shuffled order, its name read from the file, which is in the page cache.
    nanoseconds: f64,
}

pub fn figures() -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("catalog.foreread");
    let made: bool = share::ask(&[&"catalog", &"make", &path])?;
    let found =
        (0..ROUNDS).map(|_| share::ask(&[&"catalog", &"open", &path])).collect::<Result<Vec<Found>>>()?;
    let mid = |figure: fn(&Found) -> f64| median(found.iter().map(figure));
    let file = std::fs::metadata(&path)?.len() as f64 / IMAGENET as f64;
    if !made {
        bail!("no catalog was made");
    }
    let note =
        format!("{file:.0} bytes of file a sample; {:.0} resident after all entries", mid(|f| f.touched));
    Ok(vec![
        Figure::new("catalog of 1.28 M: open", Asked::AtMost(50.0), mid(|found| found.milliseconds), "ms"),
        Figure::new(
            "catalog of 1.28 M: resident memory",
            Asked::AtMost(64.0),
            mid(|found| found.opened),
            "B/sample",
        )
        .note(note),
        Figure::new(
            "catalog of 1.28 M: entry in shuffled order",
            Asked::AtMost(1000.0),
            mid(|found| found.nanoseconds),
            "ns",
        ),
    ])
}

/// Makes or opens a catalog in a process of its own, so that no other memory is counted.
pub fn part(args: &[String]) -> Result<()> {
    let [what, path] = args else { bail!("what to do with which file") };
    match &**what {
        "make" => {
            Catalog::from_objects("/data/train", files::imagenet(IMAGENET))?.save(path)?;
            share::answer(&true)
        }
        "open" => share::answer(&open(Path::new(path))?),
        _ => bail!("nothing is called {what}"),
    }
}

fn open(path: &Path) -> Result<Found> {
    let (before, start) = (resident()?, Instant::now());
    let catalog = Catalog::open(path)?;
    let sizes = catalog.sizes();
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let grown = || Ok::<_, anyhow::Error>((resident()?.saturating_sub(before)) as f64 / sizes.len() as f64);
    let opened = grown()?;
    let (samples, start) = (catalog.len(), Instant::now());
    // A prime step visits each sample once.
    for number in 0..samples {
        catalog.entry(SampleId(number * 1_000_003 % samples))?;
    }
    let nanoseconds = start.elapsed().as_secs_f64() * 1e9 / samples as f64;
    Ok(Found { milliseconds, opened, touched: grown()?, nanoseconds })
}
