//! A page-cached directory: foreread with its defaults against plain positioned reads, each in a process of its own,
//! in turns.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use foreread::dataset::IndexOptions;
use foreread::{Builder, Catalog, Loader, Memory};
use foreread_benches::table::{Asked, Figure};
use foreread_benches::usage::Usage;
use foreread_benches::{median, share};
use foreread_local::{LocalConfig, LocalOrigin};
use foreread_oracle::{Sampler, Shuffle};
use foreread_tier::{HeapBuffers, Object, ReadRequest, RecycledBuffers, Span};
use foreread_tier_testing::ReadAll;
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::StreamExt;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

const BATCH: usize = 64;
const SEED: u64 = 7;

/// Warm epochs of one process; one more comes before them.
const EPOCHS: u64 = 9;

/// How often each contender has its turn.
const ROUNDS: usize = 7;

/// Who reads, and what it is called in the table.
const CONTENDERS: [(&str, &str); 8] = [
    ("foreread", "foreread, defaults"),
    ("foreread-heap", "foreread, every buffer from the allocator"),
    ("origin", "foreread's origin alone, without the engine"),
    ("foreread-memory", "foreread, memory for all of it"),
    ("plain-1", "1 thread of open, pread, close"),
    ("plain-2", "2 threads of open, pread, close"),
    ("readv", "1 thread into one buffer for ever (the floor)"),
    ("copied", "1 thread into one buffer a batch"),
];

/// What one process found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Found {
    samples: f64,
    bytes: f64,
    warm: Usage,
    /// With starting up, listing and the first epoch.
    whole: Usage,
    whole_samples: f64,
}

impl Found {
    fn rate(&self) -> f64 {
        self.samples / self.warm.seconds
    }

    fn cpu(&self) -> f64 {
        self.warm.cpu * 1e6 / self.samples
    }
}

/// All contenders over `directory`, in turns.
pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let mut found: Vec<Vec<Found>> = vec![Vec::new(); CONTENDERS.len()];
    for _ in 0..ROUNDS {
        for ((name, _), found) in CONTENDERS.iter().zip(&mut found) {
            found.push(share::ask(&[&"local_directory", name, &directory])?);
        }
    }
    let mid = |name: &str, figure: fn(&Found) -> f64| {
        let at = CONTENDERS.iter().position(|(other, _)| *other == name);
        median(at.map_or(&[][..], |at| &found[at]).iter().map(figure))
    };
    let mut figures = Vec::new();
    let rate = mid("foreread", Found::rate);
    // Round by round, so that a neighbour's noise meets both.
    let ratio = |name: &str| {
        let at = CONTENDERS.iter().position(|(other, _)| *other == name).unwrap_or(0);
        median(found[0].iter().zip(&found[at]).map(|(ours, theirs)| ours.rate() / theirs.rate()))
    };
    figures.push(
        Figure::new(
            "page-cached directory, CPU of all threads",
            Asked::AtMost(24.0),
            mid("foreread", Found::cpu),
            "us/sample",
        )
        .note(format!(
            "{:.1} of it in the kernel, {:.1} page faults",
            mid("foreread", |found| found.warm.system * 1e6 / found.samples),
            mid("foreread", |found| found.warm.faults / found.samples)
        )),
    );
    figures.push(Figure::new(
        "the same with starting up, listing and the first epoch",
        Asked::AtMost(24.0),
        mid("foreread", |found| found.whole.cpu * 1e6 / found.whole_samples),
        "us/sample",
    ));
    figures.push(Figure::new(
        "against 1 thread of plain positioned reads",
        Asked::AtLeast(1.5),
        ratio("plain-1"),
        "times",
    ));
    figures.push(Figure::new("against 2 such threads", Asked::Nothing, ratio("plain-2"), "times"));
    figures.push(Figure::new(
        "against 1 thread into one buffer for ever",
        Asked::Nothing,
        ratio("readv"),
        "times",
    ));
    for (name, what) in CONTENDERS {
        let note = format!(
            "{:.1} us CPU a sample, {:.1} page faults; {:.1} GB/s",
            mid(name, Found::cpu),
            mid(name, |found| found.warm.faults / found.samples),
            mid(name, |found| found.bytes / found.warm.seconds / 1e9)
        );
        figures.push(
            Figure::new(format!("- {what}"), Asked::Nothing, mid(name, Found::rate), "samples/s").note(note),
        );
    }
    ensure!(rate.is_finite(), "nothing was measured");
    Ok(figures)
}

