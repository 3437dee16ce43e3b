//! A scenario file of any kind.

use crate::error::SimulateError;
use crate::scenario::Scenario;
use crate::scenario_fields::parse;
use crate::several_jobs::JobsScenario;
use crate::whole_files::FilesScenario;

/// A scenario of a training run on machines, of several jobs with one cache, or of whole files.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyScenario {
    /// One training run on described machines.
    Machines(Box<Scenario>),
    /// Several jobs over one dataset. The file has a table `[several-jobs]`.
    SeveralJobs(JobsScenario),
    /// A program that is not changed, and opens whole files. The file has a table `[files]`.
    WholeFiles(FilesScenario),
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
        let table = parse(text)?;
        if table.contains_key("several-jobs") {
            JobsScenario::from_toml(text).map(Self::SeveralJobs)
        } else if table.contains_key("files") {
            FilesScenario::from_toml(text).map(Self::WholeFiles)
        } else {
            Scenario::from_toml(text).map(|scenario| Self::Machines(Box::new(scenario)))
        }
    }
}
