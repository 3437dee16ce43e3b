//! The workload: the sizes of samples, and the order in which each worker reads them.
//!
//! Sizes are drawn once from a normal distribution, redrawn while negative, and rounded to whole
//! bytes. So all decisions about space are made in integers. Orders are the oracle's own shuffle: a
//! new uniform permutation in every epoch. From each global batch of B samples, worker i takes the
//! i-th block of ceil(B / N), also from a short last one. So the last workers have fewer samples,
//! or none, if N does not divide B. The price is 4 bytes per access, for the whole run.

use foreread_oracle::{Sampler, Shuffle};
use foreread_planner::{EpochDemand, floor};
use foreread_types::SampleId;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use crate::error::SimulateError;
use crate::scenario::Scenario;

/// Bytes of a MB.
pub(crate) const MB: f64 = 1e6;

/// The sizes and orders of one scenario and seed. Every policy runs over the same.
#[derive(Debug)]
pub(crate) struct Workload {
    /// By sample, in bytes.
    pub sizes: Vec<u64>,
    pub streams: Streams,
    pub seed: u64,
}

/// The reads of each worker over the whole run, and the shape of its batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    /// By worker, then position.
    pub ids: Vec<Vec<u32>>,
    pub shape: BatchShape,
}

/// The number of accesses of each worker in each batch. All epochs are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchShape {
    workers: usize,
    /// ceil(B / N)
    block: usize,
    batch: usize,
    /// Samples of the short last batch. 0 if there is none.
    short: usize,
    full: usize,
    epochs: usize,
}

impl BatchShape {
    fn new(scenario: &Scenario) -> Self {
        let (samples, batch) = (scenario.samples as usize, scenario.batch as usize);
        Self {
            workers: scenario.workers,
            block: batch.div_ceil(scenario.workers),
            batch,
            short: if scenario.drop_last { 0 } else { samples % batch },
            full: samples / batch,
            epochs: scenario.epochs as usize,
        }
    }

    /// Global batches of an epoch.
    pub(crate) fn batches_an_epoch(&self) -> usize {
        self.full + usize::from(self.short > 0)
    }

    /// Epochs of the run.
    pub(crate) fn epochs(&self) -> usize {
        self.epochs
    }

    /// Global batches of the whole run.
    pub(crate) fn batches(&self) -> usize {
        self.batches_an_epoch() * self.epochs
    }

    /// Whether this batch is the first of an epoch.
    pub(crate) fn begins_epoch(&self, batch: usize) -> bool {
        batch.is_multiple_of(self.batches_an_epoch())
    }

    /// Samples of this batch, for all workers together.
    pub(crate) fn samples(&self, batch: usize) -> usize {
        if batch % self.batches_an_epoch() < self.full { self.batch } else { self.short }
    }

    /// The longest share of any batch, and the number of workers with a share.
    pub(crate) fn reading(&self) -> (usize, usize) {
        let longest = if self.full > 0 { self.batch } else { self.short };
        let block = self.block.min(longest).max(1);
        (block, longest.div_ceil(block))
    }

    /// The part of this batch's samples that a worker takes.
    pub(crate) fn share(&self, worker: usize, batch: usize) -> std::ops::Range<usize> {
        let samples = self.samples(batch);
        (worker * self.block).min(samples)..((worker + 1) * self.block).min(samples)
    }
}

impl Workload {
    /// Draws the sizes and orders of a scenario.
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Result<Self, SimulateError> {
        let mut random = Draws::new(b"foreread/simulate/sizes/1", seed);
        let sizes = (0..scenario.samples)
            .map(|_| {
                loop {
                    let mb = scenario.mean + scenario.sd * random.normal();
                    if mb >= 0.0 {
                        break (mb * MB).round() as u64;
                    }
                }
            })
            .collect();
        let shape = BatchShape::new(scenario);
        let shuffle = Shuffle::new(u64::from(scenario.samples), seed)?;
        let mut ids: Vec<Vec<u32>> = vec![Vec::new(); shape.workers];
        let mut batch_ids = vec![SampleId(0); shape.batch];
        let mut order = shuffle.order(0)?;
        let (mut epoch, mut at) = (0, 0);
        for batch in 0..shape.batches() {
            if shape.begins_epoch(batch) && batch > 0 {
                epoch += 1;
                at = 0;
                order = shuffle.order(epoch)?;
            }
            let samples = shape.samples(batch);
            order.fill(at, 1, &mut batch_ids[..samples]);
            at += samples as u64;
            for (worker, ids) in ids.iter_mut().enumerate() {
                ids.extend(batch_ids[shape.share(worker, batch)].iter().map(|id| id.0 as u32));
            }
        }
        Ok(Self { sizes, streams: Streams { ids, shape }, seed })
    }

