//! A page-cached directory: foreread with its defaults compared with plain positioned reads, in
//! turns, each in a separate process.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use foreread::dataset::IndexOptions;
use foreread::{Builder, Catalog, Loader, Memory};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::usage::Usage;
use foreread_benches::{median, subprocess};
use foreread_local::{LocalConfig, LocalOrigin};
use foreread_oracle::{Sampler, Shuffle};
use foreread_tier::{ArenaBuffers, HeapBuffers, Object, ReadRequest, Span};
use foreread_tier_testing::ReadAll;
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::StreamExt;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

const BATCH: usize = 64;
const SEED: u64 = 7;

/// Warm epochs of a process. One cold epoch precedes them.
const EPOCHS: u64 = 9;

/// Rounds of each contender.
const ROUNDS: usize = 7;

/// The contenders, and their names in the table.
const CONTENDERS: [(&str, &str); 8] = [
    ("foreread", "foreread, defaults"),
    ("foreread-heap", "foreread, every buffer from the allocator"),
    ("origin", "foreread's origin without the engine"),
    ("foreread-memory", "foreread, memory for all of it"),
    ("plain-1", "1 thread of open, pread, close"),
    ("plain-2", "2 threads of open, pread, close"),
    ("readv", "1 thread into one reused buffer (the lower bound)"),
    ("copied", "1 thread into one new buffer per batch"),
];

/// The measurement of one process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measurement {
    samples: f64,
    bytes: f64,
    warm: Usage,
    /// Including startup, listing and the first epoch.
    whole: Usage,
    whole_samples: f64,
}

impl Measurement {
    fn rate(&self) -> f64 {
        self.samples / self.warm.seconds
    }

    fn cpu(&self) -> f64 {
        self.warm.cpu * 1e6 / self.samples
    }
}

/// All contenders over `directory`, in turns.
pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let mut found: Vec<Vec<Measurement>> = vec![Vec::new(); CONTENDERS.len()];
    for _ in 0..ROUNDS {
        for ((name, _), found) in CONTENDERS.iter().zip(&mut found) {
            found.push(subprocess::run(&[&"local_directory", name, &directory])?);
        }
    }
    let mid = |name: &str, figure: fn(&Measurement) -> f64| {
        let at = CONTENDERS.iter().position(|(other, _)| *other == name);
        median(at.map_or(&[][..], |at| &found[at]).iter().map(figure))
    };
    let mut figures = Vec::new();
    let rate = mid("foreread", Measurement::rate);
    // Rounds are paired, so that noise affects both.
    let ratio = |name: &str| {
        let at = CONTENDERS.iter().position(|(other, _)| *other == name).unwrap_or(0);
        median(found[0].iter().zip(&found[at]).map(|(ours, theirs)| ours.rate() / theirs.rate()))
    };
    figures.push(
        Figure::new(
            "page-cached directory, CPU of all threads",
            Goal::AtMost(24.0),
            mid("foreread", Measurement::cpu),
            "us/sample",
        )
        .note(format!(
            "{:.1} us in the kernel, {:.1} page faults per sample",
            mid("foreread", |found| found.warm.system * 1e6 / found.samples),
            mid("foreread", |found| found.warm.faults / found.samples)
        )),
    );
    figures.push(Figure::new(
        "the same including startup, listing and the first epoch",
        Goal::AtMost(24.0),
        mid("foreread", |found| found.whole.cpu * 1e6 / found.whole_samples),
        "us/sample",
    ));
    figures.push(Figure::new(
        "rate / 1 thread of plain positioned reads",
        Goal::AtLeast(1.5),
        ratio("plain-1"),
        "times",
    ));
    figures.push(Figure::new("rate / 2 such threads", Goal::None, ratio("plain-2"), "times"));
    figures.push(Figure::new("rate / 1 thread into one reused buffer", Goal::None, ratio("readv"), "times"));
    for (name, what) in CONTENDERS {
        let note = format!(
            "{:.1} us CPU and {:.1} page faults per sample; {:.1} GB/s",
            mid(name, Measurement::cpu),
            mid(name, |found| found.warm.faults / found.samples),
            mid(name, |found| found.bytes / found.warm.seconds / 1e9)
        );
        figures.push(
            Figure::new(format!("- {what}"), Goal::None, mid(name, Measurement::rate), "samples/s")
                .note(note),
        );
    }
    ensure!(rate.is_finite(), "nothing was measured");
    Ok(figures)
}

