//! A WebDAV server over a directory, in this process. It serves plain GETs too, records requests,
//! and injects faults.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dav_server::{DavHandler, localfs::LocalFs};
use http::header::{CONTENT_LENGTH, RANGE, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The server's answer to requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultMode {
    Serve,
    /// Every request is answered with this status, and with `Retry-After: 7`.
    Refuse(StatusCode),
    /// Ranges are ignored, and the whole object is sent.
    IgnoreRanges,
    /// The connection is closed before the last byte.
    CloseEarly,
    /// Every second request is answered with 503.
    Flaky,
    /// Every GET is answered with 302 and this address, before the same path.
    Redirect(&'static str),
    /// Requests without `user:password` are refused.
    AskWho,
}

#[derive(Debug)]
struct ServerState {
    manner: Mutex<FaultMode>,
    /// Methods and paths, in order.
    requests: Mutex<Vec<(String, String)>>,
    /// All headers of all requests.
    headers: Mutex<Vec<String>>,
}

/// A running server, which ends with the test's runtime.
#[derive(Debug)]
pub struct WebDavServer {
    pub address: String,
    state: Arc<ServerState>,
}

impl WebDavServer {
    pub async fn start(root: &Path) -> Self {
        let handler =
            DavHandler::builder().filesystem(LocalFs::new(root, false, false, false)).build_handler();
        let state = Arc::new(ServerState {
            manner: Mutex::new(FaultMode::Serve),
            requests: Mutex::default(),
            headers: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (handler, state) = (handler.clone(), Arc::clone(&shared));
                let service = service_fn(move |request| answer(handler.clone(), Arc::clone(&state), request));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { address, state }
    }

    pub fn behave(&self, manner: FaultMode) {
        *self.state.manner.lock().unwrap() = manner;
    }

    /// The headers of all requests so far.
    pub fn headers(&self) -> Vec<String> {
        self.state.headers.lock().unwrap().clone()
    }

    /// The requests since the last call, by method and path, sorted.
    pub fn take_requests(&self) -> Vec<(String, String)> {
        let mut requests = std::mem::take(&mut *self.state.requests.lock().unwrap());
        requests.sort();
        requests
    }
}

async fn answer(
    handler: DavHandler,
    state: Arc<ServerState>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let requests = (request.method().to_string(), request.uri().path().to_owned());
    let count = {
        let mut log = state.requests.lock().unwrap();
        log.push(requests);
        log.len()
    };
    let sent = request.headers().iter().map(|(name, value)| format!("{name}: {value:?}"));
    state.headers.lock().unwrap().extend(sent);
    let manner = *state.manner.lock().unwrap();
    let authorization = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let refused = match manner {
        FaultMode::Refuse(status) => Some(status),
        FaultMode::Flaky if count % 2 == 1 => Some(StatusCode::SERVICE_UNAVAILABLE),
        FaultMode::AskWho if authorization != Some("Basic dXNlcjpwYXNzd29yZA==") => {
            Some(StatusCode::UNAUTHORIZED)
        }
        _ => None,
    };
    if let Some(status) = refused {
        let body = Full::new(Bytes::from("no")).map_err(|never| match never {}).boxed_unsync();
        return Ok(Response::builder().status(status).header(RETRY_AFTER, "7").body(body).unwrap());
    }
    if let FaultMode::Redirect(to) = manner {
        let to = format!("{to}{}", request.uri().path());
        let body = Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync();
        return Ok(Response::builder().status(StatusCode::FOUND).header("location", to).body(body).unwrap());
    }
    if manner == FaultMode::IgnoreRanges {
        request.headers_mut().remove(RANGE);
    }
    let response = handler.handle(request).await;
    if manner != FaultMode::CloseEarly {
        return Ok(response.map(BodyExt::boxed_unsync));
    }
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let short = bytes.slice(..bytes.len().saturating_sub(1));
    let length = bytes.len();
    let broken = futures::stream::iter([
        Ok(hyper::body::Frame::data(short)),
        Err(std::io::Error::other("the connection breaks")),
    ]);
    let mut response = Response::from_parts(parts, http_body_util::StreamBody::new(broken).boxed_unsync());
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    Ok(response)
}
