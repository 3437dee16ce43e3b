//! The engine on tokio: the real driver and hand-over with fake tiers. Mostly on the paused clock,
//! where times are exact.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod blocks;
mod content;
mod ends;
mod engine;
mod errors;
mod locality;
mod memory;
mod metrics;
mod packed;
mod resume;
mod rig;
mod timing;
