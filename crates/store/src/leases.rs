//! Samples in shared memory that clients hold.
//!
//! A lease holds a handle on the sample until the client has released it. The handle keeps the
//! memory and its charge, so nothing is copied or counted twice. All leases of a server together
//! are limited, because the engine's budget must not be used up by clients that never release.
//! Beyond the limit samples are copied through the socket, into the clients' own memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use foreread_tier::{Buffers, Lifetime, SharedPlace};

use crate::wire::MAX_INLINE;

/// The leases of a server.
#[derive(Debug)]
pub(crate) struct Leases {
    buffers: Arc<dyn Buffers>,
    /// The most leased bytes, and those now.
    limit: u64,
    leased: Arc<AtomicU64>,
}

/// A sample in shared memory. Dropping it ends the lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) bytes: Bytes,
    pub(crate) place: SharedPlace,
    leased: Arc<AtomicU64>,
}

impl Leases {
    /// At most `limit` bytes. Samples that are not in shared memory are copied to memory of
    /// `buffers`.
    pub(crate) fn new(buffers: Arc<dyn Buffers>, limit: u64) -> Self {
        buffers.share();
        Self { buffers, limit, leased: Arc::default() }
    }

    /// The most leased bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Leased bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.leased.load(Ordering::Relaxed)
    }

    /// Leases a sample. The error is the sample itself, if it has to go through the socket: a short
    /// one in private memory, or one beyond the limit.
    pub(crate) fn lease(&self, bytes: Bytes) -> Result<Lease, Bytes> {
        let length = bytes.len() as u64;
        let leased = self.leased.fetch_add(length, Ordering::Relaxed);
        let placed = if leased + length <= self.limit { self.place(bytes) } else { Err(bytes) };
        match placed {
            Ok((bytes, place)) => Ok(Lease { bytes, place, leased: Arc::clone(&self.leased) }),
            Err(bytes) => {
                self.leased.fetch_sub(length, Ordering::Relaxed);
                Err(bytes)
            }
        }
    }

    /// The sample in shared memory, where it is already or is copied to.
    fn place(&self, bytes: Bytes) -> Result<(Bytes, SharedPlace), Bytes> {
        if let Some(place) = self.buffers.shared_place(&bytes) {
            return Ok((bytes, place));
        }
        if bytes.len() <= MAX_INLINE {
            return Err(bytes);
        }
        let copy = self.buffers.allocate_for(Lifetime::Passing, bytes.len(), 1).map(|mut copy| {
            copy.extend(&bytes);
            copy.freeze()
        });
        let placed = copy.and_then(|copy| self.buffers.shared_place(&copy).map(|place| (copy, place)));
        placed.ok_or(bytes)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leased.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}
