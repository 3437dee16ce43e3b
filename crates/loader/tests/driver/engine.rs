//! Work that the driver's task leaves to other tasks: processing of bytes, and blocking calls.

use std::collections::HashSet;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use foreread_dataset::Catalog;
use foreread_loader::ReadSource;
use foreread_memory::MemoryTier;
use foreread_tier::{
    Buffer, Buffers, CacheTier, Charge, HeapBuffers, Lookup, ReadFuture, ReadRequest, Sample, Tier,
    TierError, TierProfile,
};
use foreread_types::{Footprint, SampleId, SampleKey};
use futures::FutureExt;
use tokio::task::Id;

use crate::blocks;
use crate::rig::{Custom, Rig, mixed, next};

/// A memory tier that records which tasks look samples up. The first one is the driver.
#[derive(Debug)]
pub struct TaskRecordingCache {
    memory: MemoryTier,
    looked: Mutex<Vec<Id>>,
}

impl TaskRecordingCache {
    pub fn new(room: u64) -> Self {
        Self { memory: MemoryTier::new(room), looked: Mutex::default() }
    }

    fn engine(&self) -> Id {
        self.looked.lock().unwrap()[0]
    }
}

impl Tier for TaskRecordingCache {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn profile(&self) -> &TierProfile {
        self.memory.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.memory.read(request)
    }

    fn submit(&self) {
        self.memory.submit();
    }
}

#[async_trait]
impl CacheTier for TaskRecordingCache {
    fn footprint(&self) -> Footprint {
        self.memory.footprint()
    }

    fn read_memory(&self) -> Footprint {
        self.memory.read_memory()
    }

    fn keeps_memory(&self) -> bool {
        self.memory.keeps_memory()
    }

    fn lookup(&self, key: SampleKey) -> Lookup {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner).push(tokio::task::id());
        self.memory.lookup(key)
    }

    fn reserve(&self, bytes: u64) -> Option<Charge> {
        self.memory.reserve(bytes)
    }

    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
        self.memory.store(room, key, sample).await
    }

    async fn remove(&self, keys: Vec<SampleKey>) {
        self.memory.remove(keys).await;
    }
}

/// The driver's task once also decrypted, checked and copied the bytes.
#[tokio::test(start_paused = true)]
// semantics: FAIL-21
async fn network_reads_are_processed_off_the_driver_task() {
    let fake = mixed(64, 37, 1_000).with_latency(Duration::from_millis(5));
    let worked = Arc::new(Mutex::new(HashSet::new()));
    let (of, from) = (Arc::clone(&worked), fake.clone());
    let origin = Custom(move |request| {
        of.lock().unwrap().insert(tokio::task::id());
        let of = Arc::clone(&of);
        from.read(request).inspect(move |_| {
            of.lock().unwrap().insert(tokio::task::id());
        })
    });
    let cache = Arc::new(TaskRecordingCache::new(1 << 20));
    let rig = Rig::new(fake).origin(origin).cache(ReadSource::Memory, Arc::clone(&cache) as _, 1 << 20);
    rig.check_all(&mut rig.start()).await;
    let worked = worked.lock().unwrap();
    assert!(!worked.is_empty() && !worked.contains(&cache.engine()));
}

/// The driver once computed checksums and copies of eight mebibytes in one turn.
#[tokio::test(start_paused = true)]
// semantics: FAIL-21
async fn block_is_split_off_the_driver_task() {
    let cache = Arc::new(TaskRecordingCache::new(1 << 20));
    let rig = blocks::Rig::new(vec![(ReadSource::Memory, Arc::clone(&cache) as _, 1 << 20)]).await;
    let buffers = Arc::new(TaskRecordingBuffers::default());
    for look_ahead in [0, 5_000, 100_000] {
        rig.check_in(Arc::clone(&buffers) as _, look_ahead).await;
    }
    let copying = buffers.0.lock().unwrap();
    assert!(copying.len() >= 20 && !copying.contains(&cache.engine()), "{copying:?}");
}

/// Memory for copies, which records the tasks that make them.
#[derive(Debug, Default)]
struct TaskRecordingBuffers(Mutex<HashSet<Id>>);

impl Buffers for TaskRecordingBuffers {
    fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(tokio::task::id());
        HeapBuffers.allocate(length, align)
    }
}

/// The number of reads from files, sockets or pipes by this thread. `None` where the kernel does
/// not count them.
fn reads_of_this_thread() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("syscr: "))?.parse().ok()
}

/// File names are read from the catalog's file, and a file server may be slow.
#[test]
// semantics: FAIL-21
fn engine_thread_reads_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fake.foreread");
    let fake = mixed(500, 37, 5_000).with_latency(Duration::from_millis(1));
    let objects = (0..500).map(|id| fake.object(SampleId(id)));
    Catalog::from_objects("fake://", objects).unwrap().save(&path).unwrap();
    let catalog = Catalog::open(&path).unwrap();
    assert!(catalog.reads_entries(), "names are in the file");
    let memory = Arc::new(MemoryTier::new(200_000));
    let rig = Rig { catalog: Some(catalog), look_ahead: 100_000, ..Rig::new(fake) };
    let rig = rig.cache(ReadSource::Memory, memory, 200_000);
    // All its tasks run on this thread. Blocking work does not.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut loader = rig.start();
        let (mut batches, before) = (Vec::new(), reads_of_this_thread());
        while let Some(batch) = next(&mut loader).await {
            batches.push(batch.unwrap());
        }
        let (after, again) = (reads_of_this_thread(), reads_of_this_thread());
        let ids: Vec<SampleId> = batches.iter().flat_map(|batch| rig.check(batch)).collect();
        assert_eq!(ids, rig.ids());
        if let (Some(before), Some(after), Some(again)) = (before, after, again) {
            // The reads of the measurement itself.
            assert_eq!(after - before, again - after);
        }
    });
}
