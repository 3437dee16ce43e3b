//! Jobs that attach to an agent, of its own node and of others, and that leave.

use std::sync::Arc;

use foreread_open::size::ByteSize;
use foreread_store::attach::{Attach, Attached, DatasetAnswer};
use foreread_store::{ConnectionId, StoreJob};
use foreread_tier::TierError;
use foreread_types::DatasetId;

use super::{HostState, invalid, scaled};
use crate::connections::{AttachedJob, MAX_DATASETS};
use crate::datasets::{KnownDataset, OPEN_PATIENCE};
use crate::same_samples::StoreNumbers;

/// The most bytes of a job's name. A longer one is left out.
const MAX_NAME: usize = 255;

impl HostState {
    /// Attaches a job to a connection, or again with other datasets.
    pub(crate) async fn attach(
        &self,
        connection: ConnectionId,
        mut attach: Attach,
    ) -> Result<Attached, TierError> {
        if attach.datasets.len() > MAX_DATASETS {
            return Err(invalid(&format!("a job has at most {MAX_DATASETS} datasets")));
        }
        if attach.name.len() > MAX_NAME {
            attach.name.clear();
        }
        let is_remote = self.jobs.lock().get(&connection).is_some_and(|there| there.node.is_some());
        let is_new = self.jobs.job(connection).is_none() && !is_remote;
        if is_new && self.control_status().is_some_and(|control| control.is_draining) {
            return Err(invalid("this node takes no new jobs: it is being drained"));
        }
        let catalogs = self.jobs.lock().get_mut(&connection).map(|there| there.take_catalogs());
        let mut catalogs = catalogs.ok_or_else(|| invalid("the job has left"))?;
        let (mut datasets, mut answers, mut shared, mut numbers) =
            <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
        // Other nodes get the samples of this node's datasets, and no others.
        let is_of_plan = is_remote && self.cluster.is_planned();
        if let Some(disk) = self.disk().filter(|_| !is_of_plan) {
            disk.expect(attach.datasets.iter().map(|dataset| &*dataset.identity));
        }
        let attaching = self.attaching.read().await;
        let deadline = tokio::time::Instant::now() + OPEN_PATIENCE;
        for (number, wanted) in (0..).zip(&attach.datasets) {
            let catalog = catalogs.remove(&number);
            let (mut id, mut answer) = match is_of_plan {
                true => self.datasets.find_used(&wanted.identity),
                false => self.datasets.find(wanted, catalog, &self.opener, deadline).await,
            };
            let known = id.and_then(|id| self.datasets.get(id));
            shared.push(known.as_ref().and_then(|known| known.hosted.shared_catalog()));
            if let Some(why) = known.as_ref().and_then(|known| self.lacks_memory(known, &datasets)) {
                (id, answer) = (None, DatasetAnswer::Refused(why));
            }
            numbers.push(match known.filter(|_| id.is_some()) {
                Some(known) => self.datasets.shared_numbers(&known, &self.opener, deadline).await,
                None => None,
            });
            datasets.push(id);
            answers.push(answer);
        }
        let disk_capacity = self.disk().map_or(0, |disk| disk.counts().capacity);
        let own = || (self.name.clone(), self.memory(), disk_capacity);
        // Ranks of all nodes have one cache then.
        let (host, capacity, disk_capacity) = self.cluster.shared().unwrap_or_else(own);
        let (datasets_of, catalogs) = (answers, shared);
        let answer =
            Attached { capacity, disk_capacity, host, datasets: datasets_of, catalogs, first_dataset: 0 };
        let job = self.enter(connection, &attach, (&datasets, numbers), is_remote);
        drop(attaching);
        self.note_disk_uses();
        let is_complete = !answer.datasets.contains(&DatasetAnswer::CatalogNeeded);
        if let Some(job) = job.filter(|_| !is_remote && is_complete) {
            self.cluster.begin_job(job, &attach, &datasets).await;
            if self.jobs.job(connection).is_none() {
                // It has left meanwhile.
                self.cluster.end_job(job);
            }
        }
        Ok(answer)
    }

    /// Makes a job known to the store. `None` if it has left.
    fn enter(
        &self,
        connection: ConnectionId,
        attach: &Attach,
        (datasets, numbers): (&[Option<DatasetId>], Vec<Option<Arc<StoreNumbers>>>),
        is_remote: bool,
    ) -> Option<StoreJob> {
        // Held until the job is known: a change of the policy meanwhile would miss it.
        let policy = self.policy.lock();
        let weight = scaled(policy.policy.job_weight(&attach.name));
        let mut connections = self.jobs.lock();
        let there = connections.get_mut(&connection)?;
        let before = there.attached.take().map(|before| before.job);
        let is_ordered = attach.is_ordered;
        let job = before.unwrap_or_else(|| match is_remote {
            true => self.store.add_remote_job(is_ordered),
            false => self.store.add_job(is_ordered),
        });
        self.store.set_weight(job, weight);
        let attached = AttachedJob { job, attach: attach.clone(), datasets: datasets.to_vec(), numbers };
        self.datasets.note_use(attached.used_datasets());
        there.attached = Some(Arc::new(attached));
        drop(connections);
        self.apply_to_datasets(&policy.policy);
        Some(job)
    }

    /// A connection has ended, and its job.
    pub(crate) fn disconnected(&self, connection: ConnectionId) {
        if let Some(job) = self.jobs.remove(connection, &self.store) {
            self.store.end_job(job.job);
            self.cluster.end_job(job.job);
            self.datasets.note_use(job.used_datasets());
            self.apply_to_datasets(&self.policy.lock().policy);
            self.note_disk_uses();
            self.jobs.note_left();
        }
    }

    /// The reason if a dataset with units does not fit into memory next to the datasets of all jobs
    /// and to these.
    fn lacks_memory(&self, dataset: &KnownDataset, with: &[Option<DatasetId>]) -> Option<String> {
        let needs = dataset.hosted.needs();
        let is_other = |other: &&KnownDataset| {
            other.id != dataset.id && (with.contains(&Some(other.id)) || self.jobs.uses(other.id))
        };
        let all = self.datasets.all();
        let others = all.iter().filter(is_other).map(|other| other.hosted.needs()).sum::<u64>();
        let cap = self.policy.lock().policy.dataset(&dataset.url, u64::MAX).1.cap;
        let memory = self.memory().saturating_sub(others).min(cap);
        let why = || {
            let (needs, memory) = (ByteSize(needs), ByteSize(memory));
            format!(
                "its samples share compressed units, and need {needs} of memory together, of which there \
                 are {memory}"
            )
        };
        (needs > memory).then(why)
    }
}
