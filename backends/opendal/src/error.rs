//! What OpenDAL's errors mean for a read.
//!
//! Only classification: whether and when to try again is decided by the layers. OpenDAL's own text of an error is not
//! passed on: it holds the whole URL of the request, which carries the signature where a store takes that in the query.

use std::error::Error as _;

use foreread_tier::{ErrorKind, TierError};
use opendal::ErrorKind as Opendal;

use crate::service::remedy;
use crate::transport::Refusal;

/// The most characters of a store's own words that a message repeats.
const WORDS: usize = 200;

/// The kind of an error of OpenDAL's.
fn classify(error: &opendal::Error) -> ErrorKind {
    match error.kind() {
        Opendal::NotFound => ErrorKind::NotFound,
        // Stores say it in the message of a 403 or a 400.
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

/// `error` of the service `tier`, which was asked for `object`.
pub(crate) fn from_opendal(tier: &str, object: &str, error: &opendal::Error) -> TierError {
    let kind = classify(error);
    let refusal = error.source().and_then(|source| source.downcast_ref::<Refusal>());
    let said = match (refusal, error.source()) {
        (Some(refusal), _) => refusal.to_string(),
        (None, Some(source)) => format!("{}: {}", words(error.message()), words(&last(source))),
        (None, None) => words(error.message()),
    };
    let detail = match (kind, remedy(tier)) {
        (ErrorKind::NotFound | ErrorKind::Changed, _) => None,
        (ErrorKind::Denied | ErrorKind::Expired, Some(remedy)) if said.is_empty() => Some(remedy),
        (ErrorKind::Denied | ErrorKind::Expired, Some(remedy)) => Some(format!("{said}; {remedy}")),
        _ => Some(said).filter(|said| !said.is_empty()),
    };
    let mut named = TierError::new(kind, tier).with_object(object);
    if let Some(detail) = detail {
        named = named.with_detail(detail);
    }
    named.with_retry_after(refusal.and_then(|refusal| refusal.retry_after))
}

/// What is at the bottom of it: a refused connection, an unknown name.
fn last(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// What a store said, as a part of one line. Pages for browsers are left out.
fn words(message: &str) -> String {
    if message.trim_start().starts_with('<') {
        return String::new();
    }
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(WORDS) {
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
        let refusal = Refusal { status, retry_after: retry_after.map(Duration::from_secs) };
        from_opendal("webdav", "a/b", &opendal::Error::new(kind, "refused").set_source(refusal))
    }

    #[test]
    #[cfg(feature = "webdav")]
    fn one_line_says_what_and_what_to_do() {
        let error = refused(Opendal::PermissionDenied, 401, None);
        assert_eq!(
            error.to_string(),
            "webdav: a/b: permission denied: the store answered 401 Unauthorized; set FOREREAD_WEBDAV_USERNAME, \
             FOREREAD_WEBDAV_PASSWORD, FOREREAD_WEBDAV_HOST"
        );
    }

    #[test]
    fn what_passes_and_when() {
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
    fn a_long_answer_is_one_short_line_and_the_url_is_not_in_it() {
        let page = opendal::Error::new(Opendal::Unexpected, format!("first\n{}", "é ".repeat(1000)))
            .with_context("uri", "http://host/a?sig=hunter2");
        let error = from_opendal("x", "a", &page).to_string();
        assert!(error.len() < 500 && error.ends_with("...") && !error.contains('\n'), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        let page = opendal::Error::new(Opendal::Unexpected, "<html>sorry</html>");
        assert_eq!(from_opendal("x", "a", &page).to_string(), "x: a: failed");
    }
}
