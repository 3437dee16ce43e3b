//! Several jobs with one cache: the known figures, and the distance from Belady's MIN.
//!
//! With `FOREREAD_SOAK` (any value) all numbers of jobs and all caches are simulated, at the full
//! size.

use foreread_simulator::{JobsComparison, JobsPolicy, JobsScenario};
use proptest::prelude::*;

const CACHES: [f64; 6] = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7];

/// Reads per use by number of jobs, for each of [`CACHES`], simulated by another program.
const NEXT_USE: [(usize, [f64; 6]); 5] = [
    (1, [0.950, 0.900, 0.800, 0.700, 0.500, 0.300]),
    (2, [0.777, 0.684, 0.551, 0.451, 0.271, 0.150]),
    (4, [0.737, 0.631, 0.489, 0.384, 0.228, 0.119]),
    (8, [0.720, 0.611, 0.464, 0.359, 0.208, 0.101]),
    (16, [0.711, 0.600, 0.452, 0.346, 0.198, 0.095]),
];
const LRU: [(usize, [f64; 6]); 2] =
    [(2, [0.975, 0.948, 0.889, 0.825, 0.673, 0.480]), (4, [0.962, 0.923, 0.844, 0.762, 0.586, 0.390])];

fn is_soak() -> bool {
    std::env::var_os("FOREREAD_SOAK").is_some()
}

fn scenario(samples: u32, paces: &[f64], cache: f64) -> JobsScenario {
    let text = format!(
        "seed = 1\n[several-jobs]\nsamples = {samples}\ncache = {cache}\npaces = {paces:?}\nepochs = 4"
    );
    JobsScenario::from_toml(&text).unwrap()
}

/// The bound, and the reads per use of each policy.
fn reads<const N: usize>(scenario: &JobsScenario, policies: [JobsPolicy; N]) -> (f64, [f64; N]) {
    let compared = JobsComparison::run(scenario.clone(), &policies, 1, &mut |_, _| ()).unwrap();
    let mut outcomes = compared.outcomes().iter().map(|it| it.origin_reads);
    (compared.bound(), [(); N].map(|()| outcomes.next().unwrap()))
}

fn near(found: f64, expected: f64, within: f64, what: &str) {
    assert!((found - expected).abs() <= within, "{what}: {found:.4}, expected {expected} within {within}");
}

#[test]
// semantics: SIM-7
fn several_jobs_read_as_tabulated() {
    let (samples, soak) = (20_000, is_soak());
    for (jobs, expected) in NEXT_USE {
        for (cache, expected) in CACHES.into_iter().zip(expected) {
            if !soak && (jobs > 4 || ![0.1, 0.5].contains(&cache)) {
                continue;
            }
            let what = |policy: JobsPolicy| format!("{policy}, {jobs} jobs, cache for {cache}");
            let scenario =
                JobsScenario { starts: vec![0.0; jobs], ..scenario(samples, &vec![1.0; jobs], cache) };
            let (bound, all) = reads(&scenario, JobsPolicy::ALL);
            println!("{jobs} jobs, {cache}: bound {bound:.4}, policies {all:.4?}");
            let [min, next_use, announced, lru, never_evict, private] = all;
            near(next_use, expected, 0.01, &what(JobsPolicy::NextUse));
            near(never_evict, 1.0 - cache, 0.001, &what(JobsPolicy::NeverEvict));
            near(private, 1.0 - cache / jobs as f64, 0.001, &what(JobsPolicy::Private));
            if let Some((_, table)) = LRU.iter().find(|row| row.0 == jobs) {
                let at = CACHES.iter().position(|&other| other == cache).unwrap();
                near(lru, table[at], 0.01, &what(JobsPolicy::Lru));
            }
            let most = if jobs == 2 { 0.022 } else { 0.006 };
            assert!((bound - 0.002..=bound + most).contains(&min), "{jobs} jobs: {min}, bound {bound}");
            let most = if jobs == 2 { 0.04 } else { 0.015 };
            assert!(announced <= min + most, "{jobs} jobs: {announced} is far from {min}");
        }
    }
}

