//! What reading from the disk tier costs, beside a plain loop of direct reads on the same device.
//!
//! `cargo run --release -p foreread-local --example disk -- [directory] [samples] [bytes each] [tier]`

#![expect(clippy::unwrap_used, reason = "a measurement that fails may say so by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskReader, DiskTier};
use foreread_tier::{Buffer, CacheTier, HeapBuffers, Object, ReadRequest, Sample, Span, Tier};
use foreread_types::{DatasetId, Fingerprint, SampleId, SampleKey, Tick};
use futures::StreamExt;
use futures::stream::SelectAll;
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn report(what: &str, samples: usize, bytes: usize, work: impl FnOnce()) -> f64 {
    let (wall, before) = (Instant::now(), cpu());
    work();
    let (wall, used) = (wall.elapsed(), cpu() - before);
    let each = |time: Duration| time.as_secs_f64() * 1e6 / samples as f64;
    let rate = (samples * bytes) as f64 / wall.as_secs_f64() / 1e6;
    println!("{what:44} {:6.2} us CPU {:6.2} us wall a sample {rate:7.0} MB/s", each(used), each(wall));
    rate
}

/// Bytes without repetition, so that no device compresses them.
fn bytes(id: u64, length: usize) -> Vec<u8> {
    let mut state = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn order(samples: usize, round: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..samples as u64).collect();
    order.sort_by_key(|id| (id + round * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20));
    order
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(segments(&path)),
            false => found.push(path),
        }
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
    found
}

/// Direct reads of whole records at random places of the same files; into the same memory each time, or its own.
fn plain(files: &[(fs::File, u64)], samples: usize, length: usize, threads: usize, own: bool) {
    let length = (length + 64).next_multiple_of(4096);
    let next = AtomicUsize::new(0);
    let order = order(samples, 77);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut memory = Buffer::heap(length + 4096, 4096).unwrap_or_else(|| panic!("no memory"));
                memory.extend(&vec![0; length]);
                let mut bytes = vec![0u8; length + 4096];
                let start = bytes.as_ptr().align_offset(4096);
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&draw) = order.get(at) else { break };
                    let (file, records) = &files[draw as usize % files.len()];
                    let offset = 4096 + draw / files.len() as u64 % records * length as u64;
                    if own {
                        let mut buffer = Buffer::heap(length, 4096).unwrap_or_else(|| panic!("no memory"));
                        let read = buffer
                            .fill(|empty| rustix::io::pread(file, empty, offset).map(|(done, _)| done))
                            .unwrap();
                        assert_eq!(read, length);
                    } else {
                        let read =
                            rustix::io::pread(file, &mut bytes[start..start + length], offset).unwrap();
                        assert_eq!(read, length);
                    }
                }
            });
        }
    });
}

fn open(
    directory: &Path,
    samples: usize,
    length: usize,
    parallelism: usize,
    reader: DiskReader,
    buffers: Arc<dyn foreread_tier::Buffers>,
) -> DiskTier {
    let capacity = (samples as u64 * (length as u64 + 8192)) + (256 << 20);
    let config =
        DiskConfig::new([(directory.to_owned(), capacity)]).with_parallelism(parallelism).with_reader(reader);
    let bytes = (samples * length) as u64;
    let dataset = DatasetOnDisk { fingerprint: Fingerprint(1), samples: samples as u64, bytes };
    DiskTier::open(config, &[dataset], buffers).unwrap()
}

