//! A job's connection to the agent of its node.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use foreread_store::StoreError;
use foreread_store::attach::{Attached, DatasetAnswer, JobReads, WARM, WarmAnswer, WarmRequest};
use foreread_tier::OriginTier;

use crate::connection::Connection;
use crate::job::{AgentJob, Connected, JobOrders, StallTime};
use crate::link::{AgentCounts, ClientLink};
use crate::origin::AgentOrigin;
use crate::{announcer, receiver};

/// A job that is attached to the agent of its node. Dropping it ends its threads. Origins made of
/// it then read directly.
#[derive(Debug)]
pub struct AgentClient {
    link: Arc<ClientLink>,
    attached: Attached,
    threads: Vec<JoinHandle<()>>,
}

impl AgentClient {
    /// Attaches a job. Blocks until the agent has answered.
    ///
    /// # Errors
    /// If there is no agent at the address, or it refuses the job. Also if the system has no thread
    /// left.
    pub fn attach(job: AgentJob) -> Result<Self, StoreError> {
        let Connected { connection, attached } = job.connect(&|| false)?;
        let is_here = matches!(*connection, Connection::Here(_));
        let link = Arc::new(ClientLink::default());
        link.connect(connection, attached.capacity);
        let mut client = Self { link, attached, threads: Vec::new() };
        let receiving = Arc::clone(&client.link);
        let announcing = announcer::spawn(&client.link)?;
        if is_here {
            // It gives answers on its own threads.
            client.threads.push(announcing);
            return Ok(client);
        }
        client.spawn("foreread-agent", move || receiver::run(&receiving, &job, Some(announcing)))?;
        Ok(client)
    }

    /// A job that looks for an agent from now on, and attaches when one serves. Until then, its
    /// samples are read directly.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn look(job: AgentJob) -> Result<Self, StoreError> {
        let (link, attached, threads) = Default::default();
        let mut client = Self { link, attached, threads };
        let receiving = Arc::clone(&client.link);
        client.spawn("foreread-agent", move || receiver::run(&receiving, &job, None))?;
        Ok(client)
    }

    /// Whether an agent has served this job at any time.
    pub fn was_connected(&self) -> bool {
        self.link.capacity().is_some()
    }

    /// The bytes of memory of the agent that served last.
    pub fn latest_capacity(&self) -> u64 {
        self.link.capacity().unwrap_or_default()
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        self.threads.push(thread.map_err(|error| StoreError::system("no thread for the agent", error))?);
        Ok(())
    }

    /// The bytes of memory that the agent has for samples.
    pub fn capacity(&self) -> u64 {
        self.attached.capacity
    }

    /// The bytes of its disks for samples.
    pub fn disk_capacity(&self) -> u64 {
        self.attached.disk_capacity
    }

    /// The name that no other agent has. `None` if it is of a version that has no name.
    pub fn host(&self) -> Option<&str> {
        Some(&*self.attached.host).filter(|host| !host.is_empty())
    }

    /// The path of a dataset's catalog in memory that this job can share.
    pub fn shared_catalog(&self, dataset: usize) -> Option<&Path> {
        self.attached.catalogs.get(dataset)?.as_deref()
    }

    /// The agent's answer for each dataset.
    pub fn answers(&self) -> &[DatasetAnswer] {
        &self.attached.datasets
    }

    /// The origin of a dataset, by its number among those of the job. Samples come from the agent,
    /// and from `direct` where it is absent, silent or unable.
    pub fn origin(&self, dataset: u32, direct: Arc<dyn OriginTier>) -> AgentOrigin {
        AgentOrigin::new(Arc::clone(&self.link), dataset, direct)
    }

    /// Announces the orders of the job, in place of earlier ones.
    pub fn announce(&self, orders: Arc<dyn JobOrders>) {
        self.link.set_orders(orders);
    }

    /// Reports to the agent from now on, about once a second, how long the trainer has waited so
    /// far.
    pub fn watch(&self, stalled: StallTime) {
        self.link.lock().stalled = Some(stalled);
    }

    /// Has the agent fill its memory with a dataset of the job, or a part of it, if the request
    /// has it begin. Returns how much of it is there. Blocks until the agent has answered.
    ///
    /// # Errors
    /// If the agent has ended, or is of a version that cannot do it.
    pub fn warm(&self, request: WarmRequest) -> Result<WarmAnswer, StoreError> {
        let connection = self.link.lock().connection().ok_or_else(StoreError::gone)?;
        let malformed = |error: serde_json::Error| StoreError::malformed(error.to_string());
        let request = serde_json::to_vec(&request).map_err(malformed)?;
        let answer = connection.call(WARM, &request, &|| false)?;
        serde_json::from_slice(&answer).map_err(malformed)
    }

    /// Has the agent read the shards of a dataset of the job in blocks of so many bytes while they
    /// are absent. Blocks until the agent has answered. An agent of an older version reads sample
    /// by sample.
    pub fn read_in_blocks(&self, dataset: u32, bytes: u64) {
        let Some(connection) = self.link.lock().connection() else { return };
        if let Err(error) = announcer::read_in_blocks(&connection, &|| false, dataset, bytes) {
            tracing::debug!(%error, "no blocks");
        }
    }

    /// The agent's reads from storage for this job. Calls the agent, which takes a tenth of a
    /// millisecond, and two seconds if it is silent.
    pub fn reads(&self) -> JobReads {
        let (connection, stalled) = {
            let state = self.link.lock();
            (state.connection().filter(|_| !state.is_silent()), state.stalled.clone())
        };
        if let Some(connection) = connection {
            let stalled = stalled.map_or(0.0, |stalled| stalled().as_secs_f64());
            announcer::tell(&self.link, &connection, stalled);
        }
        self.link.reads()
    }

    /// Samples by the way they came.
    pub fn counts(&self) -> AgentCounts {
        self.link.counts()
    }
}

impl Drop for AgentClient {
    fn drop(&mut self) {
        self.link.close();
        self.link.give_up(true);
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
