//! The tests of the disk tier, read by `io_uring`. Where it is refused, they print that and read by
//! threads.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking, too")]

#[path = "../disk/damage.rs"]
mod damage;
#[path = "../disk/kill.rs"]
mod kill;
#[path = "../disk/metrics.rs"]
mod metrics;
#[path = "../disk/model.rs"]
mod model;
#[path = "../disk/pages.rs"]
mod pages;
#[path = "../disk/reading.rs"]
mod reading;
mod refused;
#[path = "../disk/rig.rs"]
mod rig;
#[path = "../disk/sharing.rs"]
mod sharing;
#[path = "../disk/space.rs"]
mod space;
#[path = "../disk/tier.rs"]
mod tier;

use foreread_local::disk::{DiskConfig, DiskReader, DiskTier};

/// The reader of this program's tests.
fn reader() -> DiskReader {
    static READER: std::sync::OnceLock<DiskReader> = std::sync::OnceLock::new();
    *READER.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let config = DiskConfig::new([(directory.path().to_owned(), 1 << 20)]).with_reader(DiskReader::Ring);
        match DiskTier::open(config, &rig::datasets(), std::sync::Arc::new(foreread_tier::HeapBuffers)) {
            Ok(tier) => tier.reader(),
            Err(error) => {
                println!("skipped, read by threads instead: {error}");
                DiskReader::Threads
            }
        }
    })
}
