//! The reference policies give their known figures.

use foreread_oracle::{Run, Shuffle, Weighted};
use foreread_planner::policies::CacheOutcome;
use foreread_planner::{Retention, plan};
use foreread_types::{SampleId, Sizes};

use crate::common::{cluster, level, phase, run, run_of, stream};
use crate::reference;

const SAMPLES: u64 = 50_000;

fn near(found: f64, expected: f64, within: f64, what: &str) {
    assert!((found - expected).abs() <= within, "{what}: {found:.4}, expected {expected} within {within}");
}

/// Hits and writes per use between two positions of a stream.
fn between(stream: &[SampleId], from: usize, policy: impl Fn(&[SampleId]) -> CacheOutcome) -> (f64, f64) {
    let (all, before) = (policy(stream), policy(&stream[..from]));
    let uses = (stream.len() - from) as f64;
    ((all.hits - before.hits) as f64 / uses, (all.writes as f64 - before.writes as f64) / uses)
}

#[test]
fn shuffled_epochs_hit_as_tabulated() {
    let epochs = 8;
    let all = stream(&run(epochs, vec![phase(0, Shuffle::new(SAMPLES, 1).unwrap())]), &[SAMPLES]);
    // Share, LRU's hits, writes of LRU and MIN.
    let table = [
        (10, 0.005, 0.995, 0.23),
        (20, 0.022, 0.98, 0.32),
        (35, 0.070, 0.93, 0.37),
        (50, 0.153, 0.85, 0.35),
        (80, 0.478, 0.52, 0.18),
    ];
    for (percent, lru, lru_writes, min_writes) in table {
        let capacity = SAMPLES * percent / 100;
        let share = percent as f64 / 100.0;
        let steady = |policy: fn(&[SampleId], u64) -> CacheOutcome| {
            between(&all, SAMPLES as usize * 2, |stream| policy(stream, capacity))
        };
        let (hits, writes) = steady(reference::never_evict);
        near(hits, share, 1e-9, "never evict, hits");
        near(writes, 0.0, 1e-9, "never evict, writes");
        let (hits, writes) = steady(reference::lru);
        near(hits, lru, 0.005, "LRU, hits");
        near(writes, lru_writes, 0.005, "LRU, writes");
        let (hits, writes) = steady(reference::min);
        near(hits, share, 0.005, "MIN, hits");
        near(writes, min_writes, 0.005, "MIN, writes");
        let (hits, _) = steady(reference::fifo);
        assert!(hits <= share + 0.005, "FIFO: {hits}");
    }
}

/// The horizon that a plan chooses for a memory of `capacity` samples of equal length.
fn horizon(run: &Run, capacity: u64) -> u64 {
    let plan = plan(run, &[Sizes::uniform(SAMPLES, 1)], &cluster(vec![level(capacity)])).unwrap();
    match plan.retention() {
        Retention::Threshold { horizon } => horizon,
        other => panic!("{other:?}"),
    }
}

#[test]
// semantics: CACHE-13
fn threshold_is_close_to_min_with_replacement() {
    let run = run(20, vec![phase(0, Weighted::new(&vec![1.0; SAMPLES as usize], SAMPLES, 3).unwrap())]);
    let all = stream(&run, &[SAMPLES]);
    for (percent, expected) in [(20, 0.560), (35, 0.708), (50, 0.812)] {
        let capacity = SAMPLES * percent / 100;
        let from = SAMPLES as usize * 5;
        // Stops before the last epochs, which have no more next uses.
        let steady = |policy: &dyn Fn(&[SampleId]) -> CacheOutcome| between(&all, from, policy).0;
        let min = steady(&|stream| reference::min(stream, capacity));
        let horizon = horizon(&run, capacity);
        let threshold = steady(&|stream| reference::threshold(stream, capacity, horizon));
        let keep = steady(&|stream| reference::never_evict(stream, capacity));
        let lru = steady(&|stream| reference::lru(stream, capacity));
        near(min, expected, 0.005, "MIN");
        assert!(min - threshold < 0.004, "threshold {threshold} of {min}");
        near(keep, percent as f64 / 100.0, 0.005, "never evict");
        near(lru, percent as f64 / 100.0, 0.005, "LRU");
    }
}

