//! The agent: one cache for all jobs of a node.
//!
//! Jobs of one user connect to its socket, in a directory that only this user can search. They name
//! their datasets and announce their orders. The agent reads each sample once for all of them, and
//! keeps the samples that any job needs soonest ([`NodeStore`](foreread_store::NodeStore)). It
//! outlives the jobs.
//!
//! # Decisions and price
//!
//! * *One agent per directory*, held by a lock that ends with the process. So a socket that a
//!   killed agent left is replaced.
//! * *A job proves its dataset*: the identity of its bytes, its location, its settings and
//!   the credentials in the environment. Jobs that differ in one of them share nothing.
//! * *The agent reads with its own environment.* A job with other credentials is refused, and reads
//!   by itself.
//! * *Memory is given once.* The samples that stay take at most that. The look-aheads of the jobs
//!   come on top, as they do without an agent.
//! * *It shows itself over HTTP*, read-only, on a socket of its user ([`HttpFiles`]).
#![cfg(target_os = "linux")]

mod control;
mod error;
mod http;
mod job_agent;
mod job_nodes;
mod memory;
mod reload;
mod socket;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use crate::error::AgentError;
use foreread::{Config, Registry};
use foreread_dataset::LockFile;
use foreread_host::dataset_host::DatasetHost;
pub use foreread_host::file_limit::FileLimit;
use foreread_host::host_state::HostState;
use foreread_host::policy::arguments;
pub use foreread_host::policy::{PolicyError, cluster_policy_keys, policy_keys};
use foreread_host::provider::{HostProvider, provider, server_settings, shared};
pub use foreread_host::status::{
    AgentStatus, ControlLinkStatus, DatasetStatus, DiskStatus, JobStatus, OriginStatus, PolicyValue,
};
use foreread_host::{HostSettings, JobRuntime, io_threads};
use foreread_store::Server;
use foreread_tier::{ArenaBuffers, OpenContext};
use tokio::runtime::Handle;

pub use crate::control::{
    CONTROL_CHANGE, CONTROL_STATUS, CONTROL_STOP, ClusterToken, Control, ControlAnswer, ControlChange,
    ControlRequest, ControlSettings, ControlStatus, ControlTarget, NodeLease, NodeStatus, ShareChoice,
    wrong_node_name,
};
use crate::control::{ControlLink, JobControl, OwnAgent};
pub use crate::http::HttpFiles;
use crate::http::{HttpListeners, HttpServer};
pub use crate::job_agent::{JobAgent, NodeJob};
pub use crate::job_nodes::JobNodes;
use crate::job_nodes::MetNodes;
use crate::memory::{MemoryBound, MemoryUse};
use crate::reload::{LOOK_INTERVAL, reload_regularly};
pub use crate::socket::{directory_holder, private_directory};

/// The interval between comparisons of the memory in use with the given memory.
const MEMORY_POLL: Duration = Duration::from_millis(100);

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The path of its socket. Its directory is created if it does not exist.
    pub socket: PathBuf,
    /// The most bytes that samples take in memory.
    pub memory: u64,
    /// How storage is read: retries, timeouts, and limits that the policy can change.
    pub config: Config,
    /// The policy file. It need not exist.
    pub policy: PathBuf,
    /// The loopback address on which browsers and Prometheus reach it, with port 0 for a free one.
    /// `None`: only by a Unix socket next to its own.
    pub http: Option<SocketAddr>,
    /// The control process of the cluster, if it is in one.
    pub control: Option<ControlTarget>,
}

/// A running agent. Dropping it ends it: jobs then read by themselves.
#[derive(Debug)]
pub struct Agent {
    link: Option<ControlLink>,
    /// That of its job, if it is hosted here.
    job_control: Option<JobControl>,
    provider: Arc<HostProvider>,
    socket: PathBuf,
    /// Dropped in this order: no job is served when the runtime ends.
    server: Option<Server>,
    runtime: JobRuntime,
    http: HttpServer,
    _lock: LockFile,
}

