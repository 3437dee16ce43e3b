//! A store of another node or rank, as a tier.

use std::future::ready;
use std::sync::Arc;

use foreread_tier::{ErrorKind, ReadFuture, ReadRequest, Tier, TierError, TierProfile};
use foreread_types::SampleKey;

use crate::Remote;
use crate::asking::NAME;

/// Reads what a store keeps by asking one of the ranks that use it: the first that is not known to be down.
///
/// Requests need their key, and nothing of the object but its length and a name for errors.
#[derive(Debug)]
pub struct PeerTier {
    remotes: Vec<Arc<Remote>>,
}

impl PeerTier {
    /// A store that `remotes` use; the first are asked before the others.
    pub fn new(remotes: Vec<Arc<Remote>>) -> Self {
        Self { remotes }
    }

    /// The ranks that it asks.
    pub fn remotes(&self) -> &[Arc<Remote>] {
        &self.remotes
    }

    /// As [`Peers::cancel`](foreread_tier::Peers::cancel).
    pub fn cancel(&self, key: SampleKey) {
        self.remotes.iter().for_each(|remote| remote.cancel(key));
    }
}

impl Tier for PeerTier {
    fn name(&self) -> &str {
        NAME
    }

    fn profile(&self) -> &TierProfile {
        const { &TierProfile::new(64) }
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let alive = self.remotes.iter().find(|remote| !remote.is_down()).or(self.remotes.first());
        match alive {
            Some(remote) => remote.read(request),
            None => {
                let error = TierError::new(ErrorKind::Absent, NAME)
                    .with_object(&*request.object.path)
                    .with_detail("no rank uses this store");
                Box::pin(ready(Err(error)))
            }
        }
    }

    /// Sends what was asked of each rank in one frame.
    fn submit(&self) {
        self.remotes.iter().for_each(|remote| remote.submit());
    }
}