    /// The total size in bytes.
    pub(crate) fn total(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Random numbers for a policy that draws.
    pub(crate) fn draws(&self) -> Draws {
        Draws::new(b"foreread/simulate/redraw/", self.seed)
    }
}

impl Streams {
    /// The lower bound of origin bytes for any policy that reads these streams, with caches and
    /// staging buffers of `capacity` bytes.
    pub(crate) fn floor(&self, sizes: &[u64], capacity: u64) -> u64 {
        let mut used_in: Vec<u32> = vec![0; sizes.len()];
        let mut epochs = Vec::with_capacity(self.shape.epochs);
        let mut at = vec![0; self.ids.len()];
        for batch in 0..self.shape.batches() {
            if self.shape.begins_epoch(batch) {
                epochs.push(EpochDemand { distinct: 0, seen: 0 });
            }
            let number = epochs.len() as u32;
            let Some(epoch) = epochs.last_mut() else { continue };
            for (worker, ids) in self.ids.iter().enumerate() {
                let until = at[worker] + self.shape.share(worker, batch).len();
                for &id in &ids[at[worker]..until] {
                    let before = std::mem::replace(&mut used_in[id as usize], number);
                    if before != number {
                        epoch.distinct += sizes[id as usize];
                        epoch.seen += if before > 0 { sizes[id as usize] } else { 0 };
                    }
                }
                at[worker] = until;
            }
        }
        floor(&epochs, capacity)
    }
}

/// Reproducible random numbers, from words of ChaCha8.
#[derive(Debug)]
pub(crate) struct Draws(ChaCha8Rng);

impl Draws {
    pub(crate) fn new(label: &[u8; 25], seed: u64) -> Self {
        let mut key = [0; 32];
        key[..7].copy_from_slice(&seed.to_le_bytes()[..7]);
        key[7..].copy_from_slice(label);
        let mut random = ChaCha8Rng::from_seed(key);
        random.set_stream(seed);
        Self(random)
    }

    /// A nearly uniform number below `bound`. The bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.0.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A uniform number from `1 - by` to `1 + by`.
    pub(crate) fn around_1(&mut self, by: f64) -> f64 {
        1.0 + by * ((self.0.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
    }

    /// A number from the normal distribution of mean 0 and deviation 1, by Marsaglia's polar
    /// method.
    fn normal(&mut self) -> f64 {
        loop {
            let mut uniform = || (self.0.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
            let (x, y) = (uniform(), uniform());
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(samples: u32, batch: u32, workers: usize, drop_last: bool) -> Scenario {
        let mut scenario = Scenario::from_toml(include_str!("../scenarios/thesis-s1.toml")).unwrap();
        (scenario.samples, scenario.batch, scenario.workers) = (samples, batch, workers);
        (scenario.drop_last, scenario.epochs) = (drop_last, 3);
        scenario
    }

    #[test]
    fn epoch_reads_every_undropped_sample_once() {
        for (batch, workers, drop_last) in [(10, 4, false), (7, 3, false), (7, 7, true), (3, 5, false)] {
            let workload = Workload::new(&scenario(101, batch, workers, drop_last), 7).unwrap();
            let shape = workload.streams.shape;
            let expected = if drop_last { 101 / batch * batch } else { 101 };
            let mut at = vec![0; workers];
            let mut seen = vec![0; 101];
            for number in 0..shape.batches() {
                if shape.begins_epoch(number) {
                    assert!(number == 0 || seen.iter().sum::<u32>() == expected, "{seen:?}");
                    seen.fill(0);
                }
                for worker in 0..workers {
                    for _ in shape.share(worker, number) {
                        seen[workload.streams.ids[worker][at[worker]] as usize] += 1;
                        at[worker] += 1;
                    }
                }
                assert!(seen.iter().all(|&times| times <= 1));
            }
            assert!(at.iter().zip(&workload.streams.ids).all(|(&at, ids)| at == ids.len()));
        }
    }

    #[test]
    fn sizes_have_the_mean_and_deviation_of_the_scenario() {
        let workload = Workload::new(&scenario(50_000, 100, 4, true), 1).unwrap();
        let mean = workload.total() as f64 / 50_000.0;
        let variance =
            workload.sizes.iter().map(|&size| (size as f64 - mean).powi(2)).sum::<f64>() / 50_000.0;
        // The normal distribution cut at 0, 2.7 deviations below its mean: 0.4 % of the sizes are
        // redrawn.
        assert!((mean / 0.02711 / MB - 1.0).abs() < 0.01, "{mean}");
        assert!((variance.sqrt() / 0.00985 / MB - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn lower_bound_of_whole_epochs_equals_the_formula() {
        let workload = Workload::new(&scenario(100, 10, 2, false), 3).unwrap();
        let (total, floor) = (workload.total(), |c| workload.streams.floor(&workload.sizes, c));
        assert_eq!(floor(0), 3 * total);
        assert_eq!(floor(total / 2), total + 2 * (total - total / 2));
        assert_eq!(floor(2 * total), total);
    }
}
