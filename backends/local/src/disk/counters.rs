//! Counters of a tier, for reports and for the program's metrics recorder.
//!
//! The handles of the `metrics` facade are registered once, when the tier is opened. A recorder
//! that is installed later sees nothing of this tier.
//!
//! | metric | kind | |
//! |---|---|---|
//! | `foreread_disk_written_samples_total` | counter | |
//! | `foreread_disk_written_bytes_total` | counter | footprints |
//! | `foreread_disk_skipped_samples_total` | counter | stores left out: the write queue was full |
//! | `foreread_disk_failed_samples_total` | counter | not stored: the disk failed or was full |
//! | `foreread_disk_corrupt_samples_total` | counter | dropped: the record was invalid |
//! | `foreread_disk_held_bytes` | gauge | footprints, of the run's datasets |
//! | `foreread_disk_capacity_bytes` | gauge | footprints that fit |
//! | `foreread_disk_reads_in_flight` | gauge | |

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{Counter, Gauge, counter, gauge};

use super::config::DiskCounts;

/// A counter that is kept here and in the metrics recorder.
struct MirroredCounter {
    local: AtomicU64,
    exported: Counter,
}

impl MirroredCounter {
    fn new(exported: Counter) -> Self {
        Self { local: AtomicU64::new(0), exported }
    }

    /// Adds `more` and returns the old value.
    fn add(&self, more: u64) -> u64 {
        self.exported.increment(more);
        self.local.fetch_add(more, Relaxed)
    }

    fn get(&self) -> u64 {
        self.local.load(Relaxed)
    }
}

pub(super) struct DiskCounters {
    written: MirroredCounter,
    written_bytes: MirroredCounter,
    skipped: MirroredCounter,
    failed: MirroredCounter,
    corrupt: MirroredCounter,
    /// Updated by the tables.
    pub(super) held: Gauge,
    capacity: Gauge,
    pub(super) in_flight: Gauge,
}

impl fmt::Debug for DiskCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(f)
    }
}

impl DiskCounters {
    pub(super) fn new() -> Self {
        Self {
            written: MirroredCounter::new(counter!("foreread_disk_written_samples_total")),
            written_bytes: MirroredCounter::new(counter!("foreread_disk_written_bytes_total")),
            skipped: MirroredCounter::new(counter!("foreread_disk_skipped_samples_total")),
            failed: MirroredCounter::new(counter!("foreread_disk_failed_samples_total")),
            corrupt: MirroredCounter::new(counter!("foreread_disk_corrupt_samples_total")),
            held: gauge!("foreread_disk_held_bytes"),
            capacity: gauge!("foreread_disk_capacity_bytes"),
            in_flight: gauge!("foreread_disk_reads_in_flight"),
        }
    }

    pub(super) fn capacity(&self, bytes: u64) {
        self.capacity.set(bytes as f64);
    }

    pub(super) fn written(&self, bytes: u64) {
        self.written.add(1);
        self.written_bytes.add(bytes);
    }

    pub(super) fn skipped(&self) {
        self.skipped.add(1);
    }

    pub(super) fn failed(&self) {
        self.failed.add(1);
    }

    /// Counts an invalid record and returns the number before it.
    pub(super) fn corrupt(&self) -> u64 {
        self.corrupt.add(1)
    }

    pub(super) fn counts(&self) -> DiskCounts {
        DiskCounts {
            written: self.written.get(),
            written_bytes: self.written_bytes.get(),
            skipped: self.skipped.get(),
            failed: self.failed.get(),
            corrupt: self.corrupt.get(),
        }
    }
}
