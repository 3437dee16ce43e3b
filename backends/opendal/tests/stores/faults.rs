//! What a failing server's answers are taken for.

use std::time::Duration;

use foreread_tier::{ErrorKind, TierError};
use foreread_tier_testing::{Known, ReadAll};
use futures::StreamExt;
use http::StatusCode;

use crate::server::{Manner, Server};
use crate::web::open;
use crate::{PATIENCE, list, samples};

/// A server, an origin on it, and a sample of more than one packet.
async fn one(
    scheme: &str,
) -> (tempfile::TempDir, Server, std::sync::Arc<dyn foreread_tier::OriginTier>, Known) {
    let (directory, samples) = samples();
    let server = Server::start(directory.path()).await;
    let origin = open(&format!("{scheme}://{}", server.address), &[]).await;
    let sample = samples.into_iter().find(|sample| &*sample.object.path == "ab/6").unwrap();
    (directory, server, origin, sample)
}

async fn read(origin: &dyn foreread_tier::OriginTier, request: foreread_tier::ReadRequest) -> TierError {
    let answers = tokio::time::timeout(PATIENCE, origin.read_all(vec![request]).collect::<Vec<_>>());
    answers.await.unwrap().remove(0).result.unwrap_err()
}

#[tokio::test]
// semantics: OPENDAL-1, OPENDAL-4
async fn refusals_are_told_apart() {
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
            server.behave(Manner::Refuse(status));
            let error = read(&*origin, sample.whole(1)).await;
            assert_eq!(error.kind(), kind, "{scheme} {status}: {error}");
            assert_eq!(error.retry_after(), wait.then_some(Duration::from_secs(7)), "{scheme} {status}");
            assert_eq!((error.tier(), error.object()), (scheme, Some("ab/6")));
            assert!(!error.to_string().contains('\n'), "{error}");
            // Nothing tries again by itself: that is for the layers.
            assert_eq!(server.asked().len(), 1, "{scheme} {status}");
        }
    }
}

#[tokio::test]
// semantics: OPENDAL-4
async fn a_body_that_ends_early_may_be_asked_for_again() {
    let (_directory, server, origin, sample) = one("http").await;
    server.behave(Manner::CloseEarly);
    let error = read(&*origin, sample.whole(1)).await;
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    server.behave(Manner::Serve);
    let answers: Vec<_> = origin.read_all(vec![sample.whole(1)]).collect().await;
    assert_eq!(answers[0].result.as_ref().unwrap(), &sample.content);
}

#[tokio::test]
// semantics: OPENDAL-4
async fn a_server_that_sends_everything_for_a_part_is_no_store_for_parts() {
    let (_directory, server, origin, sample) = one("http").await;
    server.behave(Manner::IgnoreRanges);
    let error = read(&*origin, sample.range(1, 10..20)).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_may_come_back() {
    let (_directory, _server, _, sample) = one("http").await;
    // Nobody listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let origin = open(&format!("http://{free}"), &[]).await;
    let error = read(&*origin, sample.whole(1)).await;
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_listing_that_fails_says_where() {
    let (_directory, server, origin, _) = one("webdav").await;
    server.behave(Manner::Refuse(StatusCode::FORBIDDEN));
    let (objects, errors) = list(&*origin, "a").await;
    assert!(objects.is_empty());
    assert_eq!((errors[0].kind(), errors[0].object()), (ErrorKind::Denied, Some("a/")), "{errors:?}");
}

#[tokio::test]
// semantics: OPENDAL-6
async fn listing_survives_refused_pages() {
    let (directory, samples) = samples();
    let server = Server::start(directory.path()).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let paths: Vec<&str> = samples.iter().map(|sample| &*sample.object.path).collect();
    std::fs::write(file.path(), paths.join("\n")).unwrap();
    server.behave(Manner::Flaky);
    for (scheme, settings) in [("webdav", vec![]), ("http", vec![("list", file.path().to_str().unwrap())])] {
        let origin = open(&format!("{scheme}://{}", server.address), &settings).await;
        let (objects, errors) = list(&*origin, "").await;
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(objects.len(), samples.len(), "{scheme}");
    }
}

/// A server that sends each GET to `to`, before the same path.
async fn redirecting(root: &std::path::Path, to: &str) -> Server {
    let server = Server::start(root).await;
    server.behave(Manner::Redirect(String::leak(to.to_owned())));
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
    target.asked();
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
    assert!(error.to_string().contains("a redirect that is not followed"), "{error}");
    assert!(!error.is_retryable() && target.asked().is_empty(), "{error}");
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
    hops[0].asked();
    let through_six = open(&format!("http://{}", hops[6].address), &[]).await;
    let error = read(&*through_six, sample.whole(1)).await;
    assert!(error.to_string().contains("a redirect that is not followed"), "{error}");
    assert!(hops[0].asked().is_empty());
}
