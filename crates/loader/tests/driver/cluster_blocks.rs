//! Shards that several ranks read in blocks: each block once for all of them, with any fault.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use foreread_dataset::Catalog;
use foreread_layers::{MergePolicy, Stack};
use foreread_loader::{BlockTable, Dataset, Loader, LoaderParts, OnError, PeerGroup, ReadSource};
use foreread_memory::MemoryTier;
use foreread_oracle::{Deal, Phase, PhaseKind, Position, Run, Schedule, Shuffle};
use foreread_planner::{
    BlockRanges, CacheStore, Cluster, ClusterPlan, Level, LocalPlan, Ranks, plan_cluster_in_blocks,
};
use foreread_tier::{CacheTier, HeapBuffers, PeerRequest};
use foreread_tier_testing::StoredCache;
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, StoreId, Tick};
use futures::StreamExt;
use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::blocks::{ALL, BLOCK, LENGTH, Objects, RECORDS, SHARDS, checked};
use crate::cluster::{FakeNetwork, FakePeers};
use crate::rig::next;

/// All samples, and all blocks.
const SAMPLES: u64 = (SHARDS * RECORDS) as u64;
const BLOCKS: u64 = SAMPLES / 10;

/// The bytes of all blocks: ten records and nine gaps of 16 bytes each.
const BLOCK_BYTES: u64 = ALL + BLOCKS * 9 * 16;

struct BlockJob {
    origin: Objects,
    catalog: Catalog,
    world_size: u32,
    look_ahead: u64,
    /// The budget of other ranks' requests to a rank, in bytes.
    budget: u64,
    /// The samples that were consumed before the start.
    consumed: u64,
    /// The disk of each rank. `None` for memory.
    disk: Option<fn() -> StoredCache>,
    network: Arc<FakeNetwork>,
}

impl BlockJob {
    async fn new(world_size: u32) -> Self {
        let (origin, catalog) = Objects::shards().await;
        let (network, consumed, disk) = (FakeNetwork::new(world_size), 0, None);
        let (look_ahead, budget) = (20_000, 1 << 20);
        Self { origin, catalog, world_size, look_ahead, budget, consumed, disk, network }
    }

    fn run(&self, rank: u32) -> Run {
        let phase = Phase {
            kind: PhaseKind::Train,
            dataset: DatasetId(0),
            sampler: Arc::new(Shuffle::new(SAMPLES, 11).unwrap()),
            batch_size: Some(8),
            drop_last: false,
        };
        let schedule = Arc::new(Schedule::new(3, vec![phase]).unwrap());
        let start =
            Position { schedule: schedule.fingerprint(), epoch: 0, phase: 0, consumed: self.consumed };
        Run::resume(schedule, Deal::Torch, self.world_size, Rank(rank), &start).unwrap()
    }

    /// The plan, and the blocks of all ranks.
    fn plan(&self, rank: u32, level: &Level) -> (ClusterPlan, BlockTable) {
        let blocks = BlockTable::of_all(&self.catalog, BLOCK).unwrap();
        assert_eq!(blocks.len() as u64, BLOCKS);
        let stores = (0..self.world_size).map(|id| CacheStore::new(StoreId(id), vec![level.clone()]));
        let cluster = Cluster { stores: stores.collect(), ranks: Ranks::PerStore(1), ..Cluster::default() };
        let ranges = BlockRanges { dataset: DatasetId(0), ranges: &blocks.ranges() };
        let sizes = [self.catalog.sizes()];
        let plan = plan_cluster_in_blocks(&self.run(rank), &sizes, &cluster, ranges).unwrap();
        assert!(plan.is_in_blocks());
        (plan, blocks)
    }

    fn start(&self, rank: u32) -> Loader {
        let (source, cache): (_, Arc<dyn CacheTier>) = match self.disk {
            Some(disk) => (ReadSource::Disk, Arc::new(disk())),
            None => (ReadSource::Memory, Arc::new(MemoryTier::new(1 << 20))),
        };
        let (plan, blocks) = self.plan(rank, &Level::new("cache", 1 << 20, cache.footprint()));
        let others = PeerGroup {
            peers: Arc::new(FakePeers { network: Arc::clone(&self.network), rank: Rank(rank) }),
            stores: (0..self.world_size).map(StoreId).collect(),
            served: Arc::new([]),
            budget: self.budget,
        };
        // Only blocks are joined.
        let stack = Stack::bare().with_merge(Some(MergePolicy::default().with_bounds(BLOCK, 0.0)));
        let origin = stack.wrap(Arc::new(self.origin.clone()));
        let owned = blocks.owned(DatasetId(0), &plan, rank as usize);
        let parts = LoaderParts {
            run: self.run(rank),
            plan: LocalPlan::Cluster { plan: Arc::new(plan), store: rank as usize, is_linked: false },
            others: Some(others),
            locality: None,
            warm: false,
            datasets: vec![Dataset::new(self.catalog.clone(), origin).with_blocks(owned)],
            caches: vec![(source, cache)],
            buffers: Arc::new(HeapBuffers),
            look_ahead: self.look_ahead,
            on_error: OnError::Fail,
        };
        Loader::start(parts, &Handle::current())
    }

