//! The failure of a source of credentials, and whether a retry may succeed.

use std::error::Error;
use std::fmt;

use foreread_tier::ErrorKind;

/// The failure of one source.
#[derive(Debug)]
pub(crate) struct SourceFailure {
    pub(crate) why: String,
    /// Whether another attempt may succeed with nothing changed: a service was not reached, or was
    /// busy.
    pub(crate) transient: bool,
}

impl SourceFailure {
    /// One that stays until somebody does something.
    pub(crate) fn permanent(why: impl Into<String>) -> Self {
        Self { why: why.into(), transient: false }
    }

    /// What a provider or the client came back with. Providers repeat the client's error without
    /// its words, and some take every failure of the client for one that may pass. So the client's
    /// own error decides where there is one.
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

    /// The same as a part of something larger.
    pub(crate) fn within(self, what: impl fmt::Display) -> Self {
        Self { why: format!("{what}: {}", self.why), ..self }
    }
}

/// Whether a service has answered, and been too busy for more than that.
pub(crate) fn is_busy(error: &reqsign_core::Error) -> bool {
    client_error(error).unwrap_or(error).kind() == reqsign_core::ErrorKind::RateLimited
}

/// The error of the client within a provider's. Sources of other types are left out: a parser's may
/// repeat secrets.
fn client_error(error: &reqsign_core::Error) -> Option<&reqsign_core::Error> {
    error.source()?.downcast_ref()
}

fn one_line(error: &impl fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
