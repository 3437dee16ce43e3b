//! Samples that this rank owns: read from the origin once, whoever asks first.
//!
//! In a run of many ranks a sample is wanted by the rank's own trainer and by other ranks, in any order and at once. The
//! flights stands between both and the origin. A sample that it owns has at most one *flight*: whoever wants the sample
//! while it is being read waits for that read; when the bytes have come they are stored here, and the flight ends only
//! when the cache has them, so that there is no moment in which they are neither on their way nor kept. Samples of
//! others, and of nobody, pass through.
//!
//! # The price
//!
//! One look-up in a map under a lock for each read of an owned sample, which happens once a sample and run. And a sample
//! that is kept is charged twice for a moment: to its cache, and to the look-ahead of the trainer that waits for it. What a
//! flight holds that has landed is counted by the cache that takes it: a cache takes at once what it keeps in memory, and
//! what is on its way to a disk only as far as its own budget for that reaches. So flights have no budget of their own.

use std::collections::hash_map::Entry;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foreread_planner::LocalPlan;
use foreread_tier::{
    CacheTier, ErrorKind, Lookup, ReadFuture, ReadRequest, Sample, Tier, TierError, TierProfile,
};
use foreread_types::{KeyMap, SampleKey};
use tokio::sync::oneshot;

use crate::dataset::Dataset;
use crate::driver::{count_skip, spawn_store, store_sample};

/// What a flight brings.
pub(crate) type FlightResult = Result<Bytes, TierError>;

/// A sample on its way from the origin into a cache.
enum InFlight {
    /// Being read, for these beside whoever began it.
    Reading(Vec<oneshot::Sender<FlightResult>>),
    /// Here, and not yet in its cache.
    Landed(Bytes),
}

/// How a read of an owned sample begins.
pub(crate) enum Start {
    /// The caller is to read it, and to [`complete`](FlightGuard::complete) what came.
    Lead(FlightGuard),
    /// It is being read already.
    Join(oneshot::Receiver<FlightResult>),
    /// It is at hand.
    Ready(Bytes),
}

/// A flight that ends when this is dropped, whatever became of its sample. Dropped before it has landed, its waiters get an
/// error.
pub(crate) struct FlightGuard {
    flights: Arc<SingleFlight>,
    key: SampleKey,
    open: bool,
}

impl FlightGuard {
    /// Sends the result to all waiters, and keeps the bytes.
    pub(crate) fn complete(mut self, came: FlightResult) -> FlightResult {
        let of = self.flights.datasets.get(self.key.dataset.0 as usize);
        // Others will rely on it.
        let came = came.and_then(|bytes| of.map_or(Ok(bytes.clone()), |of| of.checked(self.key, bytes)));
        let mut flights = self.flights.flights();
        self.open = came.is_ok();
        let before = match &came {
            Ok(bytes) => flights.insert(self.key, InFlight::Landed(bytes.clone())),
            Err(_) => flights.remove(&self.key),
        };
        drop(flights);
        if let Some(InFlight::Reading(others)) = before {
            for other in others {
                // Whoever has gone wants nothing.
                let _ = other.send(came.clone());
            }
        }
        if let Ok(bytes) = came.clone() {
            spawn_store(async move { self.flights.store(self.key, bytes).await });
        }
        came
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

/// The samples that this rank owns, and their ways from the origin.
pub(crate) struct SingleFlight {
    pub(crate) plan: LocalPlan,
    pub(crate) datasets: Vec<Dataset>,
    pub(crate) caches: Vec<Arc<dyn CacheTier>>,
    flights: Mutex<KeyMap<InFlight>>,
}

impl std::fmt::Debug for SingleFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SingleFlight").field("flights", &self.flights().len()).finish_non_exhaustive()
    }
}

impl SingleFlight {
    pub(crate) fn new(plan: LocalPlan, datasets: Vec<Dataset>, caches: Vec<Arc<dyn CacheTier>>) -> Self {
        Self { plan, datasets, caches, flights: Mutex::default() }
    }

    /// No change of the map is made in more than one step.
    fn flights(&self) -> MutexGuard<'_, KeyMap<InFlight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a sample is; nothing if there is none of this number.
    pub(crate) fn bytes(&self, key: SampleKey) -> u64 {
        Dataset::find(&self.datasets, key).map_or(0, |(_, bytes)| bytes)
    }

    /// The cache that an owned sample belongs into.
    pub(crate) fn cache_of(&self, key: SampleKey) -> Option<&Arc<dyn CacheTier>> {
        self.caches.get(usize::from(self.plan.owned(key)?.0))
    }

    /// Begins to read an owned sample, unless it is on its way or here.
    pub(crate) fn begin(self: &Arc<Self>, key: SampleKey) -> Start {
        let mut flights = self.flights();
        let vacant = match flights.entry(key) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(mut flight) => {
                return match flight.get_mut() {
                    InFlight::Landed(bytes) => Start::Ready(bytes.clone()),
                    InFlight::Reading(others) => {
                        let (told, listen) = oneshot::channel();
                        others.push(told);
                        Start::Join(listen)
                    }
                };
            }
        };
        // A flight may have ended since the caller looked. (One that ended on a disk is read again: it is rare.)
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
            None => count_skip(&**cache),
        }
    }

    /// Reads a sample from its origin: an owned one in its flight, any other by itself.
    fn read(self: &Arc<Self>, origin: &dyn Tier, request: Arc<ReadRequest>) -> ReadFuture {
        if self.plan.owned(request.key).is_none() {
            return origin.read(request);
        }
        match self.begin(request.key) {
            Start::Ready(bytes) => Box::pin(ready(Ok(bytes))),
            Start::Join(landing) => Box::pin(async move { joined_result(landing.await) }),
            Start::Lead(guard) => {
                let read = origin.read(request);
                Box::pin(async move { guard.complete(read.await) })
            }
        }
    }
}

/// What became of a flight of somebody else's, who may have gone with it.
pub(crate) fn joined_result(came: Result<FlightResult, oneshot::error::RecvError>) -> FlightResult {
    came.unwrap_or_else(|_| Err(abandoned()))
}

fn abandoned() -> TierError {
    TierError::new(ErrorKind::Transient, "engine").with_detail("whoever read it has ended")
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
