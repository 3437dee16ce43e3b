//! Whether the first epoch reads packed shards in blocks or sample by sample.
//!
//! A shard's samples are read in random order, each by its extent: one request per sample. For
//! small samples, requests and not bytes decide the duration of the first epoch. A block is a run
//! of a shard's samples. If the caches keep all samples of a block, the first use of any of them
//! can read the block in one large request. The other samples are then in the caches for their
//! uses. Each byte is read once, with few requests.
//!
//! Ranks that share their caches read each block once for all of them. Its [owner](crate::assign)
//! reads it at the first use by any rank, and serves its samples.
//!
//! # The decision, and its price
//!
//! The cost of both ways is estimated, and blocks must gain a tenth. All amounts are those of one
//! of W ranks. The network is that of the node with the most traffic, and costs nothing for one
//! rank:
//!
//! ```text
//! by extents   max( bytes / limit, samples * (latency + s / stream) / in flight, computing )
//! by blocks    max( bytes / limit, blocks * (latency + B / stream) / in flight ) + network + computing
//! limit        the client's throughput, and its part of the throughput of W clients
//! network      max( received bytes / bandwidth, received samples * latency / in flight )
//! ```
//!
//! With blocks, nearly all bytes are read before a small part of the epoch has been delivered. The
//! first batch alone touches as many blocks as it has samples. So reading and computing do not
//! overlap. That is the price, and the reason why computing is added. Over ranks, W - 1 of W first
//! uses come from other ranks. By extents none do, because the first reader owns a sample. So the
//! network is added, too. The block size makes the latency a tenth of the block's time, and is at
//! most [`MAX_BLOCK_BYTES`].
//!
//! If reads of a block's length were measured ([`Origin::large`](crate::Origin)), that length is
//! the block size and `bytes / measured throughput` is the time of reading. The formula covers
//! waiting, but not the cost of a request to a busy store or a busy client. If the origin was not
//! measured, its default figures must promise a gain of [`UNMEASURED_GAIN`] times.

use std::collections::BTreeMap;

use foreread_oracle::Run;
use foreread_types::{DatasetId, Rank, Sizes};

use crate::cluster::Cluster;
use crate::curve::transfer_ns;
use crate::wide::narrow;

/// The largest block, in bytes.
pub const MAX_BLOCK_BYTES: u64 = 8 << 20;

/// Smaller blocks are not worth their overhead.
const MIN_BLOCK: u64 = 256 << 10;

/// The required gain of blocks if the origin's figures are not measured.
const UNMEASURED_GAIN: u64 = 4;

/// The number of bytes of a shard that the first epoch should read at once, or `None` to read
/// samples by their extents. `measured`: whether the origin's figures were measured. `sizes` are
/// those of the dataset in shards, which `run` reads first.
///
/// For a rank alone. A rank that shares an epoch with others, but not the caches, would read the
/// other ranks' samples too.
pub fn block_bytes(run: &Run, sizes: &Sizes, cluster: &Cluster, measured: bool) -> Option<u64> {
    let reads_all_again = run.passes().len() > 1 && run.is_once_per_epoch();
    if reads_all_again { choose(sizes, cluster, 1, measured) } else { None }
}

/// As [`block_bytes`], for all ranks of `run`, which share the caches of `cluster`. The caches must
/// hold the dataset, which [`plan_cluster_in_blocks`](crate::plan_cluster_in_blocks) checks.
/// `sizes` are those of `dataset`, which is in shards.
pub fn cluster_block_bytes(
    run: &Run,
    (dataset, sizes): (DatasetId, &Sizes),
    cluster: &Cluster,
    measured: bool,
) -> Option<u64> {
    let mut phases = run.schedule().phases.iter().filter(|phase| phase.dataset == dataset);
    let reads_all = phases.next().is_some_and(|phase| {
        phase.sampler.is_distinct() && phase.sampler.len() == phase.sampler.population()
    }) && phases.next().is_none();
    let reads_again = run.passes().filter(|pass| pass.dataset == dataset).nth(1).is_some();
    if reads_all && reads_again { choose(sizes, cluster, run.world_size(), measured) } else { None }
}

