//! `foreread.Loader`: a run in Python.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use foreread::SampleId;
use foreread::ranks::Token;
use foreread::ranks::{Meeting, Meetings, RendezvousProgress};
use foreread::share::ServerSettings;
use foreread::{Builder, Catalog, Config, Error, Jump, LoadError, LoadErrorKind, Loader, RankOf, State};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::PyBatch;
use crate::catalog::PyCatalog;
use crate::errors::{self, ExceptionClass};
use crate::interrupt::{self, POLL_INTERVAL};
use crate::lend::PyBatchLender;
use crate::monitor::Monitor;
use crate::process_local::ProcessLocal;
use crate::run::{Closable, INTERRUPT_TIMEOUT, RunHandle, SHUTDOWN_TIMEOUT};
use crate::settings::{self, PythonSettings};
use crate::{json, logs, process_local, values};

/// Numbers the rendezvous of this process, so that the n-th loaders of all ranks meet.
static MEETINGS: Meetings = Meetings::new();

// The settings below are written from their table, as is their signature: `FOREREAD_WRITE=1 cargo
// test -p foreread-settings --test document`.
/// Batches of a dataset's samples, read ahead in the order that a seed defines.
///
/// Iterating yields the batches of all epochs. An argument that is missing or None comes from
/// FOREREAD_* in the environment, then from foreread.toml, then from the defaults.
/// Sizes are bytes, or texts such as '8GiB'.
///
/// Args:
///     target: the URL or path of a dataset, catalog or shard, a Catalog, or a list of shards.
///     batch_size: Samples per batch, on each rank. Default: 64.
///     epochs: Passes over the dataset. Default: unlimited.
///     seed: The seed of the order. Default: 0.
///     order_group: Read in this group's order, whatever the seed. Jobs of one group read in one
///         order, so an agent reads each sample once for all of them.
///     sampler: How the order is drawn; torch is the order of PyTorch's DistributedSampler.
///         'shuffle' (default), 'torch', 'feistel' or 'sequential'.
///     drop_last: Drop samples that do not divide evenly among ranks and batches, instead of
///         padding.
///     deal: How ranks share an epoch: torch (strided), blocks, or locality (each sample goes to a
///         rank that caches it). Locality changes each rank's samples, so it is never automatic.
///         'torch' (default), 'blocks' or 'locality'.
///     validate: A second dataset, read in order after every epoch.
///     memory: The memory tier of each rank. auto: the ranks of a node share half of the free
///         memory; none if the kernel already caches the data. Default: auto.
///     disk: A directory of the disk tier and its size, for all ranks of a node; may be repeated.
///         DIR=SIZE,shared: one cache for all users, where everyone with write access is trusted.
///         Also a list of these, or a dict of directories and sizes.
///     agent: The agent of the node, whose cache all jobs share; it replaces this run's memory and
///         disks. auto: the user's own, if one runs, for data that the kernel does not cache. PATH:
///         its socket. Default: auto.
///     memory_alone: Memory for samples while the agent, or the rank that hosts the memory of this
///         node, is gone. Default: 0.
///     look_ahead: The most bytes that are prefetched on each rank. auto: 256 MiB. Less is used if
///         the trainer needs less. Default: auto.
///     format: How objects store samples; tar is WebDataset. auto: detected from names and first
///         bytes. 'auto' (default), 'files', 'tar', 'tfrecord', 'zip', 'lmdb', 'hdf5', 'parquet',
///         'arrow', 'mds', 'litdata', 'npy', 'tokens' or 'recordio'.
///     origin_limit: The most bytes per second from storage.
///     origin_parallelism: The most reads from storage at once. auto: found by measuring while it
///         reads. Default: auto.
///     patience: How long failed reads of storage are repeated, and how long a silent file server
///         is waited for. auto: 120 s, and 1200 s on network file systems. In seconds. Default:
///         auto.
///     recall: Restore files that the storage has moved to an archive, in the background.
///     calibration: The file that `foreread calibrate` wrote. auto: foreread-calibration.toml in
///         the working directory, if there is one. Speeds of other datasets and directories are
///         ignored. Default: auto.
///     on_error: The reaction to a sample that cannot be read. 'fail' (default), 'skip' or
///         'substitute'.
///     rank: This process among the ranks; the launcher's, or 0, if unset.
///     world_size: The number of ranks; the launcher's, or 1, if unset.
///     peers: Whether ranks that find each other share their caches. 'auto' (default) or 'off'.
///     resume: a state from state().
///     progress: whether to show progress, as a bar (tqdm) or lines.
#[pyclass(name = "Loader", frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct PyLoader {
    run: ProcessLocal<Arc<RunHandle>>,
    facts: RunFacts,
    watch: Monitor,
    /// The error that has ended the run. Each further request raises it again, because an end would
    /// look like that of a whole run.
    failed: Mutex<Option<LoadError>>,
}

