//! The agent as the server sees it: requests and calls of jobs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread::agent::host::DatasetHost;
use foreread_store::attach::{
    ATTACH, Attach, Attached, CATALOG, HostSettings, ORDER, OrderPiece, Piece, RESTART, SET, STATUS, STOP,
};
use foreread_store::{ConnectionId, NodeStore, SampleProvider, SampleRequest, StoreRequest, WorkerCall};
use foreread_tier::{ErrorKind, TierError};
use tokio::runtime::Handle;

use crate::connections::{AttachedJob, Connections, MAX_DATASETS};
use crate::datasets::Datasets;
use crate::status::{AgentStatus, DatasetStatus, JobStatus};

/// The agent's state. Clones of the `Arc` are in its tasks.
#[derive(Debug)]
pub(crate) struct AgentProvider {
    shared: Arc<AgentShared>,
    runtime: Handle,
}

#[derive(Debug)]
struct AgentShared {
    store: NodeStore,
    /// The bytes that the agent was given, and those that it may use now.
    given: u64,
    memory: AtomicU64,
    /// When the last job has left.
    left: Mutex<Instant>,
    host: DatasetHost,
    datasets: Datasets,
    connections: Mutex<Connections>,
    stopped: AtomicBool,
}

impl AgentProvider {
    pub(crate) fn new(store: NodeStore, memory: u64, host: DatasetHost, runtime: Handle) -> Self {
        let (datasets, connections, stopped) = Default::default();
        let (given, memory, left) = (memory, AtomicU64::new(memory), Mutex::new(Instant::now()));
        let shared = AgentShared { store, given, memory, left, host, datasets, connections, stopped };
        Self { shared: Arc::new(shared), runtime }
    }

    /// The bytes that samples may take in memory, gaps included.
    pub(crate) fn memory(&self) -> u64 {
        self.shared.memory.load(Ordering::Relaxed)
    }

    /// For how long no job has been attached.
    pub(crate) fn idle_time(&self) -> Duration {
        if self.shared.lock().values().any(|connection| connection.attached.is_some()) {
            return Duration::ZERO;
        }
        self.shared.left.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Changes the bytes that samples may take.
    pub(crate) fn set_capacity(&self, capacity: u64) {
        self.shared.store.set_capacity(capacity);
    }

    /// What it does now.
    pub(crate) fn status(&self) -> AgentStatus {
        self.shared.status()
    }

    /// Whether a client has had the agent stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }
}

impl AgentShared {
    /// Every change is complete before the lock is released, even after a panic.
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(&self, connection: ConnectionId) -> Option<AttachedJob> {
        self.lock().get(&connection)?.attached.clone()
    }

    async fn attach(&self, connection: ConnectionId, payload: &[u8]) -> Result<Bytes, TierError> {
        let attach: Attach = serde_json::from_slice(payload).map_err(|error| invalid(&error.to_string()))?;
        if attach.datasets.len() > MAX_DATASETS {
            return Err(invalid(&format!("a job has at most {MAX_DATASETS} datasets")));
        }
        let catalogs = self.lock().get_mut(&connection).map(|there| there.take_catalogs());
        let mut catalogs = catalogs.ok_or_else(|| invalid("the job has left"))?;
        let (mut datasets, mut answers) = (Vec::new(), Vec::new());
        for (number, wanted) in (0..).zip(&attach.datasets) {
            let catalog = catalogs.remove(&number);
            let (id, answer) = self.datasets.find(wanted, catalog, &self.host, &self.store).await;
            datasets.push(id);
            answers.push(answer);
        }
        let answer = Attached { capacity: self.memory.load(Ordering::Relaxed), datasets: answers };
        let mut connections = self.lock();
        // The job may have left meanwhile.
        if let Some(there) = connections.get_mut(&connection) {
            let before = there.attached.take().map(|before| before.job);
            let job = before.unwrap_or_else(|| self.store.add_job(attach.is_ordered));
            there.attached = Some(AttachedJob { job, attach, datasets });
        }
        drop(connections);
        encoded(&answer)
    }

    /// Changes settings, at once.
    fn set(&self, payload: &[u8]) -> Result<Bytes, TierError> {
        let settings: HostSettings =
            serde_json::from_slice(payload).map_err(|error| invalid(&error.to_string()))?;
        if let Some(memory) = settings.memory {
            if memory > self.given {
                let given = self.given;
                return Err(invalid(&format!("memory: at most {given} bytes, with which it was started")));
            }
            self.memory.store(memory, Ordering::Relaxed);
            // What gaps take of it is known a moment later.
            self.store.set_capacity(memory);
        }
        Ok(Bytes::new())
    }

