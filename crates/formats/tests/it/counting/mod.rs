//! A file whose requests are counted.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use foreread_formats::{FileSource, ReadError};
use futures::future::BoxFuture;

/// Counts requests and their bytes.
pub struct Counted<S> {
    pub source: S,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl<S> Counted<S> {
    pub fn new(source: S) -> Self {
        Self { source, requests: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Requests and bytes until now.
    pub fn cost(&self) -> (u64, u64) {
        (self.requests.load(Relaxed), self.bytes.load(Relaxed))
    }
}

impl<S: FileSource> FileSource for Counted<S> {
    fn size(&self) -> u64 {
        self.source.size()
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        self.requests.fetch_add(1, Relaxed);
        self.bytes.fetch_add(range.end - range.start, Relaxed);
        self.source.read(range)
    }
}
