//! How unevenly the ranks of a shuffled run use the samples, by chance.
//!
//! With a fresh uniform permutation in every epoch, a rank of N reads a given sample in each of E epochs with
//! probability 1/N: a binomial number of times. Some samples are therefore used much more often by one rank than by the
//! others (Dryden et al., "Clairvoyant Prefetching for Distributed Machine Learning I/O", SC21, section 3), which is
//! what an owner that reads a sample most often lives on. These are figures to compare a run with; no plan depends on
//! them, so they may be floating-point numbers.

/// The expected number of samples, of `samples`, that a given rank of `world_size` uses at least `least` times in
/// `epochs` epochs: `samples * P(X >= least)` with X binomial.
///
/// # Panics
/// If `world_size` is 0.
pub fn frequent(samples: u64, world_size: u32, epochs: u32, least: u32) -> f64 {
    assert!(world_size > 0, "no ranks");
    if least == 0 || world_size == 1 {
        return if least <= epochs { samples as f64 } else { 0.0 };
    }
    let p = 1.0 / f64::from(world_size);
    // Each term from the one before, in logarithms: the first may be too small for a number.
    let (log_p, log_q) = (p.ln(), (-p).ln_1p());
    let mut log_term = f64::from(epochs) * log_q;
    let mut tail = 0.0;
    for times in 0..=epochs {
        if times >= least {
            tail += log_term.exp();
        }
        log_term += f64::from(epochs - times).ln() - f64::from(times + 1).ln() + log_p - log_q;
    }
    samples as f64 * tail
}

/// The expected number of samples that a rank uses at least `ceil((1 + excess) * epochs / world_size)` times: more often
/// than on average by the part `excess`.
///
/// ```
/// use foreread_planner::expected_frequent;
/// // ImageNet-1k on 16 ranks for 90 epochs, 80 % above the average.
/// assert!((expected_frequent(1_281_167, 16, 90, 0.8) - 31_634.69).abs() < 0.01);
/// ```
///
/// # Panics
/// If `world_size` is 0.
pub fn expected_frequent(samples: u64, world_size: u32, epochs: u32, excess: f64) -> f64 {
    let least = ((1.0 + excess) * f64::from(epochs) / f64::from(world_size)).ceil();
    frequent(samples, world_size, epochs, least.max(0.0) as u32)
}
