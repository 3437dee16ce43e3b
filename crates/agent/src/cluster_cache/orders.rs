//! The orders of jobs, and their parts for each owner.
//!
//! An owner gets the samples that it keeps, each with the number of others before it. So an order
//! costs 8 bytes per sample, however many owners there are, and positions stay those of the job.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreread_planner::EpochUses;
use foreread_store::StoreJob;
use foreread_store::attach::{Attach, Piece};
use foreread_types::{SampleId, Tick};

use super::shared_dataset::SharedDataset;

/// The epochs of a job that owners may still need, per dataset.
const MOST_ORDERS: usize = 3;

/// An announced epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobOrder {
    /// The dataset's number among those of the job.
    pub(crate) dataset: u32,
    pub(crate) first: Tick,
    pub(crate) per_position: NonZeroU32,
    /// Samples and holes.
    pub(crate) samples: Vec<u32>,
}

/// A job of this agent.
#[derive(Debug)]
pub(super) struct SharedJob {
    /// Other agents know it by this number.
    pub(super) number: u32,
    pub(super) job: StoreJob,
    pub(super) attach: Attach,
    /// `None` for those that this agent does not keep.
    pub(super) datasets: Vec<Option<Arc<SharedDataset>>>,
    orders: Mutex<VecDeque<Arc<JobOrder>>>,
    /// The datasets whose shards are read in blocks at first.
    blocks: Mutex<BTreeSet<u32>>,
}

impl SharedJob {
    pub(super) fn new(
        number: u32,
        job: StoreJob,
        attach: Attach,
        datasets: Vec<Option<Arc<SharedDataset>>>,
    ) -> Self {
        let (orders, blocks) = Default::default();
        Self { number, job, attach, datasets, orders, blocks }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<JobOrder>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn dataset(&self, number: u32) -> Option<&Arc<SharedDataset>> {
        self.datasets.get(number as usize)?.as_ref()
    }

    pub(super) fn read_in_blocks(&self, dataset: u32) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(dataset);
    }

    /// The datasets whose shards are read in blocks at first.
    pub(super) fn blocks(&self) -> Vec<u32> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Keeps an order for owners that come later.
    pub(super) fn add(&self, order: JobOrder) -> Arc<JobOrder> {
        let order = Arc::new(order);
        let mut orders = self.lock();
        let is_same = |other: &Arc<JobOrder>| other.dataset == order.dataset;
        if orders.iter().filter(|other| is_same(other)).count() >= MOST_ORDERS
            && let Some(oldest) = orders.iter().position(is_same)
        {
            orders.remove(oldest);
        }
        orders.push_back(Arc::clone(&order));
        order
    }

    pub(super) fn restart(&self) {
        self.lock().clear();
    }

    pub(super) fn orders(&self) -> Vec<Arc<JobOrder>> {
        self.lock().iter().cloned().collect()
    }
}

