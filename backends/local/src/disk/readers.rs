//! Selects threads or `io_uring` for reading.
//!
//! # What [`DiskReader::Auto`] chooses
//!
//! It uses a ring where possible, at two thirds of the threads' CPU time and the same speed (see
//! the [module](super)). With threads, each read puts one thread to sleep, wakes it, and then wakes
//! the consumer. A ring wakes one thread for several reads. Many containers refuse rings, and old
//! kernels have none. Threads read there, and a debug log line names the reason.

use std::sync::Arc;

use foreread_tier::{ErrorKind, ReadFuture, ReadRequest, TierError};

use super::config::DiskReader;
use super::error::NAME;
use super::record_reader::RecordReader;
use super::ring::RingReaders;
use crate::pool::{PoolBounds, ReadPool};

pub(super) enum DiskReaders {
    Threads(ReadPool<RecordReader>),
    Ring(RingReaders),
}

impl DiskReaders {
    /// Starts readers of the kind `wanted` for `parallelism` concurrent reads.
    ///
    /// # Errors
    /// If a ring is required and refused.
    pub(super) fn new(
        wanted: DiskReader,
        reader: RecordReader,
        parallelism: usize,
    ) -> Result<Self, TierError> {
        let bounds = PoolBounds { reads: parallelism, bytes: u64::MAX };
        if wanted == DiskReader::Threads {
            return Ok(Self::Threads(ReadPool::new(reader, NAME, bounds, None)));
        }
        match RingReaders::new(reader.clone(), parallelism) {
            Ok(rings) => Ok(Self::Ring(rings)),
            Err(error) if wanted == DiskReader::Auto => {
                tracing::debug!(%error, "no io_uring here; the disk cache is read by threads");
                Ok(Self::Threads(ReadPool::new(reader, NAME, bounds, None)))
            }
            Err(error) => Err(TierError::new(ErrorKind::Unsupported, NAME)
                .with_object("io_uring")
                .with_detail(format!(
                    "{error}; allow it (sysctl kernel.io_uring_disabled, the container's seccomp \
                     profile), or let threads read"
                ))
                .with_source(error)),
        }
    }

    /// Queues a read.
    pub(super) fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        match self {
            Self::Threads(pool) => pool.read(request),
            Self::Ring(rings) => rings.read(request),
        }
    }

    /// Ends a burst of reads.
    pub(super) fn submit(&self) {
        match self {
            Self::Threads(pool) => pool.submit(),
            Self::Ring(rings) => rings.submit(),
        }
    }

    /// The kind in use, never [`DiskReader::Auto`].
    pub(super) fn kind(&self) -> DiskReader {
        match self {
            Self::Threads(_) => DiskReader::Threads,
            Self::Ring(_) => DiskReader::Ring,
        }
    }
}
