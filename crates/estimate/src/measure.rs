//! Measures the tiers of a run, within a time and a number of bytes.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foreread::calibration::{Calibration, LargeReads, MemorySpeed, OriginSpeed, Point};
use foreread::dataset::IndexProgress;
use foreread::order::sampler;
use foreread::{Catalog, Config, Error, ErrorKind, Format, Loader, Registry, Result, SamplerKind};
use foreread_planner::MAX_BLOCK_BYTES;
use foreread_tier::{ArenaBuffers, Buffers, OpenContext, OriginTier, ReadRequest, Span};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use tokio::runtime::Builder;

use crate::probe::{self, ProbeLimits};
use crate::{disk, memory, server_probe};

/// The default limit of parallel reads of the origin.
const MAX_READS: u32 = 1024;

/// The most parallel large reads: those of a run's first epoch, if it reads shards in blocks. They
/// are as long as the largest blocks.
const MAX_LARGE_READS: u32 = 8;

/// The time for memory.
const MEMORY_TIME: Duration = Duration::from_millis(300);

/// The default length of samples for disks, without a dataset.
const SAMPLE_BYTES: u64 = 110_000;

/// The tiers to measure, and the limits of time and bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CalibrateOptions {
    /// The origin: a URL, a path, or a catalog. `None`: no origin.
    pub target: Option<String>,
    /// Directories of the disk tier.
    pub disks: Vec<PathBuf>,
    /// The time limit (default: 30 s), without listing the dataset and without its storage servers,
    /// of which each takes at most 2 s.
    pub time: Duration,
    /// The maximum of bytes read from the origin (default: 1 GiB).
    pub origin_bytes: u64,
    /// The limits of later runs: `origin_limit` and `origin_parallelism` count.
    pub config: Config,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self {
            target: None,
            disks: Vec::new(),
            time: Duration::from_secs(30),
            origin_bytes: 1 << 30,
            config: Config::default(),
        }
    }
}

/// A part of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum CalibrateStage {
    /// The dataset is being listed, with the number of samples so far.
    Listing(u64),
    /// The origin.
    Origin,
    /// The origin by large reads, for a dataset in shards.
    Large,
    /// A storage server, by name.
    Server(String),
    /// A directory of the disk tier.
    Disk(PathBuf),
}

/// Progress of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrateProgress {
    /// The current part.
    pub stage: CalibrateStage,
    /// The last result. `None` while listing.
    pub point: Option<Point>,
}

/// Measures memory, the origin and the given directories. Blocks the thread.
///
/// Samples are read in a random order. None is read twice while others are left, so that no cache
/// answers.
///
/// # Errors
/// If the dataset cannot be opened or read, or a directory cannot be written.
pub fn calibrate(
    options: CalibrateOptions,
    registry: Registry,
    progress: impl FnMut(CalibrateProgress) + Send + 'static,
) -> Result<Calibration> {
    let runtime = Builder::new_multi_thread().thread_name("foreread").enable_all().build();
    let runtime =
        runtime.map_err(|error| Error::new(ErrorKind::System, format!("no threads to run on: {error}")))?;
    let buffers: Arc<dyn Buffers> = Arc::new(ArenaBuffers::default());
    let context = OpenContext { buffers, runtime: runtime.handle().clone(), seed: options.config.seed };
    // `block_on` would panic on the thread of another runtime.
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime.spawn(async move { sender.send(everything(options, &registry, &context, progress).await) });
    let measured = receiver.recv();
    // A read that hangs in the kernel must not hang the caller.
    runtime.shutdown_background();
    measured.map_err(|_| Error::new(ErrorKind::Panic, "the calibration has panicked"))?
}

async fn everything(
    options: CalibrateOptions,
    registry: &Registry,
    context: &OpenContext,
    mut progress: impl FnMut(CalibrateProgress) + Send,
) -> Result<Calibration> {
    let measured = context.runtime.spawn_blocking(|| memory::measure(MEMORY_TIME)).await;
    let memory: Option<MemorySpeed> = measured.ok();
    let parts = options.disks.len() as u32 + u32::from(options.target.is_some());
    let time = options.time.saturating_sub(MEMORY_TIME) / parts.max(1);
    let mut opened = None;
    if let Some(target) = &options.target {
        // A valid configuration needs a number of epochs.
        let mut config = options.config.clone();
        config.epochs = 1;
        let config = config.validated()?;
        let listed = |listed: IndexProgress| {
            progress(CalibrateProgress { stage: CalibrateStage::Listing(listed.objects), point: None })
        };
        let builder = Loader::builder_with(target, config.clone()).registry(registry.clone());
        let (catalog, origin) = builder.open_origin(context, listed).await?;
        let requests = RequestSource::new(catalog, config.seed)?;
        opened = Some((origin, config, requests));
    }
    // Disks first: an unwritable directory is detected before a gigabyte has been read.
    let length = opened.as_ref().map_or(SAMPLE_BYTES, |(_, _, requests)| requests.mean);
    let mut disk = Vec::new();
    for directory in &options.disks {
        let report = |point| {
            progress(CalibrateProgress { stage: CalibrateStage::Disk(directory.clone()), point: Some(point) })
        };
        disk.push(disk::measure(directory, length, time, Arc::clone(&context.buffers), report).await?);
    }
    let mut origin = None;
    if let Some((tier, config, requests)) = opened {
        let report = |stage, point| progress(CalibrateProgress { stage, point: Some(point) });
        let bytes_per_second = config.origin_limit;
        let budget = ProbeLimits { time, bytes: options.origin_bytes, bytes_per_second };
        origin = Some(of_origin(&tier, &config, requests, budget, report).await?);
    }
    let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Calibration { version: Calibration::VERSION, made, origin, memory, disk })
}

