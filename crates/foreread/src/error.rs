//! One error type for everything the facade does.

use std::fmt;

use foreread_dataset::DatasetError;
use foreread_loader::LoadError;
use foreread_oracle::OracleError;
use foreread_planner::PlanError;
use foreread_tier::TierError;

/// What went wrong, roughly: enough to choose what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is missing, contradicts another or makes no sense. Nothing was started.
    Usage,
    /// The dataset cannot be opened or listed, or its catalog is unusable.
    Dataset,
    /// The run cannot be planned.
    Plan,
    /// A saved state cannot be read or written, or is of another run.
    State,
    /// The run has ended early: a sample cannot be read.
    Load,
    /// Ranks did not find each other, or are not about to do the same. Nothing was started.
    Ranks,
    /// The machine refused something (threads, memory).
    System,
}

/// Any failure of the facade. Opaque; one line says the thing, the cause and the remedy.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<foreread_tier::BoxError>,
}

/// The facade's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` is one line that says the thing, the cause and the remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    fn caused(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { kind, message: source.to_string(), source: Some(Box::new(source)) }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    /// What is behind the cause; the cause's own text is this error's already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().and_then(|source| source.source())
    }
}

impl From<DatasetError> for Error {
    fn from(error: DatasetError) -> Self {
        Self::caused(ErrorKind::Dataset, error)
    }
}

impl From<TierError> for Error {
    fn from(error: TierError) -> Self {
        Self::caused(ErrorKind::Dataset, error)
    }
}

impl From<OracleError> for Error {
    fn from(error: OracleError) -> Self {
        Self::caused(ErrorKind::Usage, error)
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Self::caused(ErrorKind::Plan, error)
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        Self::caused(ErrorKind::Load, error)
    }
}
