//! How the adaptive limit finds the number of requests in flight, for many kinds of origins and
//! without settings: `cargo xtask bench --bench origins [-- FILE.svg]`.
//!
//! The origins are fakes on a simulated clock. A run is short and deterministic, and measures the
//! algorithm and not the machine. All layers of a real run are present. The output is a table of 27
//! origins, from which a trainer requests up to 20,000 samples per second. A plot of a few runs
//! over time follows: requests in flight, delivered samples, and stalls of the trainer.

mod plot;
mod scenarios;
mod simulation;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use foreread_benches::table::{self, Figure};
use foreread_tier_testing::OriginModel;

use crate::simulation::SimulatedRun;

/// Duration of each of the 27 runs, in seconds.
const SECONDS: f64 = 8.0;

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let path = std::env::args().skip(1).find(|word| !word.starts_with("--"));
    let path = path.map_or_else(|| PathBuf::from("origins.svg"), PathBuf::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    println!(
        "| latency | parallelism | bandwidth | possible, samples/s | after 1 s | whole run \
         | peak in flight | allowed | |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|---|");
    for cell in [1, 10, 50].into_iter().flat_map(OriginModel::of_latency) {
        let run =
            runtime.block_on(SimulatedRun::simulate(&cell.origin(), OriginModel::greedy(), SECONDS, |_| {}));
        println!("{}", row(cell, &run));
    }
    println!();
    let scenarios: Vec<_> =
        scenarios::all().iter().map(|scenario| runtime.block_on(scenario.run())).collect();
    let figures: Vec<Figure> = scenarios.iter().flat_map(|run| run.figures()).collect();
    table::print(&figures);
    plot::draw(&path, &scenarios).with_context(|| format!("drawing {}", path.display()))?;
    println!("\nplot: {}", path.display());
    Ok(())
}

/// One origin of the 27: delivered samples as a share of the possible rate, and the peak of
/// requests in flight. The target is 95 %. If the bandwidth is the limit, the peak is at most twice
/// the number that saturates it, plus a batch.
fn row(cell: OriginModel, run: &SimulatedRun) -> String {
    // The trainer takes whole batches, so the last batch may be missing.
    let share = |from: f64| {
        (run.rate(from, SECONDS) + OriginModel::BATCH as f64 / (SECONDS - from)) / cell.possible()
    };
    let (late, whole, peak) = (share(1.0), share(0.0), run.peak());
    let met = late >= 0.95 && whole >= 0.95 && peak as f64 <= cell.allowed();
    let bandwidth =
        cell.bandwidth.map_or_else(String::new, |bandwidth| format!("{} MB/s", bandwidth / 1_000_000));
    let allowed = if cell.allowed().is_finite() { format!("{:.0}", cell.allowed()) } else { String::new() };
    format!(
        "| {} ms | {} | {bandwidth} | {:.0} | {late:.3} | {whole:.3} | {peak} | {allowed} | {} |",
        cell.latency.as_millis(),
        cell.parallelism,
        cell.possible(),
        if met { "met" } else { "MISSED" },
    )
}

/// A duration in seconds.
fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
