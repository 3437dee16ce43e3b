//! The connected jobs: their datasets, and what they have sent in pieces.
//!
//! Everything that a job can make the agent keep is bounded here.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use foreread_store::attach::{Attach, GroupOrderPiece, OrderPiece, Piece};
use foreread_store::{ConnectionId, StoreJob};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::cluster_cache::JobOrder;
use crate::recent::StallShare;
use crate::same_samples::StoreNumbers;

/// The most bytes of all catalogs of a job.
const MAX_CATALOG: u64 = 8 << 30;

/// The most catalogs and datasets of a job.
pub(crate) const MAX_DATASETS: usize = 64;

/// The most uses of an epoch.
const MAX_USES: u64 = 1 << 31;

/// A connected process.
#[derive(Debug, Default)]
pub(crate) struct JobConnection {
    /// The job, once it is attached.
    pub(crate) attached: Option<AttachedJob>,
    /// The node of a job of another agent.
    pub(crate) node: Option<String>,
    /// Catalogs, by dataset. The last piece makes one whole.
    catalogs: BTreeMap<u32, Vec<u8>>,
    whole: BTreeMap<u32, Bytes>,
    /// The order that arrives.
    order: Option<PartialOrder>,
    /// How the job gets on, by its own account.
    pub(crate) stalls: StallShare,
}

/// A job.
#[derive(Clone, Debug)]
pub(crate) struct AttachedJob {
    pub(crate) job: StoreJob,
    pub(crate) attach: Attach,
    /// The store's datasets by those of the job. `None` for those that the agent refuses.
    pub(crate) datasets: Vec<Option<DatasetId>>,
    /// Where the store has the samples of each. `None`: all under its own number.
    pub(crate) numbers: Vec<Option<Arc<StoreNumbers>>>,
}

#[derive(Debug)]
struct PartialOrder {
    dataset: u32,
    first: Tick,
    per_position: NonZeroU32,
    numbers: Vec<u8>,
}

/// All connections.
pub(crate) type Connections = HashMap<ConnectionId, JobConnection>;

impl AttachedJob {
    /// The store's key of a sample.
    pub(crate) fn key(&self, key: SampleKey) -> Option<SampleKey> {
        let dataset = (*self.datasets.get(key.dataset.0 as usize)?)?;
        let numbers = self.numbers_of(key.dataset.0);
        Some(numbers.map_or(SampleKey::new(dataset, key.id), |numbers| numbers.key(key.id)))
    }

    fn numbers_of(&self, number: u32) -> Option<&StoreNumbers> {
        self.numbers.get(number as usize)?.as_deref()
    }

    /// The store's datasets whose samples it uses.
    pub(crate) fn used_datasets(&self) -> impl Iterator<Item = DatasetId> {
        let others = self.numbers.iter().flatten().flat_map(|numbers| numbers.others());
        self.datasets.iter().flatten().chain(others).copied()
    }

    /// An order of the job for each of the store's datasets that have its samples. Nothing for a
    /// dataset that the agent refuses.
    pub(crate) fn store_orders(&self, order: &JobOrder) -> Vec<(DatasetId, Vec<SampleId>)> {
        let dataset = self.datasets.get(order.dataset as usize).copied().flatten();
        match (dataset, self.numbers_of(order.dataset)) {
            (None, _) => Vec::new(),
            (Some(_), Some(numbers)) => numbers.orders(&order.samples),
            (Some(dataset), None) => {
                let samples = order.samples.iter().map(|sample| SampleId(u64::from(*sample)));
                vec![(dataset, samples.collect())]
            }
        }
    }
}

impl JobConnection {
    /// Adds a piece of a catalog.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn add_catalog(&mut self, piece: Piece<'_>) -> Result<(), &'static str> {
        let number = piece.number;
        let there = self.catalogs.values().map(Vec::len).sum::<usize>()
            + self.whole.values().map(Bytes::len).sum::<usize>();
        if piece.total > MAX_CATALOG - (there as u64).min(MAX_CATALOG) + piece.at
            || number as usize >= MAX_DATASETS
        {
            return Err("the catalogs are too long, or one has too high a number");
        }
        let bytes = self.catalogs.entry(number).or_default();
        append(bytes, piece)?;
        if bytes.len() as u64 == piece.total
            && let Some(bytes) = self.catalogs.remove(&number)
        {
            self.whole.insert(number, bytes.into());
        }
        Ok(())
    }

    /// Takes the catalogs that have arrived.
    pub(crate) fn take_catalogs(&mut self) -> BTreeMap<u32, Bytes> {
        std::mem::take(&mut self.whole)
    }

    /// Adds a piece of an order, and returns the order if it was the last one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn add_order(&mut self, order: GroupOrderPiece<'_>) -> Result<Option<JobOrder>, &'static str> {
        let GroupOrderPiece { per_position, order: OrderPiece { first, piece } } = order;
        if piece.total > MAX_USES * 4 || !piece.total.is_multiple_of(4) {
            return Err("an order is too long, or not of whole numbers");
        }
        if piece.at == 0 {
            let (dataset, numbers) = (piece.number, Vec::new());
            self.order = Some(PartialOrder { dataset, first, per_position, numbers });
        }
        let partial = self.order.as_mut().filter(|it| it.dataset == piece.number && it.first == first);
        let partial = partial.ok_or("a piece of an order has no beginning")?;
        append(&mut partial.numbers, piece)?;
        if (partial.numbers.len() as u64) < piece.total {
            return Ok(None);
        }
        let whole = self.order.take().map(|partial| {
            let (numbers, _) = partial.numbers.as_chunks::<4>();
            let samples = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
            let PartialOrder { dataset, first, per_position, .. } = partial;
            JobOrder { dataset, first, per_position, samples }
        });
        Ok(whole)
    }
}

/// Appends a piece that follows what is there.
fn append(to: &mut Vec<u8>, piece: Piece<'_>) -> Result<(), &'static str> {
    if piece.at != to.len() as u64 {
        return Err("a piece does not follow the one before");
    }
    to.extend(piece.bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_whole_and_others_are_refused() {
        let mut connection = JobConnection::default();
        let catalog: Vec<u8> = (0..200_000_u32).map(|at| at as u8).collect();
        for piece in Piece::all(1, &catalog) {
            assert!(connection.take_catalogs().is_empty());
            connection.add_catalog(piece).unwrap();
        }
        assert_eq!(connection.take_catalogs().remove(&1).unwrap(), catalog);
        let lost = Piece { number: 0, total: 10, at: 5, bytes: b"abc" };
        assert!(connection.add_catalog(lost).is_err());
        let long = Piece { number: 0, total: MAX_CATALOG + 1, at: 0, bytes: b"abc" };
        assert!(connection.add_catalog(long).is_err());

        let order = |first, piece| GroupOrderPiece {
            per_position: NonZeroU32::MIN,
            order: OrderPiece { first: Tick(first), piece },
        };
        let numbers: Vec<u8> = (0..30_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut whole = None;
        for piece in Piece::all(2, &numbers) {
            assert_eq!(whole, None);
            whole = connection.add_order(order(7, piece)).unwrap();
        }
        let samples = (0..30_000).collect();
        let per_position = NonZeroU32::MIN;
        assert_eq!(whole, Some(JobOrder { dataset: 2, first: Tick(7), per_position, samples }));
        let lost = Piece { number: 2, total: 8, at: 4, bytes: b"abcd" };
        assert!(connection.add_order(order(9, lost)).is_err());
    }
}
