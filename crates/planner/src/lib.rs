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
//! [`plan`] is for one rank with one store and no peers; its prediction is [`predict`]. [`plan_cluster`] is for all ranks
//! together, whose caches are one: a [`ClusterPlan`] gives each sample one owner before any gets a second copy, and
//! [`Locality`] deals global batches to the ranks that have their samples. Where private caches are planned for (a rank
//! that may not use its peers), [`plan`] is the one to call, because retention is its business.

mod assign;
mod cluster;
mod cluster_plan;
mod cold;
mod copies;
mod curve;
mod demand;
mod error;
mod floor;
mod forecast;
mod held;
mod holding;
mod knapsack;
mod local_plan;
mod locality;
mod origin;
mod owners;
mod placement;
mod plan;
pub mod policies;
mod predict;
mod readers;
mod retention;
mod rooms;
mod rule;
mod slower;

pub use cluster::{Cluster, Level, LevelIndex, MAX_LEVELS, MAX_STORES, Network, Ranks, Store, Trainer};
pub use cluster_plan::{ClusterPlan, PLANNER_VERSION, StorePlan, plan_cluster, plan_cluster_and_copies};
pub use cold::{MOST_BLOCK, block_bytes};
pub use copies::SecondCopy;
pub use curve::Curve;
pub use demand::{Demand, Epoch, Scope, Uses};
pub use error::{PlanError, PlanErrorKind};
pub use floor::{Floor, floor};
pub use forecast::{Amount, EpochForecast, Resource};
pub use held::Held;
pub use local_plan::LocalPlan;
pub use locality::Locality;
pub use origin::{Large, Origin, Price};
pub use owners::{Owner, Owners};
pub use placement::Placement;
pub use plan::{DatasetPlan, LevelPlan, Plan, Summary, plan, plan_to_keep};
pub use predict::predict;
pub use retention::Retention;
