//! HTTP connections, and the fields kept of an error response.
//!
//! `object_store` turns unsuccessful responses into its own errors and drops fields that the layers
//! need: `Retry-After`, the code in the body, the correct region. So each response passes here
//! first. An error response becomes an error with only these fields. The body is not kept, because
//! it must not reach a log. Some origins write the access key or the signed string into it.

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
    HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};

use crate::error::is_throttling;

/// The timeout of a connection attempt. A reachable origin answers in a round trip or two.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The bytes of an error response's body that are searched.
const MAX_ERROR_BODY: usize = 64 << 10;

/// An error response of an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseError {
    pub(crate) status: StatusCode,
    /// The error code.
    pub(crate) code: Option<String>,
    /// The region of the bucket.
    pub(crate) region: Option<String>,
    pub(crate) retry_after: Option<Duration>,
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{code} ({})", self.status.as_u16()),
            None => write!(f, "HTTP status {}", self.status),
        }
    }
}

impl std::error::Error for ResponseError {}

impl ResponseError {
    async fn of(response: HttpResponse) -> Self {
        let (parts, body) = response.into_parts();
        let mut text = Vec::new();
        let mut chunks = body.bytes_stream();
        while text.len() < MAX_ERROR_BODY
            && let Some(Ok(chunk)) = chunks.next().await
        {
            text.extend_from_slice(&chunk);
        }
        let text = String::from_utf8_lossy(&text);
        let header =
            |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).and_then(as_word);
        Self {
            status: parts.status,
            code: element(&text, "Code").or_else(|| header("x-ms-error-code")),
            region: header("x-amz-bucket-region").or_else(|| element(&text, "Region")),
            retry_after: retry_after(&parts.headers),
        }
    }
}

/// The text, if it is one word. Codes and regions are single words, and a hostile origin may send
/// any text.
fn as_word(text: &str) -> Option<String> {
    let fits = !text.is_empty() && text.len() <= 64;
    let fits = fits && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c));
    fits.then(|| text.to_owned())
}

/// The text of an element, in a document that may be truncated or invalid.
fn element(document: &str, name: &str) -> Option<String> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    as_word(rest.split_once("</")?.0.trim())
}

/// Parses seconds only, because no origin sends the other form, a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse::<u32>().ok()?;
    Some(Duration::from_secs(u64::from(seconds)))
}

/// Removes headers whose value is not text. `object_store` refuses a whole response for one of
/// them, and some origins return a user's metadata unchanged.
fn remove_illegible(headers: &mut HeaderMap) {
    let illegible = headers.iter().filter(|(_, value)| value.to_str().is_err());
    for name in illegible.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// A client that returns error responses as errors of type [`ResponseError`].
#[derive(Debug)]
struct ErrorClient(HttpClient);

#[async_trait]
impl HttpService for ErrorClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut response = self.0.execute(request).await?;
        if response.status().is_success() {
            remove_illegible(response.headers_mut());
            return Ok(response);
        }
        Err(HttpError::new(HttpErrorKind::Unknown, ResponseError::of(response).await))
    }
}

/// Makes clients that classify error responses.
#[derive(Clone, Debug, Default)]
pub(crate) struct OriginConnector {
    /// Whether connections need not be encrypted.
    pub(crate) plain: bool,
    /// Certificates to trust instead of the system's.
    pub(crate) bundle: Option<PathBuf>,
}

impl OriginConnector {
    pub(crate) fn client(&self) -> Result<HttpClient, String> {
        error_client(client(self.plain, self.bundle.as_deref())?)
    }
}

impl HttpConnector for OriginConnector {
    /// A client that takes one setting from `requested`: whether clear text is allowed. Local
    /// services that hand out credentials are not encrypted, nor are emulators of storage.
    fn connect(&self, requested: &ClientOptions) -> object_store::Result<HttpClient> {
        let allowed =
            requested.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|text| text == "true");
        let client = match allowed && !self.plain {
            true => credential_client(self.bundle.as_deref()).and_then(error_client),
            false => self.client(),
        };
        client.map_err(|why| object_store::Error::Generic { store: "client", source: why.into() })
    }
}

fn error_client(client: reqwest::ClientBuilder) -> Result<HttpClient, String> {
    let client = client.connect_timeout(CONNECT_TIMEOUT).build().map_err(|error| root(&error))?;
    Ok(HttpClient::new(ErrorClient(HttpClient::new(client))))
}

/// Returns an existing client, so that reads and listings share its connections.
#[derive(Clone, Debug)]
pub(crate) struct SharedClient(pub(crate) HttpClient);

impl HttpConnector for SharedClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}

/// Installs the process's TLS library. A library that the program has already chosen stays.
fn install_crypto() {
    drop(rustls::crypto::ring::default_provider().install_default());
}

/// The options for clients that `object_store` creates. They contain only settings that an existing
/// client could not receive later.
pub(crate) fn options(plain: bool) -> ClientOptions {
    ClientOptions::new().with_allow_http(plain)
}

