//! The owners of blocks, if several ranks read the first epoch of shards in blocks.
//!
//! One store owns all samples of a block. So it can read them in one request and serve the other
//! ranks. Blocks are placed in order of their ids, before single samples. Each goes to the store
//! with the fewest bytes of blocks per rank that has space for the whole block.
//!
//! # The decision, and its price
//!
//! All ranks read equal parts. The first reader of a sample does not matter, because a block has
//! about as many first readers as samples. The price: nearly all first uses of a sample are on
//! other ranks than its owner. [`block_reads`](crate::block_reads) counts it.
//!
//! A block that one store holds in part goes there, because only the rest has to be read. A block
//! in several stores, or without a store that has space, is placed sample by sample.

use std::collections::BTreeSet;
use std::ops::Range;

use foreread_types::{DatasetId, SampleId};

use crate::assign::DatasetSamples;
use crate::free_space::FreeSpace;
use crate::owners::{NO_OWNER, PackedOwner, pack, unpack};

/// The blocks of a dataset, as ranges of sample ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockRanges<'a> {
    /// The dataset in shards.
    pub dataset: DatasetId,
    /// The blocks, in ascending order and without a common sample.
    pub ranges: &'a [Range<u64>],
}

/// Loads are compared in units of this fraction of a byte per rank.
const LOAD_UNIT: u128 = 1 << 20;

/// Assigns `blocks` of `part`, one of the datasets. `ranks` is the number of ranks by store.
pub(crate) fn place_blocks(
    blocks: &[Range<u64>],
    part: &DatasetSamples<'_>,
    ranks: &[u32],
    free: &mut FreeSpace,
    owners: &mut [PackedOwner],
) {
    let mut loads = vec![0u64; ranks.len()];
    let place = |loads: &[u64], store: usize| {
        (u128::from(loads[store]) * LOAD_UNIT / u128::from(ranks[store].max(1)), store)
    };
    let used = (0..ranks.len()).filter(|&store| ranks[store] > 0);
    let mut stores: BTreeSet<(u128, usize)> = used.map(|store| (0, store)).collect();
    for block in blocks {
        let block = block.start..block.end.min(part.sizes.len());
        let mut holders = block.clone().filter_map(|id| Some(unpack(owners[id as usize])?.0));
        let holder = holders.next();
        if holders.any(|other| Some(other) != holder) {
            continue;
        }
        let is_missing = |id: u64| owners[id as usize] == NO_OWNER && part.uses.of(SampleId(id)) > 0;
        let missing: Vec<u64> = block.filter(|&id| is_missing(id)).collect();
        let sizes = || missing.iter().map(|&id| part.sizes.bytes(SampleId(id)));
        let store = match holder {
            Some(store) => Some(store).filter(|&store| free.has_all(store, sizes())),
            None => stores.iter().map(|&(_, store)| store).find(|&store| free.has_all(store, sizes())),
        };
        let Some(store) = store else { continue };
        let before = stores.remove(&place(&loads, store));
        loads[store] += sizes().sum::<u64>();
        if before {
            stores.insert(place(&loads, store));
        }
        for id in missing {
            if let Some(level) = free.take(store, part.sizes.bytes(SampleId(id))) {
                owners[id as usize] = pack(store, level);
            }
        }
    }
}
