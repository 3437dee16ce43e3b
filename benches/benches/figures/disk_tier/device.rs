//! The cost of a read from the tier, compared with 16 threads that read the same records with
//! direct I/O and do not verify them.
//!
//! Each contender reads every sample once, in a different order, in a separate process. CPU time is
//! that of all threads, including the receiver of the responses. The receiver checks the length of
//! each response and drops it, with four batches of 64 in flight.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use foreread_benches::table::{Figure, Goal};
use foreread_benches::usage::{Usage, cached_pages};
use foreread_benches::{median, subprocess};
use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskReader, DiskTier};
use foreread_oracle::{Sampler, Shuffle};
use foreread_tier::{
    ArenaBuffers, Buffer, Buffers, CacheTier, HeapBuffers, Object, ReadRequest, Sample, Span,
};
use foreread_tier_testing::ReadAll;
use foreread_types::{DatasetId, DatasetIdentity, SampleId, SampleKey, Tick};
use futures::StreamExt;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

/// Samples in each tier, and their lengths in the two tiers: about that of an image, and a small
/// one.
const SAMPLES: u64 = 5000;
const LENGTHS: [u64; 2] = [110_000, 16_000];

const ROUNDS: usize = 7;

/// Threads of the loop, each with one read in flight.
const LOOP_THREADS: usize = 16;

/// Reads per batch, and batches in flight.
const BATCH: usize = 64;
const BATCHES: usize = 4;

/// The contenders' names, as an argument and in the table. The two loops come first.
const CONTENDERS: [(&str, &str); 6] = [
    ("loop", "a loop of direct reads, 16 in flight, new buffers"),
    ("loop-reused", "the same loop with reused buffers"),
    ("io_uring", "the tier with io_uring"),
    ("threads", "the tier with threads"),
    ("io_uring-heap", "the tier with io_uring, every buffer from the allocator"),
    ("threads-heap", "the tier with threads, every buffer from the allocator"),
];

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measurement {
    used: Usage,
    /// Seconds to open the tier.
    opened: f64,
}

impl Measurement {
    fn rate(&self) -> f64 {
        SAMPLES as f64 / self.used.seconds
    }

    fn cpu(&self) -> f64 {
        self.used.cpu * 1e6 / SAMPLES as f64
    }
}

pub fn figures() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut opened = Vec::new();
    for length in LENGTHS {
        let directory = tempfile::tempdir()?;
        let ask = |name: &str| -> Result<Measurement> {
            subprocess::run(&[&"disk_tier", &"device", &name, &directory.path(), &length.to_string()])
        };
        ask("fill")?;
        let mut found: Vec<Vec<Measurement>> = vec![Vec::new(); CONTENDERS.len()];
        for _ in 0..ROUNDS {
            for ((name, _), found) in CONTENDERS.iter().zip(&mut found) {
                found.push(ask(name)?);
            }
        }
        let about = format!("disk tier, {} kB samples", length / 1000);
        for at in 2..CONTENDERS.len() {
            // Rounds are paired, so that noise affects both. The faster of the two loops counts.
            let shares = found[at].iter().zip(&found[0]).zip(&found[1]);
            let shares = shares.map(|((ours, a), b)| ours.rate() / a.rate().max(b.rate()) * 100.0);
            let (_, what) = CONTENDERS[at];
            let target = if at == 2 { Goal::AtLeast(90.0) } else { Goal::None };
            figures.push(Figure::new(
                format!("{about}: {what}, rate / the faster loop's"),
                target,
                median(shares),
                "%",
            ));
        }
        for (at, (_, what)) in CONTENDERS.iter().enumerate() {
            let target = if at == 2 && length == LENGTHS[0] { Goal::AtMost(20.0) } else { Goal::None };
            let rate = median(found[at].iter().map(Measurement::rate));
            let cpu = median(found[at].iter().map(Measurement::cpu));
            let least = found[at].iter().map(Measurement::cpu).fold(f64::INFINITY, f64::min);
            let system = median(found[at].iter().map(|found| found.used.system * 1e6 / SAMPLES as f64));
            figures.push(Figure::new(format!("{about}: {what}, CPU"), target, cpu, "us/sample").note(
                format!(
                    "{:.0} MB/s; {system:.1} us in the kernel; {least:.1} us in the best round",
                    rate * length as f64 / 1e6
                ),
            ));
        }
        let (held, pages) = pages(directory.path())?;
        figures.push(
            Figure::new(
                format!("{about}: share in the page cache after {} passes", ROUNDS * (CONTENDERS.len() - 2)),
                Goal::AtMost(1.0),
                held as f64 / pages as f64 * 100.0,
                "%",
            )
            .note(format!("{held} of {pages} pages, by mincore")),
        );
        opened.push((length, median(found[2..].iter().flatten().map(|found| found.opened)) * 1e3));
    }
    for (length, ms) in opened {
        let what = format!("disk tier, {SAMPLES} samples of {} kB: reopen", length / 1000);
        figures.push(Figure::new(what, Goal::None, ms, "ms").note("reads the index, not the samples"));
    }
    Ok(figures)
}

