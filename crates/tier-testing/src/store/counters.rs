//! Counts of requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
pub(super) struct RequestCounters(Mutex<RequestCounts>);

impl RequestCounters {
    pub(super) fn lock(&self) -> MutexGuard<'_, RequestCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets everything except the requests in flight.
    pub(super) fn reset(&self) {
        let mut counts = self.lock();
        let in_flight = counts.in_flight;
        *counts = RequestCounts { in_flight, peak_in_flight: in_flight, ..RequestCounts::default() };
    }

    /// Counts sent bytes of an object.
    pub(super) fn sent(&self, bytes: u64) {
        let mut counts = self.lock();
        if counts.bytes == 0 {
            counts.first_sent = Some(Instant::now());
        }
        counts.bytes += bytes;
    }

    /// Counts a request, which ends when the result is dropped.
    pub(super) fn start(self: &Arc<Self>, kind: Kind) -> CountedRequest {
        let mut counts = self.lock();
        let counter = match kind {
            Kind::Get => &mut counts.get,
            Kind::Head => &mut counts.head,
            Kind::List => &mut counts.list,
            Kind::Put => &mut counts.put,
            Kind::Other => &mut counts.other,
        };
        *counter += 1;
        counts.in_flight += 1;
        counts.peak_in_flight = counts.peak_in_flight.max(counts.in_flight);
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
        self.counters.lock().in_flight -= 1;
    }
}
