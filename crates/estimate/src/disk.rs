//! Measures a disk tier: a small one is created in the directory, filled, read and removed.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use foreread::calibration::{DiskSpeed, Point};
use foreread::{Error, ErrorKind, Result};
use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskTier};
use foreread_tier::{Buffers, CacheTier, ErrorKind as Kind, Object, ReadRequest, Sample, Span, TierError};
use foreread_types::{DatasetId, DatasetIdentity, SampleId, SampleKey, SplitMix64, Tick};
use futures::StreamExt;

use crate::probe::{self, ProbeLimits};

/// The most bytes that are written.
const BYTES: u64 = 256 << 20;

/// The most parallel reads.
const MAX_READS: u32 = 64;

/// The most parallel writes.
const MAX_WRITES: usize = 32;

/// A directory that is removed when this is dropped.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(directory: &Path) -> std::io::Result<Self> {
        // The directory must be new, because another user may have prepared a guessable name. Its
        // prefix keeps it out of datasets.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let name = format!("foreread-cache-calibrate-{}-{now}", std::process::id());
        let path = directory.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // `foreread cache` can remove the rest later.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures a disk tier in `directory` with samples of `length` bytes, for about `time`.
///
/// # Errors
/// If it cannot be created, filled or read.
pub(crate) async fn measure(
    directory: &Path,
    length: u64,
    time: Duration,
    buffers: Arc<dyn Buffers>,
    report: impl FnMut(Point),
) -> Result<DiskSpeed> {
    let scratch = ScratchDirectory::new(directory).map_err(|error| {
        let directory = directory.display();
        Error::new(ErrorKind::System, format!("{directory}: cannot create a directory: {error}"))
    })?;
    let samples = (BYTES / length.max(1)).clamp(64, 100_000);
    let room = samples * (length + 8192) + (32 << 20);
    let dataset = DatasetOnDisk { identity: DatasetIdentity(1), samples, bytes: samples * length };
    let config = DiskConfig::new([(scratch.0.clone(), room)]).with_parallelism(MAX_READS as usize);
    // Opening takes milliseconds: the tier is empty.
    let tier = Arc::new(DiskTier::open(config, &[dataset], buffers)?);
    let write = fill(&tier, samples, length, time / 3).await?;
    let mut at = 0;
    let next = || {
        at = (at + 7919) % write.samples;
        let object = Object { path: "".into(), size: length, version: None };
        ReadRequest::new(key(at), object, Span::Whole, Tick(0))
    };
    // Samples may be read again, because reads bypass the page cache.
    let budget = ProbeLimits { time: time * 2 / 3, bytes: u64::MAX, bytes_per_second: None };
    let read = probe::curve(&tier, MAX_READS, budget, next, report).await?;
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    Ok(DiskSpeed {
        directory: directory.display().to_string(),
        write_bytes_per_second: write.bytes_per_second,
        read,
    })
}

fn key(id: u64) -> SampleKey {
    SampleKey::new(DatasetId(0), SampleId(id))
}

struct FillResult {
    samples: u64,
    bytes_per_second: u64,
}

/// Stores up to `samples` samples within `time`, but at least 64.
async fn fill(tier: &Arc<DiskTier>, samples: u64, length: u64, time: Duration) -> Result<FillResult> {
    let content = Bytes::from(content(length as usize));
    let began = Instant::now();
    let ids = (0..samples).take_while(|id| *id < 64 || began.elapsed() < time);
    let stores = futures::stream::iter(ids).map(|id| {
        let (tier, content) = (Arc::clone(tier), content.clone());
        async move { store(&tier, id, content).await }
    });
    let mut stores = stores.buffer_unordered(MAX_WRITES);
    let mut stored = 0;
    while let Some(result) = stores.next().await {
        result?;
        stored += 1;
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    Ok(FillResult { samples: stored, bytes_per_second: ((stored * length) as f64 / seconds) as u64 })
}

/// Stores one sample. Waits while the write-behind buffer is full.
async fn store(tier: &DiskTier, id: u64, content: Bytes) -> Result<(), TierError> {
    loop {
        let bytes = tier.footprint().of(content.len() as u64);
        let room = tier.reserve(bytes).ok_or_else(|| {
            TierError::new(Kind::Full, "disk").with_detail("not enough space for a calibration")
        })?;
        match tier.store(room, key(id), Sample::uncharged(content.clone())).await {
            Err(error) if error.kind() == Kind::Full => tokio::time::sleep(Duration::from_millis(1)).await,
            done => return done,
        }
    }
}

/// Bytes that do not compress.
fn content(length: usize) -> Vec<u8> {
    let mut random = SplitMix64(0);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.draw().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
