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
mod job;
mod link;
mod origin;
mod receiver;
mod watch;

pub use client::AgentClient;
pub use job::{AgentJob, AgentPlace, CacheMaker, Connected, JobCatalogs, JobOrders, StallTime};
pub use link::AgentCounts;
pub use origin::AgentOrigin;
pub use watch::{SILENCE, silent_after};
