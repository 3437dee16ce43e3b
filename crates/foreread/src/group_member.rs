//! The interface of a group of ranks within this library. The feature `peer` contains its
//! implementation.

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

/// The longest time that a finished rank serves the others.
pub(crate) const FAREWELL: Duration = Duration::from_secs(600);

/// The rendezvous of a run's ranks.
pub(crate) trait GroupPreparation: Debug + Send {
    /// Performs the rendezvous with the other ranks, and opens and plans the run with them.
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

/// A started run of a group, beyond a run on a single rank.
pub(crate) trait GroupMember: Debug + Send + Sync {
    /// The other ranks.
    fn others(&self) -> PeerGroup;

    /// Reports this rank's completed steps. Returns the steps that all ranks have completed, as far
    /// as known: rank 0 knows all ranks, others only themselves.
    fn progress(&self, steps: u64) -> u64;

    /// The samples exchanged between this rank and others.
    fn exchanged(&self) -> PeersReport;

    /// Reports that this rank has finished, and serves the others until they finish. On rank 0,
    /// returns all reports as one.
    fn leave(&self, own: Merged, at_most: Duration) -> BoxFuture<'static, Option<Merged>>;
}
