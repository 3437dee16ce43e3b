//! An origin held to 100 MB/s, in real time: with memory for everything, and for 60 % of it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use foreread::{Loader, Memory};
use foreread_benches::share;
use foreread_benches::table::{Asked, Figure};
use serde::{Deserialize, Serialize};

const LIMIT: u64 = 100_000_000;
const EPOCHS: u64 = 3;

/// Small beside what does not fit, so that memory alone decides how much is read again.
const LOOK_AHEAD: u64 = 16 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Found {
    bytes: f64,
    /// Of each epoch: seconds, those until its first batch, samples.
    epochs: Vec<(f64, f64, f64)>,
    origin: f64,
    floor: f64,
}

pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let within = |what: String, found: f64, expected: f64| {
        Figure::new(what, Asked::AtMost(1.03), found / expected, "times")
            .note(format!("{found:.3} s for {expected:.3} s of bytes"))
    };
    for percent in [100, 60] {
        let found: Found = share::ask(&[&"throttled_origin", &directory, &percent.to_string()])?;
        let about = format!("100 MB/s, memory for {percent} %");
        let [first, later @ ..] = &found.epochs[..] else { bail!("no epoch came") };
        figures.push(within(
            format!("{about}: epoch 1 over bytes/bandwidth"),
            first.0,
            found.bytes / LIMIT as f64,
        ));
        for (&(seconds, until_first, samples), epoch) in later.iter().zip(2..) {
            if percent == 100 {
                figures.push(
                    Figure::new(
                        format!("{about}: epoch {epoch}"),
                        Asked::AtLeast(100_000.0),
                        samples / seconds,
                        "samples/s",
                    )
                    .note("memory speed"),
                );
            } else {
                let left = found.bytes * f64::from(100 - percent) / 100.0 / LIMIT as f64;
                figures.push(within(format!("{about}: epoch {epoch} over (S-C)/bandwidth"), seconds, left));
            }
            if epoch == 2 {
                let what = format!("{about}: first batch of epoch 2");
                figures.push(Figure::new(what, Asked::AtMost(1.0), until_first * 1e3, "ms").note("no pause"));
            }
        }
        figures.push(
            Figure::new(
                format!("{about}: origin bytes over the floor"),
                Asked::AtMost(1.01),
                found.origin / found.floor,
                "times",
            )
            .note(format!("{:.1} MB", found.origin / 1e6)),
        );
    }
    Ok(figures)
}

pub fn part(args: &[String]) -> Result<()> {
    let [directory, percent] = args else { bail!("a directory and how much of it fits") };
    let percent: u64 = percent.parse()?;
    let path = Path::new(directory);
    let mut bytes = 0;
    for class in std::fs::read_dir(path)? {
        for file in std::fs::read_dir(class?.path())? {
            bytes += file?.metadata()?.len();
        }
    }
    // "Fits" leaves room for what a sample takes beside its bytes.
    let memory = if percent >= 100 { 2 * bytes } else { bytes * percent / 100 };
    let mut config = foreread::Config::default();
    (config.epochs, config.memory, config.origin_limit) = (EPOCHS, Memory::Bytes(memory), Some(LIMIT));
    config.look_ahead = LOOK_AHEAD;
    let text = path.to_str().context("the directory's name is text")?;
    let mut loader = Loader::builder(text).config(config).start()?;
    for batch in loader.batches() {
        batch?;
    }
    let report = loader.report();
    let epochs = report
        .epochs
        .iter()
        .map(|epoch| (epoch.seconds, epoch.first_batch_seconds, epoch.samples as f64))
        .collect();
    share::answer(&Found {
        bytes: bytes as f64,
        epochs,
        origin: report.origin_bytes as f64,
        floor: report.floor_origin_bytes as f64,
    })
}
