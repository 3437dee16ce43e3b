//! Samples between ranks, over real sockets and over a network in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod asking;
mod budgets;
mod bursts;
mod contents;
mod hostile;
mod relay;
mod runs;
mod support;
