//! Statistical tests of the orders. All seeds are fixed, so the results never change.

use foreread_oracle::{Feistel, Sampler, Shuffle, Weighted};
use foreread_types::SampleId;

use crate::ids;

/// Chi-square of counts with equal expectations, as its distance from the mean in standard
/// deviations.
fn sigmas(counts: &[u64], constraints: usize) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let chi: f64 = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
    let freedom = (counts.len() - constraints) as f64;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

/// Every sample is equally likely at every position, at sizes that are squares, primes, powers and
/// others.
#[test]
fn feistel_positions_are_uniform() {
    for samples in [2u64, 3, 4, 5, 7, 10, 12, 16, 25, 37, 64] {
        let mut counts = vec![0; (samples * samples) as usize];
        for seed in 0..200 * samples {
            for (position, id) in
                ids(&Feistel::new(samples, seed).unwrap().order(0).unwrap()).into_iter().enumerate()
            {
                counts[position * samples as usize + id as usize] += 1;
            }
        }
        let off = sigmas(&counts, 2 * samples as usize - 1);
        assert!(off < 5.0, "{samples} samples: {off} standard deviations");
    }
}

/// Odd and even permutations are equally likely.
#[test]
fn feistel_permutations_are_uniform() {
    for samples in [3u64, 4, 5, 6, 7] {
        let permutations: u64 = (1..=samples).product();
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..50 * permutations {
            *counts.entry(ids(&Feistel::new(samples, 5).unwrap().order(epoch).unwrap())).or_insert(0u64) += 1;
        }
        assert_eq!(counts.len() as u64, permutations);
        let off = sigmas(&counts.into_values().collect::<Vec<_>>(), 1);
        assert!(off < 5.0, "{samples} samples: {off} standard deviations");
    }
}

#[test]
fn feistel_distances_of_neighbours_are_uniform() {
    for samples in [11u64, 30, 100] {
        let n = samples as usize;
        // The cyclic distance of two neighbours after the shuffle: all distances except 0 are
        // equally likely.
        let mut counts = vec![0; n - 1];
        for seed in 0..3000 {
            let all = ids(&Feistel::new(samples, seed).unwrap().order(2).unwrap());
            let at = seed as usize % (n - 1);
            let distance = (all[at + 1] + samples - all[at]) % samples;
            counts[distance as usize - 1] += 1;
        }
        let off = sigmas(&counts, 1);
        assert!(off < 5.0, "{samples} samples: {off} standard deviations");
    }
}

/// Serial structure in large orders: the top bits of consecutive ids, in pairs, and the low bits
/// likewise.
#[test]
fn feistel_pairs_are_uniform_at_large_sizes() {
    for samples in [1_000_000u64, (1 << 32) - 5, 1_000_000_000_000, 1 << 63] {
        for (from, step) in [(0u64, 1u64), (12_345, 13), (0, samples / 70_000)] {
            let order = Feistel::new(samples, 99).unwrap().order(0).unwrap();
            let mut out = vec![SampleId(0); 64_000];
            order.fill(from, step, &mut out);
            let (mut high, mut low) = (vec![0u64; 1024], vec![0u64; 1024]);
            for pair in out.chunks_exact(2) {
                let cell = |id: SampleId| (u128::from(id.0) * 32 / u128::from(samples)) as usize;
                high[cell(pair[0]) * 32 + cell(pair[1])] += 1;
                low[(pair[0].0 % 32 * 32 + pair[1].0 % 32) as usize] += 1;
            }
            for counts in [high, low] {
                let off = sigmas(&counts, 1);
                assert!(off < 5.0, "{samples} samples by {step}: {off} standard deviations");
            }
        }
    }
}

#[test]
fn shuffle_positions_are_uniform() {
    let mut counts = vec![0; 400];
    for seed in 0..4000 {
        for (position, id) in ids(&Shuffle::new(20, seed).unwrap().order(1).unwrap()).into_iter().enumerate()
        {
            counts[position * 20 + id as usize] += 1;
        }
    }
    assert!(sigmas(&counts, 39) < 5.0);
}

#[test]
fn weighted_draws_follow_the_weights() {
    let weights = [1.0, 0.0, 2.5, 0.25, 10.0, 3.0, 1e-9];
    let total: f64 = weights.iter().sum();
    let draws = 400_000;
    let order = Weighted::new(&weights, draws, 11).unwrap().order(2).unwrap();
    let mut counts = [0u64; 7];
    ids(&order).into_iter().for_each(|id| counts[id as usize] += 1);
    for (count, weight) in counts.into_iter().zip(weights) {
        let expected = weight / total * draws as f64;
        let off = (count as f64 - expected).abs();
        assert!(off <= 5.0 * expected.sqrt() && (weight > 0.0 || count == 0), "{count} for {expected}");
    }
}
