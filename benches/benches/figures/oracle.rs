//! The cost of an epoch's order.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use foreread_benches::table::{Figure, Goal};
use foreread_benches::{IMAGENET, median};
use foreread_oracle::{Feistel, Sampler, Shuffle, Torch};
use foreread_types::SampleId;

const ROUNDS: u64 = 25;
const POSITIONS: u32 = 100_000;

/// Milliseconds to compute the order of an epoch and to read all its positions.
fn epoch(sampler: &dyn Sampler) -> Result<f64> {
    let mut ids = vec![SampleId(0); 4096];
    let mut took = Vec::new();
    for epoch in 0..ROUNDS {
        let start = Instant::now();
        let order = sampler.order(epoch)?;
        for from in (0..IMAGENET).step_by(ids.len()) {
            let some = ids.len().min((IMAGENET - from) as usize);
            order.fill(from, 1, black_box(&mut ids[..some]));
        }
        took.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(took))
}

/// Nanoseconds per call of `next` with its previous result, so that calls do not overlap.
fn chain(mut next: impl FnMut(u64) -> u64) -> f64 {
    let mut value = 1;
    median((0..ROUNDS).map(|_| {
        let start = Instant::now();
        for _ in 0..POSITIONS {
            value = black_box(next(value));
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(POSITIONS)
    }))
}

pub fn figures() -> Result<Vec<Figure>> {
    let order = Feistel::new(1_000_000_000_000, 1)?.order(0)?;
    let uses = order.inverse();
    let most = |what: &str, target, found, unit| Figure::new(what, Goal::AtMost(target), found, unit);
    Ok(vec![
        most("oracle: shuffle, an epoch of 1.28 M", 12.0, epoch(&Shuffle::new(IMAGENET, 1)?)?, "ms"),
        most("oracle: torch, an epoch of 1.28 M", 20.0, epoch(&Torch::new(IMAGENET, 1)?)?, "ms"),
        most("oracle: feistel of 10^12, a position", 100.0, chain(|value| order.at(value).0), "ns"),
        most(
            "oracle: feistel of 10^12, its inverse",
            100.0,
            chain(|value| uses.next(SampleId(value), 0).unwrap_or(0)),
            "ns",
        ),
    ])
}
