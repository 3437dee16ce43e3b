//! `foreread load --decode image`: decodes each batch as a training would, and drops the pixels.
//!
//! So a machine's headspace is measured without a framework: if the trainer's own rate is higher
//! than this one, more cores, smaller images or faster storage are needed, and the report tells
//! which.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use foreread::{Batch, Catalog, Config, OnError};
use foreread_decode::{
    BatchBuffer, BatchBuffers, Decoder as _, Draw, ImageDecoder, ImageOptions, Item, Pending, Pool,
    threads_of_rank,
};
use foreread_settings::Knobs;
use serde::Serialize;

use crate::images::image_of;

/// Batches that are decoded while the trainer works on one: as in the Python package.
const AHEAD: usize = 2;

/// The side of images without a size.
const SIZE: u32 = 224;

/// Threads that decode the batches of a run.
pub struct Decoding {
    pool: Pool<ImageDecoder>,
    buffers: BatchBuffers,
    in_flight: VecDeque<(Batch, Catalog, Pending<ImageDecoder, BatchBuffer>)>,
    seed: u64,
    skips: bool,
    began: Instant,
    report: DecodeReport,
}

/// The counts and times of decoding. Times are in seconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DecodeReport {
    /// Images that were decoded.
    pub images: u64,
    /// Samples that could not be decoded.
    pub failed: u64,
    /// From the first batch to the last, with the trainer's computing.
    pub seconds: f64,
    /// How long the trainer waited for images whose bytes were in memory.
    pub wait_seconds: f64,
    /// How long threads decoded, summed over all.
    pub busy_seconds: f64,
    /// The number of threads.
    pub threads: usize,
}

impl Decoding {
    /// The decoding that `--decode` selects, if any.
    pub fn new(knobs: &Knobs, config: &Config) -> Result<Option<Self>> {
        let Some((what, _)) = knobs.get("decode") else { return Ok(None) };
        let size = match what.split_once(':') {
            None if what == "image" => Ok(SIZE),
            Some(("image", size)) => size.parse().map_err(drop),
            _ => Err(()),
        };
        let refuse = || knobs.refuse("decode", "expected image, or image:SIZE with a number of pixels");
        let size = size.map_err(|()| refuse())?;
        let decoder = ImageDecoder::new(ImageOptions::training(size, size)).map_err(|_| refuse())?;
        let automatic = || threads_of_rank(config.ranks_on_node());
        let threads = knobs.parse("decode-threads")?.unwrap_or_else(automatic);
        let pool = Pool::new(decoder, threads).context("cannot start threads")?;
        Ok(Some(Self {
            report: DecodeReport { threads: pool.threads(), ..DecodeReport::default() },
            pool,
            buffers: BatchBuffers::default(),
            in_flight: VecDeque::new(),
            seed: config.seed,
            skips: config.on_error != OnError::Fail,
            began: Instant::now(),
        }))
    }

    /// Begins to decode a batch, and waits for an earlier one if enough are under way.
    /// `catalog` has the batch's samples.
    pub fn add(&mut self, batch: Batch, catalog: Catalog) -> Result<()> {
        if self.report.images == 0 && self.in_flight.is_empty() {
            self.began = Instant::now();
        }
        let (seed, epoch) = (self.seed, batch.epoch());
        let items = batch.samples().map(|one| Item {
            bytes: image_of(&catalog, one.id(), &one.bytes()),
            draw: Draw { seed, epoch, sample: one.id().0 },
        });
        let items: Vec<_> = items.collect();
        let memory = self.buffers.take(items.len() * self.pool.decoder().output_bytes());
        let pending = self.pool.begin(items, memory.context("no memory for a decoded batch")?);
        self.in_flight.push_back((batch, catalog, pending));
        self.wait_for(AHEAD)
    }

    /// Waits until at most `ahead` batches are under way.
    pub fn wait_for(&mut self, ahead: usize) -> Result<()> {
        while self.in_flight.len() > ahead {
            let Some((batch, catalog, pending)) = self.in_flight.pop_front() else { break };
            let begun = Instant::now();
            while !pending.wait(Duration::from_secs(1)) {}
            let decoded = pending.finish().context("the decoder has ended")?;
            self.report.wait_seconds += begun.elapsed().as_secs_f64();
            self.report.failed += decoded.failures.len() as u64;
            self.report.images += (batch.len() - decoded.failures.len()) as u64;
            let failure = decoded.failures.first().filter(|_| !self.skips);
            if let Some((failure, sample)) = failure.and_then(|one| Some((one, batch.samples().nth(one.at)?)))
            {
                let (id, path, epoch) = (sample.id(), catalog.path(sample.id())?, batch.epoch());
                bail!("sample {id} ({path}) of epoch {epoch} cannot be decoded: {}", failure.error);
            }
        }
        self.report.seconds = self.began.elapsed().as_secs_f64();
        Ok(())
    }

    /// The counts and times so far.
    pub fn report(&self) -> DecodeReport {
        DecodeReport { busy_seconds: self.pool.busy().as_secs_f64(), ..self.report.clone() }
    }
}

impl DecodeReport {
    /// One line for people.
    pub fn text(&self) -> String {
        let rate = self.images as f64 / self.seconds.max(1e-9);
        let each = self.busy_seconds * 1e6 / (self.images + self.failed).max(1) as f64;
        let busy = 100.0 * self.busy_seconds / (self.seconds * self.threads as f64).max(1e-9);
        let wait = 100.0 * self.wait_seconds / self.seconds.max(1e-9);
        let failed = match self.failed {
            0 => String::new(),
            failed => format!("; {failed} could not be decoded"),
        };
        format!(
            "{} images decoded: {rate:.0}/s, {each:.0} us each; {} threads {busy:.0} % busy, the trainer \
             waited {wait:.0} % of the time for them{failed}",
            self.images, self.threads
        )
    }
}
