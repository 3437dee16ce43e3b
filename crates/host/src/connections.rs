//! The connected jobs: their datasets, and the messages that they have sent in pieces.
//!
//! Everything that a job can make the agent keep is bounded here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use foreread_store::attach::{Attach, EpochOrder, OrderPiece, Piece};
use foreread_store::{ConnectionId, StoreJob};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::recent::StallShare;
use crate::same_samples::StoreNumbers;

/// The most bytes of all catalogs of a job.
const MAX_CATALOG: u64 = 8 << 30;

/// The most catalogs and datasets of a job.
pub(crate) const MAX_DATASETS: usize = 64;

/// The most uses of an epoch.
pub(crate) const MAX_USES: u64 = 1 << 31;

/// A connected process.
#[derive(Debug, Default)]
pub(crate) struct JobConnection {
    /// The job, once it is attached.
    pub(crate) attached: Option<Arc<AttachedJob>>,
    /// The node of a job of another agent.
    pub(crate) node: Option<String>,
    /// Catalogs, by dataset. The last piece makes one whole.
    catalogs: BTreeMap<u32, Vec<u8>>,
    whole: BTreeMap<u32, Bytes>,
    /// The order that arrives: its dataset, its first position and the pieces so far.
    order: Option<(u32, Tick, Vec<u8>)>,
    /// How the job gets on, by its own account.
    pub(crate) stalls: StallShare,
}

/// A job.
#[derive(Debug)]
pub(crate) struct AttachedJob {
    pub(crate) job: StoreJob,
    pub(crate) attach: Attach,
    /// The store's dataset for each dataset of the job. `None` if the agent refuses it.
    pub(crate) datasets: Vec<Option<DatasetId>>,
    /// Where the store has the samples of each. `None`: all under its own number.
    pub(crate) numbers: Vec<Option<Arc<StoreNumbers>>>,
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

    /// The datasets of the store from which the job uses samples.
    pub(crate) fn used_datasets(&self) -> impl Iterator<Item = DatasetId> {
        let others = self.numbers.iter().flatten().flat_map(|numbers| numbers.others());
        self.datasets.iter().flatten().chain(others).copied()
    }

    /// An order of the job for each of the store's datasets that have its samples. Nothing for a
    /// dataset that the agent refuses.
    pub(crate) fn store_orders(&self, order: &EpochOrder) -> Vec<(DatasetId, Vec<SampleId>)> {
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
    /// A fault in the piece.
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

    /// Adds a piece of an order of at most `most` places, and returns the order if it was the last
    /// piece.
    ///
    /// # Errors
    /// A fault in the piece.
    pub(crate) fn add_order(
        &mut self,
        head: OrderPiece<'_>,
        most: u64,
    ) -> Result<Option<EpochOrder>, &'static str> {
        let OrderPiece { first, places, piece, .. } = head;
        if u64::from(places) > most || piece.total / OrderPiece::SAMPLE_BYTES > u64::from(places) {
            return Err("an order is too long, or has more samples than places");
        }
        if piece.at == 0 {
            self.order = Some((piece.number, first, Vec::new()));
        }
        let partial = self.order.as_mut().filter(|it| (it.0, it.1) == (piece.number, first));
        let (.., bytes) = partial.ok_or("a piece of an order has no beginning")?;
        append(bytes, piece)?;
        if (bytes.len() as u64) < piece.total {
            return Ok(None);
        }
        let whole = self.order.take().and_then(|(.., bytes)| EpochOrder::decode(&head, &bytes));
        whole.map(Some).ok_or("an order is malformed")
    }
}

/// Appends a piece that follows the present bytes.
fn append(to: &mut Vec<u8>, piece: Piece<'_>) -> Result<(), &'static str> {
    if piece.at != to.len() as u64 {
        return Err("a piece does not follow the one before");
    }
    to.extend(piece.bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

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

        let samples = (0..30_000).collect();
        let order = EpochOrder { dataset: 2, first: Tick(7), per_position: NonZeroU32::MIN, samples };
        let (mut whole, encoded) = (None, order.encoded());
        for piece in order.pieces(&encoded) {
            assert_eq!(whole, None);
            whole = connection.add_order(piece, 30_000).unwrap();
        }
        assert_eq!(whole.as_ref(), Some(&order));
        let first = order.pieces(&encoded).next().unwrap();
        assert!(connection.add_order(first, 29_999).is_err());
        let lost = OrderPiece { piece: Piece { at: 5, bytes: b"abcde", ..first.piece }, ..first };
        assert!(connection.add_order(lost, 30_000).is_err());
        // More samples than places.
        assert!(connection.add_order(OrderPiece { places: 10, ..first }, 30_000).is_err());
    }
}
