//! Deals the samples of each global batch to the ranks that hold them.
//!
//! The order decides which samples a step trains on, over all ranks. Which rank computes which
//! sample does not matter to the training, because gradients are averaged over all. So each sample
//! goes to a rank of its owner's store, as long as that rank's share of the step lasts. The
//! remaining samples have no owner, or an owner with more than its share. They fill the other
//! ranks' shares in the order of the list.
//!
//! # The decision, and its price
//!
//! A step is computed from the owners when it is needed, and never kept. It takes as many
//! operations as it has samples. Every rank computes all shares, because the shares of full ranks
//! decide where the remaining samples go. The shares of a step are as long as with the usual
//! dealing, so epochs, positions and resumes are not affected. Of the samples with an owner, a step
//! gives away only the excess over its owner's share: 6.8 % with 32 samples per rank and 16 ranks.

use foreread_oracle::{AccessStream, Pass, Run};
use foreread_types::{DatasetId, Rank, SampleId, SampleKey};

use crate::cluster::Cluster;
use crate::error::{PlanError, PlanReason};
use crate::owners::Owners;
use crate::readers::list;

/// One pass, dealt by ownership.
///
/// ```
/// use std::sync::Arc;
/// use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
/// use foreread_planner::{Cluster, Level, Locality, Ranks, CacheStore, plan_cluster};
/// use foreread_types::{DatasetId, Footprint, Rank, Sizes, StoreId};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let train = Phase {
///     kind: PhaseKind::Train,
///     dataset: DatasetId(0),
///     sampler: Arc::new(Shuffle::new(1000, 42)?),
///     batch_size: Some(25),
///     drop_last: false,
/// };
/// let run = Run::new(Arc::new(Schedule::new(3, vec![train])?), Deal::Torch, 4, Rank(0))?;
/// let memory = Level::new("memory", 25_000, Footprint::EXACT);
/// let stores = (0..4).map(|id| CacheStore::new(StoreId(id), vec![memory.clone()])).collect();
/// let cluster = Cluster { stores, ranks: Ranks::PerStore(1), ..Cluster::default() };
/// let plan = plan_cluster(&run, &[Sizes::uniform(1000, 100)], &cluster)?;
/// let pass = run.pass(1).ok_or("there are three")?;
/// let mut locality = Locality::new(&run, &pass, &cluster, plan.owners())?;
/// let mut batch = Vec::new();
/// locality.fill(0, Rank(2), &mut batch);
/// assert_eq!(batch.len(), 25);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locality {
    list: AccessStream,
    dataset: DatasetId,
    batch: u64,
    owners: Owners,
    /// The ranks of store s are `by_store[starts[s]..starts[s + 1]]`.
    starts: Vec<usize>,
    by_store: Vec<Rank>,
    step: DealtStep,
}

/// The last step that was dealt, and its working memory.
#[derive(Clone, Debug, Default)]
struct DealtStep {
    number: Option<u64>,
    ids: Vec<SampleId>,
    ranks: Vec<Rank>,
    /// The remaining share of each rank.
    left: Vec<u64>,
    /// The next rank of each store.
    next_ranks: Vec<usize>,
}

/// A sample that has no rank yet.
const UNASSIGNED: Rank = Rank(u32::MAX);

impl Locality {
    /// The pass `pass` of `run`, which may be any rank's.
    ///
    /// # Errors
    /// A cluster description that is invalid for the run, a phase without a batch size, and the
    /// errors of the sampler.
    pub fn new(run: &Run, pass: &Pass, cluster: &Cluster, owners: &Owners) -> Result<Self, PlanError> {
        cluster.check(run.world_size())?;
        let list = list(run, pass)?;
        let batch = list.dealing().batch_size().ok_or(PlanReason::BatchSize { phase: pass.phase })?;
        let stores = cluster.stores_of_ranks(run.world_size());
        let mut by_store: Vec<Rank> = (0..run.world_size()).map(Rank).collect();
        by_store.sort_by_key(|rank| stores[rank.0 as usize]);
        let starts = (0..=cluster.stores.len())
            .map(|store| by_store.partition_point(|rank| usize::from(stores[rank.0 as usize]) < store));
        Ok(Self {
            dataset: pass.dataset,
            batch,
            owners: owners.clone(),
            starts: starts.collect(),
            by_store,
            step: DealtStep::default(),
            list,
        })
    }

    /// The number of steps of the pass, including a short last one.
    pub fn steps(&self) -> u64 {
        self.list.len().div_ceil(self.batch)
    }

    /// Writes the samples of `rank` in a step into `out`, in the order of the global batch. `out`
    /// is cleared first. Steps may be requested in any order. A step is dealt once for several
    /// ranks.
    ///
    /// # Panics
    /// If `rank` is not below the world size.
    pub fn fill(&mut self, step: u64, rank: Rank, out: &mut Vec<SampleId>) {
        assert!(rank.0 < self.list.dealing().world_size(), "rank {rank}");
        self.deal(step);
        out.clear();
        let pairs = self.step.ids.iter().zip(&self.step.ranks);
        out.extend(pairs.filter(|(_, of)| **of == rank).map(|(&id, _)| id));
    }

    /// The samples of a step in the order of the global batch, each with its rank. Equals
    /// [`fill`](Self::fill) for every rank, at the cost of one.
    pub fn step(&mut self, step: u64) -> impl Iterator<Item = (Rank, SampleId)> + '_ {
        self.deal(step);
        self.step.ranks.iter().copied().zip(self.step.ids.iter().copied())
    }

    fn deal(&mut self, number: u64) {
        let step = &mut self.step;
        if step.number == Some(number) {
            return;
        }
        step.number = Some(number);
        let world = u64::from(self.list.dealing().world_size());
        let start = number.saturating_mul(self.batch).min(self.list.len());
        let share = self.batch.min(self.list.len() - start);
        let places = (share * world) as usize;
        step.ids.resize(places, SampleId(0));
        self.list.fill_list(start * world, &mut step.ids);
        step.ranks.clear();
        step.left.clear();
        step.left.resize(world as usize, share);
        step.next_ranks.clear();
        step.next_ranks.resize(self.starts.len(), 0);
        for &id in &step.ids {
            let owner = self.owners.of(SampleKey::new(self.dataset, id));
            step.ranks.push(owner.map_or(UNASSIGNED, |owner| {
                let ranks = &self.by_store[self.starts[owner.store]..self.starts[owner.store + 1]];
                // The ranks of a store take turns, so every sample within the store's share finds
                // one.
                let next_rank = &mut step.next_ranks[owner.store];
                match ranks.get(*next_rank % ranks.len().max(1)) {
                    Some(rank) if step.left[rank.0 as usize] > 0 => {
                        *next_rank += 1;
                        step.left[rank.0 as usize] -= 1;
                        *rank
                    }
                    _ => UNASSIGNED,
                }
            }));
        }
        let mut next = 0;
        for rank in step.ranks.iter_mut().filter(|rank| **rank == UNASSIGNED) {
            while step.left.get(next).is_some_and(|&left| left == 0) {
                next += 1;
            }
            *rank = Rank(next as u32);
            if let Some(left) = step.left.get_mut(next) {
                *left -= 1;
            }
        }
    }
}
