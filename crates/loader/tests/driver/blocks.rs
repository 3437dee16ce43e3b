//! Shards that the first epoch reads in blocks: each byte once, with any fault.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::{Catalog, IndexOptions};
use foreread_layers::{MergePolicy, Stack};
use foreread_loader::{Batch, BlockTable, Dataset, Loader, LoaderParts, OnError, ReadSource};
use foreread_memory::MemoryTier;
use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, LocalPlan, Plan, plan};
use foreread_tier::{
    Buffers, CacheTier, ErrorKind, HeapBuffers, LayoutsFuture, Object, ObjectLayout, OriginTier, ReadFuture,
    ReadRequest, Span, StorageServer, Tier, TierError, TierProfile,
};
use foreread_tier_testing::StoredCache;
use foreread_types::{DatasetId, Footprint, Rank, SampleId, SampleKey, StoreId};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::rig::next;

/// An origin of given objects, which counts requests and can fail.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    held: BTreeMap<Arc<str>, Bytes>,
    pub requests: Arc<AtomicU64>,
    pub bytes: Arc<AtomicU64>,
    /// Requests, answered or not.
    pub requested: Arc<AtomicU64>,
    /// Whether reads of more than a record fail.
    pub no_blocks: Arc<AtomicBool>,
    /// Whether it answers no request.
    pub silent: Arc<AtomicBool>,
    /// The length of stripes, if two servers hold them in turn.
    stripe: Option<u64>,
}

/// Stripes of this length on two servers in turn.
#[derive(Debug)]
struct Stripes(u64);

impl ObjectLayout for Stripes {
    fn server(&self, offset: u64) -> Option<StorageServer> {
        Some(StorageServer::Data((offset / self.0 % 2) as u32))
    }

    fn run(&self, offset: u64) -> Option<Range<u64>> {
        let start = offset / self.0 * self.0;
        Some(start..start + self.0)
    }

    fn is_released(&self) -> bool {
        false
    }
}

impl Objects {
    /// Four shards of fifty records, with their catalog.
    pub async fn shards() -> (Self, Catalog) {
        Self::striped(None).await
    }

    /// The same in stripes of this length.
    async fn striped(stripe: Option<u64>) -> (Self, Catalog) {
        let held = (0..SHARDS).map(|at| (format!("{at}.tfrecord").into(), shard(at))).collect();
        let origin = Self { held, stripe, ..Self::default() };
        let catalog = Catalog::index(&origin, "objects://", &IndexOptions::default(), |_| ()).await.unwrap();
        assert_eq!(catalog.len(), (SHARDS * RECORDS) as u64);
        for counter in [&origin.requests, &origin.bytes, &origin.requested] {
            counter.store(0, Ordering::Relaxed);
        }
        (origin, catalog)
    }
}

impl Tier for Objects {
    fn name(&self) -> &str {
        "objects"
    }

    fn profile(&self) -> &TierProfile {
        const PROFILE: TierProfile = TierProfile::new(8);
        &PROFILE
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let this = self.clone();
        self.requested.fetch_add(1, Ordering::Relaxed);
        if self.silent.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let held = &this.held[&request.object.path];
            let range = match &request.span {
                Span::Whole => 0..held.len(),
                Span::Range(range) => range.start as usize..range.end as usize,
                Span::Made(_) => unreachable!(),
            };
            this.requests.fetch_add(1, Ordering::Relaxed);
            this.bytes.fetch_add(range.len() as u64, Ordering::Relaxed);
            match this.no_blocks.load(Ordering::Relaxed) && range.len() > LENGTH {
                true => Err(TierError::new(ErrorKind::Transient, "objects")),
                false => Ok(Bytes::copy_from_slice(&held[range])),
            }
        })
    }

    fn submit(&self) {}
}

impl OriginTier for Objects {
    fn place(&self) -> &str {
        "objects"
    }

    fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let object = |(path, held): (&Arc<str>, &Bytes)| {
            Ok(Object { path: Arc::clone(path), size: held.len() as u64, version: None })
        };
        stream::iter(self.held.iter().map(object).collect::<Vec<_>>()).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let error = TierError::new(ErrorKind::NotFound, "objects").with_object(path);
        Box::pin(std::future::ready(Err(error)))
    }

    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        let stripe = self.stripe?;
        let layout = || Some(Box::new(Stripes(stripe)) as Box<dyn ObjectLayout>);
        let layouts = paths.iter().map(|_| layout()).collect();
        Some(Box::pin(std::future::ready(layouts)))
    }
}

