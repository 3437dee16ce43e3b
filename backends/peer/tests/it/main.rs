//! Samples between ranks, over real sockets and over a network in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod budgets;
mod bursts;
mod client;
mod contents;
mod hostile;
mod relay;
mod runs;
mod support;
