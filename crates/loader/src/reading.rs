//! Reads under way: their answers reach the driver as one stream.
//!
//! What grows with bytes, and what may block, is done elsewhere, so that the task which decides does neither. What an origin
//! over a network sends is received, checked and copied by a task for each batch of reads, on whichever of the runtime's
//! threads is free; so is whatever has a checksum. The price is a hop between threads, well below a microsecond a sample
//! where many come together. Samples of caches and of the kernel's page cache come without it: their own threads have read
//! them, and the hop would be a part of what they take.
//!
//! Before it is read from the origin, a sample must be found: a catalog file has the names of files, and a file server may
//! take long to answer, or for ever. Such look-ups are [made](crate::locate) on blocking threads, [`PIECE`] at a time and in
//! the order of need, so that one that hangs holds up the reads of its piece alone. The price is a hop for each piece. Caches
//! and other ranks know samples by their keys, and are asked at once.

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

use crate::answers::{Answer, Answers, Located, Pending, begin, located, located_by_key};
use crate::dataset::Dataset;
use crate::locate::Locator;
use crate::queue::Queue;

/// How many answers of one tier are taken at once: a stream that is one of many costs an allocation each time it is asked.
const CHUNK: usize = 64;

/// How many samples are looked up in the catalog's file at once: a look-up that hangs or fails holds the others up.
const PIECE: usize = 256;

/// A task that works on bytes lets others have its thread after so many: a wake-up of the driver may wait behind it.
const TURN: u64 = 256 << 10;

/// Who works on answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// The driver's own task.
    Here,
    /// A task of their own.
    Aside,
}

impl Where {
    pub(crate) fn of_origin(origin: &dyn Tier) -> Self {
        if origin.profile().kernel_cached { Self::Here } else { Self::Aside }
    }

    /// Who works on the answers to these reads: a checksum is not computed by the driver.
    fn of(self, pending: &[Pending]) -> Self {
        if pending.iter().any(|pending| pending.check.is_some()) { Self::Aside } else { self }
    }
}

/// The answers of all tiers. Dropping it ends the reads.
#[derive(Default)]
pub(crate) struct Reads {
    /// Of caches and other ranks.
    by_key: Answers,
    /// Of origins whose answers the driver takes itself.
    queues: BTreeMap<DatasetId, Queue>,
    /// Samples that are being looked up, to be queued.
    locating: FuturesUnordered<BoxFuture<'static, (DatasetId, Vec<Located>)>>,
    /// Of tasks.
    aside: SelectAll<ReadyChunks<Aside>>,
    /// What tasks have answered.
    ready: std::vec::IntoIter<Answer>,
    /// How many of the driver's own answers have been taken since tasks were asked.
    in_a_row: usize,
}

/// The answers that a task takes.
struct Aside {
    answers: UnboundedReceiver<Answer>,
    _task: AbortOnDrop,
}

impl Reads {
    /// Begins reads of a cache or another rank. Within a runtime.
    pub(crate) fn begin_by_key(&mut self, tier: &Arc<dyn Tier>, pending: &mut Vec<Pending>) {
        pending.sort_unstable_by_key(|pending| pending.tick);
        match Where::Here.of(pending) {
            Where::Here => begin(&**tier, located_by_key(pending.drain(..)), &mut self.by_key),
            Where::Aside => {
                let located = located_by_key(std::mem::take(pending)).collect();
                self.begin_aside(Arc::clone(tier), std::future::ready(located));
            }
        }
    }

    /// Begins reads of the origin of dataset `id`. Within a runtime.
    pub(crate) fn begin_of_origin(
        &mut self,
        (id, dataset): (DatasetId, &Dataset),
        pending: &mut Vec<Pending>,
        at: Where,
    ) {
        pending.sort_unstable_by_key(|pending| pending.tick);
        let locator = &dataset.locator;
        if !locator.may_block() {
            return match at.of(pending) {
                Where::Here => {
                    let located = located(pending.drain(..), |key| locator.locate(key.id));
                    self.queue(id, &dataset.origin).extend(located);
                }
                Where::Aside => {
                    let (locator, pending) = (locator.clone(), std::mem::take(pending));
                    let located = async move { located(pending, |key| locator.locate(key.id)).collect() };
                    self.begin_aside(Arc::clone(&dataset.origin), located);
                }
            };
        }
        while !pending.is_empty() {
            let piece: Vec<Pending> = pending.drain(..pending.len().min(PIECE)).collect();
            let at = at.of(&piece);
            self.begin_located((id, &dataset.origin), look_up(locator.clone(), piece), at);
        }
    }

