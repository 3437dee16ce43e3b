//! A sample in Python: its bytes without a copy, and its properties in the catalog.
//!
//! A `memoryview` (or `numpy.frombuffer`) points to the memory that the read filled. It holds the
//! sample, which holds that memory. The memory counts against the run's look-ahead until the last
//! view is gone.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};

use bytes::Bytes;
use foreread::{Catalog, Format, SampleId};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::errors::{self, ExceptionClass};
use crate::process_local::ProcessLocal;
use crate::values;

/// Fills a read-only view of `data`, which `owner` holds.
///
/// # Safety
/// `view` must come from a call of `__getbuffer__`, and `owner` must keep `data` alive and
/// unchanged.
pub(crate) unsafe fn fill_view(
    owner: Bound<'_, PyAny>,
    data: &[u8],
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let py = owner.py();
    // SAFETY: the view is valid by the caller's contract. Python holds a reference to the owner in
    // it, so the bytes outlive the view. They are never written: the view is read-only, and the
    // call refuses requests for writable ones.
    let filled = unsafe {
        let start = data.as_ptr().cast_mut().cast::<c_void>();
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, data.len() as ffi::Py_ssize_t, 1, flags)
    };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
}

/// One sample of a batch: a read-only buffer of its bytes, with its id, label and name.
#[pyclass(name = "Sample", frozen, module = "foreread")]
#[derive(Debug)]
pub struct PySample {
    data: ProcessLocal<Bytes>,
    catalog: ProcessLocal<Catalog>,
    id: SampleId,
}

impl PySample {
    pub(crate) fn new(id: SampleId, data: Bytes, catalog: Catalog) -> Self {
        Self { data: ProcessLocal::new(data), catalog: ProcessLocal::new(catalog), id }
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        self.catalog.peek()
    }

    pub(crate) fn data(&self) -> &Bytes {
        self.data.peek()
    }

    pub(crate) fn sample_id(&self) -> SampleId {
        self.id
    }

    fn part(&self, name: &str, start: u64, end: u64) -> PyResult<PyField> {
        let data = self.data.peek();
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        match range.filter(|(start, end)| start <= end && *end <= data.len()) {
            Some((start, end)) => Ok(PyField {
                name: name.to_owned(),
                id: self.id.0,
                data: ProcessLocal::new(data.slice(start..end)),
                catalog: ProcessLocal::new(self.catalog().clone()),
            }),
            None => Err(ExceptionClass::Corrupt
                .with(format!("sample {}: the field '{name}' is out of bounds", self.id))),
        }
    }
}

#[pymethods]
impl PySample {
    /// The sample's id in its catalog.
    #[getter]
    fn id(&self) -> u64 {
        self.id.0
    }

