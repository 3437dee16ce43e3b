//! A scenario's orders as a run of the oracle, for the planner.
//!
//! The oracle deals equal shares. A scenario's last workers have less if their number does not
//! divide a batch. So every batch is padded to equal blocks with ids after the dataset's, whose
//! samples have no bytes. To read or keep one has no effect. Workers that never have a share are
//! not ranks of the run. The price: up to as many padding ids as samples if batches are small.

use std::sync::Arc;

use foreread_oracle::{
    Deal, Fingerprinter, OracleError, Order, Phase, PhaseKind, Run, Sampler, Schedule, Shuffle,
};
use foreread_types::{DatasetId, Fingerprint, Rank, SampleId, Sizes};

use crate::workload::{BatchShape, Workload};

/// The dataset of every such run.
pub(crate) const DATASET: DatasetId = DatasetId(0);

/// A run with exactly the streams of a workload, apart from the padding of batches, and the sizes
/// of its samples.
pub(crate) fn run(workload: &Workload) -> Result<(Run, Sizes), OracleError> {
    let shape = workload.streams.shape;
    let (block, ranks) = shape.reading();
    let shuffle = Shuffle::new(workload.sizes.len() as u64, workload.seed)?;
    let padded = PaddedShuffle { shuffle, shape, blocks: block * ranks };
    let mut sizes = workload.sizes.clone();
    sizes.resize(padded.population() as usize, 0);
    let train = Phase {
        kind: PhaseKind::Train,
        dataset: DATASET,
        sampler: Arc::new(padded),
        batch_size: Some(block as u64),
        drop_last: false,
    };
    let schedule = Schedule::new(shape.epochs() as u64, vec![train])?;
    Ok((Run::new(Arc::new(schedule), Deal::Blocks, ranks as u32, Rank(0))?, Sizes::table(&sizes)))
}

/// Shuffled epochs with padded batches.
#[derive(Debug)]
struct PaddedShuffle {
    shuffle: Shuffle,
    shape: BatchShape,
    /// All workers' blocks of a batch together, in samples.
    blocks: usize,
}

impl PaddedShuffle {
    /// The number of padding ids per epoch.
    fn padding(&self) -> usize {
        (0..self.shape.batches_an_epoch()).map(|batch| self.blocks - self.shape.samples(batch)).sum()
    }
}

impl Sampler for PaddedShuffle {
    fn population(&self) -> u64 {
        self.shuffle.population() + self.padding() as u64
    }

    fn len(&self) -> u64 {
        (self.blocks * self.shape.batches_an_epoch()) as u64
    }

    fn is_distinct(&self) -> bool {
        true
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let order = self.shuffle.order(epoch)?;
        let mut ids: Vec<u64> = Vec::with_capacity(self.blocks * self.shape.batches_an_epoch());
        let mut batch_ids = vec![SampleId(0); self.blocks];
        let mut padding = self.shuffle.population()..;
        let mut at = 0;
        for batch in 0..self.shape.batches_an_epoch() {
            let samples = self.shape.samples(batch);
            order.fill(at, 1, &mut batch_ids[..samples]);
            at += samples as u64;
            ids.extend(batch_ids[..samples].iter().map(|id| id.0));
            ids.extend(padding.by_ref().take(self.blocks - samples));
        }
        Order::table(self.population(), ids)
    }

    fn fingerprint(&self) -> Fingerprint {
        let print = Fingerprinter::new("simulate 1").part(self.shuffle.fingerprint());
        let samples = (0..self.shape.batches_an_epoch()).map(|batch| self.shape.samples(batch) as u64);
        print.number(self.blocks as u64).numbers(samples).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;

    #[test]
    fn run_reads_the_streams_and_padding_without_bytes() {
        for (samples, batch, workers, drop_last) in [
            (100, 10, 5, false),
            (101, 10, 4, false),
            (101, 7, 3, true),
            (101, 3, 5, false),
            (20, 1000, 4, false),
            (20, 1, 20, false),
        ] {
            let mut scenario = Scenario::from_toml(include_str!("../scenarios/thesis-s1.toml")).unwrap();
            (scenario.samples, scenario.batch, scenario.workers) = (samples, batch, workers);
            (scenario.drop_last, scenario.epochs) = (drop_last, 3);
            let workload = Workload::new(&scenario, 7).unwrap();
            let (run, sizes) = run(&workload).unwrap();
            let mut read: Vec<Vec<u32>> = vec![Vec::new(); workers];
            for pass in run.passes() {
                let stream = run.stream(&pass).unwrap();
                for rank in 0..run.world_size() {
                    let stream = stream.of_rank(Rank(rank)).unwrap();
                    let ids = (0..stream.len()).map(|index| stream.at(index));
                    let (own, padding): (Vec<_>, Vec<_>) = ids.partition(|id| id.0 < samples.into());
                    assert!(padding.iter().all(|&id| sizes.bytes(id) == 0));
                    read[rank as usize].extend(own.iter().map(|id| id.0 as u32));
                }
            }
            assert_eq!(read, workload.streams.ids, "{samples} {batch} {workers} {drop_last}");
            assert_eq!(sizes.total(), workload.total());
            assert!(sizes.len() <= 2 * u64::from(samples) + 10, "{}", sizes.len());
        }
    }
}
