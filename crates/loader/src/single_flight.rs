//! Single flight for the samples that this rank owns: each is read from the origin once.
//!
//! The rank's own trainer and other ranks request owned samples in any order and at once. A sample
//! has at most one *flight*. Requests during the read wait for its result. The flight ends only
//! when the cache has stored the bytes, so a sample is always either in flight or cached. Reads of
//! samples that this rank does not own pass through.
//!
//! In a first epoch in [blocks](crate::blocks), a block's samples are all in flight while it is
//! read. A read for another rank first has the driver begin the sample's block, and then joins its
//! flight.
//!
//! # Price
//!
//! One map look-up under a lock per read of an owned sample, which happens once per sample and run.
//! A stored sample is charged twice for a moment, to its cache and to the waiting trainer's
//! look-ahead.
//!
//! Flights have no separate budget. A completed flight is counted by the cache: memory accepts it
//! at once, and a disk only within its own budget for pending writes.

use std::collections::hash_map::Entry;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foreread_planner::LocalPlan;
use foreread_tier::{
    CacheTier, ErrorKind, Lookup, ReadFuture, ReadRequest, Sample, Tier, TierError, TierProfile,
};
use foreread_types::{KeyMap, SampleKey, Tick};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::block_reads::BlockRequest;
use crate::dataset::Dataset;
use crate::driver::{count_skip, spawn_store, store_sample};

/// The result of a flight.
pub(crate) type FlightResult = Result<Bytes, TierError>;

/// A sample on its way from the origin into a cache.
enum InFlight {
    /// Being read, with these waiters in addition to the leader.
    Reading(Vec<oneshot::Sender<FlightResult>>),
    /// Read, and not yet in its cache.
    Completed(Bytes),
}

/// How a read of an owned sample starts.
pub(crate) enum Start {
    /// The caller reads it and calls [`complete`](FlightGuard::complete).
    Lead(FlightGuard),
    /// A read is in flight. This is its result.
    Join(oneshot::Receiver<FlightResult>),
    /// The sample is in memory.
    Ready(Bytes),
}

/// Ends the flight when dropped. If it was not completed, its waiters get an error.
pub(crate) struct FlightGuard {
    flights: Arc<SingleFlight>,
    key: SampleKey,
    open: bool,
}

impl FlightGuard {
    /// Sends the result to all waiters and stores the bytes.
    pub(crate) fn complete(mut self, received: FlightResult) -> FlightResult {
        let of = self.flights.datasets.get(self.key.dataset.0 as usize);
        // Waiters rely on the check.
        let received =
            received.and_then(|bytes| of.map_or(Ok(bytes.clone()), |of| of.checked(self.key, bytes)));
        let mut flights = self.flights.flights();
        self.open = received.is_ok();
        let before = match &received {
            Ok(bytes) => flights.insert(self.key, InFlight::Completed(bytes.clone())),
            Err(_) => flights.remove(&self.key),
        };
        drop(flights);
        if let Some(InFlight::Reading(waiters)) = before {
            for waiter in waiters {
                // A closed receiver has left.
                let _ = waiter.send(received.clone());
            }
        }
        if let Ok(bytes) = received.clone() {
            spawn_store(async move { self.flights.store(self.key, bytes).await });
        }
        received
    }
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        if self.open {
            let ended = self.flights.flights().remove(&self.key);
            drop(ended); // outside of the lock
        }
    }
}

/// The samples that this rank owns, and their flights.
pub(crate) struct SingleFlight {
    pub(crate) plan: LocalPlan,
    pub(crate) datasets: Vec<Dataset>,
    pub(crate) caches: Vec<Arc<dyn CacheTier>>,
    flights: Mutex<KeyMap<InFlight>>,
    /// To the driver, if it reads blocks.
    block_requests: Option<UnboundedSender<BlockRequest>>,
}

impl std::fmt::Debug for SingleFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SingleFlight").field("flights", &self.flights().len()).finish_non_exhaustive()
    }
}

impl SingleFlight {
    pub(crate) fn new(
        plan: LocalPlan,
        datasets: Vec<Dataset>,
        caches: Vec<Arc<dyn CacheTier>>,
        block_requests: Option<UnboundedSender<BlockRequest>>,
    ) -> Self {
        Self { plan, datasets, caches, flights: Mutex::default(), block_requests }
    }

