//! A store whose origin, disk and nodes a test decides.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadFuture, TierError};
use foreread_tier_testing::until;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use super::*;

pub(super) const LENGTH: u64 = 1000;
/// The bytes that a sample takes.
pub(super) const TAKEN: u64 = NodeStore::FOOTPRINT.of(LENGTH);

/// An origin that counts its reads. Samples begin with their id.
pub(super) struct TestOrigin {
    pub(super) reads: Mutex<Vec<u64>>,
    pub(super) gate: Arc<Semaphore>,
    pub(super) fails: AtomicBool,
    pub(super) parallelism: AtomicUsize,
    /// The samples of a block, if there are blocks, and whether they are units.
    pub(super) block: AtomicUsize,
    pub(super) in_units: AtomicBool,
    /// The blocks that were read, by the number of samples.
    pub(super) block_reads: Mutex<Vec<usize>>,
    /// Samples on their way to the disk.
    pub(super) disk_writes: Mutex<Vec<DiskWrite>>,
    pub(super) has_disk: AtomicBool,
    /// Samples that were requested from other nodes, with their positions.
    pub(super) node_reads: Mutex<Vec<(u64, u64)>>,
    /// Whether other nodes answer.
    pub(super) has_nodes: AtomicBool,
}

/// A sample that was given to the disk, and the call when it is there.
pub(super) type DiskWrite = (u64, Box<dyn FnOnce() + Send>);

impl fmt::Debug for TestOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestOrigin").field("reads", &self.reads).finish_non_exhaustive()
    }
}

impl TestOrigin {
    pub(super) fn new(open: usize) -> Arc<Self> {
        let gate = Arc::new(Semaphore::new(open));
        let (parallelism, has_nodes) = (AtomicUsize::new(1000), AtomicBool::new(true));
        let (fails, reads, block, in_units, block_reads) = Default::default();
        let (disk_writes, has_disk, node_reads) = Default::default();
        Arc::new(Self {
            reads,
            gate,
            fails,
            parallelism,
            block,
            in_units,
            block_reads,
            disk_writes,
            has_disk,
            node_reads,
            has_nodes,
        })
    }

    pub(super) fn reads(&self) -> usize {
        self.reads.lock().unwrap().len()
    }
}

pub(super) fn content(id: SampleId) -> Bytes {
    let mut bytes = id.0.to_le_bytes().to_vec();
    bytes.resize(LENGTH as usize, id.0 as u8);
    bytes.into()
}

impl SampleReader for TestOrigin {
    fn read(&self, id: SampleId, _: Tick) -> ReadFuture {
        self.reads.lock().unwrap().push(id.0);
        let gate = Arc::clone(&self.gate);
        let fails = self.fails.load(Ordering::Relaxed);
        Box::pin(async move {
            gate.acquire().await.map_err(|_| TierError::new(ErrorKind::Closed, "test"))?.forget();
            if fails { Err(TierError::new(ErrorKind::NotFound, "test")) } else { Ok(content(id)) }
        })
    }

    fn submit(&self) {}

    fn block(&self, id: SampleId) -> Option<SampleBlock> {
        let length = self.block.load(Ordering::Relaxed) as u64;
        let first = id.0 - id.0.checked_rem(length)?;
        let is_unit = self.in_units.load(Ordering::Relaxed);
        // All datasets here have a multiple of 100 samples.
        Some(SampleBlock { samples: first..first + length, bytes: length * LENGTH, is_unit })
    }

    fn read_block(&self, ids: Vec<SampleId>, order: Tick) -> BoxFuture<'static, Vec<ReadFuture>> {
        self.block_reads.lock().unwrap().push(ids.len());
        let reads = ids.into_iter().map(|id| self.read(id, order)).collect();
        Box::pin(async move {
            tokio::task::yield_now().await;
            reads
        })
    }

    fn parallelism(&self) -> usize {
        self.parallelism.load(Ordering::Relaxed)
    }

    fn has_disk(&self) -> bool {
        self.has_disk.load(Ordering::Relaxed)
    }

    fn read_node(&self, id: SampleId, _: StoreJob, due: Tick) -> ReadFuture {
        self.node_reads.lock().unwrap().push((id.0, due.0));
        let (gate, answers) = (Arc::clone(&self.gate), self.has_nodes.load(Ordering::Relaxed));
        Box::pin(async move {
            gate.acquire().await.map_err(|_| TierError::new(ErrorKind::Closed, "test"))?.forget();
            if answers { Ok(content(id)) } else { Err(TierError::new(ErrorKind::Transient, "test")) }
        })
    }

    fn keep_on_disk(&self, id: SampleId, _: Bytes, kept: Box<dyn FnOnce() + Send>) {
        self.disk_writes.lock().unwrap().push((id.0, kept));
    }
}

