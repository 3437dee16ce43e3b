//! The caches of several nodes as one: each sample has one owner.
//!
//! The control process gives all agents of one token the same [`ClusterRoster`]. From it, each
//! agent computes the owner of each sample (`HashedOwners` of `foreread-planner`): the node that
//! reads the sample from storage and keeps it. The nodes of one job have the owners of its plan
//! instead. A store that needs a sample of another owner requests it there, over the connections
//! that ranks use between them. It announces the orders of its jobs to the owners, each its part.
//! So an owner keeps the samples that any job of any node needs soonest. The nodes of one job know
//! its orders from its plan.
//!
//! # Decisions and price
//!
//! * *One copy first.* Samples of other owners stay only in room that no own sample needs. The
//!   price is a transfer between nodes for almost every use.
//! * *No sample depends on its owner.* A store that does not reach an owner, or waits for long,
//!   reads from storage by itself. So does a store that gets an error. A node that leaves costs
//!   reads, and no sample.
//! * *No chains.* An owner that is requested a sample reads it from storage, and never from a third
//!   node. While agents have different rosters, a sample may be read twice.
//! * *Agents of one token share, and no others.* The name of a token is the user of an agent. Each
//!   agent opens a dataset by itself, and compares its identity. The nodes of one job have its
//!   token, and get the samples of datasets that a rank of the node reads, and no others.
//! * *The orders of jobs are kept for owners that come later*, 4 bytes per sample and epoch.

mod addresses;
mod link;
mod messages;
mod names;
mod orders;
mod owners;
mod pace;
mod reader;
mod roster;
mod serving;
mod shared_dataset;
#[cfg(test)]
mod simulation;
mod work;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::Address;
use foreread_peer::{PeerClient, PeerClientFactory};
use foreread_store::attach::{Attach, BLOCKS, EpochOrder, RESTART, ReadInBlocks};
use foreread_store::{NodeStore, StoreJob};
use foreread_tier::{Buffers, OpenContext, ReadFuture, lock};
use foreread_types::{DatasetId, SampleId, Tick};
use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::link::{LinkCommand, LinkSettings, LinkedCache, NodeLink};
pub use self::names::{ClusterMember, StoreName, text_hash};
use self::orders::SharedJob;
use self::owners::{DatasetOwners, SampleOwners};
use self::pace::StoragePace;
pub use self::reader::ClusterReader;
pub use self::roster::{ClusterRoster, RosterNode};
use self::roster::{ClusterView, ViewedNode};
use self::serving::run_of;
pub use self::serving::{LinkedJobs, ShareServer, ShareService};
pub use self::shared_dataset::SharedDataset;
use crate::json::encoded;
use crate::node::StoreLinks;

/// How long a job waits, while it attaches, for the owners of its samples to know it.
const OWNERS_TIMEOUT: Duration = Duration::from_secs(2);

/// This agent's part of the cluster's cache. Without a roster it does nothing.
pub struct ClusterCache {
    own: Weak<Self>,
    store: NodeStore,
    context: OpenContext,
    member: Mutex<Option<ClusterMember>>,
    state: Mutex<ClusterState>,
    view: RwLock<Arc<ClusterView>>,
    /// Held while a roster or a dataset is applied to the store.
    applying: Mutex<()>,
    next_job: AtomicU32,
}

#[derive(Default)]
struct ClusterState {
    datasets: Vec<Arc<SharedDataset>>,
    jobs: BTreeMap<StoreJob, Arc<SharedJob>>,
}

impl std::fmt::Debug for ClusterCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterCache").field("view", &self.view()).finish_non_exhaustive()
    }
}

