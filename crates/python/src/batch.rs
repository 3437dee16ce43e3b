//! A batch in Python: a sequence of samples.

use foreread::Catalog;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PySlice};

use crate::process_local::ProcessLocal;
use crate::sample::PySample;
use crate::values;

/// The samples of one step, in the order that the seed defines.
///
/// A sequence: len(), indexing, slices and iteration. Samples share the batch's memory and keep it
/// alive.
#[pyclass(name = "Batch", frozen, sequence, module = "foreread")]
#[derive(Debug)]
pub struct PyBatch {
    batch: ProcessLocal<foreread::Batch>,
    catalog: ProcessLocal<Catalog>,
}

impl PyBatch {
    pub(crate) fn new(batch: foreread::Batch, catalog: Catalog) -> Self {
        Self { batch: ProcessLocal::new(batch), catalog: ProcessLocal::new(catalog) }
    }

    pub(crate) fn batch(&self) -> &foreread::Batch {
        self.batch.peek()
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        self.catalog.peek()
    }

    fn sample(&self, index: usize) -> Option<PySample> {
        let sample = self.batch().samples().nth(index)?;
        Some(PySample::new(sample.id(), sample.bytes(), self.catalog.peek().clone()))
    }

    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let catalog = self.catalog.peek();
        PyList::new(
            py,
            self.batch().samples().map(|sample| PySample::new(sample.id(), sample.bytes(), catalog.clone())),
        )
    }
}

#[pymethods]
impl PyBatch {
    /// The batch's epoch, from 0.
    #[getter]
    fn epoch(&self) -> u64 {
        self.batch().epoch()
    }

    /// 'train' or 'validation'.
    #[getter]
    fn phase(&self) -> String {
        self.batch().phase().to_string()
    }

    /// The batch's index within its pass, from 0.
    #[getter]
    fn index(&self) -> u64 {
        self.batch().index()
    }

    /// The samples' ids in their catalog, in order.
    #[getter]
    fn ids(&self) -> Vec<u64> {
        self.batch().iter().map(|(id, _)| id.0).collect()
    }

    /// The samples' labels, in order. None for a sample without a label.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let catalog = self.catalog.peek();
        self.batch().iter().map(|(id, _)| values::label(py, catalog, id)).collect()
    }

    /// The total length of the samples, in bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.batch().bytes()
    }

    fn __len__(&self) -> usize {
        self.batch().len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if index.is_instance_of::<PySlice>() {
            return self.list(py)?.into_any().get_item(index);
        }
        let Ok(position) = index.extract::<isize>() else {
            return Err(PyTypeError::new_err("batch indices must be integers or slices"));
        };
        let length = self.batch().len();
        let at = if position < 0 { position.checked_add_unsigned(length) } else { Some(position) };
        let sample = at.and_then(|at| usize::try_from(at).ok()).and_then(|at| self.sample(at));
        match sample {
            Some(sample) => Ok(Bound::new(py, sample)?.into_any()),
            None => Err(PyIndexError::new_err("batch index out of range")),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.list(py)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let batch = self.batch();
        format!(
            "<foreread.Batch {} of epoch {} ({}): {} samples, {} bytes>",
            batch.index(),
            batch.epoch(),
            batch.phase(),
            batch.len(),
            batch.bytes()
        )
    }
}