pub(super) struct Rig {
    pub(super) store: NodeStore,
    pub(super) origin: Arc<TestOrigin>,
    pub(super) dataset: DatasetId,
    /// Nanoseconds.
    pub(super) now: Arc<AtomicU64>,
    runtime: tokio::runtime::Runtime,
}

impl Rig {
    pub(super) fn new(samples: u64, kept: u64, open: usize) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let now = Arc::new(AtomicU64::new(0));
        let time = Arc::clone(&now);
        let clock = move || time.load(Ordering::Relaxed);
        let store = NodeStore::with_clock(kept * TAKEN, runtime.handle().clone(), clock);
        let origin = TestOrigin::new(open);
        let sizes = Sizes::uniform(samples, LENGTH);
        let dataset = store.add_dataset(&sizes, Arc::clone(&origin) as _, "test").unwrap();
        Self { store, origin, dataset, now, runtime }
    }

    /// Requests samples, the first of which is at `first`.
    pub(super) fn request(
        &self,
        job: StoreJob,
        first: u64,
        ids: &[u64],
    ) -> mpsc::Receiver<(u64, Result<Bytes, TierError>)> {
        let (sender, receiver) = mpsc::channel();
        let request = |(at, &id): (u64, &u64)| {
            let sender = sender.clone();
            StoreRequest {
                key: SampleKey::new(self.dataset, SampleId(id)),
                due: Tick(first + at),
                answer: Box::new(move |received| sender.send((id, received)).unwrap()),
            }
        };
        self.store.request(job, (0..).zip(ids).map(request).collect());
        receiver
    }

    /// Gets samples, and checks them.
    pub(super) fn get(&self, job: StoreJob, first: u64, ids: &[u64]) {
        let received: Vec<_> = self.request(job, first, ids).iter().collect();
        assert_eq!(received.len(), ids.len());
        for (id, bytes) in received {
            assert_eq!(bytes.unwrap(), content(SampleId(id)), "sample {id}");
        }
    }

    /// Has the origin answer so many reads, or all that there are, and returns when their requests
    /// are answered.
    pub(super) fn answer_reads(&self, most: u64) {
        let status = self.store.totals();
        let open = status.origins.iter().map(|origin| origin.reading + origin.queued).sum::<u64>();
        let after = status.counts.reads + open.min(most);
        self.origin.gate.add_permits(open.min(most) as usize);
        // The runtime has one thread, whose next task comes after the answers of the last one.
        let next_task = || self.runtime.block_on(self.runtime.spawn(std::future::ready(()))).unwrap();
        until("reads end", || {
            next_task();
            self.store.totals().counts.reads >= after
        });
        next_task();
    }

    /// Ends the runtime, and with it all reads.
    pub(super) fn end_runtime(self) {
        self.runtime.shutdown_background();
    }

    pub(super) fn announce(&self, job: StoreJob, first: u64, ids: &[u64]) {
        let ids = ids.iter().copied().map(SampleId);
        self.store.announce(job, self.dataset, Tick(first), NonZeroU32::MIN, ids).unwrap();
    }
}

/// The order of a job in an epoch.
pub(super) fn order(samples: u64, job: u64, epoch: u64) -> Vec<u64> {
    let mut ids: Vec<u64> = (0..samples).collect();
    let mut state = (job + 1) * 0x9e37_79b9 + epoch * 0x85eb_ca6b + 1;
    for at in (1..ids.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ids.swap(at, (state >> 33) as usize % (at + 1));
    }
    ids
}

/// The owners of a dataset's equal samples: other nodes, if `others` says so.
pub(super) struct Owners<F> {
    others: F,
    own_samples: u64,
}

impl<F: Fn(SampleId) -> bool + Send + Sync + 'static> Owners<F> {
    pub(super) fn of(samples: u64, others: F) -> Option<Arc<dyn NodeOwners>> {
        let own_samples = (0..samples).filter(|id| !others(SampleId(*id))).count() as u64;
        Some(Arc::new(Self { others, own_samples }))
    }
}

impl<F> fmt::Debug for Owners<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owners").field("own_samples", &self.own_samples).finish_non_exhaustive()
    }
}

impl<F: Fn(SampleId) -> bool + Send + Sync> NodeOwners for Owners<F> {
    fn owner(&self, sample: SampleId) -> NodeOwner {
        if (self.others)(sample) { NodeOwner::Other } else { NodeOwner::This }
    }

    fn own_samples(&self) -> u64 {
        self.own_samples
    }

    fn own_bytes(&self) -> u64 {
        self.own_samples * TAKEN
    }
}
