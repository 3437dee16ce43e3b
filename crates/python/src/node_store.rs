//! The cache that the ranks of a node share for loaders that are not foreread's own.
//!
//! The first of them hosts an agent of their job, and all of them are its clients. The agents of
//! several nodes meet in the background. No rank waits for another one: a rank without an agent
//! reads for itself, and so does a node without the others.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use foreread::ranks::Token;
use foreread::{AgentChoice, Config, Memory, free_memory};
use foreread_agent::{AgentSettings, JobAgent, JobNodes, NodeJob};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::ExceptionClass;
use crate::interrupt::{self, Interrupted};
use crate::logs;
use crate::process_local::{self, generation};
use crate::run::{self, Closable};
use crate::settings::PythonSettings;

/// The agent of this process's job, until the interpreter exits.
#[derive(Debug)]
struct NodeStore(Mutex<Option<JobAgent>>);

impl NodeStore {
    fn meet(&self, nodes: JobNodes) {
        if let Some(agent) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            agent.meet(nodes);
        }
    }
}

impl Closable for NodeStore {
    fn close(&self, _: Duration, _: Interrupted) {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(taken);
    }
}

/// The socket, and this rank and the number of ranks if a token is missing.
type StartedStore = (PathBuf, Option<(u32, u32)>);

/// That of this process, with its generation. All loaders of a process share it.
static STORE: Mutex<Option<(u64, PathBuf, Arc<NodeStore>)>> = Mutex::new(None);

/// Whether the ranks of this process's node share a cache by these settings: a launcher has started
/// several of them, here or on several nodes, no agent is named or serves, and there is memory or a
/// disk.
#[pyfunction]
#[pyo3(signature = (**settings))]
pub(crate) fn node_shares(settings: Option<&Bound<'_, PyDict>>) -> PyResult<bool> {
    let PythonSettings { config, .. } = PythonSettings::alone("wrap", settings)?;
    Ok(shared(&config).is_some())
}

/// The socket of the cache that this process shares with the other ranks of its node, with the sum
/// of their memory. The first call starts it, and the meeting with other nodes. If that needs a
/// token, it also has this rank and the number of ranks, and waits for [`node_token`].
#[pyfunction]
#[pyo3(signature = (**settings))]
pub(crate) fn node_store(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<StartedStore> {
    process_local::count_forks();
    logs::set_up(py)?;
    let PythonSettings { config, .. } = PythonSettings::alone("wrap", settings)?;
    let Some((socket, memory)) = shared(&config) else {
        return Err(ExceptionClass::Config.with("the ranks of this node share no cache"));
    };
    let started = interrupt::run_interruptible(py, Duration::ZERO, move |_| start(socket, memory, config))?;
    logs::drain(py)?;
    started.map_err(|error| ExceptionClass::Error.with(error.to_string()))
}

/// The token of the job's ranks, by which its nodes meet. Without one, they do not, and a warning
/// has the remedy.
#[pyfunction]
#[pyo3(signature = (token))]
pub(crate) fn node_token(token: Option<&str>) -> PyResult<()> {
    let token = token.map(Token::new).transpose();
    let token = token.map_err(|error| ExceptionClass::Meeting.with(format!("torch's store: {error}")))?;
    let store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((made, _, node)) = &*store
        && *made == generation()
        && let Some(nodes) = JobNodes::launched()
    {
        node.meet(nodes.with_token(token));
    }
    Ok(())
}

/// The socket and the memory of the shared cache, if there is to be one.
fn shared(config: &Config) -> Option<(PathBuf, u64)> {
    let job = NodeJob::launched().filter(|job| job.ranks > 1 || JobNodes::launched().is_some())?;
    if config.agent != AgentChoice::Auto || config.agent.socket().is_some() {
        return None;
    }
    let memory = match config.memory {
        // Within the limit of the host's cgroup.
        Memory::Bytes(bytes) => bytes.saturating_mul(job.ranks.into()).min(free_memory().unwrap_or(u64::MAX)),
        Memory::Auto => free_memory().unwrap_or_default() / 2,
    };
    (memory > 0 || !config.disk.is_empty()).then(|| (job.socket(), memory))
}

fn start(socket: PathBuf, memory: u64, config: Config) -> Result<StartedStore, foreread_agent::AgentError> {
    let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*store {
        Some((made, known, _)) if *made == generation() => return Ok((known.clone(), None)),
        // A forked child leaves that of its parent alone.
        Some(_) => std::mem::forget(store.take()),
        None => {}
    }
    let settings = AgentSettings {
        socket: socket.clone(),
        memory,
        config,
        policy: PathBuf::new(),
        http: None,
        control: None,
    };
    let node = Arc::new(NodeStore(Mutex::new(Some(JobAgent::start(settings)?))));
    run::register(Arc::downgrade(&node) as Weak<dyn Closable>);
    let nodes = JobNodes::launched();
    let needs_token = nodes.as_ref().and_then(JobNodes::needs_token);
    if let Some(nodes) = nodes.filter(|_| needs_token.is_none()) {
        node.meet(nodes);
    }
    *store = Some((generation(), socket.clone(), node));
    Ok((socket, needs_token))
}
