//! The planner: where samples live, and what a run costs at least.
//!
//! A [`Run`](foreread_oracle::Run) says what will be read, [`Sizes`](foreread_types::Sizes) say how long it is, and a
//! [`Cluster`] says what there is to keep it in. From these three [`plan`] computes a [`Plan`]:
//!
//! * [`Placement`]: which level of the store keeps which sample for the whole run;
//! * [`Retention`]: whether kept samples stay ([`Retention::Keep`]) or come and go ([`Retention::Threshold`]);
//! * [`Floor`]: the origin bytes that no policy can save, beside the origin bytes that this plan will read.
//!
//! # The decision, and its price
//!
//! Under one-use-per-epoch shuffling no eviction policy beats a cache that never evicts, so samples are placed once, by
//! a static knapsack, and stay. Only where samples recur within an epoch, or may stay away for several, does the
//! planner give room to what is used next. The price is that the plan is made for a whole run: a run that is cut short
//! or prolonged has been planned for the wrong number of uses, which changes which samples would best be kept, never
//! whether the right ones are read.
//!
//! Everything here is a function of its arguments, in integers, with ties broken by (dataset, id): equal inputs give
//! equal plans on every machine, and ranks need not talk to agree.
//!
//! This first form plans for one rank with one store and no peers.

mod cluster;
mod demand;
mod error;
mod floor;
mod knapsack;
mod placement;
mod plan;
pub mod policies;
mod retention;

pub use cluster::{Cluster, Level, LevelIndex, MAX_LEVELS, OriginCost, Store};
pub use demand::{Demand, Epoch, Scope, Uses};
pub use error::{PlanError, PlanErrorKind};
pub use floor::{Floor, floor};
pub use placement::Placement;
pub use plan::{DatasetPlan, LevelPlan, Plan, Summary, plan};
pub use retention::Retention;
