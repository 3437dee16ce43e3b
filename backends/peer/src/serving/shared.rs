//! The state of all connections that serve samples: limits, budget, counters and source.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use foreread_connection::WireProtection;
use foreread_tier::PeerService;
use tokio::sync::Semaphore;

use crate::counters::PeerCounters;

/// Bytes of one permit of the budget, because permits are counted in 32 bits.
const PERMIT_BYTES: u64 = 1024;

/// Limits of serving samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Bytes of responses that wait to be written, over all connections. In addition, each
    /// connection may have one response.
    pub budget: u64,
    /// Bytes of one connection that the store reads or that wait to be written. One sample is
    /// always allowed.
    pub share: u64,
    /// How samples between nodes are protected. Equal on all ranks.
    pub wire: WireProtection,
}

impl Default for ServerLimits {
    /// 32 MiB, of which one connection gets 4 MiB. Authenticated.
    fn default() -> Self {
        Self { budget: 32 << 20, share: 4 << 20, wire: WireProtection::default() }
    }
}

impl ServerLimits {
    fn permits(&self) -> u32 {
        (self.budget / PERMIT_BYTES).clamp(1, u64::from(u32::MAX >> 3)) as u32
    }

    /// The permits for this many bytes, at most all there are.
    pub(crate) fn pieces(&self, bytes: u64) -> u32 {
        bytes.div_ceil(PERMIT_BYTES).clamp(1, u64::from(self.permits())) as u32
    }
}

/// State that all connections that serve samples share.
#[derive(Debug)]
pub(crate) struct ServingShared {
    pub(crate) settings: ServerLimits,
    pub(crate) counters: Arc<PeerCounters>,
    /// The budget.
    pub(crate) room: Arc<Semaphore>,
    source: RwLock<Option<Weak<dyn PeerService>>>,
}

impl ServingShared {
    pub(crate) fn new(settings: ServerLimits, counters: Arc<PeerCounters>) -> Self {
        let room = Arc::new(Semaphore::new(settings.permits() as usize));
        Self { settings, counters, room, source: RwLock::default() }
    }

    /// Sets the source of the samples.
    pub(crate) fn set_source(&self, source: Weak<dyn PeerService>) {
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    /// Whether a source was [set](Self::set_source). Until then, requests wait.
    pub(crate) fn has_source(&self) -> bool {
        self.source.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The source of samples, unless it was dropped.
    pub(crate) fn source(&self) -> Option<Arc<dyn PeerService>> {
        self.source.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade)
    }

    /// Bytes of the budget that are in use.
    pub(crate) fn in_use(&self) -> u64 {
        let free = self.room.available_permits() as u64;
        (u64::from(self.settings.permits()) - free) * PERMIT_BYTES
    }
}
