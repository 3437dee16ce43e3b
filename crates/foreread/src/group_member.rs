//! The interface of a group of ranks within this library. The feature `share` contains its
//! implementation.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use foreread_dataset::IndexProgress;
use foreread_loader::LocalityDeal;
use foreread_open::error::Result;
use foreread_open::registry::Registry;
use foreread_open::target::TargetSpec;
use foreread_tier::OpenContext;
use futures::future::BoxFuture;

use crate::config::Config;
use crate::merged::Merged;
use crate::prepared::Prepared;
use crate::report::PeersReport;
use crate::state::State;

/// The longest time that a finished rank serves the others.
pub(crate) const FAREWELL: Duration = Duration::from_secs(600);

/// The same after a signal, whose sender waits.
pub(crate) const INTERRUPTED_FAREWELL: Duration = Duration::from_secs(5);

/// How often a finished rank checks for an interruption.
const INTERRUPT_POLL: Duration = Duration::from_millis(100);

/// Completes with `leaving`, and with `hurrying` once `interrupted` returns true.
pub(crate) async fn unless<T>(
    interrupted: impl Fn() -> bool,
    leaving: impl Future<Output = T>,
    hurrying: impl Future<Output = T>,
) -> T {
    let interrupt = async move {
        while !interrupted() {
            tokio::time::sleep(INTERRUPT_POLL).await;
        }
    };
    tokio::select! {
        left = leaving => left,
        () = interrupt => hurrying.await,
    }
}

/// The rendezvous of a run's ranks.
pub(crate) trait GroupPreparation: Debug + Send {
    /// Performs the rendezvous with the other ranks, and opens and plans the run with them.
    /// `place`: also whether its runtime ends with the run.
    fn prepare<'a>(
        self: Box<Self>,
        targets: &'a TargetSpec,
        config: Config,
        registry: &'a Registry,
        place: (&'a OpenContext, bool),
        resume: Option<State>,
        progress: Box<dyn FnMut(IndexProgress) + Send + 'a>,
    ) -> BoxFuture<'a, Result<Prepared>>;
}

/// A started run of a group, beyond a run on a single rank.
pub(crate) trait GroupMember: Debug + Send + Sync {
    /// How each step's samples are dealt to ranks, if not by arithmetic.
    fn locality(&self) -> Option<Arc<LocalityDeal>>;

    /// Reports this rank's completed steps. Returns the steps that all ranks have completed, as far
    /// as known: rank 0 knows all ranks, others only themselves.
    fn progress(&self, steps: u64) -> u64;

    /// The samples exchanged between this rank and others.
    fn exchanged(&self) -> PeersReport;

    /// Reports that this rank has finished, and serves the others until they finish. On rank 0,
    /// returns all reports as one.
    fn leave(&self, own: Merged, at_most: Duration) -> BoxFuture<'static, Option<Merged>>;
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    // semantics: RANK-22
    async fn interrupted_rank_leaves_five_seconds_later() {
        let (begun, minute) = (Instant::now(), Duration::from_secs(60));
        let hurrying = async { sleep(INTERRUPTED_FAREWELL).await };
        unless(|| begun.elapsed() >= minute, pending(), hurrying).await;
        assert_eq!(begun.elapsed(), minute + Duration::from_secs(5));
        // All others have finished before.
        let (begun, hurrying) = (Instant::now(), pending());
        unless(|| begun.elapsed() >= minute, sleep(minute / 2), hurrying).await;
        assert_eq!(begun.elapsed(), minute / 2);
    }
}
