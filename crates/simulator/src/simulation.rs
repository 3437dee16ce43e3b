//! A scenario with drawn sizes and orders, for any number of policies.

use crate::engine;
use crate::error::SimulateError;
use crate::model::Model;
use crate::outcome::SimulationOutcome;
use crate::plan::Setup;
use crate::policies::Policy;
use crate::scenario::Scenario;
use crate::workload::Workload;

/// One scenario and seed. All policies run over the same sizes and orders, which are drawn once.
#[derive(Debug)]
pub struct Simulation {
    scenario: Scenario,
    model: Model,
    workload: Workload,
}

impl Simulation {
    /// Draws the sizes and orders of a scenario from `seed` instead of the scenario's own seed.
    pub fn new(scenario: &Scenario, seed: u64) -> Result<Self, SimulateError> {
        let workload = Workload::new(scenario, seed)?;
        Ok(Self { scenario: scenario.clone(), model: Model::new(scenario), workload })
    }

    /// Runs a policy to its end. Calls `step` after every batch of every plan that the policy
    /// tries.
    pub fn run(&self, policy: Policy, step: &mut dyn FnMut()) -> SimulationOutcome {
        let setup = self.setup();
        let plans = match policy.plans(&setup) {
            Ok(plans) => plans,
            Err(why) => return SimulationOutcome { policy, refused: Some(why), figures: None },
        };
        let runs = plans.into_iter().map(|plan| engine::run(&setup, plan, step));
        let figures = runs.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        SimulationOutcome { policy, refused: None, figures }
    }

    /// The number of calls of `step` in [`run`](Self::run) for a policy that does not refuse.
    pub fn steps(&self, policy: Policy) -> u64 {
        self.workload.streams.shape.batches() as u64 * policy.tries(&self.setup())
    }

    fn setup(&self) -> Setup<'_> {
        Setup { scenario: &self.scenario, model: &self.model, workload: &self.workload }
    }

    /// The total size of all samples in MB.
    pub fn dataset_mb(&self) -> f64 {
        self.workload.total() as f64 / crate::workload::MB
    }
}
