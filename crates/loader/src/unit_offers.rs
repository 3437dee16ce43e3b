//! Samples of stored units that wait for a disk.
//!
//! A disk refuses samples while its queue is full. A unit of which one sample is missing is read
//! and decoded as a whole. So its samples wait for the queue. Decision: samples in the queue are
//! counted in bytes, up to half of the disk's queue. So the disk refuses few of them.
//!
//! A disk that hangs must not keep memory, nor delay other reads. If no sample was stored for
//! [`STUCK`], none wait any more, and the end of the loader ends all of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_tier::lock;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// The unit of permits in bytes.
const PERMIT: u64 = 1 << 10;

/// The permits of samples in the disk's queue: 16 MiB.
const PERMITS: u32 = 16 << 10;

/// A disk that has stored nothing for so long does not work.
const STUCK: Duration = Duration::from_secs(1);

/// The samples of one run that wait.
#[derive(Debug)]
pub(crate) struct UnitOffers {
    places: Semaphore,
    waiting: AtomicUsize,
    /// When the last sample was stored, or the first one began to wait.
    progress: Mutex<Instant>,
}

impl Default for UnitOffers {
    fn default() -> Self {
        Self {
            places: Semaphore::new(PERMITS as usize),
            waiting: AtomicUsize::new(0),
            progress: Mutex::new(Instant::now()),
        }
    }
}

impl UnitOffers {
    /// Counts a sample as waiting, until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> WaitingGuard {
        if self.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            self.advanced();
        }
        WaitingGuard(Arc::clone(self))
    }

    /// Waits for a place for `bytes` bytes in the disk's queue. `None` once the loader has ended.
    pub(crate) async fn place(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT)).unwrap_or(PERMITS).clamp(1, PERMITS);
        self.places.acquire_many(permits).await.ok()
    }

    /// A sample was stored.
    pub(crate) fn advanced(&self) {
        *lock(&self.progress) = Instant::now();
    }

    /// Whether some samples wait.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Whether samples wait for a disk that stores nothing.
    pub(crate) fn is_stuck(&self) -> bool {
        let progress = *lock(&self.progress);
        self.is_waiting() && progress.elapsed() > STUCK
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.places.is_closed()
    }
}

/// One waiting sample.
#[derive(Debug)]
pub(crate) struct WaitingGuard(Arc<UnitOffers>);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Ends all waiting when it is dropped, with the loader.
#[derive(Debug)]
pub(crate) struct OffersEnd(pub(crate) Arc<UnitOffers>);

impl OffersEnd {
    /// Waits until no sample waits, or the disk stores none.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(crate) fn stored(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let offers = Arc::clone(&self.0);
        async move {
            while offers.is_waiting() && !offers.is_stuck() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

impl Drop for OffersEnd {
    fn drop(&mut self) {
        self.0.places.close();
    }
}
