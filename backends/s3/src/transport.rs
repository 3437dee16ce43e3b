//! What lies under the clients: connections, and what a store says when it refuses.
//!
//! `object_store` turns answers that are no success into errors of its own, and on the way loses what the layers need:
//! `Retry-After`, the code in the body, the region that would have been right. So each answer passes here first, and a
//! refusal becomes an error that carries these and nothing else. The body is not kept: what some stores write into it
//! (the access key, the string that was signed) must not reach a log.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpService, ReqwestConnector,
};
use object_store::{Certificate, ClientOptions};

/// How long a connection may take to come up. A store that is there answers in a round trip or two.
const CONNECT: Duration = Duration::from_secs(5);

/// The part of a refusal's body that is looked at, in bytes.
const MOST: usize = 64 << 10;

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    /// S3's word for it.
    pub(crate) code: Option<String>,
    /// The region that the store would have liked to be asked in.
    pub(crate) region: Option<String>,
    pub(crate) retry_after: Option<Duration>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{code} ({})", self.status.as_u16()),
            None => write!(f, "HTTP status {}", self.status),
        }
    }
}

impl std::error::Error for Refused {}

impl Refused {
    async fn of(response: HttpResponse) -> Self {
        let (parts, body) = response.into_parts();
        let mut text = Vec::new();
        let mut chunks = body.bytes_stream();
        while text.len() < MOST
            && let Some(Ok(chunk)) = chunks.next().await
        {
            text.extend_from_slice(&chunk);
        }
        let text = String::from_utf8_lossy(&text);
        let header =
            |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).and_then(word);
        Self {
            status: parts.status,
            code: element(&text, "Code").or_else(|| header("x-ms-error-code")),
            region: header("x-amz-bucket-region").or_else(|| element(&text, "Region")),
            retry_after: retry_after(&parts.headers),
        }
    }
}

/// Text as a word of a message: codes and regions are nothing else, and a hostile store may say anything.
fn word(text: &str) -> Option<String> {
    let fits = !text.is_empty() && text.len() <= 64;
    let fits = fits && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c));
    fits.then(|| text.to_owned())
}

/// The text of an element, in a document that may be cut off or none at all.
fn element(document: &str, name: &str) -> Option<String> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    word(rest.split_once("</")?.0.trim())
}

/// Seconds alone: no store sends the other form, a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse::<u32>().ok()?;
    Some(Duration::from_secs(u64::from(seconds)))
}

/// A client whose refusals are errors of the type [`Refused`].
#[derive(Debug)]
struct Judging(HttpClient);

#[async_trait]
impl HttpService for Judging {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(HttpError::new(HttpErrorKind::Unknown, Refused::of(response).await))
    }
}

/// Connects as asked, and judges.
#[derive(Debug, Default)]
pub(crate) struct JudgingConnector;

impl HttpConnector for JudgingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        install_crypto();
        Ok(HttpClient::new(Judging(ReqwestConnector::default().connect(options)?)))
    }
}

/// Hands out a client that is there already, so that reads and listings share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Shared(pub(crate) HttpClient);

impl HttpConnector for Shared {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}

/// TLS needs a library, one for the process. Where the program has chosen one already, that one stays.
fn install_crypto() {
    drop(rustls::crypto::ring::default_provider().install_default());
}

/// HTTP/1 with as many connections as there are requests, and no bounds on time beyond connecting: those are set by
/// the layers, who know how long an answer should be.
pub(crate) fn options(plain: bool) -> ClientOptions {
    ClientOptions::new()
        .with_http1_only()
        .with_timeout_disabled()
        .with_read_timeout_disabled()
        .with_connect_timeout(CONNECT)
        .with_allow_http(plain)
}

/// The same that trusts the certificates of a file alone, or none where nothing is encrypted: collecting the system's
/// takes some milliseconds, and fails where there are none.
pub(crate) fn trusting(
    options: ClientOptions,
    plain: bool,
    bundle: Option<&Path>,
) -> Result<ClientOptions, String> {
    let options = options.with_no_system_certificates(plain || bundle.is_some());
    let Some(path) = bundle else { return Ok(options) };
    let shown = path.display();
    let pem = std::fs::read(path)
        .map_err(|error| format!("the certificates in {shown} cannot be read: {error}"))?;
    let certificates = Certificate::from_pem_bundle(&pem)
        .map_err(|_| format!("{shown} is no bundle of certificates (PEM); see AWS_CA_BUNDLE"))?;
    Ok(certificates.into_iter().fold(options, ClientOptions::with_root_certificate))
}

/// How credentials are asked for: of services on this machine or beside it, and of Amazon's token service. The client is
/// made when something is asked: most credentials are variables or files, and need none.
pub(crate) struct Errands {
    bundle: Option<PathBuf>,
    client: OnceLock<Result<HttpClient, String>>,
}

impl fmt::Debug for Errands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Errands")
    }
}

impl Errands {
    /// Encrypted connections trust the certificates of `bundle`, or else the system's.
    pub(crate) fn new(bundle: Option<PathBuf>) -> Self {
        Self { bundle, client: OnceLock::new() }
    }

    fn client(&self) -> Result<&HttpClient, String> {
        let make = || {
            install_crypto();
            // A metadata service answers at once or is not there: most machines have none.
            let options = options(true).with_connect_timeout(Duration::from_secs(1)).with_timeout(CONNECT);
            let options = trusting(options, false, self.bundle.as_deref())?;
            ReqwestConnector::default().connect(&options).map_err(|error| root(&error))
        };
        self.client.get_or_init(make).as_ref().map_err(String::clone)
    }
}

impl reqsign_core::HttpSend for Errands {
    async fn http_send(&self, request: http::Request<Bytes>) -> reqsign_core::Result<http::Response<Bytes>> {
        let failed = |error: HttpError| reqsign_core::Error::unexpected(root(&error));
        let client = self.client().map_err(reqsign_core::Error::unexpected)?;
        let response = client.execute(request.map(HttpRequestBody::from)).await.map_err(failed)?;
        let (parts, body) = response.into_parts();
        Ok(http::Response::from_parts(parts, body.bytes().await.map_err(failed)?))
    }
}

/// The innermost of a chain of errors, which is the one that says what happened.
pub(crate) fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_words_and_nothing_else_is_kept() {
        let document =
            "<Error><Code> SlowDown </Code><Region>eu-west-1</Region><AWSAccessKeyId>K</AWSAccessKeyId>";
        assert_eq!(element(document, "Code").as_deref(), Some("SlowDown"));
        assert_eq!(element(document, "Region").as_deref(), Some("eu-west-1"));
        for hostile in
            ["<Code>two words</Code>", "<Code>a\nb</Code>", "<Code></Code>", "<Code>cut off", "", "<Code>"]
        {
            assert_eq!(element(hostile, "Code"), None, "{hostile}");
        }
        assert_eq!(element(&format!("<Code>{}</Code>", "x".repeat(65)), "Code"), None);
    }
}
