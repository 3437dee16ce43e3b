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

use crate::catalog::PyCatalog;
use crate::errors::ExceptionClass;
use crate::interrupt::{self, Interrupted};
use crate::logs;
use crate::process_local::{self, generation};
use crate::run::{self, Closable};
use crate::settings::PythonSettings;
use crate::source::PySource;

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

/// This rank and the number of ranks, if a token is missing.
type MissingToken = Option<(u32, u32)>;

/// The cache that all loaders of a process use.
struct StartedStore {
    generation: u64,
    socket: PathBuf,
    memory: u64,
    node: Arc<NodeStore>,
}

static STORE: Mutex<Option<StartedStore>> = Mutex::new(None);

/// The cache that the ranks of this process's node share by these settings.
#[pyclass(name = "NodeStore", frozen, module = "foreread._native")]
#[derive(Debug)]
pub struct PyNodeStore {
    config: Config,
    job: NodeJob,
    memory: u64,
}

#[pymethods]
impl PyNodeStore {
    /// That of a rank with these settings. None unless a launcher has started several ranks, here
    /// or on several nodes, or `spawned` has their number and a name. None with an agent of the
    /// user, and without memory and disks.
    #[staticmethod]
    #[pyo3(signature = (spawned, **settings))]
    fn of(spawned: Option<(u32, String)>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Option<Self>> {
        let PythonSettings { config, .. } = PythonSettings::alone("wrap", settings)?;
        let launched = NodeJob::launched().filter(|job| job.ranks > 1 || JobNodes::launched().is_some());
        let job = launched.or_else(|| spawned.map(|(ranks, group)| NodeJob::spawned(ranks, &group)));
        let Some(job) = job.filter(|_| config.agent == AgentChoice::Auto && config.agent.socket().is_none())
        else {
            return Ok(None);
        };
        let free = free_memory();
        let memory = match config.memory {
            // Within the limit of the host's cgroup.
            Memory::Bytes(bytes) => bytes.saturating_mul(job.ranks.into()).min(free.unwrap_or(u64::MAX)),
            Memory::Auto => free.unwrap_or_default() / 2,
        };
        Ok((memory > 0 || !config.disk.is_empty()).then_some(Self { config, job, memory }))
    }

    /// Starts it, with the sum of the ranks' memory, and the meeting with other nodes. All loaders
    /// of a process have one. If a token is missing, returns this rank and the number of ranks: the
    /// meeting then waits for [`node_token`].
    fn start(&self, py: Python<'_>) -> PyResult<MissingToken> {
        process_local::count_forks();
        logs::set_up(py)?;
        let (socket, memory, config) = (self.job.socket(), self.memory, self.config.clone());
        let started =
            interrupt::run_interruptible(py, Duration::ZERO, move |_| start(socket, memory, config))?;
        logs::drain(py)?;
        started.map_err(|error| ExceptionClass::Error.with(error.to_string()))
    }

    /// A source of the catalog, with this cache, by the settings that do not concern caches. The
    /// cache was started before.
    #[pyo3(signature = (catalog, **settings))]
    fn source(
        &self,
        py: Python<'_>,
        catalog: &Bound<'_, PyCatalog>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PySource> {
        let listed = catalog.get().catalog();
        if !listed.keeps_identity() {
            tracing::warn!(
                target: "foreread",
                "{}: the files have no modification times of their own, so nothing proves that the ranks of \
                 this node mean the same files: each rank reads them for itself. Give the files their own \
                 times, or make a catalog for all ranks (foreread index) and use foreread.torch.Dataset",
                listed.base_url()
            );
        }
        // Without the GIL: another thread may start it, and holds the lock meanwhile.
        let socket = py.detach(|| {
            let known = STORE.lock().unwrap_or_else(PoisonError::into_inner);
            let started = known.as_ref().filter(|store| store.generation == generation());
            started.map_or_else(|| self.job.socket(), |store| store.socket.clone())
        });
        let mut settings = PythonSettings::alone("wrap", settings)?;
        settings.config.agent = AgentChoice::Job { socket, ranks: self.job.ranks };
        PySource::open(py, catalog.as_any(), settings)
    }
}

/// The token of the job's ranks, by which its nodes meet. Without one, they do not, and a warning
/// has the remedy.
#[pyfunction]
#[pyo3(signature = (token))]
pub(crate) fn node_token(token: Option<&str>) -> PyResult<()> {
    let token = token.map(Token::new).transpose();
    let token = token.map_err(|error| ExceptionClass::Meeting.with(format!("torch's store: {error}")))?;
    let store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(started) = &*store
        && started.generation == generation()
        && let Some(nodes) = JobNodes::launched()
    {
        started.node.meet(nodes.with_token(token));
    }
    Ok(())
}

fn start(socket: PathBuf, memory: u64, config: Config) -> Result<MissingToken, foreread_agent::AgentError> {
    let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*store {
        Some(started) if started.generation == generation() => {
            if memory > started.memory {
                tracing::warn!(
                    target: "foreread",
                    "the ranks of this node share the cache of their first loader, with {} bytes of memory: \
                     this loader's memory= would need {memory}; set it for the first loader",
                    started.memory
                );
            }
            return Ok(None);
        }
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
    *store = Some(StartedStore { generation: generation(), socket, memory, node });
    Ok(needs_token)
}
