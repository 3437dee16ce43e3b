//! The inputs of a test case: the run, its caches and its faults.

use std::sync::Arc;

use foreread_loader::OnError;
use foreread_oracle::{
    Deal, Explicit, Feistel, Phase, PhaseKind, Run, Sampler, Schedule, Sequential, Shuffle, Torch, Weighted,
};
use foreread_planner::{CacheStore, Cluster, Level, LocalPlan, plan};
use foreread_types::{DatasetId, Footprint, Rank, SampleId, SampleKey, Sizes, StoreId, mix};
use proptest::prelude::*;

/// The sampler of a phase.
#[derive(Clone, Copy, Debug)]
pub enum SampleOrder {
    Sequential,
    Shuffle,
    Torch,
    Feistel,
    /// This many draws, with replacement.
    Weighted(u64),
    /// This many draws per pass, with repetitions.
    Explicit(u64),
}

#[derive(Clone, Debug)]
pub struct PhaseSpec {
    pub dataset: usize,
    pub draw: SampleOrder,
    pub batch_size: Option<u64>,
    pub drop_last: bool,
}

/// A cache. A `ready` one answers look-ups with the sample. Another has to be read.
#[derive(Clone, Copy, Debug)]
pub struct CacheSpec {
    pub ready: bool,
    pub capacity: u64,
    pub footprint: Footprint,
}

/// Fault rates, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// Samples that the origin never delivers.
    pub bad: u64,
    /// Steps at which a cache loses a sample.
    pub lost: u64,
    /// Stored samples that a cache cannot deliver until they are removed.
    pub broken: u64,
    /// Reads from a cache that fail for another reason than the sample.
    pub hiccup: u64,
    /// Stores that are refused.
    pub refused: u64,
    /// Samples of an earlier run in caches that have to be read, whatever their place in this run.
    pub warm: u64,
    /// Whether stored samples become visible only later.
    pub slow_writes: bool,
    /// Steps at which the core gets an invalid event.
    pub invalid_events: u64,
    /// The pass whose order cannot be computed.
    pub undealt: Option<usize>,
}

impl FaultRates {
    /// Whether every stored sample is found by later look-ups.
    pub fn spare_the_caches(&self) -> bool {
        self.lost == 0
            && self.broken == 0
            && self.hiccup == 0
            && self.refused == 0
            && self.warm == 0
            && !self.slow_writes
    }
}

#[derive(Clone, Debug)]
pub struct Scenario {
    /// Sizes of samples, by dataset.
    pub datasets: Vec<Vec<u64>>,
    pub phases: Vec<PhaseSpec>,
    pub epochs: u64,
    pub deal: Deal,
    pub world_size: u32,
    pub rank: u32,
    /// Starts after this many batches of this pass of a run with another world size.
    pub resume: Option<(usize, u64, u32)>,
    pub caches: Vec<CacheSpec>,
    pub look_ahead: u64,
    pub on_error: OnError,
    /// Whether `ready` caches may hold samples of an earlier run, too.
    pub warm: bool,
    pub faults: FaultRates,
    /// How many batches the trainer holds at most.
    pub hold: usize,
    /// The step at which everything is dropped.
    pub stop: Option<u32>,
    /// Decides the order of events and the faults.
    pub seed: u64,
}

impl Scenario {
    pub fn sizes(&self) -> Vec<Sizes> {
        self.datasets.iter().map(|sizes| Sizes::table(sizes)).collect()
    }

    pub fn run(&self) -> Run {
        let phases = self.phases.iter().zip(0..).map(|(reading, number)| {
            let kind = if number == 0 { PhaseKind::Train } else { PhaseKind::Validation };
            let sampler = self.sampler(reading, number);
            let PhaseSpec { dataset, batch_size, drop_last, .. } = *reading;
            Phase { kind, dataset: DatasetId(dataset as u32), sampler, batch_size, drop_last }
        });
        let schedule = Arc::new(Schedule::new(self.epochs, phases.collect()).unwrap());
        let rank = Rank(self.rank);
        match self.resume {
            None => Run::new(schedule, self.deal, self.world_size, rank).unwrap(),
            Some((pass, batches, world_size)) => {
                let before = Run::new(Arc::clone(&schedule), self.deal, world_size, Rank(0)).unwrap();
                let pass = before.pass(pass % before.passes().len()).unwrap();
                let position = before.position_after(&pass, batches % (pass.batches + 1));
                Run::resume(schedule, self.deal, self.world_size, rank, &position).unwrap()
            }
        }
    }

