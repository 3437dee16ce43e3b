//! `foreread.ShareClient`: samples from another process's source, and the server side of a source.
//!
//! A client connects at its first use in each process, also after `fork` or in a spawned process.
//! So an object with a client can be passed to workers unchanged.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foreread::SampleId;
use foreread::share::{Client, LentBatch, ServerSettings, SharedBytes, StoreError, StoreErrorKind};
use foreread::size::ByteSize;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyType};

use crate::catalog::PyCatalog;
use crate::errors::{self, ExceptionClass};
use crate::process_local::ProcessLocal;
use crate::sample::{PySample, fill_view};
use crate::source::SourceSlot;
use crate::{process_local, settings, values};

/// Makes the source serve other processes, unless it does already, and returns the address.
pub(crate) fn start(
    py: Python<'_>,
    slot: &SourceSlot,
    shared_memory: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let mut settings = ServerSettings::default();
    if let Some(given) = shared_memory {
        let size = settings::size("shared_memory", given)?;
        let ByteSize(bytes) =
            size.parse().map_err(|error| ExceptionClass::Config.with(format!("shared_memory: {error}")))?;
        settings = settings.with_shared_bytes(bytes);
    }
    let samples = slot
        .samples()
        .ok_or_else(|| ExceptionClass::Closed.with("the source is closed; create a new one"))?;
    if let Some(server) = &*slot.server() {
        return Ok(server.address());
    }
    let server = py.detach(|| samples.share(settings)).map_err(errors::raised)?;
    // Another thread may have started a server in the meantime.
    let unused;
    let address = {
        let mut current = slot.server();
        let address = current.as_ref().unwrap_or(&server).address();
        unused = if current.is_none() { current.replace(server) } else { Some(server) };
        address
    };
    py.detach(|| drop(unused));
    Ok(address)
}

/// The status of the source's server.
pub(crate) fn status<'py>(py: Python<'py>, slot: &SourceSlot) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(status) = slot.server().as_ref().map(|server| server.status()) else { return Ok(None) };
    let status_dict = PyDict::new(py);
    status_dict.set_item("clients", status.clients)?;
    status_dict.set_item("shared_bytes", status.shared_bytes)?;
    status_dict.set_item("used_bytes", status.used_bytes)?;
    status_dict.set_item("over_the_socket", status.over_the_socket)?;
    Ok(Some(status_dict))
}

/// Converts the error of a request that concerns no particular sample.
fn raised(error: &StoreError) -> PyErr {
    let class = match (error.kind(), error.tier_error()) {
        (_, Some(error)) => ExceptionClass::of_tier(error.kind()),
        (StoreErrorKind::Gone, _) => ExceptionClass::Closed,
        (StoreErrorKind::Refused, _) => ExceptionClass::Denied,
        (StoreErrorKind::Forked, _) => ExceptionClass::Fork,
        (StoreErrorKind::Invalid, _) => ExceptionClass::Config,
        _ => ExceptionClass::Error,
    };
    class.with(error.to_string())
}

/// Runs `work` without the GIL. Its argument returns true after a signal handler raised an
/// exception.
fn stoppable<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> T + Send,
) -> PyResult<T> {
    let mut signal = None;
    let done = py.detach(|| {
        work(&mut || {
            signal = Python::attach(|py| py.check_signals()).err();
            signal.is_some()
        })
    });
    match signal {
        Some(signal) => Err(signal),
        None => Ok(done),
    }
}

/// Samples of another process's Source, for workers. Source.share() returns the address.
///
/// The client has no threads. It connects at its first use, once in each process.
#[pyclass(frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct ShareClient {
    address: String,
    /// Locked only by threads with the GIL that do not wait, so no fork finds it locked.
    client: Mutex<Option<Client>>,
}

impl ShareClient {
    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client of this process.
    fn client(&self, py: Python<'_>) -> PyResult<Client> {
        if let Some(client) = self.lock().as_ref().filter(|client| client.is_own()) {
            return Ok(client.clone());
        }
        let made = stoppable(py, |stop| Client::connect_with(&self.address, stop))?;
        let made = made.map_err(|error| raised(&error))?;
        // Another thread may have connected in the meantime. Dropping a parent's client closes only
        // this process's copy of its socket.
        let mut current = self.lock();
        match current.as_ref().filter(|client| client.is_own()) {
            Some(client) => Ok(client.clone()),
            None => Ok(current.insert(made).clone()),
        }
    }