    /// Has the driver read the block of an owned sample, unless the sample is in flight. Waits
    /// until the block's samples are in flight. Returns at once if there is no such block, or if
    /// the driver has ended.
    pub(crate) async fn begin_block(&self, key: SampleKey, due: Tick) {
        let Some(requests) = self.block_requests.as_ref().filter(|_| !self.flights().contains_key(&key))
        else {
            return;
        };
        let (answer, queued) = oneshot::channel();
        if requests.send(BlockRequest { key, due, answer }).is_ok()
            && let Ok(mut started) = queued.await
        {
            // It ends without a change.
            let _ = started.changed().await;
        }
    }

    /// Every change is made in one step, so a poisoned lock is usable.
    fn flights(&self) -> MutexGuard<'_, KeyMap<InFlight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length of a sample. Zero if there is no such sample.
    pub(crate) fn bytes(&self, key: SampleKey) -> u64 {
        Dataset::find(&self.datasets, key).map_or(0, |(_, bytes)| bytes)
    }

    /// The cache that the plan assigns to an owned sample.
    pub(crate) fn cache_of(&self, key: SampleKey) -> Option<&Arc<dyn CacheTier>> {
        self.caches.get(usize::from(self.plan.owned(key)?.0))
    }

    /// Starts to read an owned sample, unless it is in flight or in memory.
    pub(crate) fn begin(self: &Arc<Self>, key: SampleKey) -> Start {
        let mut flights = self.flights();
        let vacant = match flights.entry(key) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(mut flight) => {
                return match flight.get_mut() {
                    InFlight::Completed(bytes) => Start::Ready(bytes.clone()),
                    InFlight::Reading(waiters) => {
                        let (sender, receiver) = oneshot::channel();
                        waiters.push(sender);
                        Start::Join(receiver)
                    }
                };
            }
        };
        // A flight may have ended since the caller looked. (After a flight to a disk the sample is
        // read again, which is rare.)
        if let Some(Lookup::Ready(sample)) = self.cache_of(key).map(|cache| cache.lookup(key)) {
            return Start::Ready(sample.bytes());
        }
        vacant.insert(InFlight::Reading(Vec::new()));
        Start::Lead(FlightGuard { flights: Arc::clone(self), key, open: true })
    }

    async fn store(&self, key: SampleKey, bytes: Bytes) {
        let Some(cache) = self.cache_of(key) else { return };
        match cache.reserve(cache.footprint().of(bytes.len() as u64)) {
            Some(room) => store_sample(&**cache, room, key, Sample::uncharged(bytes)).await,
            None => count_skip(&**cache, key),
        }
    }

    /// Reads a sample from its origin, an owned one in a flight.
    fn read(self: &Arc<Self>, origin: &dyn Tier, request: Arc<ReadRequest>) -> ReadFuture {
        if self.plan.owned(request.key).is_none() {
            return origin.read(request);
        }
        match self.begin(request.key) {
            Start::Ready(bytes) => Box::pin(ready(Ok(bytes))),
            Start::Join(result) => Box::pin(async move { joined_result(result.await) }),
            Start::Lead(guard) => {
                let read = origin.read(request);
                Box::pin(async move { guard.complete(read.await) })
            }
        }
    }
}

/// The result of a joined flight, whose leader may have been dropped.
pub(crate) fn joined_result(received: Result<FlightResult, oneshot::error::RecvError>) -> FlightResult {
    received.unwrap_or_else(|_| Err(abandoned()))
}

fn abandoned() -> TierError {
    TierError::new(ErrorKind::Transient, "engine")
        .with_detail("the read that this request joined was dropped")
}

/// An origin whose owned samples are read in flights.
#[derive(Debug)]
pub(crate) struct SingleFlightOrigin {
    pub(crate) flights: Arc<SingleFlight>,
    pub(crate) origin: Arc<dyn Tier>,
}

impl Tier for SingleFlightOrigin {
    fn name(&self) -> &str {
        self.origin.name()
    }

    fn profile(&self) -> &TierProfile {
        self.origin.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.flights.read(&*self.origin, request)
    }

    fn submit(&self) {
        self.origin.submit();
    }
}
