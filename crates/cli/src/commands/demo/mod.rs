//! `foreread demo`: the same training run with and without foreread, on generated data and slow
//! storage.
//!
//! The storage is a directory with a latency of some milliseconds per read and a limited bandwidth.
//! All runs read from it. The demo ends with a chart of its rows, and with the next commands.

mod chart;
mod storage;

use std::fs;
use std::io::Write;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use foreread::backend::{OpenContext, OpenOptions, OriginTier, ReadRequest, Tier};
use foreread::dataset::IndexOptions;
use foreread::order::sampler;
use foreread::size::ByteSize;
use foreread::{Config, Loader, Memory, Registry, SamplerKind};
use foreread_layers::{Bandwidth, Stack};
#[cfg(feature = "plot")]
use foreread_plot::TimelineRow;
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::arguments::Demo;
use crate::progress::{ProgressMode, WorkProgress};
use crate::signals::Signals;
use crate::{output, plots, settings};
use storage::{LATENCY, SlowBackend};

const SAMPLES: u64 = 600;
const LONGEST: u64 = 120_000;
const EPOCHS: u64 = 3;
const BATCH: u64 = 32;
const COMPUTE: Duration = Duration::from_millis(25);
const RATE: NonZeroU64 = NonZeroU64::new(40 << 20).unwrap();
const LOOK_AHEAD: u64 = 8 << 20;
/// Readers like the worker processes of a usual loader: each reads a whole batch, sample after
/// sample.
const READERS: usize = 8;
/// Batches that are being read or wait for the trainer: two per reader.
const PREFETCH: usize = 2 * READERS;
const SEED: u64 = 42;

pub fn run(options: &Demo) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let (json, show) = (settings::is_json(&knobs)?, ProgressMode::of(&knobs, 0));
    let plot = plots::file(&knobs)?;
    let parent = options.directory.clone().unwrap_or_else(std::env::temp_dir);
    let directory = tempfile::Builder::new()
        .prefix("foreread-demo-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot create a directory in {}", parent.display()))?;
    // From here on an interrupted demo must remove its directory.
    let signals = Signals::watch()?;
    let bytes = generate(directory.path(), &signals, show)?;
    if json {
        let runs = runs(directory.path(), bytes, &signals, show)?;
        return settings::print_json(&json!({
            "samples": SAMPLES,
            "bytes": bytes,
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "compute_seconds_per_batch": COMPUTE.as_secs_f64(),
            "storage_bytes_per_second": RATE.get(),
            "storage_latency_seconds": LATENCY.as_secs_f64(),
            "runs": runs.iter().map(DemoRun::json).collect::<Vec<_>>(),
        }));
    }
    let mut out = output::stdout();
    let storage = format!(
        "{SAMPLES} samples, {}, on storage of {}/s with {} ms of latency",
        ByteSize(bytes),
        ByteSize(RATE.get()),
        LATENCY.as_millis(),
    );
    let trainer =
        format!("{EPOCHS} epochs in batches of {BATCH}, {} ms of computation each", COMPUTE.as_millis());
    writeln!(out, "{storage}; {trainer}.\n")?;
    out.flush()?;
    let rows = runs(directory.path(), bytes, &signals, show)?;
    write!(out, "{:30}", "seconds per epoch")?;
    (0..EPOCHS).try_for_each(|epoch| write!(out, "{epoch:>8}"))?;
    writeln!(out, "{:>9}{:>10}{:>12}{:>12}", "total", "waiting", "storage", "lower bound")?;
    for run in &rows {
        let (epochs, total) = (run.epochs(), run.seconds());
        write!(out, "{:30}", run.name)?;
        epochs.iter().try_for_each(|seconds| write!(out, "{seconds:>8.2}"))?;
        let (origin, floor) = (ByteSize(run.origin_bytes).to_string(), ByteSize(run.floor).to_string());
        writeln!(out, "{total:>9.2}{:>8.0} %{origin:>12}{floor:>12}", 100.0 * run.waited() / total)?;
    }
    let computing = SAMPLES.div_ceil(BATCH) as f64 * COMPUTE.as_secs_f64();
    writeln!(
        out,
        "\nComputation alone takes {computing:.2} s per epoch. The same seed gave the same order every \
         time.\n"
    )?;
    chart::write(&mut out, &rows)?;
    if let Some(path) = &plot {
        let (title, note) = ("foreread demo: when the trainer computes and when it waits", storage);
        plots::timeline(path, title, &note, &rows)?;
        writeln!(out, "\n{} has the same over time.", path.display())?;
    }
    writeln!(
        out,
        "\nNext, with your own data:\n  foreread plan DIR --memory 8GiB      what a cache of this size would \
         save\n  foreread load DIR --plot run.svg     how fast it is read, and from where"
    )?;
    Ok(out.flush()?)
}

