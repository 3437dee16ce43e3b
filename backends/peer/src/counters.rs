//! Counters of samples that this process served to other ranks and received from them.

use std::sync::{Mutex, MutexGuard};

use foreread_tier::lock;

/// Running counters of one process.
#[derive(Debug, Default)]
pub struct PeerCounters {
    tally: Mutex<PeerCounts>,
    /// The last process that named this job with another token or version, as text.
    mistaken: Mutex<Option<String>>,
}

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCounts {
    /// Samples that were sent to other ranks.
    pub served: u64,
    /// Their bytes.
    pub served_bytes: u64,
    /// Requests of other ranks that were answered with an error.
    pub refused: u64,
    /// Samples that were requested from other ranks.
    pub requested: u64,
    /// Samples that were received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Requested samples that timed out.
    pub timed_out: u64,
    /// Requested samples that failed because their connection fell silent or ended.
    pub disconnected: u64,
    /// Connections that failed authentication.
    pub unauthenticated: u64,
    /// Messages of the rendezvous and the run that were sent to other ranks, without heartbeats.
    pub messages: u64,
    /// Catalogs that were sent to another rank.
    pub bulks: u64,
}

impl PeerCounters {
    /// A snapshot.
    pub fn read(&self) -> PeerCounts {
        *self.now()
    }

    /// The counters, for updates.
    pub(crate) fn now(&self) -> MutexGuard<'_, PeerCounts> {
        lock(&self.tally)
    }

    /// Adds the counts of a client, and resets them.
    pub(crate) fn add(&self, counted: &mut PeerCounts) {
        let counted = std::mem::take(counted);
        if counted != PeerCounts::default() {
            let mut now = self.now();
            now.requested += counted.requested;
            now.received += counted.received;
            now.received_bytes += counted.received_bytes;
            now.timed_out += counted.timed_out;
            now.disconnected += counted.disconnected;
        }
    }

    /// Records a process that named this job with another token or version.
    pub(crate) fn note_mistaken(&self, process: String) {
        *lock(&self.mistaken) = Some(process);
    }

    /// The last process that named this job with another token or version. Unauthenticated, so
    /// possibly false.
    pub(crate) fn mistaken(&self) -> Option<String> {
        lock(&self.mistaken).clone()
    }
}
