//! Serves other ranks from the caches, from reads in flight, or by reading owned samples.
//!
//! A cached sample is answered at once, without a copy. An owned sample that is missing is read
//! from the origin now. The requesting rank is ahead of its trainer, so the read is ahead of the
//! first use anywhere. Reads for other ranks have their own budget ([`SampleServer::new`]). They
//! wait only for the origin, the cache and the network, never for another rank's reads or the
//! trainer. So two ranks cannot deadlock.
//!
//! A sample stays in that budget until it was sent, unless a memory tier holds and counts the same
//! bytes. One rank gets at limit a quarter, so that a rank which stops receiving does not delay the
//! others.
//!
//! A read continues when its requester has left, because the sample is owned here and will be
//! requested again.
//!
//! In a first epoch in [blocks](crate::blocks), the driver reads the block of a missing sample. Its
//! bytes have a separate part of the budget, so both parts wait for the origin alone.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use foreread_tier::{
    ANNOUNCE_INTERVAL, CacheTier, ErrorKind, Lookup, PeerReplies, PeerReply, PeerRequest, PeerService,
    ReadRequest, Sample, TierError,
};
use foreread_types::{Rank, SampleKey, Tick};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::dataset::Dataset;
use crate::driver::lifetime_in;
use crate::locate::location_by_key;
use crate::read_results::read_alone;
use crate::single_flight::{FlightResult, SingleFlight, Start, joined_result};

/// Budgets are counted in KiB, because a semaphore counts in 32 bits.
const KIB: u64 = 1024;

/// Concurrent cache reads for one batch of requests.
const MAX_CACHE_READS: usize = 64;

/// Serves the samples of this rank.
#[derive(Debug)]
pub(crate) struct SampleServer {
    flights: Arc<SingleFlight>,
    runtime: Handle,
    total: Arc<Semaphore>,
    /// The part of `total` for one rank, in KiB.
    share: u32,
    /// The remaining share of each rank.
    shares: Mutex<HashMap<Rank, Arc<Semaphore>>>,
}

/// One rank gets this fraction of the budget.
const PEER_SHARE: u32 = 4;

/// Permits of a rank's share and of the whole budget.
type BudgetPermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// The budget for reads on behalf of one rank.
#[derive(Clone, Debug)]
struct PeerBudget {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    share: u32,
}

impl PeerBudget {
    /// Waits for permits, of the rank's share first, so that a rank without a share takes nothing
    /// from the others. The semaphores are never closed.
    async fn take(&self, kib: u32) -> Option<BudgetPermits> {
        let own = Arc::clone(&self.own).acquire_many_owned(kib).await.ok()?;
        Some((own, Arc::clone(&self.all).acquire_many_owned(kib).await.ok()?))
    }
}

impl SampleServer {
    /// `budget` counts bytes that are being read for other ranks, or were read and not yet sent.
    pub(crate) fn new(flights: Arc<SingleFlight>, runtime: Handle, budget: u64) -> Self {
        let limit = u32::try_from(budget.div_ceil(KIB)).unwrap_or(u32::MAX).clamp(1, 1 << 28);
        let (total, share) = (Arc::new(Semaphore::new(limit as usize)), limit.div_ceil(PEER_SHARE));
        Self { flights, runtime, total, share, shares: Mutex::default() }
    }

    fn budget_of(&self, from: Rank) -> PeerBudget {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let own = shares.entry(from).or_insert_with(|| Arc::new(Semaphore::new(self.share as usize)));
        PeerBudget { own: Arc::clone(own), all: Arc::clone(&self.total), share: self.share }
    }

