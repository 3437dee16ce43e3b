//! Packed formats, through the public interface: from shards in an origin to a catalog.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot set itself up fails by panicking"
)]

mod choices;
mod cost;
mod hostile;
mod origin;
mod recordio;
mod shards;
mod writers;
