//! The plan of ranks that share their caches, in blocks if that is faster.
//!
//! The planner decides about blocks from figures, and needs their samples for the owners. The
//! catalog has the extents. So this module reads every entry of the catalog of a dataset in shards,
//! which takes some tenths of a second for a million samples. All ranks compute the same.

use foreread_dataset::Catalog;
use foreread_loader::BlockTable;
use foreread_oracle::Run;
use foreread_planner::{BlockRanges, Cluster, ClusterPlan, cluster_block_bytes, plan_cluster_in_blocks};
use foreread_types::{DatasetId, Sizes};

use foreread_open::error::Result;

/// Training data in shards that blocks may be cut from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardedData<'a> {
    pub(crate) catalog: &'a Catalog,
    /// Whether the origin's figures were measured.
    pub(crate) measured: bool,
    /// Whether samples share stored units. Then these are the blocks, and always pay.
    pub(crate) in_units: bool,
}

/// The blocks that the ranks read in the first epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterBlocks {
    /// Those of all ranks.
    pub(crate) table: BlockTable,
    /// Their length.
    pub(crate) bytes: Option<u64>,
}

/// The dataset of the training data.
pub(crate) const TRAIN: DatasetId = DatasetId(0);

/// Plans for all ranks of `run`. Without `shards`, no blocks are read.
pub(crate) fn plan_cluster(
    run: &Run,
    sizes: &[Sizes],
    cluster: &Cluster,
    shards: Option<ShardedData<'_>>,
) -> Result<(ClusterPlan, ClusterBlocks)> {
    let mut blocks = ClusterBlocks::default();
    if let (Some(ShardedData { catalog, measured, in_units }), Some(train)) = (shards, sizes.first()) {
        blocks.bytes = cluster_block_bytes(run, (TRAIN, train), cluster, measured);
        if in_units {
            blocks.table = BlockTable::of_units(catalog)?;
            blocks.bytes = blocks.table.longest();
        } else if let Some(bytes) = blocks.bytes {
            blocks.table = BlockTable::of_all(catalog, bytes)?;
        }
    }
    let ranges = BlockRanges { dataset: TRAIN, ranges: &blocks.table.ranges() };
    let plan = plan_cluster_in_blocks(run, sizes, cluster, ranges)?;
    if !plan.is_in_blocks() {
        blocks = ClusterBlocks::default();
    }
    Ok((plan, blocks))
}
