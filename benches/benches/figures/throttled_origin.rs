//! An origin limited to 100 MB/s, in real time, with memory for the whole dataset and for 60 % of
//! it.
//!
//! A trainer without compute time waits only for the origin's bytes, also at the boundary of two
//! epochs. For a trainer that computes a little longer than the origin reads, the first batch of
//! the next epoch is ready on request.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use foreread::{Config, Loader, Memory};
use foreread_benches::subprocess;
use foreread_benches::table::{Figure, Goal};
use serde::{Deserialize, Serialize};

const LIMIT: u64 = 100_000_000;
const EPOCHS: usize = 3;

/// Small compared with the uncached bytes, so that memory alone determines the bytes read again.
const LOOK_AHEAD: u64 = 16 << 20;

/// The trainer's compute time per batch. The origin reads a batch in a little over 60 ms.
const COMPUTE: Duration = Duration::from_millis(75);

#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    bytes: f64,
    epochs: Vec<Epoch>,
    origin: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Epoch {
    seconds: f64,
    first_batch: f64,
    samples: f64,
}

fn within(what: String, found: f64, expected: f64) -> Figure {
    Figure::new(what, Goal::AtMost(1.03), found / expected, "times")
        .note(format!("{found:.3} s for {expected:.3} s of bytes"))
}

fn no_pause(about: &str, epoch: &Epoch) -> Figure {
    let what = format!("{about}: first batch of epoch 2");
    Figure::new(what, Goal::AtMost(1.0), epoch.first_batch * 1e3, "ms").note("no pause")
}

pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let ask = |percent: u64, compute: bool| -> Result<Measurement> {
        subprocess::run(&[&"throttled_origin", &directory, &percent.to_string(), &compute.to_string()])
    };
    let mut figures = Vec::new();
    let seconds = |bytes: f64| bytes / LIMIT as f64;

    let about = "100 MB/s, memory for all";
    let found = ask(100, false)?;
    let [first, later @ ..] = &found.epochs[..] else { bail!("the report has no epochs") };
    figures.push(within(format!("{about}: epoch 1 / (S/bandwidth)"), first.seconds, seconds(found.bytes)));
    for (epoch, number) in later.iter().zip(2..) {
        let (what, rate) = (format!("{about}: epoch {number}"), epoch.samples / epoch.seconds);
        figures.push(Figure::new(what, Goal::AtLeast(100_000.0), rate, "samples/s").note("memory speed"));
    }
    figures.extend(later.first().map(|epoch| no_pause(about, epoch)));
    let what = format!("{about}: origin bytes / S");
    figures.push(Figure::new(what, Goal::AtMost(1.0), found.origin / found.bytes, "times"));

    let about = "100 MB/s, memory for 60 %";
    let found = ask(60, false)?;
    let [first, later @ ..] = &found.epochs[..] else { bail!("the report has no epochs") };
    let left = found.bytes * 0.4;
    figures.push(within(format!("{about}: epoch 1 / (S/bandwidth)"), first.seconds, seconds(found.bytes)));
    for (epoch, number) in later.iter().zip(2..) {
        let what = format!("{about}: epoch {number} / ((S-C)/bandwidth)");
        figures.push(within(what, epoch.seconds, seconds(left)));
    }
    let bound = found.bytes + left * (EPOCHS - 1) as f64;
    figures.push(
        Figure::new(
            format!("{about}: origin bytes / (S + (E-1)(S-C))"),
            Goal::AtMost(1.01),
            found.origin / bound,
            "times",
        )
        .note(format!("{:.1} MB of {:.1} MB", found.origin / 1e6, bound / 1e6)),
    );
    let found = ask(60, true)?;
    figures.extend(found.epochs.get(1).map(|epoch| {
        let about = format!("{about}, {} ms of compute per batch", COMPUTE.as_millis());
        no_pause(&about, epoch)
    }));
    Ok(figures)
}

pub fn part(args: &[String]) -> Result<()> {
    let [directory, percent, compute] = args else {
        bail!("expected a directory, a memory size in percent, and whether to compute")
    };
    let (percent, compute): (u64, bool) = (percent.parse()?, compute.parse()?);
    let path = Path::new(directory);
    let mut bytes = 0;
    for class in std::fs::read_dir(path)? {
        for file in std::fs::read_dir(class?.path())? {
            bytes += file?.metadata()?.len();
        }
    }
    // The memory for all samples includes the overhead per sample.
    let memory = if percent >= 100 { 2 * bytes } else { bytes * percent / 100 };
    let mut config = Config::default();
    (config.epochs, config.memory, config.origin_limit) = (EPOCHS as u64, Memory::Bytes(memory), Some(LIMIT));
    config.look_ahead = LOOK_AHEAD;
    let text = path.to_str().context("the directory's name is not UTF-8")?;
    let loader = Loader::builder_with(text, config).start()?;
    for batch in &loader {
        let epoch = batch?.epoch();
        if compute && epoch > 0 {
            break; // only its arrival is measured
        }
        if compute {
            std::thread::sleep(COMPUTE);
        }
    }
    let report = loader.report();
    let epochs = report.epochs.iter().map(|epoch| Epoch {
        seconds: epoch.seconds,
        first_batch: epoch.first_batch_seconds,
        samples: epoch.samples as f64,
    });
    let origin = report.origin_bytes as f64;
    subprocess::print_result(&Measurement { bytes: bytes as f64, epochs: epochs.collect(), origin })
}