/// Runs one contender, in a separate process.
pub fn part(args: &[String]) -> Result<()> {
    let [name, directory] = args else { bail!("expected a contender and a directory") };
    let path = Path::new(directory);
    let found = match &**name {
        "foreread" => foreread(Loader::builder(directory))?,
        "foreread-heap" => foreread(Loader::builder(directory).buffers(Arc::new(HeapBuffers)))?,
        "foreread-memory" => foreread(Loader::builder(directory).memory(Memory::Bytes(4 << 30)))?,
        "origin" => origin(path)?,
        "plain-1" => plain(path, 1)?,
        "plain-2" => plain(path, 2)?,
        "readv" => one_buffer(path, false)?,
        "copied" => one_buffer(path, true)?,
        _ => bail!("unknown contender {name}"),
    };
    subprocess::print_result(&found)
}

fn foreread(builder: Builder) -> Result<Measurement> {
    let start = Instant::now();
    let loader = builder.batch_size(BATCH as u64).epochs(EPOCHS + 1).seed(SEED).start()?;
    let first = loader.catalogs()[0].len();
    let (mut samples, mut bytes) = (0, 0);
    let mut warm = Usage::since(start);
    for batch in &loader {
        let batch = batch?;
        samples += batch.len() as u64;
        bytes += batch.bytes();
        if samples == first {
            (warm, bytes) = (Usage::since(start), 0);
        }
    }
    let end = Usage::since(start);
    let warm_samples = (samples - first) as f64;
    Ok(Measurement {
        samples: warm_samples,
        bytes: bytes as f64,
        warm: end - warm,
        whole: end,
        whole_samples: samples as f64,
    })
}

/// The files and the orders of a plain reader.
struct ReadPlan {
    files: Vec<(PathBuf, usize)>,
    orders: Vec<Vec<SampleId>>,
}

impl ReadPlan {
    fn new(directory: &Path) -> Result<Self> {
        let path = directory.to_str().context("the directory's name is not UTF-8")?;
        let catalog: Catalog = Loader::builder(path).index(IndexOptions::default(), |_| ())?;
        let mut files = Vec::new();
        for id in 0..catalog.len() {
            let entry = catalog.entry(SampleId(id))?;
            files.push((directory.join(&*entry.object.path), entry.object.size as usize));
        }
        let shuffle = Shuffle::new(catalog.len(), SEED)?;
        let mut orders = Vec::new();
        for epoch in 0..=EPOCHS {
            let mut order = vec![SampleId(0); files.len()];
            shuffle.order(epoch)?.fill(0, 1, &mut order);
            orders.push(order);
        }
        Ok(Self { files, orders })
    }

    /// Measures `work` on all orders. The first order is the cold epoch.
    fn measure(
        self,
        start: Instant,
        mut work: impl FnMut(&Self, &[SampleId]) -> Result<u64>,
    ) -> Result<Measurement> {
        let (mut warm, mut bytes) = (Usage::since(start), 0);
        for (epoch, order) in self.orders.iter().enumerate() {
            bytes += work(&self, order)?;
            if epoch == 0 {
                (warm, bytes) = (Usage::since(start), 0);
            }
        }
        let end = Usage::since(start);
        let (samples, bytes) = (self.files.len() as f64 * EPOCHS as f64, bytes as f64);
        let whole_samples = samples + self.files.len() as f64;
        Ok(Measurement { samples, bytes, warm: end - warm, whole: end, whole_samples })
    }
}

/// Opens a file, reads it completely into `room`, closes it.
fn read_into(path: &Path, room: &mut [MaybeUninit<u8>]) -> Result<()> {
    let length = room.len();
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (done, _) = rustix::io::pread(&file, room, 0)?;
    ensure!(done.len() == length, "{} was truncated", path.display());
    Ok(())
}

/// Reads a sample into an uninitialized buffer of exactly its size.
fn read((path, length): &(PathBuf, usize)) -> Result<Vec<u8>> {
    let mut sample = Vec::with_capacity(*length);
    read_into(path, &mut sample.spare_capacity_mut()[..*length])?;
    // SAFETY: `read_into` has filled `length` bytes. On failure this line is not reached.
    unsafe { sample.set_len(*length) };
    Ok(sample)
}