    fn wait(&self, py: Python<'_>, ids: &[u64]) -> PyResult<Vec<SharedSample>> {
        let client = self.client(py)?;
        let wanted: Vec<_> = ids.iter().copied().map(SampleId).collect();
        let results = stoppable(py, |stop| client.get_with(&wanted, stop))?;
        let sample = |(id, held): (u64, Result<SharedBytes, StoreError>)| match held {
            Ok(held) => Ok(SharedSample { id, held: ProcessLocal::new(held) }),
            Err(error) => Err(match error.tier_error() {
                Some(error) => errors::unreadable(id, error),
                None => raised(&error),
            }),
        };
        ids.iter().copied().zip(results).map(sample).collect()
    }
}

#[pymethods]
impl ShareClient {
    #[new]
    fn new(address: String) -> Self {
        process_local::count_forks();
        Self { address, client: Mutex::new(None) }
    }

    /// One sample.
    fn get(&self, py: Python<'_>, id: u64) -> PyResult<SharedSample> {
        let mut samples = self.wait(py, &[id])?;
        samples.pop().ok_or_else(|| ExceptionClass::Error.with(format!("sample {id} was not delivered")))
    }

    /// Several samples, read concurrently, in the order of `ids`.
    fn get_many<'py>(&self, py: Python<'py>, ids: Vec<u64>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.wait(py, &ids)?)
    }

    /// The epoch and the samples of a batch that a BatchLender lends under a number. Waits until it
    /// is lent. `catalog` is that of the loader.
    fn batch(
        &self,
        py: Python<'_>,
        number: u64,
        catalog: &Bound<'_, PyCatalog>,
    ) -> PyResult<(u64, Vec<PySample>)> {
        let client = self.client(py)?;
        let lent = stoppable(py, |stop| LentBatch::of(&client, number, stop))?;
        let LentBatch { epoch, samples } = lent.map_err(|error| raised(&error))?;
        let catalog = catalog.get().catalog().with_gone();
        let sample = |(id, held)| PySample::new(id, Bytes::from_owner(held), catalog.clone());
        Ok((epoch, samples.into_iter().map(sample).collect()))
    }

    /// Sends a named request to the source: 'report' returns its report as JSON.
    #[pyo3(signature = (name, payload = None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        payload: Option<&[u8]>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let client = self.client(py)?;
        let results = stoppable(py, |stop| client.call_with(name, payload.unwrap_or_default(), stop))?;
        results.map(|bytes| PyBytes::new(py, &bytes)).map_err(|error| raised(&error))
    }

    /// Closes the connection. The next use connects again.
    fn close(&self) {
        let client = self.lock().take();
        drop(client);
    }

    /// The address of the source, including its secret.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Pickles the client as its address.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (String,)) {
        (slf.get_type(), (slf.get().address.clone(),))
    }

    fn __repr__(&self) -> String {
        // The part after the name is secret.
        let (name, _) = self.address.split_once(':').unwrap_or((&self.address, ""));
        format!("<foreread.ShareClient of {name}>")
    }
}

/// A sample from another process: a read-only buffer of its bytes in shared memory.
///
/// Its shared memory is occupied until the last view is gone. Only the process that received it may
/// read it, not a child forked later.
#[pyclass(frozen, module = "foreread")]
#[derive(Debug)]
pub struct SharedSample {
    id: u64,
    held: ProcessLocal<SharedBytes>,
}

impl SharedSample {
    fn bytes(&self) -> PyResult<&[u8]> {
        self.held.get("sample").map(SharedBytes::as_ref)
    }
}

#[pymethods]
impl SharedSample {
    /// The sample's id in its catalog.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// Whether it is in shared memory. Without room there, it is a copy in this process.
    #[getter]
    fn is_shared(&self) -> PyResult<bool> {
        self.held.get("sample").map(SharedBytes::is_shared)
    }

    /// The sample as a file for reading, without a copy of its bytes, which the file holds until it
    /// is closed. For `PIL.Image.open`, `numpy.load`, `h5py.File`.
    fn open<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        values::as_file(slf.as_any())
    }

    /// Refused: a worker process has the bytes alone.
    fn __getitem__(&self, name: &str) -> PyResult<()> {
        Err(ExceptionClass::Config.with(format!(
            "{name}: worker processes have the bytes of a sample, without its values and fields: use \
             foreread.torch.DataLoader, or num_workers=0"
        )))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.bytes().map(<[u8]>::len)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.bytes().map(|bytes| PyBytes::new(py, bytes))
    }

    /// Pickles the bytes only, as bytes.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyBytes>,))> {
        Ok((py.get_type::<PyBytes>(), (self.__bytes__(py)?,)))
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<foreread.SharedSample {}: {} bytes>", self.id, self.__len__()?))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().bytes()?;
        // SAFETY: Python provides the view, and the sample holds its bytes for its lifetime.
        unsafe { fill_view(slf.clone().into_any(), bytes, view, flags) }
    }
}