pub const SHARDS: usize = 4;
pub const RECORDS: usize = 50;
pub const LENGTH: usize = 1_000;
pub const BLOCK: u64 = 10_200;

fn record(shard: usize, number: usize) -> Vec<u8> {
    let seed = (shard * RECORDS + number) as u64;
    (0..LENGTH as u64).map(|at| (seed * 31 + at * 7 + at / 256) as u8).collect()
}

/// A TFRecord file: per record its length, a checksum, the bytes, a checksum.
fn shard(number: usize) -> Bytes {
    let masked =
        |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let mut shard = Vec::new();
    for at in 0..RECORDS {
        let (length, data) = ((LENGTH as u64).to_le_bytes(), record(number, at));
        shard.extend(length);
        shard.extend(masked(&length));
        shard.extend(&data);
        shard.extend(masked(&data));
    }
    shard.into()
}

pub struct Rig {
    origin: Objects,
    catalog: Catalog,
    run: Run,
    plan: Arc<Plan>,
    caches: Vec<(ReadSource, Arc<dyn CacheTier>)>,
}

fn three_epochs(catalog: &Catalog) -> Run {
    let train = Phase {
        kind: PhaseKind::Train,
        dataset: DatasetId(0),
        sampler: Arc::new(Shuffle::new(catalog.len(), 7).unwrap()),
        batch_size: Some(8),
        drop_last: false,
    };
    Run::new(Arc::new(Schedule::new(3, vec![train]).unwrap()), Deal::Torch, 1, Rank(0)).unwrap()
}

impl Rig {
    pub async fn new(caches: Vec<(ReadSource, Arc<dyn CacheTier>, u64)>) -> Self {
        let (origin, catalog) = Objects::shards().await;
        let run = three_epochs(&catalog);
        let levels = caches
            .iter()
            .map(|(source, cache, room)| Level::new(source.as_str(), *room, cache.footprint()))
            .collect();
        let cluster = Cluster::single(CacheStore::new(StoreId(0), levels));
        let plan = Arc::new(plan(&run, &[catalog.sizes()], &cluster).unwrap());
        let caches = caches.into_iter().map(|(source, cache, _)| (source, cache)).collect();
        Self { origin, catalog, run, plan, caches }
    }

    fn blocks(&self) -> BlockTable {
        BlockTable::of(&self.catalog, DatasetId(0), &self.plan, BLOCK).unwrap()
    }

    fn start(&self, look_ahead: u64) -> Loader {
        self.start_in(Arc::new(HeapBuffers), look_ahead)
    }

    /// Starts with memory for samples from `buffers`.
    fn start_in(&self, buffers: Arc<dyn Buffers>, look_ahead: u64) -> Loader {
        // Only blocks are joined.
        let merge = MergePolicy::default().with_bounds(BLOCK, 0.0);
        let stack = Stack::bare().with_merge(Some(merge)).with_buffers(buffers);
        let origin = stack.wrap(Arc::new(self.origin.clone()));
        let parts = LoaderParts {
            run: self.run.clone(),
            plan: LocalPlan::Private(Arc::clone(&self.plan)),
            locality: None,
            warm: false,
            datasets: vec![Dataset::new(self.catalog.clone(), origin).with_blocks(self.blocks())],
            caches: self.caches.clone(),
            buffers: Arc::new(HeapBuffers),
            look_ahead,
            on_error: OnError::Fail,
        };
        Loader::start(parts, &Handle::current())
    }

    /// Runs to the end, checks every byte in order, and returns the requests and bytes of the
    /// origin.
    pub async fn check(&self, look_ahead: u64) -> (u64, u64) {
        self.check_in(Arc::new(HeapBuffers), look_ahead).await
    }

    pub async fn check_in(&self, buffers: Arc<dyn Buffers>, look_ahead: u64) -> (u64, u64) {
        let mut loader = self.start_in(buffers, look_ahead);
        let mut ids = Vec::new();
        while let Some(batch) = next(&mut loader).await {
            ids.extend(checked(&batch.unwrap()));
        }
        let expected: Vec<SampleId> = (self.run.passes())
            .flat_map(|pass| {
                let stream = self.run.stream(&pass).unwrap();
                (0..stream.len()).map(move |index| stream.at(index))
            })
            .collect();
        assert_eq!(ids, expected);
        (self.origin.requests.load(Ordering::Relaxed), self.origin.bytes.load(Ordering::Relaxed))
    }
}