/// One thread that reads batch after batch, or `threads` that each read every n-th batch and send
/// it.
fn plain(directory: &Path, threads: usize) -> Result<Measurement> {
    let start = Instant::now();
    let plan = ReadPlan::new(directory)?;
    if threads == 1 {
        return plan.measure(start, |plan, order| {
            let mut bytes = 0;
            for ids in order.chunks(BATCH) {
                let batch =
                    ids.iter().map(|id| read(&plan.files[id.0 as usize])).collect::<Result<Vec<_>>>()?;
                bytes += batch.iter().map(|sample| sample.len() as u64).sum::<u64>();
            }
            Ok(bytes)
        });
    }
    let files: Arc<[_]> = plan.files.clone().into();
    plan.measure(start, |_, order| {
        std::thread::scope(|scope| {
            let mut receivers = Vec::new();
            for thread in 0..threads {
                let (sender, receiver) = sync_channel(2);
                receivers.push(receiver);
                let files = Arc::clone(&files);
                scope.spawn(move || {
                    for ids in order.chunks(BATCH).skip(thread).step_by(threads) {
                        let batch =
                            ids.iter().map(|id| read(&files[id.0 as usize])).collect::<Result<Vec<_>>>();
                        if sender.send(batch).is_err() {
                            return;
                        }
                    }
                });
            }
            let mut bytes = 0;
            for (number, _) in order.chunks(BATCH).enumerate() {
                let batch = receivers[number % threads].recv()??;
                bytes += batch.iter().map(|sample| sample.len() as u64).sum::<u64>();
            }
            Ok(bytes)
        })
    })
}

/// The origin without the engine, with four batches in flight. The samples of a batch are dropped
/// together.
fn origin(directory: &Path) -> Result<Measurement> {
    let start = Instant::now();
    let plan = ReadPlan::new(directory)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let origin = LocalOrigin::open(directory, LocalConfig::default(), Arc::new(ArenaBuffers::default()))?;
    let mut objects = Vec::new();
    for (path, size) in &plan.files {
        let path = path.strip_prefix(directory)?.to_str().context("the file's name is not UTF-8")?;
        objects.push(Object { path: path.into(), size: *size as u64, version: None });
    }
    let request = |(due, id): (usize, &SampleId)| {
        ReadRequest::new(
            SampleKey::new(DatasetId(0), *id),
            objects[id.0 as usize].clone(),
            Span::Whole,
            Tick(due as u64),
        )
    };
    let read =
        |ids: &[SampleId]| origin.read_all(ids.iter().enumerate().map(request).collect()).collect::<Vec<_>>();
    plan.measure(start, |_, order| {
        runtime.block_on(async {
            let mut bytes = 0;
            let mut batches = futures::stream::iter(order.chunks(BATCH).map(read)).buffered(4);
            while let Some(batch) = batches.next().await {
                for answer in batch {
                    bytes += answer.result?.len() as u64;
                }
            }
            Ok(bytes)
        })
    })
}

/// One thread that reads all samples into one reused buffer, or into a new buffer per batch, as a
/// loader must.
fn one_buffer(directory: &Path, own: bool) -> Result<Measurement> {
    let start = Instant::now();
    let plan = ReadPlan::new(directory)?;
    let length =
        |ids: &[SampleId], plan: &ReadPlan| ids.iter().map(|id| plan.files[id.0 as usize].1).sum::<usize>();
    let mut buffer: Vec<u8> = Vec::new();
    plan.measure(start, |plan, order| {
        let mut bytes = 0;
        for ids in order.chunks(BATCH) {
            let whole = length(ids, plan);
            if own || buffer.capacity() < whole {
                buffer = Vec::with_capacity(whole);
            }
            let mut room = &mut buffer.spare_capacity_mut()[..whole];
            for id in ids {
                let (path, length) = &plan.files[id.0 as usize];
                let (first, rest) = room.split_at_mut(*length);
                read_into(path, first)?;
                room = rest;
            }
            bytes += whole as u64;
        }
        Ok(bytes)
    })
}
