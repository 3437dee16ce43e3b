//! Counts of requests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An object, or a part of it.
    Get,
    /// An object's length and tag.
    Head,
    /// A page of a listing.
    List,
    /// To store an object.
    Put,
    /// Anything else.
    Other,
}

/// The requests and answers up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// `GET`s of objects.
    pub get: u64,
    /// `HEAD`s of objects.
    pub head: u64,
    /// Pages of listings.
    pub list: u64,
    /// Entries of these pages.
    pub listed: u64,
    /// Objects stored.
    pub put: u64,
    /// Other requests.
    pub other: u64,
    /// Bytes of objects that were passed to connections.
    pub bytes: u64,
    /// Requests refused with 503 by the ceiling.
    pub refused: u64,
    /// Requests with a fault.
    pub faults: u64,
    /// Opened connections.
    pub connections: u64,
    /// Requests in flight, from their arrival to the end of their body.
    pub in_flight: u64,
    /// The most requests in flight at once.
    pub peak_in_flight: u64,
    /// When the first bytes of an object were sent.
    pub first_sent: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct RequestCounters {
    get: AtomicU64,
    head: AtomicU64,
    list: AtomicU64,
    pub(super) listed: AtomicU64,
    put: AtomicU64,
    other: AtomicU64,
    bytes: AtomicU64,
    first_sent: Mutex<Option<Instant>>,
    pub(super) refused: AtomicU64,
    pub(super) faults: AtomicU64,
    pub(super) connections: AtomicU64,
    in_flight: AtomicU64,
    peak: AtomicU64,
}

impl RequestCounters {
    fn all(&self) -> [&AtomicU64; 11] {
        let Self { get, head, list, listed, put, other, bytes, refused, faults, connections, peak, .. } =
            self;
        [get, head, list, listed, put, other, bytes, refused, faults, connections, peak]
    }

    pub(super) fn read(&self) -> RequestCounts {
        let [get, head, list, listed, put, other, bytes, refused, faults, connections, peak_in_flight] =
            self.all().map(|counter| counter.load(Relaxed));
        let in_flight = self.in_flight.load(Relaxed);
        let first_sent = *self.first_sent.lock().unwrap_or_else(PoisonError::into_inner);
        RequestCounts {
            get,
            head,
            list,
            listed,
            put,
            other,
            bytes,
            refused,
            faults,
            connections,
            in_flight,
            peak_in_flight,
            first_sent,
        }
    }

    /// Resets everything except the requests in flight.
    pub(super) fn reset(&self) {
        for counter in self.all() {
            counter.store(0, Relaxed);
        }
        *self.first_sent.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.peak.fetch_max(self.in_flight.load(Relaxed), Relaxed);
    }

    /// Counts sent bytes of an object.
    pub(super) fn sent(&self, bytes: u64) {
        if self.bytes.fetch_add(bytes, Relaxed) == 0 {
            *self.first_sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    /// Counts a request, which ends when the result is dropped.
    pub(super) fn start(self: &Arc<Self>, kind: Kind) -> CountedRequest {
        let counter = match kind {
            Kind::Get => &self.get,
            Kind::Head => &self.head,
            Kind::List => &self.list,
            Kind::Put => &self.put,
            Kind::Other => &self.other,
        };
        counter.fetch_add(1, Relaxed);
        let now = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.peak.fetch_max(now, Relaxed);
        CountedRequest { counters: Arc::clone(self), place: None }
    }
}

/// One request in flight.
#[derive(Debug)]
pub(super) struct CountedRequest {
    pub(super) counters: Arc<RequestCounters>,
    /// Its slot, if the requests in progress are limited.
    pub(super) place: Option<OwnedSemaphorePermit>,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Relaxed);
    }
}
