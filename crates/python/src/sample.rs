//! A sample in Python: its bytes, where they are, and what the catalog knows of it.
//!
//! The bytes are never copied: a `memoryview` (or `numpy.frombuffer`) looks at the very memory that the read filled, and
//! holds the sample, which holds that memory. It counts against the run's look-ahead until the last view of it is gone.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};

use bytes::Bytes;
use foreread::Catalog;
use foreread::SampleId;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::catalog::path_of;
use crate::errors::Class;
use crate::here::Here;

/// Fills a view of `data`, which `owner` holds, for reading.
///
/// # Safety
/// `view` is what Python has given to an object's `__getbuffer__`, and `owner` never lets go of `data`.
pub(crate) unsafe fn show(
    owner: Bound<'_, PyAny>,
    data: &[u8],
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let py = owner.py();
    // SAFETY: the view is a valid one (the caller's word). Python counts the owner in it, so that the bytes are there
    // as long as the view is; they are never written, and the view says so: one for writing is refused by the call.
    let filled = unsafe {
        let start = data.as_ptr().cast_mut().cast::<c_void>();
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, data.len() as ffi::Py_ssize_t, 1, flags)
    };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
}

/// One sample of a batch: a read-only buffer of its bytes, with its number, label and name.
#[pyclass(frozen, module = "foreread")]
#[derive(Debug)]
pub struct Sample {
    data: Here<Bytes>,
    catalog: Here<Catalog>,
    id: SampleId,
}

impl Sample {
    pub(crate) fn new(id: SampleId, data: Bytes, catalog: Catalog) -> Self {
        Self { data: Here::new(data), catalog: Here::new(catalog), id }
    }

    fn catalog(&self) -> &Catalog {
        self.catalog.peek()
    }

    fn part(&self, name: &str, start: u64, end: u64) -> PyResult<Field> {
        let data = self.data.peek();
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        match range.filter(|(start, end)| start <= end && *end <= data.len()) {
            Some((start, end)) => {
                Ok(Field { name: name.to_owned(), id: self.id.0, data: Here::new(data.slice(start..end)) })
            }
            None => {
                Err(Class::Corrupt.with(format!("sample {}: the field '{name}' lies outside it", self.id)))
            }
        }
    }
}

#[pymethods]
impl Sample {
    /// The sample's number in its catalog.
    #[getter]
    fn id(&self) -> u64 {
        self.id.0
    }

    /// The number of its class, as ImageFolder counts them; None where its path has no directory, and in shards.
    #[getter]
    fn label(&self) -> Option<u32> {
        self.catalog().label_index(self.id)
    }

    /// The name of its class: the first directory of its path.
    #[getter]
    fn label_name(&self) -> Option<&str> {
        self.catalog().label(self.id)
    }

    /// What its shard calls it (WebDataset's __key__, a zip member's name); None for files and records.
    #[getter]
    fn key(&self) -> PyResult<Option<String>> {
        let key = self.catalog().key(self.id).map_err(|error| crate::errors::raised(&error.into()))?;
        Ok(key.map(Cow::into_owned))
    }

    /// Its path below the dataset's URL; of a packed one its shard, and behind a slash its name there.
    #[getter]
    fn path(&self) -> PyResult<String> {
        path_of(self.catalog(), self.id)
    }

    /// The names of a WebDataset sample's parts, in their order; none of any other.
    fn fields(&self) -> PyResult<Vec<String>> {
        let fields = self.catalog().fields(self.id).map_err(|error| crate::errors::raised(&error.into()))?;
        Ok(fields.into_iter().map(|field| field.name.to_owned()).collect())
    }

    /// The part of a WebDataset sample that is called `name`, without a copy. KeyError if it has none.
    fn field(&self, name: &str) -> PyResult<Field> {
        match self.catalog().field(self.id, name) {
            Some(range) => self.part(name, range.start, range.end),
            None => Err(pyo3::exceptions::PyKeyError::new_err(name.to_owned())),
        }
    }

    fn __len__(&self) -> usize {
        self.data.peek().len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.data.peek())
    }

    /// To another process go the bytes alone, as bytes.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<PyBytes>(), (self.__bytes__(py),))
    }

    fn __repr__(&self) -> String {
        let label = self.label_name().map_or_else(String::new, |label| format!(", label {label}"));
        format!("<foreread.Sample {}: {} bytes{label}>", self.id, self.__len__())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let sample = slf.get();
        // SAFETY: Python gives the view, and the sample never changes.
        unsafe { show(slf.clone().into_any(), sample.data.peek(), view, flags) }
    }
}

/// A named part of a WebDataset sample: a read-only buffer of the sample's own bytes.
#[pyclass(frozen, module = "foreread")]
#[derive(Debug)]
pub struct Field {
    name: String,
    id: u64,
    data: Here<Bytes>,
}

#[pymethods]
impl Field {
    /// What the member's name ends in, in lower case: jpg, cls, seg.png.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The number of the sample that it is of.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    fn __len__(&self) -> usize {
        self.data.peek().len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.data.peek())
    }

    /// To another process go the bytes alone, as bytes.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<PyBytes>(), (self.__bytes__(py),))
    }

    fn __repr__(&self) -> String {
        format!("<foreread.Field {} of sample {}: {} bytes>", self.name, self.id, self.__len__())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let field = slf.get();
        // SAFETY: Python gives the view, and the field never changes.
        unsafe { show(slf.clone().into_any(), field.data.peek(), view, flags) }
    }
}
