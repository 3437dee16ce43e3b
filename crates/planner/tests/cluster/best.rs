//! The local share against the best of all assignments.

use foreread_oracle::Shuffle;
use foreread_planner::{Cluster, Ownership, plan_cluster};
use foreread_types::{SampleId, Sizes};
use proptest::prelude::*;

use crate::{each_use, key, replay, run, stores, train};

/// How often each store uses each sample.
fn uses(run: &foreread_oracle::Run, cluster: &Cluster, samples: usize) -> Vec<Vec<u64>> {
    let mut uses = vec![vec![0; cluster.stores.len()]; samples];
    each_use(run, |_, rank, id| uses[id.0 as usize][cluster.store_of(rank).unwrap().id.0 as usize] += 1);
    uses
}

/// The most (bytes kept, local uses) of all assignments of samples to stores or nowhere.
fn best(uses: &[Vec<u64>], lengths: &[u64], rooms: &mut [u64]) -> (u64, u64) {
    let Some((of_sample, uses)) = uses.split_first() else { return (0, 0) };
    let (bytes, lengths) = (lengths[0], &lengths[1..]);
    let mut most = best(uses, lengths, rooms);
    for store in 0..rooms.len() {
        if rooms[store] >= bytes {
            rooms[store] -= bytes;
            let (kept, local) = best(uses, lengths, rooms);
            most = most.max((kept + bytes, local + of_sample[store]));
            rooms[store] += bytes;
        }
    }
    most
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn equal_samples_are_where_they_are_used_most(
        samples in 1usize..8,
        rooms in prop::collection::vec(prop::collection::vec(0u64..5, 1..3), 2..4),
        epochs in 2u64..9,
        seed in any::<u64>(),
    ) {
        let (cluster, ranks) = (stores(rooms.clone()), rooms.len() as u32);
        let run = run(vec![train(Shuffle::new(samples as u64, seed).unwrap(), 1)], epochs, ranks);
        let sizes = [Sizes::uniform(samples as u64, 1)];
        let plan = plan_cluster(&run, &sizes, &cluster, Ownership::MostFrequentReader).unwrap();
        let mut rooms: Vec<u64> = rooms.iter().map(|levels| levels.iter().sum()).collect();
        let (kept, local) = best(&uses(&run, &cluster, samples), &vec![1; samples], &mut rooms);
        let found = (0..samples as u64).filter(|&id| plan.owner(key(0, id)).is_some()).count() as u64;
        prop_assert_eq!(found, kept);
        let replayed = replay(&run, &sizes, &cluster, &plan);
        let points = 100.0 * (local - replayed.local) as f64 / replayed.uses as f64;
        prop_assert!(points <= 1.0, "{} points", points);
    }
}

#[test]
fn many_samples_on_uneven_ranks_are_as_local_as_the_best_choice() {
    // Too many to try all: the greedy choice beside an upper bound, which lets every store take the samples that it
    // gains most from, as if no other had them (each sample's gain is that over its least place).
    for (seed, shape) in [(1, vec![700, 500, 50, 0]), (2, vec![100, 100, 100, 2000]), (3, vec![500; 4])] {
        let samples = 2000usize;
        let (cluster, epochs) = (stores(shape.iter().map(|&room| vec![room]).collect()), 30);
        let run = run(vec![train(Shuffle::new(samples as u64, seed).unwrap(), 4)], epochs, 4);
        let sizes = [Sizes::uniform(samples as u64, 1)];
        let plan = plan_cluster(&run, &sizes, &cluster, Ownership::MostFrequentReader).unwrap();
        let uses = uses(&run, &cluster, samples);
        let bound = dual(&uses, &shape);
        let replayed = replay(&run, &sizes, &cluster, &plan);
        let points = 100.0 * (bound - replayed.local as f64) / replayed.uses as f64;
        println!("{shape:?}: {points:.3} points below the bound");
        assert!(points <= 1.0, "{shape:?}: {points} points below the bound");
    }
}

/// An upper bound on the local uses of any assignment: the dual of the transport problem at prices found by descent.
fn dual(uses: &[Vec<u64>], rooms: &[u64]) -> f64 {
    let at = |prices: &[f64]| -> f64 {
        let gains: f64 = uses
            .iter()
            .map(|uses| uses.iter().zip(prices).map(|(&uses, price)| uses as f64 - price).fold(0.0, f64::max))
            .sum();
        gains + rooms.iter().zip(prices).map(|(&room, price)| room as f64 * price).sum::<f64>()
    };
    let mut prices = vec![0.0; rooms.len()];
    let mut best = at(&prices);
    for step in [4.0, 2.0, 1.0, 0.5, 0.25] {
        let mut better = true;
        while better {
            better = false;
            for mask in 1..3usize.pow(rooms.len() as u32) {
                let mut other: Vec<f64> = prices.clone();
                let mut digits = mask;
                for price in &mut other {
                    *price = f64::max(*price + step * [0.0, 1.0, -1.0][digits % 3], 0.0);
                    digits /= 3;
                }
                let found = at(&other);
                if found < best {
                    (best, prices, better) = (found, other, true);
                }
            }
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Where samples differ the greedy choice may leave a hole that another would fill: by bytes, less than a sample a
    /// store.
    #[test]
    fn samples_of_all_lengths_fill_the_rooms(
        lengths in prop::collection::vec(1u64..100, 1..7),
        rooms in prop::collection::vec(0u64..200, 2..4),
        seed in any::<u64>(),
    ) {
        let cluster = stores(rooms.iter().map(|&room| vec![room]).collect());
        let run = run(vec![train(Shuffle::new(lengths.len() as u64, seed).unwrap(), 1)], 6, rooms.len() as u32);
        let sizes = [Sizes::table(&lengths)];
        let plan = plan_cluster(&run, &sizes, &cluster, Ownership::MostFrequentReader).unwrap();
        let kept: u64 = (0..lengths.len() as u64)
            .filter(|&id| plan.owner(key(0, id)).is_some())
            .map(|id| sizes[0].bytes(SampleId(id)))
            .sum();
        let uses = uses(&run, &cluster, lengths.len());
        let (best, _) = best(&uses, &lengths, &mut rooms.clone());
        prop_assert!(kept + rooms.len() as u64 * 100 >= best);
    }
}
