//! The disk tier, on a real file system.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking, too")]

mod damage;
mod kill;
mod model;
mod pages;
mod rig;
mod sharing;
mod space;
mod tier;
