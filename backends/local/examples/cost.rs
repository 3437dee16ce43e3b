//! What reading page-cached files costs: a plain loop, plain threads, and the origin.
//!
//! `cargo run --release -p foreread-local --example cost -- [files] [bytes each] [directory] [us of work with each]`

#![expect(clippy::unwrap_used, reason = "a measurement that fails may say so by panicking")]

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_local::{LocalConfig, LocalOrigin};
use foreread_tier::{Completion, HeapBuffers, Object, ReadRequest, Span, Tier};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::StreamExt;
use futures::stream::SelectAll;
use rustix::time::{ClockId, clock_gettime};

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn report(what: &str, samples: usize, work: impl FnOnce()) {
    let (wall, before) = (Instant::now(), cpu());
    work();
    let (wall, used) = (wall.elapsed(), cpu() - before);
    let each = |time: Duration| time.as_secs_f64() * 1e6 / samples as f64;
    println!("{what:40} {:6.2} us CPU {:6.2} us wall a sample", each(used), each(wall));
}

fn plain(root: &Path, names: &[String], keep: usize) {
    let mut kept = VecDeque::new();
    for name in names {
        let file = std::fs::File::open(root.join(name)).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        let mut bytes = Vec::with_capacity(length);
        file.take(length as u64).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), length);
        kept.push_back(bytes);
        if kept.len() > keep {
            kept.pop_front();
        }
    }
}

fn reused(root: &Path, names: &[String], length: usize) {
    let mut bytes = vec![0; length];
    for name in names {
        let file = std::fs::File::open(root.join(name)).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
    }
}

/// Puts the files out of the page cache, so that they are read from the disk again.
fn evict(root: &Path, names: &[String]) {
    for name in names {
        let file = std::fs::File::open(root.join(name)).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

fn request((tag, object): (usize, &Object)) -> ReadRequest {
    let key = SampleKey::new(DatasetId(0), SampleId(tag as u64));
    ReadRequest { tag: tag as u32, key, object: object.clone(), span: Span::Whole, due: Tick(tag as u64) }
}

fn consume(answer: Completion, length: usize, compute: Duration) {
    assert_eq!(answer.result.unwrap().len(), length);
    let start = Instant::now();
    while start.elapsed() < compute {}
}

fn main() {
    // glibc raises its thresholds when it sees a large block freed; without this it gives memory back to the kernel
    // and takes it again for almost every sample, which costs more than reading the sample does.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(31 << 20)));
    let mut words = std::env::args().skip(1);
    let files: usize = words.next().map_or(2000, |word| word.parse().unwrap());
    let length: usize = words.next().map_or(100_000, |word| word.parse().unwrap());
    let own = tempfile::tempdir().unwrap();
    let root = words.next().map_or(own.path().to_owned(), Into::into);
    let mut names = Vec::new();
    let mut objects = Vec::new();
    for number in 0..files {
        let name = format!("class{:02}/image{number:06}.jpg", number % 20);
        std::fs::create_dir_all(root.join(format!("class{:02}", number % 20))).unwrap();
        std::fs::write(root.join(&name), vec![number as u8; length]).unwrap();
        objects.push(Object { path: name.as_str().into(), size: length as u64, version: None });
        names.push(name);
    }
    let rounds = (20_000 / files).max(1);
    let samples = files * rounds;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let compute = words.next().map_or(Duration::ZERO, |word| Duration::from_micros(word.parse().unwrap()));
    for parallelism in [1, 2, 32] {
        let config = LocalConfig::default().with_parallelism(parallelism);
        let origin = LocalOrigin::open(&root, config, Arc::new(HeapBuffers)).unwrap();
        evict(&root, &names);
        report(&format!("cold, parallelism {parallelism}"), files, || {
            let batch = objects.iter().enumerate().map(request).collect();
            let answers = origin.read(batch).for_each(|answer| {
                consume(answer, length, compute);
                std::future::ready(())
            });
            runtime.block_on(answers);
        });
    }
    println!();
    for _ in 0..3 {
        report("plain loop, memory reused", samples, || {
            (0..rounds).for_each(|_| reused(&root, &names, length))
        });
        report("plain loop, memory of its own", samples, || {
            (0..rounds).for_each(|_| plain(&root, &names, 0))
        });
        // What readers ahead hold: the memory is no longer in the core's own cache.
        report("plain loop, 256 samples held", samples, || {
            (0..rounds).for_each(|_| plain(&root, &names, 256))
        });
        report("two plain loops at once", samples, || {
            std::thread::scope(|scope| {
                for half in names.chunks(files.div_ceil(2)) {
                    let root = &root;
                    scope.spawn(move || (0..rounds).for_each(|_| plain(root, half, 0)));
                }
            });
        });
        for parallelism in [1, 2, 32] {
            let config = LocalConfig::default().with_parallelism(parallelism);
            let origin = Arc::new(LocalOrigin::open(&root, config, Arc::new(HeapBuffers)).unwrap());
            report(&format!("origin, parallelism {parallelism}"), samples, || {
                let origin = Arc::clone(&origin);
                let requests: Vec<ReadRequest> = objects.iter().enumerate().map(request).collect();
                let task = async move {
                    // Four batches under way, as a reader ahead has.
                    let mut answers = SelectAll::new();
                    for _ in 0..rounds {
                        for batch in requests.chunks(64) {
                            while answers.len() >= 4 {
                                if let Some(answer) = answers.next().await {
                                    consume(answer, length, compute);
                                }
                            }
                            answers.push(origin.read(batch.to_vec()));
                        }
                    }
                    while let Some(answer) = answers.next().await {
                        consume(answer, length, compute);
                    }
                };
                runtime.block_on(async { tokio::spawn(task).await.unwrap() });
            });
        }
        println!();
    }
}
