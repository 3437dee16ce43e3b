//! `foreread.Source`: samples by their ids, from Python.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use foreread::SampleId;
use foreread::report::Report;
use foreread::share::Server;
use foreread::{Catalog, Source as Samples};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::catalog::{Catalog as Listed, path_of};
use crate::engine::{self, Live};
use crate::errors::{self, Class};
use crate::here::Here;
use crate::loader::{builder, known};
use crate::sample::Sample;
use crate::settings::Settings;
use crate::share;
use crate::waiting::{self, Interrupted, NAP};
use crate::watch::Watch;
use crate::{allocator, here, json, logs};

/// A source until it is closed.
#[derive(Debug)]
pub(crate) struct Slot {
    samples: RwLock<Option<Samples>>,
    /// What other processes ask, once they may.
    server: Mutex<Option<Server>>,
}

impl Slot {
    pub(crate) fn samples(&self) -> Option<Samples> {
        self.samples.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live for Slot {
    fn close(&self, _: Duration, _: Interrupted) {
        let taken = self.samples.write().unwrap_or_else(PoisonError::into_inner).take();
        // Workers hear of the end first.
        let server = self.server().take();
        drop(server);
        if let Some(samples) = taken
            && let Err(error) = samples.flush()
        {
            tracing::warn!(target: "foreread", %error, "the disk tier was not flushed");
        }
    }
}

/// Samples by their numbers, in whatever order somebody else decides; read ahead as far as that is announced.
///
/// `target` and settings are those of Loader; what says in which order samples are read has no meaning here.
#[pyclass(frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct Source {
    slot: Here<Arc<Slot>>,
    catalog: Here<Catalog>,
    labels: Vec<String>,
    watch: Watch,
}

impl Source {
    pub(crate) fn samples_here(&self) -> PyResult<Samples> {
        let slot = self.slot.get("Source")?;
        slot.samples().ok_or_else(|| Class::Closed.with("the source is closed; make another"))
    }

    fn samples_known(&self) -> &Catalog {
        self.catalog.peek()
    }

    fn wait(&self, py: Python<'_>, ids: &[u64]) -> PyResult<Vec<Sample>> {
        for &id in ids {
            known(self.samples_known(), id)?;
        }
        let samples = self.samples_here()?;
        self.watch.before(py, None, || Some(samples.report()))?;
        let mut requests = py.detach(|| samples.request(ids));
        let mut here: Vec<Option<Sample>> = ids.iter().map(|_| None).collect();
        while requests.remaining() > 0 {
            let came = py.detach(|| requests.wait(NAP));
            match came {
                Some((at, Ok(data))) => {
                    let sample = Sample::new(SampleId(ids[at]), data, self.samples_known().clone());
                    if let Some(place) = here.get_mut(at) {
                        *place = Some(sample);
                    }
                }
                Some((at, Err(error))) => return Err(errors::unread(ids[at], &error)),
                None => {
                    logs::drain(py)?;
                    py.check_signals()?;
                }
            }
        }
        Ok(here.into_iter().flatten().collect())
    }
}

#[pymethods]
impl Source {
    #[new]
    #[pyo3(signature = (target, **settings))]
    fn new(
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        allocator::set_up();
        here::watch();
        logs::set_up(py)?;
        // Each process has an order of its own, which others do not know.
        let settings = Settings::alone("Source", settings)?;
        let builder = builder(target, settings)?;
        let made = waiting::apart(py, Duration::ZERO, move |_| builder.source())?;
        logs::drain(py)?;
        let samples = made.map_err(|error| errors::raised(&error))?;
        let catalog = samples.catalog().clone();
        let labels = catalog.labels().iter().map(|label| label.to_string()).collect();
        let slot = Arc::new(Slot { samples: RwLock::new(Some(samples)), server: Mutex::new(None) });
        engine::list(Arc::downgrade(&slot) as std::sync::Weak<dyn Live>);
        Ok(Self { slot: Here::new(slot), catalog: Here::new(catalog), labels, watch: Watch::new(None) })
    }

    /// Says in which order samples will be asked for from now on: a list of epochs, each a buffer of 64-bit integers
    /// (array('q'), NumPy's int64) or a list of numbers. With `goes_on`, epochs like the last one follow.
    #[pyo3(signature = (orders, *, goes_on = false))]
    fn announce(&self, py: Python<'_>, orders: Vec<Bound<'_, PyAny>>, goes_on: bool) -> PyResult<()> {
        let orders: Vec<Vec<u64>> = orders.iter().map(order).collect::<PyResult<_>>()?;
        let samples = self.samples_here()?;
        let done = waiting::apart(py, Duration::ZERO, move |_| samples.announce(orders, goes_on))?;
        logs::drain(py)?;
        done.map_err(|error| errors::raised(&error))
    }

