//! Deals each step's samples to ranks that have them.
//!
//! The batches of all ranks together stay as the sampler orders them. Only their division among the
//! ranks differs from the arithmetic one, so training sees the same global batches.

use foreread_oracle::{AccessStream, OracleError, Pass, Run};
use foreread_planner::{Cluster, Locality, Owners};
use foreread_types::SampleId;

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
