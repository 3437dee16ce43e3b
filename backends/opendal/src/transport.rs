//! The HTTP client, and the classification of refusals.
//!
//! OpenDAL's services detect errors, but not always their kind: a web server's 401 and 429 are both
//! "unexpected", and `Retry-After` is lost. Statuses with one meaning in every HTTP service are
//! classified here, before the service. Statuses whose meaning differs (403, 404, 409, 412) are
//! left to the service.
//!
//! Redirects are followed for services that need them and do not sign: five at most, and never from
//! an encrypted to an unencrypted address. The HTTP client removes credentials and cookies where
//! host, port or scheme change. No `Referer` is sent, because the address of a request may hold a
//! token.

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

/// The timeout for connecting. The layers' deadlines cover the rest.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A refusal whose status means the same in every HTTP service. It is the source of OpenDAL's
/// error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpRefusal {
    pub(crate) status: StatusCode,
    /// The wait that the origin requests.
    pub(crate) retry_after: Option<Duration>,
}

impl fmt::Display for HttpRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the storage answered {}", self.status)?;
        if self.status.is_redirection() { f.write_str(", a redirect, which is not followed") } else { Ok(()) }
    }
}

impl std::error::Error for HttpRefusal {}

/// The maximum number of redirects per request.
const MAX_REDIRECTS: usize = 5;

/// The HTTP client, with ring and this machine's certificates.
pub(crate) fn transporter(redirects: bool) -> opendal::Result<HttpTransporter> {
    let cannot = |why: &'static str| Error::new(ErrorKind::Unexpected, why);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier)
        .map_err(|error| cannot("cannot use this machine's certificates").set_source(error))?
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(if redirects { Policy::custom(follow) } else { Policy::none() })
        .referer(false)
        .build()
        .map_err(|error| cannot("cannot create an HTTP client").set_source(error))?;
    Ok(HttpTransporter::new(ClassifyingTransport(ReqwestTransport::new(client))))
}

/// Follows a redirect, or returns it as the answer.
fn follow(attempt: Attempt<'_>) -> Action {
    if may_follow(attempt.previous(), attempt.url()) { attempt.follow() } else { attempt.stop() }
}

/// Whether a request that visited the addresses `previous` may continue to `next`.
fn may_follow(previous: &[Url], next: &Url) -> bool {
    let encrypted = previous.last().is_some_and(|url| url.scheme() == "https");
    previous.len() <= MAX_REDIRECTS && (next.scheme() == "https" || !encrypted)
}

struct ClassifyingTransport(ReqwestTransport);

impl HttpTransport for ClassifyingTransport {
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
                let error = Error::new(kind, "refused").set_source(HttpRefusal { status, retry_after });
                Err(error.with_temporary(temporary))
            }
        }
    }
}

/// The kind of a status with one meaning in every HTTP service, and whether it is temporary.
fn refusal(status: StatusCode) -> Option<(ErrorKind, bool)> {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Some((ErrorKind::PermissionDenied, false))
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Some((ErrorKind::RateLimited, true))
        }
        StatusCode::REQUEST_TIMEOUT => Some((ErrorKind::Unexpected, true)),
        // Some services do not handle it.
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
