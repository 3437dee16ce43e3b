//! Assigns one owner to every sample that is worth keeping, as long as capacity lasts.
//!
//! # The decision, and its price
//!
//! The kept samples are the knapsack of one store with the capacity of all stores. They save the
//! most origin nanoseconds per byte of capacity. Samples that a store already holds stay there.
//! Then whole [blocks](crate::block_owners) are placed, if there are any. Each other sample goes to
//! the store that reads it first. If that store is full, the sample goes to the store with the most
//! free space, after all others have been placed. So a sample only leaves its first reader if the
//! first reader is full. If the [servers](crate::servers) of samples are given, the kept samples
//! even the servers' remaining times.
//!
//! The worth of a sample is compared as a number of 32 bits with a mantissa of 26. So the order of
//! 14 million samples is a table of 8 bytes each. Samples whose worth differs by less than 2e-8 are
//! ordered by id.

use foreread_types::{DatasetId, Footprint, SampleId, Sizes};

use crate::block_owners::{BlockRanges, place_blocks};
use crate::cluster::Cluster;
use crate::demand::{UseCounts, table};
use crate::error::PlanReason;
use crate::free_space::FreeSpace;
use crate::knapsack::worth;
use crate::owners::{NO_OWNER, PackedOwner, pack};
use crate::servers::{OriginServers, by_remaining_time};

/// The samples of one dataset.
pub(crate) struct DatasetSamples<'a> {
    pub(crate) dataset: DatasetId,
    pub(crate) sizes: &'a Sizes,
    pub(crate) uses: &'a UseCounts,
    /// By sample: the store that reads it first.
    pub(crate) first: Vec<u16>,
}

impl DatasetSamples<'_> {
    pub(crate) fn too_large(&self) -> PlanReason {
        PlanReason::Memory { dataset: self.dataset, samples: self.sizes.len() }
    }
}

