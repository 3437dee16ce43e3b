//! Rust's reports as Python's dicts, by way of JSON: they are small, and made a few times a minute.

use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::Class;

/// `value` as Python's `json` reads it.
pub(crate) fn python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text(value)?,))
}

/// `value` as JSON.
pub(crate) fn text(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value)
        .map_err(|error| Class::Error.with(format!("a report cannot be written: {error}")))
}
