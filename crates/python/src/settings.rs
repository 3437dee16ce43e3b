//! Settings from Python: keyword arguments, then `FOREREAD_*`, then `foreread.toml`, then defaults.
//!
//! Values in Python's types (integers for sizes, lists of directories, paths) are converted to the
//! command's text form and parsed like it. So there is one parser and one set of messages. Only
//! values of wrong types are refused here, by `TypeError`.

use std::path::{Path, PathBuf};

use foreread::{Config, Format, State};
use foreread_settings::reader::PYTHON;
use foreread_settings::{Knob, KnobType, Knobs, Provenance, knobs_of};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};

use crate::errors::{self, ExceptionClass};

/// Settings of an order, which a source of samples by id refuses, with the place where they belong.
const ORDER_SETTINGS: &[(&str, &str)] = &[
    ("batch_size", "the batch size is your loader's"),
    ("epochs", "your loop determines the number of epochs"),
    ("seed", "the seed is your sampler's"),
    ("order_group", "the order is your sampler's"),
    ("sampler", "the sampler is your loader's"),
    ("deal", "your sampler decides what each rank reads"),
    ("drop_last", "your loader decides about the last batch"),
    ("validate", "use a separate loader for the validation set"),
    ("on_error", "an unreadable sample is an error of its request"),
    ("resume", "your loader has the state"),
    ("progress", "show a bar around your loop: tqdm(loader)"),
    ("recall", "files are restored in the order of a run; restore these before"),
];

/// The settings of a run.
#[derive(Debug)]
pub(crate) struct PythonSettings {
    pub(crate) config: Config,
    pub(crate) resume: Option<State>,
    /// Whether ranks that find each other share their caches.
    pub(crate) peers: bool,
    /// Whether to show progress.
    pub(crate) progress: bool,
    /// Whether batches are lent to worker processes. `foreread.torch` sets it.
    pub(crate) lends: bool,
}

impl PythonSettings {
    /// Reads the keyword arguments of `function`.
    pub(crate) fn of(function: &str, given: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Self::read(function, given, Vec::new())
    }

    /// The same for objects that know no other ranks, whatever the launcher and the arguments
    /// specify.
    ///
    /// Settings of an order or a batch are refused, because the caller decides these.
    pub(crate) fn alone(function: &str, given: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        for (name, instead) in ORDER_SETTINGS {
            if given
                .map(|given| given.get_item(name))
                .transpose()?
                .flatten()
                .is_some_and(|value| !value.is_none())
            {
                return Err(
                    ExceptionClass::Config.with(format!("{name}: samples are read on request; {instead}"))
                );
            }
        }
        let one = [("rank", 0), ("world-size", 1)].map(|(name, value)| (name, value.to_string()));
        Ok(Self { peers: false, ..Self::read(function, given, one.into())? })
    }

    /// Reads the keyword arguments. `overrides` replace other values.
    fn read(
        function: &str,
        given: Option<&Bound<'_, PyDict>>,
        overrides: Vec<(&'static str, String)>,
    ) -> PyResult<Self> {
        let mut knobs: Vec<(&'static str, String)> = Vec::new();
        let (mut resume, mut progress, mut lends) = (None, false, false);
        for (name, value) in given.into_iter().flatten() {
            let name: String = name.extract()?;
            if value.is_none() {
                continue; // None means "not given"
            }
            match name.as_str() {
                "progress" => progress = flag(&name, &value)?,
                "lends" => lends = flag(&name, &value)?,
                "resume" => resume = Some(state(&value)?),
                _ => match knobs_of(PYTHON).find(|knob| knob.argument() == name) {
                    Some(knob) => knobs.push((knob.name, text(knob, &name, &value)?)),
                    None => return Err(unexpected(function, &name, value.py())),
                },
            }
        }
        knobs.extend(overrides);
        foreread_settings::warn_of_unknown_variables();
        let environment = |name: &str| std::env::var(name).ok();
        let argument = |name: &str| name.replace('-', "_");
        let gathered = Knobs::gather_named(argument, knobs, environment, Path::new("foreread.toml"));
        let mut knobs = gathered.map_err(errors::raised)?;
        if let Some((_, Provenance::Default)) = knobs.get("epochs") {
            // In Python the caller's loop decides when to stop.
            knobs.set("epochs", Config::MAX_EPOCHS.to_string()).map_err(errors::raised)?;
        }
        let config = foreread_settings::config(&knobs).map_err(errors::raised)?;
        let peers = knobs.get("peers").is_none_or(|(value, _)| value != "off");
        Ok(Self { config, resume, peers, progress, lends })
    }
}

/// The error for an unknown keyword argument, with the most similar one as Python shows it.
fn unexpected(function: &str, name: &str, py: Python<'_>) -> PyErr {
    let more = ["progress", "resume"].map(str::to_owned);
    let known: Vec<String> = knobs_of(PYTHON).map(Knob::argument).chain(more).collect();
    let nearest = || -> PyResult<Vec<String>> {
        py.import("difflib")?.call_method1("get_close_matches", (name, known, 1))?.extract()
    };
    let tip = match nearest().ok().and_then(|found| found.into_iter().next()) {
        Some(similar) => format!(". Did you mean '{similar}'?"),
        None => String::new(),
    };
    PyTypeError::new_err(format!("{function}() got an unexpected keyword argument '{name}'{tip}"))
}

/// A value in the command's text form, if its type is right.
fn text(knob: &Knob, name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    match knob.value_type() {
        KnobType::Text => word(name, value),
        KnobType::Flag => Ok(flag(name, value)?.to_string()),
        // `auto`. The parser refuses other words.
        KnobType::Number if knob.has_auto() && value.is_instance_of::<PyString>() => word(name, value),
        KnobType::Number => integer(name, value),
        KnobType::Size => size(name, value),
        KnobType::Path => path(name, value),
        KnobType::List => disks(value),
    }
}

fn integer(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let wrong = || errors::wrong_type(name, "an integer", value);
    if value.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    match value.extract::<u64>() {
        Ok(number) => Ok(number.to_string()),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            let text = value.str().map_or_else(|_| "a number".to_owned(), |text| text.to_string());
            Err(ExceptionClass::Config.with(format!("{name} {text}: must be from 0 to 18446744073709551615")))
        }
        Err(_) => Err(wrong()),
    }
}

fn word(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => Err(errors::wrong_type(name, "a string", value)),
    }
}

