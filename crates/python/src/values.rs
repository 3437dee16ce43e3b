//! Paths, labels, values and arrays of samples as Python objects.

use foreread::dataset::{ArrayType, SampleValue};
use foreread::{Catalog, SampleId};
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::errors;

/// The name of the column that has the label.
const LABEL: &str = "label";

/// A sample's label: the index of its class, or its value in the column of labels.
pub(crate) fn label<'py>(
    py: Python<'py>,
    catalog: &Catalog,
    id: SampleId,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    match catalog.label_index(id) {
        Some(class) => Ok(Some(class.into_pyobject(py)?.into_any())),
        None => value(py, catalog, id, LABEL),
    }
}

/// A sample's path for Python.
pub(crate) fn path_of(catalog: &Catalog, id: SampleId) -> PyResult<String> {
    let path = catalog.path(id);
    path.map(|path| path.into_owned()).map_err(errors::raised)
}

/// The names and paths of a sample's files, if it has several.
pub(crate) fn field_paths<'py>(
    py: Python<'py>,
    catalog: &Catalog,
    id: SampleId,
) -> PyResult<Bound<'py, PyDict>> {
    let files = catalog.files(id).map_err(errors::raised)?;
    let paths = PyDict::new(py);
    files.into_iter().try_for_each(|(name, object)| paths.set_item(name, &*object.path))?;
    Ok(paths)
}

/// A buffer as a file for reading.
pub(crate) fn as_file<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    buffer.py().import("foreread._sample_file")?.call_method1("SampleFile", (buffer,))
}

/// Whether samples may have labels.
pub(crate) fn has_labels(catalog: &Catalog) -> bool {
    !catalog.labels().is_empty() || catalog.value_names().iter().any(|name| name == LABEL)
}

/// The label of a sample as a 64-bit integer. `None` if it has none, or another type.
pub(crate) fn integer_label(catalog: &Catalog, id: SampleId) -> PyResult<Option<i64>> {
    Ok(match catalog.label_index(id) {
        Some(class) => Some(class.into()),
        None => match catalog.value(id, LABEL).map_err(errors::raised)? {
            Some(SampleValue::Integer(value)) => Some(value),
            _ => None,
        },
    })
}

/// A sample's value of this name.
pub(crate) fn value<'py>(
    py: Python<'py>,
    catalog: &Catalog,
    id: SampleId,
    name: &str,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(match catalog.value(id, name).map_err(errors::raised)? {
        None => None,
        Some(SampleValue::Integer(value)) => Some(value.into_pyobject(py)?.into_any()),
        Some(SampleValue::Float(value)) => Some(value.into_pyobject(py)?.into_any()),
        Some(SampleValue::Text(text)) => Some(text.into_pyobject(py)?.into_any()),
        // A copy, because PyTorch warns of arrays that cannot be written.
        Some(SampleValue::Array(kind, bytes)) => {
            Some(array(PyBytes::new(py, bytes).as_any(), kind)?.call_method0("copy")?)
        }
        Some(_) => None,
    })
}

/// Imports an optional package.
pub(crate) fn needed<'py>(py: Python<'py>, name: &str, what: &str) -> PyResult<Bound<'py, PyModule>> {
    py.import(name).map_err(|error| match error.is_instance_of::<PyImportError>(py) {
        true => {
            let message = format!("{what} needs {name}, which is not installed: pip install {name}");
            let wrapped = PyImportError::new_err(message);
            wrapped.set_cause(py, Some(error));
            wrapped
        }
        false => error,
    })
}

/// Integers in the format of Python's `array`.
pub(crate) fn integers<'py>(py: Python<'py>, numbers: &[i64]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}

/// A NumPy array over the memory of `buffer`.
pub(crate) fn array<'py>(buffer: &Bound<'py, PyAny>, kind: &ArrayType) -> PyResult<Bound<'py, PyAny>> {
    let py = buffer.py();
    let numpy = needed(py, "numpy", "array()")?;
    let flat = numpy.call_method1("frombuffer", (buffer, &kind.dtype))?;
    let shape = kind.shape.iter().map(|length| length.map_or(-1, |length| length as i64));
    flat.call_method1("reshape", (PyTuple::new(py, shape)?,))
}

/// The array in the bytes of an `.npy` file: a view of them, except for rare types.
pub(crate) fn npy<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = buffer.py();
    let numpy = needed(py, "numpy", "array()")?;
    let file = py.import("io")?.call_method1("BytesIO", (buffer,))?;
    let format = py.import("numpy.lib.format")?;
    let reader = match format.call_method1("read_magic", (&file,))?.extract()? {
        (1, 0) => "read_array_header_1_0",
        (2, 0) => "read_array_header_2_0",
        (_, _) => {
            file.call_method1("seek", (0,))?;
            return numpy.call_method1("load", (file,));
        }
    };
    let head = format.call_method1(reader, (&file,))?;
    let (shape, is_fortran, dtype): (Bound<'py, PyAny>, bool, Bound<'py, PyAny>) = head.extract()?;
    if dtype.getattr("hasobject")?.extract()? {
        let message = "the array has Python objects: numpy.load(sample.open(), allow_pickle=True) reads them";
        return Err(pyo3::exceptions::PyTypeError::new_err(message));
    }
    let count = numpy.call_method1("prod", (&shape,))?.call_method0("item")?.call_method0("__int__")?;
    let flat = numpy.call_method1("frombuffer", (buffer, dtype, count, file.call_method0("tell")?))?;
    let order = PyDict::new(py);
    order.set_item("order", if is_fortran { "F" } else { "C" })?;
    flat.call_method("reshape", (shape,), Some(&order))
}
