//! The agent as the server sees it: requests and calls of jobs.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use foreread_store::attach::{
    ATTACH, BLOCKS, CATALOG, FILES, GROUP_ORDER, GroupOrderPiece, JobProgress, JobReads, ORDER, OrderPiece,
    PROGRESS, Piece, PolicyChanges, RESTART, ReadInBlocks, SET, STATUS, STOP, WARM,
};
use foreread_store::{ConnectionId, SampleProvider, SampleRequest, StoreCounts, StoreRequest, WorkerCall};
use foreread_tier::{ErrorKind, TierError};
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;

use crate::agent_state::{AgentState, invalid};
use crate::cluster_cache::JobOrder;

/// Answers requests and calls. Clones of the state are in its tasks.
#[derive(Debug)]
pub(crate) struct AgentProvider {
    pub(crate) state: Arc<AgentState>,
    pub(crate) runtime: Handle,
}

/// The answer of a call.
pub(crate) fn encoded(value: &impl serde::Serialize) -> Result<Bytes, TierError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| invalid(&error.to_string()))
}

fn decoded<T: DeserializeOwned>(call: &WorkerCall) -> Result<T, TierError> {
    serde_json::from_slice(call.payload()).map_err(|error| invalid(&error.to_string()))
}

impl SampleProvider for AgentProvider {
    fn get(&self, sample_requests: Vec<SampleRequest>) {
        // All requests of a call are of one connection.
        let Some(connection) = sample_requests.first().map(SampleRequest::connection) else { return };
        let job = self.state.job(connection);
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
            self.state.store.request(job.job, requests);
        }
    }

    fn call(&self, call: WorkerCall) {
        let (state, connection) = (Arc::clone(&self.state), call.connection());
        let done = |result: Result<(), TierError>| result.map(|()| Bytes::new());
        let answer = match call.name() {
            ATTACH => {
                state.lock().entry(connection).or_default();
                self.runtime.spawn(async move {
                    let answer = match decoded(&call) {
                        Ok(attach) => state.attach(connection, attach).await,
                        Err(error) => Err(error),
                    };
                    call.answer(answer.and_then(|attached| encoded(&attached)));
                });
                return;
            }
            ORDER => {
                let order = OrderPiece::decode(call.payload());
                let piece = order.map(|order| GroupOrderPiece { per_position: NonZeroU32::MIN, order });
                let added = self.add_order(connection, piece);
                return self.order(call, added);
            }
            GROUP_ORDER => {
                let added = self.add_order(connection, GroupOrderPiece::decode(call.payload()));
                return self.order(call, added);
            }
            CATALOG => done(
                Piece::decode(call.payload())
                    .ok_or("a piece is malformed")
                    .and_then(|piece| state.lock().entry(connection).or_default().add_catalog(piece))
                    .map_err(invalid),
            ),
            BLOCKS => {
                let hosted = decoded(&call).and_then(|request: ReadInBlocks| {
                    let dataset = state.dataset(connection, request.dataset)?;
                    if let Some(job) = state.job(connection) {
                        state.cluster.read_in_blocks(job.job, request.dataset);
                    }
                    // Blocks that have one owner.
                    let bytes = (!state.cluster.has_joined()).then_some(request.bytes);
                    Ok((dataset.hosted, bytes))
                });
                self.runtime.spawn_blocking(move || {
                    let set = hosted.and_then(|(hosted, bytes)| {
                        hosted.read_in_blocks(bytes).map_err(|error| invalid(&error.to_string()))
                    });
                    call.answer(done(set));
                });
                return;
            }
            RESTART => {
                if let Some(job) = state.job(connection) {
                    state.store.restart(job.job);
                    state.cluster.restart(job.job);
                }
                Ok(Bytes::new())
            }
            PROGRESS => decoded(&call).and_then(|progress: JobProgress| {
                if let Some(there) = state.lock().get_mut(&connection) {
                    there.stalls.add(Instant::now(), progress.stalled_seconds);
                }
                let counts = state.job(connection).map(|job| state.store.job_counts(job.job));
                let counts = counts.unwrap_or_default();
                let StoreCounts { reads: samples, read_bytes: bytes, requests, .. } = counts;
                encoded(&JobReads { samples, bytes, requests })
            }),
            FILES => {
                self.runtime.spawn_blocking(move || {
                    let answer = decoded(&call).and_then(|request| state.files.serve(state.disk(), &request));
                    call.answer(answer.and_then(|answer| encoded(&answer)));
                });
                return;
            }
            WARM => {
                // It may visit each sample.
                self.runtime.spawn_blocking(move || {
                    let answer = decoded(&call).and_then(|request| state.warm(connection, request));
                    call.answer(answer.and_then(|answer| encoded(&answer)));
                });
                return;
            }
            STATUS => encoded(&state.status()),
            SET => done(decoded(&call).and_then(|changes: PolicyChanges| state.set(&changes))),
            STOP => {
                state.stop();
                Ok(Bytes::new())
            }
            name => {
                let error = TierError::new(ErrorKind::Unsupported, "agent").with_object(name);
                Err(error.with_detail("unknown call"))
            }
        };
        call.answer(answer);
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.state.disconnected(connection);
    }
}

impl AgentProvider {
    /// Adds a piece of an order, and returns the order if it was the last one.
    fn add_order(
        &self,
        connection: ConnectionId,
        piece: Option<GroupOrderPiece<'_>>,
    ) -> Result<Option<JobOrder>, &'static str> {
        let mut connections = self.state.lock();
        let there = connections.get_mut(&connection).filter(|there| there.attached.is_some());
        let there = there.ok_or("the job is not attached")?;
        there.add_order(piece.ok_or("a piece is malformed")?)
    }

    /// Answers a piece of an order. The last one is answered when the order is known, so that
    /// orders become known one after another.
    fn order(&self, call: WorkerCall, added: Result<Option<JobOrder>, &'static str>) {
        let (state, connection) = (Arc::clone(&self.state), call.connection());
        let order = match added {
            Ok(Some(order)) => order,
            Ok(None) => return call.answer(Ok(Bytes::new())),
            Err(why) => return call.answer(Err(invalid(why))),
        };
        let Some(job) = state.job(connection) else { return call.answer(Err(invalid("not attached"))) };
        self.runtime.spawn_blocking(move || {
            let JobOrder { first, per_position, .. } = order;
            let orders = job.store_orders(&order);
            if orders.is_empty() {
                return call.answer(Err(invalid("no such dataset")));
            }
            let known = state.store.announce_all(job.job, first, per_position, orders);
            state.cluster.announce(job.job, order);
            call.answer(known.map(|()| Bytes::new()).map_err(|error| invalid(&error.to_string())));
        });
    }
}
