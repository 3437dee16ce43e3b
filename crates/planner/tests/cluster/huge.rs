//! Runs without tables: owners by rule.

use foreread_oracle::{Deal, Feistel, Run, Sequential, Shuffle};
use foreread_planner::{Ownership, PlanErrorKind, plan_cluster};
use foreread_types::{DatasetId, Rank, Sizes};

use crate::{equal, key, replay, run, stores, train};

#[test]
fn a_thousand_million_samples_take_no_memory() {
    let (samples, ranks) = (1_000_000_000u64, 1024u32);
    let run = run(vec![train(Feistel::new(samples, 8).unwrap(), 256)], 90, ranks);
    let sizes = [Sizes::uniform(samples, 100_000)];
    for percent in [50, 100, 200] {
        let each = samples / u64::from(ranks) * percent / 100 * 100_000;
        let cluster = equal(ranks, each);
        let plan = plan_cluster(&run, &sizes, &cluster, Ownership::Cheaper).unwrap();
        assert!(plan.owners().is_rule());
        assert!(plan.owners().memory() < 1 << 20, "{}", plan.owners().memory());
        assert_eq!(plan.ownership(), Ownership::FirstReader);
        assert!(plan.origin_bytes() >= plan.floor());
        assert!(plan.origin_bytes() as f64 <= plan.floor() as f64 * 1.01);
        // A sample of the ids, as the first pass reads them.
        let first = run.stream(&run.pass(0).unwrap()).unwrap();
        let (mut kept, mut at_home) = (0, 0);
        for nth in 0..10_000u64 {
            let rank = Rank((nth % u64::from(ranks)) as u32);
            let id = first.of_rank(rank).unwrap().at(nth * 97 % first.len());
            if let Some(owner) = plan.owner(key(0, id.0)) {
                kept += 1;
                at_home += u64::from(owner.store == rank.0 as usize);
            }
        }
        assert_eq!(kept, at_home);
        let expected = percent.min(100) as f64 / 100.0;
        assert!((kept as f64 / 10_000.0 - expected).abs() < 0.02, "{percent} %: {kept}");
        let epochs = plan.predict(&run, &cluster).unwrap();
        assert_eq!(epochs.len(), 90);
    }
}

#[test]
fn the_rule_keeps_as_much_as_the_table() {
    for (rooms, drop_last) in [
        (vec![vec![300], vec![300], vec![300], vec![300]], false),
        (vec![vec![100, 50], vec![700], vec![], vec![20, 10]], true),
        (vec![vec![5000], vec![], vec![3], vec![1]], true),
    ] {
        let samples = 2003;
        let phases = |huge: bool| {
            let mut phase = match huge {
                true => train(Feistel::new(samples, 1).unwrap(), 7),
                false => train(Shuffle::new(samples, 1).unwrap(), 7),
            };
            phase.drop_last = drop_last;
            let mut validation = train(Sequential::new(100).unwrap(), 7);
            validation.dataset = DatasetId(1);
            vec![phase, validation]
        };
        let sizes = [Sizes::uniform(samples, 1), Sizes::uniform(100, 1)];
        let cluster = stores(rooms);
        let found = [true, false].map(|huge| {
            let run = Run::new(run(phases(huge), 5, 4).schedule().clone(), Deal::Blocks, 4, Rank(1)).unwrap();
            let plan = plan_cluster(&run, &sizes, &cluster, Ownership::FirstReader).unwrap();
            assert_eq!(plan.owners().is_rule(), huge);
            let kept = (0..2).flat_map(|dataset| (0..sizes[dataset].len()).map(move |id| key(dataset, id)));
            let kept = kept.filter(|&key| plan.owner(key).is_some()).count();
            for (store, said) in cluster.stores.iter().zip(plan.stores()) {
                for (level, said) in store.levels.iter().zip(&said.levels) {
                    assert!(said.footprint <= level.capacity);
                }
            }
            let read = replay(&run, &sizes, &cluster, &plan).origin_bytes;
            // The rule's figure is an estimate where samples are dropped.
            let off = read.abs_diff(plan.origin_bytes()) as f64 / read as f64;
            assert!(off < 0.01, "{read}, predicted {}", plan.origin_bytes());
            kept
        });
        assert_eq!(found[0], found[1]);
    }
}

#[test]
fn too_many_samples_for_tables_are_refused() {
    let samples = 1 << 33;
    let run = run(vec![train(Feistel::new(samples, 1).unwrap(), 7)], 2, 4);
    let sizes = [Sizes::uniform(samples, 1)];
    let mut cluster = equal(4, 100);
    cluster.look_ahead = 5;
    assert!(plan_cluster(&run, &sizes, &cluster, Ownership::Cheaper).unwrap().owners().is_rule());
    let run = crate::run(vec![train(Shuffle::new(samples, 1).unwrap(), 7)], 2, 4);
    let error = plan_cluster(&run, &sizes, &cluster, Ownership::Cheaper).unwrap_err();
    assert_eq!(error.kind(), PlanErrorKind::TooLarge);
}
