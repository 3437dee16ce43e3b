//! The disk tier on a real file system, read by threads. `disk_ring` runs the same tests with a
//! ring.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking, too")]

mod damage;
mod emptying;
mod kill;
mod metrics;
mod model;
mod pages;
mod reading;
mod rig;
mod sharing;
mod space;
mod tier;
mod users;

/// The reader of this program's tests.
fn reader() -> foreread_local::disk::DiskReader {
    foreread_local::disk::DiskReader::Threads
}
