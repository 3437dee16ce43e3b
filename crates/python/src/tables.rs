//! Tables of samples: Python objects that are read as tables, and conditions on their rows.

use foreread::dataset::Grouping;
use foreread::table::{Comparison, Filter, FilterValue, SampleTable, TableKind, TableOptions, TableSource};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PySet, PyString, PyTuple};

use crate::errors::{self, ExceptionClass};

/// The table in a file, or in an object of Python.
pub(crate) fn source(table: &Bound<'_, PyAny>, options: &TableOptions) -> PyResult<TableSource> {
    let py = table.py();
    if table.is_instance_of::<PyString>() || table.hasattr("__fspath__")? {
        let place = py.import("os")?.call_method1("fspath", (table,))?;
        return Ok(TableSource::At(place.extract()?));
    }
    let given = py.import("foreread._tables")?.call_method1("table_bytes", (table,))?;
    let (name, ending, bytes): (String, String, Bound<'_, PyBytes>) = given.extract()?;
    let kind = TableKind::of_name(&format!(".{ending}"))
        .ok_or_else(|| ExceptionClass::Error.with(format!("{ending} is the ending of no table")))?;
    let bytes = bytes.as_bytes().to_vec().into();
    let read = py.detach(|| SampleTable::read(&name, kind, bytes, options));
    read.map(TableSource::Read).map_err(errors::raised)
}

/// A column of paths, or the names of fields with their columns or directories.
pub(crate) type PathArgument = (Option<String>, Vec<(String, String)>);

/// The column or the fields that `path` names.
pub(crate) fn path(given: &Bound<'_, PyAny>) -> PyResult<PathArgument> {
    if let Ok(fields) = given.cast::<PyDict>() {
        let field = |(name, of): (Bound<'_, PyAny>, Bound<'_, PyAny>)| Ok((name.extract()?, of.extract()?));
        let fields = fields.iter().map(field).collect::<PyResult<Vec<_>>>();
        let wrong = |_| errors::wrong_type("path", "a dict of names and columns or directories", given);
        return Ok((None, fields.map_err(wrong)?));
    }
    let wrong =
        |_| errors::wrong_type("path", "a column, or a dict of names and columns or directories", given);
    Ok((Some(given.extract().map_err(wrong)?), Vec::new()))
}

/// How files are samples without a table.
pub(crate) fn grouping(
    group: Option<&str>,
    fields: &[(String, String)],
    has_table: bool,
) -> PyResult<Grouping> {
    match group {
        Some("stem") if has_table || !fields.is_empty() => {
            Err(ExceptionClass::Config.with("group='stem' excludes table= and path="))
        }
        Some("stem") => Ok(Grouping::Stem),
        Some(other) => Err(ExceptionClass::Config.with(format!("group must be 'stem', not {other:?}"))),
        None if has_table || fields.is_empty() => Ok(Grouping::None),
        None => Ok(Grouping::Directories(fields.to_vec())),
    }
}

/// Whether rows without a file are left out.
pub(crate) fn skips_missing(action: &str) -> PyResult<bool> {
    match action {
        "fail" => Ok(false),
        "skip" => Ok(true),
        other => {
            Err(ExceptionClass::Config.with(format!("on_missing must be 'fail' or 'skip', not {other:?}")))
        }
    }
}

/// Conditions as pyarrow writes them: a list of tuples, all of which hold, or a list of such lists,
/// one of which holds.
pub(crate) fn filters(given: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<Filter>>> {
    let wrong = || errors::wrong_type("filters", "a list of tuples such as ('split', '==', 'train')", given);
    let list = given.cast::<PyList>().map_err(|_| wrong())?;
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let are_lists = list.iter().all(|one| one.is_instance_of::<PyList>());
    let all = |list: &Bound<'_, PyList>| list.iter().map(|one| filter(&one)).collect::<PyResult<Vec<_>>>();
    if are_lists {
        return list.iter().map(|one| all(one.cast::<PyList>().map_err(|_| wrong())?)).collect();
    }
    Ok(vec![all(list)?])
}

fn filter(given: &Bound<'_, PyAny>) -> PyResult<Filter> {
    let wrong = || errors::wrong_type("filters", "tuples such as ('split', '==', 'train')", given);
    let tuple = given.cast::<PyTuple>().map_err(|_| wrong())?;
    let (column, sign, value): (String, String, Bound<'_, PyAny>) = tuple.extract().map_err(|_| wrong())?;
    let comparison = Comparison::of(&sign).ok_or_else(|| {
        let known = "'==', '!=', '<', '<=', '>', '>=', 'in' or 'not in'";
        ExceptionClass::Config.with(format!("filters: {sign:?} is no comparison; use {known}"))
    })?;
    let is_array = || !value.is_instance_of::<PyString>() && value.hasattr("tolist").unwrap_or(false);
    let is_list = value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PySet>()
        // Of NumPy, unless it is a number.
        || is_array() && value.try_iter().is_ok();
    let values = match (matches!(comparison, Comparison::In | Comparison::NotIn), is_list) {
        (true, true) => value.try_iter()?.map(|one| filter_value(&one?)).collect::<PyResult<_>>()?,
        (false, false) => vec![filter_value(&value)?],
        (true, false) => return Err(errors::wrong_type("filters", "a list after 'in'", &value)),
        (false, true) => return Err(errors::wrong_type("filters", "one value, or 'in' and a list", &value)),
    };
    Ok(Filter { column, comparison, values })
}

fn filter_value(value: &Bound<'_, PyAny>) -> PyResult<FilterValue> {
    if value.is_instance_of::<PyBool>() {
        return Ok(FilterValue::Integer(i64::from(value.extract::<bool>()?)));
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(FilterValue::Integer(value.extract()?));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(FilterValue::Float(value.extract()?));
    }
    // Integers of NumPy.
    if let Ok(integer) = value.extract::<i64>() {
        return Ok(FilterValue::Integer(integer));
    }
    match value.extract() {
        Ok(text) => Ok(FilterValue::Text(text)),
        Err(_) => Err(errors::wrong_type("filters", "a number or a text", value)),
    }
}