/// Endless requests for the samples of a catalog, in a random order.
pub(crate) struct RequestSource {
    pub(crate) catalog: Catalog,
    pub(crate) ids: Vec<SampleId>,
    /// The position of the next request. Positions before it were requested.
    pub(crate) at: usize,
    /// Their mean length, in bytes.
    mean: u64,
}

impl RequestSource {
    fn new(catalog: Catalog, seed: u64) -> Result<Self> {
        let order = sampler(SamplerKind::Shuffle, catalog.len(), seed)?.order(0)?;
        // No measurement reads more.
        let mut ids = vec![SampleId(0); catalog.len().min(1 << 20) as usize];
        order.fill(0, 1, &mut ids);
        // The storage is measured, not the decoders.
        let sizes = catalog.stored_sizes().unwrap_or_else(|| catalog.sizes());
        ids.retain(|id| sizes.bytes(*id) > 0);
        if ids.is_empty() {
            return Err(usage(format!("{}: all samples are empty", catalog.base_url())));
        }
        let total: u128 = ids.iter().map(|id| u128::from(sizes.bytes(*id))).sum();
        let mean = (total / ids.len() as u128).max(1) as u64;
        Ok(Self { catalog, ids, at: 0, mean })
    }

    fn next(&mut self) -> Option<ReadRequest> {
        let id = self.ids[self.at % self.ids.len()];
        self.at += 1;
        self.request(id)
    }

    pub(crate) fn request(&self, id: SampleId) -> Option<ReadRequest> {
        let entry = self.catalog.entry(id).ok()?;
        let key = SampleKey::new(DatasetId(0), id);
        // The storage is measured, not the decoders.
        let (object, span) = match entry.span {
            Span::Made(parts) => {
                let part = parts.first()?;
                (part.object.clone().unwrap_or(entry.object), Span::Range(part.stored.clone()))
            }
            span => (entry.object, span),
        };
        Some(ReadRequest::new(key, object, span, Tick(0)))
    }

    /// The next request, for the block of the shard around its sample.
    fn next_large(&mut self) -> Option<ReadRequest> {
        let request = self.next()?;
        let Span::Range(span) = &request.span else { return Some(request) };
        let begin = span.start / MAX_BLOCK_BYTES * MAX_BLOCK_BYTES;
        let end = begin.saturating_add(MAX_BLOCK_BYTES).min(request.object.size).max(span.end);
        Some(ReadRequest { span: Span::Range(begin..end), ..request })
    }
}

fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, message)
}

async fn of_origin(
    tier: &Arc<dyn OriginTier>,
    config: &Config,
    mut requests: RequestSource,
    budget: ProbeLimits,
    mut report: impl FnMut(CalibrateStage, Point),
) -> Result<OriginSpeed> {
    let sample_bytes = requests.mean;
    // The catalog was checked when it was opened, so the entry is readable.
    let first = requests.next().ok_or_else(|| usage("the catalog cannot be read"))?;
    let most = config.origin_parallelism.map_or(MAX_READS, |most| most.clamp(1, MAX_READS as usize) as u32);
    let is_packed = requests.catalog.format() != Format::Files;
    // Half of the bytes are for the servers.
    let has_servers = requests.catalog.has_servers();
    let budget = ProbeLimits { bytes: if has_servers { budget.bytes / 2 } else { budget.bytes }, ..budget };
    let half = ProbeLimits { time: budget.time / 2, bytes: budget.bytes / 2, ..budget };
    let of_samples = if is_packed { half } else { budget };
    let next = || requests.next().unwrap_or_else(|| first.clone());
    let read =
        probe::curve(tier, most, of_samples, next, |point| report(CalibrateStage::Origin, point)).await?;
    let Some(best) = read.iter().map(|point| point.bytes_per_second).max() else {
        let url = requests.catalog.base_url();
        let why =
            format!("{url}: not one sample came in {:.1} s; allow more time", budget.time.as_secs_f64());
        return Err(Error::new(ErrorKind::Dataset, why));
    };
    let mut large = None;
    if is_packed {
        let next = || requests.next_large().unwrap_or_else(|| first.clone());
        let most = most.min(MAX_LARGE_READS);
        let read = probe::curve(tier, most, half, next, |point| report(CalibrateStage::Large, point)).await?;
        // No point: the time was too short for one large read.
        large = (!read.is_empty()).then_some(LargeReads { bytes: MAX_BLOCK_BYTES, read });
    }
    let servers = server_probe::measure(tier, &requests, budget, |name, point| {
        report(CalibrateStage::Server(name.to_owned()), point);
    });
    let servers = servers.await?;
    let alone = read.first().map_or(best, |point| point.bytes_per_second).max(1);
    // A single read takes the latency and the transfer time of its bytes, at the best rate of
    // parallel reads.
    let latency_seconds = (sample_bytes as f64 / alone as f64 - sample_bytes as f64 / best as f64).max(0.0);
    Ok(OriginSpeed {
        url: requests.catalog.base_url().to_owned(),
        sample_bytes,
        latency_seconds,
        stream_bytes_per_second: best,
        read,
        large,
        servers,
    })
}
