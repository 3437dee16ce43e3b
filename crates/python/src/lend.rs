//! Batches of a loader for worker processes, in Python.

use std::sync::Arc;
use std::time::Duration;

use foreread::share::BatchLender;
use pyo3::prelude::*;

use crate::batch::PyBatch;
use crate::errors::ExceptionClass;
use crate::interrupt::Interrupted;
use crate::process_local::ProcessLocal;
use crate::run::{Closable, ClosableSlot};

/// Lends batches of a loader to worker processes, which get them by ShareClient.batch(). Made by
/// Loader.lender().
#[pyclass(name = "BatchLender", frozen, module = "foreread")]
#[derive(Debug)]
pub struct PyBatchLender {
    slot: ProcessLocal<Arc<ClosableSlot<BatchLender>>>,
    address: String,
}

impl PyBatchLender {
    pub(crate) fn new(lender: BatchLender) -> Self {
        let address = lender.address();
        Self { slot: ClosableSlot::new(lender), address }
    }

    /// Applies `work` to the lender without the GIL.
    fn with(&self, py: Python<'_>, work: impl FnOnce(&BatchLender) + Send) -> PyResult<()> {
        let slot = self.slot.get("BatchLender")?;
        slot.with(py, work)
            .ok_or_else(|| ExceptionClass::Closed.with("the loader is closed; create a new one"))
    }
}

#[pymethods]
impl PyBatchLender {
    /// The address for ShareClient, including its secret.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Lends a batch under a number, until it is taken back.
    fn lend(&self, py: Python<'_>, number: u64, batch: &PyBatch) -> PyResult<()> {
        let batch = batch.batch().clone();
        self.with(py, |lender| lender.lend(number, batch))
    }

    /// Takes a batch back.
    fn take_back(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.with(py, |lender| lender.take_back(number))
    }

    /// Takes all batches back, and refuses those below a number from now on.
    fn refuse_below(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.with(py, |lender| lender.refuse_below(number))
    }

    /// Fails the requests of workers. Closing twice is not an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self.slot.get("BatchLender")?;
        py.detach(|| slot.close(Duration::ZERO, Interrupted::default()));
        Ok(())
    }

    fn __repr__(&self) -> String {
        "<foreread.BatchLender>".to_owned()
    }
}
