//! Measures how fast one thread copies memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use foreread::calibration::MemorySpeed;

/// Far more than a processor's caches.
const COPY_BYTES: usize = 64 << 20;

/// Copies for about `time`, at least five times.
pub(crate) fn measure(time: Duration) -> MemorySpeed {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![0u8; COPY_BYTES];
    let began = Instant::now();
    let mut rates = Vec::new();
    // The first copy is not counted: it maps the pages.
    to.copy_from_slice(&from);
    while rates.len() < 5 || began.elapsed() < time {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        rates.push(COPY_BYTES as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    rates.sort_by(f64::total_cmp);
    let middle = rates[rates.len() / 2];
    let spread = (rates[rates.len() * 3 / 4] - rates[rates.len() / 4]) / 2.0 / middle;
    MemorySpeed { bytes_per_second: middle as u64, spread: spread.min(1.0) }
}