impl Agent {
    /// Starts an agent.
    ///
    /// # Errors
    /// If another agent uses the directory, or other users can search it. Also if the system has no
    /// memory, descriptors or threads left.
    pub fn start(settings: AgentSettings) -> Result<Self, AgentError> {
        let origin = settings.config.origin_settings();
        let policy = arguments(Some(settings.memory), &origin);
        check_disks(&settings.config)?;
        let AgentSettings { socket, memory, config, policy: file, http, control } = settings;
        let own = OwnAgent { socket: socket.clone(), config: config.clone() };
        let lock = socket::prepare(&socket)?;
        let http = HttpListeners::bind(private_directory(&socket)?, http)?;
        FileLimit::current().raise(None);
        let (runtime, arena) = (JobRuntime::new(io_threads())?, ArenaBuffers::default());
        let (buffers, handle) = (shared(&(Arc::new(arena.clone()) as _))?, runtime.handle().clone());
        let place = OpenContext { buffers, runtime: handle, seed: config.seed };
        let own_settings = HostSettings { origin, disk: config.disk.clone() };
        let host = DatasetHost::new(own_settings, Registry::with_defaults(), true, place.clone());
        let provider = provider(memory, host, policy, Some(file), place)?;
        let state = Arc::clone(&provider.state);
        if let Some(disk) = state.disk() {
            disk.reserve().map_err(AgentError::Disk)?;
        }
        runtime.handle().spawn(keep_within(Arc::clone(&state), arena.clone()));
        runtime.handle().spawn(look_regularly(Arc::clone(&state)));
        runtime.handle().spawn(reload_regularly(Arc::clone(&state), HostState::reload));
        // Before jobs can attach.
        let link = control.map(|target| ControlLink::start(runtime.handle(), &provider, target, own));
        let link = link.transpose()?;
        let buffers = Arc::new(arena);
        let server = Server::start_at(&socket, Arc::clone(&provider) as _, buffers, server_settings())?;
        socket::restrict(&socket)?;
        tracing::info!(socket = %socket.display(), memory, "the agent serves");
        let http = http.serve(runtime.handle(), move || state.status());
        let (server, job_control) = (Some(server), None);
        Ok(Self { link, job_control, provider, socket, server, runtime, http, _lock: lock })
    }

    /// The loopback address of its page, if it has one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.address()
    }

    /// The time since the last job has left. Zero while a job is attached.
    pub fn idle_time(&self) -> Duration {
        self.provider.state.idle_time()
    }

    /// Shares its cache with the agents of the other nodes of its job.
    ///
    /// # Errors
    /// If samples cannot be served to them.
    pub(crate) fn join(&mut self, met: MetNodes, config: Config) -> Result<(), AgentError> {
        let MetNodes { meeting, identity, control } = met;
        // The earlier connection first: it says goodbye for this agent.
        drop(self.link.take());
        self.job_control = control;
        let own = OwnAgent { socket: self.socket.clone(), config };
        let link = ControlLink::of_job(self.runtime.handle(), &self.provider, own, meeting, identity)?;
        self.link = Some(link);
        Ok(())
    }

    /// Where its tasks run.
    pub(crate) fn runtime(&self) -> &Handle {
        self.runtime.handle()
    }

    /// The agents that share their caches with this one, itself included.
    pub(crate) fn shares_with(&self) -> u64 {
        self.provider.state.cluster.nodes()
    }

    /// Leaves the control process of its job if that can be used no longer. Returns whether it has
    /// left.
    pub(crate) fn leave(&mut self) -> bool {
        self.link.take_if(|link| link.has_ended()).is_some()
    }

    /// Whether it serves no longer: a client has had it stop, or its server has failed.
    pub fn is_stopped(&self) -> bool {
        self.provider.state.is_stopped() || self.server.as_ref().is_none_or(Server::has_ended)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A program that finds no agent may start one with the same disks.
        if let Some(disk) = self.provider.state.disk() {
            disk.close();
        }
        drop(self.server.take());
        drop(self.link.take());
        drop(self.job_control.take());
        // The next agent would replace it. A job that looks for one should find none.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Refuses directories that are given twice, before they cost each dataset its disk.
fn check_disks(config: &Config) -> Result<(), AgentError> {
    let mut seen = BTreeSet::new();
    for disk in &config.disk {
        let directory = std::fs::canonicalize(&disk.directory);
        let directory = directory.or_else(|_| std::path::absolute(&disk.directory)).unwrap_or_default();
        if !seen.insert(directory) {
            return Err(AgentError::DiskTwice { directory: disk.directory.clone() });
        }
    }
    Ok(())
}

/// Holds the memory of samples to the given size.
async fn keep_within(state: Arc<HostState>, arena: ArenaBuffers) {
    let mut bound = MemoryBound::default();
    let mut capacity = state.memory();
    loop {
        tokio::time::sleep(MEMORY_POLL).await;
        let given = state.memory();
        let now = MemoryUse {
            resident: arena.resident() as u64,
            idle: arena.idle() as u64,
            samples: arena.in_use() as u64,
        };
        let next = bound.capacity(given, now);
        // Each change looks at the residents.
        if next.abs_diff(capacity) > given / 256 {
            capacity = next;
            state.store.set_capacity(capacity);
        }
    }
}

/// Notes totals for rates, and which datasets are used: a job or a warming may have ended.
async fn look_regularly(state: Arc<HostState>) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        state.note_rates();
        state.note_disk_uses();
        state.release_unused();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn disk_that_is_given_twice_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        let check = |paths: &[&Path]| {
            let disk = |path: &&Path| format!("{}=10MB", path.display()).parse().unwrap();
            let mut config = Config::default();
            config.disk = paths.iter().map(disk).collect();
            check_disks(&config)
        };
        let here = directory.path();
        assert!(check(&[here, &other]).is_ok());
        for again in [here.to_owned(), here.join("."), other.join("..")] {
            std::fs::create_dir_all(&other).unwrap();
            let error = check(&[here, &again]).unwrap_err().to_string();
            assert_eq!(error, format!("--disk {} is given twice", again.display()));
        }
    }
}
