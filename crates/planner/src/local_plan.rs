//! A plan from the view of one rank: the samples that it keeps, and the peers that own the others.
//!
//! The engine queries it for each use, so every query is a table look-up. The interface is the same
//! for a rank that plans alone and for one of many.

use std::sync::Arc;

use foreread_types::SampleKey;

use crate::cluster::LevelIndex;
use crate::cluster_plan::ClusterPlan;
use crate::plan::{LevelPlan, Plan};
use crate::retention::Retention;

/// The location of samples, for one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalPlan {
    /// The rank uses its own caches and no peers.
    Private(Arc<Plan>),
    /// The caches of all ranks are one.
    Cluster {
        /// The plan of all ranks.
        plan: Arc<ClusterPlan>,
        /// The position of the rank's own store in the cluster.
        store: usize,
        /// Whether the stores read samples from each other. A rank then reads all from its own.
        is_linked: bool,
    },
}

impl LocalPlan {
    /// The level of the rank's own store that keeps a sample, if any.
    pub fn level(&self, key: SampleKey) -> Option<LevelIndex> {
        match self {
            Self::Private(plan) => plan.placement().level(key),
            Self::Cluster { plan, store, .. } => plan.local(*store, key),
        }
    }

    /// The store of another rank that owns a sample, and that this rank reads it from.
    pub fn elsewhere(&self, key: SampleKey) -> Option<usize> {
        match self {
            Self::Private(_) | Self::Cluster { is_linked: true, .. } => None,
            Self::Cluster { plan, store, .. } => {
                plan.owner(key).map(|owner| owner.store).filter(|owner| owner != store)
            }
        }
    }

    /// The level of the rank's own store in which it owns a sample. No other rank reads such a
    /// sample from the origin.
    pub fn owned(&self, key: SampleKey) -> Option<LevelIndex> {
        match self {
            Self::Private(_) => None,
            Self::Cluster { plan, store, .. } => {
                plan.owner(key).filter(|owner| owner.store == *store).map(|owner| owner.level)
            }
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

    /// The content of the levels of the rank's own store.
    pub fn levels(&self) -> &[LevelPlan] {
        match self {
            Self::Private(plan) => plan.levels(),
            Self::Cluster { plan, store, .. } => plan.stores().get(*store).map_or(&[], |store| &store.levels),
        }
    }

    /// Whether the stores of all ranks read samples from each other.
    pub fn is_linked(&self) -> bool {
        matches!(self, Self::Cluster { is_linked: true, .. })
    }

    /// Whether kept samples stay.
    pub fn retention(&self) -> Retention {
        match self {
            Self::Private(plan) => plan.retention(),
            Self::Cluster { .. } => Retention::Keep,
        }
    }
}
