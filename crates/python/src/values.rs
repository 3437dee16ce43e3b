//! Labels, values and arrays of samples as Python objects.

use foreread::dataset::{ArrayType, SampleValue};
use foreread::{Catalog, SampleId};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::catalog::needed;

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

/// Whether samples may have labels.
pub(crate) fn has_labels(catalog: &Catalog) -> bool {
    !catalog.labels().is_empty() || catalog.value_names().iter().any(|name| name == LABEL)
}

/// The label of a sample as a 64-bit integer. `None` if it has none, or another type.
pub(crate) fn integer_label(catalog: &Catalog, id: SampleId) -> Option<i64> {
    match catalog.label_index(id) {
        Some(class) => Some(class.into()),
        None => match catalog.value(id, LABEL) {
            Some(SampleValue::Integer(value)) => Some(value),
            _ => None,
        },
    }
}

/// A sample's value of this name.
pub(crate) fn value<'py>(
    py: Python<'py>,
    catalog: &Catalog,
    id: SampleId,
    name: &str,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(match catalog.value(id, name) {
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

/// A NumPy array over the memory of `buffer`.
pub(crate) fn array<'py>(buffer: &Bound<'py, PyAny>, kind: &ArrayType) -> PyResult<Bound<'py, PyAny>> {
    let py = buffer.py();
    let numpy = needed(py, "numpy", "array()")?;
    let flat = numpy.call_method1("frombuffer", (buffer, &kind.dtype))?;
    let shape = kind.shape.iter().map(|length| length.map_or(-1, |length| length as i64));
    flat.call_method1("reshape", (PyTuple::new(py, shape)?,))
}