    /// Begins reads that are to be one request. They are copied out of that, by a task of their own. Within a runtime.
    pub(crate) fn begin_block(&mut self, dataset: &Dataset, pending: Vec<Pending>) {
        self.begin_aside(Arc::clone(&dataset.origin), look_up(dataset.locator.clone(), pending));
    }

    fn queue(&mut self, id: DatasetId, origin: &Arc<dyn Tier>) -> &mut Queue {
        self.queues.entry(id).or_insert_with(|| Queue::new(Arc::clone(origin)))
    }

    /// Begins reads of samples that are being looked up.
    fn begin_located(
        &mut self,
        (id, origin): (DatasetId, &Arc<dyn Tier>),
        located: impl Future<Output = Vec<Located>> + Send + 'static,
        at: Where,
    ) {
        match at {
            Where::Here => {
                self.queue(id, origin);
                self.locating.push(located.map(move |located| (id, located)).boxed());
            }
            Where::Aside => self.begin_aside(Arc::clone(origin), located),
        }
    }

    fn begin_aside(
        &mut self,
        tier: Arc<dyn Tier>,
        located: impl Future<Output = Vec<Located>> + Send + 'static,
    ) {
        // What waits in it is bounded: its bytes are charged to the look-ahead or to blocks.
        let (sender, answers) = unbounded_channel();
        let task = tokio::spawn(read_aside(tier, located, sender));
        self.aside.push(Aside { answers, _task: AbortOnDrop(task.abort_handle()) }.ready_chunks(CHUNK));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
            && self.queues.values().all(Queue::is_empty)
            && self.locating.is_empty()
            && self.aside.is_empty()
            && self.ready.len() == 0
    }

