//! Tests of whole plans: kept samples, predictions, and equal plans from equal inputs.

use std::sync::Arc;

use foreread_oracle::{
    Deal, Explicit, Feistel, Phase, Position, Run, Schedule, Sequential, Shuffle, Weighted,
};
use foreread_planner::{Cluster, Curve, Level, Origin, Plan, Retention, plan};
use foreread_types::{DatasetId, Footprint, Rank, SampleId, SampleKey, Sizes};
use proptest::prelude::*;

use crate::common::{cluster, level, phase, run, run_of};

fn key(dataset: u32, id: u64) -> SampleKey {
    SampleKey::new(DatasetId(dataset), SampleId(id))
}

fn kept(plan: &Plan, dataset: u32, samples: u64) -> Vec<u64> {
    (0..samples).filter(|&id| plan.placement().level(key(dataset, id)).is_some()).collect()
}

fn shuffled(samples: u64) -> Phase {
    phase(0, Shuffle::new(samples, 7).unwrap())
}

/// Lengths with the spread of photographs, some tens to hundreds of kilobytes, without
/// floating-point numbers.
fn mixed(samples: u64) -> Vec<u64> {
    let mut word = 1u64;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) % 60_000
    };
    (0..samples).map(|_| 4_000 + next() + next() * next() / 60_000 + next()).collect()
}

#[test]
fn dataset_that_fits_is_kept_without_a_table() {
    let sizes = [Sizes::table(&mixed(10_000)), Sizes::uniform(1 << 40, 10)];
    let phases = vec![shuffled(10_000), phase(1, Sequential::new(1 << 40).unwrap())];
    let plan = plan(&run(5, phases), &sizes, &cluster(vec![level(u64::MAX)])).unwrap();
    assert_eq!(plan.retention(), Retention::Keep);
    assert!(plan.placement().memory() < 200);
    assert_eq!(plan.origin_bytes(), sizes[0].total() + sizes[1].total());
    assert_eq!(plan.origin_bytes(), plan.floor());
    assert_eq!(plan.levels()[0].samples, 10_000 + (1 << 40));
    assert_eq!(plan.levels()[0].bytes, plan.levels()[0].footprint);
    let train = &plan.datasets()[0];
    assert_eq!((train.uses, train.uses_per_epoch, train.passes_per_epoch), (50_000, 10_000, 1));
}

/// A run that uses samples once has no place for them, and takes that of a longer run.
#[test]
fn short_run_takes_the_places_of_a_longer_one() {
    let sizes = [Sizes::uniform(1000, 100)];
    let planned =
        |epochs, room| plan(&run(epochs, vec![shuffled(1000)]), &sizes, &cluster(vec![level(room)]));
    let (short, longer) = (planned(1, 100_000).unwrap(), planned(4, 100_000).unwrap());
    assert!(!short.is_for_all() && longer.is_for_all() && !planned(4, 99_000).unwrap().is_for_all());
    let placed = short.placed_as(&longer);
    assert!(placed.is_for_all() && placed.levels() == longer.levels());
    assert_eq!((placed.datasets()[0].uses, placed.origin_bytes(), placed.floor()), (1000, 100_000, 100_000));
}

#[test]
// semantics: CACHE-17
fn level_that_is_slower_than_the_origin_stays_empty() {
    let sizes = [Sizes::uniform(1000, 100_000)];
    let disk = |rate| Level { read: Curve::flat(rate), ..Level::new("disk", 50_000_000, Footprint::EXACT) };
    let planned = |rate, origin: &Origin| {
        let levels = vec![level(30_000_000), disk(rate)];
        let cluster = Cluster { origin: origin.clone(), ..cluster(levels) };
        plan(&run(3, vec![shuffled(1000)]), &sizes, &cluster).unwrap()
    };
    let known = Origin { client_bytes_per_second: 100_000_000, ..Origin::default() };
    let (slow, quick) = (planned(99_000_000, &known), planned(101_000_000, &known));
    let samples = |plan: &Plan| plan.levels().iter().map(|level| level.samples).collect::<Vec<_>>();
    assert_eq!((samples(&slow), samples(&quick)), (vec![300, 0], vec![300, 500]));
    assert!(slow.levels()[1].slower_than_origin && !quick.levels()[1].slower_than_origin);
    assert_eq!(slow.levels()[1].capacity, 50_000_000);
    assert_eq!(slow.origin_bytes(), 100_000_000 + 2 * 70_000_000);
    // An origin without figures is never taken as faster.
    assert_eq!(samples(&planned(1, &Origin::default())), [300, 500]);
}

