//! Serving other ranks: from the caches, from what is on its way, or by reading what this rank owns.
//!
//! Whatever is asked for and kept is answered at once, without a copy. What this rank owns and does not have is read from
//! the origin now: the asker is ahead of its trainer, so this is ahead of the first use anywhere. Reads for others have a
//! budget of their own ([`SampleServer::new`]); they wait for nothing but the origin, the cache and the way to those who asked
//! before, never for another rank's reads and never for the trainer, so two ranks cannot wait for each other.
//!
//! What was read stays in that budget until it has left, unless a memory tier holds the same bytes and counts them. One asker
//! has a quarter of it at most, so that one which takes nothing for a while does not hold up the others.
//!
//! A read that an asker no longer waits for goes on: the sample is owned here and will be asked for again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use foreread_tier::{
    Asked, CacheTier, ErrorKind, Lookup, ReadRequest, Sample, Serve, Served, Serving, TierError,
};
use foreread_types::{Rank, SampleKey, Tick};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::dataset::Dataset;
use crate::locate::location_by_key;
use crate::read_results::read_alone;
use crate::single_flight::{FlightResult, SingleFlight, Start, joined_result};

/// Budgets are counted in KiB, because a semaphore counts in 32 bits.
const KIB: u64 = 1024;

/// Reads from a cache that are under way at once for one batch.
const MAX_CACHE_READS: usize = 64;

/// What this rank does for others.
#[derive(Debug)]
pub(crate) struct SampleServer {
    flights: Arc<SingleFlight>,
    runtime: Handle,
    room: Arc<Semaphore>,
    /// What one asker may have of `room`, in KiB.
    share: u32,
    /// What each asker has left of its share.
    shares: Mutex<HashMap<Rank, Arc<Semaphore>>>,
}

/// What one asker may have: one that takes nothing for a while is not to hold up the others.
const PEER_SHARE: u32 = 4;

/// A part of the budget: of an asker's share, and of what all have.
type BudgetPermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// BudgetPermits for what is to be read for an asker.
#[derive(Clone, Debug)]
struct PeerBudget {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    share: u32,
}

impl PeerBudget {
    /// Waits for room: its own first, so that who has none takes nothing of the others'. They are never closed.
    async fn take(&self, kib: u32) -> Option<BudgetPermits> {
        let own = Arc::clone(&self.own).acquire_many_owned(kib).await.ok()?;
        Some((own, Arc::clone(&self.all).acquire_many_owned(kib).await.ok()?))
    }
}

impl SampleServer {
    /// `budget`: bytes that are being read for others, or were read and have not left, at a time.
    pub(crate) fn new(flights: Arc<SingleFlight>, runtime: Handle, budget: u64) -> Self {
        let most = u32::try_from(budget.div_ceil(KIB)).unwrap_or(u32::MAX).clamp(1, 1 << 28);
        let (room, share) = (Arc::new(Semaphore::new(most as usize)), most.div_ceil(PEER_SHARE));
        Self { flights, runtime, room, share, shares: Mutex::default() }
    }

    fn budget_of(&self, from: Rank) -> PeerBudget {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let own = shares.entry(from).or_insert_with(|| Arc::new(Semaphore::new(self.share as usize)));
        PeerBudget { own: Arc::clone(own), all: Arc::clone(&self.room), share: self.share }
    }

    /// Reads what this rank owns and does not have, in the order in which it is needed, as the budget allows. Nothing is
    /// begun before there is room for it, or the own trainer would wait behind what others ask for; and what has not
    /// been begun ends with the asker.
    fn read(&self, budget_of: PeerBudget, mut wanted: Vec<Asked>) -> UnboundedReceiver<Served> {
        wanted.sort_by_key(|asked| asked.due);
        let flights = Arc::clone(&self.flights);
        let (answers, listen) = unbounded_channel();
        self.runtime.spawn(async move {
            let mut reads = FuturesUnordered::new();
            for Asked { tag, key, due } in wanted {
                let mut waiting = std::pin::pin!(budget_of.take(kib(flights.bytes(key), budget_of.share)));
                let permit = loop {
                    // What is under way makes room only if somebody looks.
                    tokio::select! {
                        permit = &mut waiting => break permit,
                        Some(()) = reads.next() => {}
                    }
                };
                if answers.is_closed() {
                    break;
                }
                let (flights, answers) = (Arc::clone(&flights), answers.clone());
                reads.push(async move {
                    let came = read_one(&flights, key, due).await;
                    let answer = match flights.cache_of(key).map(|cache| cache.lookup(key)) {
                        // The cache counts it.
                        Some(Lookup::Ready(sample)) if came.is_ok() => Served::Kept { tag, sample },
                        _ => done(tag, came.map(|bytes| with_permit(bytes, permit))),
                    };
                    // Whoever has gone wants nothing; the sample is kept all the same.
                    let _ = answers.send(answer);
                });
            }
            while reads.next().await.is_some() {}
        });
        listen
    }

