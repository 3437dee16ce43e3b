//! A run with an origin limited to 100 MB/s, memory for 30 % of the dataset and disk for 30 %,
//! compared with a run without disk.

use std::path::Path;

use anyhow::{Context, Result, bail};
use foreread::{Config, Disk, Loader, Memory};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::{median, subprocess};
use serde::{Deserialize, Serialize};

const LIMIT: u64 = 100_000_000;
const EPOCHS: u64 = 3;
const PERCENT: u64 = 30;
const ROUNDS: usize = 3;

/// Small compared with the uncached bytes, so that the caches alone determine the bytes read again.
const LOOK_AHEAD: u64 = 16 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    bytes: f64,
    /// Bytes read from the origin in the whole run, and delivered from it in the first epoch.
    origin: f64,
    first: f64,
    /// Duration of the first epoch.
    seconds: f64,
    /// Bytes delivered from the disk in the first epoch.
    disk: f64,
}

pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let ask =
        |disk: &str| -> Result<Measurement> { subprocess::run(&[&"disk_tier", &"run", &directory, &disk]) };
    let (mut cold, mut without, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let disk = tempfile::tempdir()?;
        let path = disk.path().to_str().context("the directory's name is not UTF-8")?;
        cold.push(ask(path)?);
        without.push(ask("none")?);
        warm.push(ask(path)?);
    }
    let about = "100 MB/s, memory 30 %, disk 30 %";
    let part = |found: &Measurement| found.bytes * PERCENT as f64 / 100.0;
    let bound = |found: &Measurement| found.bytes + (EPOCHS - 1) as f64 * (found.bytes - 2.0 * part(found));
    let seconds = |found: &[Measurement]| median(found.iter().map(|found| found.seconds));
    let ratio = |what: &str, target: f64, ratios: &mut dyn Iterator<Item = f64>| {
        let ratio = median(ratios);
        Figure::new(format!("{about}: {what}"), Goal::AtMost(target), ratio, "times")
            .note(format!("{ratio:.4}"))
    };
    Ok(vec![
        ratio(
            "epoch 1 / epoch 1 without a disk tier",
            1.03,
            &mut cold.iter().zip(&without).map(|(with, without)| with.seconds / without.seconds),
        )
        .note(format!("{:.3} s, {:.3} s without", seconds(&cold), seconds(&without))),
        ratio(
            "epoch 1, origin bytes / S (each read once)",
            1.0,
            &mut cold.iter().map(|found| found.first / found.bytes),
        ),
        ratio(
            "origin bytes / (S + (E-1)(S-C))",
            1.01,
            &mut cold.iter().map(|found| found.origin / bound(found)),
        ),
        ratio(
            "second run, epoch 1, origin bytes / (S - C of the disk)",
            1.01,
            &mut warm.iter().map(|found| found.first / (found.bytes - part(found))),
        )
        .note(format!(
            "{:.3} s; {:.1} MB from the disk, whose quota is {:.1} MB including metadata",
            seconds(&warm),
            median(warm.iter().map(|found| found.disk)) / 1e6,
            median(warm.iter().map(part)) / 1e6
        )),
        ratio(
            "second run, epoch 1, origin bytes / (S - bytes from the disk)",
            1.01,
            &mut warm.iter().map(|found| found.first / (found.bytes - found.disk)),
        ),
    ])
}

pub fn part(args: &[String]) -> Result<()> {
    let [directory, disk] = args else { bail!("expected a directory, and a cache directory or none") };
    let mut bytes = 0;
    for class in std::fs::read_dir(directory)? {
        for file in std::fs::read_dir(class?.path())? {
            bytes += file?.metadata()?.len();
        }
    }
    let part = bytes * PERCENT / 100;
    let mut config = Config::default();
    (config.epochs, config.memory, config.origin_limit) = (EPOCHS, Memory::Bytes(part), Some(LIMIT));
    config.look_ahead = LOOK_AHEAD;
    if disk != "none" {
        config.disk.push(Disk { directory: disk.into(), bytes: part, shared: false });
    }
    let loader = Loader::builder_with(directory, config).start()?;
    for batch in &loader {
        drop(batch?);
    }
    let report = loader.close()?;
    let first = report.epochs.first().context("the report has no epochs")?;
    subprocess::print_result(&Measurement {
        bytes: bytes as f64,
        origin: report.origin_bytes as f64,
        first: first.reads.origin.bytes.unwrap_or(0) as f64,
        seconds: first.seconds,
        disk: first.reads.disk.bytes.unwrap_or(0) as f64,
    })
}
