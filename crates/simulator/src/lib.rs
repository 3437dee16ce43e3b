//! The simulator: the duration and the reads of a training run on described machines, under several
//! cache policies.
//!
//! A [`Scenario`] describes workers, their storage classes, the shared file system, the dataset and
//! the training. A [`Policy`] decides where each sample is cached, and from where it is read.
//! [`Simulation::run`] simulates the run and returns an [`SimulationOutcome`]: seconds, sources of
//! reads, bytes read from the file system, and their lower bound for any policy.
//!
//! # The decision, and its price
//!
//! The model is that of Böhringer's thesis and the NoPFS paper (see [`Model`]), rule by rule, so
//! that results can be compared with the literature's. The thesis's three tables are tests. Time
//! advances from request to request, without clock ticks. The price is the model's simplicity. The
//! file system is a curve of bandwidth over readers without latency. Networks do not congest. Each
//! thread of a worker gets the client's whole share of the file system. The simulator compares
//! policies and predicts no real machine.
//!
//! A [`JobsScenario`] describes several jobs that share a cache instead. A [`JobsComparison`] gives
//! the reads of the origin by each [`JobsPolicy`].
//!
//! A [`FilesScenario`] describes a program that is not changed and opens whole files. A
//! [`FilesComparison`] gives the opens that find a copy, and the cost of the copies.
//!
//! A [`Comparison`] runs several policies over several seeds, with a table and, by the feature
//! `plot`, plots.
//!
//! ```
//! use foreread_simulator::{Policy, Scenario, Simulation};
//!
//! # fn main() -> Result<(), foreread_simulator::SimulateError> {
//! let mut scenario = Scenario::from_toml(include_str!("../scenarios/thesis-s1.toml"))?;
//! (scenario.samples, scenario.epochs) = (1000, 2);
//! let simulation = Simulation::new(&scenario, scenario.seed)?;
//! let bound = simulation.run(Policy::LowerBound, &mut || ()).figures.map(|figures| figures.seconds);
//! let ours = simulation.run(Policy::Foreread, &mut || ()).figures.map(|figures| figures.seconds);
//! assert!(bound <= ours);
//! # Ok(())
//! # }
//! ```

mod any_scenario;
mod comparison;
mod copies;
mod engine;
mod error;
mod first_use;
mod model;
mod named;
mod oracle_run;
mod outcome;
mod plan;
mod planner_decisions;
#[cfg(feature = "plot")]
mod plot;
mod policies;
mod scenario;
mod scenario_fields;
mod several_jobs;
mod simulation;
mod staging;
mod threads;
mod whole_files;
mod workload;

pub use any_scenario::AnyScenario;
pub use comparison::{Comparison, Sweep};
pub use error::SimulateError;
#[cfg(feature = "plot")]
pub use foreread_plot::PlotError;
pub use model::{Curve, Model};
pub use outcome::{Figures, SimulationOutcome};
pub use policies::Policy;
pub use scenario::{Accounting, MAX_ACCESSES, Scenario, StorageClass};
pub use several_jobs::{JobsComparison, JobsOutcome, JobsPolicy, JobsScenario};
pub use simulation::Simulation;
pub use whole_files::{FileOrder, FilesComparison, FilesOutcome, FilesPolicy, FilesScenario};