/// The number of the segments' pages in the page cache, and the number of all their pages.
fn pages(directory: &Path) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    for path in segments(directory)? {
        let (held, pages) = cached_pages(&File::open(path)?)?;
        sum = (sum.0 + held, sum.1 + pages);
    }
    Ok(sum)
}

pub fn part(args: &[String]) -> Result<()> {
    let [name, directory, length] = args else {
        bail!("expected a contender, a directory and a sample length")
    };
    let (directory, length): (&Path, u64) = (Path::new(directory), length.parse()?);
    // Raises glibc's mmap threshold. Otherwise it returns almost every sample's memory to the
    // kernel.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(31 << 20)));
    let found = match name.as_str() {
        "fill" => fill(directory, length)?,
        "loop" => direct_reads(directory, length, true)?,
        "loop-reused" => direct_reads(directory, length, false)?,
        _ => {
            let (reader, buffers): (&str, Arc<dyn Buffers>) = match name.strip_suffix("-heap") {
                Some(reader) => (reader, Arc::new(HeapBuffers)),
                None => (name, Arc::new(ArenaBuffers::default())),
            };
            let reader = match reader {
                "threads" => DiskReader::Threads,
                "io_uring" => DiskReader::Ring,
                other => bail!("unknown contender {other}"),
            };
            tier(directory, length, reader, buffers)?
        }
    };
    subprocess::print_result(&found)
}

fn open(directory: &Path, length: u64, reader: DiskReader, buffers: Arc<dyn Buffers>) -> Result<DiskTier> {
    let capacity = SAMPLES * (length + 8192) + (64 << 20);
    let config = DiskConfig::new([(directory.to_owned(), capacity)]).with_reader(reader);
    let dataset = DatasetOnDisk { identity: DatasetIdentity(1), samples: SAMPLES, bytes: SAMPLES * length };
    Ok(DiskTier::open(config, &[dataset], buffers)?)
}