/// Assigns all samples of all datasets and takes their space. `blocks` are those of one dataset,
/// and `ranks` is the number of ranks by store. Returns the owner of each sample, by dataset.
pub(crate) fn assign(
    cluster: &Cluster,
    datasets: &[DatasetSamples<'_>],
    (blocks, ranks): (BlockRanges<'_>, &[u32]),
    free: &mut FreeSpace,
) -> Result<Vec<Vec<PackedOwner>>, PlanReason> {
    let mut owners = Vec::new();
    for part in datasets {
        owners.push(table(part.sizes.len()).ok_or(part.too_large())?);
    }
    if cluster.capacity() == 0 {
        return Ok(owners);
    }
    for (part, owners) in datasets.iter().zip(&mut owners) {
        for (id, store, level) in cluster.held.of(part.dataset.0 as usize) {
            let known = id < part.sizes.len() && part.uses.of(SampleId(id)) > 0;
            if known && free.take_in_level(store, level, part.sizes.bytes(SampleId(id))) {
                owners[id as usize] = pack(store, level);
            }
        }
    }
    let dataset = blocks.dataset.0 as usize;
    if let (Some(part), Some(owners)) = (datasets.get(dataset), owners.get_mut(dataset)) {
        place_blocks(blocks.ranges, part, ranks, free, owners);
    }
    let mut keys = keys(cluster, datasets, &owners)?;
    if let Some(servers) = &cluster.servers {
        even_out(&mut keys, datasets, servers)?;
    }
    let mut greedy = Greedy::new(datasets, free, &mut owners);
    let mut moved = Vec::new();
    let kept = greedy.place_at_first_readers(&keys, &mut moved)?;
    moved.iter().chain(&keys[kept..]).for_each(|&key| greedy.place_at_most_space(key));
    Ok(owners)
}

/// The samples that are worth keeping and have no owner yet, best first: `rank << 32 | number`.
/// Samples are numbered through all datasets.
fn keys(
    cluster: &Cluster,
    datasets: &[DatasetSamples<'_>],
    owners: &[Vec<PackedOwner>],
) -> Result<Vec<u64>, PlanReason> {
    // All samples are compared by the footprint of the first level.
    let first = cluster.stores.iter().find_map(|store| store.levels.first());
    let footprint = first.map_or(Footprint::EXACT, |level| level.footprint);
    let mut keys: Vec<u64> = Vec::new();
    let mut start = 0;
    for (part, owners) in datasets.iter().zip(owners) {
        let samples = part.sizes.len();
        let wanted = |id: u64| part.uses.of(SampleId(id)) > 1 && owners[id as usize] == NO_OWNER;
        let count = (0..samples).filter(|&id| wanted(id)).count();
        keys.try_reserve_exact(count).map_err(|_| part.too_large())?;
        keys.extend((0..samples).filter(|&id| wanted(id)).map(|id| {
            let (uses, bytes) = (part.uses.of(SampleId(id)), part.sizes.bytes(SampleId(id)));
            let rank = !compress(worth(uses, bytes, footprint.of(bytes), &cluster.origin));
            u64::from(rank) << 32 | (start + id)
        }));
        start += samples;
    }
    keys.sort_unstable();
    Ok(keys)
}

/// Orders keys by the remaining times of their samples' servers. The new ranks are positions, so
/// that no two samples tie.
fn even_out(
    keys: &mut Vec<u64>,
    datasets: &[DatasetSamples<'_>],
    servers: &OriginServers,
) -> Result<(), PlanReason> {
    let starts = starts(datasets);
    let at = |key: &u64| {
        let (part, id) = sample(&starts, *key);
        (&datasets[part], SampleId(id as u64))
    };
    let server = |key: &u64| {
        let (part, id) = at(key);
        servers.of(part.dataset.0 as usize, id)
    };
    let ns = |key: &u64| {
        let (part, id) = at(key);
        let read = u128::from(servers.nanoseconds(server(key), part.sizes.bytes(id)));
        read.saturating_mul(u128::from(part.uses.of(id).saturating_sub(1)))
    };
    let Some(largest) = datasets.iter().max_by_key(|part| part.sizes.len()) else { return Ok(()) };
    by_remaining_time(keys, servers.count(), server, ns).ok_or_else(|| largest.too_large())?;
    // There are fewer samples than 2^32.
    for (rank, key) in (0u64..).zip(keys) {
        *key = rank << 32 | (*key & u64::from(u32::MAX));
    }
    Ok(())
}

/// The number of each dataset's first sample, and of the one after the last.
fn starts(datasets: &[DatasetSamples<'_>]) -> Vec<u64> {
    let mut starts = vec![0];
    for part in datasets {
        starts.push(starts.last().copied().unwrap_or(0) + part.sizes.len());
    }
    starts
}

/// The dataset and the id of a key's sample.
fn sample(starts: &[u64], key: u64) -> (usize, usize) {
    let number = key & u64::from(u32::MAX);
    let part = starts.partition_point(|&start| start <= number) - 1;
    (part, (number - starts[part]) as usize)
}

/// Compresses a number to 6 bits of exponent and 26 of mantissa, rounded down. Keeps the order.
fn compress(value: u64) -> u32 {
    let zeros = value.leading_zeros();
    if zeros == 64 {
        return 0;
    }
    // The leading bit is implied.
    (63 - zeros) << 26 | ((value << zeros << 1) >> 38) as u32
}

/// Samples in order of worth are scattered in the tables. A batch is looked up together, so cache
/// misses overlap.
const BATCH: usize = 64;

/// A sample to place.
struct Candidate {
    key: u64,
    part: usize,
    id: usize,
    bytes: u64,
    /// The store that reads it first.
    first: usize,
}

struct Greedy<'a> {
    datasets: &'a [DatasetSamples<'a>],
    /// The number of each dataset's first sample, and of the one after the last.
    starts: Vec<u64>,
    free: &'a mut FreeSpace,
    owners: &'a mut [Vec<PackedOwner>],
}

impl<'a> Greedy<'a> {
    fn new(
        datasets: &'a [DatasetSamples<'a>],
        free: &'a mut FreeSpace,
        owners: &'a mut [Vec<PackedOwner>],
    ) -> Self {
        Self { starts: starts(datasets), datasets, free, owners }
    }

    fn item(&self, key: u64) -> Candidate {
        let (part, id) = sample(&self.starts, key);
        let samples = &self.datasets[part];
        Candidate {
            key,
            part,
            id,
            bytes: samples.sizes.bytes(SampleId(id as u64)),
            first: samples.first[id].into(),
        }
    }

    /// Places the samples that are certain to fit anywhere, and those of the same worth as the last
    /// of them. Returns their number. `moved` receives those whose first reader is full.
    fn place_at_first_readers(&mut self, keys: &[u64], moved: &mut Vec<u64>) -> Result<usize, PlanReason> {
        let mut left = self.free.total_left();
        let (mut last, mut fits, mut kept) = (0, true, 0);
        let mut items = Vec::with_capacity(BATCH);
        for batch in keys.chunks(BATCH) {
            items.clear();
            items.extend(batch.iter().map(|&key| self.item(key)));
            for item in &items {
                let most = u128::from(self.free.most(item.bytes));
                fits &= most <= left;
                if !fits && item.key >> 32 != last {
                    return Ok(kept);
                }
                left = left.saturating_sub(most);
                (last, kept) = (item.key >> 32, kept + 1);
                match self.free.take(item.first, item.bytes) {
                    Some(level) => self.owners[item.part][item.id] = pack(item.first, level),
                    None => {
                        moved.try_reserve(1).map_err(|_| self.datasets[item.part].too_large())?;
                        moved.push(item.key);
                    }
                }
            }
        }
        Ok(kept)
    }

    /// Places a sample at its first reader, or in the store with the most free space if that is
    /// full.
    fn place_at_most_space(&mut self, key: u64) {
        let item = self.item(key);
        let level = self.free.take(item.first, item.bytes).map(|level| (item.first, level));
        if let Some((store, level)) = level.or_else(|| self.free.take_most_free(item.bytes)) {
            self.owners[item.part][item.id] = pack(store, level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_numbers_keep_their_order() {
        let values = [0, 1, 2, 3, 4, 1000, 1 << 26, (1 << 26) + 1, 1 << 40, 3 << 39, u64::MAX - 1, u64::MAX];
        let found: Vec<u32> = values.iter().map(|&value| compress(value)).collect();
        assert!(found.windows(2).all(|pair| pair[0] <= pair[1]), "{found:?}");
        assert!(found[1..10].windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
        assert_eq!((compress(0), compress(u64::MAX)), (0, u32::MAX));
    }
}
