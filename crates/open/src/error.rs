//! The error type of the library.

use std::fmt;

use foreread_dataset::{DatasetError, DatasetErrorKind};
use foreread_loader::{LoadError, LoadErrorKind};
use foreread_oracle::OracleError;
use foreread_planner::PlanError;
use foreread_tier::{ErrorKind as TierErrorKind, TierError};
use tokio::task::JoinError;

/// The category of an error, to choose a reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is missing, contradicts another or is invalid. Nothing was started.
    Usage,
    /// The dataset cannot be opened or listed, or its catalog is unusable.
    Dataset,
    /// The run cannot be planned.
    Plan,
    /// A saved state cannot be read or written, or belongs to another run.
    State,
    /// The run has ended early because a sample cannot be read.
    Load,
    /// The rendezvous of ranks failed, or their runs differ. Nothing was started.
    Ranks,
    /// A directory of the disk tier cannot be used.
    Disk,
    /// Code that the run calls has panicked: a callback, a backend, or the library itself.
    Panic,
    /// The operating system refused a resource (threads, memory).
    System,
}

/// Any failure of the library. Opaque. One line names the object, the cause and the remedy.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    tier: Option<TierErrorKind>,
    dataset: Option<DatasetErrorKind>,
    source: Option<foreread_tier::BoxError>,
}

/// The library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`. `message` is one line that names the object, the cause and the remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), tier: None, dataset: None, source: None }
    }

    /// A wrong setting: `message` names it.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// An error of a dataset, of this kind.
    pub fn dataset(kind: DatasetErrorKind, message: impl Into<String>) -> Self {
        Self { dataset: Some(kind), ..Self::new(ErrorKind::Dataset, message) }
    }

    fn caused(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        let message = source.to_string();
        Self { kind, message, tier: None, dataset: None, source: Some(Box::new(source)) }
    }

    /// The error of an unusable directory of the disk tier.
    pub fn disk(error: TierError) -> Self {
        Self { kind: ErrorKind::Disk, ..Self::from(error) }
    }

    /// The error of work for a runtime that was shut down.
    pub fn shut_down() -> Self {
        Self::new(ErrorKind::System, "the runtime was shut down")
    }

    /// The error of a task that has panicked.
    pub fn panicked(error: JoinError) -> Self {
        let message = format!("code that the run calls has panicked (a callback or a backend): {error}");
        Self { message, ..Self::caused(ErrorKind::Panic, error) }
    }

    /// The category of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The kind of the tier's error, if a tier is the cause. Examples: a missing directory, a
    /// bucket without read permission, or a store that does not answer.
    pub fn tier_kind(&self) -> Option<TierErrorKind> {
        self.tier
    }

    /// The kind of the dataset's error, if a dataset or its catalog is the cause.
    pub fn dataset_kind(&self) -> Option<DatasetErrorKind> {
        self.dataset
    }
}

/// The kind of the first tier error in a chain of causes, or of a file that is missing or not
/// readable.
fn tier_kind(error: &(dyn std::error::Error + 'static)) -> Option<TierErrorKind> {
    let of_file = |error: &std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Some(TierErrorKind::NotFound),
        std::io::ErrorKind::PermissionDenied => Some(TierErrorKind::Denied),
        _ => None,
    };
    let mut chain = std::iter::successors(Some(error), |error| error.source());
    chain.find_map(|error| {
        let tier = error.downcast_ref::<TierError>().map(TierError::kind);
        tier.or_else(|| error.downcast_ref().and_then(of_file))
    })
}

/// The error of a task that did not return.
pub fn ended(error: JoinError) -> Error {
    if error.is_panic() { Error::panicked(error) } else { Error::shut_down() }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    /// The source of the cause. The cause's own text is already this error's text.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().and_then(|source| source.source())
    }
}

impl From<DatasetError> for Error {
    fn from(error: DatasetError) -> Self {
        let (tier, dataset) = (tier_kind(&error), Some(error.kind()));
        Self { tier, dataset, ..Self::caused(ErrorKind::Dataset, error) }
    }
}

impl From<TierError> for Error {
    fn from(error: TierError) -> Self {
        let tier = Some(error.kind());
        Self { tier, ..Self::caused(ErrorKind::Dataset, error) }
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
        let tier = match error.kind() {
            LoadErrorKind::Sample(kind) => Some(kind),
            _ => None,
        };
        let kind = match error.kind() {
            LoadErrorKind::Panic => ErrorKind::Panic,
            _ => ErrorKind::Load,
        };
        let dataset = error.dataset_kind();
        Self { tier, dataset, ..Self::caused(kind, error) }
    }
}
