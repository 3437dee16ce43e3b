//! Converts Rust reports to Python dicts through JSON. Reports are small and made a few times per
//! minute.

use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::ExceptionClass;

/// `value` as Python objects.
pub(crate) fn python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text(value)?,))
}

/// `value` as JSON.
pub(crate) fn text(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value)
        .map_err(|error| ExceptionClass::Error.with(format!("cannot serialize a report: {error}")))
}
