//! The other ranks of a run, as the engine works with them.

use std::sync::Arc;

use foreread_oracle::{AccessStream, OracleError, Pass, Run};
use foreread_planner::{Cluster, Locality, Owners};
use foreread_tier::{Peers, Tier};
use foreread_types::{SampleId, SampleKey, StoreId};

/// What a run needs to work together with other ranks.
#[derive(Clone, Debug)]
pub struct Others {
    /// The other ranks.
    pub peers: Arc<dyn Peers>,
    /// The numbers of the cluster's stores, by position.
    pub stores: Arc<[StoreId]>,
    /// Deals each step's samples to the ranks that have them; none where the arithmetic deals.
    pub locality: Option<Arc<LocalDeal>>,
    /// Bytes that are read for others, or were read and have not left, at a time.
    pub budget: u64,
}

impl Others {
    /// What is asked for the samples of a store.
    pub(crate) fn tier(&self, store: usize) -> Option<Arc<dyn Tier>> {
        self.peers.tier(*self.stores.get(store)?)
    }

    /// What a store was asked for is no longer wanted.
    pub(crate) fn cancel(&self, store: usize, key: SampleKey) {
        if let Some(store) = self.stores.get(store) {
            self.peers.cancel(*store, key);
        }
    }
}

/// Whom locality-aware dealing goes by.
#[derive(Clone, Debug)]
pub struct LocalDeal {
    /// The cluster of the plan.
    pub cluster: Cluster,
    /// Its owners.
    pub owners: Owners,
}

impl LocalDeal {
    /// What the run's rank reads in a pass: 8 bytes a sample, and as many operations as the pass has samples on all
    /// ranks together.
    pub(crate) fn stream(&self, run: &Run, pass: &Pass) -> Result<AccessStream, OracleError> {
        let stream = run.stream(pass)?;
        let wrong = |error: &dyn std::fmt::Display| OracleError::custom(error.to_string());
        let mut locality =
            Locality::new(run, pass, &self.cluster, &self.owners).map_err(|error| wrong(&error))?;
        let (mut samples, mut step): (Vec<SampleId>, Vec<SampleId>) = Default::default();
        for number in 0..locality.steps() {
            locality.fill(number, run.rank(), &mut step);
            samples.extend_from_slice(&step);
        }
        stream.dealt(samples)
    }
}
