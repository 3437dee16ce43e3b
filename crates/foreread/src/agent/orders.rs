//! The orders of a run, for its agent.

use foreread_agent_client::{AnnouncedPass, JobOrders};
use foreread_oracle::Run;
use foreread_types::Tick;

/// The epochs of a run. They are computed a second time here, ahead of the engine.
pub(super) struct RunOrders(Run);

impl RunOrders {
    pub(super) fn new(run: &Run) -> Self {
        Self(run.separate())
    }
}

impl JobOrders for RunOrders {
    fn pass(&self, index: usize) -> Option<(Tick, u64)> {
        self.0.pass(index).map(|pass| (pass.first_tick, pass.samples))
    }

    fn order(&self, index: usize) -> Option<AnnouncedPass> {
        let pass = self.0.pass(index)?;
        let stream = match self.0.stream(&pass) {
            Ok(stream) => stream,
            Err(error) => {
                // The engine reports it when it gets there.
                tracing::debug!(%error, "an order cannot be announced");
                return None;
            }
        };
        let samples = (0..stream.len()).map(|at| stream.at(at).0 as u32).collect();
        Some(AnnouncedPass { dataset: pass.dataset.0, first: pass.first_tick, samples })
    }
}
