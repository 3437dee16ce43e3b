//! Samples within shards: fields, empty samples, checksums.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use foreread_dataset::{Catalog, IndexOptions, SampleChecksum};
use foreread_loader::{Dataset, LoadErrorKind, Loader, LoaderParts, OnError};
use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Sequential};
use foreread_planner::{CacheStore, Cluster, Level, LocalPlan, plan};
use foreread_tier::{
    CacheTier, ErrorKind, HeapBuffers, Object, OriginTier, ReadFuture, ReadRequest, Span, Tier, TierError,
    TierProfile,
};
use foreread_types::{DatasetId, Rank, SampleId, StoreId};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use tokio::runtime::Handle;

use crate::rig::next;

/// An origin of these objects, which can return a wrong byte.
#[derive(Clone, Debug)]
struct ShardOrigin {
    objects: BTreeMap<&'static str, Vec<u8>>,
    profile: TierProfile,
    /// How many of the next reads get a wrong first byte.
    wrong: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
}

impl ShardOrigin {
    fn new<const N: usize>(objects: [(&'static str, Vec<u8>); N]) -> Self {
        let (wrong, reads) = Default::default();
        Self { objects: objects.into(), profile: TierProfile::new(4), wrong, reads }
    }
}

impl Tier for ShardOrigin {
    fn name(&self) -> &str {
        "origin"
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let Span::Range(range) = &request.span else { panic!("a part of a shard is a range") };
        assert!(!range.is_empty(), "empty ranges are not requested");
        let object = &self.objects[&*request.object.path];
        let mut bytes = object[range.start as usize..range.end as usize].to_vec();
        self.reads.fetch_add(1, Relaxed);
        if self.wrong.fetch_update(Relaxed, Relaxed, |wrong| wrong.checked_sub(1)).is_ok() {
            bytes[0] ^= 1;
        }
        Box::pin(std::future::ready(Ok(Bytes::from(bytes))))
    }

    fn submit(&self) {}
}

impl OriginTier for ShardOrigin {
    fn place(&self) -> &str {
        "origin"
    }

    fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let object = |(path, bytes): (&&str, &Vec<u8>)| {
            Ok(Object { path: (*path).into(), size: bytes.len() as u64, version: None })
        };
        stream::iter(self.objects.iter().map(object).collect::<Vec<_>>()).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let error = TierError::new(ErrorKind::NotFound, "origin").with_object(path);
        Box::pin(std::future::ready(Err(error)))
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

/// Two epochs in the catalog's order, read from `origin`, which may differ from the indexed one.
async fn start(indexed: &ShardOrigin, origin: ShardOrigin, on_error: OnError) -> (Catalog, Loader) {
    let catalog = Catalog::index(indexed, "/data", &IndexOptions::default(), |_| ()).await.unwrap();
    let phase = Phase {
        kind: PhaseKind::Train,
        dataset: DatasetId(0),
        sampler: Arc::new(Sequential::new(catalog.len()).unwrap()),
        batch_size: Some(2),
        drop_last: false,
    };
    let schedule = Arc::new(Schedule::new(2, vec![phase]).unwrap());
    let run = Run::new(schedule, Deal::Torch, 1, Rank(0)).unwrap();
    let memory: Arc<dyn CacheTier> = Arc::new(foreread_memory::MemoryTier::new(1 << 20));
    let level = Level::new("memory", 1 << 20, memory.footprint());
    let cluster =
        Cluster { look_ahead: 1 << 20, ..Cluster::single(CacheStore::new(StoreId(0), vec![level])) };
    let plan = Arc::new(plan(&run, &[catalog.sizes()], &cluster).unwrap());
    let parts = LoaderParts {
        run,
        plan: LocalPlan::Private(plan),
        locality: None,
        warm: false,
        datasets: vec![Dataset::new(catalog.clone(), Arc::new(origin))],
        caches: vec![(foreread_loader::ReadSource::Memory, memory)],
        buffers: Arc::new(HeapBuffers),
        look_ahead: 1 << 20,
        on_error,
    };
    (catalog, Loader::start(parts, &Handle::current()))
}

fn member(name: &str, data: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    block[156] = b'0';
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.extend_from_slice(data);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

fn record(data: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &sum(&length), data, &sum(data)].concat()
}

#[tokio::test(start_paused = true)]
// semantics: SHARD-11
async fn fields_are_slices_of_the_sample() {
    let parts =
        [member("x/1.jpg", b"picture"), member("x/1.CLS", b"7"), member("x/2.jpg", b""), vec![0; 1024]];
    let origin = ShardOrigin::new([("a.tar", parts.concat())]);
    let (_, mut loader) = start(&origin, origin.clone(), OnError::Fail).await;
    for _ in 0..2 {
        let batch = next(&mut loader).await.unwrap().unwrap();
        let samples: Vec<_> = batch.samples().collect();
        let [first, second] = &samples[..] else { panic!("{samples:?}") };
        assert_eq!((first.id(), first.key().unwrap().as_deref()), (SampleId(0), Some("x/1")));
        assert_eq!(first.fields(), [("jpg", Bytes::from("picture")), ("cls", Bytes::from("7"))]);
        let picture = first.field("jpg").unwrap();
        assert_eq!(picture.as_ptr(), first.bytes().as_ptr(), "shared, not copied");
        assert!(first.field("CLS").is_none() && first.field("png").is_none());
        // The second sample is empty.
        assert_eq!((second.key().unwrap().as_deref(), second.bytes().len()), (Some("x/2"), 0));
        assert_eq!(second.field("jpg"), Some(Bytes::new()));
    }
    assert!(next(&mut loader).await.is_none());
}

#[tokio::test(start_paused = true)]
// semantics: SHARD-10, CACHE-16
async fn record_with_a_wrong_checksum_is_corrupt() {
    let records = [record(b"first"), record(b""), record(b"third"), record(b"fourth")].concat();
    let good = ShardOrigin::new([("a.tfrecord", records.clone())]);
    let mut bytes = records;
    let third = 21 + 16 + 12;
    bytes[third] ^= 1;
    let (catalog, mut loader) =
        start(&good, ShardOrigin::new([("a.tfrecord", bytes.clone())]), OnError::Fail).await;
    let expected = SampleChecksum::Crc32c(crc32c::crc32c(b"third"));
    assert_eq!(catalog.checksum(SampleId(2)), Some(expected));
    let first = next(&mut loader).await.unwrap().unwrap();
    assert_eq!(first.samples().map(|sample| sample.bytes()).collect::<Vec<_>>(), ["first", ""]);
    let error = next(&mut loader).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), LoadErrorKind::Sample(ErrorKind::Corrupt));
    let text = error.to_string();
    for part in ["origin: a.tfrecord/2: corrupt", "5 bytes from byte 49 on", "skipped or substituted"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let (_, mut loader) = start(&good, ShardOrigin::new([("a.tfrecord", bytes)]), OnError::Skip).await;
    let mut ids = Vec::new();
    while let Some(batch) = next(&mut loader).await {
        ids.extend(batch.unwrap().iter().map(|(id, _)| id.0));
    }
    assert_eq!(ids, [0, 1, 3, 0, 1, 3]);
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-16
async fn corrupt_read_is_repeated_once() {
    let good = ShardOrigin::new([("a.tfrecord", [record(b"first"), record(b"second")].concat())]);
    let (_, mut loader) = start(&good, good.clone(), OnError::Fail).await;
    let indexed = good.reads.swap(0, Relaxed);
    assert!(indexed > 0);
    good.wrong.store(2, Relaxed);
    for _ in 0..2 {
        let batch = next(&mut loader).await.unwrap().unwrap();
        assert_eq!(batch.samples().map(|sample| sample.bytes()).collect::<Vec<_>>(), ["first", "second"]);
    }
    assert!(next(&mut loader).await.is_none());
    // Each read was wrong once. The second epoch comes from memory.
    assert_eq!((good.reads.load(Relaxed), loader.staged_bytes()), (4, 0));
    // Two mismatches are an error.
    let (_, mut loader) = start(&good, good.clone(), OnError::Fail).await;
    good.wrong.store(u64::MAX, Relaxed);
    let error = next(&mut loader).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), LoadErrorKind::Sample(ErrorKind::Corrupt));
}
