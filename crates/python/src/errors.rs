//! Which Python exception a failure is.
//!
//! The classes are Python's own (`errors.py`), so that they can be read, documented and subclassed there; here they are
//! looked up once, by name. Which one it is follows from the error's kind, never from its text.

use foreread::backend::{ErrorKind as TierKind, TierError};
use foreread::dataset::DatasetErrorKind;
use foreread::{Error, ErrorKind, LoadError, LoadErrorKind};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The classes of `foreread.errors`, by what they are called there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
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

impl Class {
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

    /// The exception with this message.
    pub(crate) fn with(self, message: impl Into<String>) -> PyErr {
        let message = message.into();
        Python::attach(|py| {
            let class = py.import("foreread.errors").and_then(|module| module.getattr(self.name()));
            match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
                Ok(class) => PyErr::from_type(class, message),
                // Ctrl-C has come in between, or the interpreter is being torn down.
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
            DatasetErrorKind::Invalid => Self::Config,
            DatasetErrorKind::Corrupt
            | DatasetErrorKind::NotACatalog
            | DatasetErrorKind::Unsupported
            | DatasetErrorKind::BadShard => Self::Corrupt,
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

/// A failure of the library.
pub(crate) fn raised(error: &Error) -> PyErr {
    Class::of(error).with(error.to_string())
}

/// The run has ended early; the exception's `sample_id` says at which sample, where it was one.
pub(crate) fn ended(error: &LoadError) -> PyErr {
    let class = match error.kind() {
        LoadErrorKind::Sample(kind) => Class::of_tier(kind),
        LoadErrorKind::Catalog => error.dataset_kind().map_or(Class::Error, Class::of_dataset),
        _ => Class::Error,
    };
    let raised = class.with(error.to_string());
    if let Some(key) = error.key() {
        Python::attach(|py| {
            // It is said in the message too.
            let _ = raised.value(py).setattr("sample_id", key.id.0);
        });
    }
    raised
}

/// A sample that was asked for by its number cannot be read.
pub(crate) fn unread(id: u64, error: &TierError) -> PyErr {
    let raised = Class::of_tier(error.kind()).with(format!("sample {id} cannot be read: {error}"));
    Python::attach(|py| {
        // It is said in the message too.
        let _ = raised.value(py).setattr("sample_id", id);
    });
    raised
}

/// `what` was made in another process.
pub(crate) fn forked(what: &str) -> PyErr {
    Class::Fork.with(format!(
        "this {what} was made before the process was forked, and its threads are not here; make it in this process, or \
         give workers foreread.torch.Dataset, which they share"
    ))
}

/// An argument of a type that it cannot have.
pub(crate) fn wrong_type(name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let is = value.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{name} is {wanted}, not {is}"))
}
