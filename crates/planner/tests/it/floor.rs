//! Tests of the counted lower bound, against the formula on explicit streams and against the reads
//! of policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use foreread_oracle::{
    Deal, Explicit, Feistel, Phase, Position, Run, Sampler, Schedule, Sequential, Shuffle, Weighted,
};
use foreread_planner::{Demand, EpochDemand, LowerBound, Scope, floor};
use foreread_types::{DatasetId, Rank, SampleId, Sizes};
use proptest::prelude::*;

use crate::common::{phase, run, stream};
use crate::reference;

/// The epochs of the given ranks' reads, counted sample by sample, and the uses of each sample.
fn by_hand(runs: &[Run], sizes: &[Sizes]) -> (Vec<EpochDemand>, Vec<Vec<u64>>) {
    let mut seen = BTreeSet::new();
    let mut epochs = Vec::new();
    let mut uses: Vec<Vec<u64>> = sizes.iter().map(|sizes| vec![0; sizes.len() as usize]).collect();
    let numbers: BTreeSet<u64> = runs[0].passes().map(|pass| pass.epoch).collect();
    for number in numbers {
        let mut now = BTreeSet::new();
        for run in runs {
            for pass in run.passes().filter(|pass| pass.epoch == number) {
                let stream = run.stream(&pass).unwrap();
                for index in 0..stream.len() {
                    let id = stream.at(index);
                    uses[pass.dataset.0 as usize][id.0 as usize] += 1;
                    now.insert((pass.dataset.0, id));
                }
            }
        }
        let bytes = |&(dataset, id): &(u32, SampleId)| sizes[dataset as usize].bytes(id);
        let distinct = now.iter().map(bytes).sum();
        epochs.push(EpochDemand { distinct, seen: now.intersection(&seen).map(bytes).sum() });
        seen.extend(now);
    }
    (epochs, uses)
}

fn sampler(population: u64, epochs: u64) -> impl Strategy<Value = Arc<dyn Sampler>> {
    let explicit = (0..2 * population as usize + 1).prop_flat_map(move |len| {
        prop::collection::vec(prop::collection::vec(0..population, len), epochs as usize)
    });
    prop_oneof![
        any::<u64>()
            .prop_map(move |seed| Arc::new(Shuffle::new(population, seed).unwrap()) as Arc<dyn Sampler>),
        any::<u64>()
            .prop_map(move |seed| Arc::new(Feistel::new(population, seed).unwrap()) as Arc<dyn Sampler>),
        Just(()).prop_map(move |()| Arc::new(Sequential::new(population).unwrap()) as Arc<dyn Sampler>),
        (any::<u64>(), 0..2 * population).prop_map(move |(seed, len)| {
            Arc::new(Weighted::new(&vec![1.0; population as usize], len, seed).unwrap()) as Arc<dyn Sampler>
        }),
        explicit
            .prop_map(move |orders| Arc::new(Explicit::new(population, orders).unwrap()) as Arc<dyn Sampler>),
    ]
}

#[derive(Debug)]
struct Case {
    schedule: Arc<Schedule>,
    sizes: Vec<Sizes>,
    deal: Deal,
    world_size: u32,
    start: (u64, u32, u64),
}

impl Case {
    fn run(&self, rank: u32) -> Run {
        let (epoch, phase, consumed) = self.start;
        let consumed = consumed.min(self.schedule.phases[phase as usize].sampler.len());
        let position = Position { schedule: self.schedule.fingerprint(), epoch, phase, consumed };
        Run::resume(self.schedule.clone(), self.deal, self.world_size, Rank(rank), &position).unwrap()
    }
}