impl ClusterCache {
    pub(crate) fn new(store: NodeStore, buffers: Arc<dyn Buffers>, runtime: Handle) -> Arc<Self> {
        let context = OpenContext { buffers, runtime, seed: 0 };
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            store,
            context,
            member: Mutex::default(),
            state: Mutex::default(),
            view: RwLock::default(),
            applying: Mutex::default(),
            next_job: AtomicU32::new(0),
        })
    }

    fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn member(&self) -> Option<ClusterMember> {
        lock(&self.member).clone()
    }

    /// Takes part from the next roster on.
    pub fn join(&self, member: ClusterMember) {
        *lock(&self.member) = Some(member);
    }

    /// Whether its stores belong to one job, with the owners of its plan.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(self.view().owners, SampleOwners::Planned(..))
    }

    /// Whether it takes part in a cluster's cache.
    pub(crate) fn has_joined(&self) -> bool {
        self.member().is_some()
    }

    /// The common name of the agents that share their caches, and their bytes of memory and of
    /// disks. `None` if this agent shares with no other.
    pub(crate) fn shared(&self) -> Option<(String, u64, u64)> {
        let view = self.view();
        let member = self.member()?;
        let (memory, disk) = view.capacity().filter(|_| view.is_shared())?;
        Some((member.cluster_name(), memory, disk))
    }

    /// The number of agents that share their caches with this one, itself included. 0: none.
    pub fn nodes(&self) -> u64 {
        let view = self.view();
        if view.is_shared() { view.nodes.len() as u64 } else { 0 }
    }

    /// Adds a dataset that the store knows.
    pub(crate) fn add_dataset(&self, dataset: Arc<SharedDataset>) {
        lock(&self.state).datasets.push(Arc::clone(&dataset));
        let _applying = lock(&self.applying);
        self.apply_to(&dataset, &self.view());
    }

    /// Forgets a dataset without jobs.
    pub(crate) fn remove_dataset(&self, id: DatasetId) {
        lock(&self.state).datasets.retain(|dataset| dataset.id() != Some(id));
    }

    fn apply_to(&self, dataset: &Arc<SharedDataset>, view: &ClusterView) {
        if let Some(id) = dataset.id() {
            let owners = DatasetOwners::new(&view.owners, view.others(), dataset);
            self.store.set_owners(id, owners.map(|owners| Arc::new(owners) as _));
        }
    }

    /// Applies a roster. The first one with other nodes visits each sample of each dataset, so it
    /// is not for a runtime's thread.
    pub fn set_roster(&self, roster: &ClusterRoster) {
        let Some(member) = self.member() else { return };
        let _applying = lock(&self.applying);
        let before = self.view();
        if !roster.nodes.iter().any(|node| node.instance == member.own.instance) {
            // It was made before this agent was connected.
            return;
        }
        let link = |node: &RosterNode| {
            let other = StoreName { node: node.node.clone(), instance: node.instance.clone() };
            let seed = member.own.seed_to(&other);
            let context = OpenContext { seed, ..self.context.clone() };
            let addresses: Vec<Address> = node.addresses.iter().filter_map(|it| it.parse().ok()).collect();
            let (network, identity) = (Arc::clone(&member.network), member.identity.clone());
            let (run, rank) = (run_of(&node.instance), identity.rank);
            let clients = PeerClientFactory::new(identity, run, network, &context, Arc::default());
            let peer = clients.with_wire(member.wire).remote(rank, addresses);
            let own = member.own.clone();
            let settings = LinkSettings { own, other, is_of_plan: false, peer };
            NodeLink::start(settings, self.own.clone(), &self.context.runtime)
        };
        let view = ClusterView::hashed(roster, &member.own.instance, &before, link);
        tracing::info!(nodes = view.nodes.len(), "the agents of the cluster have changed");
        self.apply(view, &before);
    }

    fn apply(&self, view: ClusterView, before: &ClusterView) {
        let (have_moved, view) = (view.differs(before), Arc::new(view));
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&view);
        if have_moved {
            let datasets = lock(&self.state).datasets.clone();
            datasets.iter().for_each(|dataset| self.apply_to(dataset, &view));
        }
        // New links may have missed jobs that began or ended meanwhile.
        view.links().for_each(|link| link.send(LinkCommand::Again { have_moved }));
    }

    /// Links this store with those of other nodes for one job, by the owners of its plan. Visits
    /// each sample of each dataset, so it is not for a runtime's thread.
    pub(crate) fn link_job(&self, links: StoreLinks) {
        let StoreLinks { stores, own, owners, datasets, .. } = links;
        let _applying = lock(&self.applying);
        let of_own = stores.get(own).map(|(instance, _)| StoreName::alone(instance));
        let viewed = |(instance, peer): (String, Option<Arc<PeerClient>>)| {
            let other = StoreName::alone(&instance);
            let node = RosterNode { node: instance.clone(), instance, ..RosterNode::default() };
            let link = peer.zip(of_own.clone()).map(|(peer, own)| {
                let settings = LinkSettings { own, other, is_of_plan: true, peer };
                NodeLink::start(settings, self.own.clone(), &self.context.runtime)
            });
            ViewedNode { node, link }
        };
        let nodes = stores.into_iter().map(viewed).collect();
        let identities = datasets.iter().map(|identity| text_hash(&identity.to_string())).collect();
        let view = ClusterView::planned(nodes, own, SampleOwners::Planned(owners, identities));
        self.apply(view, &self.view());
    }

    /// Waits until the other stores know all jobs of this one. A store that does not answer is
    /// waited for so long.
    pub(crate) async fn known(&self, at_most: Duration) {
        let sent = |job: Arc<SharedJob>| {
            let view = self.view();
            view.links().map(|link| link.begin(&job)).collect::<Vec<_>>()
        };
        wait_until_known(self.jobs().into_iter().flat_map(sent).collect(), at_most).await;
    }

    /// Tells the owners of its samples about a job. Waits a moment until they know it.
    pub(crate) async fn begin_job(&self, job: StoreJob, attach: &Attach, datasets: &[Option<DatasetId>]) {
        self.end_job(job);
        let known = lock(&self.state).datasets.clone();
        let find = |id: DatasetId| known.iter().find(|it| it.id() == Some(id)).cloned();
        let datasets = datasets.iter().map(|id| id.and_then(find)).collect();
        let number = self.next_job.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(SharedJob::new(number, job, attach.clone(), datasets));
        lock(&self.state).jobs.insert(job, Arc::clone(&shared));
        let sent = |link: &Arc<NodeLink>| {
            let is_known = link.begin(&shared);
            // The others are not reached, and nothing is to be waited for.
            link.is_open().then_some(is_known)
        };
        wait_until_known(self.view().links().filter_map(sent).collect(), OWNERS_TIMEOUT).await;
    }

    /// Passes an order of a job on to the owners of its samples. Looks at each of them, so it is
    /// not for a runtime's thread.
    pub(crate) fn announce(&self, job: StoreJob, order: EpochOrder) {
        let Some(job) = lock(&self.state).jobs.get(&job).cloned() else { return };
        let view = self.view();
        let order = job.add(order);
        let Some(dataset) = job.dataset(order.dataset) else { return };
        if !view.is_shared() {
            return;
        }
        let parts = order.divided(view.nodes.len(), |sample| view.owner(dataset, sample));
        for (node, part) in view.nodes.iter().zip(parts) {
            if let Some(link) = &node.link {
                link.send(LinkCommand::Order(job.number, Arc::clone(&order), part));
            }
        }
    }

    /// A job reads the shards of one of its datasets in blocks at first.
    pub(crate) fn read_in_blocks(&self, job: StoreJob, blocks: ReadInBlocks) {
        let Some(job) = lock(&self.state).jobs.get(&job).cloned() else { return };
        job.read_in_blocks(blocks);
        let call = || LinkCommand::Call(job.number, BLOCKS, encoded(&blocks));
        self.view().links().for_each(|link| link.send(call()));
    }

    /// A job will announce other orders.
    pub(crate) fn restart(&self, job: StoreJob) {
        if let Some(job) = lock(&self.state).jobs.get(&job) {
            job.restart();
            let call = || LinkCommand::Call(job.number, RESTART, Bytes::new());
            self.view().links().for_each(|link| link.send(call()));
        }
    }

    /// A job has ended.
    pub(crate) fn end_job(&self, job: StoreJob) {
        let ended = lock(&self.state).jobs.remove(&job);
        if let Some(ended) = ended {
            self.view().links().for_each(|link| link.send(LinkCommand::End(ended.number)));
        }
    }

    /// Reads a sample from its owner, for the use of a job. `None` if that is not reached.
    fn read(
        &self,
        dataset: &SharedDataset,
        sample: SampleId,
        job: StoreJob,
        due: Tick,
    ) -> Option<ReadFuture> {
        let view = self.view();
        let owner = view.owner(dataset, sample)?;
        view.nodes.get(owner)?.link.as_ref()?.read(dataset, sample, job, due)
    }

    /// Ends a burst of reads.
    fn submit(&self) {
        self.view().links().for_each(|link| link.submit());
    }
}

