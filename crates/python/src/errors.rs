//! Maps failures to Python exceptions.
//!
//! The classes are defined in Python (`errors.py`), where they can be documented and subclassed.
//! Here they are looked up by name. The class follows from the error's kind, never from its text.

use std::ffi::CStr;

use foreread::backend::{ErrorKind as TierKind, TierError};
use foreread::dataset::DatasetErrorKind;
use foreread::{Error, ErrorKind, LoadError, LoadErrorKind};
use pyo3::exceptions::{PyDeprecationWarning, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The classes of `foreread.errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceptionClass {
    Error,
    Config,
    NotFound,
    Denied,
    Corrupt,
    Changed,
    Origin,
    Meeting,
    State,
    Fork,
    Closed,
}

impl ExceptionClass {
    const fn name(self) -> &'static str {
        match self {
            Self::Error => "Error",
            Self::Config => "ConfigError",
            Self::NotFound => "NotFoundError",
            Self::Denied => "DeniedError",
            Self::Corrupt => "CorruptError",
            Self::Changed => "ChangedError",
            Self::Origin => "OriginError",
            Self::Meeting => "MeetingError",
            Self::State => "StateError",
            Self::Fork => "ForkError",
            Self::Closed => "ClosedError",
        }
    }

    /// An exception with this message.
    pub(crate) fn with(self, message: impl Into<String>) -> PyErr {
        let message = message.into();
        Python::attach(|py| {
            let class = py.import("foreread.errors").and_then(|module| module.getattr(self.name()));
            match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
                Ok(class) => PyErr::from_type(class, message),
                // Ctrl-C interrupted the look-up, or the interpreter is shutting down.
                Err(error) => error,
            }
        })
    }

    pub(crate) fn of_tier(kind: TierKind) -> Self {
        match kind {
            TierKind::NotFound => Self::NotFound,
            TierKind::Denied | TierKind::Expired => Self::Denied,
            TierKind::Changed => Self::Changed,
            TierKind::Corrupt => Self::Corrupt,
            TierKind::Invalid | TierKind::Unsupported => Self::Config,
            _ => Self::Origin,
        }
    }

    fn of_dataset(kind: DatasetErrorKind) -> Self {
        match kind {
            DatasetErrorKind::Empty => Self::NotFound,
            DatasetErrorKind::Invalid | DatasetErrorKind::Unsupported => Self::Config,
            DatasetErrorKind::Corrupt | DatasetErrorKind::NotACatalog | DatasetErrorKind::BadShard => {
                Self::Corrupt
            }
            DatasetErrorKind::Io => Self::Origin,
            DatasetErrorKind::Changed => Self::Changed,
            DatasetErrorKind::InUse => Self::Config,
            _ => Self::Error,
        }
    }

    fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Usage | ErrorKind::Plan => Self::Config,
            ErrorKind::State => Self::State,
            ErrorKind::Ranks => Self::Meeting,
            ErrorKind::Dataset | ErrorKind::Load | ErrorKind::Disk => {
                match (error.tier_kind(), error.dataset_kind()) {
                    (Some(kind), _) => Self::of_tier(kind),
                    (None, Some(kind)) => Self::of_dataset(kind),
                    (None, None) if error.kind() == ErrorKind::Dataset => Self::Config,
                    (None, None) => Self::Error,
                }
            }
            _ => Self::Error,
        }
    }
}

/// Converts an error of the library.
pub(crate) fn raised(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    ExceptionClass::of(&error).with(error.to_string())
}

/// Converts the error that ended a run early. The exception's `sample_id` is set if a sample caused
/// it.
pub(crate) fn run_failed(error: &LoadError) -> PyErr {
    let class = match error.kind() {
        LoadErrorKind::Sample(kind) => ExceptionClass::of_tier(kind),
        LoadErrorKind::Catalog => {
            error.dataset_kind().map_or(ExceptionClass::Error, ExceptionClass::of_dataset)
        }
        _ => ExceptionClass::Error,
    };
    let raised = class.with(error.to_string());
    if let Some(key) = error.key() {
        Python::attach(|py| {
            // The message has the id too.
            let _ = raised.value(py).setattr("sample_id", key.id.0);
        });
    }
    raised
}

/// Converts the error of a sample that was requested by its id.
pub(crate) fn unreadable(id: u64, error: &TierError) -> PyErr {
    let raised = ExceptionClass::of_tier(error.kind()).with(format!("sample {id} cannot be read: {error}"));
    Python::attach(|py| {
        // The message has the id too.
        let _ = raised.value(py).setattr("sample_id", id);
    });
    raised
}

/// Warns of a name that another one has replaced. Python shows it once for each line that has the
/// old name.
pub(crate) fn renamed(py: Python<'_>, message: &CStr) -> PyResult<()> {
    PyErr::warn(py, &py.get_type::<PyDeprecationWarning>(), message, 1)
}

/// The error for using `what` in a forked child.
pub(crate) fn forked(what: &str) -> PyErr {
    ExceptionClass::Fork.with(format!(
        "this {what} was created before the process was forked, and its threads are missing here; create it \
         in this process, or give workers foreread.torch.Dataset, which they share"
    ))
}

/// The error for an argument of a wrong type.
pub(crate) fn wrong_type(name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let is = value.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{name} must be {wanted}, not {is}"))
}
