//! The orders of a run, for its agent.
//!
//! In a group of ranks, the agent of a node keeps the samples that the node owns, for the ranks of
//! all nodes. They come to it through one rank of the node, which announces the owned ones among
//! the samples of all ranks. Samples without an owner here are not announced. They use free room
//! only, or the agent would keep them in the place of owned ones, which other nodes rely on.

use std::num::NonZeroU32;
use std::sync::Arc;

use foreread_agent_client::JobOrders;
use foreread_loader::LocalityDeal;
use foreread_oracle::{AccessStream, OracleError, Pass, Run};
use foreread_planner::{ClusterPlan, LocalPlan};
use foreread_store::attach::EpochOrder;
use foreread_types::{DatasetId, Rank, SampleKey, Tick};

/// The epochs of a run. They are computed a second time here, ahead of the engine.
pub(crate) struct RunOrders {
    run: Run,
    /// `None` outside of a group.
    group: Option<GroupOrders>,
    /// How samples are dealt to ranks, if not by arithmetic.
    locality: Option<Arc<LocalityDeal>>,
    /// The bytes of the blocks in which the training data are read at first.
    blocks: Option<u64>,
}

/// The samples that a node owns, in the orders of all ranks.
struct GroupOrders {
    plan: Arc<ClusterPlan>,
    /// The position of the node's store in the plan.
    store: usize,
    /// The same run of the other ranks.
    others: Vec<Run>,
}

impl RunOrders {
    pub(crate) fn new(run: &Run, of_group: Option<&LocalPlan>, locality: Option<Arc<LocalityDeal>>) -> Self {
        let of_rank = |rank| {
            let (schedule, start) = (Arc::clone(run.schedule()), run.start());
            // The other ranks have the same run.
            Run::resume(schedule, run.deal(), run.world_size(), rank, &start).ok()
        };
        let group = match of_group {
            Some(LocalPlan::Cluster { plan, store }) => {
                let others = (0..run.world_size()).map(Rank).filter(|rank| *rank != run.rank());
                let others = others.filter_map(of_rank).collect();
                Some(GroupOrders { plan: Arc::clone(plan), store: *store, others })
            }
            _ => None,
        };
        Self { run: run.separate(), group, locality, blocks: None }
    }

    /// The same, with the training data read in blocks of this length at first.
    pub(crate) fn with_blocks(self, blocks: Option<u64>) -> Self {
        Self { blocks, ..self }
    }

    fn stream(&self, run: &Run, pass: &Pass) -> Result<AccessStream, OracleError> {
        match &self.locality {
            Some(locality) => locality.stream(run, pass),
            None => run.stream(pass),
        }
    }

    /// The samples of all ranks that the node owns, position after position.
    fn of_group(&self, group: &GroupOrders, index: usize) -> Result<Vec<u32>, OracleError> {
        let stream = |run: &Run| -> Result<Option<(DatasetId, AccessStream)>, OracleError> {
            let Some(pass) = run.pass(index) else { return Ok(None) };
            Ok(Some((pass.dataset, self.stream(run, &pass)?)))
        };
        let ranks = std::iter::once(&self.run).chain(&group.others);
        let streams = ranks.map(stream).collect::<Result<Vec<_>, _>>()?;
        let is_owned =
            |key: &SampleKey| group.plan.owner(*key).is_some_and(|owner| owner.store == group.store);
        let positions = streams.iter().flatten().map(|(_, stream)| stream.len()).max().unwrap_or(0);
        let mut samples = Vec::with_capacity(positions as usize * streams.len());
        for at in 0..positions {
            samples.extend(streams.iter().map(|stream| {
                let used = stream.as_ref().filter(|(_, stream)| at < stream.len());
                let key = used.map(|(dataset, stream)| SampleKey::new(*dataset, stream.at(at)));
                key.filter(is_owned).map_or(EpochOrder::HOLE, |key| key.id.0 as u32)
            }));
        }
        Ok(samples)
    }
}

/// The orders of a run whose stores keep the samples of its plan: none.
pub(crate) struct NoOrders;

impl JobOrders for NoOrders {
    fn blocks(&self) -> Vec<(u32, u64)> {
        Vec::new()
    }

    fn pass(&self, _: usize) -> Option<(Tick, u64)> {
        None
    }

    fn order(&self, _: usize) -> Option<EpochOrder> {
        None
    }
}

impl JobOrders for RunOrders {
    fn blocks(&self) -> Vec<(u32, u64)> {
        self.blocks.map(|bytes| (0, bytes)).into_iter().collect()
    }

    fn pass(&self, index: usize) -> Option<(Tick, u64)> {
        self.run.pass(index).map(|pass| (pass.first_tick, pass.samples))
    }

    fn order(&self, index: usize) -> Option<EpochOrder> {
        let pass = self.run.pass(index)?;
        let (samples, ranks) = match &self.group {
            Some(group) => (self.of_group(group, index), 1 + group.others.len()),
            None => {
                let stream = self.stream(&self.run, &pass);
                (stream.map(|stream| (0..stream.len()).map(|at| stream.at(at).0 as u32).collect()), 1)
            }
        };
        let per_position = u32::try_from(ranks).ok().and_then(NonZeroU32::new)?;
        match samples {
            Ok(samples) => {
                let (dataset, first) = (pass.dataset.0, pass.first_tick);
                Some(EpochOrder { dataset, first, per_position, samples })
            }
            Err(error) => {
                // The engine reports it when it gets there.
                tracing::debug!(%error, "an order cannot be announced");
                None
            }
        }
    }
}
