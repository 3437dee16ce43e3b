//! The agents that share their caches, and the owners that follow from them.

use std::sync::Arc;

use foreread_planner::{HashedOwners, OwnerNode};
use foreread_types::SampleId;
use serde::{Deserialize, Serialize};

use super::link::NodeLink;
use super::names::text_hash;
use super::owners::SampleOwners;
use super::shared_dataset::SharedDataset;

/// The agents of one token, as the control process knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterRoster {
    /// In the order of their names.
    pub nodes: Vec<RosterNode>,
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RosterNode {
    /// The name of its node.
    pub node: String,
    /// The name that no other agent has.
    pub instance: String,
    /// Where it serves samples.
    pub addresses: Vec<String>,
    /// Its bytes for samples in memory.
    pub memory: u64,
    /// Its bytes for samples on disks.
    pub disk: u64,
    /// Whether it is being drained: it owns nothing then.
    pub is_leaving: bool,
}

impl RosterNode {
    fn owner(&self) -> OwnerNode {
        let bytes = if self.is_leaving { 0 } else { self.memory.saturating_add(self.disk) };
        OwnerNode { name: text_hash(&self.node), bytes }
    }
}

/// A roster in force.
#[derive(Debug, Default)]
pub(super) struct ClusterView {
    pub(super) nodes: Vec<ViewedNode>,
    /// The index of this store.
    own: Option<usize>,
    pub(super) owners: SampleOwners,
}

#[derive(Debug)]
pub(super) struct ViewedNode {
    pub(super) node: RosterNode,
    /// `None` for this store, and for a store that owns nothing.
    pub(super) link: Option<Arc<NodeLink>>,
}

impl ClusterView {
    /// The view of the store `instance`, with owners by memory. Links of the view before stay, and
    /// others are made.
    pub(super) fn hashed(
        roster: &ClusterRoster,
        instance: &str,
        before: &Self,
        link: impl Fn(&RosterNode) -> Arc<NodeLink>,
    ) -> Self {
        let viewed = |node: &RosterNode| {
            let is_same = |known: &&ViewedNode| {
                known.node.instance == node.instance && known.node.addresses == node.addresses
            };
            let known = || before.nodes.iter().find(is_same).and_then(|known| known.link.clone());
            let is_owner = node.instance != instance && node.owner().bytes > 0;
            let link = is_owner.then(|| known().unwrap_or_else(|| link(node)));
            ViewedNode { node: node.clone(), link }
        };
        let nodes: Vec<ViewedNode> = roster.nodes.iter().map(viewed).collect();
        let own = nodes.iter().position(|node| node.node.instance == instance);
        let owners: Vec<OwnerNode> = nodes.iter().map(|node| node.node.owner()).collect();
        Self { nodes, own, owners: SampleOwners::Hashed(HashedOwners::new(&owners)) }
    }

    /// The view of one of the stores of a job, with the owners of its plan.
    pub(super) fn planned(nodes: Vec<ViewedNode>, own: usize, owners: SampleOwners) -> Self {
        Self { nodes, own: Some(own), owners }
    }

    /// Whether samples have other owners than before.
    pub(super) fn differs(&self, before: &Self) -> bool {
        let names =
            |view: &Self| -> Vec<String> { view.nodes.iter().map(|node| node.node.node.clone()).collect() };
        let are_same = match (&self.owners, &before.owners) {
            (SampleOwners::Hashed(now), SampleOwners::Hashed(before)) => now == before,
            _ => false,
        };
        !are_same || self.own != before.own || names(self) != names(before)
    }

    /// Whether there are others.
    pub(super) fn is_shared(&self) -> bool {
        self.own.is_some() && self.nodes.len() > 1
    }

    /// The bytes of memory and of disks of all together, if jobs see them as one.
    pub(super) fn capacity(&self) -> Option<(u64, u64)> {
        let SampleOwners::Hashed(_) = self.owners else { return None };
        self.own?;
        let staying = || self.nodes.iter().map(|node| &node.node).filter(|node| !node.is_leaving);
        let memory = staying().fold(0, |sum: u64, node| sum.saturating_add(node.memory));
        Some((memory, staying().fold(0, |sum: u64, node| sum.saturating_add(node.disk))))
    }

    /// The index of the store that owns a sample.
    pub(super) fn owner(&self, dataset: &SharedDataset, sample: SampleId) -> Option<usize> {
        self.owners.of(dataset, sample)
    }

    /// The name of each node, `None` for this one.
    pub(super) fn others(&self) -> impl Iterator<Item = Option<&str>> {
        self.nodes.iter().enumerate().map(|(at, node)| (Some(at) != self.own).then_some(&*node.node.node))
    }

    /// The index of another node.
    pub(super) fn position(&self, instance: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.node.instance == instance)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Arc<NodeLink>> {
        self.nodes.iter().filter_map(|node| node.link.as_ref())
    }
}
