//! Requests and calls of jobs: of this node through the server, and of other nodes through links.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use foreread_store::attach::{
    ATTACH, BLOCKS, CATALOG, EpochOrder, FILES, JobProgress, JobReads, ORDER, OrderPiece, PROGRESS, Piece,
    PolicyChanges, RESTART, ReadInBlocks, SET, STATUS, STOP, WARM,
};
use foreread_store::{
    Answer, ConnectionId, SampleProvider, SampleRequest, ServerSettings, StoreCounts, StoreJobs,
    StoreRequest, WorkerCall,
};
use foreread_tier::{Buffers, ErrorKind, OpenContext, TierError};
use foreread_types::DatasetId;
use serde::de::DeserializeOwned;

use crate::cluster_cache::LinkedJobs;
use crate::connections::MAX_USES;
use crate::dataset_host::DatasetHost;
use crate::error::HostError;
use crate::host_state::{HostState, invalid};
use crate::policy::Policy;
use crate::policy_file::PolicyFile;

/// Answers requests and calls. Clones of the state are in its tasks.
#[derive(Debug)]
pub struct HostProvider {
    /// The jobs, datasets and policy.
    pub state: Arc<HostState>,
}

/// The answer of a call.
pub fn encoded(value: &impl serde::Serialize) -> Result<Bytes, TierError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| invalid(&error.to_string()))
}

fn decoded<T: DeserializeOwned>(payload: &[u8]) -> Result<T, TierError> {
    serde_json::from_slice(payload).map_err(|error| invalid(&error.to_string()))
}

/// The places of an order of another node: for each sample and each node, and at least. They take 4
/// bytes each for a moment.
const MAX_PLACES: u64 = 16;
const MIN_PLACES: u64 = 1 << 20;

/// The most samples that one job may have requested and not received.
const MAX_IN_FLIGHT: usize = 4096;

/// The provider that serves the jobs of an agent, or the ranks of one job. It works on the runtime
/// and in the memory of `place`.
///
/// # Errors
/// A mistake in the policy.
pub fn provider(
    memory: u64,
    host: DatasetHost,
    policy: Policy,
    file: Option<PathBuf>,
    place: OpenContext,
) -> Result<Arc<HostProvider>, HostError> {
    let file = PolicyFile::new(file.unwrap_or_default());
    let state = Arc::new(HostState::new(memory, host, (policy, file), place)?);
    Ok(Arc::new(HostProvider { state }))
}

/// Memory for samples that other processes read.
///
/// # Errors
/// If the system has no such memory.
pub fn shared(buffers: &Arc<dyn Buffers>) -> Result<Arc<dyn Buffers>, HostError> {
    if buffers.share() { Ok(Arc::clone(buffers)) } else { Err(HostError::Memory) }
}

/// The settings of the server of a store.
pub fn server_settings() -> ServerSettings {
    ServerSettings::default().with_shared_bytes(u64::MAX).with_max_in_flight(MAX_IN_FLIGHT)
}

impl SampleProvider for HostProvider {
    fn get(&self, sample_requests: Vec<SampleRequest>) {
        // All requests of a call are of one connection.
        let Some(connection) = sample_requests.first().map(SampleRequest::connection) else { return };
        let of_request = |request: SampleRequest| StoreRequest {
            key: request.key(),
            due: request.due(),
            answer: Box::new(move |received| request.answer(received)),
        };
        self.request(connection, sample_requests.into_iter().map(of_request).collect());
    }

    fn call(&self, call: WorkerCall) {
        let (connection, payload) = (call.connection(), call.payload().clone());
        if [ATTACH, CATALOG].contains(&call.name()) {
            self.state.jobs.lock().entry(connection).or_default();
        }
        let name = call.name().to_owned();
        self.carry_out(connection, &name, payload, Box::new(move |it| call.answer(it)));
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.state.disconnected(connection);
    }
}

impl LinkedJobs for HostProvider {
    fn accepts(&self, name: &str) -> bool {
        // The plan of a job has its orders, and its ranks have opened its datasets.
        !self.state.cluster.is_planned() || ![CATALOG, ORDER].contains(&name)
    }

    fn begin(&self, connection: ConnectionId, node: &str) {
        self.state.jobs.lock().entry(connection).or_default().node = Some(node.to_owned());
    }

    fn is_patient(&self, connection: ConnectionId, dataset: DatasetId) -> bool {
        let dataset = self.state.dataset(connection, dataset.0);
        dataset.is_ok_and(|dataset| dataset.hosted.patience().is_some())
    }
}

impl StoreJobs for HostProvider {
    fn request(&self, connection: ConnectionId, samples: Vec<StoreRequest>) {
        let job = self.state.jobs.job(connection);
        let mut requests = Vec::with_capacity(samples.len());
        for StoreRequest { key, due, answer } in samples {
            match job.as_ref().and_then(|job| job.key(key)) {
                Some(key) => requests.push(StoreRequest { key, due, answer }),
                None => {
                    let error = TierError::new(ErrorKind::Unsupported, "agent");
                    answer(Err(error.with_detail("the agent does not read this dataset")));
                }
            }
        }
        if let Some(job) = job {
            self.state.store.request(job.job, requests);
        }
    }

