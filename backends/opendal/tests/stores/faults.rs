//! The classification of a failing server's answers.

use std::time::Duration;

use foreread_tier::{ErrorKind, TierError};
use foreread_tier_testing::{KnownSample, NEVER, ReadAll};
use futures::StreamExt;
use http::StatusCode;

use crate::server::{FaultMode, WebDavServer};
use crate::web::open;
use crate::{list, samples};

/// A server, an origin on it, and a sample of more than one packet.
async fn one(
    scheme: &str,
) -> (tempfile::TempDir, WebDavServer, std::sync::Arc<dyn foreread_tier::OriginTier>, KnownSample) {
    let (directory, samples) = samples();
    let server = WebDavServer::start(directory.path()).await;
    let origin = open(&format!("{scheme}://{}", server.address), &[]).await;
    let sample = samples.into_iter().find(|sample| &*sample.object.path == "ab/6").unwrap();
    (directory, server, origin, sample)
}

async fn read(origin: &dyn foreread_tier::OriginTier, request: foreread_tier::ReadRequest) -> TierError {
    let answers = tokio::time::timeout(NEVER, origin.read_all(vec![request]).collect::<Vec<_>>());
    answers.await.unwrap().remove(0).result.unwrap_err()
}

#[tokio::test]
// semantics: OPENDAL-1, OPENDAL-4
async fn refusals_are_distinguished() {
    for scheme in ["http", "webdav"] {
        let (_directory, server, origin, sample) = one(scheme).await;
        for (status, kind, wait) in [
            (StatusCode::UNAUTHORIZED, ErrorKind::Denied, true),
            (StatusCode::FORBIDDEN, ErrorKind::Denied, false),
            (StatusCode::NOT_FOUND, ErrorKind::NotFound, false),
            (StatusCode::GONE, ErrorKind::NotFound, true),
            (StatusCode::PRECONDITION_FAILED, ErrorKind::Changed, false),
            (StatusCode::TOO_MANY_REQUESTS, ErrorKind::Throttled, true),
            (StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Throttled, true),
            (StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::Transient, true),
            (StatusCode::GATEWAY_TIMEOUT, ErrorKind::Transient, true),
            (StatusCode::NOT_IMPLEMENTED, ErrorKind::Unsupported, true),
            (StatusCode::BAD_REQUEST, ErrorKind::Other, false),
        ] {
            server.behave(FaultMode::Refuse(status));
            let error = read(&*origin, sample.whole(1)).await;
            assert_eq!(error.kind(), kind, "{scheme} {status}: {error}");
            assert_eq!(error.retry_after(), wait.then_some(Duration::from_secs(7)), "{scheme} {status}");
            assert_eq!((error.tier(), error.object()), (scheme, Some("ab/6")));
            assert!(!error.to_string().contains('\n'), "{error}");
            // Nothing is retried here, because the layers do that.
            assert_eq!(server.take_requests().len(), 1, "{scheme} {status}");
        }
    }
}

#[tokio::test]
// semantics: OPENDAL-4
async fn truncated_body_is_retryable() {
    let (_directory, server, origin, sample) = one("http").await;
    server.behave(FaultMode::CloseEarly);
    let error = read(&*origin, sample.whole(1)).await;
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    server.behave(FaultMode::Serve);
    let answers: Vec<_> = origin.read_all(vec![sample.whole(1)]).collect().await;
    assert_eq!(answers[0].result.as_ref().unwrap(), &sample.content);
}

