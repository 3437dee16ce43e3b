//! Samples that this rank owns: read from the origin once, whoever asks first.
//!
//! In a run of many ranks a sample is wanted by the rank's own trainer and by other ranks, in any order and at once. The
//! keeper stands between both and the origin. A sample that it owns has at most one *flight*: whoever wants the sample
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
use crate::driver::{in_passing, keep, skipped};

/// What a flight brings.
pub(crate) type Landing = Result<Bytes, TierError>;

/// A sample on its way from the origin into a cache.
enum Flight {
    /// Being read, for these beside whoever began it.
    Reading(Vec<oneshot::Sender<Landing>>),
    /// Here, and not yet in its cache.
    Landed(Bytes),
}

/// How a read of an owned sample begins.
pub(crate) enum Begun {
    /// The caller is to read it, and to [`land`](Ticket::land) what came.
    Mine(Ticket),
    /// It is being read already.
    Join(oneshot::Receiver<Landing>),
    /// It is at hand.
    Here(Bytes),
}

/// A flight that ends when this is dropped, whatever became of its sample. Dropped before it has landed, its waiters get an
/// error.
pub(crate) struct Ticket {
    keeper: Arc<Keeper>,
    key: SampleKey,
    open: bool,
}

impl Ticket {
    /// Sends the result to all waiters, and keeps the bytes.
    pub(crate) fn land(mut self, came: Landing) -> Landing {
        let of = self.keeper.datasets.get(self.key.dataset.0 as usize);
        // Others will rely on it.
        let came = came.and_then(|bytes| of.map_or(Ok(bytes.clone()), |of| of.checked(self.key, bytes)));
        let mut flights = self.keeper.flights();
        self.open = came.is_ok();
        let before = match &came {
            Ok(bytes) => flights.insert(self.key, Flight::Landed(bytes.clone())),
            Err(_) => flights.remove(&self.key),
        };
        drop(flights);
        if let Some(Flight::Reading(others)) = before {
            for other in others {
                // Whoever has gone wants nothing.
                let _ = other.send(came.clone());
            }
        }
        if let Ok(bytes) = came.clone() {
            in_passing(async move { self.keeper.keep(self.key, bytes).await });
        }
        came
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open {
            let ended = self.keeper.flights().remove(&self.key);
            drop(ended); // outside of the lock
        }
    }
}

/// The samples that this rank owns, and their ways from the origin.
pub(crate) struct Keeper {
    pub(crate) plan: LocalPlan,
    pub(crate) datasets: Vec<Dataset>,
    pub(crate) caches: Vec<Arc<dyn CacheTier>>,
    flights: Mutex<KeyMap<Flight>>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("flights", &self.flights().len()).finish_non_exhaustive()
    }
}

impl Keeper {
    pub(crate) fn new(plan: LocalPlan, datasets: Vec<Dataset>, caches: Vec<Arc<dyn CacheTier>>) -> Self {
        Self { plan, datasets, caches, flights: Mutex::default() }
    }

    /// No change of the map is made in more than one step.
    fn flights(&self) -> MutexGuard<'_, KeyMap<Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a sample is; nothing if there is none of this number.
    pub(crate) fn bytes(&self, key: SampleKey) -> u64 {
        Dataset::find(&self.datasets, key).map_or(0, |(_, bytes)| bytes)
    }

    /// The cache that an owned sample belongs into.
    pub(crate) fn home(&self, key: SampleKey) -> Option<&Arc<dyn CacheTier>> {
        self.caches.get(usize::from(self.plan.owned(key)?.0))
    }

    /// Begins to read an owned sample, unless it is on its way or here.
    pub(crate) fn begin(self: &Arc<Self>, key: SampleKey) -> Begun {
        let mut flights = self.flights();
        let vacant = match flights.entry(key) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(mut flight) => {
                return match flight.get_mut() {
                    Flight::Landed(bytes) => Begun::Here(bytes.clone()),
                    Flight::Reading(others) => {
                        let (told, listen) = oneshot::channel();
                        others.push(told);
                        Begun::Join(listen)
                    }
                };
            }
        };
        // A flight may have ended since the caller looked. (One that ended on a disk is read again: it is rare.)
        if let Some(Lookup::Ready(sample)) = self.home(key).map(|cache| cache.lookup(key)) {
            return Begun::Here(sample.bytes());
        }
        vacant.insert(Flight::Reading(Vec::new()));
        Begun::Mine(Ticket { keeper: Arc::clone(self), key, open: true })
    }

    async fn keep(&self, key: SampleKey, bytes: Bytes) {
        let Some(cache) = self.home(key) else { return };
        match cache.reserve(cache.footprint().of(bytes.len() as u64)) {
            Some(room) => keep(&**cache, room, key, Sample::uncharged(bytes)).await,
            None => skipped(&**cache),
        }
    }

    /// Reads a sample from its origin: an owned one in its flight, any other by itself.
    fn read(self: &Arc<Self>, origin: &dyn Tier, request: Arc<ReadRequest>) -> ReadFuture {
        if self.plan.owned(request.key).is_none() {
            return origin.read(request);
        }
        match self.begin(request.key) {
            Begun::Here(bytes) => Box::pin(ready(Ok(bytes))),
            Begun::Join(landing) => Box::pin(async move { landed(landing.await) }),
            Begun::Mine(ticket) => {
                let read = origin.read(request);
                Box::pin(async move { ticket.land(read.await) })
            }
        }
    }
}

/// What became of a flight of somebody else's, who may have gone with it.
pub(crate) fn landed(came: Result<Landing, oneshot::error::RecvError>) -> Landing {
    came.unwrap_or_else(|_| Err(given_up()))
}

fn given_up() -> TierError {
    TierError::new(ErrorKind::Transient, "engine").with_detail("whoever read it has ended")
}

/// An origin whose owned samples are read in flights.
#[derive(Debug)]
pub(crate) struct KeptOrigin {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) origin: Arc<dyn Tier>,
}

impl Tier for KeptOrigin {
    fn name(&self) -> &str {
        self.origin.name()
    }

    fn profile(&self) -> &TierProfile {
        self.origin.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.keeper.read(&*self.origin, request)
    }

    fn submit(&self) {
        self.origin.submit();
    }
}
