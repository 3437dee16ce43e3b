//! Shows an agent or a control process over HTTP: a page, its status as JSON, and Prometheus
//! metrics.
//!
//! A Unix socket `http.sock` next to the agent's socket serves always. With an address, a loopback
//! port serves as well, for browsers.
//!
//! # Decisions and price
//!
//! * *Read-only.* Only GET and HEAD are answered, and no path changes anything. Settings change by
//!   `foreread agent set`, whose socket authenticates its user.
//! * *The user alone reads.* The socket has mode 0600 in a directory of mode 0700. A loopback port
//!   is open to every user of the node, so it takes a token ([`access`]).
//! * *One status per second for all clients.* Requests are answered from it ([`feed`]). So clients
//!   take no lock of the cache, however many requests they send. The price is an answer that is up
//!   to a second old.
//! * *Limits everywhere*: connections, event streams, and the time of requests and answers
//!   ([`serving`]). axum's own server has none, so hyper serves axum's routes.
//! * *The page is three files in the program*, without a build step. The price is 60 KB.

mod access;
mod feed;
mod files;
mod history;
mod metrics;
mod page;
mod routes;
mod serving;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use crate::error::AgentError;
use tokio::runtime::Handle;

use self::access::{AccessToken, HttpAccess};
pub(crate) use self::feed::ShownStatus;
use self::feed::StatusFeed;
pub use self::files::HttpFiles;

/// Sockets that are bound, and serve nothing yet.
#[derive(Debug)]
pub(crate) struct HttpListeners {
    unix: Option<UnixListener>,
    loopback: Option<Loopback>,
    files: HttpFiles,
}

/// A port of this machine, and the proof that it requires.
#[derive(Debug)]
struct Loopback {
    listener: TcpListener,
    address: SocketAddr,
    token: AccessToken,
}

/// The HTTP interface of an agent. Its files are removed on drop.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: Option<SocketAddr>,
    _files: HttpFiles,
}

impl HttpListeners {
    /// Binds the socket in an agent's directory, which this process has locked, and a loopback port
    /// if there is an address.
    ///
    /// An agent without its HTTP socket is still a cache. So a failure of the socket is a warning,
    /// and one of the requested port an error.
    pub(crate) fn bind(directory: &Path, address: Option<SocketAddr>) -> Result<Self, AgentError> {
        let files = HttpFiles::in_directory(directory);
        files.remove();
        let unix = files.bind_socket().inspect_err(|error| {
            tracing::warn!(socket = %files.socket().display(), %error, "no HTTP interface at this socket");
        });
        let loopback = address.map(|address| Loopback::bind(address, &files)).transpose()?;
        Ok(Self { unix: unix.ok(), loopback, files })
    }

    /// Serves the value of `status`, which it calls once per second, on a runtime.
    pub(crate) fn serve<T: ShownStatus>(
        self,
        runtime: &Handle,
        status: impl Fn() -> T + Send + 'static,
    ) -> HttpServer {
        let feed = StatusFeed::start(runtime, status);
        // Sockets belong to a runtime.
        let _runtime = runtime.enter();
        let unusable = |error: &std::io::Error| tracing::warn!(%error, "no HTTP interface");
        let unix = self.unix.map(|unix| tokio::net::UnixListener::from_std(unix).inspect_err(unusable));
        if let Some(Ok(unix)) = unix {
            let (routes, unix) = (routes::router(feed.clone(), Arc::new(HttpAccess::Owner)), Arc::new(unix));
            let accept = move || {
                let unix = Arc::clone(&unix);
                async move { Ok(unix.accept().await?.0) }
            };
            runtime.spawn(serving::serve(accept, routes));
        }
        let mut address = None;
        if let Some(Loopback { listener, address: at, token }) = self.loopback
            && let Ok(tcp) = tokio::net::TcpListener::from_std(listener).inspect_err(unusable)
        {
            address = Some(at);
            let (routes, tcp) =
                (routes::router(feed, Arc::new(HttpAccess::token(token, at.port()))), Arc::new(tcp));
            let accept = move || {
                let tcp = Arc::clone(&tcp);
                async move { Ok(tcp.accept().await?.0) }
            };
            runtime.spawn(serving::serve(accept, routes));
            tracing::info!(address = %at, "the agent's page is served");
        }
        HttpServer { address, _files: self.files }
    }
}

impl Loopback {
    fn bind(address: SocketAddr, files: &HttpFiles) -> Result<Self, AgentError> {
        if !address.ip().is_loopback() {
            return Err(AgentError::NotLoopback { address });
        }
        let failed = |error| AgentError::system(format!("cannot listen on {address}"), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let token =
            AccessToken::random().map_err(|error| AgentError::system("cannot make a token", error))?;
        let written = files.write_token(token.text(), &format!("http://{address}/?token={}", token.text()));
        written.map_err(|error| AgentError::system("cannot write the page's token", error))?;
        Ok(Self { listener, address, token })
    }
}

impl HttpServer {
    /// The loopback address of the page, if it has one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

#[cfg(test)]
mod tests;