    fn status(&self) -> AgentStatus {
        let store = self.store.status();
        let known = self.datasets.all();
        let url = |id: &foreread_types::DatasetId| {
            known.iter().find(|dataset| dataset.id == *id).map(|dataset| dataset.url.clone())
        };
        let jobs = self.lock().values().filter_map(|it| it.attached.as_ref()).map(job_status(url)).collect();
        let datasets = known.iter().map(|dataset| DatasetStatus {
            url: dataset.url.clone(),
            samples: dataset.samples,
            bytes: dataset.bytes,
            ..DatasetStatus::default()
        });
        AgentStatus {
            process: std::process::id(),
            memory: self.memory.load(Ordering::Relaxed),
            held_bytes: store.held_bytes,
            samples: store.samples,
            reading: store.reading,
            hits: store.counts.hits,
            joined: store.counts.joined,
            reads: store.counts.reads,
            read_bytes: store.counts.read_bytes,
            failures: store.counts.failures,
            jobs,
            datasets: datasets.collect(),
            ..AgentStatus::default()
        }
    }
}

fn job_status(
    url: impl Fn(&foreread_types::DatasetId) -> Option<String>,
) -> impl Fn(&AttachedJob) -> JobStatus {
    move |job| JobStatus {
        name: job.attach.name.clone(),
        process: job.attach.process,
        look_ahead: job.attach.look_ahead,
        datasets: job.datasets.iter().flatten().filter_map(&url).collect(),
        ..JobStatus::default()
    }
}

fn invalid(what: &str) -> TierError {
    TierError::new(ErrorKind::Invalid, "agent").with_detail(what.to_owned())
}

fn encoded(value: &impl serde::Serialize) -> Result<Bytes, TierError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| invalid(&error.to_string()))
}

impl SampleProvider for AgentProvider {
    fn get(&self, sample_requests: Vec<SampleRequest>) {
        // All requests of a call are of one connection.
        let Some(connection) = sample_requests.first().map(SampleRequest::connection) else { return };
        let job = self.shared.job(connection);
        let mut requests = Vec::with_capacity(sample_requests.len());
        for request in sample_requests {
            let key = job.as_ref().and_then(|job| job.key(request.key()));
            let Some(key) = key else {
                let error = TierError::new(ErrorKind::Unsupported, "agent");
                request.answer(Err(error.with_detail("the agent does not read this dataset")));
                continue;
            };
            let due = request.due();
            requests.push(StoreRequest {
                key,
                due,
                answer: Box::new(move |received| request.answer(received)),
            });
        }
        if let Some(job) = job {
            self.shared.store.request(job.job, requests);
        }
    }

    fn call(&self, call: WorkerCall) {
        let (shared, connection) = (Arc::clone(&self.shared), call.connection());
        match call.name() {
            ATTACH => {
                shared.lock().entry(connection).or_default();
                self.runtime.spawn(async move {
                    let answer = shared.attach(connection, call.payload()).await;
                    call.answer(answer);
                });
            }
            CATALOG => {
                let added = Piece::decode(call.payload())
                    .ok_or("a piece is malformed")
                    .and_then(|piece| shared.lock().entry(connection).or_default().add_catalog(piece));
                call.answer(added.map(|()| Bytes::new()).map_err(invalid));
            }
            ORDER => self.order(call),
            RESTART => {
                if let Some(job) = shared.job(connection) {
                    shared.store.restart(job.job);
                }
                call.answer(Ok(Bytes::new()));
            }
            STATUS => {
                let status = encoded(&shared.status());
                call.answer(status);
            }
            SET => {
                let set = shared.set(call.payload());
                call.answer(set);
            }
            STOP => {
                shared.stopped.store(true, Ordering::Relaxed);
                call.answer(Ok(Bytes::new()));
            }
            name => {
                let error = TierError::new(ErrorKind::Unsupported, "agent").with_object(name);
                call.answer(Err(error.with_detail("unknown call")));
            }
        }
    }

    fn disconnected(&self, connection: ConnectionId) {
        let left = self.shared.lock().remove(&connection);
        if let Some(job) = left.and_then(|left| left.attached) {
            self.shared.store.end_job(job.job);
            *self.shared.left.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }
}

impl AgentProvider {
    /// A piece of an order. The last one is answered when the order is known, so that orders become
    /// known one after another.
    fn order(&self, call: WorkerCall) {
        let (shared, connection) = (Arc::clone(&self.shared), call.connection());
        let added = OrderPiece::decode(call.payload()).ok_or("a piece is malformed").and_then(|piece| {
            let mut connections = shared.lock();
            connections.get_mut(&connection).ok_or("the job is not attached")?.add_order(piece)
        });
        let order = match added {
            Ok(Some(order)) => order,
            Ok(None) => return call.answer(Ok(Bytes::new())),
            Err(why) => return call.answer(Err(invalid(why))),
        };
        let Some(job) = shared.job(connection) else { return call.answer(Err(invalid("not attached"))) };
        let dataset = job.datasets.get(order.dataset as usize).copied().flatten();
        let Some(dataset) = dataset else { return call.answer(Err(invalid("no such dataset"))) };
        self.runtime.spawn_blocking(move || {
            let known = shared.store.announce(job.job, dataset, order.first, order.samples);
            call.answer(known.map(|()| Bytes::new()).map_err(|error| invalid(&error.to_string())));
        });
    }
}