#[tokio::test]
// semantics: OPENDAL-4
async fn server_without_ranges_is_refused() {
    let (_directory, server, origin, sample) = one("http").await;
    server.behave(FaultMode::IgnoreRanges);
    let error = read(&*origin, sample.range(1, 10..20)).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn unreachable_server_is_retryable() {
    let (_directory, _server, _, sample) = one("http").await;
    // A port that was free a moment ago has no listener.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let origin = open(&format!("http://{free}"), &[]).await;
    let error = read(&*origin, sample.whole(1)).await;
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn failed_listing_names_the_directory() {
    let (_directory, server, origin, _) = one("webdav").await;
    server.behave(FaultMode::Refuse(StatusCode::FORBIDDEN));
    let (objects, errors) = list(&*origin, "a").await;
    assert!(objects.is_empty());
    assert_eq!((errors[0].kind(), errors[0].object()), (ErrorKind::Denied, Some("a/")), "{errors:?}");
}

#[tokio::test]
// semantics: OPENDAL-6
async fn listing_survives_refused_pages() {
    let (directory, samples) = samples();
    let server = WebDavServer::start(directory.path()).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let paths: Vec<&str> = samples.iter().map(|sample| &*sample.object.path).collect();
    std::fs::write(file.path(), paths.join("\n")).unwrap();
    server.behave(FaultMode::Flaky);
    for (scheme, settings) in [("webdav", vec![]), ("http", vec![("list", file.path().to_str().unwrap())])] {
        let origin = open(&format!("{scheme}://{}", server.address), &settings).await;
        let (objects, errors) = list(&*origin, "").await;
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(objects.len(), samples.len(), "{scheme}");
    }
}

/// A server that sends each GET to `to`, before the same path.
async fn redirecting(root: &std::path::Path, to: &str) -> WebDavServer {
    let server = WebDavServer::start(root).await;
    server.behave(FaultMode::Redirect(String::leak(to.to_owned())));
    server
}

#[tokio::test]
// semantics: OPENDAL-8
async fn redirect_is_followed_without_credentials() {
    let (directory, target, _, sample) = one("http").await;
    let first = redirecting(directory.path(), &format!("http://{}", target.address)).await;
    let host = format!("http://{}", first.address);
    let settings = [("username", "user"), ("password", "hunter2"), ("host", &*host)];
    let origin = open(&host, &settings).await;
    target.take_requests();
    let answers: Vec<_> = origin.read_all(vec![sample.whole(1)]).collect().await;
    assert_eq!(answers[0].result.as_ref().unwrap(), &sample.content);
    assert!(first.headers().iter().any(|header| header.starts_with("authorization: ")));
    let leaked =
        |header: &String| ["authorization", "cookie", "referer"].iter().any(|name| header.starts_with(name));
    assert!(!target.headers().iter().any(leaked), "{:?}", target.headers());
}

#[tokio::test]
// semantics: OPENDAL-8
async fn redirect_of_webdav_is_an_error() {
    let (directory, target, _, sample) = one("http").await;
    let first = redirecting(directory.path(), &format!("http://{}", target.address)).await;
    let origin = open(&format!("webdav://{}", first.address), &[]).await;
    let error = read(&*origin, sample.whole(1)).await;
    assert!(error.to_string().contains("a redirect, which is not followed"), "{error}");
    assert!(!error.is_retryable() && target.take_requests().is_empty(), "{error}");
}

#[tokio::test]
// semantics: OPENDAL-8
async fn redirects_are_five_at_most() {
    let (directory, target, _, sample) = one("http").await;
    let mut hops = vec![target];
    for _ in 0..6 {
        let next = format!("http://{}", hops.last().unwrap().address);
        hops.push(redirecting(directory.path(), &next).await);
    }
    let through_five = open(&format!("http://{}", hops[5].address), &[]).await;
    let answers: Vec<_> = through_five.read_all(vec![sample.whole(1)]).collect().await;
    assert_eq!(answers[0].result.as_ref().unwrap(), &sample.content);
    hops[0].take_requests();
    let through_six = open(&format!("http://{}", hops[6].address), &[]).await;
    let error = read(&*through_six, sample.whole(1)).await;
    assert!(error.to_string().contains("a redirect, which is not followed"), "{error}");
    assert!(hops[0].take_requests().is_empty());
}
