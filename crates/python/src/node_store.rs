//! The cache that the ranks of a node share for loaders that are not foreread's own.
//!
//! The first of them hosts an agent of their job, and all of them are its clients. No rank waits
//! for another one: a rank without an agent reads for itself.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use foreread::{AgentChoice, Config, Memory, free_memory};
use foreread_agent::{AgentSettings, JobAgent, NodeJob};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::interrupt::{self, Interrupted};
use crate::process_local::{self, generation};
use crate::run::{self, Closable};
use crate::settings::PythonSettings;
use crate::{errors, logs};

/// The agent of this process's job, until the interpreter exits.
#[derive(Debug)]
struct NodeStore(Mutex<Option<JobAgent>>);

impl Closable for NodeStore {
    fn close(&self, _: Duration, _: Interrupted) {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(taken);
    }
}

/// That of this process, with its generation. All loaders of a process share it.
static STORE: Mutex<Option<(u64, PathBuf, Arc<NodeStore>)>> = Mutex::new(None);

/// The socket of the cache that this process shares with the other ranks of its node, with the sum
/// of their memory. The first call starts it. None for a single rank, where an agent of the user
/// serves, without memory and disk, or with automatic memory unless `automatic`.
#[pyfunction]
#[pyo3(signature = (automatic, **settings))]
pub(crate) fn node_store(
    py: Python<'_>,
    automatic: bool,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Option<PathBuf>> {
    process_local::count_forks();
    logs::set_up(py)?;
    let PythonSettings { config, .. } = PythonSettings::alone("wrap", settings)?;
    let Some((socket, memory)) = shared(&config, automatic) else { return Ok(None) };
    let started = interrupt::run_interruptible(py, Duration::ZERO, move |_| start(socket, memory, config))?;
    logs::drain(py)?;
    started.map(Some).map_err(|error| errors::ExceptionClass::Error.with(error.to_string()))
}

/// The socket and the memory of the shared cache, if there is to be one.
fn shared(config: &Config, automatic: bool) -> Option<(PathBuf, u64)> {
    let job = NodeJob::launched().filter(|job| job.ranks > 1)?;
    if config.agent != AgentChoice::Auto || config.agent.socket().is_some() {
        return None;
    }
    let memory = match config.memory {
        Memory::Bytes(bytes) => bytes.saturating_mul(job.ranks.into()),
        Memory::Auto if automatic => free_memory() / 2,
        Memory::Auto if config.disk.is_empty() => return None,
        Memory::Auto => 0,
    };
    (memory > 0 || !config.disk.is_empty()).then(|| (job.socket(), memory))
}

fn start(socket: PathBuf, memory: u64, config: Config) -> Result<PathBuf, foreread_agent::AgentError> {
    let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*store {
        Some((made, known, _)) if *made == generation() => return Ok(known.clone()),
        // A forked child leaves that of its parent alone.
        Some(_) => std::mem::forget(store.take()),
        None => {}
    }
    let settings =
        AgentSettings { socket: socket.clone(), memory, config, policy: PathBuf::new(), http: None, control: None };
    let node = Arc::new(NodeStore(Mutex::new(Some(JobAgent::start(settings)?))));
    run::register(Arc::downgrade(&node) as Weak<dyn Closable>);
    *store = Some((generation(), socket.clone(), node));
    Ok(socket)
}
