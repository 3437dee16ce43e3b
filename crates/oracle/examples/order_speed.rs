//! Measures the samplers: `cargo run --release -p foreread-oracle --example order_speed`.
//!
//! Prints the fastest of several runs, in nanoseconds a sample and milliseconds an epoch of 1.28 million samples.

use std::hint::black_box;
use std::time::{Duration, Instant};

use foreread_oracle::{AccessStream, Deal, Dealing, Feistel, OracleError, Sampler, Shuffle, Torch, Weighted};
use foreread_types::{Rank, SampleId};

const EPOCH: u64 = 1_281_167;

fn report(
    what: &str,
    samples: u64,
    mut work: impl FnMut() -> Result<(), OracleError>,
) -> Result<(), OracleError> {
    let mut best = Duration::MAX;
    for _ in 0..15 {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed());
    }
    let nanoseconds = best.as_secs_f64() * 1e9 / samples as f64;
    println!("{what:<46} {nanoseconds:>7.2} ns a sample {:>8.2} ms", best.as_secs_f64() * 1e3);
    Ok(())
}

fn main() -> Result<(), OracleError> {
    let shuffle = Shuffle::new(EPOCH, 1)?;
    let torch = Torch::new(EPOCH, 1)?;
    let weights: Vec<f64> = (0..EPOCH).map(|id| (id % 1000) as f64 + 1.0).collect();
    let weighted = Weighted::new(&weights, EPOCH, 1)?;
    let samplers: [(&str, &dyn Sampler); 3] =
        [("shuffle", &shuffle), ("torch", &torch), ("weighted", &weighted)];
    for (name, sampler) in samplers {
        report(&format!("{name}: order"), EPOCH, || sampler.order(1).map(|order| drop(black_box(order))))?;
        let order = sampler.order(1)?;
        report(&format!("{name}: inverse"), EPOCH, || {
            black_box(order.inverse());
            Ok(())
        })?;
    }
    let order = shuffle.order(1)?;
    let mut ids = vec![SampleId(0); 4096];
    for deal in [Deal::Torch, Deal::Blocks] {
        let stream = AccessStream::new(order.clone(), Dealing::new(deal, 8, Some(64), false)?, Rank(3), 0)?;
        report(&format!("stream of 1 rank of 8, deal {deal}"), stream.len(), || {
            for from in (0..stream.len() - 4096).step_by(4096) {
                stream.fill(from, black_box(&mut ids));
            }
            Ok(())
        })?;
    }
    let order = Feistel::new(1_000_000_000_000, 1)?.order(0)?;
    let uses = order.inverse();
    report("feistel of 10^12: fill", 40_960, || {
        for from in 0..10 {
            order.fill(from * 99_999_999_999, 1, black_box(&mut ids));
        }
        Ok(())
    })?;
    let mut value = 1;
    report("feistel of 10^12: one after the other", 40_960, || {
        for _ in 0..40_960 {
            value = order.at(value).0;
        }
        Ok(())
    })?;
    report("feistel of 10^12: inverse, one after the other", 40_960, || {
        for _ in 0..40_960 {
            value = uses.next(SampleId(value), 0).unwrap_or(0);
        }
        Ok(())
    })?;
    black_box(value);
    Ok(())
}
