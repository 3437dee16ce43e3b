//! All reads in flight. Their results reach the driver as one stream.
//!
//! Work that grows with bytes or may block is kept off the driver's task. Reads of a network origin
//! run in one task per batch of reads. It receives, checks and copies the bytes on any thread of
//! the runtime. Reads with a checksum do so, too. The price is a hop between threads, well below a
//! microsecond per sample where many arrive together. Samples of caches and of the page cache
//! arrive without it. Their own threads have read them, and the hop would be a large part of their
//! cost.
//!
//! Before a read of the origin, its sample must be located. A catalog file has the names of files,
//! and a file server may be slow or never answer. Look-ups [run](crate::locate) on blocking
//! threads, [`LOOK_UPS_AT_ONCE`] at a time and in the order of need, so a look-up that hangs delays
//! only its own group. The price is a hop per group. Caches know samples by their keys and need no
//! look-up.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use foreread_tier::{ErrorKind, Tier, TierError};
use foreread_types::DatasetId;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, ReadyChunks, SelectAll};
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::dataset::Dataset;
use crate::locate::Locator;
use crate::read_queue::ReadQueue;
use crate::read_results::{
    LocatedRead, PendingRead, ReadResult, ReadsInFlight, begin, locate_by_key, locate_reads,
};

/// Results taken from one tier at once. A stream within a `SelectAll` costs an allocation per poll.
const CHUNK: usize = 64;

/// Samples that are looked up at once. A look-up that hangs or fails delays the others of its
/// group.
const LOOK_UPS_AT_ONCE: usize = 256;

/// A task yields after this many bytes, because a wake-up of the driver may be queued after it.
const BYTES_PER_TURN: u64 = 256 << 10;

/// Where results are checked and copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
    /// In the driver's own task.
    Driver,
    /// In a separate task.
    Task,
}

impl Executor {
    pub(crate) fn of_origin(origin: &dyn Tier) -> Self {
        let profile = origin.profile();
        if profile.kernel_cached || profile.in_process { Self::Driver } else { Self::Task }
    }

    /// The place for these reads. The driver computes no checksums.
    fn of(self, pending: &[PendingRead]) -> Self {
        if pending.iter().any(|pending| pending.check.is_some()) { Self::Task } else { self }
    }
}

/// The reads of all tiers. Dropping it ends them.
#[derive(Default)]
pub(crate) struct ActiveReads {
    /// Reads of caches.
    by_key: ReadsInFlight,
    /// Reads of origins that the driver polls itself.
    queues: BTreeMap<DatasetId, ReadQueue>,
    /// Look-ups of samples that will be queued.
    locating: FuturesUnordered<BoxFuture<'static, (DatasetId, Vec<LocatedRead>)>>,
    /// Reads in separate tasks.
    tasks: SelectAll<ReadyChunks<TaskReads>>,
    /// Results of tasks that were taken.
    ready: std::vec::IntoIter<ReadResult>,
    /// Results taken from the driver's own reads since tasks were last polled.
    in_a_row: usize,
}

/// The results of one task.
struct TaskReads {
    answers: UnboundedReceiver<ReadResult>,
    _task: AbortOnDrop,
}

impl ActiveReads {
    /// Starts reads of a cache. They have no checksum, so the driver polls them itself.
    pub(crate) fn begin_by_key(&mut self, cache: &dyn Tier, pending: &mut Vec<PendingRead>) {
        pending.sort_unstable_by_key(|pending| pending.tick);
        begin(cache, locate_by_key(pending.drain(..)), &mut self.by_key);
    }

