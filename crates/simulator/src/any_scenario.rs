//! A scenario file of either kind.

use crate::error::SimulateError;
use crate::scenario::Scenario;
use crate::scenario_fields::parse;
use crate::several_jobs::JobsScenario;

/// A scenario of a training run on machines, or of several jobs with one cache.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyScenario {
    /// One training run on described machines.
    Machines(Box<Scenario>),
    /// Several jobs over one dataset. The file has a table `[several-jobs]`.
    SeveralJobs(JobsScenario),
}

impl AnyScenario {
    /// Parses the text of a scenario file.
    ///
    /// # Errors
    /// One line that names the field, as for [`Scenario::from_toml`].
    ///
    /// ```
    /// use foreread_simulator::AnyScenario;
    /// let text = include_str!("../scenarios/four-jobs.toml");
    /// assert!(matches!(AnyScenario::from_toml(text), Ok(AnyScenario::SeveralJobs(_))));
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, SimulateError> {
        if parse(text)?.contains_key("several-jobs") {
            JobsScenario::from_toml(text).map(Self::SeveralJobs)
        } else {
            Scenario::from_toml(text).map(|scenario| Self::Machines(Box::new(scenario)))
        }
    }
}
