//! Listing: every object below a prefix once, in any order.
//!
//! Buckets are listed page by page. Origins with directories are walked, several directories at
//! once. Few WebDAV servers list a whole tree, and a sequential walk takes hours if each directory
//! takes a round trip. Web servers cannot list, so a file provides the paths.
//!
//! OpenDAL's layers limit the time of each page and each request for one object, and retry
//! temporary failures. The layers around the origin do not cover listings, and an hour's walk must
//! not end with one 503.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foreread_tier::{ErrorKind, ListRange, Object, TierError, Version};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt, TryStreamExt};
use opendal::layers::{RetryEvent, RetryLayer, TimeoutLayer};
use opendal::options::ListOptions;
use opendal::{Metadata, Operator};
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;

use crate::OpendalConfig;
use crate::error::from_opendal;
use crate::reader::{check_path, nanoseconds};

/// The capacity of the channel of results.
const CHANNEL_SIZE: usize = 1024;

/// The maximum of concurrent requests of a listing.
const MAX_CONCURRENT: usize = 16;

/// The timeout of a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The retries of a page, and their initial and maximum delay.
const MAX_RETRIES: usize = 7;
const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(10);

type ListResult = Result<Object, TierError>;

/// Lists the objects of one operator.
#[derive(Debug)]
pub(crate) struct ObjectLister {
    of: Arc<Listing>,
    runtime: Handle,
}

#[derive(Debug)]
struct Listing {
    name: &'static str,
    operator: Operator,
    /// The file with the paths of a web server's objects.
    list: Option<PathBuf>,
    at_once: usize,
}

/// The stream of results was dropped.
struct Dropped;

impl ObjectLister {
    pub(crate) fn new(
        name: &'static str,
        operator: Operator,
        config: OpendalConfig,
        runtime: Handle,
    ) -> Self {
        let at_once = config.parallelism.min(MAX_CONCURRENT);
        let operator = with_retries(operator, PAGE_TIMEOUT);
        Self { of: Arc::new(Listing { name, operator, list: config.list, at_once }), runtime }
    }

    /// One object by its path.
    pub(crate) fn stat(&self, path: &str) -> BoxFuture<'static, ListResult> {
        let (of, path, name) = (Arc::clone(&self.of), path.to_owned(), self.of.name);
        let gone = TierError::new(ErrorKind::Other, name).with_object(&*path);
        // On a separate task, for the same reason as listings.
        let found = self.runtime.spawn(async move {
            let missing = || TierError::new(ErrorKind::NotFound, name).with_object(&*path);
            of.stat(&path).await?.ok_or_else(missing)
        });
        found.map(|found| found.unwrap_or(Err(gone))).boxed()
    }

    /// The names of the directories directly below the root. A web server cannot list them, so they
    /// are those of the file of paths.
    pub(crate) fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        let (of, name) = (Arc::clone(&self.of), self.of.name);
        // On a separate task, for the same reason as listings.
        let found = self.runtime.spawn(async move { of.directories().await });
        let gone = TierError::new(ErrorKind::Other, name).with_object("the listing");
        found.map(|found| found.unwrap_or(Err(gone))).boxed()
    }

    pub(crate) fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, ListResult> {
        let wanted = ListRange::new(prefix, after);
        let (out, found) = tokio::sync::mpsc::channel(CHANNEL_SIZE);
        let of = Arc::clone(&self.of);
        let name = of.name;
        // On a separate task: OpenDAL panics on unexpected names, and a panic becomes an error
        // here.
        let listing = self.runtime.spawn(async move {
            let _ = of.list(&wanted, &out).await;
        });
        let listed = stream::unfold(found, async |mut found| Some((found.recv().await?, found)));
        let ended = stream::once(async move {
            let error = listing.await.err()?;
            let detail = if error.is_panic() {
                "OpenDAL cannot parse the storage's answer"
            } else {
                "the runtime ended"
            };
            Some(Err(TierError::new(ErrorKind::Other, name).with_object("the listing").with_detail(detail)))
        });
        listed.chain(ended.filter_map(std::future::ready)).boxed()
    }
}

