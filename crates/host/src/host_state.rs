//! The state of an agent: its jobs, datasets and policy, and the store that they share.
//!
//! The policy is applied to an origin, a dataset or a job when it appears, and to all of them when
//! it changes.

mod attaching;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foreread_open::origin_policy::OtherReads;
use foreread_store::attach::PolicyChanges;
use foreread_store::{ConnectionId, NodeStore, StoreJob};
use foreread_tier::{ErrorKind, OpenContext, TierError};
use foreread_types::DatasetId;
use tokio::runtime::Handle;

use crate::cluster_cache::ClusterCache;
use crate::dataset_host::DatasetHost;
use crate::dataset_room::{DatasetRoom, bounds_within};
use crate::datasets::{DatasetOpener, Datasets, KnownDataset};
use crate::disk::{HostDisk, WRITES_PER_DAY};
use crate::files::FileCopies;
use crate::host_control::ControlWord;
use crate::jobs::Jobs;
use crate::policy::{Policy, PolicyError};
use crate::policy_file::PolicyFile;
use crate::policy_in_force::PolicyInForce;
use crate::status_report::RecentRates;
use crate::warming::Warmings;

/// The weight of a job for the store, per unit of its weight in the policy. So the agent's own
/// reads can have less than any job.
const WEIGHT_SCALE: u32 = 1000;

/// The state of an agent.
#[derive(Debug)]
pub struct HostState {
    /// The samples.
    pub store: NodeStore,
    pub(crate) runtime: Handle,
    /// The bytes that samples may take in memory now.
    memory: AtomicU64,
    pub(crate) begun: Instant,
    pub(crate) jobs: Jobs,
    pub(crate) opener: DatasetOpener,
    pub(crate) datasets: Datasets,
    /// Held for reading while a job attaches, for writing while datasets are closed.
    attaching: tokio::sync::RwLock<()>,
    pub(crate) policy: PolicyInForce,
    /// The name that no other agent has.
    name: String,
    pub(crate) rates: Mutex<RecentRates>,
    pub(crate) warmings: Warmings,
    pub(crate) files: FileCopies,
    /// The caches of other agents.
    pub cluster: Arc<ClusterCache>,
    /// The values from the control process of the cluster.
    pub(crate) control: Mutex<ControlWord>,
    stopped: AtomicBool,
}

impl HostState {
    /// The state of an agent without jobs.
    ///
    /// # Errors
    /// A mistake in the policy file.
    pub(crate) fn new(
        memory: u64,
        host: DatasetHost,
        (policy, file): (Policy, PolicyFile),
        place: OpenContext,
    ) -> Result<Self, PolicyError> {
        let OpenContext { runtime, buffers, .. } = place;
        let store = NodeStore::new(memory, runtime.clone());
        let cluster = ClusterCache::new(store.clone(), buffers, runtime.clone());
        let (datasets, jobs, rates, warmings, files, control, stopped) = Default::default();
        let host = Arc::new(host);
        let opener = DatasetOpener {
            host,
            store: store.clone(),
            cluster: Arc::clone(&cluster),
            runtime: runtime.clone(),
        };
        let state = Self {
            store,
            runtime,
            memory: AtomicU64::new(memory),
            begun: Instant::now(),
            jobs,
            opener,
            datasets,
            attaching: tokio::sync::RwLock::default(),
            policy: PolicyInForce::new(memory, policy, file)?,
            name: unique_name(),
            rates,
            warmings,
            files,
            cluster,
            control,
            stopped,
        };
        FileCopies::count_earlier(state.disk());
        state.apply(&state.policy.lock().policy);
        Ok(state)
    }

    /// The disks, if there are any.
    pub fn disk(&self) -> Option<&Arc<HostDisk>> {
        self.opener.host.disk()
    }

    /// The requests to storage that were made again.
    pub(crate) fn repeated_reads(&self) -> OtherReads {
        self.opener.host.repeated_reads()
    }

    /// Tells the disks which datasets have jobs, and which keep their room without them.
    pub fn note_disk_uses(&self) {
        let Some(disk) = self.disk() else { return };
        let policy = self.policy.lock().policy.clone();
        let used = self.jobs.used();
        for dataset in self.datasets.all() {
            if let Some(number) = dataset.on_disk {
                let has_jobs = used.contains(&dataset.id) || self.warmings.contains(dataset.id);
                disk.set_use(number, has_jobs, self.is_pinned(&policy, &dataset));
            }
        }
    }