/// The block length for `world` ranks, of which each reads an equal part.
fn choose(sizes: &Sizes, cluster: &Cluster, world: u32, measured: bool) -> Option<u64> {
    if sizes.is_empty() {
        return None;
    }
    let origin = &cluster.origin;
    let latency = u128::from(origin.latency_ns) * u128::from(origin.bytes_per_second) / 1_000_000_000;
    let modelled = narrow(latency.saturating_mul(9));
    let block = origin.large.map_or(modelled, |large| large.bytes).clamp(MIN_BLOCK, MAX_BLOCK_BYTES);
    let (bytes, samples, ranks) = (sizes.total(), sizes.len(), u64::from(world.max(1)));
    let part = u128::from(bytes / ranks);
    let shared = transfer_ns(bytes.into(), origin.clients.at(world));
    let least = transfer_ns(part, origin.client_bytes_per_second).max(shared);
    let requests = |count: u64, length: u64| {
        let all = u128::from(count) * u128::from(origin.nanoseconds(length));
        narrow(all / u128::from(ranks) / u128::from(origin.in_flight.max(1)))
    };
    let computing = transfer_ns(part, cluster.trainer.compute);
    let extents = least.max(requests(samples, bytes / samples)).max(computing);
    let reading = match origin.large {
        Some(large) => transfer_ns(part, large.bytes_per_second).max(shared),
        None => least.max(requests(bytes.div_ceil(block), block)),
    };
    let network = network_ns(cluster, world, bytes, samples);
    let blocks = reading.saturating_add(network).saturating_add(computing);
    let (gain, of) = if measured { (11, 10) } else { (UNMEASURED_GAIN, 1) };
    let pays = u128::from(blocks) * gain as u128 <= u128::from(extents) * of;
    (pays && bytes / samples < block).then_some(block)
}

