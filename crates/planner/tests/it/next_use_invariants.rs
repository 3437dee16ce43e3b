//! Random operations on the rule against a model of its residents: bytes, bounds and the samples of
//! disks.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use foreread_planner::{
    CacheBounds, CacheJob, CacheUse, DatasetCosts, JobStart, NextUseCache, NodeOwner, NodeOwners,
};
use foreread_types::{DatasetId, SampleId, SampleKey, Sizes};
use proptest::prelude::*;

/// Samples of each of three datasets.
const SAMPLES: u64 = 24;

#[derive(Clone, Debug)]
enum Step {
    Use { job: usize, position: u32, sample: u64 },
    Unannounced(SampleKey),
    Fill { key: SampleKey, since: u64 },
    Bounds { dataset: u32, floor: u64, cap: u64 },
    Costs { dataset: u32, weight: u32, latency: u64, rate: u64 },
    OnDisk(SampleKey, bool),
    Elsewhere(SampleKey, bool),
    Capacity(u64),
    AddJob { dataset: u32, seed: u64 },
    EndJob(usize),
    BeginEpoch { job: usize, seed: u64 },
    Forget(SampleKey),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let sample = 0..SAMPLES;
    let key = || (0_u32..3, 0..SAMPLES).prop_map(|(set, id)| SampleKey::new(DatasetId(set), SampleId(id)));
    let cap = prop_oneof![0_u64..700, Just(u64::MAX)];
    let any_cost = || prop_oneof![0_u64..9, any::<u64>()];
    let step = prop_oneof![
        8 => (0_usize..6, 0..SAMPLES as u32, sample)
            .prop_map(|(job, position, sample)| Step::Use { job, position, sample }),
        3 => key().prop_map(Step::Unannounced),
        3 => (key(), 0_u64..30_000).prop_map(|(key, since)| Step::Fill { key, since }),
        2 => (0_u32..3, 0_u64..400, cap)
            .prop_map(|(dataset, floor, cap)| Step::Bounds { dataset, floor, cap }),
        2 => (0_u32..3, 1_u32..9, any_cost(), any_cost())
            .prop_map(|(dataset, weight, latency, rate)| Step::Costs { dataset, weight, latency, rate }),
        4 => (key(), any::<bool>()).prop_map(|(key, is)| Step::OnDisk(key, is)),
        4 => (key(), any::<bool>()).prop_map(|(key, is)| Step::Elsewhere(key, is)),
        2 => (0_u64..900).prop_map(Step::Capacity),
        2 => (0_u32..3, 0_u64..256).prop_map(|(dataset, seed)| Step::AddJob { dataset, seed }),
        1 => (0_usize..6).prop_map(Step::EndJob),
        1 => (0_usize..6, 0_u64..256).prop_map(|(job, seed)| Step::BeginEpoch { job, seed }),
        1 => key().prop_map(Step::Forget),
    ];
    prop::collection::vec((0_u64..2000, step), 1..250)
}

/// Permutations, and orders that use some samples several times.
fn order(seed: u64) -> Vec<SampleId> {
    let stride = [1, 5, 7, 11, 0, 2][seed as usize % 6];
    (0..SAMPLES).map(|at| SampleId((at * stride + seed) % SAMPLES)).collect()
}

/// The samples of a dataset that this node does not own, and the sums of the others.
#[derive(Debug)]
struct Others {
    ids: BTreeSet<SampleId>,
    own: (u64, u64),
}

impl Others {
    fn of(dataset: DatasetId, all: &BTreeSet<SampleKey>, sizes: &[Vec<u64>; 3]) -> Self {
        let ids: BTreeSet<SampleId> =
            all.iter().filter(|key| key.dataset == dataset).map(|key| key.id).collect();
        let own = (0..SAMPLES).filter(|id| !ids.contains(&SampleId(*id)));
        let bytes = own.clone().map(|id| sizes[dataset.0 as usize][id as usize]).sum();
        Self { own: (own.count() as u64, bytes), ids }
    }
}

