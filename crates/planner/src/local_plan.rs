//! A plan as one rank sees it: what it keeps itself, and whom it asks for the rest.
//!
//! The engine asks for each use, so these are table look-ups, alike for a rank that plans for itself and for one of
//! many; it need not know which it is.

use std::sync::Arc;

use foreread_types::SampleKey;

use crate::cluster::LevelIndex;
use crate::cluster_plan::ClusterPlan;
use crate::plan::{LevelPlan, Plan};
use crate::retention::Retention;

/// Where samples are kept, for one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalPlan {
    /// The rank has its caches for itself and asks nobody.
    Alone(Arc<Plan>),
    /// All ranks' caches are one.
    Together {
        /// The plan of all.
        plan: Arc<ClusterPlan>,
        /// The position of the rank's own store in the cluster.
        store: usize,
    },
}

impl LocalPlan {
    /// The level of the rank's own store that keeps a sample, if one does.
    pub fn level(&self, key: SampleKey) -> Option<LevelIndex> {
        match self {
            Self::Alone(plan) => plan.placement().level(key),
            Self::Together { plan, store } => plan.local(*store, key),
        }
    }

    /// The store of other ranks that owns a sample, if one does.
    pub fn elsewhere(&self, key: SampleKey) -> Option<usize> {
        match self {
            Self::Alone(_) => None,
            Self::Together { plan, store } => {
                plan.owner(key).map(|owner| owner.store).filter(|owner| owner != store)
            }
        }
    }

    /// The level of the rank's own store in which it owns a sample: read from the origin by nobody else.
    pub fn owned(&self, key: SampleKey) -> Option<LevelIndex> {
        match self {
            Self::Alone(_) => None,
            Self::Together { plan, store } => {
                plan.owner(key).filter(|owner| owner.store == *store).map(|owner| owner.level)
            }
        }
    }

    /// The origin bytes that no policy can save: of the rank alone, or of all ranks.
    pub fn floor(&self) -> u64 {
        match self {
            Self::Alone(plan) => plan.floor(),
            Self::Together { plan, .. } => plan.floor(),
        }
    }

    /// The origin bytes that the plan reads, as predicted: the rank alone, or all ranks.
    pub fn origin_bytes(&self) -> u64 {
        match self {
            Self::Alone(plan) => plan.origin_bytes(),
            Self::Together { plan, .. } => plan.origin_bytes(),
        }
    }

    /// What the levels of the rank's own store will hold.
    pub fn levels(&self) -> &[LevelPlan] {
        match self {
            Self::Alone(plan) => plan.levels(),
            Self::Together { plan, store } => plan.stores().get(*store).map_or(&[], |store| &store.levels),
        }
    }

    /// Whether kept samples stay.
    pub fn retention(&self) -> Retention {
        match self {
            Self::Alone(plan) => plan.retention(),
            Self::Together { .. } => Retention::Keep,
        }
    }
}
