//! Dealing by ownership: the same global batches, equal shares, and nearly all samples local.

use foreread_oracle::{Deal, Run, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, Locality, Ranks, plan_cluster};
use foreread_types::{Footprint, Rank, SampleId, Sizes, StoreId};
use proptest::prelude::*;

use super::{equal, key, run, stores, train};

#[test]
fn local_hits_are_nearly_all_hits() {
    let (ranks, samples) = (16u32, 51_200u64);
    let run = run(vec![train(Shuffle::new(samples, 3).unwrap(), 32)], 4, ranks);
    let sizes = [Sizes::uniform(samples, 1)];
    for (percent, strided, by_owner) in [(50, 0.031, 0.499), (100, 0.063, 0.932)] {
        let cluster = equal(ranks, samples * percent / 100 / u64::from(ranks));
        let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
        let (mut dealt, mut usual, mut all) = (0u64, 0u64, 0u64);
        let mut batch = Vec::new();
        for pass in run.passes().skip(1) {
            let mut locality = Locality::new(&run, &pass, &cluster, plan.owners()).unwrap();
            for step in 0..locality.steps() {
                for rank in 0..ranks {
                    locality.fill(step, Rank(rank), &mut batch);
                    let at_home = |id: &&SampleId| {
                        plan.owner(key(0, id.0)).is_some_and(|owner| owner.store == rank as usize)
                    };
                    dealt += batch.iter().filter(at_home).count() as u64;
                    all += batch.len() as u64;
                }
            }
            let stream = run.stream(&pass).unwrap();
            for rank in 0..ranks {
                let stream = stream.of_rank(Rank(rank)).unwrap();
                usual += (0..stream.len())
                    .filter(|&index| {
                        plan.owner(key(0, stream.at(index).0))
                            .is_some_and(|owner| owner.store == rank as usize)
                    })
                    .count() as u64;
            }
        }
        let (dealt, usual) = (dealt as f64 / all as f64, usual as f64 / all as f64);
        assert!((usual - strided).abs() < 0.005, "{percent} %: {usual}");
        assert!((dealt - by_owner).abs() < 0.005, "{percent} %: {dealt}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    // semantics: PLAN-7
    fn steps_are_the_global_batches_in_equal_shares(
        samples in 1u64..200,
        rooms in prop::collection::vec(0u64..60, 1..5),
        per_store in 1u32..4,
        batch in 1u64..8,
        (blocks, drop_last) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let mut cluster = stores(rooms.iter().map(|&room| vec![room]).collect());
        cluster.ranks = Ranks::PerStore(per_store);
        let ranks = per_store * rooms.len() as u32;
        let mut phase = train(Shuffle::new(samples, seed).unwrap(), batch);
        phase.drop_last = drop_last;
        let usual = run(vec![phase], 3, ranks);
        let deal = if blocks { Deal::Blocks } else { Deal::Torch };
        let run = Run::new(usual.schedule().clone(), deal, ranks, Rank(0)).unwrap();
        let sizes = [Sizes::uniform(samples, 1)];
        let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
        let pass = run.pass(1).unwrap();
        let mut locality = Locality::new(&run, &pass, &cluster, plan.owners()).unwrap();
        prop_assert_eq!(locality.steps(), pass.batches);
        let all = run.stream(&pass).unwrap();
        let mut out = Vec::new();
        for step in (0..pass.batches).rev() {
            let (start, end) = (step * batch, ((step + 1) * batch).min(pass.samples));
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            let mut remote = 0;
            for rank in 0..ranks {
                let stream = all.of_rank(Rank(rank)).unwrap();
                expected.extend((start..end).map(|index| stream.at(index)));
                locality.fill(step, Rank(rank), &mut out);
                prop_assert_eq!(out.len() as u64, end - start);
                let at_once = locality.step(step).filter(|(of, _)| *of == Rank(rank)).map(|(_, id)| id);
                prop_assert_eq!(&out, &at_once.collect::<Vec<_>>());
                remote += out.iter().filter(|id| {
                    plan.owner(key(0, id.0)).is_some_and(|owner| owner.store != (rank / per_store) as usize)
                }).count() as u64;
                found.append(&mut out);
            }
            // Only samples beyond their owner's share are elsewhere.
            let share = (end - start) * u64::from(per_store);
            let over: u64 = (0..rooms.len()).map(|store| {
                let owned = expected.iter().filter(|id| {
                    plan.owner(key(0, id.0)).is_some_and(|owner| owner.store == store)
                });
                (owned.count() as u64).saturating_sub(share)
            }).sum();
            prop_assert_eq!(remote, over);
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn pass_without_batch_size_is_an_error() {
    let mut phase = train(Shuffle::new(10, 1).unwrap(), 1);
    phase.batch_size = None;
    let run = run(vec![phase], 2, 2);
    let memory = Level::new("memory", 10, Footprint::EXACT);
    let cluster = Cluster::single(CacheStore::new(StoreId(0), vec![memory]));
    let plan = plan_cluster(&run, &[Sizes::uniform(10, 1)], &cluster).unwrap();
    let error = Locality::new(&run, &run.pass(0).unwrap(), &cluster, plan.owners()).unwrap_err();
    assert!(error.to_string().starts_with("phase 0 has no batch size"), "{error}");
}