#[test]
fn uncounted_run_uses_a_threshold() {
    let samples = (1 << 28) + 1;
    let schedule = Schedule::new(90, vec![phase(0, Feistel::new(samples, 7).unwrap())]).unwrap();
    let run = Run::new(Arc::new(schedule), Deal::Torch, 512, Rank(3)).unwrap();
    let plan = plan(&run, &[Sizes::uniform(samples, 100)], &cluster(vec![level(1 << 40)])).unwrap();
    assert!(!plan.floor_is_exact());
    assert!(matches!(plan.retention(), Retention::Threshold { .. }), "{:?}", plan.retention());
    assert!(plan.origin_bytes() < plan.datasets()[0].used_bytes);
}

#[test]
fn first_of_equal_samples_are_kept() {
    let samples = 1 << 40;
    let plan = plan(
        &run(3, vec![shuffled(samples)]),
        &[Sizes::uniform(samples, 100)],
        &cluster(vec![level(12_345)]),
    );
    let plan = plan.unwrap();
    assert_eq!(kept(&plan, 0, 1000), (0..123).collect::<Vec<_>>());
    assert!(plan.placement().memory() < 200);
    assert_eq!(plan.origin_bytes(), 300 * samples - 2 * 12_300);
}

#[test]
fn small_samples_go_first_if_requests_cost() {
    let sizes = [Sizes::table(&[50, 40, 30, 20, 10])];
    let run = run(2, vec![shuffled(5)]);
    let mut cluster = cluster(vec![level(60)]);
    assert_eq!(kept(&plan(&run, &sizes, &cluster).unwrap(), 0, 5), [2, 3, 4]);
    cluster.origin = Origin { latency_ns: 0, bytes_per_second: 3, ..Origin::default() };
    // 50, and then the first of the rest that fits.
    assert_eq!(kept(&plan(&run, &sizes, &cluster).unwrap(), 0, 5), [0, 4]);
}

#[test]
fn footprint_decides_and_not_length() {
    let paged = Level::new("disk", 3 * 4096 + 100, Footprint::new(16, 4096));
    let plan = plan(&run(2, vec![shuffled(5)]), &[Sizes::uniform(5, 4000)], &cluster(vec![paged])).unwrap();
    assert_eq!(kept(&plan, 0, 5), [0, 1, 2]);
    assert_eq!((plan.levels()[0].bytes, plan.levels()[0].footprint), (12_000, 3 * 4096));
}

#[test]
fn samples_beyond_memory_go_to_disk() {
    let memory = level(100);
    let disk = Level::new("disk", 2 * 512, Footprint::new(0, 512));
    let uniform = plan(
        &run(2, vec![shuffled(5)]),
        &[Sizes::uniform(5, 60)],
        &cluster(vec![memory.clone(), disk.clone()]),
    );
    let table = plan(&run(2, vec![shuffled(5)]), &[Sizes::table(&[60; 5])], &cluster(vec![memory, disk]));
    for plan in [uniform.unwrap(), table.unwrap()] {
        let levels: Vec<_> =
            (0..5).map(|id| plan.placement().level(key(0, id)).map(|level| level.0)).collect();
        assert_eq!(levels, [Some(0), Some(1), Some(1), None, None]);
        assert_eq!(plan.origin_bytes(), 3 * 60 + 2 * 2 * 60);
    }
}