/// The parts of an order for so many owners: for each sample the places before it, since the last
/// one of that owner, and its number.
pub(super) fn divided(
    order: &JobOrder,
    owners: usize,
    owner: impl Fn(SampleId) -> Option<usize>,
) -> Vec<Vec<u8>> {
    let mut parts = vec![(0_u32, Vec::new()); owners];
    for (at, sample) in (0_u32..).zip(&order.samples) {
        let id = SampleId(u64::from(*sample));
        let Some((next, part)) =
            owner(id).filter(|_| id != EpochUses::HOLE).and_then(|owner| parts.get_mut(owner))
        else {
            continue;
        };
        part.extend((at - *next).to_le_bytes());
        part.extend(sample.to_le_bytes());
        *next = at + 1;
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

/// A piece of a part of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderPiece<'a> {
    pub(super) job: u32,
    pub(super) first: Tick,
    pub(super) per_position: NonZeroU32,
    /// All places of the epoch.
    pub(super) places: u32,
    /// Its number is that of the dataset.
    pub(super) piece: Piece<'a>,
}

impl<'a> OrderPiece<'a> {
    /// The pieces of a part of an order.
    pub(super) fn all(job: u32, order: &JobOrder, part: &'a [u8]) -> impl Iterator<Item = Self> {
        let (first, per_position) = (order.first, order.per_position);
        let places = u32::try_from(order.samples.len()).unwrap_or(u32::MAX);
        Piece::all(order.dataset, part).map(move |piece| Self { job, first, per_position, places, piece })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = self.job.to_le_bytes().to_vec();
        to.extend(self.first.0.to_le_bytes());
        to.extend(self.per_position.get().to_le_bytes());
        to.extend(self.places.to_le_bytes());
        to.extend(self.piece.encode());
        to
    }

    pub(super) fn decode(payload: &'a [u8]) -> Option<Self> {
        let (job, rest) = payload.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let (per_position, rest) = rest.split_first_chunk()?;
        let (places, rest) = rest.split_first_chunk()?;
        Some(Self {
            job: u32::from_le_bytes(*job),
            first: Tick(u64::from_le_bytes(*first)),
            per_position: NonZeroU32::new(u32::from_le_bytes(*per_position))?,
            places: u32::from_le_bytes(*places),
            piece: Piece::decode(rest)?,
        })
    }
}

/// The samples and holes of a part of an order with so many places. Ends early if the part has
/// more.
pub(super) fn expanded(part: &[u8], places: u32) -> impl Iterator<Item = SampleId> {
    let (pairs, _) = part.as_chunks::<8>();
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |number: u32, byte| number << 8 | u32::from(*byte));
    let of_pair = move |pair: &[u8; 8]| {
        let (holes, sample) = pair.split_at(4);
        let holes = std::iter::repeat_n(EpochUses::HOLE, number(holes) as usize);
        holes.chain([SampleId(u64::from(number(sample)))])
    };
    let all = pairs.iter().flat_map(of_pair);
    all.chain(std::iter::repeat(EpochUses::HOLE)).take(places as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        // semantics: CONTROL-10
        fn parts_of_an_order_are_all_of_it(
            samples in prop::collection::vec(prop_oneof![0..50_u32, Just(u32::MAX)], 0..200),
            owners in 1..5_usize,
        ) {
            let per_position = NonZeroU32::new(2).unwrap();
            let order = JobOrder { dataset: 1, first: Tick(9), per_position, samples };
            let parts = divided(&order, owners, |sample| Some(sample.0 as usize % owners));
            let places = order.samples.len() as u32;
            let mut all = vec![u32::MAX; order.samples.len()];
            for (owner, part) in parts.iter().enumerate() {
                let mut received = Vec::new();
                for piece in OrderPiece::all(3, &order, part) {
                    let encoded = piece.encode();
                    let decoded = OrderPiece::decode(&encoded).unwrap();
                    prop_assert_eq!(decoded, piece);
                    received.extend(decoded.piece.bytes);
                }
                let expanded: Vec<u32> = expanded(&received, places).map(|id| id.0 as u32).collect();
                prop_assert_eq!(expanded.len(), all.len());
                for (to, id) in all.iter_mut().zip(expanded).filter(|(_, id)| *id != u32::MAX) {
                    prop_assert!(id as usize % owners == owner && *to == u32::MAX);
                    *to = id;
                }
            }
            prop_assert_eq!(all, order.samples);
        }
    }

    #[test]
    fn part_of_another_program_ends_at_the_places() {
        let mut part = u32::MAX.to_le_bytes().to_vec();
        part.extend(5_u32.to_le_bytes());
        part.push(1);
        assert!(expanded(&part, 3).eq([EpochUses::HOLE; 3]));
        assert_eq!(OrderPiece::decode(&[0; 30]), None);
    }

    #[test]
    fn old_orders_of_a_dataset_are_forgotten() {
        let job = StoreJobs::one();
        let shared = SharedJob::new(0, job, Attach::default(), Vec::new());
        for first in 0..5 {
            for dataset in 0..2 {
                let per_position = NonZeroU32::MIN;
                shared.add(JobOrder { dataset, first: Tick(first), per_position, samples: vec![1] });
            }
        }
        let firsts: Vec<(u32, u64)> = shared.orders().iter().map(|it| (it.dataset, it.first.0)).collect();
        assert_eq!(firsts, [(0, 2), (1, 2), (0, 3), (1, 3), (0, 4), (1, 4)]);
        shared.restart();
        assert!(shared.orders().is_empty());
    }

    struct StoreJobs;

    impl StoreJobs {
        fn one() -> StoreJob {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            foreread_store::NodeStore::new(0, runtime.handle().clone()).add_job(false)
        }
    }
}
