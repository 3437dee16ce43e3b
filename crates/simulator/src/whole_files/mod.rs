//! Whole files of a program that is not changed, with one cache: the opens that find a copy, and
//! the cost of the copies.
//!
//! The program opens each file once per epoch. [`FilesPolicy::CopiesAhead`] is driven by the
//! planner's own `FileChoice` and `WearBudget`, as `foreread run` drives them, so the simulation
//! cannot differ from the rule. All files have equal lengths, opens are evenly spaced, and a cache
//! makes at most one copy per open, in no time. The price is that a slow copier or files of mixed
//! lengths are not simulated. The figures are then those of an upper bound.

mod caches;
mod comparison;
mod policies;
mod scenario;

pub use comparison::{FilesComparison, FilesOutcome};
pub use policies::FilesPolicy;
pub use scenario::{FileOrder, FilesScenario};
