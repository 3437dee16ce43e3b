//! The other ranks of a run, as the engine uses them.

use std::sync::Arc;

use foreread_oracle::{AccessStream, OracleError, Pass, Run};
use foreread_planner::{Cluster, Locality, Owners};
use foreread_tier::{Peers, Tier};
use foreread_types::{Rank, SampleId, SampleKey, StoreId};

/// The engine's access to the other ranks.
#[derive(Clone, Debug)]
pub struct PeerGroup {
    /// The connections to the other ranks.
    pub peers: Arc<dyn Peers>,
    /// The ids of the cluster's stores, by position.
    pub stores: Arc<[StoreId]>,
    /// The ranks whose requests come to this one, if it keeps samples for ranks of other nodes in a
    /// store that several ranks use.
    pub served: Arc<[Rank]>,
    /// The budget, in bytes, of samples that are being read for other ranks or wait to be sent. If
    /// the first epoch reads blocks, half of it is for the blocks that other ranks need.
    pub budget: u64,
}

impl PeerGroup {
    /// The tier that reads from a store.
    pub(crate) fn tier(&self, store: usize) -> Option<Arc<dyn Tier>> {
        self.peers.tier(*self.stores.get(store)?)
    }

    /// Cancels the request for a sample.
    pub(crate) fn cancel(&self, store: usize, key: SampleKey) {
        if let Some(store) = self.stores.get(store) {
            self.peers.cancel(*store, key);
        }
    }
}

/// The inputs of locality-aware dealing.
#[derive(Clone, Debug)]
pub struct LocalityDeal {
    /// The cluster of the plan.
    pub cluster: Cluster,
    /// The owner of each sample.
    pub owners: Owners,
}

impl LocalityDeal {
    /// The samples that the run's rank reads in a pass. It takes 8 bytes per sample, and one
    /// operation per sample of all ranks.
    ///
    /// # Errors
    /// If the pass cannot be dealt.
    pub fn stream(&self, run: &Run, pass: &Pass) -> Result<AccessStream, OracleError> {
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
