//! Error answers.

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use super::xml;

/// The error code of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum S3Error {
    NoSuchKey,
    NoSuchBucket,
    AccessDenied,
    InvalidAccessKeyId,
    ExpiredToken,
    PreconditionFailed,
    InvalidRange,
    InvalidArgument(&'static str),
    NotImplemented,
    /// The right region.
    PermanentRedirect(String),
    InternalError,
    SlowDown(Option<u64>),
}

impl S3Error {
    fn parts(&self) -> (u16, &'static str, &'static str) {
        match self {
            Self::NoSuchKey => (404, "NoSuchKey", "The specified key does not exist."),
            Self::NoSuchBucket => (404, "NoSuchBucket", "The specified bucket does not exist"),
            Self::AccessDenied => (403, "AccessDenied", "Access Denied"),
            Self::InvalidAccessKeyId => (
                403,
                "InvalidAccessKeyId",
                "The AWS Access Key Id you provided does not exist in our records.",
            ),
            Self::ExpiredToken => (403, "ExpiredToken", "The provided token has expired."),
            Self::PreconditionFailed => {
                (412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
            }
            Self::InvalidRange => (416, "InvalidRange", "The requested range is not satisfiable"),
            Self::InvalidArgument(message) => (400, "InvalidArgument", message),
            Self::NotImplemented => (501, "NotImplemented", "This server does not do that."),
            Self::PermanentRedirect(_) => {
                (301, "PermanentRedirect", "The bucket must be addressed using another endpoint.")
            }
            Self::InternalError => {
                (500, "InternalError", "We encountered an internal error. Please try again.")
            }
            Self::SlowDown(_) => (503, "SlowDown", "Please reduce your request rate."),
        }
    }

    /// The head of the answer, and its body.
    pub(super) fn answer(&self) -> (Response<()>, String) {
        let (status, code, message) = self.parts();
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        let mut extra = String::new();
        match self {
            Self::SlowDown(Some(seconds)) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(*seconds));
            }
            Self::PermanentRedirect(region) => {
                extra = format!("<Region>{region}</Region>");
                if let Ok(region) = HeaderValue::from_str(region) {
                    headers.insert(HeaderName::from_static("x-amz-bucket-region"), region);
                }
            }
            _ => {}
        }
        (response, xml::error(code, message, &extra))
    }
}
