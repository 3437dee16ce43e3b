//! The free space in every level of every store while samples are placed.
//!
//! There are two queries for each sample. The first checks whether a store has space. The second
//! finds the store of the cluster with the most space. It goes to a tree of maxima over the levels
//! that share a footprint (all memories, all disks). So it costs the logarithm of the number of
//! stores, and nothing if no store has space.

use foreread_types::Footprint;

use crate::cluster::Cluster;
use crate::level::{LevelIndex, MAX_LEVELS};

pub(crate) struct FreeSpace {
    /// By store and level.
    left: Vec<[u64; MAX_LEVELS]>,
    /// By store and level: the group and the leaf in it.
    leaves: Vec<[Option<(u8, u32)>; MAX_LEVELS]>,
    footprints: Vec<[Footprint; MAX_LEVELS]>,
    /// The groups of the fastest levels first.
    groups: Vec<FootprintGroup>,
}

/// Levels of one footprint.
struct FootprintGroup {
    footprint: Footprint,
    slots: Vec<(u32, LevelIndex)>,
    /// The maxima. Node `n` has the children `2 n` and `2 n + 1`, and leaves start at `tree.len() /
    /// 2`.
    tree: Vec<u64>,
}

impl FreeSpace {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let stores = cluster.stores.len();
        let mut free = Self {
            left: vec![[0; MAX_LEVELS]; stores],
            leaves: vec![[None; MAX_LEVELS]; stores],
            footprints: vec![[Footprint::EXACT; MAX_LEVELS]; stores],
            groups: Vec::new(),
        };
        for index in 0..MAX_LEVELS {
            for (at, store) in cluster.stores.iter().enumerate() {
                let Some(level) = store.levels.get(index) else { continue };
                free.left[at][index] = level.capacity;
                free.footprints[at][index] = level.footprint;
                let group = free.groups.iter().position(|group| group.footprint == level.footprint);
                let group = group.unwrap_or_else(|| {
                    let footprint = level.footprint;
                    free.groups.push(FootprintGroup { footprint, slots: Vec::new(), tree: Vec::new() });
                    free.groups.len() - 1
                });
                let slots = &mut free.groups[group].slots;
                free.leaves[at][index] = Some((group as u8, slots.len() as u32));
                slots.push((at as u32, LevelIndex(index as u8)));
            }
        }
        for group in &mut free.groups {
            let leaves = group.slots.len().next_power_of_two();
            group.tree = vec![0; 2 * leaves];
            for (leaf, &(store, level)) in group.slots.iter().enumerate() {
                group.tree[leaves + leaf] = free.left[store as usize][usize::from(level.0)];
            }
            for node in (1..leaves).rev() {
                group.tree[node] = group.tree[2 * node].max(group.tree[2 * node + 1]);
            }
        }
        free
    }

    /// Takes space for a sample in the fastest level of a store that has it. `None` if there is no
    /// such level or store.
    pub(crate) fn take(&mut self, store: usize, bytes: u64) -> Option<LevelIndex> {
        let level = self.level_with_space(store, self.left.get(store)?, bytes)?;
        self.take_at(store, level, self.footprints[store][level].of(bytes));
        Some(LevelIndex(level as u8))
    }

    /// Whether a store has space for samples of all these lengths.
    pub(crate) fn has_all(&self, store: usize, mut sizes: impl Iterator<Item = u64>) -> bool {
        let Some(mut left) = self.left.get(store).copied() else { return false };
        sizes.all(|bytes| {
            let level = self.level_with_space(store, &left, bytes);
            if let Some(level) = level {
                left[level] -= self.footprints[store][level].of(bytes);
            }
            level.is_some()
        })
    }

    /// The fastest level of a store that has space for a sample, with `left` free bytes by level.
    fn level_with_space(&self, store: usize, left: &[u64; MAX_LEVELS], bytes: u64) -> Option<usize> {
        (0..MAX_LEVELS).find(|&level| {
            self.leaves[store][level].is_some() && self.footprints[store][level].of(bytes) <= left[level]
        })
    }

    /// Takes space for a sample in a level of a store. Returns whether there was enough.
    pub(crate) fn take_in_level(&mut self, store: usize, level: LevelIndex, bytes: u64) -> bool {
        let level = usize::from(level.0);
        let there = self.leaves.get(store).is_some_and(|levels| levels[level].is_some());
        let fits = there && self.footprints[store][level].of(bytes) <= self.left[store][level];
        if fits {
            self.take_at(store, level, self.footprints[store][level].of(bytes));
        }
        fits
    }

    /// Takes space for a sample in the store with the most.
    pub(crate) fn take_most_free(&mut self, bytes: u64) -> Option<(usize, LevelIndex)> {
        let group = self.groups.iter().find(|group| group.fits(bytes))?;
        let leaves = group.tree.len() / 2;
        let mut node = 1;
        while node < leaves {
            node = 2 * node + usize::from(group.tree[2 * node + 1] > group.tree[2 * node]);
        }
        let (footprint, (store, level)) = (group.footprint.of(bytes), group.slots[node - leaves]);
        self.take_at(store as usize, usize::from(level.0), footprint);
        Some((store as usize, level))
    }

    /// The free bytes in all levels of all stores.
    pub(crate) fn total_left(&self) -> u128 {
        self.left.iter().flatten().map(|&left| u128::from(left)).sum()
    }

    /// The space of a sample in the level where it takes the most.
    pub(crate) fn most(&self, bytes: u64) -> u64 {
        self.groups.iter().map(|group| group.footprint.of(bytes)).max().unwrap_or(0)
    }

    /// The free bytes in the levels of a store.
    pub(crate) fn left(&self, store: usize) -> [u64; MAX_LEVELS] {
        self.left[store]
    }

    fn take_at(&mut self, store: usize, level: usize, footprint: u64) {
        let left = &mut self.left[store][level];
        *left -= footprint;
        let Some((group, leaf)) = self.leaves[store][level] else { return };
        let tree = &mut self.groups[usize::from(group)].tree;
        let mut node = tree.len() / 2 + leaf as usize;
        tree[node] = *left;
        while node > 1 {
            node /= 2;
            let most = tree[2 * node].max(tree[2 * node + 1]);
            if tree[node] == most {
                break;
            }
            tree[node] = most;
        }
    }
}

impl FootprintGroup {
    fn fits(&self, bytes: u64) -> bool {
        self.footprint.of(bytes) <= self.tree[1]
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::StoreId;

    use super::*;
    use crate::{CacheStore, Level};

    #[test]
    fn space_is_taken_from_memory_first_and_the_emptiest_store() {
        let memory = |capacity| Level::new("memory", capacity, Footprint::EXACT);
        let disk = Level::new("disk", 8192, Footprint::new(0, 4096));
        let stores = vec![
            CacheStore::new(StoreId(0), vec![memory(10)]),
            CacheStore::new(StoreId(1), vec![memory(30), disk]),
            CacheStore::new(StoreId(2), vec![]),
            CacheStore::new(StoreId(3), vec![memory(20)]),
        ];
        let mut free = FreeSpace::new(&Cluster { stores, ..Cluster::default() });
        assert_eq!(free.take(0, 11), None);
        assert_eq!(free.take(2, 0), None);
        let mut taken = Vec::new();
        while let Some((store, level)) = free.take_most_free(10) {
            taken.push((store, level.0));
        }
        assert_eq!(taken, [(1, 0), (1, 0), (3, 0), (0, 0), (1, 0), (3, 0), (1, 1), (1, 1)]);
        assert_eq!((free.total_left(), free.left(1)[1], free.take(9, 0)), (0, 0, None));
    }
}