    /// Starts reads of the origin of dataset `id`. Must be called within a runtime.
    pub(crate) fn begin_of_origin(
        &mut self,
        (id, dataset): (DatasetId, &Dataset),
        pending: &mut Vec<PendingRead>,
        at: Executor,
    ) {
        pending.sort_unstable_by_key(|pending| pending.tick);
        let locator = &dataset.locator;
        if !locator.may_block() {
            return match at.of(pending) {
                Executor::Driver => {
                    let locate_reads = locate_reads(pending.drain(..), |key| locator.locate(key.id));
                    self.queue(id, &dataset.origin).extend(locate_reads);
                }
                Executor::Task => {
                    let (locator, pending) = (locator.clone(), std::mem::take(pending));
                    let locate_reads =
                        async move { locate_reads(pending, |key| locator.locate(key.id)).collect() };
                    self.begin_task(Arc::clone(&dataset.origin), locate_reads);
                }
            };
        }
        while !pending.is_empty() {
            let piece: Vec<PendingRead> = pending.drain(..pending.len().min(LOOK_UPS_AT_ONCE)).collect();
            let at = at.of(&piece);
            self.begin_located((id, &dataset.origin), look_up(locator.clone(), piece), at);
        }
    }

    /// Starts the reads of a block, which become one request. A separate task copies the samples
    /// out of it. Must be called within a runtime.
    pub(crate) fn begin_block(&mut self, dataset: &Dataset, pending: Vec<PendingRead>) {
        let located = look_up(dataset.locator.clone(), pending);
        self.begin_task(Arc::clone(&dataset.origin), located);
    }

    fn queue(&mut self, id: DatasetId, origin: &Arc<dyn Tier>) -> &mut ReadQueue {
        self.queues.entry(id).or_insert_with(|| ReadQueue::new(Arc::clone(origin)))
    }

    /// Starts reads whose samples are being looked up.
    fn begin_located(
        &mut self,
        (id, origin): (DatasetId, &Arc<dyn Tier>),
        locate_reads: impl Future<Output = Vec<LocatedRead>> + Send + 'static,
        at: Executor,
    ) {
        match at {
            Executor::Driver => {
                self.queue(id, origin);
                self.locating.push(locate_reads.map(move |locate_reads| (id, locate_reads)).boxed());
            }
            Executor::Task => self.begin_task(Arc::clone(origin), locate_reads),
        }
    }

    fn begin_task(
        &mut self,
        tier: Arc<dyn Tier>,
        locate_reads: impl Future<Output = Vec<LocatedRead>> + Send + 'static,
    ) {
        // The channel is bounded by charges: its bytes count in the look-ahead or the budget of
        // blocks.
        let (sender, answers) = unbounded_channel();
        let task = tokio::spawn(run_task(tier, locate_reads, sender));
        self.tasks.push(TaskReads { answers, _task: AbortOnDrop(task.abort_handle()) }.ready_chunks(CHUNK));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
            && self.queues.values().all(ReadQueue::is_empty)
            && self.locating.is_empty()
            && self.tasks.is_empty()
            && self.ready.len() == 0
    }

    /// A result of the driver's own reads.
    fn poll_driver(&mut self, context: &mut Context<'_>) -> Option<ReadResult> {
        while let Poll::Ready(Some((id, locate_reads))) = self.locating.poll_next_unpin(context) {
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.extend(locate_reads);
            }
        }
        if let Poll::Ready(Some(answer)) = self.by_key.poll_next_unpin(context) {
            return Some(answer);
        }
        self.queues.values_mut().find_map(|queue| match queue.poll_next_unpin(context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => None,
        })
    }

    fn poll_tasks(&mut self, context: &mut Context<'_>) -> Option<ReadResult> {
        if let Poll::Ready(Some(chunk)) = self.tasks.poll_next_unpin(context) {
            self.ready = chunk.into_iter();
        }
        self.ready.next()
    }
}

impl Stream for ActiveReads {
    type Item = ReadResult;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReadResult>> {
        if let Some(answer) = self.ready.next() {
            return Poll::Ready(Some(answer));
        }
        // Tasks are polled in turn even if the driver's own reads never pause.
        let is_their_turn = self.in_a_row >= CHUNK;
        self.in_a_row = if is_their_turn { 0 } else { self.in_a_row + 1 };
        let answer = if is_their_turn {
            self.poll_tasks(context).or_else(|| self.poll_driver(context))
        } else {
            self.poll_driver(context).or_else(|| self.poll_tasks(context))
        };
        match answer {
            None if !self.is_empty() => Poll::Pending,
            answer => Poll::Ready(answer),
        }
    }
}