    /// Reads missing owned samples in the order of need, as the budget allows. A read starts only
    /// with its permits, or this rank's own trainer would wait for them. Reads that have not
    /// started end with the requester.
    fn read(&self, budget: PeerBudget, mut wanted: Vec<PeerRequest>) -> UnboundedReceiver<PeerReply> {
        wanted.sort_by_key(|requested| requested.due);
        let flights = Arc::clone(&self.flights);
        let (answers, receiver) = unbounded_channel();
        self.runtime.spawn(async move {
            let mut reads = FuturesUnordered::new();
            let mut announcements = Announcements::of(&flights, &wanted);
            for PeerRequest { tag, key, due } in wanted {
                let mut waiting = std::pin::pin!(budget.take(kib(flights.bytes(key), budget.share)));
                let permit = loop {
                    // Reads in flight free permits only if they are polled.
                    tokio::select! {
                        permit = &mut waiting => break permit,
                        Some(tag) = reads.next() => announcements.end(tag),
                        () = announcements.due() => announcements.send(&answers),
                    }
                };
                if answers.is_closed() {
                    break;
                }
                let (flights, answers) = (Arc::clone(&flights), answers.clone());
                reads.push(async move {
                    let received = read_one(&flights, key, due).await;
                    let answer = match flights.cache_of(key).map(|cache| cache.lookup(key)) {
                        // The cache counts it.
                        Some(Lookup::Ready(sample)) if received.is_ok() => PeerReply::Kept { tag, sample },
                        _ => done(tag, received.map(|bytes| with_permit(bytes, permit))),
                    };
                    // A closed receiver has left. The sample is cached all the same.
                    let _ = answers.send(answer);
                    tag
                });
            }
            loop {
                tokio::select! {
                    read = reads.next() => match read {
                        Some(tag) => announcements.end(tag),
                        None => break,
                    },
                    () = announcements.due() => announcements.send(&answers),
                }
            }
        });
        receiver
    }

    fn find(&self, key: SampleKey) -> Availability {
        let Some((_, bytes)) = Dataset::find(&self.flights.datasets, key) else {
            return Availability::Absent;
        };
        let level = self.flights.plan.level(key).map(|level| usize::from(level.0));
        // Samples that the node's agent keeps have a level, but no cache of this rank.
        let cache = level.and_then(|level| self.flights.caches.get(level));
        match cache.map(|cache| (cache, cache.lookup(key))) {
            Some((_, Lookup::Ready(sample))) => Availability::Ready(sample),
            Some((cache, Lookup::Stored)) => Availability::Stored(Arc::clone(cache), bytes),
            _ if self.flights.plan.owned(key).is_none() => Availability::Absent,
            _ => Availability::Owned,
        }
    }
}

/// The samples of a burst that are announced as being read again and again: those of origins that
/// wait for silent servers themselves. Another rank that read such a sample directly would wait for
/// the same server.
struct Announcements {
    open: BTreeSet<u32>,
    next: Instant,
}

impl Announcements {
    fn of(flights: &SingleFlight, wanted: &[PeerRequest]) -> Self {
        let waits = |requested: &&PeerRequest| {
            let dataset = Dataset::find(&flights.datasets, requested.key);
            dataset.is_some_and(|(dataset, _)| dataset.origin.profile().patience.is_some())
        };
        let open = wanted.iter().filter(waits).map(|requested| requested.tag).collect();
        Self { open, next: Instant::now() + ANNOUNCE_INTERVAL }
    }

    /// Waits for the next announcement. Never ends without open samples.
    async fn due(&self) {
        match self.open.is_empty() {
            true => std::future::pending().await,
            false => sleep_until(self.next).await,
        }
    }

    fn send(&mut self, answers: &UnboundedSender<PeerReply>) {
        self.next = Instant::now() + ANNOUNCE_INTERVAL;
        for &tag in &self.open {
            // A closed receiver has left.
            let _ = answers.send(PeerReply::Reading { tag });
        }
    }

    fn end(&mut self, tag: u32) {
        self.open.remove(&tag);
    }
}

