//! How often an epoch reads a stored unit that many samples share.
//!
//! Each read of a unit brings all its samples. Memory keeps the samples that are used next, of all
//! units. How often a unit is read depends on two numbers only: its samples, and the part of all
//! samples that memory holds. No formula is known, so the rule is simulated on a small dataset with
//! a fixed shuffle. It takes some milliseconds. The price is an error of a tenth.

use std::collections::{BTreeMap, BTreeSet};

use foreread_types::SplitMix64;

/// The most samples of a simulated unit. Larger ones are read as often, 1 / memory times.
const MOST_PER_UNIT: usize = 1000;

/// About as many samples are simulated.
const SAMPLES: usize = 20_000;

/// Simulated epochs. The first one fills the memory.
const EPOCHS: usize = 3;

/// The reads of a unit per epoch, if a unit has `samples` samples and memory holds the part
/// `memory` (0 to 1) of all samples. At least 1 and at most `samples`: a shuffle uses every unit in
/// every epoch.
///
/// ```
/// use foreread_planner::unit_reads;
/// // Memory for a tenth: 7 times the data instead of 90.
/// assert!((6.0..8.0).contains(&unit_reads(100.0, 0.1)));
/// assert_eq!(unit_reads(100.0, 0.0), 100.0);
/// ```
pub fn unit_reads(samples: f64, memory: f64) -> f64 {
    if samples <= 1.0 {
        return 1.0;
    }
    let memory = memory.clamp(0.0, 1.0);
    let per_unit = (samples.round() as usize).clamp(2, MOST_PER_UNIT);
    let units = (SAMPLES / per_unit).max(20);
    let kept = (memory * (units * per_unit) as f64) as usize;
    if kept == 0 {
        return samples;
    }
    let reads = simulated(per_unit, units, kept);
    (reads as f64 / (units * (EPOCHS - 1)) as f64).clamp(1.0, samples)
}

/// The reads of all epochs but the first.
fn simulated(per_unit: usize, units: usize, most: usize) -> u64 {
    let samples = per_unit * units;
    let orders: Vec<Vec<usize>> = (0..=EPOCHS as u64).map(|epoch| shuffled(samples, epoch)).collect();
    let positions: Vec<Vec<usize>> = orders.iter().map(|order| inverse(order)).collect();
    let use_in = |epoch: usize, sample: usize| epoch * samples + positions[epoch][sample];
    // The next use of each kept sample, and the kept samples by their next use.
    let (mut kept, mut by_use) = (BTreeMap::new(), BTreeSet::<(usize, usize)>::new());
    let mut reads = 0;
    for (epoch, order) in orders.iter().enumerate().take(EPOCHS) {
        for (position, &sample) in order.iter().enumerate() {
            let now = epoch * samples + position;
            if let Some(next) = kept.remove(&sample) {
                by_use.remove(&(next, sample));
                continue;
            }
            reads += u64::from(epoch > 0);
            let first = sample / per_unit * per_unit;
            for other in first..first + per_unit {
                if other == sample || kept.contains_key(&other) {
                    continue;
                }
                let this_epoch = use_in(epoch, other);
                let next = if this_epoch > now { this_epoch } else { use_in(epoch + 1, other) };
                if kept.len() >= most {
                    match by_use.last().copied() {
                        Some(last) if last.0 > next => {
                            by_use.remove(&last);
                            kept.remove(&last.1);
                        }
                        _ => continue,
                    }
                }
                kept.insert(other, next);
                by_use.insert((next, other));
            }
        }
    }
    reads
}

/// A shuffle of `0..samples` by Fisher and Yates.
fn shuffled(samples: usize, seed: u64) -> Vec<usize> {
    let mut random = SplitMix64(seed);
    let mut order: Vec<usize> = (0..samples).collect();
    for at in (1..samples).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    order
}

fn inverse(order: &[usize]) -> Vec<usize> {
    let mut positions = vec![0; order.len()];
    for (position, &sample) in order.iter().enumerate() {
        positions[sample] = position;
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of a simulation with 100,000 samples.
    #[test]
    // semantics: FORMAT-6
    fn reads_are_those_of_the_simulated_rule() {
        for (samples, memory, expected) in
            [(100.0, 0.1, 6.9), (100.0, 0.2, 3.9), (10.0, 0.1, 3.0), (1000.0, 0.1, 10.0)]
        {
            let reads = unit_reads(samples, memory);
            assert!(
                (reads / expected - 1.0).abs() < 0.1,
                "{samples} {memory}: {reads} instead of {expected}"
            );
        }
    }

    #[test]
    // semantics: FORMAT-6
    fn more_memory_means_fewer_reads_within_the_bounds() {
        for samples in [2.0, 17.3, 300.0, 1e6] {
            let reads = [0.0, 0.01, 0.1, 0.3, 1.0].map(|memory| unit_reads(samples, memory));
            assert!(reads.windows(2).all(|pair| pair[0] >= pair[1] * 0.99), "{samples}: {reads:?}");
            assert!(reads[0] == samples && reads.iter().all(|reads| (1.0..=samples).contains(reads)));
        }
        assert_eq!(unit_reads(1.0, 0.5), 1.0);
    }
}
