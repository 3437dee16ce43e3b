//! Samples that caches hold at the start of a run stay in place and are not read again.

use foreread_oracle::Shuffle;
use foreread_planner::{CacheContents, LevelIndex, plan_cluster};
use foreread_types::Sizes;
use proptest::prelude::*;

use super::{key, run, stores, train};

proptest! {
    #[test]
    // semantics: RANK-37
    fn held_samples_stay_and_others_are_placed_around_them(
        (samples, world_size, percent) in (50u64..400, 1u32..6, 0u64..150),
        found in prop::collection::vec((0u64..500, 0usize..8, 0u8..2), 0..200),
    ) {
        const BYTES: u64 = 100;
        let room = samples * BYTES * percent / 100 / u64::from(world_size) / 2;
        let sizes = [Sizes::uniform(samples, BYTES)];
        let run = run(vec![train(Shuffle::new(samples, 3).unwrap(), 4)], 3, world_size);
        let cold = stores((0..world_size).map(|_| vec![room, room]).collect());
        let mut cluster = cold.clone();
        let mut held = CacheContents::default();
        found.iter().for_each(|&(id, store, level)| held.add(key(0, id), store, LevelIndex(level)));
        cluster.held = held;
        let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
        let cold = plan_cluster(&run, &sizes, &cold).unwrap();
        // Until a level is full, every sample is where it was found.
        let (mut seen, mut kept) = (std::collections::BTreeMap::new(), 0);
        found.iter().for_each(|&(id, store, level)| { seen.entry(id).or_insert((store, level)); });
        let mut left = vec![[room, room]; world_size as usize];
        for (&id, &(store, level)) in &seen {
            let Some(levels) = left.get_mut(store) else { continue };
            let room = &mut levels[usize::from(level)];
            if id < samples && *room >= BYTES {
                *room -= BYTES;
                kept += BYTES;
                let owner = plan.owner(key(0, id)).unwrap();
                prop_assert_eq!((owner.store, owner.level.0), (store, level));
            }
        }
        // As much is kept as from a cold start, and found samples are not read.
        prop_assert_eq!(plan.origin_bytes(), cold.origin_bytes() - kept);
        for store in plan.stores() {
            for level in &store.levels {
                prop_assert!(level.footprint <= room);
            }
        }
    }
}
