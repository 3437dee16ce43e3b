//! How requests travel: a client of our own, and what a refusal says of itself.
//!
//! OpenDAL's services know that an answer is an error, but not always which: a web server's 401 and 429 are both
//! "unexpected" to them, and `Retry-After` is lost. What every HTTP store means alike is told here, before a service
//! sees it; what stores mean each in its own way (403, 404, 409, 412) is left to the service.
//!
//! Redirects are followed for services that need them and do not sign: five at most, and never from an encrypted to an
//! unencrypted address. Credentials and cookies stay with the host that they are for: the HTTP client removes them where
//! host, port or scheme change. No `Referer` is sent, because the address of a request may hold a token.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use opendal::{Buffer, Error, ErrorKind, HttpBody, HttpTransport, HttpTransporter};
use opendal_http_transport_reqwest::ReqwestTransport;
use reqwest::Url;
use reqwest::redirect::{Action, Attempt, Policy};
use rustls_platform_verifier::BuilderVerifierExt;

/// How long a machine may take to accept a connection. What is beyond is for the layers' deadlines.
const CONNECT: Duration = Duration::from_secs(10);

/// A store's refusal, where every HTTP store means the same by it. It is the source of OpenDAL's error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// How long the store asks to be left alone.
    pub(crate) retry_after: Option<Duration>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store answered {}", self.status)?;
        if self.status.is_redirection() { f.write_str(", a redirect that is not followed") } else { Ok(()) }
    }
}

impl std::error::Error for Refusal {}

/// Redirects that one request follows, at most.
const REDIRECTS: usize = 5;

/// A client of our own, with ring and this machine's certificates.
pub(crate) fn transporter(redirects: bool) -> opendal::Result<HttpTransporter> {
    let cannot = |why: &'static str| Error::new(ErrorKind::Unexpected, why);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier)
        .map_err(|error| cannot("this machine's certificates cannot be used").set_source(error))?
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT)
        .redirect(if redirects { Policy::custom(follow) } else { Policy::none() })
        .referer(false)
        .build()
        .map_err(|error| cannot("there is no HTTP client").set_source(error))?;
    Ok(HttpTransporter::new(Transport(ReqwestTransport::new(client))))
}

/// Follows a redirect, or leaves it as the answer.
fn follow(attempt: Attempt<'_>) -> Action {
    if may_follow(attempt.previous(), attempt.url()) { attempt.follow() } else { attempt.stop() }
}

/// Whether a request that went to `previous`, one after another, may go to `next`.
fn may_follow(previous: &[Url], next: &Url) -> bool {
    let encrypted = previous.last().is_some_and(|url| url.scheme() == "https");
    previous.len() <= REDIRECTS && (next.scheme() == "https" || !encrypted)
}

struct Transport(ReqwestTransport);

impl HttpTransport for Transport {
    async fn fetch(&self, request: Request<Buffer>) -> opendal::Result<Response<HttpBody>> {
        let response = self.0.fetch(request).await?;
        match refusal(response.status()) {
            None => Ok(response),
            Some((kind, temporary)) => {
                let status = response.status();
                let retry_after = response
                    .headers()
                    .get(RETRY_AFTER)
                    .and_then(|value| value.to_str().ok()?.trim().parse().ok())
                    .map(Duration::from_secs);
                let error = Error::new(kind, "refused").set_source(Refusal { status, retry_after });
                Err(error.with_temporary(temporary))
            }
        }
    }
}

/// What a status means in every store, and whether it may pass.
fn refusal(status: StatusCode) -> Option<(ErrorKind, bool)> {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Some((ErrorKind::PermissionDenied, false))
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Some((ErrorKind::RateLimited, true))
        }
        StatusCode::REQUEST_TIMEOUT => Some((ErrorKind::Unexpected, true)),
        // Not every service knows it.
        StatusCode::RANGE_NOT_SATISFIABLE => Some((ErrorKind::RangeNotSatisfied, false)),
        StatusCode::GONE => Some((ErrorKind::NotFound, false)),
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => {
            Some((ErrorKind::Unsupported, false))
        }
        status if status.is_server_error() => Some((ErrorKind::Unexpected, true)),
        status if status.is_redirection() => Some((ErrorKind::Unexpected, false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: OPENDAL-8
    fn redirects_end_after_five_and_never_leave_encryption() {
        let url = |text: &str| Url::parse(text).unwrap();
        let (plain, encrypted) = (url("http://a/x"), url("https://b/x"));
        for (previous, next, follows) in [
            (vec![&plain], &plain, true),
            (vec![&plain], &encrypted, true),
            (vec![&encrypted], &encrypted, true),
            (vec![&encrypted], &plain, false),
            (vec![&plain, &encrypted], &plain, false),
            (vec![&plain; 5], &plain, true),
            (vec![&plain; 6], &plain, false),
        ] {
            let previous: Vec<Url> = previous.into_iter().cloned().collect();
            assert_eq!(may_follow(&previous, next), follows, "{previous:?} {next}");
        }
    }
}
