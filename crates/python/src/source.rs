//! `foreread.Source`: samples by id, in Python.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use foreread::SampleId;
use foreread::report::Report;
use foreread::share::Server;
use foreread::{Catalog, Source};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::catalog::PyCatalog;
use crate::errors::{self, ExceptionClass};
use crate::interrupt::{self, Interrupted, POLL_INTERVAL};
use crate::loader::{builder, known};
use crate::monitor::Monitor;
use crate::process_local::ProcessLocal;
use crate::run::{self, Closable};
use crate::sample::PySample;
use crate::settings::PythonSettings;
use crate::share;
use crate::{json, logs, process_local, values};

/// A source, empty after closing.
#[derive(Debug)]
pub(crate) struct SourceSlot {
    samples: RwLock<Option<Source>>,
    /// The server for other processes, after `share()`.
    server: Mutex<Option<Server>>,
}

impl SourceSlot {
    pub(crate) fn samples(&self) -> Option<Source> {
        self.samples.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Closable for SourceSlot {
    fn close(&self, _: Duration, _: Interrupted) {
        let taken = self.samples.write().unwrap_or_else(PoisonError::into_inner).take();
        // Workers are notified of the end first.
        let server = self.server().take();
        drop(server);
        if let Some(samples) = taken
            && let Err(error) = samples.flush()
        {
            tracing::warn!(target: "foreread", %error, "the disk tier was not flushed");
        }
    }
}

/// Samples by id, in the caller's order, read ahead as far as that order is announced.
///
/// `target` and settings are those of Loader, except settings of an order.
#[pyclass(name = "Source", frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct PySource {
    slot: ProcessLocal<Arc<SourceSlot>>,
    catalog: ProcessLocal<Catalog>,
    classes: Vec<String>,
    watch: Monitor,
}

impl PySource {
    /// Opens the source of `target`.
    pub(crate) fn open(
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        settings: PythonSettings,
    ) -> PyResult<Self> {
        process_local::count_forks();
        logs::set_up(py)?;
        let builder = builder(target, settings)?;
        let samples = interrupt::run_fallible(py, move |_| builder.source())?;
        let catalog = samples.catalog().clone();
        let classes = catalog.labels().iter().map(|label| label.to_string()).collect();
        let slot = Arc::new(SourceSlot { samples: RwLock::new(Some(samples)), server: Mutex::new(None) });
        run::register(Arc::downgrade(&slot) as std::sync::Weak<dyn Closable>);
        Ok(Self {
            slot: ProcessLocal::new(slot),
            catalog: ProcessLocal::new(catalog),
            classes,
            watch: Monitor::new(None),
        })
    }

    pub(crate) fn open_samples(&self) -> PyResult<Source> {
        let slot = self.slot.get("Source")?;
        slot.samples().ok_or_else(|| ExceptionClass::Closed.with("the source is closed; create a new one"))
    }

    fn samples_known(&self) -> &Catalog {
        self.catalog.peek()
    }

    fn wait(&self, py: Python<'_>, ids: &[u64]) -> PyResult<Vec<PySample>> {
        for &id in ids {
            known(self.samples_known(), id)?;
        }
        let samples = self.open_samples()?;
        self.watch.before(py, None, || Some(samples.report()))?;
        let mut requests = py.detach(|| samples.request(ids));
        let mut results: Vec<Option<PySample>> = ids.iter().map(|_| None).collect();
        while requests.remaining() > 0 {
            let result = py.detach(|| requests.wait(POLL_INTERVAL));
            match result {
                Some((at, Ok(data))) => {
                    let sample = PySample::new(SampleId(ids[at]), data, self.samples_known().clone());
                    if let Some(slot) = results.get_mut(at) {
                        *slot = Some(sample);
                    }
                }
                Some((at, Err(error))) => return Err(errors::unreadable(ids[at], &error)),
                None => {
                    logs::drain(py)?;
                    py.check_signals()?;
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }
}

#[pymethods]
impl PySource {
    #[new]
    #[pyo3(signature = (target, **settings))]
    fn new(
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        // Each process has its own order, which others do not know.
        Self::open(py, target, PythonSettings::alone("Source", settings)?)
    }

    /// Announces the order of future requests: a list of epochs, each a buffer of 64-bit integers
    /// (array('q'), NumPy's int64) or a list of numbers. With `continues`, epochs like the last one
    /// follow.
    #[pyo3(signature = (orders, *, continues = false))]
    fn announce(&self, py: Python<'_>, orders: Vec<Bound<'_, PyAny>>, continues: bool) -> PyResult<()> {
        let orders: Vec<Vec<u64>> = orders.iter().map(order).collect::<PyResult<_>>()?;
        let samples = self.open_samples()?;
        interrupt::run_fallible(py, move |_| samples.announce(orders, continues))
    }

    /// One sample, read now unless it was read ahead.
    fn get(&self, py: Python<'_>, id: u64) -> PyResult<PySample> {
        let mut samples = self.wait(py, &[id])?;
        samples.pop().ok_or_else(|| ExceptionClass::Error.with(format!("sample {id} was not delivered")))
    }

    /// Several samples, read concurrently, in the order of `ids`.
    fn get_many<'py>(&self, py: Python<'py>, ids: Vec<u64>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.wait(py, &ids)?)
    }

    /// The id of the sample at this path below the dataset's URL. None if there is none.
    fn find(&self, path: &str) -> Option<u64> {
        self.samples_known().find(path).map(|id| id.0)
    }

    /// A sample's path below the dataset's URL.
    fn path(&self, id: u64) -> PyResult<String> {
        values::path_of(self.samples_known(), known(self.samples_known(), id)?)
    }

    /// A sample's label: the index of its class, or the value of its format's column of labels.
    /// None if it has none.
    fn label<'py>(&self, py: Python<'py>, id: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        values::label(py, self.samples_known(), known(self.samples_known(), id)?)
    }