/// Adds retries of temporary failures and a timeout per page.
fn with_retries(operator: Operator, page_timeout: Duration) -> Operator {
    let wait = RetryLayer::new()
        .with_max_times(MAX_RETRIES)
        .with_min_delay(MIN_DELAY)
        .with_max_delay(MAX_DELAY)
        .with_jitter()
        // By default each retry is logged with the whole URL, which may hold a token.
        .with_notify(|_: RetryEvent<'_>| ());
    operator.layer(TimeoutLayer::new().with_timeout(page_timeout).with_io_timeout(page_timeout)).layer(wait)
}

impl Listing {
    async fn list(&self, wanted: &ListRange, out: &Sender<ListResult>) -> Result<(), Dropped> {
        if !wanted.prefix().is_empty()
            && let Err(error) = check_path(self.name, wanted.prefix().trim_end_matches('/'))
        {
            return send(out, Err(error)).await;
        }
        let capability = self.operator.info().capability();
        match &self.list {
            Some(file) => self.read_list(file, wanted, out).await,
            None if !capability.list => send(out, Err(self.cannot_list())).await,
            None if capability.list_with_recursive && self.name != "webdav" => self.flat(wanted, out).await,
            None => self.walk(wanted, out).await,
        }
    }

    /// Lists page by page, in the origin's order. No origin guarantees an order, so listings start
    /// at the beginning. Otherwise keys could be lost.
    async fn flat(&self, wanted: &ListRange, out: &Sender<ListResult>) -> Result<(), Dropped> {
        let options = ListOptions { recursive: true, ..ListOptions::default() };
        let mut lister = match self.operator.lister_options(wanted.prefix(), options).await {
            Ok(lister) => lister,
            Err(error) => return send(out, Err(self.failed(wanted.prefix(), &error))).await,
        };
        loop {
            match lister.try_next().await {
                Ok(None) => return Ok(()),
                Ok(Some(entry)) => {
                    if wanted.includes(entry.path()) && !entry.path().ends_with('/') {
                        self.object(entry.path(), entry.metadata(), out).await?;
                    }
                }
                Err(error) => return send(out, Err(self.failed(wanted.prefix(), &error))).await,
            }
        }
    }

    /// Lists directory by directory, several at once.
    async fn walk(&self, wanted: &ListRange, out: &Sender<ListResult>) -> Result<(), Dropped> {
        let mut waiting = VecDeque::from([wanted.prefix().to_owned()]);
        let mut in_flight = FuturesUnordered::new();
        loop {
            while in_flight.len() < self.at_once
                && let Some(directory) = waiting.pop_back()
            {
                in_flight.push(self.directory(directory, wanted, out));
            }
            match in_flight.next().await {
                None => return Ok(()),
                Some(below) => waiting.extend(below?),
            }
        }
    }

    async fn directories(&self) -> Result<Vec<String>, TierError> {
        let wanted = ListRange::new("", None);
        let mut names = BTreeSet::new();
        if let Some(file) = &self.list {
            let path = file.clone();
            let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
            let text = text.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            let text = text.map_err(|error| unreadable(self.name, file, &error))?;
            let included = text.lines().filter(|line| wanted.includes(line));
            names.extend(included.filter_map(|line| Some(line.split_once('/')?.0.to_owned())));
            return Ok(names.into_iter().collect());
        }
        if !self.operator.info().capability().list {
            return Err(self.cannot_list());
        }
        let mut lister = self.operator.lister("").await.map_err(|error| self.failed("", &error))?;
        while let Some(entry) = lister.try_next().await.map_err(|error| self.failed("", &error))? {
            let found = entry.path();
            if let Some((name, _)) = found.split_once('/')
                && !name.is_empty()
                && !wanted.is_hidden(found)
            {
                names.insert(name.to_owned());
            }
        }
        Ok(names.into_iter().collect())
    }

    /// The error of an origin without listings.
    fn cannot_list(&self) -> TierError {
        let remedy = "web servers cannot list; name a file with one path per line in \
                      FOREREAD_HTTP_LIST, use `webdav://` if the server supports it, or load a \
                      catalog of this URL";
        TierError::new(ErrorKind::Unsupported, self.name).with_object("the listing").with_detail(remedy)
    }

    /// Sends the objects in a directory, and returns the directories.
    async fn directory(
        &self,
        path: String,
        wanted: &ListRange,
        out: &Sender<ListResult>,
    ) -> Result<Vec<String>, Dropped> {
        let mut below = Vec::new();
        let mut lister = match self.operator.lister(&path).await {
            Ok(lister) => lister,
            Err(error) => {
                send(out, Err(self.failed(&path, &error))).await?;
                return Ok(below);
            }
        };
        loop {
            match lister.try_next().await {
                Ok(None) => return Ok(below),
                Ok(Some(entry)) => {
                    let found = entry.path();
                    // Servers list the directory itself too. Entries outside of it could loop.
                    let inside = found.strip_prefix(&path).is_some_and(|rest| !rest.is_empty());
                    if !inside || found == "/" || wanted.is_hidden(found) {
                        continue;
                    }
                    if found.ends_with('/') {
                        if !is_before(found, wanted) {
                            below.push(found.to_owned());
                        }
                    } else if wanted.includes(found) {
                        self.object(found, entry.metadata(), out).await?;
                    }
                }
                Err(error) => {
                    send(out, Err(self.failed(&path, &error))).await?;
                    return Ok(below);
                }
            }
        }
    }

    /// Requests the objects that a file names.
    async fn read_list(
        &self,
        file: &Path,
        wanted: &ListRange,
        out: &Sender<ListResult>,
    ) -> Result<(), Dropped> {
        let path = file.to_owned();
        let text = match tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return send(out, Err(unreadable(self.name, file, &error))).await,
            Err(_) => return Ok(()),
        };
        let lines = text.lines().map(|line| line.trim_end_matches('\r'));
        let mut waiting: Vec<String> =
            lines.filter(|line| wanted.includes(line)).map(str::to_owned).collect();
        waiting.sort_unstable();
        waiting.dedup();
        let mut in_flight = FuturesUnordered::new();
        loop {
            while in_flight.len() < self.at_once
                && let Some(path) = waiting.pop()
            {
                in_flight.push(async move { self.send_stat(&path, out).await });
            }
            match in_flight.next().await {
                None => return Ok(()),
                Some(sent) => sent?,
            }
        }
    }

    /// Sends an object to the stream. The length is requested if the listing lacks it.
    async fn object(&self, path: &str, metadata: &Metadata, out: &Sender<ListResult>) -> Result<(), Dropped> {
        if !metadata.is_file() {
            return self.send_stat(path, out).await;
        }
        send(out, self.known(path, metadata)).await
    }

    async fn send_stat(&self, path: &str, out: &Sender<ListResult>) -> Result<(), Dropped> {
        match self.stat(path).await.transpose() {
            Some(found) => send(out, found).await,
            None => Ok(()),
        }
    }

    /// An object by its path. `None` for a directory or a device.
    async fn stat(&self, path: &str) -> Result<Option<Object>, TierError> {
        check_path(self.name, path)?;
        match self.operator.stat(path).await {
            Ok(metadata) if metadata.is_file() => self.known(path, &metadata).map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(self.failed(path, &error)),
        }
    }

    fn known(&self, path: &str, metadata: &Metadata) -> ListResult {
        check_path(self.name, path)?;
        Ok(Object { path: path.into(), size: metadata.content_length(), version: self.version(metadata) })
    }

    /// The version of an object, if reads can detect another one.
    fn version(&self, metadata: &Metadata) -> Option<Version> {
        let capability = self.operator.info().capability();
        match (metadata.etag(), metadata.last_modified()) {
            (Some(etag), _) if capability.read_with_if_match => Some(Version::ETag(etag.into())),
            (_, Some(time)) if capability.read_with_if_unmodified_since => {
                Some(Version::Modified(nanoseconds(time)))
            }
            _ => None,
        }
    }

    fn failed(&self, path: &str, error: &opendal::Error) -> TierError {
        let shown = if path.is_empty() { "." } else { path };
        from_opendal(self.name, shown, error)
    }
}