prop_compose! {
    fn cases()
        (epochs in 1u64..5, lengths in prop::collection::vec(prop::collection::vec(0u64..100, 1..12), 1..3))
        (phases in prop::collection::vec((0..lengths.len()).prop_flat_map({
            let lengths = lengths.clone();
            move |dataset| {
                let sampler = sampler(lengths[dataset].len() as u64, epochs);
                (Just(dataset), sampler, prop::option::of(1u64..4), any::<bool>())
            }
         }), 1..4),
         lengths in Just(lengths),
         epochs in Just(epochs),
         blocks in any::<bool>(),
         world_size in 1u32..4,
         start in (0..epochs, any::<prop::sample::Index>(), prop_oneof![Just(0u64), 0u64..20]))
        -> Case {
        let phases: Vec<Phase> = phases.into_iter().map(|(dataset, sampler, batch_size, drop_last)| {
            Phase { sampler, batch_size, drop_last, ..phase(dataset as u32, Sequential::new(0).unwrap()) }
        }).collect();
        let start = (start.0, start.1.index(phases.len()) as u32, start.2);
        Case {
            schedule: Arc::new(Schedule::new(epochs, phases).unwrap()),
            sizes: lengths.iter().map(|lengths| Sizes::table(lengths)).collect(),
            deal: if blocks { Deal::Blocks } else { Deal::Torch },
            world_size,
            start,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn demand_of_a_rank_is_exact(case in cases()) {
        let run = case.run(case.world_size - 1);
        let demand = Demand::of(&run, &case.sizes, Scope::Rank).unwrap();
        let (epochs, uses) = by_hand(std::slice::from_ref(&run), &case.sizes);
        prop_assert_eq!(demand.epochs(), &epochs);
        prop_assert!(demand.is_exact());
        for (dataset, uses) in uses.iter().enumerate() {
            let counted = demand.uses(DatasetId(dataset as u32)).unwrap();
            for (id, &uses) in uses.iter().enumerate() {
                prop_assert_eq!(counted.of(SampleId(id as u64)), uses, "sample {} of {}", id, dataset);
            }
        }
    }

    #[test]
    fn demand_of_a_cluster_is_exact(case in cases(), capacity in 0u64..500) {
        let runs: Vec<_> = (0..case.world_size).map(|rank| case.run(rank)).collect();
        let (epochs, _) = by_hand(&runs, &case.sizes);
        for run in &runs {
            let found = LowerBound::of(run, &case.sizes, capacity, Scope::Cluster).unwrap();
            prop_assert_eq!(found, LowerBound { bytes: floor(&epochs, capacity), exact: true });
        }
    }

    #[test]
    // semantics: CACHE-4
    fn policies_read_at_least_the_lower_bound(case in cases(), capacity in 0u64..15, horizon in 0u64..30) {
        let run = case.run(0);
        let samples: Vec<u64> = case.sizes.iter().map(Sizes::len).collect();
        let ones: Vec<_> = samples.iter().map(|&samples| Sizes::uniform(samples, 1)).collect();
        let bound = LowerBound::of(&run, &ones, capacity, Scope::Rank).unwrap().bytes;
        let stream = stream(&run, &samples);
        let min = reference::min(&stream, capacity);
        for other in [
            reference::lru(&stream, capacity),
            reference::fifo(&stream, capacity),
            reference::never_evict(&stream, capacity),
            reference::threshold(&stream, capacity, horizon),
        ] {
            prop_assert!(other.hits <= min.hits);
        }
        prop_assert!(stream.len() as u64 - min.hits >= bound);
    }

    #[test]
    fn exhaustive_search_reads_at_least_the_lower_bound(
        lengths in prop::collection::vec(0u64..20, 1..5),
        seed in any::<u64>(),
        draws in 0u64..6,
        capacity in 0u64..50,
    ) {
        let samples = lengths.len() as u64;
        let sizes = Sizes::table(&lengths);
        let weighted = Weighted::new(&vec![1.0; lengths.len()], draws, seed).unwrap();
        let run = run(3, vec![phase(0, Shuffle::new(samples, seed).unwrap()), phase(0, weighted)]);
        let bound = LowerBound::of(&run, std::slice::from_ref(&sizes), capacity, Scope::Rank).unwrap().bytes;
        prop_assert!(cheapest(&stream(&run, &[samples]), &lengths, capacity) >= bound);
    }
}

/// The fewest bytes that any policy reads, by trying every set of residents after every use.
fn cheapest(stream: &[SampleId], lengths: &[u64], capacity: u64) -> u64 {
    let bytes =
        |set: usize| (0..lengths.len()).filter(|id| set >> id & 1 == 1).map(|id| lengths[id]).sum::<u64>();
    let mut costs = vec![u64::MAX; 1 << lengths.len()];
    costs[0] = 0;
    for id in stream {
        let mut next = vec![u64::MAX; costs.len()];
        for (set, &cost) in costs.iter().enumerate().filter(|&(_, &cost)| cost < u64::MAX) {
            let with = set | 1 << id.0;
            let cost = cost + if with == set { 0 } else { lengths[id.0 as usize] };
            // Any subset of the residents may stay.
            let mut kept = with;
            loop {
                if bytes(kept) <= capacity {
                    next[kept] = next[kept].min(cost);
                }
                if kept == 0 {
                    break;
                }
                kept = (kept - 1) & with;
            }
        }
        costs = next;
    }
    costs.into_iter().min().unwrap()
}

#[test]
fn min_equals_an_exhaustive_search() {
    for seed in 0..200 {
        let sampler = Weighted::new(&[1.0, 2.0, 3.0, 4.0, 5.0], 14, seed).unwrap();
        let stream = stream(&run(1, vec![phase(0, sampler)]), &[5]);
        for capacity in 0..5 {
            let misses = stream.len() as u64 - reference::min(&stream, capacity).hits;
            assert_eq!(misses, cheapest(&stream, &[1; 5], capacity), "seed {seed}, capacity {capacity}");
        }
    }
}

#[test]
fn whole_epochs_follow_the_short_formula() {
    // Orders of this many samples could not be computed here, and are not.
    let samples = 1 << 50;
    let run = run(1000, vec![phase(0, Shuffle::new(samples, 0).unwrap())]);
    for capacity in [0, samples / 3, samples, u64::MAX] {
        let found = LowerBound::of(&run, &[Sizes::uniform(samples, 1)], capacity, Scope::Rank).unwrap();
        assert_eq!(found.bytes, samples + 999 * samples.saturating_sub(capacity));
        assert!(found.exact);
    }
}

#[test]
fn sizes_must_be_those_of_the_run() {
    let run = run(2, vec![phase(0, Shuffle::new(10, 0).unwrap()), phase(1, Sequential::new(4).unwrap())]);
    let error = Demand::of(&run, &[Sizes::uniform(10, 1)], Scope::Rank).unwrap_err();
    assert!(error.to_string().starts_with("sizes has 1 entries"), "{error}");
    let error = Demand::of(&run, &[Sizes::uniform(10, 1), Sizes::uniform(5, 1)], Scope::Rank).unwrap_err();
    assert!(error.to_string().starts_with("sizes[1] has 5 samples"), "{error}");
}