/// The same training in all ways.
fn runs(directory: &Path, bytes: u64, signals: &Signals, show: ProgressMode) -> Result<Vec<DemoRun>> {
    let url = format!("slow://{}", directory.display());
    let named = |name, run: DemoRun| DemoRun { name, ..run };
    let mut runs = vec![
        named("plain loop, reads on demand", plain(&url, signals, show)?),
        named("8 readers, no plan", readers(&url, signals, show)?),
        named("foreread, no memory tier", ahead(&url, 0, signals, show)?),
        named("foreread, memory for half", ahead(&url, bytes / 2, signals, show)?),
        named("foreread, memory for all", ahead(&url, 2 * bytes, signals, show)?),
    ];
    let floor = runs[2].floor;
    runs[..2].iter_mut().for_each(|run| run.floor = floor);
    Ok(runs)
}

/// A step of the trainer, in seconds since the first request of the run.
#[derive(Clone, Copy)]
pub struct Step {
    epoch: u64,
    requested: f64,
    received: f64,
    computed: f64,
}

/// The steps of one run.
#[derive(Default)]
pub struct DemoRun {
    name: &'static str,
    began: Option<Instant>,
    steps: Vec<Step>,
    origin_bytes: u64,
    floor: u64,
}

impl DemoRun {
    /// Computes on a batch that was requested at `asked` and received at `got`.
    fn step(&mut self, epoch: u64, asked: Instant, got: Instant) {
        std::thread::sleep(COMPUTE);
        let began = *self.began.get_or_insert(asked);
        let [requested, received, computed] =
            [asked, got, Instant::now()].map(|at| (at - began).as_secs_f64());
        self.steps.push(Step { epoch, requested, received, computed });
    }

    /// The seconds of each epoch.
    fn epochs(&self) -> [f64; EPOCHS as usize] {
        let mut seconds = [0.0; EPOCHS as usize];
        self.steps.iter().for_each(|step| seconds[step.epoch as usize] += step.computed - step.requested);
        seconds
    }

    fn seconds(&self) -> f64 {
        self.epochs().iter().sum()
    }

    /// The spans in which the trainer computes, and the epochs' ends.
    #[cfg(feature = "plot")]
    pub fn timeline(&self) -> TimelineRow {
        let last = |epoch| self.steps.iter().rfind(|step| step.epoch == epoch);
        TimelineRow {
            name: self.name.to_owned(),
            busy: self.steps.iter().map(|step| (step.received, step.computed)).collect(),
            epoch_ends: (0..EPOCHS).filter_map(last).map(|step| step.computed).collect(),
        }
    }

    fn waited(&self) -> f64 {
        self.steps.iter().map(|step| step.received - step.requested).sum()
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "epoch_seconds": self.epochs(),
            "waiting_seconds": self.waited(),
            "origin_bytes": self.origin_bytes,
            "floor_origin_bytes": self.floor,
        })
    }
}

fn registry() -> Registry {
    Registry::with_defaults().register(SlowBackend)
}

/// The data without foreread's engine: the origin, and each epoch's requests by batch.
struct DirectReads {
    runtime: tokio::runtime::Runtime,
    origin: Arc<dyn OriginTier>,
    epochs: Vec<Vec<Vec<ReadRequest>>>,
}

impl DirectReads {
    fn open(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let buffers = Arc::new(foreread::backend::HeapBuffers);
        let context = OpenContext { buffers, runtime: runtime.handle().clone(), seed: SEED };
        let registry = registry();
        let origin = runtime.block_on(registry.find(url)?.open(url, &OpenOptions::default(), &context))?;
        let origin = Stack::bare().with_bandwidth(Some(Bandwidth::new(RATE))).wrap(origin);
        let catalog = Loader::builder(url).registry(registry).index(IndexOptions::default(), |_| ())?;
        let order = sampler(SamplerKind::Shuffle, catalog.len(), SEED)?;
        let request = |id: &SampleId| -> Result<ReadRequest> {
            let (entry, key) = (catalog.entry(*id)?, SampleKey::new(DatasetId(0), *id));
            Ok(ReadRequest::new(key, entry.object, entry.span, Tick(0)))
        };
        let epoch = |epoch| -> Result<Vec<Vec<ReadRequest>>> {
            let order = order.order(epoch)?;
            let mut ids = vec![SampleId(0); order.len() as usize];
            order.fill(0, 1, &mut ids);
            ids.chunks(BATCH as usize).map(|batch| batch.iter().map(request).collect()).collect()
        };
        let epochs = (0..EPOCHS).map(epoch).collect::<Result<_>>()?;
        Ok(Self { runtime, origin, epochs })
    }
}

