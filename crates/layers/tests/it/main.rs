//! The layers of reads, each and together, on simulated time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod adaptive;
mod faults;
mod joined;
mod made;
mod merging;
mod stack;
mod throttling;
mod units;
