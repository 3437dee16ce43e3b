//! Samples from the cache that all jobs of a node share: the client of an agent.
//!
//! A job keeps its own engine: order, look-ahead, state and error policy. Its origin is replaced by
//! an [`AgentOrigin`], which requests samples from the agent. The agent has each sample in memory,
//! or reads it once for all jobs. The job maps that memory, so nothing is copied.
//!
//! # Decisions and price
//!
//! * *A job never depends on the agent.* If the agent ends, is stopped, or refuses, the job reads
//!   its storage by itself, without caches. It warns once, and connects again later. Held samples
//!   stay valid.
//! * *Late is not dead.* A slow storage is no reason to read it a second time. So a request waits
//!   as long as the agent gives signs of life: it answers pings at once, whatever its storage does.
//!   After [`SILENCE`] without one, all open requests are read directly.
//! * *A sample that the agent cannot read* is read directly, because this job may have other
//!   credentials, and it has the policy for errors. The price is a second failing request.
//! * *One thread receives* for a job, and one announces its orders. Requests are sent by the
//!   caller.
#![cfg(target_os = "linux")]

mod announcer;
mod client;
mod connection;
mod link;
mod origin;
mod receiver;
mod watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foreread_store::attach::EpochOrder;
use foreread_types::Tick;

pub use client::{AgentClient, AgentJob, AgentPlace, CacheMaker, Connected, JobCatalogs, StallTime};
pub use link::AgentCounts;
pub use origin::AgentOrigin;

/// How long an agent may give no sign of life while a request is open.
pub const SILENCE: Duration = Duration::from_millis(250);

/// The same in this process, in milliseconds.
static SILENCE_HERE: AtomicU64 = AtomicU64::new(SILENCE.as_millis() as u64);

/// Takes agents for silent after another time, in this process: on a busy machine, tests need an
/// agent that is late.
#[doc(hidden)]
pub fn silent_after(time: Duration) {
    SILENCE_HERE.store(time.as_millis() as u64, Ordering::Relaxed);
}

fn silence() -> Duration {
    Duration::from_millis(SILENCE_HERE.load(Ordering::Relaxed))
}

/// The orders of a job.
pub trait JobOrders: Send + Sync + 'static {
    /// The datasets whose shards are read in blocks at first, each with the bytes of a block.
    fn blocks(&self) -> Vec<(u32, u64)> {
        Vec::new()
    }

    /// The first position of an epoch, and the number of its positions. `None` after the last one.
    fn pass(&self, index: usize) -> Option<(Tick, u64)>;

    /// The order of an epoch. It may take some time. `None` if it cannot be computed.
    fn order(&self, index: usize) -> Option<EpochOrder>;
}
