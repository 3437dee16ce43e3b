//! What can go wrong between two ranks.

use std::fmt;
use std::io;
use std::sync::Arc;

/// The kinds of failure that callers can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WireErrorKind {
    /// The connection could not be made, broke, or was closed.
    Gone,
    /// Nothing came in time.
    Late,
    /// The other end does not know this job's token, or is another rank than it should be.
    Stranger,
    /// Who wants to meet names this job and has another token, or is told so by who answers.
    OtherToken,
    /// The other end belongs to another job.
    OtherJob,
    /// The other end is of this job and in another run, or in none yet.
    OtherRun,
    /// The other end protects samples otherwise (see [`Wire`](crate::Wire)).
    OtherWire,
    /// The other end speaks another version.
    OtherVersion,
    /// The other end knows the token and does not take such a connection.
    Unwanted,
    /// What came is no frame, or one that was not to come.
    Malformed,
}

/// A failure of a connection: what kind, and what happened.
#[derive(Clone, Debug)]
pub struct WireError {
    kind: WireErrorKind,
    detail: String,
    source: Option<Arc<io::Error>>,
}

impl WireError {
    /// A failure of `kind`, in words.
    pub fn new(kind: WireErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), source: None }
    }

    /// What came is no frame, or was not to come: what, in words.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(WireErrorKind::Malformed, detail)
    }

    /// The connection could not be made or broke while it did `what`.
    pub fn io(what: &str, error: io::Error) -> Self {
        Self { kind: WireErrorKind::Gone, detail: what.to_owned(), source: Some(Arc::new(error)) }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> WireErrorKind {
        self.kind
    }

    /// The same, with words in front that say with whom.
    #[must_use]
    pub fn with(mut self, whom: impl fmt::Display) -> Self {
        self.detail = format!("{whom}: {}", self.detail);
        self
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
