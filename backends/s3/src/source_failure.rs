//! The failure of a source of credentials, and whether a retry may succeed.

use std::error::Error;
use std::fmt;

use foreread_tier::ErrorKind;

/// The failure of one source.
#[derive(Debug)]
pub(crate) struct SourceFailure {
    pub(crate) why: String,
    /// Whether a retry may succeed without a change: a service was unreachable or busy.
    pub(crate) transient: bool,
}

impl SourceFailure {
    /// A failure that stays until the user changes something.
    pub(crate) fn permanent(why: impl Into<String>) -> Self {
        Self { why: why.into(), transient: false }
    }

    /// The failure of a provider or of the client. Providers drop the text of the client's error,
    /// and some report every failure of the client as transient. So the client's own error decides
    /// if there is one.
    pub(crate) fn of(error: &reqsign_core::Error) -> Self {
        match client_error(error) {
            Some(cause) => Self {
                why: format!("{}: {}", one_line(error), one_line(cause)),
                transient: cause.is_retryable(),
            },
            None => Self { why: one_line(error), transient: error.is_retryable() },
        }
    }

    pub(crate) const fn kind(&self) -> ErrorKind {
        if self.transient { ErrorKind::Transient } else { ErrorKind::Denied }
    }

    /// Adds context to the failure.
    pub(crate) fn within(self, what: impl fmt::Display) -> Self {
        Self { why: format!("{what}: {}", self.why), ..self }
    }
}

/// Whether a service has answered and reported that it is busy.
pub(crate) fn is_busy(error: &reqsign_core::Error) -> bool {
    client_error(error).unwrap_or(error).kind() == reqsign_core::ErrorKind::RateLimited
}

/// The client's error within a provider's. Sources of other types are left out, because a parser's
/// may repeat secrets.
fn client_error(error: &reqsign_core::Error) -> Option<&reqsign_core::Error> {
    error.source()?.downcast_ref()
}

fn one_line(error: &impl fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
