//! A plan from the view of one rank: the samples that it keeps in its own caches, and the bounds of
//! its reads.
//!
//! The engine queries it for each use, so every query is a table look-up. The interface is the same
//! for a rank that plans alone and for one of many.

use std::sync::Arc;

use foreread_types::SampleKey;

use crate::cluster_plan::ClusterPlan;
use crate::level::LevelIndex;
use crate::plan::{LevelPlan, Plan};
use crate::retention::Retention;

/// The plan of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalPlan {
    /// The rank uses its own caches alone.
    Private(Arc<Plan>),
    /// The stores of all nodes are one cache, which the rank reads like an origin.
    Cluster {
        /// The plan of all ranks.
        plan: Arc<ClusterPlan>,
        /// The position of the store of the rank's node in the cluster.
        store: usize,
    },
}

impl LocalPlan {
    /// The level of the rank's own caches that keeps a sample, if any. In a cluster there is none:
    /// the samples lie in the store of the node.
    pub fn level(&self, key: SampleKey) -> Option<LevelIndex> {
        match self {
            Self::Private(plan) => plan.placement().level(key),
            Self::Cluster { .. } => None,
        }
    }

    /// The lower bound of origin bytes for any policy: of the rank alone, or of all ranks.
    pub fn floor(&self) -> u64 {
        match self {
            Self::Private(plan) => plan.floor(),
            Self::Cluster { plan, .. } => plan.floor(),
        }
    }

    /// The origin bytes that the plan is predicted to read: of the rank alone, or of all ranks.
    pub fn origin_bytes(&self) -> u64 {
        match self {
            Self::Private(plan) => plan.origin_bytes(),
            Self::Cluster { plan, .. } => plan.origin_bytes(),
        }
    }

    /// The content of the levels: of the rank's own caches, or of the store of its node.
    pub fn levels(&self) -> &[LevelPlan] {
        match self {
            Self::Private(plan) => plan.levels(),
            Self::Cluster { plan, store } => plan.stores().get(*store).map_or(&[], |store| &store.levels),
        }
    }

    /// Whether kept samples stay.
    pub fn retention(&self) -> Retention {
        match self {
            Self::Private(plan) => plan.retention(),
            Self::Cluster { .. } => Retention::Keep,
        }
    }
}
