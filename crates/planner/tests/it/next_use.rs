//! The nearest next use over several jobs, against an exact model, MIN and "never evict".

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use foreread_oracle::{Sampler, Shuffle};
use foreread_planner::{CacheJob, CacheUse, DatasetCosts, JobStart, NextUseCache};
use foreread_types::{DatasetId, SampleId, SampleKey, Sizes, SplitMix64};
use proptest::prelude::*;

use crate::common::orders;
use crate::reference;

/// Nanoseconds per sample of each job. So few that each time has a bucket of its own.
const NS: u64 = 4;

/// Jobs of equal pace, each at its own phase, that use their samples in turn.
struct Jobs {
    orders: Vec<Vec<Vec<u64>>>,
    samples: usize,
    /// Whether the first job knows its positions. Otherwise it says 0.
    first_knows_positions: bool,
}

impl Jobs {
    fn new(jobs: u64, samples: u64, epochs: u64, seed: u64) -> Self {
        let orders = (0..jobs).map(|job| orders(samples, epochs, seed + job)).collect();
        Self { orders, samples: samples as usize, first_knows_positions: true }
    }

    /// The uses in the order of time: the job, its position over all epochs, and the sample.
    fn uses(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        let positions = self.orders[0].len() * self.samples;
        let of = |job: usize, at: usize| self.orders[job][at / self.samples][at % self.samples];
        (0..positions).flat_map(move |at| (0..self.orders.len()).map(move |job| (job, at, of(job, at))))
    }

    fn order(&self, job: usize, epoch: usize) -> Option<impl Iterator<Item = SampleId>> {
        self.orders[job].get(epoch).map(|ids| ids.iter().copied().map(SampleId))
    }

    /// Runs all uses, each checked by `check` with its time, sample, outcome and evicted samples.
    fn run(
        &self,
        capacity: u64,
        ns: u64,
        mut check: impl FnMut(usize, usize, u64, CacheUse, &[SampleKey]),
    ) -> (NextUseCache, Vec<CacheJob>) {
        let mut cache = NextUseCache::new(capacity);
        let sizes = Sizes::uniform(self.samples as u64, 1);
        let dataset = cache.add_dataset(DatasetCosts::new(sizes)).unwrap();
        let add = |job: usize| {
            let now_ns = job as u64 * ns / self.orders.len() as u64;
            let start = JobStart { now_ns, position: 0, ns_per_sample: ns };
            let first = self.order(job, 0).unwrap();
            cache.add_job(dataset, start, first, self.order(job, 1)).unwrap()
        };
        let jobs: Vec<CacheJob> = (0..self.orders.len()).map(add).collect();
        let mut evicted = Vec::new();
        for (job, at, sample) in self.uses() {
            let (epoch, position) = (at / self.samples, at % self.samples);
            if position == 0 && at > 0 {
                cache.begin_epoch(jobs[job], self.order(job, epoch + 1)).unwrap();
            }
            let now = (at as u64 + 1) * ns + job as u64 * ns / self.orders.len() as u64;
            let position = if job > 0 || self.first_knows_positions { position } else { 0 };
            let found = cache.used(jobs[job], position as u32, SampleId(sample), now, &mut evicted);
            check(job, at, sample, found, &evicted);
            assert!(cache.held_bytes() <= capacity);
            evicted.clear();
        }
        (cache, jobs)
    }

