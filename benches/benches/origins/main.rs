//! How the number of requests under way is found, for origins of every kind and without any setting:
//! `cargo xtask bench --bench origins [-- FILE.svg]`.
//!
//! The origins are fakes on a simulated clock, so a run takes a moment, is the same everywhere, and measures the
//! decision and not this machine. The layers are those of every run, all of them. First a table of 27 origins that a
//! trainer asks for up to 20,000 samples a second, then a few runs over time as a plot: what is under way, what is
//! delivered, how long the trainer waits.

mod course;
mod plot;
mod scenes;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use foreread_benches::table::{self, Figure};
use foreread_tier_testing::Cell;

use crate::course::Course;

/// How long each of the 27 runs, in seconds.
const SECONDS: f64 = 8.0;

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let path = std::env::args().skip(1).find(|word| !word.starts_with("--"));
    let path = path.map_or_else(|| PathBuf::from("origins.svg"), PathBuf::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    println!(
        "| latency | at once | bandwidth | possible, samples/s | after a second | over the run | most under way | allowed | |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|---|");
    for cell in [1, 10, 50].into_iter().flat_map(Cell::of_latency) {
        let course = runtime.block_on(Course::of(&cell.origin(), Cell::greedy(), SECONDS, |_| {}));
        println!("{}", row(cell, &course));
    }
    println!();
    let scenes: Vec<_> = scenes::all().iter().map(|scene| runtime.block_on(scene.run())).collect();
    let figures: Vec<Figure> = scenes.iter().flat_map(|played| played.figures()).collect();
    table::print(&figures);
    plot::draw(&path, &scenes).with_context(|| format!("drawing {}", path.display()))?;
    println!("\nplot: {}", path.display());
    Ok(())
}

/// What one origin of the 27 gave, as a share of what is possible, and what was under way: asked are 95 %, and where
/// bandwidth is the limit no more under way than twice what fills it and a batch.
fn row(cell: Cell, course: &Course) -> String {
    // Whole batches are taken: one may be missing at the end.
    let share =
        |from: f64| (course.rate(from, SECONDS) + Cell::BATCH as f64 / (SECONDS - from)) / cell.possible();
    let (late, whole, peak) = (share(1.0), share(0.0), course.peak());
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

/// Seconds as a number.
fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