/// Properties that stay constant during a run.
#[derive(Debug)]
struct RunFacts {
    catalog: ProcessLocal<Catalog>,
    url: String,
    samples: u64,
    fingerprint: String,
    classes: Vec<String>,
    rank: u32,
    world_size: u32,
}

impl PyLoader {
    fn run(&self) -> PyResult<&Arc<RunHandle>> {
        self.run.get("Loader")
    }

    /// Applies `work` to the run.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&Loader) -> T + Send) -> PyResult<T> {
        self.run()?.with(py, work).ok_or_else(closed)
    }

    /// Waits at most `timeout` for the next batch: `None` after the timeout, `Some(None)` after the
    /// last batch.
    fn take(&self, py: Python<'_>, timeout: Duration) -> PyResult<Option<Option<PyBatch>>> {
        if let Some(error) = self.failed().as_ref() {
            return Err(errors::run_failed(error));
        }
        let next = self.with(py, |run| {
            let batch = |batch| {
                self.watch.took(&batch);
                let catalog = run.catalog(&batch);
                PyBatch::new(batch, catalog)
            };
            run.next_timeout(timeout).map(|next| next.map(batch))
        })?;
        match next {
            Ok(next) => Ok(Some(next)),
            Err(error) if error.kind() == LoadErrorKind::Timeout => Ok(None),
            Err(error) => {
                let raised = errors::run_failed(&error);
                *self.failed() = Some(error);
                Err(raised)
            }
        }
    }

    fn failed(&self) -> MutexGuard<'_, Option<LoadError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> PyErr {
    ExceptionClass::Closed.with("the loader is closed; create a new one")
}

/// Adds rank 0's random token through torch's store, if the rendezvous needs a token and the
/// process has such a store.
fn with_token(py: Python<'_>, meeting: Meeting, config: &Config) -> PyResult<Meeting> {
    if !meeting.needs_token() {
        return Ok(meeting);
    }
    let own = Token::random()
        .map_err(|error| ExceptionClass::Error.with(format!("cannot create a random token: {error}")))?;
    let own = String::from_utf8_lossy(own.expose());
    let arguments = (config.rank.rank, config.rank.ranks, own);
    let given: Option<String> =
        py.import("foreread._token")?.call_method1("of_torch", arguments)?.extract()?;
    let token = given.map(Token::new).transpose();
    let token = token.map_err(|error| ExceptionClass::Meeting.with(format!("torch's store: {error}")))?;
    Ok(meeting.token(token))
}

/// Logs the ranks that a rank waits for.
fn log_waiting(waiting: &RendezvousProgress) {
    match waiting.is_overdue {
        true => tracing::warn!(target: "foreread", "{waiting}"),
        false => tracing::debug!(target: "foreread", "{waiting}"),
    }
}

/// A builder for `target` with all settings.
pub(crate) fn builder(target: &Bound<'_, PyAny>, settings: PythonSettings) -> PyResult<Builder> {
    let mut builder = match target.cast::<PyCatalog>() {
        Ok(catalog) => {
            let catalog = catalog.get().catalog();
            Loader::builder_with(catalog.base_url(), settings.config.clone()).catalog(catalog.clone())
        }
        Err(_) => {
            let names = settings::targets(target)?;
            let (first, more) =
                names.split_first().map_or(("", &[][..]), |(first, more)| (first.as_str(), more));
            let builder = Loader::builder_with(first, settings.config.clone());
            more.iter().fold(builder, |builder, shard| builder.shard(shard))
        }
    };
    if settings.peers {
        let environment = |name: &str| std::env::var(name).ok();
        let meeting = Meeting::of(&settings.config, &environment);
        match meeting.map_err(errors::raised)? {
            Some(meeting) => {
                let meeting = with_token(target.py(), meeting, &settings.config)?;
                let meeting = MEETINGS.numbered(meeting).progress(log_waiting);
                builder = builder.peers(meeting);
            }
            None if settings.config.rank.ranks > 1 => {
                static ADVISED: Once = Once::new();
                ADVISED.call_once(|| tracing::warn!(target: "foreread", "{}", Meeting::ADVICE));
            }
            None => {}
        }
    }
    if settings.lends {
        builder = builder.lend_batches();
    }
    if let Some(state) = settings.resume {
        builder = builder.resume(state);
    }
    Ok(builder)
}

