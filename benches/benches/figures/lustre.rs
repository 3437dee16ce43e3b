//! Small files and shards on the file system that stands in for Lustre: how long a sample waits,
//! and which requests it costs. Nothing here ran on a real Lustre.
//!
//! Every request takes 4 ms. The comparison is a plain loop (open, read, `fstat`, close), as most
//! data loaders read a sample.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use foreread::{Catalog, Loader, Memory, SampleId};
use foreread_benches::table::{Figure, Goal};
use foreread_dataset::IndexOptions;
use foreread_lustre::open_lustre;
use foreread_lustre_testing::{Counts, StandIn, StandInOptions};
use foreread_tier::{HeapBuffers, ReadRequest, Span, Tier as _};
use foreread_types::{SampleKey, Tick};

const LATENCY: Duration = Duration::from_millis(4);
const OSTS: u32 = 16;
const FILES: u64 = 4000;
const SHARDS: u64 = 64;
const RECORDS: u64 = 100;
const BYTES: usize = 10_000;

/// Samples that are read one after another.
const IN_SERIES: u64 = 100;

/// Threads of the plain loop, as many as foreread has.
const THREADS: usize = 32;

pub fn figures() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let files = tempfile::tempdir()?;
    for id in 0..FILES {
        let directory = files.path().join(format!("{:02}", id % 40));
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join(format!("{id:05}")), vec![id as u8; BYTES])?;
    }
    figures.extend(dataset("small files", files.path(), 8.9, 2.02)?);
    let shards = tempfile::tempdir()?;
    for shard in 0..SHARDS {
        let records: Vec<u8> = (0..RECORDS).flat_map(|id| record(&vec![id as u8; BYTES])).collect();
        std::fs::write(shards.path().join(format!("train-{shard:03}.tfrecord")), records)?;
    }
    figures.extend(dataset("64 shards", shards.path(), 5.0, 0.2)?);
    Ok(figures)
}

fn record(data: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &sum(&length), data, &sum(data)].concat()
}

/// The figures of one dataset. A sample may wait `milliseconds` and cost `requests` of metadata.
fn dataset(name: &str, backing: &Path, milliseconds: f64, requests: f64) -> Result<Vec<Figure>> {
    let stand_in = StandIn::mount(backing, StandInOptions::new(OSTS).with_latency(LATENCY))
        .context("the stand-in needs FUSE and root")?;
    let target = stand_in.root().to_str().context("a path of ASCII")?;
    let catalog = Loader::builder(target).index(IndexOptions::default(), |_| ())?;
    let samples = catalog.len();
    let ids: Vec<SampleId> = (0..samples).map(|at| SampleId(at * 1_000_003 % samples)).collect();
    let mut figures = Vec::new();

    let plain = in_series(&ids, |id| plain_read(stand_in.root(), &catalog, id))?;
    let origin = open_lustre(stand_in.root(), Default::default(), Arc::new(HeapBuffers))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ours = in_series(&ids, |id| {
        let entry = catalog.entry(id)?;
        let key = SampleKey::new(Default::default(), id);
        let request = ReadRequest::new(key, entry.object, entry.span, Tick(0));
        Ok(runtime.block_on(origin.read(Arc::new(request)))?.len())
    })?;
    let what = format!("{name}: wait for one sample at 4 ms per request (stand-in)");
    figures.push(
        Figure::new(what, Goal::AtMost(milliseconds), ours, "ms").note(format!("plain loop: {plain:.1} ms")),
    );

    stand_in.reset_counts();
    let plain = rate(samples, || plain_epoch(&stand_in, &catalog, &ids))?;
    let of_plain = metadata(&stand_in.counts(), samples);
    stand_in.reset_counts();
    let ours = rate(samples, || epoch(&catalog))?;
    let of_ours = metadata(&stand_in.counts(), samples);
    let what = format!("{name}: an epoch with 32 reads at once (stand-in)");
    figures.push(
        Figure::new(what, Goal::AtLeast(plain), ours, "samples/s")
            .note(format!("{THREADS} plain threads: {plain:.0} samples/s")),
    );
    let what = format!("{name}: metadata requests per sample and epoch (stand-in)");
    figures.push(
        Figure::new(what, Goal::AtMost(requests), of_ours, "requests")
            .note(format!("plain loop: {of_plain:.2} requests")),
    );
    Ok(figures)
}

fn metadata(counts: &Counts, samples: u64) -> f64 {
    counts.mdt_requests as f64 / samples as f64
}

fn rate(samples: u64, epoch: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    epoch()?;
    Ok(samples as f64 / began.elapsed().as_secs_f64())
}

/// The milliseconds per sample of reads one after another.
fn in_series(ids: &[SampleId], mut read: impl FnMut(SampleId) -> Result<usize>) -> Result<f64> {
    let chosen = &ids[..IN_SERIES as usize];
    // The first reads start threads, and open shards.
    for id in chosen {
        read(*id)?;
    }
    let began = Instant::now();
    for id in chosen {
        ensure!(read(*id)? > 0, "an empty sample");
        // Otherwise the close of the last file delays the next open.
        std::thread::sleep(LATENCY * 3);
    }
    let slept = (LATENCY * 3 * IN_SERIES as u32).as_secs_f64();
    Ok((began.elapsed().as_secs_f64() - slept) * 1e3 / IN_SERIES as f64)
}

fn plain_read(root: &Path, catalog: &Catalog, id: SampleId) -> Result<usize> {
    let entry = catalog.entry(id)?;
    let range = match entry.span {
        Span::Whole => 0..entry.object.size,
        Span::Range(range) => range,
        Span::Made(_) => unreachable!("files are not decoded"),
    };
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let file = File::open(root.join(&*entry.object.path))?;
    file.read_exact_at(&mut bytes, range.start)?;
    ensure!(file.metadata()?.len() == entry.object.size, "the file has changed");
    Ok(bytes.len())
}

fn plain_epoch(stand_in: &StandIn, catalog: &Catalog, ids: &[SampleId]) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                        plain_read(stand_in.root(), catalog, *id)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn epoch(catalog: &Catalog) -> Result<()> {
    let builder = Loader::builder("").catalog(catalog.clone()).batch_size(64).epochs(1);
    let loader = builder.memory(Memory::Bytes(0)).start()?;
    let mut samples = 0;
    for batch in &loader {
        samples += batch?.samples().len() as u64;
    }
    ensure!(samples == catalog.len(), "{samples} samples");
    Ok(())
}
