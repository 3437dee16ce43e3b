//! How requests travel: a client of our own, and what a refusal says of itself.
//!
//! OpenDAL's services know that an answer is an error, but not always which: a web server's 401 and 429 are both
//! "unexpected" to them, and `Retry-After` is lost. What every HTTP store means alike is told here, before a service
//! sees it; what stores mean each in its own way (403, 404, 409, 412) is left to the service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use opendal::{Buffer, Error, ErrorKind, HttpBody, HttpTransport, HttpTransporter};
use opendal_http_transport_reqwest::ReqwestTransport;
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
        write!(f, "the store answered {}", self.status)
    }
}

impl std::error::Error for Refusal {}

/// A client of our own, with ring and this machine's certificates.
pub(crate) fn transporter() -> opendal::Result<HttpTransporter> {
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
        .build()
        .map_err(|error| cannot("there is no HTTP client").set_source(error))?;
    Ok(HttpTransporter::new(Transport(ReqwestTransport::new(client))))
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
        _ => None,
    }
}