    fn expected(&self, rank: u32) -> Vec<SampleId> {
        let run = self.run(rank);
        let of_pass = |pass: foreread_oracle::Pass| {
            let stream = run.stream(&pass).unwrap();
            (0..stream.len()).map(move |index| stream.at(index)).collect::<Vec<_>>()
        };
        run.passes().flat_map(of_pass).collect()
    }

    /// Runs these ranks to their ends at once. Checks every byte in order. Returns the requests and
    /// bytes of the origin.
    async fn check(&self, ranks: &[u32]) -> (u64, u64) {
        // All ranks serve until the last one has ended.
        let mut loaders: Vec<Loader> = ranks.iter().map(|&rank| self.start(rank)).collect();
        let delivered = join_all(loaders.iter_mut().map(async |loader| {
            let mut ids = Vec::new();
            while let Some(batch) = next(loader).await {
                ids.extend(checked(&batch.unwrap()));
            }
            ids
        }));
        for (&rank, ids) in ranks.iter().zip(delivered.await) {
            assert_eq!(ids, self.expected(rank), "rank {rank}");
        }
        (self.origin.requests.load(Relaxed), self.origin.bytes.load(Relaxed))
    }

    /// The samples that a rank owns.
    fn owned(&self, rank: u32) -> Vec<SampleKey> {
        let (plan, _) = self.plan(rank, &Level::new("cache", 1 << 20, MemoryTier::new(0).footprint()));
        let keys = (0..SAMPLES).map(|id| SampleKey::new(DatasetId(0), SampleId(id)));
        keys.filter(|&key| plan.owner(key).unwrap().store == rank as usize).collect()
    }

    /// Requests of other ranks for samples of rank 0, in the order of need.
    fn serve(&self, keys: impl IntoIterator<Item = SampleKey>) -> foreread_tier::PeerReplies {
        let serving = self.network.serving[0].get().and_then(Weak::upgrade).unwrap();
        let request = |(at, key)| PeerRequest { tag: at as u32, key, due: Tick(at) };
        serving.serve(Rank(1), (0..).zip(keys).map(request).collect())
    }
}

/// The answered samples until nothing has arrived for a while.
async fn answered(mut replies: foreread_tier::PeerReplies) -> usize {
    let mut answered = 0;
    while let Ok(Some(reply)) = timeout(Duration::from_secs(60), replies.next()).await {
        answered += usize::from(reply.answer().is_some_and(|(_, result)| result.is_ok()));
    }
    answered
}

#[tokio::test(start_paused = true)]
// semantics: RANK-38
async fn block_is_read_once_for_all_ranks() {
    // Three ranks repeat a sample, because they do not divide 200.
    for ranks in [2, 3, 4] {
        for (look_ahead, budget) in [(0, 0), (5_000, 10_000), (100_000, 1 << 20)] {
            let job = BlockJob { look_ahead, budget, ..BlockJob::new(ranks).await };
            let all: Vec<u32> = (0..ranks).collect();
            assert_eq!(job.check(&all).await, (BLOCKS, BLOCK_BYTES), "{ranks} ranks, {look_ahead} ahead");
        }
    }
}

#[tokio::test(start_paused = true)]
// semantics: RANK-38
async fn first_use_by_another_rank_reads_the_whole_block() {
    let job = BlockJob { look_ahead: 0, ..BlockJob::new(2).await };
    job.origin.silent.store(true, Relaxed);
    // Its first batch waits for ever: for one block, and for samples of rank 1, which does not run.
    let _stuck = job.start(0);
    tokio::time::sleep(Duration::from_secs(1)).await;
    job.origin.silent.store(false, Relaxed);
    let owned = job.owned(0);
    // One sample of each block, and then all samples of all blocks.
    let firsts: Vec<SampleKey> = owned.iter().copied().filter(|key| key.id.0 % 10 == 3).collect();
    let blocks = owned.len() / 10;
    assert_eq!(answered(job.serve(firsts)).await, blocks - 1);
    assert_eq!(job.origin.requests.load(Relaxed), blocks as u64 - 1);
    assert_eq!(answered(job.serve(owned)).await, 10 * (blocks - 1));
    assert_eq!(job.origin.requests.load(Relaxed), blocks as u64 - 1);
}

