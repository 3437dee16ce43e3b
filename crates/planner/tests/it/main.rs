//! Plans, policies and the lower bound, against small models.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod cluster;
mod common;
mod floor;
mod next_use;
mod next_use_datasets;
mod next_use_invariants;
mod plan;
mod policies;
mod reference;
mod servers;
