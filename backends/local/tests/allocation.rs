//! The footprint of reads from the disk tier, measured by a counting allocator.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::sync::Arc;

use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskReader, DiskTier};
use foreread_tier::HeapBuffers;
use foreread_tier_testing::{CountingAllocator, conformance};
use foreread_types::DatasetIdentity;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The only test of this program, because the allocator counts everything in it.
#[test]
// semantics: CACHE-6
fn reads_allocate_what_is_charged() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for reader in [DiskReader::Threads, DiskReader::Auto] {
        let directory = tempfile::tempdir().unwrap();
        let config = DiskConfig::new([(directory.path().to_owned(), 64 << 20)]).with_reader(reader);
        let dataset =
            |print| DatasetOnDisk { identity: DatasetIdentity(print), samples: 8000, bytes: 1 << 30 };
        let tier = DiskTier::open(config, &[dataset(1), dataset(2)], Arc::new(HeapBuffers)).unwrap();
        runtime.block_on(conformance::reads_allocate_what_is_charged(&tier, || ALLOCATOR.live()));
    }
}