    fn sampler(&self, reading: &PhaseSpec, number: u64) -> Arc<dyn Sampler> {
        let samples = self.datasets[reading.dataset].len() as u64;
        let seed = mix(self.seed ^ number);
        match reading.draw {
            SampleOrder::Sequential => Arc::new(Sequential::new(samples).unwrap()),
            SampleOrder::Shuffle => Arc::new(Shuffle::new(samples, seed).unwrap()),
            SampleOrder::Torch => Arc::new(Torch::new(samples, seed).unwrap()),
            SampleOrder::Feistel => Arc::new(Feistel::new(samples, seed).unwrap()),
            SampleOrder::Weighted(len) => {
                let weights: Vec<f64> = (0..samples).map(|id| 1.0 + (mix(seed ^ id) % 20) as f64).collect();
                Arc::new(Weighted::new(&weights, if samples == 0 { 0 } else { len }, seed).unwrap())
            }
            SampleOrder::Explicit(len) => {
                let len = if samples == 0 { 0 } else { len };
                let order =
                    |epoch: u64| (0..len).map(|at| mix(seed ^ mix(epoch << 32 | at)) % samples).collect();
                Arc::new(Explicit::new(samples, (0..self.epochs).map(order).collect()).unwrap())
            }
        }
    }

    pub fn plan(&self, run: &Run) -> LocalPlan {
        let levels = self.caches.iter().map(|cache| {
            let name = if cache.ready { "ready" } else { "stored" }.to_owned();
            Level::new(name, cache.capacity, cache.footprint)
        });
        let store = CacheStore::new(StoreId(0), levels.collect());
        LocalPlan::Private(Arc::new(plan(run, &self.sizes(), &Cluster::single(store)).unwrap()))
    }

    /// Whether the origin never delivers the sample.
    pub fn is_bad(&self, key: SampleKey) -> bool {
        mix(self.seed ^ content(key)) % 100 < self.faults.bad
    }

    pub fn bytes(&self, key: SampleKey) -> u64 {
        self.datasets[key.dataset.0 as usize][key.id.0 as usize]
    }

    /// The bytes that a read from a cache charges to the look-ahead.
    pub fn takes(&self, key: SampleKey, level: usize) -> u64 {
        let cache = self.caches[level];
        if cache.ready { self.bytes(key) } else { cache.footprint.of(self.bytes(key)) }
    }

    /// The same at the level that charges most.
    pub fn takes_at_most(&self, key: SampleKey) -> u64 {
        let takes = (0..self.caches.len()).map(|level| self.takes(key, level));
        takes.max().unwrap_or(0).max(self.bytes(key))
    }
}

/// A unique value that stands for a sample's bytes.
pub fn content(key: SampleKey) -> u64 {
    let SampleKey { dataset: DatasetId(dataset), id: SampleId(id) } = key;
    mix(u64::from(dataset) << 32 | id)
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    let count = prop_oneof![1 => Just(0usize), 20 => 1..60usize];
    let kind = prop_oneof![
        Just((0u64, 0u64, false)),
        Just((1000, 1000, false)),
        Just((0, 3000, false)),
        Just((100, 1000, true)),
    ];
    (count, kind).prop_flat_map(|(count, (least, most, giant))| {
        let giant = if giant && count > 0 { (0..count).prop_map(Some).boxed() } else { Just(None).boxed() };
        (prop::collection::vec(least..=most, count), giant).prop_map(|(mut sizes, giant)| {
            if let Some(giant) = giant {
                sizes[giant] = 200_000;
            }
            sizes
        })
    })
}