#[test]
// semantics: CACHE-13
fn threshold_is_close_to_min_in_a_private_cache() {
    let ranks = 16;
    let run = run_of(90, vec![phase(0, Shuffle::new(SAMPLES, 1).unwrap())], ranks);
    let all = stream(&run, &[SAMPLES]);
    let capacity = SAMPLES / 2 / u64::from(ranks);
    let from = all.len() / 4;
    let steady = |policy: &dyn Fn(&[SampleId]) -> CacheOutcome| between(&all, from, policy).0;
    let min = steady(&|stream| reference::min(stream, capacity));
    let horizon = horizon(&run, capacity);
    let threshold = steady(&|stream| reference::threshold(stream, capacity, horizon));
    near(min, 0.215, 0.005, "MIN");
    assert!(min - threshold < 0.004, "threshold {threshold} of {min}");
    near(steady(&|stream| reference::never_evict(stream, capacity)), 0.031, 0.002, "any fixed choice");
}

#[test]
fn threshold_is_close_to_min_on_few_ranks() {
    // The gaps of a share of shuffled epochs are not spread evenly. More of them overlap at an
    // epoch boundary, and the cache refuses some.
    for (ranks, within) in [(2, 0.04), (4, 0.01)] {
        let run = run_of(90, vec![phase(0, Shuffle::new(SAMPLES, 1).unwrap())], ranks);
        let all = stream(&run, &[SAMPLES]);
        let capacity = SAMPLES / 2 / u64::from(ranks);
        let hits = |outcome: CacheOutcome| outcome.hits as f64 / all.len() as f64;
        let min = hits(reference::min(&all, capacity));
        let horizon = horizon(&run, capacity);
        let threshold = hits(reference::threshold(&all, capacity, horizon));
        assert!(min - threshold < within, "{ranks} ranks: threshold {threshold} of {min}");
        assert!(threshold > 1.2 * hits(reference::never_evict(&all, capacity)));
    }
}

#[test]
fn threshold_is_close_to_min_with_weights_and_mixtures() {
    // A tenth of the samples is drawn half of the time. Then a mixture of two datasets, one drawn,
    // one shuffled.
    let weights: Vec<f64> = (0..SAMPLES).map(|id| if id % 10 == 0 { 9.0 } else { 1.0 }).collect();
    let skewed = vec![phase(0, Weighted::new(&weights, SAMPLES, 3).unwrap())];
    let mixed = vec![
        phase(0, Weighted::new(&vec![1.0; SAMPLES as usize], SAMPLES, 5).unwrap()),
        phase(1, Shuffle::new(SAMPLES / 5, 5).unwrap()),
    ];
    for (name, phases, samples) in
        [("weights", skewed, vec![SAMPLES]), ("mixture", mixed, vec![SAMPLES, SAMPLES / 5])]
    {
        let run = run(12, phases);
        let all = stream(&run, &samples);
        let sizes: Vec<Sizes> = samples.iter().map(|&samples| Sizes::uniform(samples, 1)).collect();
        for percent in [20, 50] {
            let capacity = samples.iter().sum::<u64>() * percent / 100;
            let plan = plan(&run, &sizes, &cluster(vec![level(capacity)])).unwrap();
            let Retention::Threshold { horizon } = plan.retention() else { panic!("{name}: {plan:?}") };
            let from = all.len() / 4;
            let steady = |policy: &dyn Fn(&[SampleId]) -> CacheOutcome| between(&all, from, policy).0;
            let min = steady(&|stream| reference::min(stream, capacity));
            let threshold = steady(&|stream| reference::threshold(stream, capacity, horizon));
            // Alternating phases use the space unevenly, and the rule refuses samples when it is
            // full.
            let within = if name == "mixture" { 0.01 } else { 0.004 };
            assert!(min - threshold < within, "{name}, {percent} %: threshold {threshold} of {min}");
            for other in [reference::lru, reference::fifo, reference::never_evict] {
                assert!(steady(&|stream| other(stream, capacity)) < threshold, "{name}, {percent} %");
            }
        }
    }
}