/// One contender, in its own process.
pub fn part(args: &[String]) -> Result<()> {
    let [name, directory] = args else { bail!("a contender and a directory") };
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
        _ => bail!("nobody is called {name}"),
    };
    share::answer(&found)
}

fn foreread(builder: Builder) -> Result<Found> {
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
    Ok(Found {
        samples: warm_samples,
        bytes: bytes as f64,
        warm: end - warm,
        whole: end,
        whole_samples: samples as f64,
    })
}

/// What a plain reader needs to know: its files and its order.
struct Plan {
    files: Vec<(PathBuf, usize)>,
    orders: Vec<Vec<SampleId>>,
}

impl Plan {
    fn new(directory: &Path) -> Result<Self> {
        let path = directory.to_str().context("the directory's name is text")?;
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

    /// Times `work` on all the orders, the first apart.
    fn measure(
        self,
        start: Instant,
        mut work: impl FnMut(&Self, &[SampleId]) -> Result<u64>,
    ) -> Result<Found> {
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
        Ok(Found { samples, bytes, warm: end - warm, whole: end, whole_samples })
    }
}

/// Opens, reads the whole file into `room`, closes.
fn read_into(path: &Path, room: &mut [MaybeUninit<u8>]) -> Result<()> {
    let length = room.len();
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (done, _) = rustix::io::pread(&file, room, 0)?;
    ensure!(done.len() == length, "{} became shorter", path.display());
    Ok(())
}

/// A sample in memory of exactly its size, which is not cleared first.
fn read((path, length): &(PathBuf, usize)) -> Result<Vec<u8>> {
    let mut sample = Vec::with_capacity(*length);
    read_into(path, &mut sample.spare_capacity_mut()[..*length])?;
    // SAFETY: `read_into` has filled `length` bytes, or failed.
    unsafe { sample.set_len(*length) };
    Ok(sample)
}

/// One thread that reads batch by batch, or several of which each reads every n-th batch and hands it over.
fn plain(directory: &Path, threads: usize) -> Result<Found> {
    let start = Instant::now();
    let plan = Plan::new(directory)?;
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
            let mut answers = Vec::new();
            for thread in 0..threads {
                let (say, said) = sync_channel(2);
                answers.push(said);
                let files = Arc::clone(&files);
                scope.spawn(move || {
                    for ids in order.chunks(BATCH).skip(thread).step_by(threads) {
                        let batch =
                            ids.iter().map(|id| read(&files[id.0 as usize])).collect::<Result<Vec<_>>>();
                        if say.send(batch).is_err() {
                            return;
                        }
                    }
                });
            }
            let mut bytes = 0;
            for (number, _) in order.chunks(BATCH).enumerate() {
                let batch = answers[number % threads].recv()??;
                bytes += batch.iter().map(|sample| sample.len() as u64).sum::<u64>();
            }
            Ok(bytes)
        })
    })
}

/// The origin alone, with as many batches under way as keep it busy; what comes of a batch is dropped together.
fn origin(directory: &Path) -> Result<Found> {
    let start = Instant::now();
    let plan = Plan::new(directory)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let origin = LocalOrigin::open(directory, LocalConfig::default(), Arc::new(RecycledBuffers::default()))?;
    let mut objects = Vec::new();
    for (path, size) in &plan.files {
        let path = path.strip_prefix(directory)?.to_str().context("the file's name is text")?;
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

/// One thread that reads all into one buffer, again and again; or, as a loader must, into a new one for each batch.
fn one_buffer(directory: &Path, own: bool) -> Result<Found> {
    let start = Instant::now();
    let plan = Plan::new(directory)?;
    let length =
        |ids: &[SampleId], plan: &Plan| ids.iter().map(|id| plan.files[id.0 as usize].1).sum::<usize>();
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
