//! Placement by storage server over ranks: even remaining times, equal plans on all ranks.

use std::sync::Arc;

use foreread_oracle::{Feistel, Run, Shuffle};
use foreread_planner::{
    CacheContents, Cluster, ClusterPlan, LevelIndex, Resource, ServerSpeed, plan_cluster,
};
use foreread_types::{Rank, Sizes};
use proptest::prelude::*;

use super::{equal, key, replay, run, stores, train};
use crate::common::{MB, speed, with_servers};

/// The time of the slowest server for the samples without an owner.
fn slowest(plan: &ClusterPlan, lengths: &[u64], speeds: &[ServerSpeed], table: &[u16]) -> u64 {
    let mut times = vec![0; speeds.len()];
    for (id, (&bytes, &server)) in (0..).zip(lengths.iter().zip(table)) {
        if plan.owner(key(0, id)).is_none() {
            let rate = speeds[usize::from(server)].bytes_per_second;
            times[usize::from(server)] += bytes * 1_000_000_000 / rate;
        }
    }
    times.into_iter().max().unwrap_or(0)
}

/// 16 servers of 100 MB/s, the fourth twenty times slower, for `samples` samples.
fn one_slow(samples: u64) -> (Vec<ServerSpeed>, Vec<u16>) {
    let mut speeds = vec![speed(100 * MB); 16];
    speeds[3] = speed(5 * MB);
    (speeds, (0..samples).map(|id| (id % 16) as u16).collect())
}

#[test]
// semantics: HPC-10
fn ranks_keep_the_samples_of_the_slow_server() {
    let (speeds, table) = one_slow(1600);
    let (lengths, sizes) = (vec![100_000; 1600], [Sizes::uniform(1600, 100_000)]);
    let run = run(vec![train(Shuffle::new(1600, 7).unwrap(), 10)], 5, 4);
    let ignoring = equal(4, 20 * MB);
    let even = with_servers(ignoring.clone(), &speeds, &table);
    let [plan, usual] = [&even, &ignoring].map(|cluster| plan_cluster(&run, &sizes, cluster).unwrap());
    let [time, before] = [&plan, &usual].map(|plan| slowest(plan, &lengths, &speeds, &table));
    assert!(time * 10 < before, "{time} instead of {before}");
    let gain = plan.server_gain().unwrap();
    assert!(gain.epoch_ns * 3 < gain.ignoring_servers_ns, "{gain:?}");
    assert!(usual.server_gain().is_none());
    assert_eq!(plan.origin_bytes(), usual.origin_bytes());
    assert_eq!(replay(&run, &sizes, &even, &plan).origin_bytes, plan.origin_bytes());
    // Four ranks share the work, and read 100 samples of 20 ms first.
    let epochs = plan.predict(&run, &even).unwrap();
    assert_eq!(epochs[0].busy[&Resource::OriginServer], 500_000_000);
    for rank in 1..4 {
        let other = Run::new(Arc::clone(run.schedule()), run.deal(), 4, Rank(rank)).unwrap();
        let other = plan_cluster(&other, &sizes, &even).unwrap();
        assert_eq!(other.fingerprint(), plan.fingerprint());
    }
}

#[test]
fn held_samples_stay_with_servers() {
    let (speeds, table) = one_slow(1600);
    let sizes = [Sizes::uniform(1600, 100_000)];
    let run = run(vec![train(Shuffle::new(1600, 7).unwrap(), 10)], 5, 2);
    let mut held = CacheContents::default();
    (0..300).for_each(|id| held.add(key(0, id), 1, LevelIndex(0)));
    let cluster = Cluster { held, ..with_servers(equal(2, 40 * MB), &speeds, &table) };
    let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
    assert!(plan.server_gain().is_some());
    assert!((0..300).all(|id| plan.owner(key(0, id)).is_some_and(|owner| owner.store == 1)));
    // Three samples of the slow server take as long as the rest of any other server.
    let of_slow = (0..1600).filter(|id| id % 16 == 3);
    assert!(of_slow.filter(|&id| plan.owner(key(0, id)).is_none()).count() <= 3);
}

#[test]
fn rules_and_full_caches_ignore_servers() {
    let (speeds, table) = one_slow(1600);
    let sizes = [Sizes::uniform(1600, 100_000)];
    let shuffled = run(vec![train(Shuffle::new(1600, 7).unwrap(), 10)], 5, 2);
    let ample = with_servers(equal(2, 80 * MB), &speeds, &table);
    let plan = plan_cluster(&shuffled, &sizes, &ample).unwrap();
    assert!(plan.server_gain().is_none());
    assert_eq!(plan.predict(&shuffled, &ample).unwrap()[1].busy[&Resource::OriginServer], 0);
    let samples = (1 << 20) + 1;
    let (speeds, table) = one_slow(samples);
    let computed = run(vec![train(Feistel::new(samples, 7).unwrap(), 10)], 3, 2);
    let cluster = with_servers(equal(2, 1000 * MB), &speeds, &table);
    let plan = plan_cluster(&computed, &[Sizes::uniform(samples, 100_000)], &cluster).unwrap();
    assert!(plan.owners().is_rule() && plan.server_gain().is_none());
}

proptest! {
    #[test]
    // semantics: HPC-10
    fn cluster_by_server_is_never_slower(
        samples in prop::collection::vec((1u64..3000, 0u16..4), 1..300),
        rates in prop::collection::vec(1u64..100, 4),
        rooms in prop::collection::vec(prop::collection::vec(0u64..60_000, 1..3), 1..4),
    ) {
        let (lengths, table): (Vec<u64>, Vec<u16>) = samples.into_iter().unzip();
        let speeds: Vec<ServerSpeed> = rates.iter().map(|rate| speed(rate * 1000)).collect();
        let sizes = [Sizes::table(&lengths)];
        let ignoring = stores(rooms);
        let ranks = ignoring.stores.len() as u32;
        let run = run(vec![train(Shuffle::new(lengths.len() as u64, 7).unwrap(), 1)], 3, ranks);
        let even = with_servers(ignoring.clone(), &speeds, &table);
        let [plan, usual] = [&even, &ignoring].map(|cluster| plan_cluster(&run, &sizes, cluster).unwrap());
        prop_assert_eq!(plan_cluster(&run, &sizes, &even).unwrap().fingerprint(), plan.fingerprint());
        for planned in plan.stores().iter().flat_map(|store| &store.levels) {
            prop_assert!(planned.footprint <= planned.capacity);
        }
        let [time, before] = [&plan, &usual].map(|plan| slowest(plan, &lengths, &speeds, &table));
        prop_assert!(time <= before);
        if plan.server_gain().is_none() {
            prop_assert_eq!(plan.fingerprint(), usual.fingerprint());
        }
    }
}
