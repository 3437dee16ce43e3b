//! `foreread.ShareClient`: samples of another process's source, and what that source needs to be asked.
//!
//! A client connects when it is first used, in whatever process that is: one that was inherited by `fork`, or sent to a
//! process that was spawned, connects there for itself. So an object that holds one can be handed to workers as it is.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foreread::SampleId;
use foreread::share::{Client, Held, Settings, ShareError, ShareErrorKind};
use foreread::size::ByteSize;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyType};

use crate::errors::{self, Class};
use crate::here::Here;
use crate::sample::show;
use crate::source::Slot;
use crate::{here, settings};

/// Has `slot`'s source serve other processes, if it does not, and says where.
pub(crate) fn start(
    py: Python<'_>,
    slot: &Slot,
    shared_memory: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let mut settings = Settings::default();
    if let Some(given) = shared_memory {
        let size = settings::size("shared_memory", given)?;
        let ByteSize(bytes) =
            size.parse().map_err(|error| Class::Config.with(format!("shared_memory: {error}")))?;
        settings = settings.with_shared_bytes(bytes);
    }
    let samples = slot.samples().ok_or_else(|| Class::Closed.with("the source is closed; make another"))?;
    if let Some(server) = &*slot.server() {
        return Ok(server.address());
    }
    let server = py.detach(|| samples.share(settings)).map_err(|error| errors::raised(&error))?;
    // Another thread may have been faster; one server is enough.
    let spare;
    let address = {
        let mut there = slot.server();
        let address = there.as_ref().unwrap_or(&server).address();
        spare = if there.is_none() { there.replace(server) } else { Some(server) };
        address
    };
    py.detach(|| drop(spare));
    Ok(address)
}

/// How `slot`'s source does as a server.
pub(crate) fn status<'py>(py: Python<'py>, slot: &Slot) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(status) = slot.server().as_ref().map(|server| server.status()) else { return Ok(None) };
    let said = PyDict::new(py);
    said.set_item("clients", status.clients)?;
    said.set_item("shared_bytes", status.shared_bytes)?;
    said.set_item("used_bytes", status.used_bytes)?;
    said.set_item("over_the_socket", status.over_the_socket)?;
    Ok(Some(said))
}

/// Which exception it is, of a request that was for no sample in particular.
fn raised(error: &ShareError) -> PyErr {
    let class = match (error.kind(), error.tier_error()) {
        (_, Some(error)) => Class::of_tier(error.kind()),
        (ShareErrorKind::Gone, _) => Class::Closed,
        (ShareErrorKind::Refused, _) => Class::Denied,
        (ShareErrorKind::Forked, _) => Class::Fork,
        (ShareErrorKind::Invalid, _) => Class::Config,
        _ => Class::Error,
    };
    class.with(error.to_string())
}

/// Does `work` without the interpreter's lock; it is told to stop when a signal handler has raised something.
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

/// A worker's way to the samples of another process's Source, which Source.share() gives the address of.
///
/// It has no threads, connects when it is first used, and once for each process that uses it.
#[pyclass(frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct ShareClient {
    address: String,
    /// Held by threads that hold the interpreter's lock and wait for nothing: no fork finds it taken.
    client: Mutex<Option<Client>>,
}

impl ShareClient {
    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process's client.
    fn client(&self, py: Python<'_>) -> PyResult<Client> {
        if let Some(client) = self.lock().as_ref().filter(|client| client.is_own()) {
            return Ok(client.clone());
        }
        let made = stoppable(py, |stop| Client::connect_with(&self.address, stop))?;
        let made = made.map_err(|error| raised(&error))?;
        // Another thread may have been faster. A parent's client is let go: here that closes a copy of its socket.
        let mut there = self.lock();
        match there.as_ref().filter(|client| client.is_own()) {
            Some(client) => Ok(client.clone()),
            None => Ok(there.insert(made).clone()),
        }
    }

    fn wait(&self, py: Python<'_>, ids: &[u64]) -> PyResult<Vec<SharedSample>> {
        let client = self.client(py)?;
        let wanted: Vec<_> = ids.iter().copied().map(SampleId).collect();
        let came = stoppable(py, |stop| client.get_with(&wanted, stop))?;
        let sample = |(id, held): (u64, Result<Held, ShareError>)| match held {
            Ok(held) => Ok(SharedSample { id, held: Here::new(held) }),
            Err(error) => Err(match error.tier_error() {
                Some(error) => errors::unread(id, error),
                None => raised(&error),
            }),
        };
        ids.iter().copied().zip(came).map(sample).collect()
    }
}

#[pymethods]
impl ShareClient {
    #[new]
    fn new(address: String) -> Self {
        here::watch();
        Self { address, client: Mutex::new(None) }
    }

    /// One sample.
    fn get(&self, py: Python<'_>, id: u64) -> PyResult<SharedSample> {
        let mut samples = self.wait(py, &[id])?;
        samples.pop().ok_or_else(|| Class::Error.with(format!("sample {id} did not come")))
    }

    /// Several samples, read side by side, in the order of `ids`.
    fn get_many<'py>(&self, py: Python<'py>, ids: Vec<u64>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.wait(py, &ids)?)
    }

    /// Asks the source something: 'report' gives its report as JSON.
    #[pyo3(signature = (name, payload = None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        payload: Option<&[u8]>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let client = self.client(py)?;
        let came = stoppable(py, |stop| client.call_with(name, payload.unwrap_or_default(), stop))?;
        came.map(|bytes| PyBytes::new(py, &bytes)).map_err(|error| raised(&error))
    }

    /// Lets go of the connection. The client connects anew when it is used again.
    fn close(&self) {
        let client = self.lock().take();
        drop(client);
    }

    /// Where the source is, with the secret that lets its user in.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// A client goes to another process by its address.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (String,)) {
        (slf.get_type(), (slf.get().address.clone(),))
    }

    fn __repr__(&self) -> String {
        // What follows the name is a secret.
        let (name, _) = self.address.split_once(':').unwrap_or((&self.address, ""));
        format!("<foreread.ShareClient of {name}>")
    }
}

/// A sample that came from another process: a read-only buffer of its bytes, where they lie in shared memory.
///
/// Its place there is taken until the last view of it is gone. It is of the process that got it: a process that is forked
/// later may not read it.
#[pyclass(frozen, module = "foreread")]
#[derive(Debug)]
pub struct SharedSample {
    id: u64,
    held: Here<Held>,
}

impl SharedSample {
    fn bytes(&self) -> PyResult<&[u8]> {
        self.held.get("sample").map(Held::as_ref)
    }
}

#[pymethods]
impl SharedSample {
    /// The sample's number in its catalog.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// Whether it lies in shared memory; else there was no room, and it is this process's own copy.
    #[getter]
    fn is_shared(&self) -> PyResult<bool> {
        self.held.get("sample").map(Held::is_shared)
    }

    fn __len__(&self) -> PyResult<usize> {
        self.bytes().map(<[u8]>::len)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.bytes().map(|bytes| PyBytes::new(py, bytes))
    }

    /// To another process go the bytes alone, as bytes.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyBytes>,))> {
        Ok((py.get_type::<PyBytes>(), (self.__bytes__(py)?,)))
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<foreread.SharedSample {}: {} bytes>", self.id, self.__len__()?))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().bytes()?;
        // SAFETY: Python gives the view, and the sample holds its bytes as long as it lives.
        unsafe { show(slf.clone().into_any(), bytes, view, flags) }
    }
}
