//! Several datasets in one cache: bounds, weights, unused ones, and samples on disks.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foreread_planner::{CacheBounds, DatasetCosts, JobStart, NextUseCache, NodeOwner, NodeOwners};
use foreread_types::{DatasetId, SampleId, SampleKey, Sizes};

use crate::common::orders;

/// Nanoseconds per sample of each job.
const NS: u64 = 4;

/// Two datasets of 100 samples, each with two jobs in their own orders, and room for `capacity`.
/// `costs` are the weight of the second one, and the nanoseconds that a read of it takes.
fn two_datasets(
    capacity: u64,
    bounds: [CacheBounds; 2],
    epochs: u64,
    costs: (u32, u64),
) -> (NextUseCache, [u64; 2]) {
    let mut cache = NextUseCache::new(capacity);
    let mut jobs = Vec::new();
    for (number, bounds) in (0..).zip(bounds) {
        let dataset = cache.add_dataset(DatasetCosts::new(Sizes::uniform(100, 1))).unwrap();
        cache.set_bounds(dataset, bounds, &mut Vec::new());
        for job in 0..2 {
            let orders = orders(100, epochs, number * 10 + job);
            let order = |epoch: usize| orders.get(epoch).map(|ids| ids.clone().into_iter().map(SampleId));
            let start = JobStart { now_ns: 0, position: 0, ns_per_sample: NS };
            jobs.push((
                dataset,
                cache.add_job(dataset, start, order(0).unwrap(), order(1)).unwrap(),
                orders.clone(),
            ));
        }
    }
    cache.set_costs(DatasetId(1), NonZeroU32::new(costs.0).unwrap(), costs.1, u64::MAX);
    let mut evicted = Vec::new();
    let mut least = [u64::MAX; 2];
    for at in 0..epochs as usize * 100 {
        for (dataset, job, orders) in &jobs {
            let (epoch, position) = (at / 100, at % 100);
            let order = |epoch: usize| orders.get(epoch).map(|ids| ids.clone().into_iter().map(SampleId));
            if position == 0 && at > 0 {
                cache.begin_epoch(*job, order(epoch + 1)).unwrap();
            }
            cache.used(
                *job,
                position as u32,
                SampleId(orders[epoch][position]),
                (at as u64 + 1) * NS,
                &mut evicted,
            );
            let number = dataset.0 as usize;
            let held = cache.residents(*dataset).1;
            assert!(held <= bounds[number].cap && cache.held_bytes() <= capacity);
            if at > 200 {
                least[number] = least[number].min(held);
            }
        }
    }
    (cache, least)
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn floors_and_caps_of_datasets_hold() {
    let free = CacheBounds::default();
    let (_, equal) = two_datasets(60, [free; 2], 4, (1, SECOND));
    assert!(equal[1] < 40, "{equal:?}");
    let (_, floor) = two_datasets(60, [free, CacheBounds { floor: 50, ..free }], 4, (1, SECOND));
    assert!(floor[1] >= 50, "{floor:?}");
    let (cache, _) = two_datasets(60, [CacheBounds { cap: 15, ..free }, free], 4, (1, SECOND));
    // The cap itself was checked at each use.
    assert!(cache.residents(DatasetId(1)).0 >= 45, "{cache:?}");
}

#[test]
fn lower_cap_and_capacity_evict_at_once() {
    let (mut cache, _) = two_datasets(60, [CacheBounds::default(); 2], 3, (1, SECOND));
    let mut evicted = Vec::new();
    let held = cache.residents(DatasetId(0)).0;
    cache.set_bounds(DatasetId(0), CacheBounds { floor: 0, cap: 5 }, &mut evicted);
    assert_eq!((cache.residents(DatasetId(0)).0, evicted.len() as u64), (5, held - 5));
    // A capacity below a floor: the capacity holds.
    cache.set_bounds(DatasetId(1), CacheBounds { floor: 40, cap: 100 }, &mut evicted);
    cache.set_capacity(20, &mut evicted);
    assert_eq!(cache.held_bytes(), 20);
}

#[test]
fn weight_and_slow_storage_attract_room() {
    let least = |costs| two_datasets(60, [CacheBounds::default(); 2], 4, costs).1;
    let (equal, weighted, slow) = (least((1, SECOND)), least((8, SECOND)), least((1, 8 * SECOND)));
    assert!(weighted[1] > equal[1] + 10, "{weighted:?} {equal:?}");
    assert_eq!(weighted, slow);
}

#[test]
fn datasets_without_jobs_leave_in_the_order_of_their_latest_use() {
    let mut cache = NextUseCache::new(30);
    let datasets: Vec<DatasetId> =
        (0..4).map(|_| cache.add_dataset(DatasetCosts::new(Sizes::uniform(30, 1))).unwrap()).collect();
    let mut evicted = Vec::new();
    // The second one was used last.
    for (at, number) in [0, 1, 2, 1].into_iter().enumerate() {
        for id in 0..10 {
            cache.used_unannounced(SampleKey::new(datasets[number], SampleId(id)), at as u64, &mut evicted);
        }
    }
    let start = JobStart { now_ns: 10, position: 0, ns_per_sample: NS };
    let order = || (0..30).map(SampleId);
    let job = cache.add_job(datasets[3], start, order(), Some(order())).unwrap();
    let held = |cache: &NextUseCache| [0, 1, 2].map(|number| cache.residents(datasets[number]).0);
    for (id, expected) in [(9, [0, 10, 10]), (19, [0, 10, 0]), (29, [0, 0, 0])] {
        for id in id - 9..=id {
            cache.used(job, id, SampleId(u64::from(id)), 20, &mut evicted);
        }
        assert_eq!(held(&cache), expected);
    }
}

#[test]
fn requests_before_the_next_order_take_unused_room() {
    let mut cache = NextUseCache::new(20);
    let [unused, pinned, other, used] =
        [0; 4].map(|_| cache.add_dataset(DatasetCosts::new(Sizes::uniform(20, 1))).unwrap());
    let mut evicted = Vec::new();
    let fill = |cache: &mut NextUseCache, dataset, count| {
        for id in 0..count {
            cache.used_unannounced(SampleKey::new(dataset, SampleId(id)), 4, &mut Vec::new());
        }
    };
    let start = JobStart { now_ns: 5, position: 0, ns_per_sample: NS };
    let order = || (0..20).map(SampleId);
    let others = cache.add_job(other, start, order(), Some(order())).unwrap();
    fill(&mut cache, pinned, 5);
    cache.set_bounds(pinned, CacheBounds { floor: 5, cap: 20 }, &mut evicted);
    for id in 0..3 {
        cache.used(others, id, SampleId(u64::from(id)), 5, &mut evicted);
    }
    fill(&mut cache, unused, 12);
    assert_eq!(cache.held_bytes(), 20);
    // A small dataset is requested whole before the order of the second epoch arrives.
    let job = cache.add_job(used, start, order(), None::<Vec<SampleId>>).unwrap();
    cache.set_on_disk(SampleKey::new(used, SampleId(0)), true);
    let kept = (0..20).filter(|id| cache.used(job, *id, SampleId(u64::from(*id)), 6, &mut evicted).kept);
    // The disk has the first one. Twelve of the others fit.
    assert_eq!(kept.collect::<Vec<u32>>(), (1..13).collect::<Vec<u32>>());
    assert_eq!([unused, pinned, other, used].map(|dataset| cache.residents(dataset).0), [0, 5, 3, 12]);
}

#[test]
fn filling_takes_free_room_and_that_of_unused_datasets() {
    let mut cache = NextUseCache::new(40);
    let [old, busy, new] =
        [0; 3].map(|_| cache.add_dataset(DatasetCosts::new(Sizes::uniform(30, 1))).unwrap());
    let mut evicted = Vec::new();
    let start = JobStart { now_ns: 5, position: 0, ns_per_sample: NS };
    let order = || (0..30).map(SampleId);
    let job = cache.add_job(busy, start, order(), Some(order())).unwrap();
    for id in 0..10 {
        cache.used_unannounced(SampleKey::new(old, SampleId(id)), 4, &mut evicted);
        cache.used(job, id as u32, SampleId(id), 5, &mut evicted);
    }
    let fill = |cache: &mut NextUseCache, dataset, since| {
        let fill = |id| cache.fill(SampleKey::new(dataset, SampleId(id)), 9, since, &mut Vec::new()).kept;
        (0..30).map(fill).filter(|kept| *kept).count()
    };
    // Room for 20, and the room of the old dataset.
    assert_eq!(fill(&mut cache, new, 8), 30);
    assert_eq!([old, busy, new].map(|dataset| cache.residents(dataset).0), [0, 10, 30]);
    // Samples that were filled a moment ago stay.
    assert_eq!(fill(&mut cache, old, 8), 0);
    assert_eq!(fill(&mut cache, new, 8), 30);
    assert!(cache.held_bytes() <= 40);
}

#[test]
fn samples_on_a_disk_are_the_first_victims() {
    let mut cache = NextUseCache::new(10);
    let dataset = cache.add_dataset(DatasetCosts::new(Sizes::uniform(100, 1))).unwrap();
    let start = JobStart { now_ns: 0, position: 0, ns_per_sample: NS };
    let order = || (0..100).map(SampleId);
    let job = cache.add_job(dataset, start, order(), Some(order())).unwrap();
    let key = |id| SampleKey::new(dataset, SampleId(id));
    let mut evicted = Vec::new();
    for id in 0..10 {
        cache.used(job, id as u32, SampleId(id), (id + 1) * NS, &mut evicted);
    }
    // A full cache of one job evicts nothing.
    assert!(!cache.used(job, 10, SampleId(10), 11 * NS, &mut evicted).kept);
    cache.set_on_disk(key(3), true);
    cache.set_on_disk(key(5), true);
    cache.set_on_disk(key(12), true);
    assert_eq!((cache.kept(dataset), cache.residents(dataset).0), (11, 10));
    // A sample that is on the disk itself takes free room only.
    assert!(!cache.used(job, 12, SampleId(12), 13 * NS, &mut evicted).kept);
    for id in [20, 21] {
        assert!(cache.used(job, id as u32, SampleId(id), (id + 1) * NS, &mut evicted).kept);
    }
    evicted.sort();
    assert_eq!(evicted, [key(3), key(5)]);
    assert!(!cache.used(job, 22, SampleId(22), 23 * NS, &mut evicted).kept);
    cache.set_on_disk(key(3), false);
    assert_eq!(cache.kept(dataset), 12);
    assert!(!cache.is_on_disk(key(3)) && cache.is_on_disk(key(5)) && cache.held_bytes() == 10);
}

/// This node has the first half of ten million samples. Counts the questions.
#[derive(Debug, Default)]
struct FirstHalf(AtomicU64);

const MANY: u64 = 10_000_000;

impl NodeOwners for FirstHalf {
    fn owner(&self, sample: SampleId) -> NodeOwner {
        self.0.fetch_add(1, Ordering::Relaxed);
        if sample.0 < MANY / 2 { NodeOwner::This } else { NodeOwner::Other }
    }

    fn own_samples(&self) -> u64 {
        MANY / 2
    }

    fn own_bytes(&self) -> u64 {
        MANY / 2
    }
}

#[test]
// semantics: CONTROL-11
fn owners_that_change_cost_a_look_at_the_residents() {
    let mut cache = NextUseCache::new(100);
    let dataset = cache.add_dataset(DatasetCosts::new(Sizes::uniform(MANY, 1))).unwrap();
    let mut evicted = Vec::new();
    for id in (0..100).map(|at| SampleId(at * (MANY / 100))) {
        assert!(cache.used_unannounced(SampleKey::new(dataset, id), 1, &mut evicted).kept);
    }
    cache.set_on_disk(SampleKey::new(dataset, SampleId(7)), true);
    cache.set_on_disk(SampleKey::new(dataset, SampleId(MANY - 1)), true);
    let owners = Arc::new(FirstHalf::default());
    cache.set_owners(dataset, Some(Arc::clone(&owners) as _));
    let asked = owners.0.load(Ordering::Relaxed);
    assert!((100..1000).contains(&asked), "{asked}");
    assert_eq!((cache.own_samples(dataset), cache.own_bytes(dataset)), (MANY / 2, MANY / 2));
    assert_eq!((cache.kept(dataset), cache.residents(dataset).0), (51, 100));
    cache.set_owners(dataset, None);
    assert_eq!((cache.kept(dataset), cache.own_samples(dataset)), (102, MANY));
    assert!(owners.0.load(Ordering::Relaxed) < 2000);
}
