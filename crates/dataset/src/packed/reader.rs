//! Reads the headers of a shard's members through an origin, with few requests and few bytes.
//!
//! Headers lie between data that is not needed yet. After each header the reader either skips the
//! data and pays another request, or reads through it. Reading through is right if the bytes take
//! less time than a request: `gap / bandwidth < latency`, both as measured so far. It is limited to
//! 64 KiB, because bandwidth is shared. The size of a request follows. A *run* is the range of
//! needed bytes between two skipped gaps. It is one header if members are large. It is a few
//! headers if small members follow a large one, and the whole file if all are small. A request has
//! the length of the longest of the last runs, and doubles while a run continues. So the pattern of
//! a shard is known after its first members. The price is a window of at most 256 KiB for each
//! shard that is being indexed. The result does not depend on any of this.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_formats::{FormatError, ReadError};
use foreread_tier::{ErrorKind, Object, OriginTier, ReadRequest, Span, TierError};
use foreread_types::{SampleKey, Tick};

/// The smallest request: a header with a pax header, and the next one's.
const LEAST: u64 = 1 << 10;
/// The largest request, unless more bytes are needed at once.
const MOST: u64 = 256 << 10;
/// The largest gap that is read through instead of skipped.
const WIDEST: u64 = 64 << 10;
/// The number of runs that are remembered.
const RUNS: usize = 5;

/// Where shards are read from.
#[derive(Debug)]
pub(crate) enum StoredBytes<'a> {
    /// An origin.
    Origin(&'a dyn OriginTier),
    /// The bytes of one shard, decompressed.
    Memory(Bytes),
}

/// An origin, and the measured cost of its reads.
#[derive(Debug)]
pub(crate) struct ShardStore<'a> {
    source: StoredBytes<'a>,
    requests: AtomicU64,
    bytes: AtomicU64,
    pace: Mutex<ReadPace>,
}

/// The measured latency and bandwidth of requests.
#[derive(Debug, Default)]
struct ReadPace {
    /// The latency of a small request.
    latency: Option<Duration>,
    /// The bandwidth of a large request in bytes per second, without its latency.
    bandwidth: Option<f64>,
}

impl ReadPace {
    fn saw(&mut self, bytes: u64, took: Duration) {
        if bytes <= 4 * LEAST {
            self.latency = Some(self.latency.map_or(took, |before| (before * 3 + took) / 4));
        } else if let Some(sending) = took.checked_sub(self.latency.unwrap_or_default()) {
            let rate = bytes as f64 / sending.as_secs_f64().max(1e-9);
            self.bandwidth = Some(self.bandwidth.map_or(rate, |before| (before * 3.0 + rate) / 4.0));
        }
    }

    /// The gap for which reading takes as long as skipping.
    fn widest(&self) -> u64 {
        match (self.latency, self.bandwidth) {
            (Some(latency), Some(bandwidth)) => {
                ((latency.as_secs_f64() * bandwidth) as u64).clamp(LEAST, WIDEST)
            }
            _ => WIDEST,
        }
    }
}