/// HTTP/1 with one connection per parallel request, and no timeouts except for connecting. The
/// layers set the other timeouts, because they know the expected duration of a response. A redirect
/// is a response and is not followed. It would send a session's token to an arbitrary host, and
/// return bytes from there. If `bundle` is given, only it is trusted. The system's certificates are
/// not loaded if nothing is encrypted. Loading takes some milliseconds, and fails if there are
/// none.
fn client(plain: bool, bundle: Option<&Path>) -> Result<reqwest::ClientBuilder, String> {
    let builder = base().https_only(!plain);
    if plain && bundle.is_none() { Ok(builder.tls_certs_only([])) } else { trusting(builder, bundle) }
}

/// The same for credential services, some of which are encrypted and some not.
fn credential_client(bundle: Option<&Path>) -> Result<reqwest::ClientBuilder, String> {
    trusting(base(), bundle)
}

fn base() -> reqwest::ClientBuilder {
    install_crypto();
    reqwest::Client::builder()
        .user_agent(concat!("foreread/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
}

fn trusting(
    builder: reqwest::ClientBuilder,
    bundle: Option<&Path>,
) -> Result<reqwest::ClientBuilder, String> {
    let Some(path) = bundle else { return Ok(builder) };
    let shown = path.display();
    let pem = std::fs::read(path)
        .map_err(|error| format!("the certificates in {shown} cannot be read: {error}"))?;
    let certificates = reqwest::Certificate::from_pem_bundle(&pem)
        .map_err(|_| format!("{shown} is no bundle of certificates (PEM); see AWS_CA_BUNDLE"))?;
    Ok(builder.tls_certs_only(certificates))
}

/// The client for credentials, of metadata services and of Amazon's token service. It is created on
/// first use, because most credentials are variables or files and need none.
#[derive(Debug)]
pub(crate) struct CredentialClient {
    bundle: Option<PathBuf>,
    client: OnceLock<Result<HttpClient, String>>,
}

impl CredentialClient {
    /// Encrypted connections trust the certificates of `bundle`, or else the system's.
    pub(crate) fn new(bundle: Option<PathBuf>) -> Self {
        Self { bundle, client: OnceLock::new() }
    }

    fn client(&self) -> Result<&HttpClient, String> {
        let make = || {
            // A metadata service answers at once or is absent, as on most machines. It is not
            // encrypted, and Amazon's token service is.
            let client = credential_client(self.bundle.as_deref())?;
            let client = client.connect_timeout(Duration::from_secs(1)).timeout(CONNECT_TIMEOUT).build();
            client.map(HttpClient::new).map_err(|error| root(&error))
        };
        self.client.get_or_init(make).as_ref().map_err(String::clone)
    }
}

impl reqsign_core::HttpSend for CredentialClient {
    async fn http_send(&self, request: http::Request<Bytes>) -> reqsign_core::Result<http::Response<Bytes>> {
        let failed = |error: HttpError| {
            let passing = ConnectError::of(&error) != ConnectError::NotTls;
            reqsign_core::Error::unexpected(root(&error)).set_retryable(passing)
        };
        let client = self.client().map_err(reqsign_core::Error::unexpected)?;
        let answers_itself = !is_through_proxy(request.uri());
        let response = client.execute(request.map(HttpRequestBody::from)).await.map_err(failed)?;
        let (parts, body) = response.into_parts();
        let mut body = body.bytes().await.map_err(failed)?;
        if !parts.status.is_success() {
            // The body appears in messages. A service may repeat the request in it, including
            // secrets.
            let code =
                element(&String::from_utf8_lossy(&body), "Code").or_else(|| error_type(&parts.headers));
            let refused = ResponseError { status: parts.status, code, region: None, retry_after: None };
            if answers_itself && is_busy(&refused) {
                return Err(reqsign_core::Error::rate_limited(refused.to_string()));
            }
            body = Bytes::from(refused.code.unwrap_or_default());
        }
        Ok(http::Response::from_parts(parts, body))
    }
}

/// The code of an error response in JSON. Amazon's services put it into a header, too, and some add
/// a URL after it.
fn error_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("x-amzn-errortype")?.to_str().ok()?;
    as_word(text.split(':').next()?.trim())
}

/// Whether a request to the machine's metadata service goes through a proxy. A proxy answers for a
/// machine that has no such service.
fn is_through_proxy(uri: &http::Uri) -> bool {
    is_metadata_service(uri) && crate::proxy::of(&uri.to_string()).is_some()
}

fn is_metadata_service(uri: &http::Uri) -> bool {
    uri.host().is_some_and(|host| host.starts_with("169.254.") || host.starts_with("[fd00:ec2:"))
}

/// Whether a credential service may answer the same request otherwise later. The client then
/// returns an error, because the providers go by the status, and throttling often has status 400.
fn is_busy(refused: &ResponseError) -> bool {
    let code = refused.code.as_deref().unwrap_or_default();
    is_throttling(code)
        || matches!(
            code,
            "SlowDownException" | "RequestTimeout" | "RequestTimeoutException" | "IDPCommunicationError"
        )
        || matches!(refused.status.as_u16(), 408 | 429 | 500..=599)
}

/// Why a connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// No process listens on the port.
    ConnectionRefused,
    /// The host name is unknown.
    Unknown,
    /// The server does not speak TLS.
    NotTls,
    Otherwise,
}

