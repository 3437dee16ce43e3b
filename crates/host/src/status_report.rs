//! Builds the status of an agent.

use std::collections::HashMap;
use std::time::Instant;

use foreread_store::{JobState, OriginState, StoreJob, StoreStatus};
use foreread_tier::lock;
use foreread_types::DatasetId;

use crate::disk::HostDiskCounts;

use crate::connections::AttachedJob;
use crate::datasets::KnownDataset;
use crate::host_state::HostState;
use crate::recent::Recent;
use crate::status::{AgentStatus, DatasetStatus, DiskStatus, JobStatus, OriginStatus, own_jobs};

/// A trainer that waits for less than this share of its time does not wait.
const STALLED: f64 = 0.02;

/// An origin that delivers this part of its limit is at its limit.
const AT_LIMIT: f64 = 0.9;

/// Totals of the last seconds, which are added about four times a second.
#[derive(Debug, Default)]
pub(crate) struct RecentRates {
    samples: HashMap<StoreJob, Recent>,
    bytes: HashMap<String, Recent>,
}

impl RecentRates {
    fn add(&mut self, now: Instant, status: &StoreStatus) {
        self.samples.retain(|job, _| status.jobs.contains_key(job));
        for (job, state) in &status.jobs {
            let counts = state.counts;
            let total = counts.hits + counts.joined + counts.disk_reads + counts.node_reads + counts.reads;
            self.samples.entry(*job).or_default().add(now, total as f64);
        }
        for origin in &status.origins {
            self.bytes.entry(origin.name.clone()).or_default().add(now, origin.read_bytes as f64);
        }
    }
}

impl HostState {
    /// Notes the present totals, for rates.
    pub fn note_rates(&self) {
        let status = self.store.totals();
        lock(&self.rates).add(Instant::now(), &status);
    }

    /// The present status.
    pub fn status(&self) -> AgentStatus {
        let (store, now) = (self.store.status(), Instant::now());
        let known = self.datasets.all();
        let origins = self.origin_statuses(&store, now);
        let jobs = self.job_statuses(&store, &known, &origins, now);
        AgentStatus {
            process: std::process::id(),
            uptime_seconds: self.begun.elapsed().as_secs_f64(),
            memory: self.memory(),
            held_bytes: store.held_bytes,
            samples: store.samples,
            reading: store.reading,
            disk: self.disk().map(|disk| disk_status(&disk.counts(), disk.problem())),
            files: self.files.status(),
            disk_reads: store.counts.disk_reads,
            node_reads: store.counts.node_reads,
            hits: store.counts.hits,
            joined: store.counts.joined,
            reads: store.counts.reads,
            read_bytes: store.counts.read_bytes,
            failures: store.counts.failures,
            datasets: known
                .iter()
                .map(|dataset| self.dataset_status(dataset, &store, &jobs, &origins))
                .collect(),
            jobs,
            stores: origins,
            policy: self.policy.values(),
            control: self.control_status(),
        }
    }

    fn origin_statuses(&self, store: &StoreStatus, now: Instant) -> Vec<OriginStatus> {
        let rates = lock(&self.rates);
        let status = |origin: &OriginState| OriginStatus {
            name: origin.name.clone(),
            limit: origin.limits.bytes_per_second.map(u64::from),
            parallelism: origin.limits.parallelism.map(|most| most.get() as u64),
            reading: origin.reading,
            queued: origin.queued,
            read_bytes: origin.read_bytes,
            bytes_per_second: rates.bytes.get(&origin.name).map_or(0.0, |recent| recent.per_second(now)),
            reserved: 0,
        };
        store.origins.iter().map(status).collect()
    }

