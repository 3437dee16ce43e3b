//! The planner: the location of samples, and the lower bound of a run's cost.
//!
//! A [`Run`](foreread_oracle::Run) gives the reads, [`Sizes`](foreread_types::Sizes) give their
//! lengths, and a [`Cluster`] describes the caches. From these three [`plan`] computes a [`Plan`]:
//!
//! * [`Placement`]: the level of the store that keeps each sample for the whole run.
//! * [`Retention`]: whether kept samples stay ([`Retention::Keep`]) or come and go
//!   ([`Retention::Threshold`]).
//! * [`LowerBound`]: the lower bound of origin bytes for any policy, next to the origin bytes that
//!   this plan will read.
//!
//! # The decision, and its price
//!
//! With shuffled epochs that use each sample once, no eviction policy beats a cache that never
//! evicts. So samples are placed once, by a static knapsack, and stay. Only if samples recur within
//! an epoch, or may be absent for several, does the planner prefer the samples with the nearest
//! next use. The price is that the plan is made for a whole run. If a run is shortened or extended,
//! it was planned for the wrong number of uses. This changes which samples would best be kept,
//! never whether the right ones are read.
//!
//! Every result is a function of its arguments, in integers, with ties broken by (dataset, id).
//! Equal inputs give equal plans on every machine, so ranks agree without communication.
//!
//! [`plan`] is for one rank with one store and no peers, and [`predict`] is its prediction.
//! [`plan_cluster`] is for all ranks together, whose caches form one cache. A [`ClusterPlan`] gives
//! each sample one owner before any sample gets a second copy. [`Locality`] deals global batches to
//! the ranks that hold their samples. For private caches (a rank that may not use its peers), call
//! [`plan`], because it plans retention.
//!
//! [`NextUseCache`] decides during the runs of several jobs which samples their shared cache keeps.
//! [`SharedMiss`] is the part of their uses that no such cache can serve. [`fair_shares`] divides a
//! limit of storage among them.

mod assign;
mod block_owners;
mod block_reads;
mod cache_contents;
mod cluster;
mod cluster_plan;
mod cluster_servers;
mod cluster_traffic;
mod copies;
mod curve;
mod demand;
mod error;
mod fair_shares;
mod file_choice;
mod forecast;
mod free_space;
mod hashed_owners;
mod knapsack;
mod level;
mod local_plan;
mod locality;
mod lower_bound;
mod next_use;
mod order_match;
mod origin;
mod owners;
mod placement;
mod plan;
pub mod policies;
mod predict;
mod readers;
mod retention;
mod rule;
mod server_times;
mod servers;
mod shared_miss;
mod slow_levels;
mod unit_reads;
mod wear;
mod wide;

pub use block_owners::BlockRanges;
pub use block_reads::{MAX_BLOCK_BYTES, block_bytes, cluster_block_bytes};
pub use cache_contents::CacheContents;
pub use cluster::{CacheStore, Cluster, Network, Ranks, Trainer};
pub use cluster_plan::{
    ClusterPlan, PLANNER_VERSION, StorePlan, plan_cluster, plan_cluster_and_copies, plan_cluster_in_blocks,
};
pub use copies::SecondCopy;
pub use curve::Curve;
pub use demand::{Demand, EpochDemand, Scope, UseCounts};
pub use error::PlanError;
pub use fair_shares::{JobDemand, ShareDemand, fair_shares, fair_shares_of_users};
pub use file_choice::{FileChoice, FileCopy};
pub use forecast::{Amount, EpochForecast, Resource};
pub use hashed_owners::{HashedOwners, OwnerNode};
pub use level::{Level, LevelIndex, MAX_LEVELS};
pub use local_plan::LocalPlan;
pub use locality::Locality;
pub use lower_bound::{LowerBound, floor};
pub use next_use::{
    AnnouncedUses, CacheBounds, CacheJob, CacheUse, DatasetCosts, EpochUses, JobStart, NextUseCache,
    NodeOwner, NodeOwners,
};
pub use order_match::{FIRST_USES, OrderShare, share_of_order};
pub use origin::{LargeReads, Origin, Price};
pub use owners::{Owners, SampleOwner};
pub use placement::Placement;
pub use plan::{DatasetPlan, LevelPlan, Plan, Summary, plan, plan_to_keep};
pub use predict::predict;
pub use retention::Retention;
pub use server_times::ServerGain;
pub use servers::{OriginServers, ServerSpeed};
pub use shared_miss::SharedMiss;
pub use slow_levels::is_slower_than_origin;
pub use unit_reads::unit_reads;
pub use wear::WearBudget;