#[pymethods]
impl PyLoader {
    #[new]
    #[pyo3(
        signature = (target, **settings),
        text_signature = "(target, *, batch_size=None, epochs=None, seed=None, order_group=None, \
                          sampler=None, drop_last=None, deal=None, validate=None, memory=None, \
                          disk=None, agent=None, memory_alone=None, look_ahead=None, format=None, \
                          origin_limit=None, origin_parallelism=None, patience=None, recall=None, \
                          calibration=None, on_error=None, rank=None, world_size=None, peers=None, \
                          resume=None, progress=False)"
    )]
    fn new(
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        process_local::count_forks();
        logs::set_up(py)?;
        let settings = PythonSettings::of("Loader", settings)?;
        let progress = settings.progress;
        let RankOf { rank, ranks: world_size } = settings.config.rank;
        let builder = builder(target, settings)?;
        let started = interrupt::run_fallible(py, move |interrupted| {
            let ready = builder.prepare()?;
            // An interrupted caller would never read from the run.
            Ok::<_, Error>((!interrupted.is_set()).then(|| ready.start()))
        });
        let Some(run) = started? else {
            return Err(ExceptionClass::Error.with("interrupted"));
        };
        let catalog = &run.catalogs()[0];
        let facts = RunFacts {
            catalog: ProcessLocal::new(catalog.clone()),
            url: catalog.base_url().to_owned(),
            samples: catalog.len(),
            fingerprint: catalog.fingerprint().to_string(),
            classes: catalog.labels().iter().map(|label| label.to_string()).collect(),
            rank,
            world_size,
        };
        let progress = progress.then(|| {
            py.import("foreread._progress")?
                .call_method1("Progress", (facts.samples, world_size))
                .map(Bound::unbind)
        });
        let watch = Monitor::new(progress.transpose()?);
        Ok(Self { run: RunHandle::new(run), facts, watch, failed: Mutex::new(None) })
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// The next batch, or None at the end of the run.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        loop {
            // These calls may fail, so they come before a batch is taken. A batch that arrives
            // together with a signal stays for the next call.
            logs::drain(py)?;
            self.watch(py)?;
            py.check_signals()?;
            match self.take(py, Duration::ZERO)? {
                Some(None) => {
                    self.watch.end(py)?;
                    return Ok(None);
                }
                Some(next) => return Ok(next),
                None => {
                    self.with(py, |run| run.wait_timeout(POLL_INTERVAL))?
                        .map_err(|error| errors::run_failed(&error))?;
                    logs::update_level(py)?;
                }
            }
        }
    }

    /// The next batch if it is ready. None if it is not, or at the end of the run.
    fn try_next(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        logs::drain(py)?;
        self.watch(py)?;
        Ok(self.take(py, Duration::ZERO)?.flatten())
    }

    /// Marks the last batch as done in the progress bar. Requesting another batch does this
    /// automatically.
    fn watch(&self, py: Python<'_>) -> PyResult<()> {
        self.watch.before(py, None, || self.run().ok()?.report(py))
    }

    /// A lender of batches to worker processes.
    fn lender(&self, py: Python<'_>) -> PyResult<PyBatchLender> {
        let lender = self.with(py, |run| run.lend_batches(ServerSettings::default()))?;
        lender.map(PyBatchLender::new).map_err(errors::raised)
    }

    /// Continues at a state from state() of this or a similar run. Batches read ahead are dropped,
    /// caches stay. Cooperating ranks must all jump at the same step.
    fn jump(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        let to = State::from_json(state).map_err(errors::raised)?;
        let jumped = self.run()?.jump(py, &Jump::State(to)).ok_or_else(closed)?;
        logs::drain(py)?;
        jumped.map_err(errors::raised)?;
        *self.failed() = None;
        Ok(())
    }

    /// The run's position as text, for `resume=`, also with another world size or batch size.
    ///
    /// Batches that were taken count as consumed, so call it after a step is complete. The state of
    /// rank 0 of cooperating ranks is the lowest step that all have completed.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |run| run.state().to_json())
    }

    /// The report so far, as the command's JSON report. Also available after close().
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = self.run()?.report(py);
        logs::drain(py)?;
        let report = report.ok_or_else(|| ExceptionClass::Closed.with("the loader is closing"))?;
        json::python(py, &report)
    }

    /// A summary of the run: foreread.Stats. Rates and shares cover the time since the last call.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = self.run()?.report(py).ok_or_else(closed)?;
        logs::drain(py)?;
        self.watch.stats(py, report)
    }

    /// The run so far as a picture: bytes per second by source, and stalls, over time; also
    /// available after close(). With `path`, it is written to a file as well.
    #[pyo3(signature = (path = None))]
    fn plot<'py>(&self, py: Python<'py>, path: Option<PathBuf>) -> PyResult<Bound<'py, PyAny>> {
        let (report, history) = self.run()?.course(py).ok_or_else(closed)?;
        let svg = report.plot(&self.facts.url, &history);
        let svg = svg.map_err(|error| ExceptionClass::Error.with(error.to_string()))?;
        let picture = py.import("foreread._outlook")?.call_method1("Picture", (svg,))?;
        if let Some(path) = path {
            picture.call_method1("save", (path,))?;
        }
        Ok(picture)
    }

    /// Notifies rank 0 that this rank has completed the step of its last batch. Cheap.
    fn step_done(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Loader::step_done)
    }

    /// Marks this rank as finished and serves the others until they finish, for at most `seconds`.
    /// Rank 0 returns the combined report. Returns None on other ranks and for ranks that do not
    /// cooperate.
    #[pyo3(signature = (seconds = 600.0))]
    fn leave<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let timeout = duration("seconds", seconds)?;
        let run = Arc::clone(self.run()?);
        let all = interrupt::run_interruptible(py, INTERRUPT_TIMEOUT, move |interrupted| {
            run.share(|run| run.leave_unless(timeout, move || interrupted.is_set()))
        })?;
        let all = all.ok_or_else(closed)?.map_err(errors::raised)?;
        all.map(|all| json::python(py, &all)).transpose()
    }

    /// Ends the run: serves unfinished ranks for at most `seconds` and waits for the disk tier's
    /// writes for at most five seconds. Closing twice is not an error.
    #[pyo3(signature = (seconds = None))]
    fn close(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let timeout = seconds.map_or(Ok(SHUTDOWN_TIMEOUT), |seconds| duration("seconds", seconds))?;
        let run = Arc::clone(self.run()?);
        interrupt::run_interruptible(py, INTERRUPT_TIMEOUT, move |interrupted| {
            run.close(timeout, interrupted)
        })?;
        self.watch.end(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Closes the loader, with a short timeout if an exception ended the block.
    #[pyo3(signature = (kind, value, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (value, traceback);
        self.close(py, (!kind.is_none()).then_some(INTERRUPT_TIMEOUT.as_secs_f64()))
    }

    /// The number of samples in the dataset.
    #[getter]
    fn samples(&self) -> u64 {
        self.facts.samples
    }

    /// The catalog's fingerprint, independent of the data's location.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.facts.fingerprint
    }

    /// A sample's path below the dataset's URL.
    fn path(&self, id: u64) -> PyResult<String> {
        let catalog = self.facts.catalog.peek().with_gone();
        values::path_of(&catalog, known(&catalog, id)?)
    }

    /// A sample's label: the index of its class, or the value of its format's column of labels.
    /// None if it has none.
    fn label<'py>(&self, py: Python<'py>, id: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let catalog = self.facts.catalog.peek().with_gone();
        values::label(py, &catalog, known(&catalog, id)?)
    }

    /// Whether samples have labels.
    #[getter]
    fn has_labels(&self) -> bool {
        values::has_labels(self.facts.catalog.peek())
    }

    /// The names of the classes, by index.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.facts.classes.clone()
    }

    /// Deprecated: `classes`.
    #[getter]
    fn labels(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        errors::renamed(py, c"Loader.labels is deprecated: use Loader.classes")?;
        Ok(self.classes())
    }

    /// The catalog of the samples. Where it is a part of another, batches have the numbers of the
    /// whole one.
    #[getter]
    fn catalog(&self) -> PyCatalog {
        PyCatalog::from(self.facts.catalog.peek().clone())
    }

    /// The plan of where samples are cached: a dict of levels and of the bytes read from storage,
    /// over all cooperating ranks.
    #[getter]
    fn plan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let plan = self.with(py, |run| {
            let plan = run.local_plan();
            serde_json::json!({
                "levels": plan.levels(),
                "origin_bytes": plan.origin_bytes(),
                "floor_origin_bytes": plan.floor(),
                "together": run.is_together(),
            })
        })?;
        json::python(py, &plan)
    }

    /// The rank of this process.
    #[getter]
    fn rank(&self) -> u32 {
        self.facts.rank
    }

    /// The number of ranks.
    #[getter]
    fn world_size(&self) -> u32 {
        self.facts.world_size
    }

    /// Raises an error with the remedy.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a foreread.Loader has an engine and threads of its process and cannot be pickled or copied: \
             create it where it is used; state() is its position",
        ))
    }

    /// Whether the loader is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.run()?.with(py, |_| ()).is_none())
    }

    fn __repr__(&self) -> String {
        let RunFacts { samples, rank, world_size, .. } = &self.facts;
        format!("<foreread.Loader: {samples} samples, rank {rank} of {world_size}>")
    }
}

fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{name} must be a number of seconds, at least 0")))
}

/// Checks that the catalog has a sample `id`.
pub(crate) fn known(catalog: &Catalog, id: u64) -> PyResult<SampleId> {
    let samples = catalog.len();
    match id < samples {
        true => Ok(SampleId(id)),
        false => Err(PyIndexError::new_err(format!("there is no sample {id}: the dataset has {samples}"))),
    }
}
