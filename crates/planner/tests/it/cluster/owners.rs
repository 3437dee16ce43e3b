//! Ownership: as much as fits is kept, at first readers as long as they have space.

use foreread_oracle::{Run, Shuffle};
use foreread_planner::{Cluster, plan_cluster};
use foreread_types::{SampleId, Sizes};
use proptest::prelude::*;

use super::{each_use, key, run, stores, train};

/// The store that uses each sample first.
fn first_readers(run: &Run, cluster: &Cluster, samples: u64) -> Vec<usize> {
    let mut first = vec![None; samples as usize];
    each_use(run, |_, rank, id| {
        first[id.0 as usize].get_or_insert(cluster.store_of(rank).unwrap().id.0 as usize);
    });
    first.into_iter().map(Option::unwrap).collect()
}

/// The most bytes that fit in these capacities under any assignment.
fn most_kept(lengths: &[u64], rooms: &mut [u64]) -> u64 {
    let Some((&bytes, lengths)) = lengths.split_first() else { return 0 };
    let mut most = most_kept(lengths, rooms);
    for store in 0..rooms.len() {
        if rooms[store] >= bytes {
            rooms[store] -= bytes;
            most = most.max(most_kept(lengths, rooms) + bytes);
            rooms[store] += bytes;
        }
    }
    most
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    // semantics: PLAN-4
    fn first_readers_own_the_samples_that_fit(
        samples in 1u64..300,
        rooms in prop::collection::vec(prop::collection::vec(0u64..60, 1..3), 2..6),
        epochs in 2u64..5,
        seed in any::<u64>(),
    ) {
        let (cluster, ranks) = (stores(rooms), 2 * 3 * 5);
        let per_store = ranks / cluster.stores.len() as u32;
        let cluster = Cluster { ranks: foreread_planner::Ranks::PerStore(per_store.max(1)), ..cluster };
        let phases = vec![train(Shuffle::new(samples, seed).unwrap(), 1)];
        let run = run(phases, epochs, per_store * cluster.stores.len() as u32);
        let sizes = [Sizes::uniform(samples, 1)];
        let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
        let owners: Vec<_> = (0..samples).map(|id| plan.owner(key(0, id)).map(|owner| owner.store)).collect();
        prop_assert_eq!(owners.iter().flatten().count() as u64, samples.min(cluster.capacity()));
        let first = first_readers(&run, &cluster, samples);
        for (at, store) in cluster.stores.iter().enumerate() {
            let reads = first.iter().filter(|&&first| first == at).count() as u64;
            let own = first.iter().zip(&owners);
            let own = own.filter(|&(&first, &owner)| first == at && owner == Some(at)).count();
            prop_assert_eq!(own as u64, reads.min(store.capacity()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// If samples differ, the greedy choice may leave a gap that another choice would fill: less
    /// than one sample per store.
    #[test]
    fn samples_of_all_lengths_fill_the_stores(
        lengths in prop::collection::vec(1u64..100, 1..7),
        rooms in prop::collection::vec(0u64..200, 2..4),
        seed in any::<u64>(),
    ) {
        let cluster = stores(rooms.iter().map(|&room| vec![room]).collect());
        let phases = vec![train(Shuffle::new(lengths.len() as u64, seed).unwrap(), 1)];
        let run = run(phases, 6, rooms.len() as u32);
        let sizes = [Sizes::table(&lengths)];
        let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
        let kept: u64 = (0..lengths.len() as u64)
            .filter(|&id| plan.owner(key(0, id)).is_some())
            .map(|id| sizes[0].bytes(SampleId(id)))
            .sum();
        prop_assert!(kept + rooms.len() as u64 * 100 >= most_kept(&lengths, &mut rooms.clone()));
    }
}

#[test]
fn small_store_keeps_the_most_worth_of_its_first_reads() {
    // Requests dominate the origin's time, so short samples save the most per byte.
    let lengths: Vec<u64> = (0..400).map(|id| if id % 2 == 0 { 10 } else { 30 }).collect();
    let cluster = stores(vec![vec![600], vec![600], vec![600], vec![600]]);
    let run = run(vec![train(Shuffle::new(400, 3).unwrap(), 1)], 5, 4);
    let plan = plan_cluster(&run, &[Sizes::table(&lengths)], &cluster).unwrap();
    let first = first_readers(&run, &cluster, 400);
    for id in (0..400).step_by(2) {
        assert_eq!(plan.owner(key(0, id)).unwrap().store, first[id as usize], "{id}");
    }
}