#[test]
fn sample_that_is_used_once_takes_no_space() {
    let sizes = [Sizes::uniform(100, 10), Sizes::uniform(50, 10)];
    let once = plan(&run(1, vec![shuffled(100)]), &sizes, &cluster(vec![level(10_000)])).unwrap();
    assert!(kept(&once, 0, 100).is_empty());
    assert_eq!((once.origin_bytes(), once.floor(), once.levels()[0].samples), (1000, 1000, 0));
    // A dataset that the run does not read is not kept either.
    let other = plan(&run(9, vec![shuffled(100)]), &sizes, &cluster(vec![level(10_000)])).unwrap();
    assert!(kept(&other, 1, 50).is_empty());
    assert_eq!(other.levels()[0].samples, 100);
}

#[test]
fn resumed_run_plans_for_its_rest() {
    let schedule = Arc::new(Schedule::new(3, vec![shuffled(100)]).unwrap());
    let resume = |epoch, consumed| {
        let position = Position { schedule: schedule.fingerprint(), epoch, phase: 0, consumed };
        Run::resume(schedule.clone(), Deal::Torch, 1, Rank(0), &position).unwrap()
    };
    let sizes = [Sizes::uniform(100, 10)];
    let cluster = cluster(vec![level(300)]);
    // The rest of the second epoch reads 60 samples. Only these are used twice.
    let run = resume(1, 40);
    let half = plan(&run, &sizes, &cluster).unwrap();
    let first = run.stream(&run.pass(0).unwrap()).unwrap();
    let again: Vec<u64> = (0..60).map(|index| first.at(index).0).collect();
    let kept_ids = kept(&half, 0, 100);
    assert_eq!(kept_ids.len(), 30);
    assert!(kept_ids.iter().all(|id| again.contains(id)));
    assert_eq!(half.origin_bytes(), 10 * (60 + 100 - 30));
    assert_eq!(half.floor(), 600 + 1000 - 300);
    assert_eq!(half.retention(), Retention::Keep);
    // The last epoch, and an empty rest.
    assert!(kept(&plan(&resume(2, 0), &sizes, &cluster).unwrap(), 0, 100).is_empty());
    let over = plan(&resume(3, 0), &sizes, &cluster).unwrap();
    assert_eq!((over.origin_bytes(), over.floor()), (0, 0));
}

#[test]
fn look_ahead_lowers_the_lower_bound_alone() {
    let mut cluster = cluster(vec![level(300)]);
    cluster.look_ahead = 200;
    let plan = plan(&run(2, vec![shuffled(100)]), &[Sizes::uniform(100, 10)], &cluster).unwrap();
    assert_eq!((plan.floor(), plan.origin_bytes()), (1000 + 500, 1000 + 700));
}

#[test]
fn draws_with_replacement_get_a_threshold_if_too_large() {
    let samples = 2000;
    let run = run(30, vec![phase(0, Weighted::new(&[1.0; 2000], samples, 3).unwrap())]);
    let sizes = [Sizes::uniform(samples, 10)];
    let plan_for = |capacity| plan(&run, &sizes, &cluster(vec![level(capacity)])).unwrap();
    assert_eq!(plan_for(20_000).retention(), Retention::Keep);
    assert_eq!(plan_for(0).retention(), Retention::Keep);
    let half = plan_for(10_000);
    assert!(
        matches!(half.retention(), Retention::Threshold { horizon: 2500..4500 }),
        "{:?}",
        half.retention()
    );
    // Of 600,000 bytes, 1 - .81 are misses. They include each first use.
    let misses = half.origin_bytes() as f64 / 600_000.0;
    assert!((0.18..0.23).contains(&misses), "{misses}");
    assert!(half.origin_bytes() >= half.floor());
    assert_eq!(half.placement().level(key(0, 1999)).map(|level| level.0), Some(0));
    assert!(half.levels()[0].footprint <= 10_000);
}

