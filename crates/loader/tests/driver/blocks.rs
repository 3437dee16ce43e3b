//! Shards that the first epoch reads in blocks: each byte once, whatever fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::{Catalog, IndexOptions};
use foreread_loader::{BlockTable, Dataset, Loader, OnError, Parts, Source};
use foreread_memory::MemoryTier;
use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
use foreread_planner::{Cluster, Level, LocalPlan, Plan, Store, plan};
use foreread_tier::{
    CacheTier, Completion, Completions, ErrorKind, Object, OriginTier, ReadRequest, Span, Tier, TierError,
    TierProfile,
};
use foreread_tier_testing::StoredCache;
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, StoreId};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;

use crate::rig::next;

/// A store of given objects, which counts what it is asked and fails as it is told.
#[derive(Clone, Debug, Default)]
struct Objects {
    held: BTreeMap<Arc<str>, Bytes>,
    requests: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    /// Whether reads of more than a record fail.
    no_blocks: Arc<AtomicBool>,
}

impl Tier for Objects {
    fn name(&self) -> &str {
        "objects"
    }

    fn profile(&self) -> &TierProfile {
        const PROFILE: TierProfile = TierProfile::new(8);
        &PROFILE
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        let this = self.clone();
        let answers = stream::iter(batch).then(move |request| {
            let this = this.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                let held = &this.held[&request.object.path];
                let range = match &request.span {
                    Span::Whole => 0..held.len(),
                    Span::Range(range) => range.start as usize..range.end as usize,
                };
                this.requests.fetch_add(1, Ordering::Relaxed);
                this.bytes.fetch_add(range.len() as u64, Ordering::Relaxed);
                let broken = this.no_blocks.load(Ordering::Relaxed) && range.len() > LENGTH;
                let result = match broken {
                    true => Err(TierError::new(ErrorKind::Transient, "objects")),
                    false => Ok(Bytes::copy_from_slice(&held[range])),
                };
                Completion { tag: request.tag, result }
            }
        });
        answers.boxed()
    }
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
}

const SHARDS: usize = 4;
const RECORDS: usize = 50;
const LENGTH: usize = 1_000;
const BLOCK: u64 = 10_200;

fn record(shard: usize, number: usize) -> Vec<u8> {
    let seed = (shard * RECORDS + number) as u64;
    (0..LENGTH as u64).map(|at| (seed * 31 + at * 7 + at / 256) as u8).collect()
}

/// TensorFlow's records: length, its checksum, the bytes, theirs.
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

struct Rig {
    origin: Objects,
    catalog: Catalog,
    run: Run,
    plan: Arc<Plan>,
    caches: Vec<(Source, Arc<dyn CacheTier>)>,
}

impl Rig {
    async fn new(caches: Vec<(Source, Arc<dyn CacheTier>, u64)>) -> Self {
        let held = (0..SHARDS).map(|at| (format!("{at}.tfrecord").into(), shard(at))).collect();
        let origin = Objects { held, ..Objects::default() };
        let catalog = Catalog::index(&origin, "objects://", &IndexOptions::default(), |_| ()).await.unwrap();
        assert_eq!(catalog.len(), (SHARDS * RECORDS) as u64);
        let train = Phase {
            kind: PhaseKind::Train,
            dataset: DatasetId(0),
            sampler: Arc::new(Shuffle::new(catalog.len(), 7).unwrap()),
            batch_size: Some(8),
            drop_last: false,
        };
        let run =
            Run::new(Arc::new(Schedule::new(3, vec![train]).unwrap()), Deal::Torch, 1, Rank(0)).unwrap();
        let levels = caches
            .iter()
            .map(|(source, cache, room)| Level::new(source.as_str(), *room, cache.footprint()))
            .collect();
        let cluster = Cluster::single(Store::new(StoreId(0), levels));
        let plan = Arc::new(plan(&run, &[catalog.sizes()], &cluster).unwrap());
        origin.requests.store(0, Ordering::Relaxed);
        origin.bytes.store(0, Ordering::Relaxed);
        let caches = caches.into_iter().map(|(source, cache, _)| (source, cache)).collect();
        Self { origin, catalog, run, plan, caches }
    }

    fn blocks(&self) -> BlockTable {
        BlockTable::of(&self.catalog, DatasetId(0), &self.plan, BLOCK).unwrap()
    }

    /// Runs to the end, checks every byte in order, and returns requests and bytes of the origin.
    async fn check(&self, look_ahead: u64) -> (u64, u64) {
        let parts = Parts {
            run: self.run.clone(),
            plan: LocalPlan::Alone(Arc::clone(&self.plan)),
            others: None,
            warm: false,
            datasets: vec![Dataset {
                catalog: self.catalog.clone(),
                origin: Arc::new(self.origin.clone()),
                blocks: self.blocks(),
            }],
            caches: self.caches.clone(),
            look_ahead,
            on_error: OnError::Fail,
        };
        let mut loader = Loader::start(parts, &Handle::current());
        let mut ids = Vec::new();
        while let Some(batch) = next(&mut loader).await {
            for (id, bytes) in batch.unwrap().iter() {
                let id = id.0 as usize;
                assert_eq!(bytes[..], record(id / RECORDS, id % RECORDS), "{id}");
                ids.push(SampleId(id as u64));
            }
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

fn memory(room: u64) -> (Source, Arc<dyn CacheTier>, u64) {
    (Source::Memory, Arc::new(MemoryTier::new(room)), room)
}

/// What all blocks take: the records in them and what lies between.
const ALL: u64 = (SHARDS * RECORDS * LENGTH) as u64;

#[tokio::test(start_paused = true)]
async fn each_byte_is_read_once_in_few_requests() {
    for look_ahead in [0, 5_000, 100_000, 1 << 20] {
        let rig = Rig::new(vec![memory(1 << 20)]).await;
        // Ten records and nine gaps of 16 bytes each.
        assert_eq!(rig.blocks().len(), SHARDS * RECORDS / 10);
        let (requests, bytes) = rig.check(look_ahead).await;
        assert_eq!((requests, bytes), (20, ALL + 20 * 9 * 16), "look-ahead {look_ahead}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_must_be_read_is_filled_by_blocks_too() {
    let disk: Arc<dyn CacheTier> = Arc::new(StoredCache::new(1 << 20));
    let rig = Rig::new(vec![(Source::Disk, disk, 1 << 20)]).await;
    assert_eq!(rig.check(100_000).await.0, 20);
}

#[tokio::test(start_paused = true)]
async fn samples_without_a_place_are_read_by_their_extents() {
    // Some of them have one.
    let rig = Rig::new(vec![memory(ALL / 2)]).await;
    let (requests, bytes) = rig.check(20_000).await;
    let without = (ALL - rig.plan.levels()[0].bytes) / LENGTH as u64;
    assert_eq!(requests, 3 * without + rig.blocks().len() as u64);
    let floor = ALL + 2 * without * LENGTH as u64;
    assert!(bytes >= floor && bytes <= floor + 20 * 9 * 16, "{bytes}, {floor}");
}

#[tokio::test(start_paused = true)]
async fn where_blocks_fail_samples_are_read_one_by_one() {
    let rig = Rig::new(vec![memory(1 << 20)]).await;
    rig.origin.no_blocks.store(true, Ordering::Relaxed);
    let (requests, _) = rig.check(100_000).await;
    assert_eq!(requests, 20 + (SHARDS * RECORDS) as u64);
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_run_left_is_not_read_again_with_its_block() {
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
