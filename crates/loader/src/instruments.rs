//! The engine's metrics, through the `metrics` facade. They are free where no recorder is
//! installed.
//!
//! Handles are looked up once per run. A batch then costs a few atomic additions.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::report::{BatchCounts, ReadSource};

pub(crate) struct Instruments {
    samples: [Counter; 3],
    bytes: [Counter; 3],
    batches: Counter,
    skipped: Counter,
    substituted: Counter,
    wait: Histogram,
    look_ahead: Gauge,
}

impl std::fmt::Debug for Instruments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instruments").finish_non_exhaustive()
    }
}

impl Instruments {
    pub(crate) fn new(look_ahead: u64) -> Self {
        let instruments = Self {
            samples: ReadSource::ALL
                .map(|source| counter!("foreread_delivered_samples_total", "source" => source.as_str())),
            bytes: ReadSource::ALL
                .map(|source| counter!("foreread_delivered_bytes_total", "source" => source.as_str())),
            batches: counter!("foreread_delivered_batches_total"),
            skipped: counter!("foreread_skipped_samples_total"),
            substituted: counter!("foreread_substituted_samples_total"),
            wait: histogram!("foreread_batch_wait_seconds"),
            look_ahead: gauge!("foreread_look_ahead_bytes"),
        };
        instruments.look_ahead(look_ahead);
        instruments
    }

    pub(crate) fn look_ahead(&self, bytes: u64) {
        self.look_ahead.set(bytes as f64);
    }

    pub(crate) fn batch(&self, counts: &BatchCounts, waited: Duration) {
        for source in ReadSource::ALL {
            let count = counts.reads.from(source);
            if count.samples > 0 {
                self.samples[source as usize].increment(count.samples);
                self.bytes[source as usize].increment(count.bytes);
            }
        }
        self.batches.increment(1);
        self.skipped.increment(counts.skipped);
        self.substituted.increment(counts.substituted);
        self.wait.record(waited);
    }
}
