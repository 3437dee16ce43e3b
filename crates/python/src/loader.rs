//! `foreread.Loader`: a run, from Python.

use std::sync::Arc;
use std::time::Duration;

use foreread::SampleId;
use foreread::ranks::Token;
use foreread::ranks::{Meeting, Meetings};
use foreread::{Builder, Catalog, Config, Error, Jump, LoadErrorKind, Loader as Run, State};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::batch::Batch;
use crate::catalog::{Catalog as Listed, path_of};
use crate::engine::{Engine, FAREWELL, HASTE, Live};
use crate::errors::{self, Class};
use crate::here::Here;
use crate::settings::{self, Settings};
use crate::waiting::{self, NAP};
use crate::watch::Watch;
use crate::{allocator, here, json, logs};

/// The loaders that this process has made together with others, so that each rank's next one meets the others' next one.
static MEETINGS: Meetings = Meetings::new();

/// Batches of a dataset's samples, read ahead of time in an order that a seed says.
///
/// Iterating yields Batch after Batch over all epochs. What is not given, or None, comes from FOREREAD_* in the environment,
/// then from foreread.toml, then from defaults.
///
/// Args:
///     target: the URL or path of a dataset, of a catalog or of a shard; a Catalog; a list of shards.
///     batch_size: samples a batch, on this rank; 64.
///     epochs: how often the dataset is read; as often as one asks, if nobody says.
///     seed: what the order is drawn from; 0.
///     sampler: 'shuffle', 'torch' (DistributedSampler's order, bit for bit), 'feistel' or 'sequential'.
///     drop_last: drop what does not divide evenly, instead of padding.
///     deal: how ranks share an epoch: 'torch' (strided), 'blocks' or 'locality' (by who keeps what).
///     rank, world_size: this process among how many; the launcher's (torchrun, SLURM, MPI).
///     memory: the memory tier of this rank: bytes, '8GiB', or 'auto': the rank's share of half of the node's free memory.
///     disk: directories of this node's disk tier: 'DIR=SIZE', a list of such, or a dict of directories and sizes.
///     look_ahead: how far reads run ahead of the trainer, in bytes; 256 MiB.
///     origin_limit: the most bytes a second that are read from the origin.
///     origin_parallelism: the most reads from the origin at once.
///     calibration: the file that `foreread calibrate` wrote.
///     validate: a second dataset, read in order after every epoch.
///     format: how samples lie in objects: 'auto', 'files', 'tar', 'tfrecord' or 'zip'.
///     on_error: what a sample that cannot be read does: 'fail', 'skip' or 'substitute'.
///     resume: what state() gave.
///     together: 'auto': ranks that find each other share their caches; False: each reads for itself.
///     progress: whether a bar is shown (tqdm), or lines.
#[pyclass(frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct Loader {
    engine: Here<Arc<Engine>>,
    facts: Facts,
    watch: Watch,
}

/// What does not change while a run goes on.
#[derive(Debug)]
struct Facts {
    catalog: Here<Catalog>,
    samples: u64,
    fingerprint: String,
    labels: Vec<String>,
    rank: u32,
    world_size: u32,
}

impl Loader {
    fn engine(&self) -> PyResult<&Arc<Engine>> {
        self.engine.get("Loader")
    }

    /// What `work` makes of the run.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&Run) -> T + Send) -> PyResult<T> {
        self.engine()?.with(py, work).ok_or_else(closed)
    }

    /// Waits at most `timeout` for the next batch: `None` when the time is up, `Some(None)` when the run is over.
    fn take(&self, py: Python<'_>, timeout: Duration) -> PyResult<Option<Option<Batch>>> {
        let next = self.with(py, |run| {
            let batch = |batch| {
                self.watch.took(&batch);
                let catalog = run.catalog(&batch).clone();
                Batch::new(batch, catalog)
            };
            run.next_timeout(timeout).map(|next| next.map(batch))
        })?;
        match next {
            Ok(next) => Ok(Some(next)),
            Err(error) if error.kind() == LoadErrorKind::Timeout => Ok(None),
            Err(error) => Err(errors::ended(&error)),
        }
    }
}

fn closed() -> PyErr {
    Class::Closed.with("the loader is closed; make another")
}

/// The names that a user gives: one, or shards.
pub(crate) fn targets(target: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let several = target.cast::<PyList>().map(|list| list.as_any().clone());
    let several = several.or_else(|_| target.cast::<PyTuple>().map(|tuple| tuple.as_any().clone()));
    let names: Vec<String> = match several {
        Ok(list) => list.try_iter()?.map(|one| settings::path("target", &one?)).collect::<PyResult<_>>()?,
        Err(_) => vec![settings::path("target", target).map_err(|error| {
            match error.is_instance_of::<PyTypeError>(target.py()) {
                true => errors::wrong_type("target", "a URL, a path, a Catalog, or a list of shards", target),
                false => error,
            }
        })?],
    };
    match names.iter().any(|name| !name.is_empty()) {
        true => Ok(names),
        false => Err(Class::Config.with("target: name a dataset, by its URL or path")),
    }
}

