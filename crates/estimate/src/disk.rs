//! How fast a disk tier in a directory is: a small one is made there, filled, read and removed again.

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

use crate::probe::{self, Budget};

/// Bytes that are written, at most, and reads under way, at most.
const BYTES: u64 = 256 << 20;
const MOST: u32 = 64;

/// Stores that wait for each other at most.
const STORES: usize = 32;

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &Path) -> std::io::Result<Self> {
        // Another user may have anything there under a name that can be guessed, so it must be new. No dataset has it
        // among its samples.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let name = format!("foreread-cache-calibrate-{}-{now}", std::process::id());
        let path = directory.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to `foreread cache`; there is nobody to be told here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures a disk tier in `directory` with samples of `length` bytes, for about `time`.
///
/// # Errors
/// If it cannot be made, filled or read.
pub(crate) async fn measure(
    directory: &Path,
    length: u64,
    time: Duration,
    buffers: Arc<dyn Buffers>,
    told: impl FnMut(Point),
) -> Result<DiskSpeed> {
    let scratch = Scratch::new(directory).map_err(|error| {
        let directory = directory.display();
        Error::new(ErrorKind::System, format!("{directory}: no directory can be made there: {error}"))
    })?;
    let samples = (BYTES / length.max(1)).clamp(64, 100_000);
    let room = samples * (length + 8192) + (32 << 20);
    let dataset = DatasetOnDisk { identity: DatasetIdentity(1), samples, bytes: samples * length };
    let config = DiskConfig::new([(scratch.0.clone(), room)]).with_parallelism(MOST as usize);
    // Some milliseconds of small files on a disk that nobody uses yet.
    let tier = Arc::new(DiskTier::open(config, &[dataset], buffers)?);
    let write = fill(&tier, samples, length, time / 3).await?;
    let mut at = 0;
    let next = || {
        at = (at + 7919) % write.samples;
        let object = Object { path: "".into(), size: length, version: None };
        ReadRequest::new(key(at), object, Span::Whole, Tick(0))
    };
    // Blocks of a scratch file may be read again: they are read past the page cache.
    let budget = Budget { time: time * 2 / 3, bytes: u64::MAX, bytes_per_second: None };
    let read = probe::curve(&tier, MOST, budget, next, told).await?;
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

struct Written {
    samples: u64,
    bytes_per_second: u64,
}

/// Stores up to `samples` samples, as long as `time` lasts, but at least 64.
async fn fill(tier: &Arc<DiskTier>, samples: u64, length: u64, time: Duration) -> Result<Written> {
    let content = Bytes::from(content(length as usize));
    let began = Instant::now();
    let ids = (0..samples).take_while(|id| *id < 64 || began.elapsed() < time);
    let stores = futures::stream::iter(ids).map(|id| {
        let (tier, content) = (Arc::clone(tier), content.clone());
        async move { store(&tier, id, content).await }
    });
    let mut stores = stores.buffer_unordered(STORES);
    let mut stored = 0;
    while let Some(result) = stores.next().await {
        result?;
        stored += 1;
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    Ok(Written { samples: stored, bytes_per_second: ((stored * length) as f64 / seconds) as u64 })
}

/// Stores one sample; waits where too much is on its way already.
async fn store(tier: &DiskTier, id: u64, content: Bytes) -> Result<(), TierError> {
    loop {
        let bytes = tier.footprint().of(content.len() as u64);
        let room = tier.reserve(bytes).ok_or_else(|| {
            TierError::new(Kind::Full, "disk").with_detail("there is no room for a calibration")
        })?;
        match tier.store(room, key(id), Sample::uncharged(content.clone())).await {
            Err(error) if error.kind() == Kind::Full => tokio::time::sleep(Duration::from_millis(1)).await,
            done => return done,
        }
    }
}

/// Bytes that no device compresses.
fn content(length: usize) -> Vec<u8> {
    let mut random = SplitMix64(0);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.draw().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
