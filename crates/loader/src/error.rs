//! Why a run ended early.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use foreread_dataset::{DatasetError, DatasetErrorKind};
use foreread_oracle::OracleError;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::SampleKey;

use crate::panics::panic_message;

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// A sample could not be read, with the kind of the tier's error.
    Sample(ErrorKind),
    /// The catalog file was changed or truncated, or can no longer be read. No sample is at fault,
    /// and none is skipped.
    Catalog,
    /// The order of a pass could not be computed.
    Order,
    /// Code called by the engine has panicked: a custom cache, or the engine itself.
    Panic,
    /// The engine stopped before the end because its runtime was shut down.
    Stopped,
    /// The call would have blocked the engine's own runtime. The run is not over.
    Blocking,
    /// No batch arrived within the caller's timeout. The run is not over.
    Timeout,
}

/// Why a run ended early. Opaque and cheap to clone.
#[derive(Clone, Debug)]
pub struct LoadError(Cause);

#[derive(Clone, Debug)]
enum Cause {
    Sample { key: SampleKey, epoch: u64, source: TierError },
    Catalog(DatasetError),
    Order(Arc<OracleError>),
    Panic(Arc<str>),
    Stopped,
    Blocking,
    Timeout,
}

impl LoadError {
    pub(crate) fn sample(key: SampleKey, epoch: u64, source: TierError) -> Self {
        Self(Cause::Sample { key, epoch, source })
    }

    pub(crate) fn catalog(error: DatasetError) -> Self {
        Self(Cause::Catalog(error))
    }

    pub(crate) fn order(error: OracleError) -> Self {
        Self(Cause::Order(Arc::new(error)))
    }

    /// A panic in the engine's task.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        Self(Cause::Panic(panic_message(panic).into()))
    }

    pub(crate) fn stopped() -> Self {
        Self(Cause::Stopped)
    }

    /// A call on a thread of the engine's own runtime.
    pub fn blocking() -> Self {
        Self(Cause::Blocking)
    }

    pub(crate) fn timeout() -> Self {
        Self(Cause::Timeout)
    }

    /// The kind of the failure.
    pub fn kind(&self) -> LoadErrorKind {
        match &self.0 {
            Cause::Sample { source, .. } => LoadErrorKind::Sample(source.kind()),
            Cause::Catalog(_) => LoadErrorKind::Catalog,
            Cause::Order(_) => LoadErrorKind::Order,
            Cause::Panic(_) => LoadErrorKind::Panic,
            Cause::Stopped => LoadErrorKind::Stopped,
            Cause::Blocking => LoadErrorKind::Blocking,
            Cause::Timeout => LoadErrorKind::Timeout,
        }
    }

    /// The kind of the catalog's error, if the catalog is the cause.
    pub fn dataset_kind(&self) -> Option<DatasetErrorKind> {
        match &self.0 {
            Cause::Catalog(error) => Some(error.kind()),
            _ => None,
        }
    }

    /// The sample that could not be read.
    pub fn key(&self) -> Option<SampleKey> {
        match &self.0 {
            Cause::Sample { key, .. } => Some(*key),
            _ => None,
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Sample { key, epoch, source } => {
                write!(f, "{key} (epoch {epoch}) cannot be read: {source}")?;
                match source.kind() {
                    ErrorKind::NotFound | ErrorKind::Changed => {
                        f.write_str("; index the dataset again if the change is intended")
                    }
                    ErrorKind::Denied => f.write_str("; give this user permission to read it"),
                    ErrorKind::Expired => f.write_str("; renew the credentials"),
                    _ => f.write_str(
                        "; resume after fixing the cause, or have unreadable samples skipped or substituted",
                    ),
                }
            }
            Cause::Catalog(error) => error.fmt(f),
            Cause::Order(error) => write!(f, "the order of an epoch cannot be computed: {error}"),
            Cause::Panic(message) => {
                write!(f, "a panic in a cache or in the engine: {message}")
            }
            Cause::Stopped => {
                f.write_str("the engine stopped before the end of the run: was its runtime shut down?")
            }
            Cause::Timeout => f.write_str("no batch arrived within the timeout; the run continues"),
            Cause::Blocking => f.write_str(
                "waiting for a batch would block the runtime that reads it: take batches as a stream, or do \
                 not set `runtime(..)`",
            ),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Cause::Sample { source, .. } => std::error::Error::source(source),
            Cause::Catalog(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}
