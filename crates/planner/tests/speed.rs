//! How long planning takes. Ignored: figures mean something on an idle machine in release mode only.
//! `cargo test --release -p foreread-planner --test speed -- --ignored --nocapture`
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::time::Instant;

use common::{cluster, level, phase, run, run_of};
use foreread_oracle::{Phase, Sequential, Shuffle, Weighted};
use foreread_planner::plan;
use foreread_types::Sizes;

const SAMPLES: u64 = 1_281_167;

#[test]
#[ignore = "a measurement"]
fn planning_a_million_samples() {
    let lengths: Vec<u64> =
        (0..SAMPLES).map(|id| 10_000 + id.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 200_000).collect();
    let sizes = [Sizes::table(&lengths), Sizes::uniform(50_000, 100_000)];
    let train = || phase(0, Shuffle::new(SAMPLES, 1).unwrap());
    let validate = || phase(1, Sequential::new(50_000).unwrap());
    let dropping = Phase { batch_size: Some(256), drop_last: true, ..train() };
    let weighted = phase(0, Weighted::new(&vec![1.0; SAMPLES as usize], SAMPLES, 1).unwrap());
    let runs = [
        ("90 epochs, 1 rank", run(90, vec![train(), validate()])),
        ("90 epochs, 1 rank, drop_last", run(90, vec![dropping, validate()])),
        ("90 epochs, 16 ranks", run_of(90, vec![train(), validate()], 16)),
        ("90 epochs, weighted", run(90, vec![weighted, validate()])),
    ];
    for percent in [100, 50] {
        let cluster =
            cluster(vec![level(sizes[0].total() / 200 * percent), level(sizes[0].total() / 200 * percent)]);
        for (name, run) in &runs {
            let start = Instant::now();
            let plan = plan(run, &sizes, &cluster).unwrap();
            println!(
                "{percent} % {name}: {:?} {:?}, {} bytes of placement",
                start.elapsed(),
                plan.retention(),
                plan.placement().memory()
            );
        }
    }
}
