//! Packed formats, through the library's front door: shards in an origin, a catalog out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot set itself up fails by panicking"
)]

mod cost;
mod hostile;
mod origin;
mod shards;
mod writers;