    /// One sample, read now unless it has been read ahead.
    fn get(&self, py: Python<'_>, id: u64) -> PyResult<Sample> {
        let mut samples = self.wait(py, &[id])?;
        samples.pop().ok_or_else(|| Class::Error.with(format!("sample {id} did not come")))
    }

    /// Several samples, read side by side, in the order of `ids`.
    fn get_many<'py>(&self, py: Python<'py>, ids: Vec<u64>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.wait(py, &ids)?)
    }

    /// The number of the sample at this path below the dataset's URL; None if there is none.
    fn find(&self, path: &str) -> Option<u64> {
        self.samples_known().find(path).map(|id| id.0)
    }

    /// A sample's path below the dataset's URL.
    fn path(&self, id: u64) -> PyResult<String> {
        path_of(self.samples_known(), known(self.samples_known(), id)?)
    }

    /// The number of a sample's class; None where it has none.
    fn label(&self, id: u64) -> PyResult<Option<u32>> {
        Ok(self.samples_known().label_index(known(self.samples_known(), id)?))
    }

    /// Lets processes of this one's user on this machine ask for samples (ShareClient), and says where: the same address
    /// every time. Samples that they hold lie in shared memory, `shared_memory` bytes at most (256 MiB); what finds no room
    /// there takes a slower way. It ends when the source is closed.
    #[pyo3(signature = (*, shared_memory = None))]
    fn share(&self, py: Python<'_>, shared_memory: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
        share::start(py, self.slot.get("Source")?, shared_memory)
    }

    /// How sharing goes: how many clients there are, and how much of the shared memory they hold; None before share().
    fn shared<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        share::status(py, self.slot.get("Source")?)
    }

    /// What has been delivered and read so far, as the command's JSON report says it.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let samples = self.samples_here()?;
        let report: Report = py.detach(|| samples.report());
        logs::drain(py)?;
        json::python(py, &report)
    }

    /// What has been done in a few figures: foreread.Stats. Rates and shares are those since the last call.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let samples = self.samples_here()?;
        let report: Report = py.detach(|| samples.report());
        self.watch.stats(py, report)
    }

    /// Looks whether much of the last seconds was waited for samples, and says so in the log. Asking in this process does that
    /// by itself; where workers ask, nobody else would. `waited` is how long the trainer has waited so far, in seconds, where it
    /// does not ask itself.
    #[pyo3(signature = (waited = None))]
    fn watch(&self, py: Python<'_>, waited: Option<f64>) -> PyResult<()> {
        let samples = self.samples_here()?;
        self.watch.before(py, waited, || Some(samples.report()))
    }

    /// Says that an epoch is over: the time until samples are asked for again does not count. Of a closed source that is true
    /// already: an iterator that the program's end drops says it when all is closed.
    fn pause(&self) {
        if let Ok(samples) = self.samples_here() {
            samples.pause();
        }
    }

    /// Ends reading, and waits until the disk tier has written what it was given. Closing twice is no error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let slot = Arc::clone(self.slot.get("Source")?);
        waiting::apart(py, Duration::ZERO, move |interrupted| slot.close(Duration::ZERO, interrupted))?;
        logs::drain(py)?;
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        let _ = exception;
        self.close(py)
    }

    /// How many samples the dataset has.
    #[getter]
    fn samples(&self) -> u64 {
        self.samples_known().len()
    }

    /// Their bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.samples_known().total_bytes()
    }

    /// Which samples there are.
    #[getter]
    fn catalog(&self) -> Listed {
        Listed::from(self.catalog.peek().clone())
    }

    /// Whether the kernel of this machine caches the files: they are on a file system of its own.
    #[getter]
    fn is_kernel_cached(&self) -> PyResult<bool> {
        Ok(self.samples_here()?.is_kernel_cached())
    }

    /// The names of the classes, by their numbers.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.labels.clone()
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
        PyTypeError::new_err(
            "an order is a buffer of 64-bit integers or a list of numbers that are not negative",
        )
    };
    if let Ok(buffer) = PyBuffer::<i64>::get(given) {
        let ids = buffer.to_vec(given.py())?;
        return ids.into_iter().map(|id| u64::try_from(id).map_err(|_| wrong())).collect();
    }
    given.extract().map_err(|_| wrong())
}
