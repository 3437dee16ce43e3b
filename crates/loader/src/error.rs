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
pub struct LoadError(Arc<Failure>);

#[derive(Debug)]
struct Failure {
    kind: LoadErrorKind,
    line: String,
    cause: Cause,
}

/// The error whose text is in the message.
#[derive(Debug)]
enum Cause {
    None,
    Sample(SampleKey, TierError),
    Catalog(DatasetError),
}

impl LoadError {
    fn new(kind: LoadErrorKind, line: impl Into<String>, cause: Cause) -> Self {
        Self(Arc::new(Failure { kind, line: line.into(), cause }))
    }

    pub(crate) fn sample(key: SampleKey, epoch: u64, error: TierError) -> Self {
        let advice = match error.kind() {
            ErrorKind::NotFound | ErrorKind::Changed => "index the dataset again if the change is intended",
            ErrorKind::Denied => "give this user permission to read it",
            ErrorKind::Expired => "renew the credentials",
            _ => "resume after fixing the cause, or have unreadable samples skipped or substituted",
        };
        let line = format!("{key} (epoch {epoch}) cannot be read: {error}; {advice}");
        Self::new(LoadErrorKind::Sample(error.kind()), line, Cause::Sample(key, error))
    }

    pub(crate) fn catalog(error: DatasetError) -> Self {
        Self::new(LoadErrorKind::Catalog, error.to_string(), Cause::Catalog(error))
    }

    pub(crate) fn order(error: OracleError) -> Self {
        let line = format!("the order of an epoch cannot be computed: {error}");
        Self::new(LoadErrorKind::Order, line, Cause::None)
    }

    /// A panic in the engine's task.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let line = format!("a panic in a cache or in the engine: {}", panic_message(panic));
        Self::new(LoadErrorKind::Panic, line, Cause::None)
    }

    pub(crate) fn stopped() -> Self {
        let line = "the engine stopped before the end of the run: was its runtime shut down?";
        Self::new(LoadErrorKind::Stopped, line, Cause::None)
    }

    /// A call on a thread of the engine's own runtime.
    pub fn blocking() -> Self {
        let line = "waiting for a batch would block the runtime that reads it: take batches as a stream, or \
                    do not set `runtime(..)`";
        Self::new(LoadErrorKind::Blocking, line, Cause::None)
    }

    pub(crate) fn timeout() -> Self {
        let line = "no batch arrived within the timeout; the run continues";
        Self::new(LoadErrorKind::Timeout, line, Cause::None)
    }

    /// The kind of the failure.
    pub fn kind(&self) -> LoadErrorKind {
        self.0.kind
    }

    /// The kind of the catalog's error, if the catalog is the cause.
    pub fn dataset_kind(&self) -> Option<DatasetErrorKind> {
        if let Cause::Catalog(error) = &self.0.cause { Some(error.kind()) } else { None }
    }

    /// The sample that could not be read.
    pub fn key(&self) -> Option<SampleKey> {
        if let Cause::Sample(key, _) = &self.0.cause { Some(*key) } else { None }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.line)
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            Cause::None => None,
            Cause::Sample(_, error) => std::error::Error::source(error),
            Cause::Catalog(error) => std::error::Error::source(error),
        }
    }
}
