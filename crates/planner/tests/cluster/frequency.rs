//! How often ranks use samples: the formula, and the oracle's own streams.

use foreread_oracle::{Deal, Dealing, Sampler, Shuffle};
use foreread_planner::{expected_frequent, frequent};
use foreread_types::{Rank, SampleId};

#[test]
fn the_formula_gives_the_papers_value() {
    let found = expected_frequent(1_281_167, 16, 90, 0.8);
    assert!((found - 31_634.69).abs() < 0.01, "{found}");
    // All of a distribution; and numbers that start too small for a floating-point number.
    assert!((frequent(1000, 7, 30, 0) - 1000.0).abs() < 1e-9);
    let all: f64 =
        (0..=2000).map(|times| frequent(1, 2, 2000, times) - frequent(1, 2, 2000, times + 1)).sum();
    assert!((all - 1.0).abs() < 1e-9, "{all}");
    assert!((frequent(1000, 2, 2000, 1000) - 508.92).abs() < 0.01);
}

/// ImageNet-1k on 16 ranks for 90 epochs, read from the oracle: each rank uses as many samples 11 times or more as the
/// binomial distribution says, and what one rank uses that often, another uses seldom.
#[test]
fn ranks_use_samples_as_often_as_the_theorem_says() {
    let (samples, ranks, epochs) = (1_281_167u64, 16u32, 90u64);
    let sampler = Shuffle::new(samples, 2026).unwrap();
    let dealing = Dealing::new(Deal::Torch, ranks, Some(256), false).unwrap();
    let mut uses = vec![0u8; (samples * u64::from(ranks)) as usize];
    let (mut ids, mut readers) = (vec![SampleId(0); 8192], vec![Rank(0); 8192]);
    for epoch in 0..epochs {
        let order = sampler.order(epoch).unwrap();
        let mut at = 0;
        while at < samples {
            let some = (samples - at).min(8192) as usize;
            order.fill(at, 1, &mut ids[..some]);
            dealing.fill_ranks(samples, 0, at, &mut readers[..some]);
            for (id, rank) in ids[..some].iter().zip(&readers) {
                uses[id.0 as usize * ranks as usize + rank.0 as usize] += 1;
            }
            at += some as u64;
        }
    }
    for least in [9, 11, 13] {
        let mut found = vec![0u64; ranks as usize];
        for uses in uses.chunks(ranks as usize) {
            uses.iter().zip(&mut found).for_each(|(&uses, found)| *found += u64::from(uses >= least));
        }
        let expected = frequent(samples, ranks, epochs as u32, least.into());
        // Standard deviations: of a rank's number, and of the mean of all, which vary against each other if at all.
        let deviation = (expected * (1.0 - expected / samples as f64)).sqrt();
        let mean = found.iter().sum::<u64>() as f64 / f64::from(ranks);
        assert!((mean - expected).abs() < 4.0 * deviation / 4.0, "{least}: {mean}, expected {expected}");
        for &found in &found {
            assert!(
                (found as f64 - expected).abs() < 5.0 * deviation,
                "{least}: {found}, expected {expected}"
            );
        }
    }
    // SC21, section 3: with ceil((1 + d) E / N) uses by one rank, d = 0.8, some other has at most
    // ceil((N - 1 - d) / (N - 1) E / N).
    let seldom = ((16.0 - 1.0 - 0.8) / 15.0 * 90.0 / 16.0f64).ceil() as u8;
    for uses in uses.chunks(ranks as usize).filter(|uses| uses.iter().any(|&uses| uses >= 11)) {
        assert!(uses.iter().any(|&uses| uses <= seldom), "{uses:?}");
    }
}