impl LinkedCache for ClusterCache {
    fn jobs(&self) -> Vec<Arc<SharedJob>> {
        lock(&self.state).jobs.values().cloned().collect()
    }

    fn storage_pace(&self) -> StoragePace {
        let stores = self.view().links().count().max(1) as u64;
        let (patience, is_relayed) = {
            let state = lock(&self.state);
            let patience = state.datasets.iter().filter_map(|dataset| dataset.patience).max();
            (patience, state.datasets.iter().any(|dataset| dataset.is_relayed))
        };
        // The memory of an agent says nothing about storage.
        let rate = self.store.origin_rate().filter(|_| !is_relayed).map(|rate| rate / stores);
        // A node whose storage waits for a silent server is waited for as long.
        StoragePace { wait: self.store.origin_wait().max(patience), rate }
    }

    fn answered(&self, node: &str, dataset: &Arc<SharedDataset>, refused: Option<&str>) {
        if !dataset.set_refused(node, refused.is_some()) {
            return;
        }
        match refused {
            Some(why) => tracing::warn!(node, why, "another node keeps no samples of a dataset"),
            None => tracing::info!(node, "another node keeps samples of a dataset now"),
        }
        let _applying = lock(&self.applying);
        self.apply_to(dataset, &self.view());
    }

    fn part_of(&self, instance: &str, dataset: &SharedDataset, order: &EpochOrder) -> Option<Vec<u8>> {
        let view = self.view();
        let other = view.position(instance)?;
        let is_of_other = |sample| (view.owner(dataset, sample) == Some(other)).then_some(0);
        order.divided(1, is_of_other).pop()
    }
}

/// Waits until other stores know jobs, or are not reached.
async fn wait_until_known(jobs: Vec<oneshot::Receiver<()>>, at_most: Duration) {
    if timeout(at_most, join_all(jobs)).await.is_err() {
        tracing::info!("some nodes do not know a job yet, and it reads by itself what they keep");
    }
}