    /// The name that no other agent has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The attached jobs, each with its name and its weight.
    pub fn job_names(&self) -> HashMap<StoreJob, (String, u32)> {
        let policy = self.policy.lock();
        let named = self.jobs.attached().into_iter().map(|job| {
            let name = job.attach.name.clone();
            let weight = policy.policy.job_weight(&name).get();
            (job.job, (name, weight))
        });
        named.collect()
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The bytes that samples may take in memory, gaps included.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// For how long no job has been attached, and nothing was warmed.
    pub fn idle_time(&self) -> Duration {
        if self.warmings.is_active() {
            return Duration::ZERO;
        }
        self.jobs.idle_time(|| self.files.is_used())
    }

    /// Whether a client has had the agent stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// A dataset of a job, by its number there.
    pub(crate) fn dataset(&self, connection: ConnectionId, number: u32) -> Result<KnownDataset, TierError> {
        let job = self.jobs.job(connection).ok_or_else(|| invalid("not attached"))?;
        let id = job.datasets.get(number as usize).copied().flatten();
        let dataset = id.and_then(|id| self.datasets.get(id));
        let mut dataset = dataset.ok_or_else(|| invalid("the agent does not read this dataset"))?;
        // The keys of the job: it shares nothing with a dataset that could not be opened again.
        dataset.numbers = job.numbers.get(number as usize).cloned().flatten();
        Ok(dataset)
    }

    /// Closes datasets without jobs, and forgets datasets without samples.
    pub fn release_unused(&self) {
        // A job that attaches uses the datasets that it has found a moment later.
        let Ok(_nobody_attaches) = self.attaching.try_write() else { return };
        for dataset in self.datasets.all() {
            if self.jobs.uses(dataset.id) || self.is_warmed(dataset.id) || dataset.is_awaited() {
                continue;
            }
            dataset.hosted.close();
            let on_disk = self.disk().zip(dataset.on_disk).map_or(0, |(disk, number)| disk.held(number).0);
            if on_disk == 0 {
                self.datasets.forget(&dataset, &self.opener);
            }
        }
    }

    /// Changes the policy, at once. All changes are made, or none.
    pub(crate) fn set(&self, changes: &PolicyChanges) -> Result<(), TierError> {
        let set = self.policy.set(&changes.changes, |policy| self.apply(policy));
        set.map_err(|error| invalid(&error.to_string()))?;
        self.note_disk_uses();
        Ok(())
    }

    /// Reads the policy file again, if it has changed. May take as long as its file server.
    pub fn reload(&self) {
        self.policy.reload(|policy| self.apply(policy));
    }

    pub(crate) fn apply(&self, policy: &Policy) {
        let memory = self.policy.memory(policy);
        if self.memory.swap(memory, Ordering::Relaxed) != memory {
            // The bytes of it that gaps take are known a moment later.
            self.store.set_capacity(memory);
        }
        if let Some(disk) = self.disk() {
            disk.set_writes_per_day(policy.disk_writes_per_day().unwrap_or(WRITES_PER_DAY));
        }
        self.apply_to_datasets(policy);
        for job in self.jobs.attached() {
            self.store.set_weight(job.job, scaled(policy.job_weight(&job.attach.name)));
        }
    }

    /// Applies the policy to all datasets. They share the memory, so each depends on the others.
    fn apply_to_datasets(&self, policy: &Policy) {
        let all = self.datasets.all();
        let uses = |dataset: &KnownDataset| DatasetRoom {
            is_used: self.jobs.uses(dataset.id),
            needs: dataset.hosted.needs(),
            most: dataset.most_memory(),
            bounds: policy.dataset(&dataset.url, u64::MAX).1,
        };
        let mut rooms: Vec<DatasetRoom> = all.iter().map(uses).collect();
        for (room, dataset) in rooms.iter_mut().zip(&all) {
            if !(room.is_used || self.datasets.is_latest(dataset)) {
                // Data that were replaced keep no room from the data in their place.
                room.bounds.floor = 0;
            }
        }
        for (dataset, bounds) in all.iter().zip(bounds_within(&rooms, self.memory())) {
            self.limit_origin(policy, &dataset.origin, self.lease(&dataset.origin));
            self.store.set_dataset(dataset.id, policy.dataset(&dataset.url, 0).0, bounds);
        }
    }

    /// Whether a dataset keeps its room without jobs. A dataset that was replaced at its place does
    /// not.
    fn is_pinned(&self, policy: &Policy, dataset: &KnownDataset) -> bool {
        policy.is_pinned(&dataset.url) && self.datasets.is_latest(dataset)
    }

    /// Whether samples of a dataset are being read into the memory.
    fn is_warmed(&self, id: DatasetId) -> bool {
        self.datasets.all().iter().any(|dataset| {
            let others = dataset.numbers.as_ref().map(|numbers| numbers.others());
            let is_of = dataset.id == id || others.is_some_and(|others| others.contains(&id));
            is_of && self.warmings.contains(dataset.id)
        })
    }

    /// A job's weight as the policy has it.
    pub(crate) fn policy_weight(weight: u32) -> u32 {
        weight / WEIGHT_SCALE
    }
}

/// A name that no other agent has: its process and its start, in nanoseconds.
fn unique_name() -> String {
    let started = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {} {}", boot.trim(), std::process::id(), started.as_nanos())
}

fn scaled(weight: NonZeroU32) -> NonZeroU32 {
    weight.saturating_mul(NonZeroU32::MIN.saturating_add(WEIGHT_SCALE - 1))
}

/// The error of a call that is wrong.
pub fn invalid(what: &str) -> TierError {
    TierError::new(ErrorKind::Invalid, "agent").with_detail(what.to_owned())
}
