//! The state of an agent: its jobs, datasets and policy, and the store that they share.
//!
//! The policy is applied to an origin, a dataset or a job when it appears, and to all of them when
//! it changes.

mod attaching;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foreread_open::origin_policy::OtherReads;
use foreread_tier::{ErrorKind, TierError};

use crate::dataset_host::DatasetHost;
use crate::disk::{HostDisk, WRITES_PER_DAY};
use foreread_store::attach::PolicyChanges;
use foreread_store::{ConnectionId, NodeStore, StoreCounts, StoreJob};
use foreread_types::DatasetId;
use tokio::runtime::Handle;

use crate::cluster_cache::ClusterCache;
use crate::connections::{AttachedJob, Connections};
use crate::dataset_room::{DatasetRoom, bounds_within};
use crate::datasets::{DatasetOpener, Datasets, KnownDataset};
use crate::files::FileCopies;
use crate::held_leases::HeldLeases;
use crate::policy::{Policy, PolicyError, PolicySource};
use crate::policy_file::PolicyFile;
use crate::status::ControlLinkStatus;
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
    /// The bytes that the agent was given, and the bytes that it may use now.
    given: u64,
    memory: AtomicU64,
    pub(crate) begun: Instant,
    /// When the last job has left.
    left: Mutex<Instant>,
    /// The reads for jobs of other nodes that have ended.
    ended_for_others: Mutex<StoreCounts>,
    opener: DatasetOpener,
    pub(crate) datasets: Datasets,
    /// Held for reading while a job attaches, for writing while datasets are closed.
    attaching: tokio::sync::RwLock<()>,
    connections: Mutex<Connections>,
    policy: Mutex<PolicyState>,
    /// Apart from the policy: a file server that hangs must not hang the agent.
    file: Mutex<PolicyFile>,
    /// Its path.
    file_name: String,
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

/// The values from the control process for this agent. Empty without a control process.
#[derive(Debug, Default)]
pub struct ControlWord {
    /// Its leases of origins.
    pub leases: HeldLeases,
    /// By origin: the leases that are applied.
    applied: HashMap<String, Option<NonZeroU64>>,
    /// Its values of the policy, each as `KEY=VALUE`.
    pub values: Vec<String>,
    /// `None` without a control process.
    pub status: Option<ControlLinkStatus>,
}

#[derive(Debug)]
struct PolicyState {
    policy: Policy,
    /// The mistake in the file. Its last values stay in force.
    mistake: Option<String>,
}

/// The parts of an agent.
pub(crate) struct HostParts {
    pub(crate) store: NodeStore,
    pub(crate) runtime: Handle,
    pub(crate) memory: u64,
    pub(crate) host: DatasetHost,
    pub(crate) cluster: Arc<ClusterCache>,
    pub(crate) policy: Policy,
    pub(crate) file: PolicyFile,
}