    fn find(&self, key: SampleKey) -> Availability {
        let Some((_, bytes)) = Dataset::find(&self.flights.datasets, key) else {
            return Availability::Nowhere;
        };
        let level = self.flights.plan.level(key).map(|level| usize::from(level.0));
        let Some(cache) = level.and_then(|level| self.flights.caches.get(level)) else {
            return Availability::Nowhere;
        };
        match cache.lookup(key) {
            Lookup::Ready(sample) => Availability::Here(sample),
            Lookup::Stored => Availability::Kept(Arc::clone(cache), bytes),
            Lookup::Absent if self.flights.plan.owned(key).is_none() => Availability::Nowhere,
            Lookup::Absent => Availability::Owned,
        }
    }
}

/// Reads an owned sample from the origin, or waits for whoever does.
async fn read_one(flights: &Arc<SingleFlight>, key: SampleKey, due: Tick) -> FlightResult {
    match flights.begin(key) {
        Start::Ready(bytes) => Ok(bytes),
        Start::Join(landing) => joined_result(landing.await),
        Start::Lead(guard) => {
            let (of, _) = Dataset::find(&flights.datasets, key).ok_or_else(|| absent(key))?;
            guard.complete(of.read(key, due).await)
        }
    }
}

/// What there is of a sample that was asked for.
enum Availability {
    Here(Sample),
    /// A cache wants to be read: so many bytes.
    Kept(Arc<dyn CacheTier>, u64),
    /// This rank owns it, and does not have it yet.
    Owned,
    Nowhere,
}

/// What reading a sample of so many bytes takes of a budget of `most` KiB.
fn kib(bytes: u64, most: u32) -> u32 {
    u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX).clamp(1, most)
}

/// The same bytes, which hold `permit` for as long as they live.
fn with_permit(bytes: Bytes, permit: impl Send + 'static) -> Bytes {
    struct PermitBytes<P>(Bytes, P);
    impl<P> AsRef<[u8]> for PermitBytes<P> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(PermitBytes(bytes, permit))
}

fn done(tag: u32, result: FlightResult) -> Served {
    Served::Done { tag, result }
}

fn absent(key: SampleKey) -> TierError {
    TierError::new(ErrorKind::Absent, "engine").with_object(key.to_string())
}

impl Serve for SampleServer {
    fn serve(&self, from: Rank, asked: Vec<Asked>) -> Serving {
        tracing::trace!(%from, samples = asked.len(), "asked for samples");
        let (mut at_once, mut wanted, mut kept) = (Vec::with_capacity(asked.len()), Vec::new(), Vec::new());
        for asked in asked {
            let Asked { tag, key, .. } = asked;
            match self.find(key) {
                Availability::Here(sample) => at_once.push(Served::Kept { tag, sample }),
                Availability::Nowhere => at_once.push(done(tag, Err(absent(key)))),
                Availability::Kept(cache, bytes) => kept.push((asked, cache, bytes)),
                Availability::Owned => {
                    at_once.push(Served::Reading { tag });
                    wanted.push(asked);
                }
            }
        }
        let at_once = futures::stream::iter(at_once);
        if wanted.is_empty() && kept.is_empty() {
            return at_once.boxed();
        }
        let budget_of = self.budget_of(from);
        let of_kept = budget_of.clone();
        let fetched = futures::stream::iter(kept)
            .map(move |(Asked { tag, key, due }, cache, bytes)| {
                let budget_of = of_kept.clone();
                async move {
                    let permit = budget_of.take(kib(bytes, budget_of.share)).await;
                    let came = fetch(&*cache, key, bytes, due).await;
                    done(tag, came.map(|bytes| with_permit(bytes, permit)))
                }
            })
            .buffer_unordered(MAX_CACHE_READS);
        let mut coming = (!wanted.is_empty()).then(|| self.read(budget_of, wanted));
        let coming = futures::stream::poll_fn(move |context| match &mut coming {
            Some(coming) => coming.poll_recv(context),
            None => Poll::Ready(None),
        });
        at_once.chain(futures::stream::select(coming, fetched)).boxed()
    }
}

/// Reads a sample of so many bytes from a cache. What the cache has lost it is told to forget, and the asker reads it: at its
/// next use here it comes from the origin.
pub(crate) async fn fetch(cache: &dyn CacheTier, key: SampleKey, bytes: u64, due: Tick) -> FlightResult {
    let (object, span) = location_by_key(bytes);
    let came = read_alone(cache, ReadRequest::new(key, object, span, due)).await;
    if came.as_ref().is_err_and(|error| error.kind().is_loss()) {
        cache.remove(vec![key]).await;
    }
    came
}