fn main() {
    // Without this, glibc gives the memory of almost every sample back to the kernel and takes it again.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(31 << 20)));
    let mut words = std::env::args().skip(1);
    let own = tempfile::tempdir().unwrap();
    let directory = words.next().map_or(own.path().to_owned(), PathBuf::from);
    let samples: usize = words.next().map_or(10_000, |word| word.parse().unwrap());
    let length: usize = words.next().map_or(110_000, |word| word.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let key = |id: u64| SampleKey::new(DatasetId(0), SampleId(id));

    let tier = open(&directory, samples, length, 32, DiskReader::Auto, Arc::new(HeapBuffers));
    let content: Vec<bytes::Bytes> = (0..64).map(|id| bytes(id, length).into()).collect();
    report("store", samples, length, || {
        runtime.block_on(
            futures::stream::iter(0..samples as u64)
                .map(|id| {
                    let room = tier.reserve(tier.footprint().of(length as u64)).unwrap();
                    let sample = Sample::uncharged(content[id as usize % 64].clone());
                    let stored = tier.store(room, key(id), sample);
                    async { stored.await.unwrap() }
                })
                .buffer_unordered(64)
                .collect::<()>(),
        );
    });
    drop(tier);
    let start = Instant::now();
    let tier = open(&directory, samples, length, 32, DiskReader::Auto, Arc::new(HeapBuffers));
    println!("opened again: {:?}, {:?}", start.elapsed(), tier.stored(DatasetId(0)));
    drop(tier);

    let record = (length + 64).next_multiple_of(4096) as u64;
    let files: Vec<(fs::File, u64)> = segments(&directory)
        .into_iter()
        .map(|path| {
            let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap();
            let file = fs::File::from(file);
            let records = (file.metadata().unwrap().len() - 4096) / record;
            (file, records)
        })
        .collect();
    let mut best = [0f64; 12];
    let only = words.next();
    for round in 0..5 {
        let loops = [("loop of 16, memory reused", false), ("loop of 16, memory of its own", true)];
        for (at, (what, own)) in loops.into_iter().enumerate() {
            if only.is_some() {
                continue;
            }
            let rate = report(what, samples, length, || plain(&files, samples, length, 16, own));
            best[at] = best[at].max(rate);
        }
        for (at, parallelism, reader, recycled) in [
            (2, 16, DiskReader::Threads, false),
            (3, 16, DiskReader::Ring, false),
            (4, 32, DiskReader::Threads, false),
            (5, 32, DiskReader::Ring, false),
            (6, 32, DiskReader::Threads, true),
            (7, 32, DiskReader::Ring, true),
        ] {
            if only.as_deref() == Some("ring") && (reader != DiskReader::Ring || !recycled) {
                continue;
            }
            if only.as_deref() == Some("threads") && (reader != DiskReader::Threads || !recycled) {
                continue;
            }
            let buffers: Arc<dyn foreread_tier::Buffers> = if recycled {
                Arc::new(foreread_tier::RecycledBuffers::default())
            } else {
                Arc::new(HeapBuffers)
            };
            let tier = Arc::new(open(&directory, samples, length, parallelism, reader, buffers));
            let rate = report(
                &format!("tier, {parallelism} {reader:?} recycled {recycled}"),
                samples,
                length,
                || {
                    let tier = Arc::clone(&tier);
                    let task = async move {
                        let mut answers = SelectAll::new();
                        let order = order(samples, round);
                        for batch in order.chunks(64) {
                            while answers.len() >= 4 {
                                if let Some(answer) = answers.next().await {
                                    let answer: foreread_tier::Completion = answer;
                                    assert_eq!(answer.result.unwrap().len(), length);
                                }
                            }
                            let requests = batch.iter().zip(0..).map(|(&id, tag)| ReadRequest {
                                tag,
                                key: key(id),
                                object: Object { path: "".into(), size: length as u64, version: None },
                                span: Span::Whole,
                                due: Tick(0),
                            });
                            answers.push(tier.read(requests.collect()));
                        }
                        while let Some(answer) = answers.next().await {
                            assert_eq!(answer.result.unwrap().len(), length);
                        }
                    };
                    runtime.block_on(async { tokio::spawn(task).await.unwrap() });
                },
            );
            best[at] = best[at].max(rate);
        }
    }
    println!(
        "best of 5, of the better loop: {:.0} % with 16, {:.0} % with 32",
        share(best, 2),
        share(best, 3)
    );
}

fn share(best: [f64; 12], at: usize) -> f64 {
    best[at] / best[0].max(best[1]) * 100.0
}
