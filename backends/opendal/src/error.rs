//! Maps OpenDAL's errors to kinds of `TierError`.
//!
//! This is classification only. The layers decide whether and when to retry. OpenDAL's own error
//! text is not passed on, because it has the whole URL of the request, which may carry a signature.

use std::error::Error as _;

use foreread_tier::{ErrorKind, TierError};
use opendal::ErrorKind as Opendal;

use crate::services::remedy;
use crate::transport::HttpRefusal;

/// The maximum number of characters of an origin's message in an error.
const MAX_MESSAGE: usize = 200;

/// The kind of an OpenDAL error.
fn classify(error: &opendal::Error) -> ErrorKind {
    match error.kind() {
        Opendal::NotFound => ErrorKind::NotFound,
        // Origins report expiry in the message of a 403 or a 400.
        Opendal::PermissionDenied | Opendal::Unexpected if error.message().contains("xpired") => {
            ErrorKind::Expired
        }
        Opendal::PermissionDenied => ErrorKind::Denied,
        Opendal::RateLimited => ErrorKind::Throttled,
        Opendal::ConditionNotMatch
        | Opendal::RangeNotSatisfied
        | Opendal::IsADirectory
        | Opendal::NotADirectory => ErrorKind::Changed,
        Opendal::ConfigInvalid => ErrorKind::Invalid,
        Opendal::Unsupported => ErrorKind::Unsupported,
        _ if error.is_temporary() => ErrorKind::Transient,
        _ => ErrorKind::Other,
    }
}

/// Converts an error of the service `tier` for `object`.
pub(crate) fn from_opendal(tier: &str, object: &str, error: &opendal::Error) -> TierError {
    let kind = classify(error);
    let refusal = error.source().and_then(|source| source.downcast_ref::<HttpRefusal>());
    let message = match (refusal, error.source()) {
        (Some(refusal), _) => refusal.to_string(),
        (None, Some(source)) => {
            format!("{}: {}", short_line(error.message()), short_line(&root_cause(source)))
        }
        (None, None) => short_line(error.message()),
    };
    let detail = match (kind, remedy(tier)) {
        (ErrorKind::NotFound | ErrorKind::Changed, _) => None,
        (ErrorKind::Denied | ErrorKind::Expired, Some(remedy)) if message.is_empty() => Some(remedy),
        (ErrorKind::Denied | ErrorKind::Expired, Some(remedy)) => Some(format!("{message}; {remedy}")),
        _ => Some(message).filter(|message| !message.is_empty()),
    };
    let mut named = TierError::new(kind, tier).with_object(object);
    if let Some(detail) = detail {
        named = named.with_detail(detail);
    }
    named.with_retry_after(refusal.and_then(|refusal| refusal.retry_after))
}

/// The innermost error, such as a refused connection or an unknown name.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// An origin's message as part of one line. HTML pages are omitted.
fn short_line(message: &str) -> String {
    if message.trim_start().starts_with('<') {
        return String::new();
    }
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;

    fn refused(kind: Opendal, status: u16, retry_after: Option<u64>) -> TierError {
        let status = StatusCode::from_u16(status).unwrap();
        let refusal = HttpRefusal { status, retry_after: retry_after.map(Duration::from_secs) };
        from_opendal("webdav", "a/b", &opendal::Error::new(kind, "refused").set_source(refusal))
    }

    #[test]
    #[cfg(feature = "webdav")]
    fn error_line_names_cause_and_remedy() {
        let error = refused(Opendal::PermissionDenied, 401, None);
        assert_eq!(
            error.to_string(),
            "webdav: a/b: permission denied: the storage answered 401 Unauthorized; set \
             FOREREAD_WEBDAV_USERNAME, FOREREAD_WEBDAV_PASSWORD, FOREREAD_WEBDAV_HOST"
        );
    }

    #[test]
    fn temporary_and_expired_errors_are_detected() {
        let error = refused(Opendal::RateLimited, 503, Some(7));
        assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Throttled, Some(Duration::from_secs(7))));
        let temporary = opendal::Error::new(Opendal::Unexpected, "reset").set_temporary();
        assert!(from_opendal("x", "a", &temporary).is_retryable());
        let expired = opendal::Error::new(Opendal::PermissionDenied, "<Code>ExpiredToken</Code>");
        assert_eq!(from_opendal("x", "a", &expired).kind(), ErrorKind::Expired);
        let other = opendal::Error::new(Opendal::Unexpected, "no");
        assert_eq!(from_opendal("x", "a", &other).kind(), ErrorKind::Other);
    }

    #[test]
    // semantics: OPENDAL-9
    fn long_answer_becomes_one_short_line_without_the_url() {
        let page = opendal::Error::new(Opendal::Unexpected, format!("first\n{}", "é ".repeat(1000)))
            .with_context("uri", "http://host/a?sig=hunter2");
        let error = from_opendal("x", "a", &page).to_string();
        assert!(error.len() < 500 && error.ends_with("...") && !error.contains('\n'), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        let page = opendal::Error::new(Opendal::Unexpected, "<html>sorry</html>");
        assert_eq!(from_opendal("x", "a", &page).to_string(), "x: a: failed");
    }
}
