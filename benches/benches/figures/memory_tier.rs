//! The engine with samples from the memory tier only: its rate, and that no sample is copied.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use foreread::plan::Planned;
use foreread::{Catalog, Config, Memory, OnError};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::usage::Usage;
use foreread_benches::{median, subprocess};
use foreread_loader::{Dataset, Loader, LoaderParts, ReadSource};
use foreread_memory::MemoryTier;
use foreread_tier::{CacheTier, HeapBuffers, Lookup, Object, ReadFuture, ReadRequest, Tier, TierProfile};
use foreread_types::SampleKey;

use serde::{Deserialize, Serialize};

const SAMPLES: u64 = 4000;
const LENGTH: u64 = 100_000;
const BATCH: u64 = 32;

/// Timed epochs. One epoch before them fills the tier. The samples of one epoch after them are
/// compared with the tier's.
const EPOCHS: u64 = 50;

const ROUNDS: usize = 7;

#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    rate: f64,
    cpu: f64,
    /// Delivered samples at the same address as the tier's.
    same: u64,
    compared: u64,
}

pub fn figures() -> Result<Vec<Figure>> {
    let found =
        (0..ROUNDS).map(|_| subprocess::run(&[&"memory_tier"])).collect::<Result<Vec<Measurement>>>()?;
    let copied = found.iter().map(|found| found.compared - found.same).sum::<u64>();
    let cpu = median(found.iter().map(|found| found.cpu));
    Ok(vec![
        Figure::new(
            "memory tier, batch 32, 100 KB samples",
            Goal::AtLeast(100_000.0),
            median(found.iter().map(|found| found.rate)),
            "samples/s",
        )
        .note(format!("{cpu:.2} us CPU per sample, all threads")),
        Figure::new(
            "memory tier: delivered samples that are copies",
            Goal::AtMost(0.0),
            copied as f64,
            "samples",
        )
        .note(format!(
            "addresses of {} samples compared",
            found.iter().map(|found| found.compared).sum::<u64>()
        )),
    ])
}

/// An origin that generates its samples.
#[derive(Debug)]
struct GeneratedOrigin;

impl Tier for GeneratedOrigin {
    fn name(&self) -> &str {
        "made"
    }

    fn profile(&self) -> &TierProfile {
        const { &TierProfile::new(1) }
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let bytes = Bytes::from(vec![request.key.id.0 as u8; request.len() as usize]);
        Box::pin(std::future::ready(Ok(bytes)))
    }

    fn submit(&self) {}
}

pub fn part() -> Result<()> {
    let object = |id| Object { path: format!("{id:06}").into(), size: LENGTH, version: None };
    let catalog = Catalog::from_objects("made:", (0..SAMPLES).map(object))?;
    let mut config = Config::default();
    (config.epochs, config.batch_size, config.memory) = (EPOCHS + 2, BATCH, Memory::Bytes(1 << 30));
    let look_ahead = config.look_ahead;
    let planned = Planned::new(config, &[catalog.sizes()])?;
    let memory = Arc::new(MemoryTier::new(1 << 30));
    let parts = LoaderParts {
        run: planned.run().clone(),
        plan: planned.local_plan().clone(),
        locality: None,
        warm: false,
        datasets: vec![Dataset::new(catalog, Arc::new(GeneratedOrigin))],
        caches: vec![(ReadSource::Memory, Arc::clone(&memory) as Arc<dyn CacheTier>)],
        buffers: Arc::new(HeapBuffers),
        look_ahead,
        on_error: OnError::Fail,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let loader = Loader::start(parts, runtime.handle());

    let start = Instant::now();
    let (mut begin, mut end) = (Usage::default(), Usage::default());
    let (mut same, mut compared, mut samples) = (0, 0, 0);
    for batch in &loader {
        let batch = batch?;
        if samples == SAMPLES {
            begin = Usage::since(start);
        }
        samples += batch.len() as u64;
        if samples == SAMPLES * (EPOCHS + 1) {
            end = Usage::since(start);
        }
        if batch.epoch() == EPOCHS + 1 {
            for (id, bytes) in batch.iter() {
                let Lookup::Ready(kept) = memory.lookup(SampleKey::new(batch.dataset(), id)) else {
                    continue;
                };
                same += u64::from(kept.as_ptr() == bytes.as_ptr() && kept.len() == bytes.len());
            }
            compared += batch.len() as u64;
        }
    }
    ensure!(samples == SAMPLES * (EPOCHS + 2), "{samples} samples delivered");
    let report = loader.report();
    let filled =
        report.passes.first().context("the report has no epochs")?.reads.from(ReadSource::Origin).samples;
    ensure!(filled == SAMPLES, "the first epoch read {filled} samples from the origin");
    let (used, samples) = (end - begin, (SAMPLES * EPOCHS) as f64);
    subprocess::print_result(&Measurement {
        rate: samples / used.seconds,
        cpu: used.cpu * 1e6 / samples,
        same,
        compared,
    })
}