/// Reads an owned sample with its block or alone, or joins its flight.
async fn read_one(flights: &Arc<SingleFlight>, key: SampleKey, due: Tick) -> FlightResult {
    flights.begin_block(key, due).await;
    // It may have been stored in the meantime.
    if let Some(cache) = flights.cache_of(key).filter(|cache| matches!(cache.lookup(key), Lookup::Stored))
        && let Ok(bytes) = fetch(&**cache, key, flights.bytes(key), due).await
    {
        return Ok(bytes);
    }
    match flights.begin(key) {
        Start::Ready(bytes) => Ok(bytes),
        Start::Join(result) => joined_result(result.await),
        Start::Lead(guard) => {
            let (of, _) = Dataset::find(&flights.datasets, key).ok_or_else(|| absent(key))?;
            let lifetime = lifetime_in(flights.cache_of(key));
            guard.complete(of.read(key, due, lifetime).await)
        }
    }
}

/// Where a requested sample is.
enum Availability {
    Ready(Sample),
    /// In a cache that has to be read, with its length.
    Stored(Arc<dyn CacheTier>, u64),
    /// Owned by this rank and not cached yet.
    Owned,
    Absent,
}

/// The permits for a sample of `bytes` bytes, at limit `limit`.
fn kib(bytes: u64, limit: u32) -> u32 {
    u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX).clamp(1, limit)
}

/// The same bytes, which hold `permit` until they are dropped.
fn with_permit(bytes: Bytes, permit: impl Send + 'static) -> Bytes {
    struct PermitBytes<P>(Bytes, P);
    impl<P> AsRef<[u8]> for PermitBytes<P> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(PermitBytes(bytes, permit))
}

fn done(tag: u32, result: FlightResult) -> PeerReply {
    PeerReply::Done { tag, result }
}

fn absent(key: SampleKey) -> TierError {
    TierError::new(ErrorKind::Absent, "engine").with_object(key.to_string())
}

impl PeerService for SampleServer {
    fn serve(&self, from: Rank, requested: Vec<PeerRequest>) -> PeerReplies {
        tracing::trace!(%from, samples = requested.len(), "samples requested");
        let (mut ready, mut wanted, mut cached) =
            (Vec::with_capacity(requested.len()), Vec::new(), Vec::new());
        for requested in requested {
            let PeerRequest { tag, key, .. } = requested;
            match self.find(key) {
                Availability::Ready(sample) => ready.push(PeerReply::Kept { tag, sample }),
                Availability::Absent => ready.push(done(tag, Err(absent(key)))),
                Availability::Stored(cache, bytes) => cached.push((requested, cache, bytes)),
                Availability::Owned => {
                    ready.push(PeerReply::Reading { tag });
                    wanted.push(requested);
                }
            }
        }
        let ready = futures::stream::iter(ready);
        if wanted.is_empty() && cached.is_empty() {
            return ready.boxed();
        }
        let budget = self.budget_of(from);
        let cache_budget = budget.clone();
        let fetched = futures::stream::iter(cached)
            .map(move |(PeerRequest { tag, key, due }, cache, bytes)| {
                let budget = cache_budget.clone();
                async move {
                    let permit = budget.take(kib(bytes, budget.share)).await;
                    let received = fetch(&*cache, key, bytes, due).await;
                    done(tag, received.map(|bytes| with_permit(bytes, permit)))
                }
            })
            .buffer_unordered(MAX_CACHE_READS);
        let mut reads = (!wanted.is_empty()).then(|| self.read(budget, wanted));
        let reads = futures::stream::poll_fn(move |context| match &mut reads {
            Some(reads) => reads.poll_recv(context),
            None => Poll::Ready(None),
        });
        ready.chain(futures::stream::select(reads, fetched)).boxed()
    }
}

/// Reads a sample from a cache, and removes it there if the cache has lost it. The requester then
/// reads it from the origin.
pub(crate) async fn fetch(cache: &dyn CacheTier, key: SampleKey, bytes: u64, due: Tick) -> FlightResult {
    let (object, span) = location_by_key(bytes);
    let received = read_alone(cache, ReadRequest::new(key, object, span, due)).await;
    if received.as_ref().is_err_and(|error| error.kind().is_loss()) {
        cache.remove(vec![key]).await;
    }
    received
}