#[test]
fn samples_that_recur_every_epoch_are_kept() {
    // The sampler is not once per epoch, but the same samples recur. A threshold saves nothing more
    // and rewrites.
    let orders = (0..6).map(|epoch| (0..50).map(|at| (at * 7 + epoch * 3) % 50).collect()).collect();
    let run = run(6, vec![phase(0, Explicit::new(1000, orders).unwrap())]);
    let plan = plan(&run, &[Sizes::uniform(1000, 10)], &cluster(vec![level(250)])).unwrap();
    assert_eq!(plan.retention(), Retention::Keep);
    assert_eq!(kept(&plan, 0, 1000), (0..25).collect::<Vec<_>>());
    assert_eq!(plan.origin_bytes(), plan.floor());
}

#[test]
fn invalid_clusters_are_errors() {
    let run = run(2, vec![shuffled(10)]);
    let sizes = [Sizes::uniform(10, 1)];
    let error = plan(&run, &sizes, &cluster(vec![level(1); 4])).unwrap_err();
    assert!(error.to_string().starts_with("stores[0].levels has 4 entries"), "{error}");
    let origin = Origin { bytes_per_second: 0, ..Origin::default() };
    let error = plan(&run, &sizes, &Cluster { origin, ..Cluster::default() }).unwrap_err();
    assert!(error.to_string().starts_with("origin.bytes_per_second is 0"), "{error}");
    // A store without levels keeps nothing.
    let none = plan(&run, &sizes, &Cluster::default()).unwrap();
    assert_eq!((none.origin_bytes(), none.floor()), (20, 20));
}

#[test]
fn plans_are_equal_on_every_machine() {
    let sizes = [Sizes::table(&mixed(5000)), Sizes::table(&mixed(700))];
    let phases = || vec![shuffled(5000), phase(1, Sequential::new(700).unwrap())];
    let keep =
        || plan(&run(7, phases()), &sizes, &cluster(vec![level(100_000_000), level(50_000_000)])).unwrap();
    let private = || plan(&run_of(7, phases(), 3), &sizes, &cluster(vec![level(100_000_000)])).unwrap();
    assert_eq!((keep(), private()), (keep(), private()));
    assert_ne!(keep().fingerprint(), private().fingerprint());
    // A change of these values changes the agreement of ranks of different releases.
    assert_eq!(keep().fingerprint().to_string(), "c81539639a45448fe8d996924ae065ca");
    assert_eq!(private().fingerprint().to_string(), "97d199afd7bd6b06910b941a5a91af83");
}

#[test]
fn summary_has_everything_but_the_tables() {
    let plan = plan(&run(2, vec![shuffled(4)]), &[Sizes::uniform(4, 10)], &cluster(vec![level(20)])).unwrap();
    let summary = serde_json::to_value(plan.summary()).unwrap();
    assert_eq!(summary["fingerprint"], plan.fingerprint().to_string());
    assert_eq!(summary["retention"], "keep");
    assert_eq!(summary["horizon"], serde_json::Value::Null);
    assert_eq!((&summary["origin_bytes"], &summary["floor_origin_bytes"]), (&60.into(), &60.into()));
    assert_eq!(summary["levels"][0]["samples"], 2);
    assert_eq!(summary["datasets"][0]["origin_bytes"], 60);
}

