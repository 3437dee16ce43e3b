//! The simulator: what a training run would take on machines that are only described, under this policy or that.
//!
//! A [`Scenario`] describes workers, their storage classes, the shared file system, the dataset and the training. A
//! [`Policy`] decides what is cached where and read from where. [`Simulation::run`] plays the run through and gives an
//! [`Outcome`]: seconds, where reads were served from, and the bytes read from the file system beside the floor, which is
//! the fewest that any policy reads.
//!
//! # The decision, and its price
//!
//! The model is that of Böhringer's thesis and the NoPFS paper (see [`Model`]), rule by rule, so that results can be laid
//! beside the literature's; the thesis's three tables are tests. It moves from request to request and needs no clock
//! ticks. Its price is the model's simplicity: the file system is a curve of bandwidth against readers without latency,
//! networks do not congest, and a worker's threads each get the client's whole share of the file system. It compares
//! policies; it predicts no machine.
//!
//! Several policies beside each other, over several seeds, are a [`Comparison`], with its table and its plots.
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

mod comparison;
mod copies;
mod engine;
mod error;
mod first_use;
mod model;
mod outcome;
mod plan;
mod planned;
mod plot;
mod policies;
mod reader;
mod run;
mod scenario;
mod simulation;
mod staging;
mod threads;
mod workload;

pub use comparison::Comparison;
pub use error::{SimulateError, SimulateErrorKind};
pub use model::{Curve, Model};
pub use outcome::{Figures, Outcome};
pub use plot::{PlotError, Sweep};
pub use policies::Policy;
pub use scenario::{Accounting, Class, MOST_ACCESSES, Scenario};
pub use simulation::Simulation;