    /// Its label: the index of its class in the order of ImageFolder, or the value of its format's
    /// column of labels. None without either.
    #[getter]
    fn label<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        values::label(py, self.catalog(), self.id)
    }

    /// The names of the values that the catalog has of each sample, for `sample[name]`.
    #[getter]
    fn value_names(&self) -> Vec<String> {
        self.catalog().value_names().to_vec()
    }

    /// Deprecated: `value_names`.
    fn values(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        errors::renamed(py, c"Sample.values() is deprecated: use Sample.value_names")?;
        Ok(self.value_names())
    }

    /// Deprecated: `sample[name]`.
    fn value<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        errors::renamed(py, c"Sample.value(name) is deprecated: use sample[name]")?;
        values::value(py, self.catalog(), self.id, name)
    }

    /// The names and paths of its files, if it has several. Empty for any other.
    fn field_paths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        values::field_paths(py, self.catalog(), self.id)
    }

    /// The value of this name: a number, a text or an array, or None if this sample has none.
    /// Without such a value, the field of this name. Raises KeyError if there is neither.
    fn __getitem__<'py>(slf: Bound<'py, Self>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let this = slf.get();
        let catalog = this.catalog();
        if catalog.value_names().iter().any(|known| known == name) || catalog.label_column() == Some(name) {
            return values::value(slf.py(), this.catalog(), this.id, name);
        }
        Ok(Some(Bound::new(slf.py(), this.field(name)?)?.into_any()))
    }

    /// Its bytes as a NumPy array, without a copy, where the format knows type and shape.
    fn array<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        let Some(array) = this.catalog().array() else {
            let is_npy = match this.catalog().format() {
                Format::Files => this.path()?.ends_with(".npy"),
                Format::Zip => this.key()?.is_some_and(|key| key.ends_with(".npy")),
                _ => false,
            };
            if is_npy {
                return values::npy(slf.as_any());
            }
            let format = this.catalog().format().name();
            let message = format!(
                "samples of {format} have no known type: decode them, for example by \
                 numpy.load(sample.open()) or numpy.frombuffer(sample, dtype)"
            );
            return Err(pyo3::exceptions::PyTypeError::new_err(message));
        };
        values::array(slf.as_any(), array)
    }

    /// Deprecated: `array()` of each field.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        errors::renamed(py, c"Sample.arrays() is deprecated: use sample.field(name).array()")?;
        let arrays = PyDict::new(py);
        for name in self.field_names()? {
            if self.catalog().field_array(&name).is_some() {
                arrays.set_item(&name, PyField::array(Bound::new(py, self.field(&name)?)?)?)?;
            }
        }
        if arrays.is_empty() {
            let format = self.catalog().format().name();
            let message = format!("samples of {format} have no fields of known types here: use field()");
            return Err(pyo3::exceptions::PyTypeError::new_err(message));
        }
        Ok(arrays)
    }

    /// The name of its class: the first directory of its path, or a label that is a text.
    #[getter]
    fn label_name(&self) -> Option<&str> {
        self.catalog().label(self.id)
    }

    /// Its name in its shard (WebDataset's __key__, a zip member's name). None for files and
    /// records.
    #[getter]
    fn key(&self) -> PyResult<Option<String>> {
        let key = self.catalog().key(self.id).map_err(errors::raised)?;
        Ok(key.map(Cow::into_owned))
    }

    /// Its path below the dataset's URL. The path of a packed sample is its shard's, a slash, and
    /// its name there.
    #[getter]
    fn path(&self) -> PyResult<String> {
        values::path_of(self.catalog(), self.id)
    }

    /// The names of the sample's fields, in order: members of WebDataset, columns of MDS, datasets
    /// of HDF5. Empty for samples without any.
    #[getter]
    fn field_names(&self) -> PyResult<Vec<String>> {
        let fields = self.catalog().fields(self.id).map_err(errors::raised)?;
        Ok(fields.into_iter().map(|field| field.name.to_owned()).collect())
    }

    /// Deprecated: `field_names`.
    fn fields(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        errors::renamed(py, c"Sample.fields() is deprecated: use Sample.field_names")?;
        self.field_names()
    }

    /// The field `name` of the sample, without a copy, also where a value has its name. Raises
    /// KeyError if there is none.
    fn field(&self, name: &str) -> PyResult<PyField> {
        match self.catalog().field(self.id, name) {
            Some(range) => self.part(name, range.start, range.end),
            None => Err(pyo3::exceptions::PyKeyError::new_err(name.to_owned())),
        }
    }

    /// The sample as a file for reading, without a copy of its bytes, which the file holds until it
    /// is closed. For `PIL.Image.open`, `numpy.load`, `h5py.File`.
    fn open<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        values::as_file(slf.as_any())
    }

    fn __len__(&self) -> usize {
        self.data.peek().len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.data.peek())
    }

    /// Pickles the bytes only, as bytes.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<PyBytes>(), (self.__bytes__(py),))
    }

    fn __repr__(&self) -> String {
        let label = self.label_name().map_or_else(String::new, |label| format!(", label {label}"));
        format!("<foreread.Sample {}: {} bytes{label}>", self.id, self.__len__())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let sample = slf.get();
        // SAFETY: Python provides the view, and the sample never changes.
        unsafe { fill_view(slf.clone().into_any(), sample.data.peek(), view, flags) }
    }
}

/// A named part of a sample: a read-only buffer of the sample's own bytes.
#[pyclass(name = "Field", frozen, module = "foreread")]
#[derive(Debug)]
pub struct PyField {
    name: String,
    id: u64,
    data: ProcessLocal<Bytes>,
    catalog: ProcessLocal<Catalog>,
}

#[pymethods]
impl PyField {
    /// The end of the member's name, in lower case: jpg, cls, seg.png.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The id of its sample.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// Its bytes as a NumPy array, without a copy, where the format knows type and shape.
    fn array<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        match this.catalog.peek().field_array(&this.name) {
            Some(array) => values::array(slf.as_any(), array),
            None => Err(pyo3::exceptions::PyTypeError::new_err(format!(
                "the field '{}' has no known type: decode it, for example by numpy.load(field.open()) or \
                 numpy.frombuffer(field, dtype)",
                this.name
            ))),
        }
    }

    /// The part as a file for reading, without a copy of its bytes, which the file holds until it
    /// is closed. For `PIL.Image.open`, `numpy.load`, `h5py.File`.
    fn open<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        values::as_file(slf.as_any())
    }

    fn __len__(&self) -> usize {
        self.data.peek().len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.data.peek())
    }

    /// Pickles the bytes only, as bytes.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<PyBytes>(), (self.__bytes__(py),))
    }

    fn __repr__(&self) -> String {
        format!("<foreread.Field {} of sample {}: {} bytes>", self.name, self.id, self.__len__())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let field = slf.get();
        // SAFETY: Python provides the view, and the field never changes.
        unsafe { fill_view(slf.clone().into_any(), field.data.peek(), view, flags) }
    }
}