    fn carry_out(&self, connection: ConnectionId, name: &str, payload: Bytes, answer: Answer) {
        let state = Arc::clone(&self.state);
        let done = |result: Result<(), TierError>| result.map(|()| Bytes::new());
        let result = match name {
            ATTACH => {
                let attaching = async move { encoded(&state.attach(connection, decoded(&payload)?).await?) };
                self.state.runtime.spawn(async move { answer(attaching.await) });
                return;
            }
            ORDER => {
                let added = OrderPiece::decode(&payload).ok_or("a piece is malformed");
                let added = added.and_then(|piece| self.add_order(connection, piece));
                return self.order(connection, added, answer);
            }
            CATALOG => done(
                Piece::decode(&payload)
                    .ok_or("a piece is malformed")
                    .and_then(|piece| {
                        let mut connections = state.jobs.lock();
                        connections.get_mut(&connection).ok_or("the job has left")?.add_catalog(piece)
                    })
                    .map_err(invalid),
            ),
            BLOCKS => {
                let hosted = decoded(&payload).and_then(|request: ReadInBlocks| {
                    let dataset = state.dataset(connection, request.dataset)?;
                    if let Some(job) = state.jobs.job(connection) {
                        state.cluster.read_in_blocks(job.job, request);
                    }
                    // Blocks that have one owner.
                    let bytes = (!state.cluster.has_joined()).then_some(request.bytes);
                    Ok((dataset.hosted, bytes))
                });
                return self.answer_later(answer, move || {
                    let (hosted, bytes) = hosted?;
                    done(hosted.read_in_blocks(bytes).map_err(|error| invalid(&error.to_string())))
                });
            }
            RESTART => {
                if let Some(job) = state.jobs.job(connection) {
                    state.store.restart(job.job);
                    state.cluster.restart(job.job);
                }
                Ok(Bytes::new())
            }
            PROGRESS => decoded(&payload).and_then(|progress: JobProgress| {
                if let Some(there) = state.jobs.lock().get_mut(&connection) {
                    there.stalls.add(Instant::now(), progress.stalled_seconds);
                }
                let counts = state.jobs.job(connection).map(|job| state.store.job_counts(job.job));
                let counts = counts.unwrap_or_default();
                let StoreCounts { reads: samples, read_bytes: bytes, requests, .. } = counts;
                encoded(&JobReads { samples, bytes, requests })
            }),
            FILES => {
                let serve = move || encoded(&state.files.serve(state.disk(), &decoded(&payload)?)?);
                return self.answer_later(answer, serve);
            }
            WARM => {
                // It may visit each sample.
                let warm = move || encoded(&state.warm(connection, decoded(&payload)?)?);
                return self.answer_later(answer, warm);
            }
            STATUS => encoded(&state.status()),
            SET => done(decoded(&payload).and_then(|changes: PolicyChanges| state.set(&changes))),
            STOP => {
                state.stop();
                Ok(Bytes::new())
            }
            name => {
                let error = TierError::new(ErrorKind::Unsupported, "agent").with_object(name);
                Err(error.with_detail("unknown call"))
            }
        };
        answer(result);
    }

    fn end(&self, connection: ConnectionId) {
        self.state.disconnected(connection);
    }
}

impl HostProvider {
    /// Answers a call by work that takes long.
    fn answer_later(&self, answer: Answer, work: impl FnOnce() -> Result<Bytes, TierError> + Send + 'static) {
        self.state.runtime.spawn_blocking(move || answer(work()));
    }

    /// Adds a piece of an order, and returns the order if it was the last one.
    fn add_order(
        &self,
        connection: ConnectionId,
        piece: OrderPiece<'_>,
    ) -> Result<Option<EpochOrder>, &'static str> {
        let nodes = self.state.cluster.nodes().max(1);
        let mut connections = self.state.jobs.lock();
        let there = connections.get_mut(&connection).filter(|there| there.attached.is_some());
        let there = there.ok_or("the job is not attached")?;
        let most = match there.node {
            None => MAX_USES,
            Some(_) => {
                let samples = piece.piece.total / OrderPiece::SAMPLE_BYTES;
                samples.saturating_mul(MAX_PLACES).saturating_mul(nodes).clamp(MIN_PLACES, MAX_USES)
            }
        };
        there.add_order(piece, most)
    }

    /// Answers a piece of an order. The last one is answered when the order is known, so that
    /// orders become known one after another.
    fn order(
        &self,
        connection: ConnectionId,
        added: Result<Option<EpochOrder>, &'static str>,
        answer: Answer,
    ) {
        let state = Arc::clone(&self.state);
        let order = match added {
            Ok(Some(order)) => order,
            Ok(None) => return answer(Ok(Bytes::new())),
            Err(why) => return answer(Err(invalid(why))),
        };
        let Some(job) = state.jobs.job(connection) else { return answer(Err(invalid("not attached"))) };
        self.state.runtime.spawn_blocking(move || {
            let EpochOrder { first, per_position, .. } = order;
            let orders = job.store_orders(&order);
            if orders.is_empty() {
                return answer(Err(invalid("no such dataset")));
            }
            let known = state.store.announce_all(job.job, first, per_position, orders);
            state.cluster.announce(job.job, order);
            answer(known.map(|()| Bytes::new()).map_err(|error| invalid(&error.to_string())));
        });
    }
}