    /// Whether samples have labels.
    #[getter]
    fn has_labels(&self) -> bool {
        values::has_labels(self.samples_known())
    }

    /// Serves samples to this user's processes on this machine (ShareClient) and returns the
    /// address, the same at every call. Samples that they hold are in shared memory, at most
    /// `shared_memory` bytes (256 MiB). Samples without room there are sent through the socket,
    /// which is slower. Closing the source ends it.
    #[pyo3(signature = (*, shared_memory = None))]
    fn share(&self, py: Python<'_>, shared_memory: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
        share::start(py, self.slot.get("Source")?, shared_memory)
    }

    /// The number of clients and their use of the shared memory. None before share().
    fn shared<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        share::status(py, self.slot.get("Source")?)
    }

    /// The report so far, as the command's JSON report.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let samples = self.open_samples()?;
        let report: Report = py.detach(|| samples.report());
        logs::drain(py)?;
        json::python(py, &report)
    }

    /// A summary: foreread.Stats. Rates and shares cover the time since the last call.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let samples = self.open_samples()?;
        let report: Report = py.detach(|| samples.report());
        self.watch.stats(py, report)
    }

    /// Logs a warning if the trainer waited for samples for much of the last seconds. Requests in
    /// this process do this automatically, requests of workers do not. `waited` is the trainer's
    /// total stall time in seconds, if the trainer makes no requests itself.
    #[pyo3(signature = (waited = None))]
    fn watch(&self, py: Python<'_>, waited: Option<f64>) -> PyResult<()> {
        let samples = self.open_samples()?;
        self.watch.before(py, waited, || Some(samples.report()))
    }

    /// Marks the end of an epoch: the time until the next request does not count. Does nothing for
    /// a closed source, because an iterator may be dropped after everything is closed at the
    /// program's end.
    fn pause(&self) {
        if let Ok(samples) = self.open_samples() {
            samples.pause();
        }
    }

    /// Stops reading and waits for the writes of the disk tier. Closing twice is not an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let slot = Arc::clone(self.slot.get("Source")?);
        interrupt::run_interruptible(py, Duration::ZERO, move |interrupted| {
            slot.close(Duration::ZERO, interrupted)
        })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        let _ = exception;
        self.close(py)
    }

    /// The number of samples in the dataset.
    #[getter]
    fn samples(&self) -> u64 {
        self.samples_known().len()
    }

    /// Their total bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.samples_known().total_bytes()
    }

    /// The catalog of the samples.
    #[getter]
    fn catalog(&self) -> PyCatalog {
        PyCatalog::from(self.catalog.peek().clone())
    }

    /// Whether this machine's kernel caches the files, because they are on a local file system.
    #[getter]
    fn is_kernel_cached(&self) -> PyResult<bool> {
        Ok(self.open_samples()?.is_kernel_cached())
    }

    /// The names of the classes, by index.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.classes.clone()
    }

    /// Deprecated: `classes`.
    #[getter]
    fn labels(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        errors::renamed(py, c"Source.labels is deprecated: use Source.classes")?;
        Ok(self.classes())
    }

    /// Raises an error with the remedy.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a foreread.Source has an engine and threads of its process and cannot be pickled or copied: \
             create it where it is used; worker processes share a foreread.torch.Dataset",
        ))
    }

    fn __repr__(&self) -> String {
        format!(
            "<foreread.Source: {} samples of {}>",
            self.samples_known().len(),
            self.samples_known().base_url()
        )
    }
}

/// An epoch's ids.
fn order(given: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let wrong = || {
        PyTypeError::new_err("an order must be a buffer of 64-bit integers or a list of non-negative numbers")
    };
    if let Ok(buffer) = PyBuffer::<i64>::get(given) {
        let ids = buffer.to_vec(given.py())?;
        return ids.into_iter().map(|id| u64::try_from(id).map_err(|_| wrong())).collect();
    }
    given.extract().map_err(|_| wrong())
}