impl<'a> ShardStore<'a> {
    pub(crate) fn new(source: StoredBytes<'a>) -> Self {
        Self { source, requests: AtomicU64::new(0), bytes: AtomicU64::new(0), pace: Mutex::default() }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, ReadPace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes `start..start + length` of `object`. The range must not be empty and must lie in the
    /// object.
    pub(crate) async fn read(&self, object: &Object, start: u64, length: u64) -> Result<Bytes, FormatError> {
        let origin = match &self.source {
            StoredBytes::Origin(origin) => origin,
            StoredBytes::Memory(bytes) => {
                let part = bytes.get(start as usize..).and_then(|rest| rest.get(..length as usize));
                let part = part.map(|part| bytes.slice_ref(part));
                return part.ok_or_else(|| FormatError::cut_short(start, bytes.len() as u64));
            }
        };
        let span = Span::Range(start..start + length);
        let request = ReadRequest::new(SampleKey::default(), object.clone(), span, Tick(0));
        self.requests.fetch_add(1, Relaxed);
        let began = Instant::now();
        let answer = origin.read(Arc::new(request)).await.and_then(|bytes| match bytes.len() as u64 {
            read if read == length => Ok(bytes),
            read => {
                let why = format!("{read} bytes instead of {length}");
                Err(TierError::new(ErrorKind::Changed, origin.name()).with_detail(why))
            }
        });
        let bytes = answer.map_err(|error| match error.object() {
            Some(_) => ReadError::from(error),
            None => ReadError::from(error.with_object(&*object.path)),
        })?;
        self.bytes.fetch_add(length, Relaxed);
        self.pace().saw(length, began.elapsed());
        Ok(bytes)
    }
}

/// A window that moves over one object.
#[derive(Debug)]
pub(crate) struct ShardReader<'a> {
    store: &'a ShardStore<'a>,
    object: &'a Object,
    window: Bytes,
    at: u64,
    /// The start of the run, and the end of its needed bytes so far.
    run: (u64, u64),
    /// The lengths of the last runs.
    runs: [u64; RUNS],
    next_length: u64,
}

impl<'a> ShardReader<'a> {
    pub(crate) fn new(store: &'a ShardStore<'a>, object: &'a Object) -> Self {
        Self { store, object, window: Bytes::new(), at: 0, run: (0, 0), runs: [0; RUNS], next_length: LEAST }
    }

    /// The buffered bytes from `at` on, possibly none. At least the first of them counts as needed.
    pub(crate) fn use_at_hand(&mut self, at: u64) -> &[u8] {
        if !self.at_hand(at).is_empty() {
            self.run.1 = self.run.1.max(at + 1);
        }
        self.at_hand(at)
    }

    fn at_hand(&self, at: u64) -> &[u8] {
        let from =
            at.checked_sub(self.at).map_or(usize::MAX, |from| usize::try_from(from).unwrap_or(usize::MAX));
        self.window.get(from..).unwrap_or_default()
    }

    /// Reads the bytes from `at` on, at least `least` of them.
    ///
    /// # Errors
    /// If the object is too short, or cannot be read.
    pub(crate) async fn need(&mut self, at: u64, least: u64) -> Result<&[u8], FormatError> {
        let size = self.object.size;
        let end = at.checked_add(least).filter(|&end| end <= size);
        let end = end.ok_or_else(|| FormatError::cut_short(at, size))?;
        if (self.at_hand(at).len() as u64) < least {
            self.step_to(at);
            let length = self.next_length.max(least).min(size - at);
            self.window = Bytes::new(); // freed before the next one is allocated
            self.window = self.store.read(self.object, at, length).await?;
            self.at = at;
        }
        self.run.1 = self.run.1.max(end);
        Ok(self.at_hand(at))
    }

    /// Decides the size of the request at `at`.
    fn step_to(&mut self, at: u64) {
        let gap = at.saturating_sub(self.run.1);
        if at >= self.run.1 && gap < self.store.pace().widest() && self.run.1 > 0 {
            self.next_length = (self.next_length * 2).min(MOST);
            return;
        }
        self.runs.rotate_right(1);
        self.runs[0] = self.run.1.saturating_sub(self.run.0);
        let mut sorted = self.runs;
        sorted.sort_unstable();
        self.next_length = sorted[RUNS / 2].next_multiple_of(512).clamp(LEAST, MOST);
        self.run = (at, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_costs_less_time_than_a_request() {
        let mut pace = ReadPace::default();
        assert_eq!(pace.widest(), WIDEST);
        pace.saw(1024, Duration::from_millis(1));
        pace.saw(1 << 20, Duration::from_millis(1) + Duration::from_secs(1) / 10);
        // A millisecond at 10 MB/s.
        assert!((10_000..10_600).contains(&pace.widest()), "{}", pace.widest());
        for _ in 0..50 {
            pace.saw(1024, Duration::from_millis(100));
        }
        assert_eq!(pace.widest(), WIDEST, "never more, however slow requests are");
    }
}