    /// An answer that the driver takes itself.
    fn poll_here(&mut self, context: &mut Context<'_>) -> Option<Answer> {
        while let Poll::Ready(Some((id, located))) = self.locating.poll_next_unpin(context) {
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.extend(located);
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

    fn poll_aside(&mut self, context: &mut Context<'_>) -> Option<Answer> {
        if let Poll::Ready(Some(chunk)) = self.aside.poll_next_unpin(context) {
            self.ready = chunk.into_iter();
        }
        self.ready.next()
    }
}

impl Stream for Reads {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        if let Some(answer) = self.ready.next() {
            return Poll::Ready(Some(answer));
        }
        // Tasks have their turn although there is always an answer here.
        let is_their_turn = self.in_a_row >= CHUNK;
        self.in_a_row = if is_their_turn { 0 } else { self.in_a_row + 1 };
        let answer = if is_their_turn {
            self.poll_aside(context).or_else(|| self.poll_here(context))
        } else {
            self.poll_here(context).or_else(|| self.poll_aside(context))
        };
        match answer {
            None if !self.is_empty() => Poll::Pending,
            answer => Poll::Ready(answer),
        }
    }
}

/// Sends the answers of a tier.
async fn read_aside(
    tier: Arc<dyn Tier>,
    located: impl Future<Output = Vec<Located>>,
    sender: UnboundedSender<Answer>,
) {
    let mut reads = Answers::new();
    begin(&*tier, located.await, &mut reads);
    let mut worked = 0;
    while let Some(answer) = reads.next().await {
        worked += answer.result.as_ref().map_or(0, |sample| sample.len() as u64);
        if sender.send(answer).is_err() {
            return;
        }
        if worked >= TURN {
            worked = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Looks up samples of one dataset.
async fn look_up(locator: Locator, pending: Vec<Pending>) -> Vec<Located> {
    let ids = pending.iter().map(|pending| pending.key.id).collect();
    let mut places = locator.locate_all(ids).await.into_iter();
    let missing = || Err(TierError::new(ErrorKind::Closed, "catalog"));
    located(pending, |_| places.next().unwrap_or_else(missing)).collect()
}

impl Stream for Aside {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
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
    use crate::locate::tests::Server;

    /// A fake that counts what it is asked.
    #[derive(Debug)]
    struct Asked(FakeOrigin, AtomicU64);

    impl Tier for Asked {
        fn name(&self) -> &str {
            "asked"
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

    fn datasets(fake: &FakeOrigin, servers: &[Server]) -> Arc<[Dataset]> {
        let objects: Vec<Object> = (0..fake.samples()).map(|id| fake.object(SampleId(id))).collect();
        let catalog = Catalog::from_objects("fake://", objects).unwrap();
        let of = |server: &Server| Dataset {
            locator: Locator::new(server.clone()),
            ..Dataset::new(catalog.clone(), Arc::new(fake.clone()))
        };
        servers.iter().map(of).collect()
    }

    /// A name that hung held up all reads of its turn, and four held up all datasets.
    #[tokio::test]
    // semantics: FAIL-21
    async fn stuck_name_holds_up_its_piece_and_no_other_dataset() {
        const SAMPLES: u64 = 6 * PIECE as u64;
        let fake = FakeOrigin::uniform(SAMPLES, 100);
        let servers = [Server::new(fake.clone()), Server::new(fake.clone())];
        let datasets = datasets(&fake, &servers);
        let budget = Budget::new(1 << 20);
        // What is needed last comes first, and datasets in turn.
        let pending = (0..2 * SAMPLES).rev().map(|tick| {
            let key = SampleKey::new(DatasetId(tick as u32 % 2), SampleId(tick / 2));
            Pending::new(Tick(tick), key, 100, budget.charge(100))
        });
        let pending: Vec<Pending> = pending.collect();
        let of = |tick: u64| (tick % 2, tick / 2 / PIECE as u64);
        // In one piece, then in one for each thread.
        for (at, stuck, held) in [(Where::Here, vec![0], 1), (Where::Aside, vec![0, 1, 2, 3], 6)] {
            servers[0].hang(stuck.iter().map(|piece| piece * PIECE as u64));
            let again = |one: &Pending| Pending::new(one.tick, one.key, 100, budget.charge(100));
            let mut reads = Reads::default();
            for (id, dataset) in (0..).map(DatasetId).zip(&*datasets) {
                let mut of_this =
                    pending.iter().filter(|pending| pending.key.dataset == id).map(again).collect();
                reads.begin_of_origin((id, dataset), &mut of_this, at);
            }
            let mut came = HashSet::new();
            let free = (2 * SAMPLES) as usize - held * PIECE;
            while came.len() < free {
                came.insert(reads.next().await.unwrap().tick.0);
            }
            assert!(came.iter().all(|tick| of(*tick).0 == 1 || of(*tick).1 >= held as u64));
            while servers[0].hanging() < stuck.len() {
                tokio::task::yield_now().await;
            }
            servers[0].release();
            while let Some(answer) = reads.next().await {
                assert!(answer.result.is_ok() && came.insert(answer.tick.0));
            }
            assert_eq!(came.len() as u64, 2 * SAMPLES);
        }
        drop(pending);
        assert_eq!(budget.used(), 0);
    }

    /// The origin and the caches of a run lived as long as a look-up that hung.
    #[tokio::test]
    // semantics: FAIL-21
    async fn look_up_that_hangs_keeps_the_catalog_alone() {
        let fake = FakeOrigin::uniform(10, 100);
        let server = Server::new(fake.clone());
        let datasets = datasets(&fake, std::slice::from_ref(&server));
        server.hang(0..10);
        let budget = Budget::new(1000);
        for at in [Where::Here, Where::Aside] {
            let key = SampleKey::new(DatasetId(0), SampleId(3));
            let mut pending = vec![Pending::new(Tick(0), key, 100, budget.charge(100))];
            let mut reads = Reads::default();
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
    async fn stuck_catalog_holds_up_no_other_reads() {
        let fake = FakeOrigin::uniform(4, 100);
        let asked = Arc::new(Asked(fake.clone(), AtomicU64::new(0)));
        let tier: Arc<dyn Tier> = asked.clone();
        let budget = Budget::new(1000);
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let pending = |id| vec![Pending::new(Tick(id), key(id), 100, budget.charge(100))];
        let object = |key: SampleKey| -> Result<(Object, Span), _> { Ok((fake.object(key.id), Span::Whole)) };
        for at in [Where::Here, Where::Aside] {
            asked.1.store(0, Ordering::Relaxed);
            let (server, answer) = tokio::sync::oneshot::channel();
            let late = pending(0);
            let fake = fake.clone();
            let stuck = async move {
                let _: Result<(), _> = answer.await;
                located(late, |key| Ok((fake.object(key.id), Span::Whole))).collect()
            };
            let mut reads = Reads::default();
            reads.begin_located((DatasetId(0), &tier), stuck, at);
            for id in 1..4 {
                let located = std::future::ready(located(pending(id), object).collect());
                reads.begin_located((DatasetId(0), &tier), located, at);
            }
            let mut ticks = Vec::new();
            while ticks.len() < 3 {
                ticks.push(reads.next().await.unwrap().tick.0);
            }
            ticks.sort_unstable();
            assert_eq!((ticks, asked.1.load(Ordering::Relaxed)), (vec![1, 2, 3], 3));
            // Not lost either.
            server.send(()).unwrap();
            assert_eq!(reads.next().await.unwrap().tick, Tick(0));
            assert!(reads.next().await.is_none());
        }
        assert_eq!(budget.used(), 0);
    }
}