prop_compose! {
    fn levels()(levels in prop::collection::vec((0u64..400, 0u64..20, 1u64..30), 0..4)) -> Vec<Level> {
        levels.into_iter().map(|(capacity, overhead, align)| {
            Level::new("", capacity, Footprint::new(overhead, align))
        }).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn plan_without_eviction_reads_what_it_predicts(
        train in prop::collection::vec(0u64..100, 0..20),
        test in (0u64..15, 0u64..50),
        epochs in 1u64..5,
        consumed in 0u64..20,
        levels in levels(),
        (latency_ns, look_ahead) in (0u64..10, 0u64..50),
    ) {
        let sizes = [Sizes::table(&train), Sizes::uniform(test.0, test.1)];
        let phases = vec![shuffled(train.len() as u64), phase(1, Sequential::new(test.0).unwrap())];
        let schedule = Arc::new(Schedule::new(epochs, phases).unwrap());
        let consumed = consumed.min(train.len() as u64);
        let start = Position { schedule: schedule.fingerprint(), epoch: 0, phase: 0, consumed };
        let run = Run::resume(schedule, Deal::Torch, 1, Rank(0), &start).unwrap();
        let origin = Origin { latency_ns, bytes_per_second: 1_000_000_000, ..Origin::default() };
        let cluster = Cluster { look_ahead, origin, ..cluster(levels.clone()) };
        let plan = plan(&run, &sizes, &cluster).unwrap();
        prop_assert_eq!(plan.retention(), Retention::Keep);

        let mut uses = [vec![0u64; train.len()], vec![0; test.0 as usize]];
        for pass in run.passes() {
            let stream = run.stream(&pass).unwrap();
            for index in 0..stream.len() {
                uses[pass.dataset.0 as usize][stream.at(index).0 as usize] += 1;
            }
        }
        let (mut read, mut full) = (0, vec![(0, 0, 0); levels.len()]);
        for (dataset, uses) in uses.iter().enumerate() {
            for (id, &uses) in uses.iter().enumerate() {
                let key = key(dataset as u32, id as u64);
                let bytes = sizes[dataset].bytes(key.id);
                match plan.placement().level(key) {
                    None => read += uses * bytes,
                    Some(at) => {
                        prop_assert!(uses > 1, "{} is kept for {} uses", key, uses);
                        read += bytes;
                        let at = usize::from(at.0);
                        let footprint = levels[at].footprint.of(bytes);
                        full[at] = (full[at].0 + 1, full[at].1 + bytes, full[at].2 + footprint);
                    }
                }
            }
        }
        prop_assert_eq!(read, plan.origin_bytes());
        prop_assert!(read >= plan.floor());
        for ((level, planned), full) in levels.iter().zip(plan.levels()).zip(&full) {
            prop_assert_eq!(&(planned.samples, planned.bytes, planned.footprint), full);
            prop_assert!(full.2 <= level.capacity);
            // No sample that was left out would fit.
            for (dataset, uses) in uses.iter().enumerate() {
                for id in (0..uses.len() as u64).filter(|&id| uses[id as usize] > 1) {
                    if plan.placement().level(key(dataset as u32, id)).is_none() {
                        let footprint = level.footprint.of(sizes[dataset].bytes(SampleId(id)));
                        prop_assert!(full.2 + footprint > level.capacity);
                    }
                }
            }
        }
    }

    #[test]
    fn knapsack_is_within_a_sample_of_the_optimum(
        lengths in prop::collection::vec(1u64..1000, 1..40),
        capacity in 0u64..20_000,
        latency_ns in 0u64..2000,
        align in 1u64..600,
    ) {
        let origin = Origin { latency_ns, bytes_per_second: 1_000_000_000, ..Origin::default() };
        let footprint = Footprint::new(0, align);
        let level = Level::new("", capacity, footprint);
        let samples = lengths.len() as u64;
        let cluster = Cluster { origin: origin.clone(), ..cluster(vec![level]) };
        let plan = plan(&run(2, vec![shuffled(samples)]), &[Sizes::table(&lengths)], &cluster).unwrap();
        let worth = |id: u64| origin.nanoseconds(lengths[id as usize]) as f64;
        let room = |id: u64| footprint.of(lengths[id as usize]) as f64;
        let kept = kept(&plan, 0, samples);
        let found: f64 = kept.iter().map(|&id| worth(id)).sum();
        // The fractional optimum: by worth per byte, the last sample cut to the remaining space.
        let mut ids: Vec<u64> = (0..samples).collect();
        ids.sort_by(|&a, &b| (worth(b) / room(b)).total_cmp(&(worth(a) / room(a))));
        let (mut left, mut best, mut cut) = (capacity as f64, 0.0, 0.0);
        for id in ids {
            let part = (left / room(id)).min(1.0);
            if part < 1.0 && cut == 0.0 {
                cut = worth(id);
            }
            best += part * worth(id);
            left -= part * room(id);
        }
        let bounds = best - cut - 1e-6..=best + 1e-6;
        prop_assert!(bounds.contains(&found), "{} of {}, cut {}", found, best, cut);
    }
}
