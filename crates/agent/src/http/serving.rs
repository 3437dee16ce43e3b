//! Connections of the HTTP interface, within limits.
//!
//! Decision: each socket has connections of its own. Clients without a token can fill those of the
//! loopback port, and the Unix socket still answers. Clients that send or receive nothing are
//! disconnected after a few seconds. The price is that the 65th client waits.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Semaphore;
use tokio::time::Sleep;

/// The most connections of one socket.
const MAX_CONNECTIONS: usize = 64;

/// The most bytes of a request's head, and of an answer that waits for its client.
const MAX_BUFFERED: usize = 16 << 10;

/// How long a client may take for the head of a request, also between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may receive nothing while there is something to send.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a connection could not be accepted, because descriptors are used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the connections that `accept` brings, until the runtime ends.
pub(super) async fn serve<S, A>(accept: impl Fn() -> A, routes: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Future<Output = io::Result<S>>,
{
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Never closed.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let stream = match accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "an HTTP connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let routes = routes.clone();
        tokio::spawn(async move {
            let _slot = slot;
            if let Err(error) = connection(stream, routes).await {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
    }
}

/// Serves one connection to its end.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: Router,
) -> hyper::Result<()> {
    let stream = TokioIo::new(BoundedStream { stream, deadline: None });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_BUFFERED);
    http.serve_connection(stream, TowerToHyperService::new(routes)).await
}

/// A stream whose writes fail when its client receives nothing for [`WRITE_TIMEOUT`].
struct BoundedStream<S> {
    stream: S,
    /// While a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> BoundedStream<S> {
    fn bounded<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.deadline = None;
            return done;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIMEOUT)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, done)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use futures::stream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// The bytes that arrive until the peer ends the connection, in whatever way.
    async fn until_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Runs with a clock that advances when all tasks wait.
    fn run(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build().unwrap().block_on(test);
    }

    fn endless() -> Router {
        let body = || async {
            Body::from_stream(stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from_static(&[0; 4096]))))
        };
        Router::new().route("/", get(body))
    }

    #[test]
    // semantics: AGENT-22
    fn client_that_sends_no_request_is_disconnected() {
        run(async {
            for sent in [&b""[..], b"GET / HTTP/1.1\r\nHost: local"] {
                let (mut client, server) = tokio::io::duplex(1024);
                let served = tokio::spawn(connection(server, Router::new()));
                client.write_all(sent).await.unwrap();
                let answer = until_end(&mut client).await;
                assert!(!answer.contains("200"), "{answer}");
                let _ = served.await.unwrap();
            }
        });
    }

    #[test]
    // semantics: AGENT-22
    fn client_that_receives_nothing_is_disconnected() {
        run(async {
            let (mut client, server) = tokio::io::duplex(1024);
            let served = tokio::spawn(connection(server, endless()));
            client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            assert!(served.await.unwrap().is_err());
            drop(client);
        });
    }

    #[test]
    // semantics: AGENT-22
    fn head_of_a_request_is_bounded() {
        run(async {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let served = tokio::spawn(connection(server, endless()));
            let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {}", "b".repeat(2 * MAX_BUFFERED));
            client.write_all(head.as_bytes()).await.unwrap();
            let answer = until_end(&mut client).await;
            assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
            assert!(served.await.unwrap().is_err());
        });
    }

    #[test]
    // semantics: AGENT-22
    fn connections_beyond_the_bound_wait_for_a_free_one() {
        run(async {
            let listener = Arc::new(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
            let address = listener.local_addr().unwrap();
            let routes = Router::new().route("/", get(|| async { "here" }));
            let accept = move || {
                let listener = Arc::clone(&listener);
                async move { Ok(listener.accept().await?.0) }
            };
            tokio::spawn(serve(accept, routes));
            let mut silent = Vec::new();
            for _ in 0..MAX_CONNECTIONS {
                silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
            }
            // It is answered when the silent clients have been disconnected.
            let mut last = tokio::net::TcpStream::connect(address).await.unwrap();
            last.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
            let answer = until_end(&mut last).await;
            assert!(answer.ends_with("here"), "{answer}");
            assert_eq!(silent.len(), MAX_CONNECTIONS);
        });
    }
}