#[test]
// semantics: PLAN-11
fn next_use_is_close_to_min_for_equal_jobs() {
    let (samples, soak) = if is_soak() { (20_000, true) } else { (3000, false) };
    for jobs in [1, 2, 4, 8] {
        for cache in CACHES {
            for wander in [0.0, 0.3] {
                if !soak && wander == 0.0 && jobs > 2 {
                    continue;
                }
                let scenario = JobsScenario { wander, ..scenario(samples, &vec![1.0; jobs], cache) };
                let (_, [min, next_use]) = reads(&scenario, [JobsPolicy::Min, JobsPolicy::NextUse]);
                let most = if wander > 0.0 { 0.03 } else { 0.01 };
                assert!(next_use <= min + most, "{jobs} jobs, {cache}, {wander}: {next_use} against {min}");
            }
        }
    }
}

proptest! {
    // A case takes as long as sixteen of other tests.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: ProptestConfig::default().cases.div_ceil(16),
        ..ProptestConfig::default()
    })]

    /// Jobs of any paces and starts.
    #[test]
    // semantics: PLAN-11
    fn next_use_is_close_to_min_for_any_jobs(
        jobs in prop::collection::vec((0.25..1.0f64, 0.0..1.5f64), 1..9),
        cache in 0.05..0.7f64,
        wander in prop::sample::select(vec![0.0, 0.3]),
        seed in any::<u32>(),
    ) {
        let (paces, starts): (Vec<f64>, Vec<f64>) = jobs.into_iter().unzip();
        let seed = u64::from(seed);
        let scenario = JobsScenario { wander, starts, seed, epochs: 2, ..scenario(2000, &paces, cache) };
        let (_, [min, next_use]) = reads(&scenario, [JobsPolicy::Min, JobsPolicy::NextUse]);
        let most = if wander > 0.0 { 0.03 } else { 0.01 };
        prop_assert!(next_use <= min + most, "{next_use} against {min}");
    }
}

#[test]
fn starts_of_jobs_matter_little() {
    let reads = |starts: [f64; 2]| {
        let scenario = JobsScenario { starts: starts.to_vec(), ..scenario(5000, &[1.0, 1.0], 0.3) };
        reads(&scenario, [JobsPolicy::NextUse]).1[0]
    };
    let all = [0.0, 0.25, 0.5, 0.75].map(|start| reads([0.0, start]));
    println!("{all:.4?}");
    assert!(all.iter().all(|it| (it - all[0]).abs() < 0.03), "{all:?}");
}

#[test]
fn equal_scenarios_give_equal_figures() {
    let figures = || {
        let scenario = JobsScenario { wander: 0.3, ..scenario(500, &[1.0, 0.7, 0.4], 0.2) };
        JobsComparison::run(scenario, &JobsPolicy::ALL, 2, &mut |_, _| ()).unwrap()
    };
    let (first, second) = (figures(), figures());
    assert_eq!(first.outcomes(), second.outcomes());
    assert_eq!(first.to_string(), second.to_string());
    assert!(first.to_string().contains("3 jobs, 500 samples, a cache for 0.2 of them, "), "{first}");
    assert_eq!(first.csv().lines().count(), 1 + JobsPolicy::ALL.len());
}

#[test]
// semantics: SIM-4
fn invalid_jobs_are_one_line_with_the_field() {
    let text = "[several-jobs]\nsamples = 100\ncache = 0.2\npaces = [1, 1]\nepochs = 3\n";
    assert!(JobsScenario::from_toml(text).is_ok());
    for (from, to, expected) in [
        ("samples = 100", "samples = -1", "several-jobs.samples: must be at least 1"),
        ("cache = 0.2", "cache = 1.5", "several-jobs.cache: must be at most 1, found 1.5"),
        ("paces = [1, 1]", "paces = [1, 2]", "several-jobs.paces[1]: must be at most 1, found 2"),
        ("paces = [1, 1]", "", "several-jobs.paces: missing, expected the pace of each job"),
        ("epochs = 3", "epochs = 3\nstarts = [0]", "several-jobs.starts: expected one for each of 2 jobs"),
        ("epochs = 3", "epochs = 3\nwander = 1", "several-jobs.wander: must be below 1, found 1"),
        ("epochs = 3", "epochs = 3\nworkers = 1", "several-jobs.workers: unknown field"),
        ("epochs = 3", "epochs = 30000000", "several-jobs.epochs: jobs use"),
        ("[several-jobs]", "[jobs]", "several-jobs: missing, expected a table [several-jobs]"),
    ] {
        let error = JobsScenario::from_toml(&text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
    }
}