    fn stream(&self) -> Vec<SampleId> {
        self.uses().map(|(_, _, sample)| SampleId(sample)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Each step follows the rule exactly. The model has the predicted times of all residents.
    #[test]
    // semantics: PLAN-11
    fn each_use_keeps_the_nearest_next_uses(
        jobs in 2..5u64,
        samples in 1..56u64,
        capacity in 0..40u64,
        seed in any::<u32>(),
    ) {
        let jobs = Jobs::new(jobs, samples, 5, u64::from(seed));
        let count = jobs.orders.len();
        // By job, the positions of each sample.
        let positions: Vec<BTreeMap<u64, Vec<usize>>> = jobs.orders.iter().map(|epochs| {
            let mut positions = BTreeMap::<u64, Vec<usize>>::new();
            let all = epochs.iter().flatten().enumerate();
            all.for_each(|(at, &sample)| positions.entry(sample).or_default().push(at));
            positions
        }).collect();
        let mut used = vec![0; count];
        // Times of residents. `u64::MAX` if they are not used again in the two epochs known.
        let mut residents = BTreeMap::<u64, u64>::new();
        let mut kept_all = true;
        jobs.run(capacity, NS, |job, at, sample, found, evicted| {
            used[job] = at + 1;
            let now = (at as u64 + 1) * NS + job as u64 * NS / count as u64;
            assert_eq!(found.hit, residents.remove(&sample).is_some());
            let next = (0..count).filter_map(|job| {
                let known = (used[job].saturating_sub(1) / samples as usize + 2) * samples as usize;
                let next = positions[job][&sample].iter().find(|&&at| at >= used[job])?;
                (*next < known).then(|| now + (next - used[job] + 1) as u64 * NS)
            });
            let next = next.min().unwrap_or(u64::MAX);
            let furthest = residents.values().max().copied();
            let has_room = (residents.len() as u64) < capacity;
            let is_kept = capacity > 0 && (has_room || furthest > Some(next));
            assert_eq!(found.kept, is_kept, "{next} {furthest:?}");
            for key in evicted {
                assert_eq!(residents.remove(&key.id.0), furthest);
            }
            if found.kept {
                residents.insert(sample, next);
            }
            kept_all &= found.kept;
            assert!(residents.len() as u64 <= capacity);
        });
        prop_assert!(kept_all || capacity < samples);
    }

    /// Both know where the uses end.
    #[test]
    // semantics: PLAN-11
    fn hits_are_those_of_min(
        jobs in 2..9u64,
        samples in 200..400u64,
        percent in 5..70u64,
        seed in any::<u32>(),
    ) {
        let jobs = Jobs::new(jobs, samples, 3, u64::from(seed));
        let capacity = samples * percent / 100;
        let mut hits = 0;
        jobs.run(capacity, 1_000_000, |_, _, _, found, _| hits += u64::from(found.hit));
        let stream = jobs.stream();
        let min = reference::min(&stream, capacity).hits;
        let lost = (min - hits) as f64 / stream.len() as f64;
        prop_assert!(lost <= 0.01, "{lost} of {} uses", stream.len());
    }

    #[test]
    // semantics: PLAN-12
    fn one_job_never_evicts_or_rewrites(samples in 1..300u64, capacity in 0..300u64, seed in any::<u32>()) {
        let jobs = Jobs::new(1, samples, 4, u64::from(seed));
        let (mut hits, mut writes) = (0, 0);
        jobs.run(capacity, 1000, |_, _, _, found, evicted| {
            hits += u64::from(found.hit);
            writes += u64::from(found.kept && !found.hit);
            assert!(evicted.is_empty());
        });
        let expected = reference::never_evict(&jobs.stream(), capacity);
        prop_assert_eq!((hits, writes), (expected.hits, expected.writes));
    }

    /// Any calls, with datasets of mixed sizes and orders that repeat samples.
    #[test]
    fn residents_are_counted_under_any_calls(seed in any::<u64>(), steps in 1..2000usize) {
        let mut random = SplitMix64(seed);
        let mut cache = NextUseCache::new(random.below(2000));
        let mut capacity = u64::MAX;
        let mut residents = BTreeSet::new();
        let mut sizes = Vec::new();
        for dataset in 0..1 + random.below(3) {
            let lengths: Vec<u64> = (0..1 + random.below(50)).map(|_| random.below(100)).collect();
            let costs = DatasetCosts {
                weight: NonZeroU32::new(1 + random.below(4) as u32).unwrap(),
                origin_latency_ns: random.below(3) * 500,
                origin_bytes_per_second: random.below(10_000_000_000),
                ..DatasetCosts::new(Sizes::table(&lengths))
            };
            prop_assert_eq!(cache.add_dataset(costs).unwrap(), DatasetId(dataset as u32));
            sizes.push(lengths);
        }
        let (mut jobs, mut now, mut evicted) = (Vec::<(CacheJob, usize)>::new(), 0, Vec::new());
        for _ in 0..steps {
            let dataset = random.below(sizes.len() as u64) as usize;
            let samples = sizes[dataset].len() as u64;
            let order: Vec<SampleId> =
                (0..random.below(2 * samples)).map(|_| SampleId(random.below(samples))).collect();
            let following = (random.below(3) > 0).then_some(order.clone());
            match random.below(40) {
                0 => {
                    let (position, ns_per_sample) = (random.below(9) as u32, random.below(1000));
                    let start = JobStart { now_ns: now, position, ns_per_sample };
                    let job = cache.add_job(DatasetId(dataset as u32), start, order, following).unwrap();
                    jobs.push((job, dataset));
                }
                1 if !jobs.is_empty() => cache.end_job(jobs[random.below(jobs.len() as u64) as usize].0),
                2 => {
                    capacity = random.below(2000);
                    cache.set_capacity(capacity, &mut evicted);
                }
                3 if jobs.iter().any(|job| job.1 == dataset) => {
                    let job = jobs.iter().find(|job| job.1 == dataset).unwrap().0;
                    cache.begin_epoch(job, following).unwrap();
                }
                _ if !jobs.is_empty() => {
                    let (job, dataset) = jobs[random.below(jobs.len() as u64) as usize];
                    let sample = SampleId(random.below(sizes[dataset].len() as u64));
                    let key = SampleKey::new(DatasetId(dataset as u32), sample);
                    now += random.below(2000);
                    let found = cache.used(job, random.below(100) as u32, sample, now, &mut evicted);
                    if found.hit {
                        prop_assert!(residents.remove(&key));
                    }
                    if found.kept {
                        residents.insert(key);
                    } else {
                        prop_assert!(evicted.is_empty());
                    }
                }
                _ => {}
            }
            for key in evicted.drain(..) {
                prop_assert!(residents.remove(&key) && !cache.contains(key));
            }
            let bytes = |key: &SampleKey| sizes[key.dataset.0 as usize][key.id.0 as usize];
            let held: u64 = residents.iter().map(bytes).sum();
            prop_assert!(cache.held_bytes() == held && held <= capacity);
            prop_assert!(residents.iter().all(|&key| cache.contains(key)));
        }
    }
}

/// Guards against this fault: a job whose workers were ahead of its look-ahead seemed to stand
/// still, and the cache kept the samples that it had just used.
#[test]
fn uses_without_positions_are_found_in_the_order() {
    let reads = |first_knows_positions| {
        let jobs = Jobs { first_knows_positions, ..Jobs::new(2, 400, 8, 5) };
        let mut reads = 0;
        jobs.run(150, 1000, |_, _, _, found, _| reads += usize::from(!found.hit));
        reads
    };
    let (known, unknown) = (reads(true), reads(false));
    assert!(unknown <= known + known / 50, "{unknown} reads instead of {known}");
}

/// A cache of 100 samples, with a job on each of some datasets of 100 samples. By dataset, the
/// costs and nanoseconds per sample.
struct OneJobEach {
    cache: NextUseCache,
    jobs: Vec<(CacheJob, Shuffle, u64)>,
    hits: usize,
}

impl OneJobEach {
    fn new(datasets: Vec<(DatasetCosts, u64)>) -> Self {
        let mut cache = NextUseCache::new(1000);
        let jobs = datasets.into_iter().enumerate().map(|(seed, (costs, ns_per_sample))| {
            let dataset = cache.add_dataset(costs).unwrap();
            let shuffle = Shuffle::new(100, seed as u64).unwrap();
            let start = JobStart { now_ns: 0, position: 0, ns_per_sample };
            let [first, second] = [0, 1].map(|epoch| shuffle.order(epoch).unwrap());
            let ids = |order: &foreread_oracle::Order| (0..100).map(|at| order.at(at)).collect::<Vec<_>>();
            let job = cache.add_job(dataset, start, ids(&first), Some(ids(&second))).unwrap();
            (job, shuffle, ns_per_sample)
        });
        Self { jobs: jobs.collect::<Vec<_>>(), cache, hits: 0 }
    }

    /// Runs the jobs that `runs` names for some time. Returns the residents of each dataset.
    fn run(&mut self, runs: &[usize], from: u64, to: u64) -> Vec<usize> {
        for now in from..to {
            for &index in runs {
                let (job, shuffle, ns) = &self.jobs[index];
                if now == 0 || now % ns > 0 {
                    continue;
                }
                let at = now / ns - 1;
                if at > 0 && at % 100 == 0 {
                    let order = shuffle.order(at / 100 + 1).unwrap();
                    self.cache.begin_epoch(*job, Some((0..100).map(|at| order.at(at)))).unwrap();
                }
                let sample = shuffle.order(at / 100).unwrap().at(at % 100);
                let used = self.cache.used(*job, (at % 100) as u32, sample, now, &mut Vec::new());
                self.hits += usize::from(used.hit);
            }
        }
        let count = |dataset| {
            let keys = (0..100).map(|id| SampleKey::new(DatasetId(dataset), SampleId(id)));
            keys.filter(|&key| self.cache.contains(key)).count()
        };
        (0..self.jobs.len() as u32).map(count).collect()
    }
}

fn costs() -> DatasetCosts {
    DatasetCosts::new(Sizes::uniform(100, 10))
}

#[test]
fn dataset_with_the_shortest_epoch_is_kept_first() {
    let mut both = OneJobEach::new(vec![(costs(), 10), (costs(), 3)]);
    // The slow job fills the cache until the quick one displaces it.
    let residents = both.run(&[0, 1], 0, 3000);
    assert!(residents[1] >= 90, "{residents:?}");
    // Weight counts as speed. So does a slow origin.
    let heavy = DatasetCosts { weight: NonZeroU32::new(16).unwrap(), ..costs() };
    let far = DatasetCosts { origin_latency_ns: 16_000_000_000, ..costs() };
    for costly in [heavy, far] {
        let residents = OneJobEach::new(vec![(costs(), 3), (costly, 10)]).run(&[0, 1], 0, 3000);
        assert!(residents[1] >= 80, "{residents:?}");
    }
}

/// Guards against this fault: a dataset with one job had all of its room or none, although each of
/// its samples has a next use of its own.
#[test]
fn datasets_of_similar_pace_share_the_cache() {
    // A job alone would hit all of its uses but the first ones.
    let mut both = OneJobEach::new(vec![(costs(), 10), (costs(), 7)]);
    let residents = both.run(&[0, 1], 0, 30_000);
    let quick_alone = 30_000 / 7 - 100;
    assert!(residents[0] > 20 && both.hits > quick_alone, "{residents:?}: {} hits", both.hits);
}

#[test]
fn dataset_of_an_ended_or_silent_job_leaves_first() {
    for is_silent in [false, true] {
        let mut both = OneJobEach::new(vec![(costs(), 3), (costs(), 10)]);
        assert_eq!(both.run(&[0], 0, 1000), [100, 0]);
        if !is_silent {
            both.cache.end_job(both.jobs[0].0);
        }
        both.jobs[1].0 = {
            // The second job begins when the first one ends.
            both.cache.end_job(both.jobs[1].0);
            let order =
                |epoch| (0..100).map(move |at| Shuffle::new(100, 1).unwrap().order(epoch).unwrap().at(at));
            let start = JobStart { now_ns: 1000, position: 0, ns_per_sample: 10 };
            both.cache.add_job(DatasetId(1), start, order(0), Some(order(1))).unwrap()
        };
        let mut now = 1000;
        let mut evicted = Vec::new();
        for epoch in 0..4 {
            let order = Shuffle::new(100, 1).unwrap().order(epoch).unwrap();
            for at in 0..100 {
                now += 10;
                both.cache.used(both.jobs[1].0, at as u32, order.at(at), now, &mut evicted);
            }
            let next = Shuffle::new(100, 1).unwrap().order(epoch + 2).unwrap();
            both.cache.begin_epoch(both.jobs[1].0, Some((0..100).map(|at| next.at(at)))).unwrap();
        }
        let of_first = evicted.iter().filter(|key| key.dataset == DatasetId(0)).count();
        // How long a silent job stays silent is not known.
        let expected = if is_silent { (95, 115) } else { (100, 100) };
        assert!(of_first >= expected.0 && evicted.len() <= expected.1, "{of_first} of {}", evicted.len());
    }
}

/// Four jobs share the cache and end. A fifth one keeps the present samples.
#[test]
// semantics: PLAN-12
fn last_job_rewrites_nothing() {
    let (mut cache, ended) = Jobs::new(4, 400, 3, 9).run(100, 1000, |_, _, _, _, _| ());
    let start = JobStart { now_ns: 1_300_000, position: 0, ns_per_sample: 1000 };
    let last = orders(400, 5, 77);
    let ids = |epoch: usize| last[epoch].iter().copied().map(SampleId);
    let job = cache.add_job(DatasetId(0), start, ids(0), Some(ids(1))).unwrap();
    ended.into_iter().for_each(|job| cache.end_job(job));
    let mut evicted = Vec::new();
    for epoch in 0..3 {
        let mut hits = 0;
        for (at, sample) in ids(epoch).enumerate() {
            let now = 1_300_000 + (epoch * 400 + at) as u64 * 1000;
            hits += usize::from(cache.used(job, at as u32, sample, now, &mut evicted).hit);
        }
        assert!(hits == 100 && evicted.is_empty(), "epoch {epoch}: {hits} hits, {evicted:?}");
        cache.begin_epoch(job, last.get(epoch + 2).map(|_| ids(epoch + 2))).unwrap();
    }
}

#[test]
fn unknown_datasets_and_samples_are_errors() {
    let mut cache = NextUseCache::new(10);
    let start = JobStart { now_ns: 0, position: 0, ns_per_sample: 1 };
    let order = || [SampleId(3)];
    assert!(cache.add_job(DatasetId(0), start, order(), Some(order())).is_err());
    cache.add_dataset(DatasetCosts::new(Sizes::uniform(3, 1))).unwrap();
    let error = cache.add_job(DatasetId(0), start, order(), Some(order())).unwrap_err();
    assert_eq!(error.to_string(), "an order of dataset 0 has sample 3: must be below 3");
}

/// The same decisions, whether orders are known at once or one after another.
#[test]
fn orders_may_become_known_late() {
    let dataset = DatasetId(0);
    let make = || {
        let mut cache = NextUseCache::new(300);
        cache.add_dataset(DatasetCosts::new(Sizes::uniform(100, 10))).unwrap();
        cache
    };
    let start = JobStart { now_ns: 0, position: 0, ns_per_sample: 1000 };
    let ids =
        |job: u64, epoch: u64| (0..100).map(move |at| SampleId((at * 37 + job * 11 + epoch * 53) % 100));
    let order = |job, epoch| NextUseCache::order(dataset, 100, NonZeroU32::MIN, ids(job, epoch)).unwrap();
    let (mut early, mut late) = (make(), make());
    let early_jobs = [0, 1].map(|job| early.add_job(dataset, start, ids(job, 0), Some(ids(job, 1))).unwrap());
    let late_jobs = [0, 1].map(|job| {
        let added = late.add_ordered_job(dataset, start, order(job, 0), None).unwrap();
        late.follow(added, order(job, 1)).unwrap();
        added
    });
    let (mut evicted, mut now) = ([Vec::new(), Vec::new()], 0);
    for epoch in 0..4 {
        for at in 0..100 {
            for job in 0..2 {
                now += 500;
                let id = ids(job, epoch).nth(at).unwrap();
                let position = at as u32;
                let one = early.used(early_jobs[job as usize], position, id, now, &mut evicted[0]);
                let other = late.used(late_jobs[job as usize], position, id, now, &mut evicted[1]);
                assert_eq!(one, other, "epoch {epoch}, position {at}, job {job}");
            }
        }
        for job in 0..2 {
            early.begin_epoch(early_jobs[job], Some(ids(job as u64, epoch + 2))).unwrap();
            late.begin_ordered_epoch(late_jobs[job], Some(order(job as u64, epoch + 2))).unwrap();
        }
    }
    assert_eq!((&evicted[0], early.held_bytes()), (&evicted[1], late.held_bytes()));
    let other = NextUseCache::order(dataset, 99, NonZeroU32::MIN, ids(0, 0).filter(|id| id.0 < 99)).unwrap();
    assert!(late.add_ordered_job(dataset, start, other, None).is_err());
}

#[test]
fn unannounced_uses_take_free_room_and_forgotten_ones_free_it() {
    let dataset = DatasetId(0);
    let mut cache = NextUseCache::new(30);
    cache.add_dataset(DatasetCosts::new(Sizes::uniform(10, 10))).unwrap();
    let mut evicted = Vec::new();
    let key = |id| SampleKey::new(dataset, SampleId(id));
    for id in 0..3 {
        let first = cache.used_unannounced(key(id), id, &mut evicted);
        assert!(!first.hit && first.kept);
    }
    assert!(!cache.used_unannounced(key(3), 3, &mut evicted).kept);
    assert!(cache.used_unannounced(key(1), 4, &mut evicted).hit);
    cache.forget(key(1));
    cache.forget(key(9));
    assert_eq!((cache.contains(key(1)), cache.held_bytes()), (false, 20));
    assert!(cache.used_unannounced(key(3), 5, &mut evicted).kept);
    // A job that uses samples soon takes their place.
    let start = JobStart { now_ns: 6, position: 0, ns_per_sample: 1000 };
    let order = || (4..10).map(SampleId);
    let job = cache.add_job(dataset, start, order(), Some(order())).unwrap();
    assert!(evicted.is_empty() && cache.used(job, 0, SampleId(4), 7, &mut evicted).kept);
    assert_eq!(evicted.len(), 1);
}

/// Jobs request a batch at a time, and samples have many lengths. The widths of the calendars
/// shrank with each batch, until no far use could be seen, and hits fell from two thirds to a
/// fourth.
#[test]
// semantics: PLAN-11
fn bursts_of_samples_of_many_lengths_keep_their_hits() {
    const SAMPLES: u64 = 3000;
    const BATCH: usize = 60;
    // Lengths over four orders of magnitude, most of them in the middle.
    let mut state = 88_172_645_463_325_252_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % 10_000) as f64 / 10_000.0
    };
    let mut length = || ((10.5 + (0..12).map(|_| draw()).sum::<f64>() - 6.0).exp() as u64).min(1_000_000);
    let lengths: Vec<u64> = (0..SAMPLES).map(|_| length()).collect();
    let total: u64 = lengths.iter().sum();
    let order = |job: u64, epoch: u64| {
        let mut ids: Vec<SampleId> = (0..SAMPLES).map(SampleId).collect();
        let mut state = (job + 1) * 0x9e37_79b9 + epoch * 0x85eb_ca6b + 1;
        for at in (1..ids.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ids.swap(at, (state >> 33) as usize % (at + 1));
        }
        ids
    };
    for ns_per_sample in [100_000, 1_000_000] {
        let mut cache = NextUseCache::new(total / 5);
        let dataset = cache.add_dataset(DatasetCosts::new(Sizes::table(&lengths))).unwrap();
        let start = JobStart { now_ns: 0, position: 0, ns_per_sample };
        let add = |job| cache.add_job(dataset, start, order(job, 0), Some(order(job, 1))).unwrap();
        let jobs: Vec<CacheJob> = (0..4).map(add).collect();
        let (mut now, mut evicted, mut early) = (0, Vec::new(), 0);
        for epoch in 0..8 {
            let orders: Vec<Vec<SampleId>> = (0..4).map(|job| order(job, epoch)).collect();
            let mut hits = 0;
            for first in (0..SAMPLES as usize).step_by(BATCH) {
                for (job, order) in jobs.iter().zip(&orders) {
                    now += 10_000_000;
                    for (at, id) in order.iter().enumerate().skip(first).take(BATCH) {
                        hits += u64::from(cache.used(*job, at as u32, *id, now, &mut evicted).hit);
                        evicted.clear();
                    }
                }
            }
            for (number, job) in (0..).zip(&jobs) {
                cache.begin_epoch(*job, Some(order(number, epoch + 2))).unwrap();
            }
            if epoch == 1 {
                early = hits;
            }
            assert!(hits >= early - early / 10, "epoch {epoch}: {hits} hits, {early} in the second");
        }
    }
}