fn key(id: SampleId) -> SampleKey {
    SampleKey::new(DatasetId(0), id)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Stores every sample. The bytes do not repeat, so that no device can compress them.
fn fill(directory: &Path, length: u64) -> Result<Measurement> {
    let start = Instant::now();
    let tier = open(directory, length, DiskReader::Auto, Arc::new(HeapBuffers))?;
    let mut state = 1u64;
    let mut noise = Vec::new();
    while (noise.len() as u64) < length + 64 * 512 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    let noise = Bytes::from(noise);
    runtime()?.block_on(async {
        let stores = (0..SAMPLES).map(|id| {
            let from = (id % 512 * 64) as usize;
            let content = noise.slice(from..from + length as usize);
            let room =
                tier.reserve(tier.footprint().of(length)).context("the tier has no room for all samples")?;
            Ok(tier.store(room, key(SampleId(id)), Sample::uncharged(content)))
        });
        let stores = stores.collect::<Result<Vec<_>>>()?;
        let mut stores = futures::stream::iter(stores).buffer_unordered(BATCH);
        while let Some(stored) = stores.next().await {
            stored?;
        }
        tier.flush().await;
        anyhow::Ok(())
    })?;
    ensure!(tier.stored(DatasetId(0)).samples == SAMPLES, "{:?}", tier.counts());
    Ok(Measurement { used: Usage::since(start), opened: 0.0 })
}

/// A shuffled order, different in each process.
fn order() -> Result<Vec<SampleId>> {
    let mut ids = vec![SampleId(0); SAMPLES as usize];
    let epoch = u64::from(std::process::id());
    Shuffle::new(SAMPLES, 1)?.order(epoch)?.fill(0, 1, &mut ids);
    Ok(ids)
}

fn tier(directory: &Path, length: u64, reader: DiskReader, buffers: Arc<dyn Buffers>) -> Result<Measurement> {
    let start = Instant::now();
    let tier = open(directory, length, reader, buffers)?;
    let opened = start.elapsed().as_secs_f64();
    let ids = order()?;
    runtime()?.block_on(async {
        // Warm-up: creates threads and rings, and loads memory and the files' block lists.
        read(&tier, &ids[..ids.len() / 10], length).await?;
        let before = Usage::since(start);
        read(&tier, &ids, length).await?;
        let used = Usage::since(start) - before;
        ensure!(tier.counts().corrupt == 0, "{:?}", tier.counts());
        Ok(Measurement { used, opened })
    })
}

async fn read(tier: &DiskTier, ids: &[SampleId], length: u64) -> Result<()> {
    let mut in_flight = VecDeque::new();
    let mut batches = ids.chunks(BATCH).map(|ids| tier.read_all(requests(ids, length)));
    in_flight.extend(batches.by_ref().take(BATCHES));
    let mut received = 0;
    while let Some(mut answers) = in_flight.pop_front() {
        while let Some(answer) = answers.next().await {
            ensure!(answer.result?.len() as u64 == length, "a sample has the wrong length");
            received += 1;
        }
        in_flight.extend(batches.next());
    }
    ensure!(received == ids.len(), "{received} of {} responses received", ids.len());
    Ok(())
}

fn requests(ids: &[SampleId], length: u64) -> Vec<ReadRequest> {
    let object = Object { path: "".into(), size: length, version: None };
    let request = |&id: &SampleId| ReadRequest::new(key(id), object.clone(), Span::Whole, Tick(0));
    ids.iter().map(request).collect()
}

/// Direct reads of the sectors around each record, into a new buffer or into the same one.
fn direct_reads(directory: &Path, length: u64, own: bool) -> Result<Measurement> {
    let start = Instant::now();
    const BLOCK: u64 = 4096;
    const SECTOR: u64 = 512;
    let record = (length + 24).next_multiple_of(64);
    let most = (record + 2 * BLOCK) as usize;
    let mut places = Vec::new();
    for path in segments(directory)? {
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())?;
        let file = Arc::new(File::from(file));
        let records = (file.metadata()?.len() - BLOCK) / record;
        places.extend((0..records).map(|at| {
            let start = BLOCK + at * record;
            let blocks = start / SECTOR * SECTOR..(start + record).next_multiple_of(SECTOR);
            (Arc::clone(&file), blocks.start, (blocks.end - blocks.start) as usize)
        }));
    }
    ensure!(places.len() as u64 >= SAMPLES, "{} records", places.len());
    let ids = order()?;
    let pass = |ids: &[SampleId]| -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            let memory = |length| Buffer::heap(length, BLOCK as usize).context("cannot allocate a buffer");
            let mut buffer = memory(most)?;
            while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (file, offset, length) = &places[id.0 as usize];
                if own {
                    buffer = memory(*length)?;
                }
                let mut read = 0;
                buffer.fill(|empty| {
                    let (done, _) = rustix::io::pread(file, &mut empty[..*length], *offset)?;
                    read = done.len();
                    // Bytes not reported as filled are overwritten by the next read.
                    Ok::<_, rustix::io::Errno>(if own { done } else { &mut [] })
                })?;
                ensure!(read == *length, "read {read} bytes");
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..LOOP_THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(done) => done,
                Err(_) => bail!("a thread panicked"),
            })
        })
    };
    pass(&ids[..ids.len() / 10])?;
    let before = Usage::since(start);
    pass(&ids)?;
    Ok(Measurement { used: Usage::since(start) - before, opened: 0.0 })
}

fn segments(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(segments(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "segment") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
