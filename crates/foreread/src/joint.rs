//! A run that works together with others, as the rest of the library sees it. The feature `peer`
//! has what is behind it.

use std::fmt::Debug;
use std::time::Duration;

use foreread_dataset::IndexProgress;
use foreread_loader::PeerGroup;
use foreread_tier::OpenContext;
use futures::future::BoxFuture;

use crate::config::Config;
use crate::error::Result;
use crate::merged::Merged;
use crate::prepared::Prepared;
use crate::registry::Registry;
use crate::report::PeersReport;
use crate::state::State;
use crate::target::TargetSpec;

/// How long a rank that is done keeps answering others that are not.
pub(crate) const FAREWELL: Duration = Duration::from_secs(600);

/// Where the ranks of a run find each other.
pub(crate) trait GroupPreparation: Debug + Send {
    /// Meets the other ranks, and opens and plans the run with them.
    fn prepare<'a>(
        self: Box<Self>,
        targets: &'a TargetSpec,
        config: Config,
        registry: &'a Registry,
        context: &'a OpenContext,
        resume: Option<State>,
        progress: Box<dyn FnMut(IndexProgress) + Send + 'a>,
    ) -> BoxFuture<'a, Result<Prepared>>;
}

/// A run under way with others, beyond what a run alone has.
pub(crate) trait GroupMember: Debug + Send + Sync {
    /// The other ranks.
    fn others(&self) -> PeerGroup;

    /// Says how many steps this rank has completed, and returns how many all have, as far as it
    /// knows: rank 0 knows of all, others of themselves.
    fn progress(&self, steps: u64) -> u64;

    /// What this rank and others have given each other.
    fn exchanged(&self) -> PeersReport;

    /// Says that this rank is done, and answers the others until they are; on rank 0, returns all
    /// reports as one.
    fn leave(&self, own: Merged, at_most: Duration) -> BoxFuture<'static, Option<Merged>>;
}
