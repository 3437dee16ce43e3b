//! A server and its workers, in one process and in many.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod hostile;
mod leftovers;
mod memory;
mod processes;
mod rig;
mod room;
mod serving;
