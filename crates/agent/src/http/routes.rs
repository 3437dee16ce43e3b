//! The paths of the HTTP interface. docs/agent.md describes them for users.
//!
//! Decision: the version is in the path, and the status has the fields of `foreread agent status`.
//! Later versions add fields. Events are texts that all clients share. axum's own events would be
//! made for each client. The price is their format, in one line of [`super::feed`].

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, RETRY_AFTER};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::get;
use futures::stream;
use tokio::sync::Semaphore;

use super::access::{self, HttpAccess};
use super::feed::{StatusFeed, StatusSnapshot};
use super::{metrics, page};

/// The most event streams of one socket. Other requests have the rest of its connections.
const MAX_STREAMS: usize = 32;

const JSON: &str = "application/json";

/// The data that answers are made from.
#[derive(Clone)]
struct Served {
    feed: StatusFeed,
    streams: Arc<Semaphore>,
}

/// The routes of one socket.
pub(super) fn router(feed: StatusFeed, access: Arc<HttpAccess>) -> Router {
    let text = |media_type, text: fn(&StatusSnapshot) -> Bytes| {
        get(async move |State(served): State<Served>| page::answer(media_type, text(&served.feed.latest())))
    };
    let mut router = Router::new()
        .route("/api/v1/status", text(JSON, StatusSnapshot::status))
        .route("/api/v1/history", text(JSON, StatusSnapshot::history))
        .route("/metrics", text(metrics::CONTENT_TYPE, StatusSnapshot::metrics))
        .route("/api/v1/events", get(events));
    for file in page::FILES {
        router = router.route(file.path, get(async move || page::answer(file.media_type, file.text)));
    }
    router
        .with_state(Served { feed, streams: Arc::new(Semaphore::new(MAX_STREAMS)) })
        .layer(from_fn_with_state(access, access::check))
        .layer(map_response(page::with_headers))
}

/// Server-sent events: the status now, and then once per second.
async fn events(State(served): State<Served>) -> Response {
    let Ok(slot) = served.streams.try_acquire_owned() else {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("10"));
        return response;
    };
    let events = stream::unfold((served.feed.follow(), slot), async move |(mut statuses, slot)| {
        statuses.changed().await.ok()?;
        let event = statuses.borrow_and_update().event();
        Some((Ok::<_, Infallible>(event), (statuses, slot)))
    });
    page::answer("text/event-stream", Body::from_stream(events))
}