/// A batch's ids, after a comparison of its bytes.
pub fn checked(batch: &Batch) -> Vec<SampleId> {
    let check = |(id, bytes): (SampleId, &[u8])| {
        assert_eq!(*bytes, record(id.0 as usize / RECORDS, id.0 as usize % RECORDS), "{id}");
        id
    };
    batch.iter().map(check).collect()
}

fn memory(room: u64) -> (ReadSource, Arc<dyn CacheTier>, u64) {
    (ReadSource::Memory, Arc::new(MemoryTier::new(room)), room)
}

/// The bytes of all records.
pub const ALL: u64 = (SHARDS * RECORDS * LENGTH) as u64;

#[tokio::test(start_paused = true)]
// semantics: CACHE-14
async fn each_byte_is_read_once_in_few_requests() {
    for look_ahead in [0, 5_000, 100_000, 1 << 20] {
        let rig = Rig::new(vec![memory(1 << 20)]).await;
        // Ten records and nine gaps of 16 bytes each.
        assert_eq!(rig.blocks().len(), SHARDS * RECORDS / 10);
        let (requests, bytes) = rig.check(look_ahead).await;
        assert_eq!((requests, bytes), (20, ALL + 20 * 9 * 16), "look-ahead {look_ahead}");
    }
}

#[tokio::test]
async fn blocks_keep_to_the_stripe_in_which_their_samples_begin() {
    const STRIPE: u64 = 6_000;
    let (_, catalog) = Objects::striped(Some(STRIPE)).await;
    let run = three_epochs(&catalog);
    let level = Level::new("memory", 1 << 30, Footprint::EXACT);
    let cluster = Cluster::single(CacheStore::new(StoreId(0), vec![level]));
    let plan = plan(&run, &[catalog.sizes()], &cluster).unwrap();
    let striped = BlockTable::of(&catalog, DatasetId(0), &plan, BLOCK).unwrap();
    let place = |id: u64| {
        let entry = catalog.entry(SampleId(id)).unwrap();
        let Span::Range(range) = entry.span else { panic!("a record is a range") };
        (entry.object.path, range.start / STRIPE)
    };
    let mut id = 0;
    for block in striped.ranges() {
        // Of a stripe with one sample there is no block.
        while id < block.start {
            assert!(id == 0 || place(id) != place(id - 1), "sample {id}");
            assert_ne!(place(id), place(id + 1), "sample {id}");
            id += 1;
        }
        assert!(block.clone().all(|id| place(id) == place(block.start)), "{block:?}");
        assert!(block.end == catalog.len() || place(block.end) != place(block.start), "{block:?}");
        id = block.end;
    }
    assert!(striped.samples() > catalog.len() * 9 / 10);
}

#[tokio::test(start_paused = true)]
async fn disk_cache_is_filled_by_blocks() {
    let disk: Arc<dyn CacheTier> = Arc::new(StoredCache::new(1 << 20));
    let rig = Rig::new(vec![(ReadSource::Disk, disk, 1 << 20)]).await;
    assert_eq!(rig.check(100_000).await.0, 20);
}