impl NodeOwners for Others {
    fn owner(&self, sample: SampleId) -> NodeOwner {
        match (self.ids.contains(&sample), sample.0 % 2) {
            (false, _) => NodeOwner::This,
            (true, 0) => NodeOwner::Other,
            (true, _) => NodeOwner::None,
        }
    }

    fn own_samples(&self) -> u64 {
        self.own.0
    }

    fn own_bytes(&self) -> u64 {
        self.own.1
    }
}

/// The rule, and its expected state.
struct Model {
    cache: NextUseCache,
    capacity: u64,
    sizes: [Vec<u64>; 3],
    bounds: [CacheBounds; 3],
    residents: BTreeSet<SampleKey>,
    on_disk: BTreeSet<SampleKey>,
    elsewhere: BTreeSet<SampleKey>,
    jobs: Vec<(CacheJob, DatasetId)>,
    now: u64,
    evicted: Vec<SampleKey>,
}

impl Model {
    fn new() -> Self {
        let sizes = [
            vec![30; SAMPLES as usize],
            (0..SAMPLES).map(|at| 1 + at * 7 % 90).collect(),
            (0..SAMPLES).map(|at| if at % 3 == 0 { 0 } else { at * 13 % 200 }).collect(),
        ];
        let mut cache = NextUseCache::new(600);
        cache.add_dataset(DatasetCosts::new(Sizes::uniform(SAMPLES, 30))).unwrap();
        for table in &sizes[1..] {
            cache.add_dataset(DatasetCosts::new(Sizes::table(table))).unwrap();
        }
        let (bounds, residents, on_disk, elsewhere, jobs, now, evicted) = Default::default();
        Self { cache, capacity: 600, sizes, bounds, residents, on_disk, elsewhere, jobs, now, evicted }
    }

    fn held(&self, dataset: u32) -> u64 {
        let own = self.residents.iter().filter(|key| key.dataset.0 == dataset);
        own.map(|key| self.sizes[dataset as usize][key.id.0 as usize]).sum()
    }

    fn used(&mut self, key: SampleKey, used: CacheUse) {
        assert_eq!(used.hit, self.residents.contains(&key));
        if used.kept {
            self.residents.insert(key);
        } else {
            self.residents.remove(&key);
        }
    }

    /// Does one step. Returns the dataset that it is about, whose floor holds against others only.
    fn step(&mut self, step: &Step) -> Option<u32> {
        let evicted = &mut self.evicted;
        match *step {
            Step::Use { job, position, sample } => {
                let (job, dataset) = *self.jobs.get(job % self.jobs.len().max(1))?;
                let used = self.cache.used(job, position, SampleId(sample), self.now, evicted);
                self.used(SampleKey::new(dataset, SampleId(sample)), used);
                return Some(dataset.0);
            }
            Step::Unannounced(key) => {
                let used = self.cache.used_unannounced(key, self.now, evicted);
                self.used(key, used);
                return Some(key.dataset.0);
            }
            Step::Fill { key, since } => {
                let used = self.cache.fill(key, self.now, since, evicted);
                self.used(key, used);
                return Some(key.dataset.0);
            }
            Step::Bounds { dataset, floor, cap } => {
                self.bounds[dataset as usize] = CacheBounds { floor, cap };
                self.cache.set_bounds(DatasetId(dataset), CacheBounds { floor, cap }, evicted);
                return Some(dataset);
            }
            Step::Costs { dataset, weight, latency, rate } => {
                let weight = NonZeroU32::new(weight).unwrap();
                self.cache.set_costs(DatasetId(dataset), weight, latency, rate);
            }
            Step::OnDisk(key, is_on_disk) => {
                self.cache.set_on_disk(key, is_on_disk);
                if is_on_disk {
                    self.on_disk.insert(key);
                } else {
                    self.on_disk.remove(&key);
                }
            }
            Step::Elsewhere(key, is_elsewhere) => {
                if is_elsewhere {
                    self.elsewhere.insert(key);
                } else {
                    self.elsewhere.remove(&key);
                }
                let others = Others::of(key.dataset, &self.elsewhere, &self.sizes);
                self.cache.set_owners(key.dataset, Some(Arc::new(others)));
            }
            Step::Capacity(capacity) => {
                self.capacity = capacity;
                self.cache.set_capacity(capacity, evicted);
            }
            Step::AddJob { dataset, seed } if self.jobs.len() < 6 => {
                let start = JobStart { now_ns: self.now, position: 0, ns_per_sample: 10 };
                let following = seed.is_multiple_of(2).then(|| order(seed + 9));
                let job = self.cache.add_job(DatasetId(dataset), start, order(seed), following).unwrap();
                self.jobs.push((job, DatasetId(dataset)));
            }
            Step::AddJob { .. } => {}
            Step::EndJob(at) => {
                if !self.jobs.is_empty() {
                    let (job, _) = self.jobs.swap_remove(at % self.jobs.len());
                    self.cache.end_job(job);
                }
            }
            Step::BeginEpoch { job, seed } => {
                let (job, _) = *self.jobs.get(job % self.jobs.len().max(1))?;
                self.cache.begin_epoch(job, (seed % 3 > 0).then(|| order(seed))).unwrap();
            }
            Step::Forget(key) => {
                self.cache.forget(key);
                self.residents.remove(&key);
                return Some(key.dataset.0);
            }
        }
        None
    }