/// The error of a file of paths.
fn unreadable(name: &'static str, file: &Path, error: &std::io::Error) -> TierError {
    TierError::invalid(name, &file.display().to_string(), format!("cannot read the list of paths: {error}"))
}

/// Whether all objects of this directory, whose path ends with `/`, precede the range.
fn is_before(directory: &str, range: &ListRange) -> bool {
    range.after().is_some_and(|after| !after.starts_with(directory) && directory < after)
}

async fn send(out: &Sender<ListResult>, found: ListResult) -> Result<(), Dropped> {
    out.send(found).await.map_err(|_| Dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server never answers the first request.
    #[tokio::test]
    #[cfg(feature = "webdav")]
    // semantics: OPENDAL-6
    async fn stalled_page_is_requested_again() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let stalled = listener.accept().await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut head, mut request) = (vec![0; 4096], Vec::new());
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                let read = stream.read(&mut head).await.unwrap();
                request.extend_from_slice(&head[..read]);
            }
            let answer = "<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\"><D:response>\
                <D:href>/a.jpg</D:href><D:propstat><D:prop><D:getlastmodified>Thu, 01 Jan 2026 00:00:00 \
                GMT</D:getlastmodified>\
                <D:getcontentlength>3</D:getcontentlength><D:resourcetype/></D:prop>\
                <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>";
            let head = format!("HTTP/1.1 207 Multi-Status\r\nContent-Length: {}\r\n\r\n", answer.len());
            stream.write_all(format!("{head}{answer}").as_bytes()).await.unwrap();
            (stalled, stream)
        });
        let options = [("endpoint".to_owned(), format!("http://{address}"))];
        let operator = Operator::from_iter::<opendal::services::Webdav>(options).unwrap();
        let client = operator.context().with_http_transport(crate::transport::transporter(false).unwrap());
        let operator = with_retries(operator.with_context(client), Duration::from_millis(200));
        let of = Listing { name: "webdav", operator, list: None, at_once: 1 };
        let (out, mut found) = tokio::sync::mpsc::channel(CHANNEL_SIZE);
        let wanted = ListRange::new("", None);
        let listing = async move { of.list(&wanted, &out).await.is_ok() };
        assert!(tokio::time::timeout(Duration::from_secs(60), listing).await.unwrap());
        let object = found.recv().await.unwrap().unwrap();
        assert_eq!((&*object.path, object.size), ("a.jpg", 3));
        drop(server.await.unwrap());
    }

    #[test]
    fn directory_before_the_range_is_skipped() {
        let range = ListRange::new("a", Some("a/m"));
        assert!(is_before("a/l/", &range) && !is_before("a/m/", &range) && !is_before("a/n/", &range));
    }
}