/// The time in which the node with the most traffic receives its samples from other nodes. All
/// ranks own and use equal parts.
fn network_ns(cluster: &Cluster, world: u32, bytes: u64, samples: u64) -> u64 {
    let mut nodes: BTreeMap<u32, u128> = BTreeMap::new();
    for store in (0..world).filter_map(|rank| cluster.store_of(Rank(rank))) {
        *nodes.entry(store.node).or_default() += 1;
    }
    let (network, world) = (&cluster.network, u128::from(world));
    let times = nodes.values().map(|&ranks| {
        let far = |all: u64| u128::from(all) * (world - ranks) / (world * world);
        let waits = far(samples) * u128::from(network.latency_ns) / u128::from(network.in_flight.max(1));
        transfer_ns(far(bytes) * ranks, network.bytes_per_second).max(narrow(waits))
    });
    times.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_oracle::{Deal, Phase, PhaseKind, Sampler, Schedule, Shuffle, Weighted};
    use foreread_types::StoreId;

    use super::*;
    use crate::{CacheStore, LargeReads, Network, Origin, Ranks, Trainer};

    fn run(samples: u64, epochs: u64, ranks: u32) -> Run {
        run_of(Arc::new(Shuffle::new(samples, 1).unwrap()), epochs, ranks)
    }

    fn run_of(sampler: Arc<dyn Sampler>, epochs: u64, ranks: u32) -> Run {
        let (kind, dataset) = (PhaseKind::Train, DatasetId(0));
        let phase = Phase { kind, dataset, sampler, batch_size: Some(10), drop_last: false };
        Run::new(Arc::new(Schedule::new(epochs, vec![phase]).unwrap()), Deal::Torch, ranks, Rank(0)).unwrap()
    }

    /// 10 ms and 80 MB/s per read, ten in flight, 700 MB/s at most.
    fn cluster() -> Cluster {
        let origin = Origin {
            latency_ns: 10_000_000,
            bytes_per_second: 80_000_000,
            in_flight: 10,
            client_bytes_per_second: 700_000_000,
            ..Origin::default()
        };
        Cluster { origin, ..Cluster::default() }
    }

    #[test]
    fn small_samples_are_read_in_blocks_large_ones_by_extent() {
        let of = |bytes| block_bytes(&run(10_000, 3, 1), &Sizes::uniform(10_000, bytes), &cluster(), true);
        // Latency is a tenth of a block's time.
        assert_eq!([of(1_000), of(100_000), of(50_000_000)], [Some(7_200_000), Some(7_200_000), None]);
        // Samples of this size keep the origin busy, so blocks gain nothing.
        assert_eq!(of(7_000_000), None);
    }

    #[test]
    // semantics: CACHE-15
    fn measured_large_reads_decide_about_blocks() {
        let sizes = Sizes::uniform(10_000, 100_000);
        // Negligible latency: only a measurement shows the cost of requests.
        let origin = |large| Origin {
            latency_ns: 100_000,
            bytes_per_second: 120_000_000,
            in_flight: 2,
            client_bytes_per_second: 120_000_000,
            large,
            ..Origin::default()
        };
        let of = |large| {
            let cluster = Cluster { origin: origin(large), ..Cluster::default() };
            block_bytes(&run(10_000, 3, 1), &sizes, &cluster, true)
        };
        let large = |bytes_per_second| Some(LargeReads { bytes: 4_000_000, bytes_per_second });
        assert_eq!(of(None), None);
        assert_eq!([of(large(600_000_000)), of(large(130_000_000))], [Some(4_000_000), None]);
    }

    #[test]
    fn single_epochs_and_shared_epochs_are_read_by_extent() {
        let sizes = Sizes::uniform(10_000, 1_000);
        for (epochs, ranks) in [(1, 1), (3, 2)] {
            assert_eq!(block_bytes(&run(10_000, epochs, ranks), &sizes, &cluster(), true), None);
        }
    }

    #[test]
    fn unmeasured_origin_must_promise_a_larger_gain() {
        let assumed = |bytes| {
            block_bytes(&run(10_000, 3, 1), &Sizes::uniform(10_000, bytes), &Cluster::default(), false)
        };
        assert!(assumed(10_000).is_some() && assumed(200_000).is_none());
    }

    #[test]
    fn slow_trainer_reads_by_extent() {
        let sizes = Sizes::uniform(10_000, 100_000);
        let mut cluster = cluster();
        cluster.trainer = Trainer { compute: 50_000_000, ..Trainer::default() };
        assert_eq!(block_bytes(&run(10_000, 3, 1), &sizes, &cluster, true), None);
    }
    /// The same for ranks on these nodes.
    fn on_nodes(nodes: &[u32]) -> Cluster {
        let store = |(id, &node)| CacheStore { node, ..CacheStore::new(StoreId(id), Vec::new()) };
        Cluster {
            stores: (0..).zip(nodes).map(store).collect(),
            ranks: Ranks::PerStore(1),
            network: Network { bytes_per_second: 1_000_000_000, latency_ns: 0, in_flight: 1 },
            ..cluster()
        }
    }

    fn of_cluster(run: &Run, bytes: u64, cluster: &Cluster) -> Option<u64> {
        cluster_block_bytes(run, (DatasetId(0), &Sizes::uniform(10_000, bytes)), cluster, true)
    }

    #[test]
    // semantics: PLAN-10
    fn ranks_that_share_caches_read_blocks_as_one_rank_does() {
        for nodes in [&[0][..], &[0, 0], &[0, 1], &[0, 0, 1, 2]] {
            let (run, cluster) = (run(10_000, 3, nodes.len() as u32), on_nodes(nodes));
            let of = |bytes| of_cluster(&run, bytes, &cluster);
            assert_eq!([of(1_000), of(100_000), of(7_000_000)], [Some(7_200_000), Some(7_200_000), None]);
        }
        // A sampler that repeats or omits samples, and a last epoch.
        let weighted = Arc::new(Weighted::new(&vec![1.0; 10_000], 10_000, 1).unwrap());
        assert_eq!(of_cluster(&run_of(weighted, 3, 2), 1_000, &on_nodes(&[0, 1])), None);
        assert_eq!(of_cluster(&run(10_000, 1, 2), 1_000, &on_nodes(&[0, 1])), None);
    }

    #[test]
    // semantics: PLAN-10
    fn network_is_part_of_the_price_of_blocks_over_ranks() {
        // Half of 1 GB moves, in both directions at once.
        assert_eq!(network_ns(&on_nodes(&[0, 1]), 2, 1_000_000_000, 1), 250_000_000);
        assert_eq!(network_ns(&on_nodes(&[0, 0, 1]), 3, 900_000_000, 1), 200_000_000);
        assert_eq!(network_ns(&on_nodes(&[3, 3]), 2, 1_000_000_000, 1_000_000), 0);
        let mut cluster = on_nodes(&[0, 1]);
        (cluster.network.latency_ns, cluster.network.in_flight) = (100_000, 10);
        assert_eq!(network_ns(&cluster, 2, 1, 1_000_000), 2_500_000_000);
        // 100 kB samples take 5.6 s by extents and .7 s by blocks, for each of two ranks.
        let (run, mut cluster) = (run(10_000, 3, 2), on_nodes(&[0, 1]));
        for (bytes_per_second, pays) in [(60_000_000, true), (50_000_000, false)] {
            cluster.network.bytes_per_second = bytes_per_second;
            assert_eq!(of_cluster(&run, 100_000, &cluster).is_some(), pays, "{bytes_per_second}");
        }
    }

    #[test]
    fn throughput_of_all_ranks_limits_both_ways() {
        let mut cluster = on_nodes(&[0, 0, 0, 0]);
        let run = run(10_000, 3, 4);
        // 1 GB takes 2.8 s by extents of four ranks with ten requests each.
        for (all, pays) in [(500_000_000, true), (200_000_000, false)] {
            cluster.origin.clients = crate::Curve::flat(all);
            assert_eq!(of_cluster(&run, 100_000, &cluster).is_some(), pays, "{all}");
        }
    }
}
