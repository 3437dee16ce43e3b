//! Plans do not change with the length of a run.

use foreread_oracle::Shuffle;
use foreread_planner::{ClusterPlan, plan_cluster};
use foreread_types::Sizes;

use super::{equal, run, train};

fn plan(samples: u64, epochs: u64, ranks: u32, each: u64) -> ClusterPlan {
    let run = run(vec![train(Shuffle::new(samples, 2).unwrap(), 32)], epochs, ranks);
    plan_cluster(&run, &[Sizes::uniform(samples, 100)], &equal(ranks, each)).unwrap()
}

/// Expected local uses of all ranks, in thousandths of all uses.
fn local(plan: &ClusterPlan) -> u64 {
    plan.stores().iter().map(|store| store.local.samples).sum::<u64>() * 1000 / plan.uses().samples
}

/// Guards against plans without copies from 2^26 uses on: three quarters of all uses crossed the
/// network.
#[test]
// semantics: PLAN-5
fn long_runs_make_second_copies_if_all_fits() {
    let shares = [60_900, 61_100].map(|epochs| local(&plan(1100, epochs, 4, 100_000_000)));
    assert_eq!(shares, [999, 999]);
}

/// ImageNet on eight ranks, each with space for half of it.
#[test]
// semantics: PLAN-5
fn long_runs_of_many_samples_make_second_copies() {
    let plan = plan(1_281_167, 90, 8, 1_281_167 * 50);
    assert!((480..510).contains(&local(&plan)), "{}", local(&plan));
    assert_eq!(plan.origin_bytes(), plan.floor());
}
