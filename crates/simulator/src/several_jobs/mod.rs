//! Several jobs over one dataset, with one cache: the reads of the origin by each policy.
//!
//! Jobs use samples of equal length one by one, each in its own order and at its own pace. There
//! are no machines: the figures are parts of the uses, and times are in epochs. The price is that
//! the simulation predicts reads and no seconds.

mod comparison;
mod merged_uses;
mod policies;
mod scenario;

pub use comparison::{JobsComparison, JobsOutcome};
pub use policies::JobsPolicy;
pub use scenario::JobsScenario;
