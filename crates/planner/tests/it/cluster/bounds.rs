//! The lower bound is reached, and no capacity exceeded, at every size.

use foreread_oracle::{Deal, Run, Sequential, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, MAX_LEVELS, Ranks, plan_cluster};
use foreread_types::{DatasetId, Footprint, Rank, SampleId, Sizes, StoreId};
use proptest::prelude::*;

use super::{equal, key, replay, run, train};

#[test]
// semantics: PLAN-3
fn origin_bytes_are_at_the_lower_bound_at_every_size() {
    const BYTES: u64 = 1000;
    for world_size in [1u32, 4, 16, 64, 1024] {
        let samples = (40 * u64::from(world_size)).max(4000);
        let sizes = [Sizes::uniform(samples, BYTES)];
        for epochs in [2, 10, 90] {
            let run = run(vec![train(Shuffle::new(samples, 5).unwrap(), 8)], epochs, world_size);
            for percent in [5, 20, 50, 80, 100, 120, 200] {
                let each = samples * percent / 100 / u64::from(world_size);
                let cluster = equal(world_size, each * BYTES);
                let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
                let what = format!("{world_size} ranks, {epochs} epochs, {percent} %");
                assert!(plan.floor_is_exact());
                assert!(plan.origin_bytes() >= plan.floor(), "{what}");
                assert!(plan.origin_bytes() <= plan.floor() / 100 * 101, "{what}");
                // Only padding repeats samples, so the replay is cheap enough for the middle of the
                // grid.
                if epochs > 10 && world_size > 64 && percent != 50 {
                    continue;
                }
                let replayed = replay(&run, &sizes, &cluster, &plan);
                assert_eq!(replayed.origin_bytes, plan.origin_bytes(), "{what}");
                let steady = replayed.steady_origin as f64 / replayed.steady as f64;
                let expected = (1.0 - percent as f64 / 100.0).max(0.0);
                assert!((steady - expected).abs() < 0.01, "{what}: {steady}");
            }
        }
    }
}

prop_compose! {
    fn clusters()(
        shapes in prop::collection::vec(
            prop::collection::vec(
                (0u64..12_000, 0u64..20, prop_oneof![Just(1u64), Just(64)]), 0..=MAX_LEVELS), 1..6),
        per_store in 1u32..4,
        network in 0u64..2_000_000,
    ) -> (Cluster, u32) {
        let stores: Vec<CacheStore> = (0..).zip(&shapes).map(|(id, levels)| {
            let levels = levels.iter().map(|&(room, overhead, align)| {
                Level::new("", room, Footprint::new(overhead, align))
            });
            CacheStore::new(StoreId(id), levels.collect())
        }).collect();
        let ranks = stores.len() as u32 * per_store;
        let mut cluster = Cluster { stores, ranks: Ranks::PerStore(per_store), ..Cluster::default() };
        cluster.network.latency_ns = network;
        (cluster, ranks)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    // semantics: PLAN-1, PLAN-2, PLAN-3
    fn capacity_is_kept_and_predictions_equal_reads(
        (cluster, ranks) in clusters(),
        lengths in prop::collection::vec(1u64..900, 1..120),
        test in (0u64..20, 1u64..300),
        epochs in 1u64..6,
        (alike, seed) in any::<(bool, u64)>(),
    ) {
        let mut sizes = vec![Sizes::table(&lengths), Sizes::uniform(test.0, test.1)];
        let mut validation = train(Sequential::new(test.0).unwrap(), 3);
        validation.dataset = DatasetId(1);
        let mut phases = vec![train(Shuffle::new(lengths.len() as u64, seed).unwrap(), 3), validation];
        if alike {
            sizes = vec![Sizes::uniform(lengths.len() as u64, lengths[0])];
            phases.truncate(1);
        }
        let run = run(phases, epochs, ranks);
        let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
        let replayed = replay(&run, &sizes, &cluster, &plan);
        prop_assert_eq!(replayed.origin_bytes, plan.origin_bytes());
        prop_assert!(plan.origin_bytes() >= plan.floor());
        prop_assert_eq!((replayed.uses, replayed.bytes), (plan.uses().samples, plan.uses().bytes));

        // Every rank has the same plan, with its store's second copies. They equal the plan's
        // figures.
        let mut full = vec![[(0u64, 0u64, 0u64); MAX_LEVELS]; cluster.stores.len()];
        for (at, store) in cluster.stores.iter().enumerate() {
            let uses = |&rank: &Rank| cluster.store_of(rank).unwrap().id == store.id;
            let rank = (0..ranks).map(Rank).find(uses).unwrap();
            let run = Run::new(run.schedule().clone(), Deal::Torch, ranks, rank).unwrap();
            let own = plan_cluster(&run, &sizes, &cluster).unwrap();
            prop_assert_eq!(own.fingerprint(), plan.fingerprint());
            prop_assert_eq!(own.owners(), plan.owners());
            for (dataset, sizes) in sizes.iter().enumerate() {
                for id in 0..sizes.len() {
                    if let Some(level) = own.local(at, key(dataset, id)) {
                        let bytes = sizes.bytes(SampleId(id));
                        let footprint = store.levels[usize::from(level.0)].footprint.of(bytes);
                        let full = &mut full[at][usize::from(level.0)];
                        *full = (full.0 + 1, full.1 + bytes, full.2 + footprint);
                    }
                }
            }
            for (index, level) in store.levels.iter().enumerate() {
                let planned = &own.stores()[at].levels[index];
                prop_assert_eq!((planned.samples, planned.bytes, planned.footprint), full[at][index]);
                prop_assert!(planned.footprint <= level.capacity);
            }
        }
        // A sample that is used again but has no owner fits nowhere. Second copies exist only if
        // there is no such sample.
        let copies: u64 = plan.stores().iter().map(|store| store.copies.samples).sum();
        for (dataset, sizes) in sizes.iter().enumerate().filter(|_| epochs > 1) {
            for id in (0..sizes.len()).filter(|&id| plan.owner(key(dataset, id)).is_none()) {
                prop_assert_eq!(copies, 0);
                for (store, full) in cluster.stores.iter().zip(&full) {
                    for (level, full) in store.levels.iter().zip(full) {
                        prop_assert!(full.2 + level.footprint.of(sizes.bytes(SampleId(id))) > level.capacity);
                    }
                }
            }
        }
    }
}
