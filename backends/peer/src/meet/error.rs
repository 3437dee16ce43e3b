//! Errors of the rendezvous and of staying connected.
//!
//! Each error is one line that names the rank or variable, the cause and the remedy. A thousand
//! ranks print the same failure, and each line must be sufficient alone.

use std::io;
use std::sync::Arc;

use foreread_launcher::LaunchError;
use foreread_tier::BoxError;
use serde::{Deserialize, Serialize};

/// The kinds of failure that callers can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MeetErrorKind {
    /// A setting of the launcher or the user is invalid or missing: a variable, an address, a rank.
    Setting,
    /// The job has no token, or other users can read its token.
    Secret,
    /// A rank did not come or answer before the deadline.
    Deadline,
    /// Ranks differ in settings that must be equal: world size, version, seed, catalog, plan.
    Differs,
    /// Another rank gave up and reported the reason.
    Refused,
    /// Cannot listen at or connect to an address.
    Network,
    /// Rank 0 is gone, or ranks do not follow the same steps.
    Broken,
}

/// Why the rendezvous failed. Displays as one line.
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
    /// An error with this message.
    pub(crate) fn new(kind: MeetErrorKind, line: impl Into<String>) -> Self {
        Self(Arc::new(Failure { kind, line: line.into(), source: None }))
    }

    /// An error with this message and its cause.
    pub(crate) fn caused(kind: MeetErrorKind, line: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self(Arc::new(Failure { kind, line: line.into(), source: Some(source.into()) }))
    }

    /// The error if the operating system has no random bytes.
    pub(crate) fn no_random(kind: MeetErrorKind) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::caused(kind, "the operating system has no random bytes", error)
    }

    /// The kind of failure.
    pub fn kind(&self) -> MeetErrorKind {
        self.0.kind
    }
}

impl From<LaunchError> for MeetError {
    fn from(error: LaunchError) -> Self {
        Self::new(MeetErrorKind::Setting, error.to_string())
    }
}