/// The meeting with a token by torch's own store, where it needs one and the process has such a store. Rank 0's own counts.
fn with_token(py: Python<'_>, meeting: Meeting, config: &Config) -> PyResult<Meeting> {
    if !meeting.needs_token() {
        return Ok(meeting);
    }
    let own = Token::random().map_err(|error| Class::Error.with(format!("no random token: {error}")))?;
    let own = String::from_utf8_lossy(own.expose());
    let arguments = (config.rank, config.world_size, own);
    let given: Option<String> =
        py.import("foreread._token")?.call_method1("of_torch", arguments)?.extract()?;
    let token = given.map(Token::new).transpose();
    let token = token.map_err(|error| Class::Meeting.with(format!("torch's store: {error}")))?;
    Ok(meeting.token(token))
}

/// A builder for what `target` names, with everything that was asked for.
pub(crate) fn builder(target: &Bound<'_, PyAny>, settings: Settings) -> PyResult<Builder> {
    let mut builder = match target.cast::<Listed>() {
        Ok(catalog) => {
            let catalog = catalog.get().catalog();
            Run::builder_with(catalog.base_url(), settings.config.clone()).catalog(catalog.clone())
        }
        Err(_) => {
            let names = targets(target)?;
            let (first, more) =
                names.split_first().map_or(("", &[][..]), |(first, more)| (first.as_str(), more));
            let builder = Run::builder_with(first, settings.config.clone());
            more.iter().fold(builder, |builder, shard| builder.shard(shard))
        }
    };
    if settings.together {
        let environment = |name: &str| std::env::var(name).ok();
        let meeting = Meeting::of(&settings.config, &environment);
        match meeting.map_err(|error| errors::raised(&error))? {
            Some(meeting) => {
                let meeting = with_token(target.py(), meeting, &settings.config)?;
                let said = |waiting: &_| tracing::info!(target: "foreread", "{waiting}");
                builder = builder.together(MEETINGS.numbered(meeting).progress(said));
            }
            None if settings.config.world_size > 1 => {
                tracing::warn!(target: "foreread", "{}", Meeting::ADVICE);
            }
            None => {}
        }
    }
    if let Some(state) = settings.resume {
        builder = builder.resume(state);
    }
    Ok(builder)
}

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(
        signature = (target, **settings),
        text_signature = "(target, *, batch_size=None, epochs=None, seed=None, sampler=None, drop_last=None, deal=None, \
                          rank=None, world_size=None, memory=None, disk=None, look_ahead=None, origin_limit=None, \
                          origin_parallelism=None, calibration=None, validate=None, format=None, on_error=None, \
                          resume=None, together='auto', progress=False)"
    )]
    fn new(
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        allocator::set_up();
        here::watch();
        logs::set_up(py)?;
        let settings = Settings::of("Loader", settings)?;
        let progress = settings.progress;
        let (rank, world_size) = (settings.config.rank, settings.config.world_size);
        let builder = builder(target, settings)?;
        let started = waiting::apart(py, Duration::ZERO, move |interrupted| {
            let ready = builder.prepare()?;
            // Nobody is there any more to read what a run would read.
            Ok::<_, Error>((!interrupted.is_set()).then(|| ready.start()))
        })?;
        logs::drain(py)?;
        let Some(run) = started.map_err(|error| errors::raised(&error))? else {
            return Err(Class::Error.with("interrupted"));
        };
        let catalog = &run.catalogs()[0];
        let facts = Facts {
            catalog: Here::new(catalog.clone()),
            samples: catalog.len(),
            fingerprint: catalog.fingerprint().to_string(),
            labels: catalog.labels().iter().map(|label| label.to_string()).collect(),
            rank,
            world_size,
        };
        let progress = progress.then(|| {
            py.import("foreread._progress")?
                .call_method1("Progress", (facts.samples, world_size))
                .map(Bound::unbind)
        });
        let watch = Watch::new(progress.transpose()?);
        Ok(Self { engine: Engine::new(run), facts, watch })
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// The next batch, or None when the run is over.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        loop {
            // Before a batch is taken: what fails here must not lose one.
            logs::drain(py)?;
            self.watch(py)?;
            match self.take(py, NAP)? {
                Some(None) => {
                    self.watch.end(py)?;
                    return Ok(None);
                }
                Some(next) => return Ok(next),
                None => {
                    logs::ask_level(py)?;
                    py.check_signals()?;
                }
            }
        }
    }

    /// The next batch if it is there; None if it has to be waited for, or the run is over.
    fn try_next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        logs::drain(py)?;
        self.watch(py)?;
        Ok(self.take(py, Duration::ZERO)?.flatten())
    }

    /// Brings the bar up to date: the batch that was taken last is done. Asking for another does that by itself.
    fn watch(&self, py: Python<'_>) -> PyResult<()> {
        self.watch.before(py, None, || self.engine().ok()?.report(py))
    }

    /// Goes on where a state says, as text that state() gave or a run like this one did. What has been read ahead is
    /// dropped, what the caches hold stays. Ranks that work together all jump at the same step.
    fn jump(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        let to = State::from_json(state).map_err(|error| errors::raised(&error))?;
        let jumped = self.engine()?.jump(py, &Jump::State(to)).ok_or_else(closed)?;
        logs::drain(py)?;
        jumped.map_err(|error| errors::raised(&error))
    }

    /// Where the run stands, as text: give it to `resume=` later, also with another world size or batch size.
    ///
    /// What has been taken counts as consumed: ask after a step is complete. Where ranks work together, rank 0's is that of the
    /// lowest step that all have completed.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |run| run.state().to_json())
    }

    /// What has been delivered and read so far, as the command's JSON report says it; also after close().
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = self.engine()?.report(py);
        logs::drain(py)?;
        let report = report.ok_or_else(|| Class::Closed.with("the loader is being closed"))?;
        json::python(py, &report)
    }

    /// The run in a few figures: foreread.Stats. Rates and shares are those since the last call.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = self.engine()?.report(py).ok_or_else(closed)?;
        logs::drain(py)?;
        self.watch.stats(py, report)
    }

    /// Says to rank 0 that this rank has completed the step of the batch that it took last. Costs next to nothing.
    fn step_done(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Run::step_done)
    }

    /// Says that this rank is done, and goes on answering the others until they are too, or for `seconds`; on rank 0,
    /// returns all their reports as one. None where ranks do not work together, and on other ranks.
    #[pyo3(signature = (seconds = 600.0))]
    fn leave<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let at_most = duration("seconds", seconds)?;
        let engine = Arc::clone(self.engine()?);
        let all = waiting::apart(py, HASTE, move |interrupted| {
            engine.share(|run| run.leave_unless(at_most, HASTE, move || interrupted.is_set()))
        })?;
        let all = all.ok_or_else(closed)?.map_err(|error| errors::raised(&error))?;
        all.map(|all| json::python(py, &all)).transpose()
    }

    /// Ends the run: answers ranks that are not done for `seconds` at most, and waits until the disk tier has written
    /// what it was given, for five seconds at most. Closing twice is no error.
    #[pyo3(signature = (seconds = None))]
    fn close(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let at_most = seconds.map_or(Ok(FAREWELL), |seconds| duration("seconds", seconds))?;
        let engine = Arc::clone(self.engine()?);
        waiting::apart(py, HASTE, move |interrupted| engine.close(at_most, interrupted))?;
        logs::drain(py)?;
        self.watch.end(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Closes; in haste where an exception has ended the block.
    #[pyo3(signature = (kind, value, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (value, traceback);
        self.close(py, (!kind.is_none()).then_some(HASTE.as_secs_f64()))
    }

    /// How many samples the dataset has.
    #[getter]
    fn samples(&self) -> u64 {
        self.facts.samples
    }

    /// The catalog's fingerprint: the same wherever the data lie.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.facts.fingerprint
    }

    /// A sample's path below the dataset's URL.
    fn path(&self, id: u64) -> PyResult<String> {
        let catalog = self.facts.catalog.peek();
        path_of(catalog, known(catalog, id)?)
    }

    /// The number of a sample's class; None where it has none.
    fn label(&self, id: u64) -> PyResult<Option<u32>> {
        let catalog = self.facts.catalog.peek();
        Ok(catalog.label_index(known(catalog, id)?))
    }

    /// The names of the classes, by their numbers.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.facts.labels.clone()
    }

    /// Which samples there are.
    #[getter]
    fn catalog(&self) -> Listed {
        Listed::from(self.facts.catalog.peek().clone())
    }

    /// Where samples are kept, as planned: a dict of levels, and of the bytes that are read from the origin; of all ranks where
    /// they work together.
    #[getter]
    fn plan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let plan = self.with(py, |run| {
            let plan = run.plan();
            serde_json::json!({
                "levels": plan.levels(),
                "origin_bytes": plan.origin_bytes(),
                "floor_origin_bytes": plan.floor(),
                "together": run.is_together(),
            })
        })?;
        json::python(py, &plan)
    }

    /// This process among the ranks.
    #[getter]
    fn rank(&self) -> u32 {
        self.facts.rank
    }

    /// How many ranks there are.
    #[getter]
    fn world_size(&self) -> u32 {
        self.facts.world_size
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.engine()?.with(py, |_| ()).is_none())
    }

    fn __repr__(&self) -> String {
        let Facts { samples, rank, world_size, .. } = &self.facts;
        format!("<foreread.Loader: {samples} samples, rank {rank} of {world_size}>")
    }
}

fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{name} is a number of seconds, at least 0")))
}

/// A sample that a catalog has.
pub(crate) fn known(catalog: &Catalog, id: u64) -> PyResult<SampleId> {
    let samples = catalog.len();
    match id < samples {
        true => Ok(SampleId(id)),
        false => Err(PyIndexError::new_err(format!("there is no sample {id}: the dataset has {samples}"))),
    }
}
