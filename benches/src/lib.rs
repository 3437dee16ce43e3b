//! What the benchmarks share: data to read, what a process has used, and how figures are said.
//!
//! There are two kinds. `benches/parts` measures one thing at a time with criterion, to find out what a change did.
//! `benches/figures` measures whole processes and sets each figure beside the one that was asked for.
//!
//! Decision: everything that is compared runs in a process of its own, in turns, because what one contender leaves in
//! the allocator (thresholds, arenas, free lists) changes what the next one pays. The price is a process a round, and
//! results that travel as a line of JSON.

pub mod engine;
pub mod files;
pub mod share;
pub mod table;
pub mod usage;

/// Samples in ImageNet's training set.
pub const IMAGENET: u64 = 1_281_167;

/// The middle of some figures; of two middles the mean. Not a number if there is none.
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
