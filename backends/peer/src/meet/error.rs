//! Why ranks did not meet, or could not stay together.
//!
//! One line each, naming the rank or the variable, the cause and the remedy: the same failure is printed by a thousand
//! ranks, and each must say enough by itself.

use std::io;
use std::sync::Arc;

use foreread_launcher::LaunchError;
use foreread_tier::BoxError;
use serde::{Deserialize, Serialize};

/// The kinds of failure that callers can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MeetErrorKind {
    /// What the launcher or the user said is wrong or incomplete: a variable, an address, a rank that is too large.
    Setting,
    /// There is no job token, or none that only the job's user can read.
    Secret,
    /// Somebody did not come, or did not answer, before the deadline.
    Deadline,
    /// The ranks differ in what has to be equal: world size, version, seed, catalog, plan.
    Differs,
    /// Another rank gave up and said why.
    Refused,
    /// An address cannot be listened on or reached.
    Network,
    /// Rank 0 is gone, or the ranks do not follow the same steps.
    Broken,
}

/// Why ranks did not meet.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct MeetError(Arc<Failure>);

/// Displays as one line: the rank or variable, the cause, the remedy. The source is not in it.
#[derive(Debug, thiserror::Error)]
#[error("{line}")]
struct Failure {
    kind: MeetErrorKind,
    line: String,
    source: Option<BoxError>,
}

impl MeetError {
    /// An error whose message is `line`.
    pub(crate) fn new(kind: MeetErrorKind, line: impl Into<String>) -> Self {
        Self(Arc::new(Failure { kind, line: line.into(), source: None }))
    }

    /// The same, with the error that caused it.
    pub(crate) fn caused(kind: MeetErrorKind, line: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self(Arc::new(Failure { kind, line: line.into(), source: Some(source.into()) }))
    }

    /// That there are no random bytes, as an error of this kind.
    pub(crate) fn no_random(kind: MeetErrorKind) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::caused(kind, "the operating system has no random bytes", error)
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> MeetErrorKind {
        self.0.kind
    }
}

impl From<LaunchError> for MeetError {
    fn from(error: LaunchError) -> Self {
        Self::new(MeetErrorKind::Setting, error.to_string())
    }
}