/// Reads samples one after the other, and returns the number of bytes.
async fn one_by_one(origin: &dyn Tier, requests: Vec<ReadRequest>) -> Result<u64> {
    let mut bytes = 0;
    for request in requests {
        bytes += origin.read(Arc::new(request)).await?.len() as u64;
    }
    Ok(bytes)
}

/// A plain training loop: it reads the next batch's samples when it needs them, one after the
/// other.
fn plain(url: &str, signals: &Signals, show: ProgressMode) -> Result<DemoRun> {
    let DirectReads { runtime, origin, epochs } = DirectReads::open(url)?;
    let mut work = WorkProgress::new(show, "without foreread", EPOCHS * SAMPLES, "samples");
    let mut outcome = DemoRun::default();
    for (batches, epoch) in epochs.into_iter().zip(0..) {
        for batch in batches {
            let asked = Instant::now();
            for request in batch {
                outcome.origin_bytes += runtime.block_on(one_by_one(&*origin, vec![request]))?;
                signals.check()?;
                work.step();
            }
            outcome.step(epoch, asked, Instant::now());
        }
    }
    Ok(outcome)
}

/// A usual loader: some readers prefetch, one batch each, and epoch by epoch.
fn readers(url: &str, signals: &Signals, show: ProgressMode) -> Result<DemoRun> {
    let DirectReads { runtime, origin, epochs } = DirectReads::open(url)?;
    let mut work = WorkProgress::new(show, "with 8 readers", EPOCHS * SAMPLES.div_ceil(BATCH), "batches");
    let mut outcome = DemoRun::default();
    for (batches, epoch) in epochs.into_iter().zip(0..) {
        let free = Arc::new(Semaphore::new(READERS));
        let mut batches = stream::iter(batches)
            .map(|batch| {
                let (free, origin) = (Arc::clone(&free), Arc::clone(&origin));
                runtime.spawn(async move {
                    let _reader = free.acquire_owned().await?;
                    one_by_one(&*origin, batch).await
                })
            })
            .buffered(PREFETCH);
        loop {
            let asked = Instant::now();
            let Some(bytes) = runtime.block_on(batches.next()) else { break };
            outcome.origin_bytes += bytes??;
            outcome.step(epoch, asked, Instant::now());
            signals.check()?;
            work.step();
        }
    }
    Ok(outcome)
}

/// The same run with foreread.
fn ahead(url: &str, memory: u64, signals: &Signals, show: ProgressMode) -> Result<DemoRun> {
    let mut config = Config::default();
    (config.batch_size, config.epochs, config.seed) = (BATCH, EPOCHS, SEED);
    (config.memory, config.look_ahead) = (Memory::Bytes(memory), LOOK_AHEAD);
    config.origin_limit = Some(RATE.get());
    let loader = Loader::builder_with(url, config).registry(registry()).start()?;
    let mut work = WorkProgress::new(show, "with foreread", EPOCHS * SAMPLES.div_ceil(BATCH), "batches");
    let mut outcome = DemoRun::default();
    loop {
        let asked = Instant::now();
        let Some(batch) = loader.batches().next() else { break };
        outcome.step(batch?.epoch(), asked, Instant::now());
        signals.check()?;
        work.step();
    }
    let report = loader.report();
    (outcome.origin_bytes, outcome.floor) = (report.origin_bytes, report.floor_origin_bytes);
    Ok(outcome)
}

/// Writes samples of different lengths in ten classes, and returns the number of bytes.
fn generate(directory: &Path, signals: &Signals, show: ProgressMode) -> Result<u64> {
    let mut work = WorkProgress::new(show, "generating data", SAMPLES, "samples");
    let mut state = SEED;
    let mut sum = 0;
    for id in 0..SAMPLES {
        let class = directory.join(format!("class-{}", id % 10));
        fs::create_dir_all(&class).with_context(|| format!("cannot create {}", class.display()))?;
        let mut bytes = vec![0u8; (LONGEST / 2 + id * 7919 % (LONGEST / 2)) as usize];
        for word in bytes.chunks_mut(8) {
            // xorshift64 (Marsaglia, 2003): bytes that do not compress.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        sum += bytes.len() as u64;
        let path = class.join(format!("{id:05}.bin"));
        fs::write(&path, bytes).with_context(|| format!("{} cannot be written", path.display()))?;
        signals.check()?;
        work.step();
    }
    Ok(sum)
}
