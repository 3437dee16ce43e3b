//! A run with an origin held to 100 MB/s, memory for 30 % of it and disk for 30 %, beside one without the disk.

use std::path::Path;

use anyhow::{Context, Result, bail};
use foreread::{Config, Disk, Loader, Memory};
use foreread_benches::table::{Asked, Figure};
use foreread_benches::{median, share};
use serde::{Deserialize, Serialize};

const LIMIT: u64 = 100_000_000;
const EPOCHS: u64 = 3;
const PERCENT: u64 = 30;
const ROUNDS: usize = 3;

/// Small beside what does not fit, so that the caches alone decide how much is read again.
const LOOK_AHEAD: u64 = 16 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Found {
    bytes: f64,
    /// Read from the origin in the whole run, and delivered from it in the first epoch.
    origin: f64,
    first: f64,
    /// The first epoch's.
    seconds: f64,
    /// Delivered from the disk in the first epoch.
    disk: f64,
}

pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let ask = |disk: &str| -> Result<Found> { share::ask(&[&"disk_tier", &"run", &directory, &disk]) };
    let (mut cold, mut without, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let disk = tempfile::tempdir()?;
        let path = disk.path().to_str().context("the directory's name is text")?;
        cold.push(ask(path)?);
        without.push(ask("none")?);
        warm.push(ask(path)?);
    }
    let about = "100 MB/s, memory 30 %, disk 30 %";
    let part = |found: &Found| found.bytes * PERCENT as f64 / 100.0;
    let bound = |found: &Found| found.bytes + (EPOCHS - 1) as f64 * (found.bytes - 2.0 * part(found));
    let seconds = |found: &[Found]| median(found.iter().map(|found| found.seconds));
    let ratio = |what: &str, asked: f64, ratios: &mut dyn Iterator<Item = f64>| {
        let ratio = median(ratios);
        Figure::new(format!("{about}: {what}"), Asked::AtMost(asked), ratio, "times")
            .note(format!("{ratio:.4}"))
    };
    Ok(vec![
        ratio(
            "epoch 1 over the same without a disk tier",
            1.03,
            &mut cold.iter().zip(&without).map(|(with, without)| with.seconds / without.seconds),
        )
        .note(format!("{:.3} s, {:.3} s without", seconds(&cold), seconds(&without))),
        ratio(
            "epoch 1, origin bytes over S (each read once)",
            1.0,
            &mut cold.iter().map(|found| found.first / found.bytes),
        ),
        ratio(
            "origin bytes over S + (E-1)(S-C)",
            1.01,
            &mut cold.iter().map(|found| found.origin / bound(found)),
        ),
        ratio(
            "second run, epoch 1, origin bytes over S - C of the disk",
            1.01,
            &mut warm.iter().map(|found| found.first / (found.bytes - part(found))),
        )
        .note(format!(
            "{:.3} s; {:.1} MB came from the disk, of {:.1} MB that it may take with all its bookkeeping",
            seconds(&warm),
            median(warm.iter().map(|found| found.disk)) / 1e6,
            median(warm.iter().map(part)) / 1e6
        )),
        ratio(
            "second run, epoch 1, origin bytes over S - what the disk held",
            1.01,
            &mut warm.iter().map(|found| found.first / (found.bytes - found.disk)),
        ),
    ])
}

pub fn part(args: &[String]) -> Result<()> {
    let [directory, disk] = args else { bail!("a directory, and where its copies go") };
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
    let first = report.epochs.first().context("an epoch")?;
    share::answer(&Found {
        bytes: bytes as f64,
        origin: report.origin_bytes as f64,
        first: first.reads.origin.bytes.unwrap_or(0) as f64,
        seconds: first.seconds,
        disk: first.reads.disk.bytes.unwrap_or(0) as f64,
    })
}