impl HostState {
    /// The state of an agent without jobs.
    ///
    /// # Errors
    /// A mistake in the policy file.
    pub(crate) fn new(parts: HostParts) -> Result<Self, PolicyError> {
        let HostParts { store, runtime, memory, host, cluster, policy, mut file } = parts;
        let policy = match file.changed().transpose()? {
            Some(values) => policy.with_file(values),
            None => policy,
        };
        let (datasets, connections, rates, warmings, files, control, stopped) = Default::default();
        let now = Instant::now();
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
            given: memory,
            memory: AtomicU64::new(memory),
            begun: now,
            left: Mutex::new(now),
            ended_for_others: Mutex::default(),
            opener,
            datasets,
            attaching: tokio::sync::RwLock::default(),
            connections,
            policy: Mutex::new(PolicyState { policy, mistake: None }),
            file_name: file.path().display().to_string(),
            name: unique_name(),
            file: Mutex::new(file),
            rates,
            warmings,
            files,
            cluster,
            control,
            stopped,
        };
        FileCopies::count_earlier(state.disk());
        let policy = state.lock_policy();
        state.check(&policy.policy)?;
        state.apply(&policy.policy);
        drop(policy);
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
        let policy = self.lock_policy().policy.clone();
        let used: HashSet<DatasetId> = {
            let connections = self.lock();
            let jobs = connections.values().filter_map(|there| there.attached.as_ref());
            jobs.flat_map(|job| job.used_datasets()).collect()
        };
        for dataset in self.datasets.all() {
            if let Some(number) = dataset.on_disk {
                let has_jobs = used.contains(&dataset.id) || self.warmings.contains(dataset.id);
                disk.set_use(number, has_jobs, self.is_pinned(&policy, &dataset));
            }
        }
    }

    /// Every change is complete before the lock is released, even after a panic.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_policy(&self) -> MutexGuard<'_, PolicyState> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name that no other agent has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The attached jobs, each with its name and its weight.
    pub fn job_names(&self) -> HashMap<StoreJob, (String, u32)> {
        let policy = self.lock_policy();
        let connections = self.lock();
        let jobs = connections.values().filter_map(|there| there.attached.as_ref());
        let named = jobs.map(|job| {
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

    /// The values from the control process, for changes.
    pub fn lock_control(&self) -> MutexGuard<'_, ControlWord> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn control_status(&self) -> Option<ControlLinkStatus> {
        let status = self.lock_control().status.clone();
        status.map(|status| ControlLinkStatus { shares_with: self.cluster.nodes(), ..status })
    }

    /// Applies leases that have changed since the last call. Leases also change by their end.
    pub fn apply_leases(&self) {
        let policy = self.lock_policy();
        let origins: BTreeSet<String> =
            self.datasets.all().into_iter().map(|dataset| dataset.origin).collect();
        for origin in origins {
            let lease = self.lease(&origin);
            if self.lock_control().applied.get(&origin) != Some(&lease) {
                self.limit_origin(&policy.policy, &origin, lease);
            }
        }
    }

    /// The control process's limit of an origin, in bytes per second. At least 1.
    fn lease(&self, origin: &str) -> Option<NonZeroU64> {
        let lease = self.lock_control().leases.limit(origin, self.now());
        lease.map(|rate| NonZeroU64::new(rate).unwrap_or(NonZeroU64::MIN))
    }

    fn limit_origin(&self, policy: &Policy, origin: &str, lease: Option<NonZeroU64>) {
        self.lock_control().applied.insert(origin.to_owned(), lease);
        let mut limits = policy.origin_limits(origin);
        // The control process cannot raise the agent's own limit.
        limits.bytes_per_second = [limits.bytes_per_second, lease].into_iter().flatten().min();
        self.opener.host.set_limit(origin, limits.bytes_per_second);
        self.store.set_origin(origin, limits);
    }

    /// Applies the values of the control process.
    pub fn set_control_values(&self, values: &[String]) {
        let mut given = Policy::default();
        for value in values {
            if let Err(error) = given.set_text(value, PolicySource::Control) {
                tracing::warn!(%error, "a value of the control process is not in force");
            }
        }
        let mut there = self.lock_policy();
        let policy = there.policy.with(given, &PolicySource::Control);
        match self.check(&policy) {
            Ok(()) => {
                self.apply(&policy);
                there.policy = policy;
            }
            Err(error) => tracing::warn!(%error, "the values of the control process are not in force"),
        }
        drop(there);
        self.note_disk_uses();
    }

    /// The bytes that samples may take in memory, gaps included.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// For how long no job has been attached, and nothing was warmed.
    pub fn idle_time(&self) -> Duration {
        let is_used = self.lock().values().any(|connection| connection.attached.is_some());
        if is_used || self.warmings.is_active() {
            return Duration::ZERO;
        }
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if self.files.is_used() {
            *left = Instant::now();
        }
        left.elapsed()
    }

    /// Whether a client has had the agent stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn job(&self, connection: ConnectionId) -> Option<Arc<AttachedJob>> {
        self.lock().get(&connection)?.attached.clone()
    }

    /// A dataset of a job, by its number there.
    pub(crate) fn dataset(&self, connection: ConnectionId, number: u32) -> Result<KnownDataset, TierError> {
        let job = self.job(connection).ok_or_else(|| invalid("not attached"))?;
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
            if self.is_used(dataset.id) || self.is_warmed(dataset.id) || dataset.is_awaited() {
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
        let mut there = self.lock_policy();
        let mut policy = there.policy.clone();
        for change in &changes.changes {
            policy.set_text(change, PolicySource::Set).map_err(|error| invalid(&error.to_string()))?;
        }
        self.check(&policy).map_err(|error| invalid(&error.to_string()))?;
        for change in &changes.changes {
            tracing::info!(change, "the policy was changed");
        }
        self.apply(&policy);
        there.policy = policy;
        drop(there);
        self.note_disk_uses();
        Ok(())
    }

    /// Reads the policy file again, if it has changed. May take as long as its file server.
    pub fn reload(&self) {
        let changed = self.file.lock().unwrap_or_else(PoisonError::into_inner).changed();
        let Some(read) = changed else { return };
        let mut there = self.lock_policy();
        let values = read.map(|values| there.policy.with_file(values));
        match values.and_then(|policy| self.check(&policy).map(|()| policy)) {
            Ok(policy) => {
                self.apply(&policy);
                tracing::info!(file = self.file_name, "the policy was read again");
                (there.policy, there.mistake) = (policy, None);
            }
            Err(error) => {
                tracing::warn!(%error, "the policy file has a mistake, and the policy stays as it was");
                there.mistake = Some(error.to_string());
            }
        }
    }

    /// Whether a policy can be in force.
    fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        let given = self.given;
        let memory = policy.memory().unwrap_or(given);
        if memory > given {
            return Err(PolicyError::new(format!(
                "memory: at most {given} bytes, with which it was started"
            )));
        }
        let floors = policy.floors();
        if floors > memory {
            return Err(PolicyError::new(format!(
                "floor: together they are {floors} bytes, and the memory is {memory}"
            )));
        }
        Ok(())
    }

    fn apply(&self, policy: &Policy) {
        let memory = policy.memory().unwrap_or(self.given);
        if self.memory.swap(memory, Ordering::Relaxed) != memory {
            // The bytes of it that gaps take are known a moment later.
            self.store.set_capacity(memory);
        }
        if let Some(disk) = self.disk() {
            disk.set_writes_per_day(policy.disk_writes_per_day().unwrap_or(WRITES_PER_DAY));
        }
        self.apply_to_datasets(policy);
        let connections = self.lock();
        for job in connections.values().filter_map(|there| there.attached.as_ref()) {
            self.store.set_weight(job.job, scaled(policy.job_weight(&job.attach.name)));
        }
    }

    /// Applies the policy to all datasets. They share the memory, so each depends on the others.
    fn apply_to_datasets(&self, policy: &Policy) {
        let all = self.datasets.all();
        let uses = |dataset: &KnownDataset| DatasetRoom {
            is_used: self.is_used(dataset.id),
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

    /// Whether a job is attached to a dataset.
    fn is_used(&self, id: DatasetId) -> bool {
        let connections = self.lock();
        let mut jobs = connections.values().filter_map(|there| there.attached.as_ref());
        jobs.any(|job| job.used_datasets().any(|used| used == id))
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

    /// The policy in force, and the mistake in its file.
    pub(crate) fn policy_values(&self) -> Vec<crate::status::PolicyValue> {
        let there = self.lock_policy();
        there.policy.values(&self.file_name, there.mistake.as_deref())
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
