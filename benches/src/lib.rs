//! Shared code of the benchmarks: datasets, resource usage of a process, tables of figures, and the
//! pages of the comparison with other loaders.
//!
//! There are two kinds of benchmarks. `benches/parts` has microbenchmarks with criterion, which
//! show the effect of a change. `benches/figures` measures whole processes and compares each figure
//! with its target.
//!
//! Decision: compared contenders run in turns, each in a separate process. The allocator state that
//! one contender leaves (thresholds, arenas, free lists) changes the cost of the next one. The
//! price is a process per round, and results that are transferred as a line of JSON.

pub mod engine;
pub mod files;
pub mod loaders;
pub mod subprocess;
pub mod table;
pub mod usage;

/// Samples in ImageNet's training set.
pub const IMAGENET: u64 = 1_281_167;

/// The median, or the mean of the two middle figures. NaN if there are no figures.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    let half = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => figures[half],
        _ => f64::midpoint(figures[half - 1], figures[half]),
    }
}