impl ConnectError {
    pub(crate) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut link = Some(error);
        while let Some(found) = link {
            let within = found.downcast_ref::<std::io::Error>();
            if within.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
                return Self::ConnectionRefused;
            }
            if let Some(rustls::Error::InvalidMessage(_)) = found.downcast_ref() {
                return Self::NotTls;
            }
            // The resolver's error has no public type.
            if found.to_string() == "dns error" {
                return Self::Unknown;
            }
            // The source of an I/O error is the source of its inner error, and not the inner error
            // itself.
            let held = within.and_then(|error| error.get_ref());
            link = held.map(|held| held as &(dyn std::error::Error + 'static)).or_else(|| found.source());
        }
        Self::Otherwise
    }
}

/// An error and its sources.
pub(crate) fn chain<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The message of the innermost error of a chain, which is the cause.
pub(crate) fn root(error: &(dyn std::error::Error + 'static)) -> String {
    chain(error).last().map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 502 of a proxy for a machine without a metadata service once counted as a busy service.
    #[test]
    fn metadata_service_is_known_by_its_address() {
        for uri in ["http://169.254.169.254/latest/api/token", "http://[fd00:ec2::254]/latest/api/token"] {
            assert!(is_metadata_service(&uri.parse().unwrap()), "{uri}");
        }
        for uri in ["https://oidc.eu-west-1.amazonaws.com/token", "http://10.169.254.1/"] {
            assert!(!is_metadata_service(&uri.parse().unwrap()), "{uri}");
        }
    }

    #[test]
    fn error_codes_are_single_words() {
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

    /// A server that sends this response to its first request.
    fn saying(answer: String) -> std::net::SocketAddr {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        address
    }

    #[tokio::test]
    // semantics: BUCKET-11
    async fn busy_credential_service_is_retryable() {
        use reqsign_core::HttpSend;
        let client_of_credentials = CredentialClient::new(None);
        let send = async |address: String| {
            client_of_credentials.http_send(http::Request::get(address).body(Bytes::new()).unwrap()).await
        };
        for (status, header, body, code) in [
            ("503 Service Unavailable", "", "", None),
            ("429 Too Many Requests", "", "", None),
            ("400 Bad Request", "", "<Error><Code>Throttling</Code></Error>", None),
            ("400 Bad Request", "", "<Error><Code>IDPCommunicationError</Code></Error>", None),
            ("400 Bad Request", "x-amzn-ErrorType: SlowDownException:http://x/\r\n", "{}", None),
            (
                "400 Bad Request",
                "x-amzn-ErrorType: InvalidGrantException\r\n",
                "hush",
                Some("InvalidGrantException"),
            ),
            ("403 Forbidden", "", "<Code>AccessDenied</Code>hush", Some("AccessDenied")),
            ("404 Not Found", "", "hush", Some("")),
        ] {
            let length = body.len();
            let address = saying(format!(
                "HTTP/1.1 {status}\r\n{header}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            ));
            match (send(format!("http://{address}/")).await, code) {
                (Ok(answer), Some(code)) => assert_eq!(answer.body(), code),
                (Err(error), None) => {
                    assert!(error.is_retryable(), "{error}");
                    assert_eq!(error.kind(), reqsign_core::ErrorKind::RateLimited);
                }
                (answer, _) => panic!("{status} {body}: {answer:?}"),
            }
        }
        // A server that does not speak TLS is a permanent failure.
        let plain = saying("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned());
        let error = send(format!("https://{plain}/")).await.unwrap_err();
        assert!(!error.is_retryable(), "{error}");
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = send(format!("http://{nobody}/")).await.unwrap_err();
        assert!(error.is_retryable() && error.kind() != reqsign_core::ErrorKind::RateLimited, "{error}");
    }

    #[tokio::test]
    async fn clear_text_is_used_only_where_allowed() {
        let store = foreread_tier_testing::store::HttpStore::start();
        let connects = async |requested: &ClientOptions| {
            let client = OriginConnector::default().connect(requested).unwrap();
            let request = http::Request::get(store.endpoint()).body(HttpRequestBody::empty()).unwrap();
            let Err(error) = client.execute(request).await else { return true };
            // Refused by the origin, so the origin was reached.
            std::error::Error::source(&error).is_some_and(|source| source.is::<ResponseError>())
        };
        assert!(connects(&ClientOptions::new().with_allow_http(true)).await);
        assert!(!connects(&ClientOptions::new()).await);
    }
}
