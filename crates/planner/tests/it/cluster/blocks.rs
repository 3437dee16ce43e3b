//! Owners of blocks, against a small model: each block in the least loaded store with space.

use std::ops::Range;

use foreread_oracle::{Deal, Run, Sequential, Shuffle};
use foreread_planner::{BlockRanges, CacheContents, Cluster, LevelIndex, Ranks, plan_cluster};
use foreread_planner::{ClusterPlan, plan_cluster_in_blocks};
use foreread_types::{DatasetId, Rank, Sizes};
use proptest::prelude::*;

use super::{key, replay, run, stores, train};

/// Consecutive blocks of these lengths in samples, with a gap of one sample after each third.
fn blocks(lengths: &[u64], samples: u64) -> Vec<Range<u64>> {
    let mut start = 0;
    let mut blocks = Vec::new();
    for (number, length) in lengths.iter().enumerate() {
        if start + length <= samples {
            blocks.push(start..start + length);
        }
        start += length + u64::from(number % 3 == 2);
    }
    blocks
}

fn in_blocks(run: &Run, sizes: &[Sizes], cluster: &Cluster, ranges: &[Range<u64>]) -> ClusterPlan {
    let blocks = BlockRanges { dataset: DatasetId(0), ranges };
    plan_cluster_in_blocks(run, sizes, cluster, blocks).unwrap()
}

/// Takes the space of `bytes` in the first level that has it.
fn take(levels: &mut [u64], bytes: u64) -> bool {
    let level = levels.iter_mut().find(|left| **left >= bytes);
    level.map(|left| *left -= bytes).is_some()
}

/// By block, the store that owns all of it, if there is one.
fn model(
    lengths: &[u64],
    blocks: &[Range<u64>],
    mut free: Vec<Vec<u64>>,
    found: &[(u64, usize, u8)],
) -> Vec<Option<usize>> {
    let mut held = vec![None; lengths.len()];
    let mut first = std::collections::BTreeMap::new();
    found.iter().for_each(|&(id, store, level)| _ = first.entry(id).or_insert((store, level)));
    for (id, (store, level)) in first {
        let (Some(bytes), Some(levels)) = (lengths.get(id as usize), free.get_mut(store)) else { continue };
        let left = &mut levels[usize::from(level)];
        if *left >= *bytes {
            *left -= bytes;
            held[id as usize] = Some(store);
        }
    }
    let mut loads = vec![0; free.len()];
    let place = |block: &Range<u64>| {
        let ids = || block.clone().map(|id| id as usize);
        let mut holders: Vec<usize> = ids().filter_map(|id| held[id]).collect();
        holders.dedup();
        let missing: Vec<u64> = ids().filter(|&id| held[id].is_none()).map(|id| lengths[id]).collect();
        let mut candidates: Vec<usize> = match holders[..] {
            [] => (0..free.len()).collect(),
            [one] => vec![one],
            _ => return None,
        };
        candidates.sort_by_key(|&store| (loads[store], store));
        for store in candidates {
            let mut left = free[store].clone();
            if missing.iter().all(|&bytes| take(&mut left, bytes)) {
                free[store] = left;
                loads[store] += missing.iter().sum::<u64>();
                return Some(store);
            }
        }
        None
    };
    blocks.iter().map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    // semantics: PLAN-10
    fn block_owners_equal_the_models(
        lengths in prop::collection::vec(1u64..900, 1..150),
        cuts in prop::collection::vec(1u64..12, 1..40),
        rooms in prop::collection::vec((0u64..40_000, 0u64..20_000), 1..6),
        per_store in 1u32..4,
        found in prop_oneof![
            Just(Vec::new()),
            prop::collection::vec((0u64..160, 0usize..7, 0u8..2), 0..20)
        ],
        seed in any::<u64>(),
    ) {
        let samples = lengths.len() as u64;
        let sizes = [Sizes::table(&lengths), Sizes::uniform(7, 100)];
        let levels: Vec<Vec<u64>> = rooms.iter().map(|&(memory, disk)| vec![memory, disk]).collect();
        let mut cluster = Cluster { ranks: Ranks::PerStore(per_store), ..stores(levels.clone()) };
        let mut held = CacheContents::default();
        found.iter().for_each(|&(id, store, level)| held.add(key(0, id), store, LevelIndex(level)));
        cluster.held = held;
        let mut validation = train(Sequential::new(7).unwrap(), 3);
        validation.dataset = DatasetId(1);
        let ranks = rooms.len() as u32 * per_store;
        let run = run(vec![train(Shuffle::new(samples, seed).unwrap(), 3), validation], 3, ranks);
        let blocks = blocks(&cuts, samples);
        let plan = in_blocks(&run, &sizes, &cluster, &blocks);
        let alone = plan_cluster(&run, &sizes, &cluster).unwrap();
        let replayed = replay(&run, &sizes, &cluster, &plan);
        if found.is_empty() {
            prop_assert_eq!(replayed.origin_bytes, plan.origin_bytes());
        }
        for (store, levels) in plan.stores().iter().zip(&levels) {
            for (level, room) in store.levels.iter().zip(levels) {
                prop_assert!(level.footprint <= *room);
            }
        }
        for rank in (0..ranks).map(Rank) {
            let run = Run::new(run.schedule().clone(), Deal::Torch, ranks, rank).unwrap();
            prop_assert_eq!(in_blocks(&run, &sizes, &cluster, &blocks).fingerprint(), plan.fingerprint());
        }
        if !plan.is_in_blocks() {
            // The caches cannot hold everything, or there is no block.
            prop_assert_eq!(plan.owners(), alone.owners());
            prop_assert!(blocks.is_empty() || levels.iter().all(|levels| levels[0] < 900 * (samples + 7)));
            return Ok(());
        }
        prop_assert!((0..samples).all(|id| plan.owner(key(0, id)).is_some()));
        prop_assert!(plan.origin_bytes() <= alone.origin_bytes());
        for (block, store) in blocks.iter().zip(model(&lengths, &blocks, levels, &found)) {
            let Some(store) = store else { continue };
            for id in block.clone() {
                prop_assert_eq!(plan.owner(key(0, id)).map(|owner| owner.store), Some(store));
            }
        }
    }
}

