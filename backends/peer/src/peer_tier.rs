//! A store of another node or rank, as a tier.

use std::sync::Arc;

use foreread_tier::{Completion, Completions, ErrorKind, ReadRequest, Tier, TierError, TierProfile};
use foreread_types::SampleKey;
use futures::{StreamExt, stream};

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

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        let alive = self.remotes.iter().find(|remote| !remote.is_down()).or(self.remotes.first());
        match alive {
            Some(remote) => remote.read(batch),
            None => {
                let none = |request: ReadRequest| {
                    let error = TierError::new(ErrorKind::Absent, NAME)
                        .with_object(&*request.object.path)
                        .with_detail("no rank uses this store");
                    Completion { tag: request.tag, result: Err(error) }
                };
                stream::iter(batch.into_iter().map(none)).boxed()
            }
        }
    }
}
