//! Circuit breakers for the other ranks. A rank that does not answer gets no requests for a while.
//! Its samples are then read from the origin at once, without a timeout for each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use foreread_layers::{Breaker, BreakerPolicy};
use foreread_peer::meet::RunGroup;
use foreread_tier::{PeerService, Peers, Tier};
use foreread_types::{Rank, SampleKey, StoreId};

/// A group with a circuit breaker per rank.
#[derive(Debug)]
pub(super) struct PeersWithBreakers {
    group: Arc<RunGroup>,
    seed: u64,
    /// One breaker per store, not per request, because a breaker has state.
    breakers: Mutex<BTreeMap<StoreId, Arc<Breaker<dyn Tier>>>>,
}

impl PeersWithBreakers {
    /// `seed`: the seed of random waits.
    pub(super) fn new(group: Arc<RunGroup>, seed: u64) -> Self {
        Self { group, seed, breakers: Mutex::default() }
    }
}

impl Peers for PeersWithBreakers {
    fn rank(&self) -> Rank {
        self.group.rank()
    }

    fn world_size(&self) -> u32 {
        self.group.world_size()
    }

    fn tier(&self, store: StoreId) -> Option<Arc<dyn Tier>> {
        let mut breakers = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(breaker) = breakers.get(&store) {
            return Some(Arc::clone(breaker) as Arc<dyn Tier>);
        }
        let peer = self.group.tier(store)?;
        let seed = self.seed ^ u64::from(store.0) << 32 ^ u64::from(self.group.rank().0);
        let breaker = Breaker::new(peer, BreakerPolicy::default(), format!("rank {store}"), seed);
        let breaker = breakers.entry(store).or_insert(Arc::new(breaker));
        Some(Arc::clone(breaker) as Arc<dyn Tier>)
    }

    fn cancel(&self, store: StoreId, key: SampleKey) {
        self.group.cancel(store, key);
    }

    fn serve(&self, source: Weak<dyn PeerService>) {
        self.group.serve(source);
    }
}