#[test]
// semantics: PLAN-10
fn blocks_are_spread_evenly_over_all_ranks() {
    for ranks in [2, 3, 4, 7] {
        let samples = 64 * 50;
        let sizes = [Sizes::uniform(samples, 1000)];
        let run = run(vec![train(Shuffle::new(samples, 1).unwrap(), 8)], 2, ranks);
        let ranges: Vec<_> = (0..64).map(|block| block * 50..(block + 1) * 50).collect();
        let plan = in_blocks(&run, &sizes, &super::equal(ranks, samples * 1000), &ranges);
        assert!(plan.is_in_blocks());
        let owned: Vec<u64> = plan.stores().iter().map(|store| store.owned.samples / 50).collect();
        let (least, most) = (64 / u64::from(ranks), 64u64.div_ceil(ranks.into()));
        assert!(owned.iter().all(|owned| (least..=most).contains(owned)), "{owned:?}");
        assert_eq!(plan.origin_bytes(), plan.floor());
    }
}

#[test]
// semantics: PLAN-10
fn caches_for_less_than_the_data_ignore_blocks() {
    let sizes = [Sizes::uniform(100, 1000)];
    let run = run(vec![train(Shuffle::new(100, 1).unwrap(), 8)], 2, 2);
    let ranges = [0..50, 50..100];
    for (room, expected) in [(50_000, true), (49_999, false)] {
        let cluster = super::equal(2, room);
        let plan = in_blocks(&run, &sizes, &cluster, &ranges);
        assert_eq!(plan.is_in_blocks(), expected);
        if !expected {
            assert_eq!(plan, plan_cluster(&run, &sizes, &cluster).unwrap());
        }
    }
}
