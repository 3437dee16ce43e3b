//! What the server was asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;

/// What a request wants.
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

/// What was asked and answered up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Reads of objects.
    pub get: u64,
    /// Looks at objects.
    pub head: u64,
    /// Pages of listings.
    pub list: u64,
    /// Lines of these pages.
    pub listed: u64,
    /// Objects stored.
    pub put: u64,
    /// Other requests.
    pub other: u64,
    /// Bytes of objects that were sent, as handed to the connection.
    pub bytes: u64,
    /// Requests that were refused with 503 by the ceiling on their rate.
    pub refused: u64,
    /// Requests that met a fault.
    pub faults: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Requests under way now, from their arrival to the end of their body.
    pub in_flight: u64,
    /// The most that were under way at once.
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

    pub(super) fn read(&self) -> Requests {
        let [get, head, list, listed, put, other, bytes, refused, faults, connections, peak_in_flight] =
            self.all().map(|counter| counter.load(Relaxed));
        let in_flight = self.in_flight.load(Relaxed);
        let first_sent = *self.first_sent.lock().unwrap_or_else(PoisonError::into_inner);
        Requests {
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

    /// Begins again: forgets everything but what is in flight.
    pub(super) fn reset(&self) {
        for counter in self.all() {
            counter.store(0, Relaxed);
        }
        *self.first_sent.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.peak.fetch_max(self.in_flight.load(Relaxed), Relaxed);
    }

    /// So many bytes of an object are sent.
    pub(super) fn sent(&self, bytes: u64) {
        if self.bytes.fetch_add(bytes, Relaxed) == 0 {
            *self.first_sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    /// A request has come; it ends when the flight is dropped.
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

/// One request under way.
#[derive(Debug)]
pub(super) struct CountedRequest {
    pub(super) counters: Arc<RequestCounters>,
    /// Its place among those that are worked on at once, where there is a limit.
    pub(super) place: Option<OwnedSemaphorePermit>,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Relaxed);
    }
}
