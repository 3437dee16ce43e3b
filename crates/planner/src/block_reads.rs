//! Whether the first epoch reads packed shards in blocks or sample by sample.
//!
//! A shard's samples are read in random order, each by its extent: one request per sample. For
//! small samples, requests and not bytes decide the duration of the first epoch. A block is a run
//! of a shard's samples. If the caches keep all samples of a block, the first use of any of them
//! can read the block in one large request. The other samples are then in the caches for their
//! uses. Each byte is read once, with few requests.
//!
//! # The decision, and its price
//!
//! The cost of both ways is estimated, and blocks must gain a tenth:
//!
//! ```text
//! by extents   max( bytes / client limit, samples * (latency + s / stream) / in flight, computing )
//! by blocks    max( bytes / client limit, blocks * (latency + B / stream) / in flight ) + computing
//! ```
//!
//! With blocks, nearly all bytes are read before a small part of the epoch has been delivered. The
//! first batch alone touches as many blocks as it has samples. So reading and computing do not
//! overlap. That is the price, and the reason why computing is added. The block size makes the
//! latency a tenth of the block's time, and is at most [`MAX_BLOCK_BYTES`].
//!
//! If reads of a block's length were measured ([`Origin::large`](crate::Origin)), that length is
//! the block size and `bytes / measured throughput + computing` is the cost. The formula covers
//! waiting, but not the cost of a request to a busy store or a busy client. If the origin was not
//! measured, its default figures must promise a gain of [`UNMEASURED_GAIN`] times.

use foreread_oracle::Run;
use foreread_types::Sizes;

use crate::cluster::Cluster;
use crate::curve::transfer_ns;
use crate::forecast::narrow;

/// The largest block, in bytes.
pub const MAX_BLOCK_BYTES: u64 = 8 << 20;

/// Smaller blocks are not worth their overhead.
const MIN_BLOCK: u64 = 256 << 10;

/// The required gain of blocks if the origin's figures are not measured.
const UNMEASURED_GAIN: u64 = 4;

/// The number of bytes of a shard that the first epoch should read at once, or `None` to read
/// samples by their extents. `measured`: whether the origin's figures were measured. `sizes` are
/// those of the dataset in shards, which `run` reads first.
pub fn block_bytes(run: &Run, sizes: &Sizes, cluster: &Cluster, measured: bool) -> Option<u64> {
    // A rank that shares an epoch with other ranks would read their samples too.
    if sizes.is_empty() || run.passes().len() < 2 || !run.is_once_per_epoch() {
        return None;
    }
    let origin = &cluster.origin;
    let latency = u128::from(origin.latency_ns) * u128::from(origin.bytes_per_second) / 1_000_000_000;
    let modelled = narrow(latency.saturating_mul(9));
    let block = origin.large.map_or(modelled, |large| large.bytes).clamp(MIN_BLOCK, MAX_BLOCK_BYTES);
    let (bytes, samples) = (sizes.total(), sizes.len());
    let least = transfer_ns(bytes.into(), origin.client_bytes_per_second);
    let requests = |count: u64, length: u64| {
        narrow(
            u128::from(count) * u128::from(origin.nanoseconds(length)) / u128::from(origin.in_flight.max(1)),
        )
    };
    let computing = transfer_ns(bytes.into(), cluster.trainer.compute);
    let extents = least.max(requests(samples, bytes / samples)).max(computing);
    let reading = match origin.large {
        Some(large) => transfer_ns(bytes.into(), large.bytes_per_second),
        None => least.max(requests(bytes.div_ceil(block), block)),
    };
    let blocks = reading.saturating_add(computing);
    let (gain, of) = if measured { (11, 10) } else { (UNMEASURED_GAIN, 1) };
    let pays = u128::from(blocks) * gain as u128 <= u128::from(extents) * of;
    (pays && bytes / samples < block).then_some(block)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_oracle::{Deal, Phase, PhaseKind, Schedule, Shuffle};
    use foreread_types::{DatasetId, Rank};

    use super::*;
    use crate::{LargeReads, Origin, Trainer};

    fn run(samples: u64, epochs: u64, ranks: u32) -> Run {
        let sampler = Arc::new(Shuffle::new(samples, 1).unwrap());
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
}