#[tokio::test(start_paused = true)]
// semantics: RANK-38
async fn failed_blocks_are_read_sample_by_sample_for_all_ranks() {
    let job = BlockJob::new(2).await;
    job.origin.no_blocks.store(true, Relaxed);
    let (requests, _) = job.check(&[0, 1]).await;
    assert!((SAMPLES + BLOCKS..=SAMPLES + 2 * BLOCKS).contains(&requests), "{requests}");
}

#[tokio::test(start_paused = true)]
// semantics: RANK-38
async fn dead_owner_of_blocks_costs_direct_reads_of_single_samples() {
    let job = BlockJob::new(2).await;
    job.network.unresponsive.lock().unwrap().push(1);
    let (requests, bytes) = job.check(&[0]).await;
    // Rank 0 keeps a second copy of each sample of the other rank from its first use on.
    let (used, foreign) = (job.expected(0), job.owned(1));
    let direct = foreign.iter().filter(|key| used.contains(&key.id)).count() as u64;
    assert_eq!(requests, BLOCKS / 2 + direct);
    assert_eq!(bytes, BLOCK_BYTES / 2 + direct * LENGTH as u64);
}

/// A rank that stops in its first epoch leaves its blocks to direct reads.
#[tokio::test(start_paused = true)]
// semantics: RANK-38
async fn owner_that_ends_early_holds_up_no_request_for_blocks() {
    let job = BlockJob { look_ahead: 2_000, ..BlockJob::new(2).await };
    let (mut one, mut other) = (job.start(0), job.start(1));
    for _ in 0..3 {
        checked(&next(&mut one).await.unwrap().unwrap());
        checked(&next(&mut other).await.unwrap().unwrap());
    }
    drop(other);
    let mut ids = Vec::new();
    while let Some(batch) = next(&mut one).await {
        ids.extend(checked(&batch.unwrap()));
    }
    assert_eq!(ids, job.expected(0)[3 * 8..]);
}

#[tokio::test(start_paused = true)]
// semantics: RANK-38
async fn resumed_first_epoch_reads_each_block_once() {
    for (ranks, consumed) in [(2, 96), (3, 101), (4, 199)] {
        let job = BlockJob { consumed, ..BlockJob::new(ranks).await };
        let all: Vec<u32> = (0..ranks).collect();
        assert_eq!(job.check(&all).await, (BLOCKS, BLOCK_BYTES), "{ranks} ranks after {consumed} samples");
    }
}

#[tokio::test(start_paused = true)]
// semantics: RANK-38
async fn disks_of_all_ranks_are_filled_by_blocks() {
    let job = BlockJob { disk: Some(|| StoredCache::new(1 << 20)), ..BlockJob::new(3).await };
    assert_eq!(job.check(&[0, 1, 2]).await, (BLOCKS, BLOCK_BYTES));
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-14
async fn stuck_disks_under_blocks_hang_no_rank() {
    let hanging: fn() -> StoredCache = || {
        let slow = StoredCache::new(1 << 20).with_latency(Duration::ZERO, Duration::from_secs(1));
        slow.with_write_behind(20 * LENGTH as u64, true)
    };
    for look_ahead in [0, 50_000] {
        let job = BlockJob { disk: Some(hanging), look_ahead, ..BlockJob::new(2).await };
        let (requests, _) = job.check(&[0, 1]).await;
        assert!(requests <= BLOCKS + 3 * SAMPLES, "{requests}");
    }
}

/// Blocks for other ranks have their own part of the budget.
#[tokio::test(start_paused = true)]
// semantics: RANK-30, RANK-38
async fn blocks_for_peers_are_bounded_and_delay_no_own_block() {
    // Half of the budget is two blocks. Without look-ahead, one block is read for the own trainer.
    let job = BlockJob { budget: 44_000, look_ahead: 0, ..BlockJob::new(2).await };
    job.origin.silent.store(true, Relaxed);
    let mut loader = job.start(0);
    assert!(timeout(Duration::from_secs(1), loader.next()).await.is_err());
    // With the direct reads of rank 1's samples, because that rank does not run.
    let own = job.origin.requested.load(Relaxed);
    // One sample of each block.
    let replies = job.serve(job.owned(0).into_iter().filter(|key| key.id.0 % 10 == 3));
    assert_eq!(answered(replies).await, 0);
    assert_eq!(job.origin.requested.load(Relaxed), own + 2);
}