#[tokio::test(start_paused = true)]
async fn samples_without_a_place_are_read_by_their_extents() {
    // Some samples have a place, and none is alone in its block, because it would be read by its
    // extent.
    let rig = Rig::new(vec![memory(ALL * 2 / 5)]).await;
    let (requests, bytes) = rig.check(20_000).await;
    let without = (ALL - rig.plan.levels()[0].bytes) / LENGTH as u64;
    assert_eq!(requests, 3 * without + rig.blocks().len() as u64);
    let floor = ALL + 2 * without * LENGTH as u64;
    assert!(bytes >= floor && bytes <= floor + 20 * 9 * 16, "{bytes}, {floor}");
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-14
async fn failed_block_is_read_sample_by_sample() {
    let rig = Rig::new(vec![memory(1 << 20)]).await;
    rig.origin.no_blocks.store(true, Ordering::Relaxed);
    let (requests, _) = rig.check(100_000).await;
    assert_eq!(requests, 20 + (SHARDS * RECORDS) as u64);
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-14
async fn cached_samples_are_not_read_again_with_their_block() {
    let rig = Rig::new(vec![memory(1 << 20)]).await;
    // Eight of ten samples of every block.
    for id in (0..(SHARDS * RECORDS) as u64).filter(|id| id % 10 > 1) {
        let cache = &rig.caches[0].1;
        let bytes = Bytes::from(record(id as usize / RECORDS, id as usize % RECORDS));
        let room = cache.reserve(cache.footprint().of(LENGTH as u64)).unwrap();
        let budget = foreread_tier::Budget::new(1 << 20);
        let sample = foreread_tier::Sample::new(bytes, budget.charge(0));
        cache
            .store(room, SampleKey::new(DatasetId(0), SampleId(id)), sample)
            .now_or_never()
            .unwrap()
            .unwrap();
    }
    let (requests, bytes) = rig.check(100_000).await;
    assert_eq!((requests, bytes), (40, 40 * LENGTH as u64));
}

/// A disk that writes one sample per second, or none, with an origin that takes 2 ms per request.
fn disk(hangs: bool) -> StoredCache {
    let slow = StoredCache::new(1 << 20).with_latency(Duration::ZERO, Duration::from_secs(1));
    slow.with_write_behind(20 * LENGTH as u64, hangs)
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-14
async fn slow_disk_under_blocks_delays_no_epoch() {
    for look_ahead in [0, 5_000, 50_000, 1 << 20] {
        let slow = disk(false);
        let rig = Rig::new(vec![(ReadSource::Disk, Arc::new(slow.clone()), 1 << 20)]).await;
        let (mut loader, began) = (rig.start(look_ahead), Instant::now());
        for _ in 0..SHARDS * RECORDS / 8 {
            checked(&next(&mut loader).await.unwrap().unwrap());
        }
        // As long as all requests in sequence, without any write.
        let (requests, took) = (rig.origin.requests.load(Ordering::Relaxed), began.elapsed());
        assert!(took <= Duration::from_millis(2) * requests as u32, "{took:?} for {requests} requests");
        assert!(requests <= (SHARDS * RECORDS) as u64 + 20, "{requests} requests, {look_ahead} ahead");
        assert_eq!(slow.len(), 0, "not even one is written by then");
        assert!(slow.refused() > 0, "what does not wait to be written is not kept");
        // No store is retried: only the accepted samples are written.
        let refused = slow.refused();
        drop(loader);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((slow.len(), slow.refused()), (20, refused));
    }
}

/// A look-ahead of 128 MiB or less once hung for ever.
#[tokio::test(start_paused = true)]
// semantics: CACHE-14
async fn stuck_disk_under_blocks_hangs_no_run() {
    for look_ahead in [0, 5_000, 50_000, 1 << 20] {
        let stuck = disk(true);
        let rig = Rig::new(vec![(ReadSource::Disk, Arc::new(stuck.clone()), 1 << 20)]).await;
        let (requests, _) = rig.check(look_ahead).await;
        assert!(stuck.is_empty() && stuck.refused() > 0);
        assert!(requests <= 20 + 3 * (SHARDS * RECORDS) as u64, "{requests}");
        // The same with a disk that accepts everything and never finishes.
        let stuck = StoredCache::new(1 << 20).with_latency(Duration::ZERO, Duration::from_secs(1 << 30));
        let rig = Rig::new(vec![(ReadSource::Disk, Arc::new(stuck.clone()), 1 << 20)]).await;
        let (requests, _) = rig.check(look_ahead).await;
        assert!(stuck.is_empty() && requests <= 20 + 3 * (SHARDS * RECORDS) as u64, "{requests}");
    }
}

#[tokio::test(start_paused = true)]
async fn needed_block_alone_exceeds_the_budget() {
    // A quarter of it is less than one block. So one block is read at a time, and a second one for
    // the due batch.
    let rig = Rig::new(vec![memory(1 << 20)]).await;
    rig.origin.silent.store(true, Ordering::Relaxed);
    let mut loader = rig.start(44_000);
    assert!(tokio::time::timeout(Duration::from_secs(1), loader.next()).await.is_err());
    assert_eq!(rig.origin.requested.load(Ordering::Relaxed), 2);
}

/// An allocator returns a page and 16 bytes, where copies of page-cached memory are slow.
#[tokio::test(start_paused = true)]
async fn samples_out_of_blocks_begin_at_a_cache_line() {
    let rig = Rig::new(vec![memory(1 << 20)]).await;
    let mut loader = rig.start(100_000);
    while let Some(batch) = next(&mut loader).await {
        for (id, bytes) in batch.unwrap().iter() {
            assert!((bytes.as_ptr() as usize).is_multiple_of(64), "{id} at {:p}", bytes.as_ptr());
        }
    }
}