/// Runs the reads and sends their results.
async fn run_task(
    tier: Arc<dyn Tier>,
    locate_reads: impl Future<Output = Vec<LocatedRead>>,
    sender: UnboundedSender<ReadResult>,
) {
    let mut reads = ReadsInFlight::new();
    begin(&*tier, locate_reads.await, &mut reads);
    let mut worked = 0;
    while let Some(answer) = reads.next().await {
        worked += answer.result.as_ref().map_or(0, |sample| sample.len() as u64);
        if sender.send(answer).is_err() {
            return;
        }
        if worked >= BYTES_PER_TURN {
            worked = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Looks up samples of one dataset.
async fn look_up(locator: Locator, pending: Vec<PendingRead>) -> Vec<LocatedRead> {
    let ids = pending.iter().map(|pending| pending.key.id).collect();
    let mut places = locator.locate_all(ids).await.into_iter();
    let missing = || Err(TierError::new(ErrorKind::Closed, "catalog"));
    locate_reads(pending, |_| places.next().unwrap_or_else(missing)).collect()
}

impl Stream for TaskReads {
    type Item = ReadResult;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReadResult>> {
        self.answers.poll_recv(context)
    }
}

/// Ends a task when dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicU64, Ordering};

    use foreread_dataset::Catalog;
    use foreread_tier::{Budget, Object, ReadFuture, ReadRequest, Span, TierProfile};
    use foreread_tier_testing::FakeOrigin;
    use foreread_types::{SampleId, SampleKey, Tick};

    use super::*;
    use crate::locate::tests::FakeServer;

    /// A fake that counts its requests.
    #[derive(Debug)]
    struct CountingOrigin(FakeOrigin, AtomicU64);

    impl Tier for CountingOrigin {
        fn name(&self) -> &str {
            "counting"
        }

        fn profile(&self) -> &TierProfile {
            self.0.profile()
        }

        fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.read(request)
        }

        fn submit(&self) {
            self.0.submit();
        }
    }

    fn datasets(fake: &FakeOrigin, servers: &[FakeServer]) -> Arc<[Dataset]> {
        let objects: Vec<Object> = (0..fake.samples()).map(|id| fake.object(SampleId(id))).collect();
        let catalog = Catalog::from_objects("fake://", objects).unwrap();
        let of = |server: &FakeServer| Dataset {
            locator: Locator::new(server.clone()),
            ..Dataset::new(catalog.clone(), Arc::new(fake.clone()))
        };
        servers.iter().map(of).collect()
    }

    /// One hanging name delayed all reads of its turn, and four delayed all datasets.
    #[tokio::test]
    // semantics: FAIL-21
    async fn stuck_look_up_delays_its_group_and_no_other_dataset() {
        const SAMPLES: u64 = 6 * LOOK_UPS_AT_ONCE as u64;
        let fake = FakeOrigin::uniform(SAMPLES, 100);
        let servers = [FakeServer::new(fake.clone()), FakeServer::new(fake.clone())];
        let datasets = datasets(&fake, &servers);
        let budget = Budget::new(1 << 20);
        // The latest uses come first, and datasets alternate.
        let pending = (0..2 * SAMPLES).rev().map(|tick| {
            let key = SampleKey::new(DatasetId(tick as u32 % 2), SampleId(tick / 2));
            PendingRead::new(Tick(tick), key, 100, budget.charge(100))
        });
        let pending: Vec<PendingRead> = pending.collect();
        let of = |tick: u64| (tick % 2, tick / 2 / LOOK_UPS_AT_ONCE as u64);
        // In one group, then in one for each thread.
        for (at, stuck, held) in [(Executor::Driver, vec![0], 1), (Executor::Task, vec![0, 1, 2, 3], 6)] {
            servers[0].hang(stuck.iter().map(|piece| piece * LOOK_UPS_AT_ONCE as u64));
            let again = |one: &PendingRead| PendingRead::new(one.tick, one.key, 100, budget.charge(100));
            let mut reads = ActiveReads::default();
            for (id, dataset) in (0..).map(DatasetId).zip(&*datasets) {
                let mut of_this =
                    pending.iter().filter(|pending| pending.key.dataset == id).map(again).collect();
                reads.begin_of_origin((id, dataset), &mut of_this, at);
            }
            let mut received = HashSet::new();
            let free = (2 * SAMPLES) as usize - held * LOOK_UPS_AT_ONCE;
            while received.len() < free {
                received.insert(reads.next().await.unwrap().tick.0);
            }
            assert!(received.iter().all(|tick| of(*tick).0 == 1 || of(*tick).1 >= held as u64));
            while servers[0].hanging() < stuck.len() {
                tokio::task::yield_now().await;
            }
            servers[0].release();
            while let Some(answer) = reads.next().await {
                assert!(answer.result.is_ok() && received.insert(answer.tick.0));
            }
            assert_eq!(received.len() as u64, 2 * SAMPLES);
        }
        drop(pending);
        assert_eq!(budget.used(), 0);
    }

    /// The origin and the caches of a run lived as long as a hanging look-up.
    #[tokio::test]
    // semantics: FAIL-21
    async fn hanging_look_up_holds_only_the_catalog() {
        let fake = FakeOrigin::uniform(10, 100);
        let server = FakeServer::new(fake.clone());
        let datasets = datasets(&fake, std::slice::from_ref(&server));
        server.hang(0..10);
        let budget = Budget::new(1000);
        for at in [Executor::Driver, Executor::Task] {
            let key = SampleKey::new(DatasetId(0), SampleId(3));
            let mut pending = vec![PendingRead::new(Tick(0), key, 100, budget.charge(100))];
            let mut reads = ActiveReads::default();
            reads.begin_of_origin((DatasetId(0), &datasets[0]), &mut pending, at);
            let began = server.hanging();
            while server.hanging() == began {
                assert!(reads.next().now_or_never().is_none());
                tokio::task::yield_now().await;
            }
            drop(reads);
            while budget.used() > 0 || Arc::strong_count(&datasets[0].origin) > 1 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!((server.hanging(), Arc::strong_count(&datasets)), (2, 1));
        server.release();
    }

    /// A catalog on a file server that hangs once stopped the whole engine.
    #[tokio::test(start_paused = true)]
    // semantics: FAIL-21
    async fn stuck_catalog_delays_no_other_reads() {
        let fake = FakeOrigin::uniform(4, 100);
        let counted = Arc::new(CountingOrigin(fake.clone(), AtomicU64::new(0)));
        let tier: Arc<dyn Tier> = counted.clone();
        let budget = Budget::new(1000);
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let pending = |id| vec![PendingRead::new(Tick(id), key(id), 100, budget.charge(100))];
        let object = |key: SampleKey| -> Result<(Object, Span), _> { Ok((fake.object(key.id), Span::Whole)) };
        for at in [Executor::Driver, Executor::Task] {
            counted.1.store(0, Ordering::Relaxed);
            let (server, answer) = tokio::sync::oneshot::channel();
            let late = pending(0);
            let fake = fake.clone();
            let stuck = async move {
                let _: Result<(), _> = answer.await;
                locate_reads(late, |key| Ok((fake.object(key.id), Span::Whole))).collect()
            };
            let mut reads = ActiveReads::default();
            reads.begin_located((DatasetId(0), &tier), stuck, at);
            for id in 1..4 {
                let locate_reads = std::future::ready(locate_reads(pending(id), object).collect());
                reads.begin_located((DatasetId(0), &tier), locate_reads, at);
            }
            let mut ticks = Vec::new();
            while ticks.len() < 3 {
                ticks.push(reads.next().await.unwrap().tick.0);
            }
            ticks.sort_unstable();
            assert_eq!((ticks, counted.1.load(Ordering::Relaxed)), (vec![1, 2, 3], 3));
            // The late read is not lost.
            server.send(()).unwrap();
            assert_eq!(reads.next().await.unwrap().tick, Tick(0));
            assert!(reads.next().await.is_none());
        }
        assert_eq!(budget.used(), 0);
    }
}