    /// Compares the rule with the model.
    fn check(&mut self) {
        for key in std::mem::take(&mut self.evicted) {
            assert!(self.residents.remove(&key), "{key} was evicted twice, or was absent");
        }
        let mut held = 0;
        for dataset in 0..3 {
            let own = |keys: &BTreeSet<SampleKey>| {
                keys.iter().filter(|key| key.dataset.0 == dataset).copied().collect::<BTreeSet<_>>()
            };
            let (residents, bytes) = (own(&self.residents), self.held(dataset));
            let others = own(&self.elsewhere);
            let kept =
                residents.union(&own(&self.on_disk)).filter(|key| !others.contains(key)).count() as u64;
            assert_eq!(self.cache.residents(DatasetId(dataset)), (residents.len() as u64, bytes));
            assert_eq!(self.cache.kept(DatasetId(dataset)), kept);
            let bytes_elsewhere: u64 =
                others.iter().map(|key| self.sizes[dataset as usize][key.id.0 as usize]).sum();
            let all: u64 = self.sizes[dataset as usize].iter().sum();
            assert_eq!(self.cache.own_bytes(DatasetId(dataset)), all - bytes_elsewhere);
            let others = others.len() as u64;
            assert_eq!(self.cache.own_samples(DatasetId(dataset)), SAMPLES - others);
            assert!(bytes <= self.bounds[dataset as usize].cap, "{bytes} of {:?}", self.bounds);
            for id in (0..SAMPLES).map(SampleId) {
                let key = SampleKey::new(DatasetId(dataset), id);
                assert_eq!(self.cache.contains(key), residents.contains(&key));
                assert_eq!(self.cache.is_on_disk(key), self.on_disk.contains(&key));
                assert_eq!(self.cache.owner(key) != NodeOwner::This, self.elsewhere.contains(&key));
            }
            held += bytes;
        }
        assert_eq!(self.cache.held_bytes(), held);
        assert!(held <= self.capacity, "{held} of {}", self.capacity);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_and_bounds_hold_whatever_happens(steps in steps()) {
        let mut model = Model::new();
        for (passed, step) in steps {
            model.now += passed;
            let before = [0, 1, 2].map(|dataset| model.held(dataset));
            let own = model.step(&step);
            model.check();
            if matches!(step, Step::Capacity(_)) {
                continue;
            }
            for dataset in (0..3).filter(|dataset| own != Some(*dataset)) {
                let (before, floor) = (before[dataset as usize], model.bounds[dataset as usize].floor);
                let held = model.held(dataset);
                prop_assert!(before > floor || held >= before, "{step:?}: {dataset} lost its floor");
            }
        }
    }
}