fn flag(name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    match value.cast::<PyBool>() {
        Ok(flag) => Ok(flag.is_true()),
        Err(_) => Err(errors::wrong_type(name, "True or False", value)),
    }
}

/// A number of bytes, or a text such as `8GiB`.
pub(crate) fn size(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => integer(name, value).map_err(|error| {
            if error.is_instance_of::<PyTypeError>(value.py()) {
                errors::wrong_type(name, "a number of bytes or a text such as '8GiB'", value)
            } else {
                error
            }
        }),
    }
}

/// `DIR=SIZE`, a list of these, or directories with their sizes.
fn disks(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return text.extract();
    }
    let wrong = |value: &Bound<'_, PyAny>| {
        errors::wrong_type("disk", "'DIR=SIZE', a list of these, or a dict of directories and sizes", value)
    };
    let lines: PyResult<Vec<String>> = match value.cast::<PyDict>() {
        Ok(table) => {
            let line = |(directory, bytes): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
                Ok(format!("{}={}", path("disk", &directory)?, size("disk", &bytes)?))
            };
            table.iter().map(line).collect()
        }
        Err(_) => value.try_iter().map_err(|_| wrong(value))?.map(|line| word("disk", &line?)).collect(),
    };
    Ok(lines?.join("\n"))
}

pub(crate) fn format(value: &Bound<'_, PyAny>) -> PyResult<Option<Format>> {
    match word("format", value)?.as_str() {
        "auto" => Ok(None),
        name => Format::from_name(name).map(Some).ok_or_else(|| {
            let known: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
            ExceptionClass::Config.with(format!("format {name}: expected auto, {}", known.join(", ")))
        }),
    }
}

/// A state from `Loader.state()`.
fn state(value: &Bound<'_, PyAny>) -> PyResult<State> {
    State::from_json(&word("resume", value)?).map_err(errors::raised)
}

/// A URL or a path as text.
pub(crate) fn path(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let path: PathBuf = value.extract().map_err(|_| errors::wrong_type(name, "a string or a path", value))?;
    path.into_os_string().into_string().map_err(|path| {
        ExceptionClass::Config.with(format!("{name}: {} is not valid UTF-8", path.to_string_lossy()))
    })
}

/// The names in `target`: one dataset, or shards.
pub(crate) fn targets(target: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let several = target.cast::<PyList>().map(|list| list.as_any().clone());
    let several = several.or_else(|_| target.cast::<PyTuple>().map(|tuple| tuple.as_any().clone()));
    let names: Vec<String> = match several {
        Ok(list) => list.try_iter()?.map(|one| path("target", &one?)).collect::<PyResult<_>>()?,
        Err(_) => vec![path("target", target).map_err(|error| {
            match error.is_instance_of::<PyTypeError>(target.py()) {
                true => errors::wrong_type("target", "a URL, a path, a Catalog, or a list of shards", target),
                false => error,
            }
        })?],
    };
    match names.iter().any(|name| !name.is_empty()) {
        true => Ok(names),
        false => Err(ExceptionClass::Config.with("target: expected the URL or path of a dataset")),
    }
}
