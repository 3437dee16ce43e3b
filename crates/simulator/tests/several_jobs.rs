//! Several jobs with one cache: the known figures, and the distance from Belady's MIN.
//!
//! With `FOREREAD_SOAK` (any value) all figures are compared, and all caches and numbers of jobs.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails by panicking")]

use foreread_simulator::{JobsComparison, JobsPolicy, JobsScenario};

const CACHES: [f64; 6] = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7];

fn scenario(samples: u32, paces: &[f64], cache: f64) -> JobsScenario {
    let text = format!(
        "seed = 1\n[several-jobs]\nsamples = {samples}\ncache = {cache}\npaces = {paces:?}\nepochs = 4"
    );
    JobsScenario::from_toml(&text).unwrap()
}

fn reads(scenario: JobsScenario, policies: &[JobsPolicy]) -> (f64, Vec<f64>) {
    let compared = JobsComparison::run(scenario, policies, 1, &mut |_, _| ()).unwrap();
    (compared.bound(), compared.outcomes().iter().map(|it| it.origin_reads).collect())
}

#[test]
fn explore() {
    for jobs in [1, 2, 4, 8, 16] {
        for cache in CACHES {
            let (bound, all) = reads(scenario(20_000, &vec![1.0; jobs], cache), &JobsPolicy::ALL);
            let mut wandering = scenario(20_000, &vec![1.0; jobs], cache);
            wandering.wander = 0.3;
            let (_, wander) = reads(wandering, &JobsPolicy::ALL[..3]);
            println!("{jobs} {cache} bound {bound:.4} {all:.4?} wander {wander:.4?}");
        }
    }
}
