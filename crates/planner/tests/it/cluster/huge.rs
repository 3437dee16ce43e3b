//! Runs without tables: owners by rule.

use foreread_oracle::{Feistel, Shuffle};
use foreread_planner::plan_cluster;
use foreread_types::{Rank, Sizes};

use super::{equal, key, run, train};

#[test]
// semantics: PLAN-6
fn billion_samples_take_no_memory() {
    let (samples, ranks) = (1_000_000_000u64, 1024u32);
    let run = run(vec![train(Feistel::new(samples, 8).unwrap(), 256)], 90, ranks);
    let sizes = [Sizes::uniform(samples, 100_000)];
    for percent in [50, 100, 200] {
        let each = samples / u64::from(ranks) * percent / 100 * 100_000;
        let cluster = equal(ranks, each);
        let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
        assert!(plan.owners().is_rule());
        assert!(plan.owners().memory() < 1 << 20, "{}", plan.owners().memory());
        assert!(plan.origin_bytes() >= plan.floor());
        assert!(plan.origin_bytes() as f64 <= plan.floor() as f64 * 1.01);
        // A sample of the ids, in the order of the first pass.
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
        // The remaining space holds the first samples a second time.
        let last = plan.copies().level(key(0, samples / u64::from(ranks) - 10));
        assert_eq!((last.is_some(), plan.copies().memory() < 100), (percent == 200, true));
        assert_eq!(plan.copies().level(key(0, samples / u64::from(ranks) + 1)), None);
    }
}

#[test]
fn too_many_samples_for_tables_are_refused() {
    let samples = 1 << 33;
    let run = run(vec![train(Feistel::new(samples, 1).unwrap(), 7)], 2, 4);
    let sizes = [Sizes::uniform(samples, 1)];
    let mut cluster = equal(4, 100);
    cluster.look_ahead = 5;
    assert!(plan_cluster(&run, &sizes, &cluster).unwrap().owners().is_rule());
    let run = super::run(vec![train(Shuffle::new(samples, 1).unwrap(), 7)], 2, 4);
    let error = plan_cluster(&run, &sizes, &cluster).unwrap_err();
    assert!(error.to_string().contains("tables of owners have at most"), "{error}");
}