fn reading(datasets: usize) -> impl Strategy<Value = PhaseSpec> {
    let draw = prop_oneof![
        1 => Just(SampleOrder::Sequential),
        4 => Just(SampleOrder::Shuffle),
        1 => Just(SampleOrder::Torch),
        1 => Just(SampleOrder::Feistel),
        4 => (0..150u64).prop_map(SampleOrder::Weighted),
        2 => (0..60u64).prop_map(SampleOrder::Explicit),
    ];
    let batch_size = prop_oneof![1 => Just(None), 9 => (1..10u64).prop_map(Some)];
    (0..datasets, draw, batch_size, any::<bool>())
        .prop_map(|(dataset, draw, batch_size, drop_last)| PhaseSpec { dataset, draw, batch_size, drop_last })
}

fn caches() -> impl Strategy<Value = Vec<CacheSpec>> {
    let capacity = prop_oneof![1 => Just(0), 4 => 0..40_000u64, 1 => Just(1_000_000)];
    let footprint =
        prop_oneof![Just(Footprint::EXACT), Just(Footprint::new(16, 64)), Just(Footprint::new(64, 4096))];
    let cache = (any::<bool>(), capacity, footprint).prop_map(|(ready, capacity, footprint)| CacheSpec {
        ready,
        capacity,
        footprint,
    });
    prop_oneof![1 => Just(Vec::new()), 5 => prop::collection::vec(cache, 1..=2)]
}

fn faults() -> impl Strategy<Value = FaultRates> {
    let seldom = |most: u64| prop_oneof![3 => Just(0), 1 => 1..most];
    let undealt = prop_oneof![9 => Just(None), 1 => (0..6usize).prop_map(Some)];
    (
        seldom(20),
        seldom(10),
        (seldom(50), seldom(50)),
        (seldom(50), seldom(100)),
        prop::bool::weighted(0.2),
        0..10u64,
        undealt,
    )
        .prop_map(
            |(bad, lost, (broken, hiccup), (refused, warm), slow_writes, invalid_events, undealt)| {
                FaultRates { bad, lost, broken, hiccup, refused, warm, slow_writes, invalid_events, undealt }
            },
        )
}

pub fn scenarios() -> impl Strategy<Value = Scenario> {
    let data = prop::collection::vec(sizes(), 1..=2)
        .prop_flat_map(|datasets| {
            let phases = prop::collection::vec(reading(datasets.len()), 1..=2);
            (Just(datasets), phases)
        })
        .boxed();
    let deal = prop_oneof![Just(Deal::Torch), Just(Deal::Blocks)];
    let world = prop_oneof![2 => Just((1, 0)), 1 => (1..4u32).prop_flat_map(|size| (Just(size), 0..size))];
    let resume = prop_oneof![4 => Just(None), 1 => (0..10usize, 0..40u64, 1..4u32).prop_map(Some)];
    let look_ahead = prop_oneof![
        1 => Just(0),
        2 => 0..5_000u64,
        3 => 5_000..60_000u64,
        1 => Just(2_000_000),
    ];
    let on_error = prop_oneof![Just(OnError::Fail), Just(OnError::Skip), Just(OnError::Substitute)];
    let faults = prop_oneof![1 => Just(FaultRates::default()), 2 => faults()];
    let trainer = (
        prop_oneof![3 => Just(1usize), 1 => 2..4usize],
        prop_oneof![9 => Just(None), 1 => (0..600u32).prop_map(Some)],
    );
    let world = (world, any::<bool>());
    (data, 1..=5u64, deal, (world, resume), caches(), look_ahead, (on_error, faults), (trainer, any::<u64>()))
        .prop_map(
            |(
                data,
                epochs,
                deal,
                (world, resume),
                caches,
                look_ahead,
                (on_error, faults),
                (trainer, seed),
            )| {
                let ((datasets, phases), (hold, stop)) = (data, trainer);
                let ((world_size, rank), warm) = world;
                Scenario {
                    datasets,
                    phases,
                    epochs,
                    deal,
                    world_size,
                    rank,
                    resume,
                    caches,
                    look_ahead,
                    on_error,
                    warm,
                    faults,
                    hold,
                    stop,
                    seed,
                }
            },
        )
}