    fn job_statuses(
        &self,
        store: &StoreStatus,
        known: &[KnownDataset],
        origins: &[OriginStatus],
        now: Instant,
    ) -> Vec<JobStatus> {
        let rates = lock(&self.rates);
        let connections = self.jobs.lock();
        let attached =
            connections.values().filter_map(|there| there.attached.as_deref().map(|job| (there, job)));
        let statuses = attached.map(|(there, job)| {
            let AttachedJob { job: number, attach, datasets, .. } = job;
            let find = |id: &DatasetId| known.iter().find(|dataset| dataset.id == *id);
            let datasets: Vec<&KnownDataset> = datasets.iter().flatten().filter_map(find).collect();
            let state = store.jobs.get(number).cloned().unwrap_or_default();
            let stalled_share = there.stalls.share(now);
            let waits_for = (stalled_share > STALLED).then(|| {
                let own: Vec<&OriginStatus> = origins
                    .iter()
                    .filter(|origin| datasets.iter().any(|dataset| dataset.origin == origin.name))
                    .collect();
                cause_of_stall(&state, &own)
            });
            JobStatus {
                name: attach.name.clone(),
                node: there.node.clone().unwrap_or_default(),
                process: attach.process,
                look_ahead: attach.look_ahead,
                datasets: datasets.iter().map(|dataset| dataset.url.clone()).collect(),
                weight: Self::policy_weight(state.weight),
                hits: state.counts.hits,
                disk_reads: state.counts.disk_reads,
                node_reads: state.counts.node_reads,
                joined: state.counts.joined,
                reads: state.counts.reads,
                read_bytes: state.counts.read_bytes,
                failures: state.counts.failures,
                waiting: state.waiting,
                samples_per_second: rates.samples.get(number).map_or(0.0, |recent| recent.per_second(now)),
                expected_hit_share: state.expected_hit_share,
                stalled_share,
                waits_for,
            }
        });
        let mut statuses: Vec<JobStatus> = statuses.collect();
        statuses.sort_by(|one, other| (one.process, &one.name).cmp(&(other.process, &other.name)));
        statuses
    }
}

impl HostState {
    fn dataset_status(
        &self,
        dataset: &KnownDataset,
        store: &StoreStatus,
        jobs: &[JobStatus],
        origins: &[OriginStatus],
    ) -> DatasetStatus {
        let state = store.datasets.get(dataset.id.0 as usize).cloned().unwrap_or_default();
        let rate = origins.iter().find(|of| of.name == dataset.origin).map_or(0.0, |of| of.bytes_per_second);
        let on_disk = self.disk().zip(dataset.on_disk).map_or((0, 0), |(disk, number)| disk.held(number));
        DatasetStatus {
            url: dataset.url.clone(),
            samples: dataset.samples,
            bytes: dataset.bytes,
            held_samples: state.held_samples,
            held_bytes: state.held_bytes,
            disk_samples: on_disk.0,
            disk_bytes: on_disk.1,
            jobs: own_jobs(jobs).filter(|job| job.datasets.contains(&dataset.url)).count() as u64,
            hits: state.counts.hits + state.counts.joined,
            reads: state.counts.reads,
            read_bytes: state.counts.read_bytes,
            // The paces of jobs that have just begun are high.
            saved_by_gb: state.saved_by_gb.min(rate),
        }
    }
}

/// The cause for which a job keeps its trainer waiting.
fn cause_of_stall(job: &JobState, origins: &[&OriginStatus]) -> String {
    let is_at_limit = |origin: &&OriginStatus| {
        origin.limit.is_some_and(|limit| origin.bytes_per_second > AT_LIMIT * limit as f64)
    };
    let cause = if origins.iter().any(is_at_limit) {
        "limit"
    } else if origins.iter().any(|origin| origin.queued > job.waiting) {
        "other jobs"
    } else {
        "storage"
    };
    cause.to_owned()
}

fn disk_status(counts: &HostDiskCounts, problem: Option<String>) -> DiskStatus {
    DiskStatus {
        capacity: counts.capacity,
        held_bytes: counts.held_bytes,
        written_bytes: counts.written_bytes,
        refused: counts.refused,
        refused_bytes: counts.refused_bytes,
        problem,
    }
}
