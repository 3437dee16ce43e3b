//! Listing: everything below a prefix, in any order, each object once.
//!
//! Buckets list flat, page by page. Stores with directories are walked, several directories at once: WebDAV servers that
//! answer for a whole tree are few, and one directory after the other takes hours where each takes a round trip. A web
//! server lists nothing; a file says what it has.
//!
//! Each page, and each question for one object, has a time limit and is repeated where its failure may pass, by OpenDAL's
//! own layers: the layers around the origin do not see listings, and an hour's walk must not end with one 503.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foreread_tier::{ErrorKind, Object, TierError, Version};
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

/// Results on their way to who asked.
const QUEUE: usize = 1024;

/// Directories listed, or objects asked for, at once.
const AT_ONCE: usize = 16;

/// How long a page may take.
const PAGE: Duration = Duration::from_secs(60);

/// How often a page is repeated, and how long is waited before, at first and at most.
const REPEATS: usize = 7;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

type Found = Result<Object, TierError>;

/// Lists what one operator holds.
#[derive(Debug)]
pub(crate) struct Lister {
    of: Arc<Of>,
    runtime: Handle,
}

#[derive(Debug)]
struct Of {
    name: &'static str,
    operator: Operator,
    /// What a web server has.
    list: Option<PathBuf>,
    at_once: usize,
}

/// What is wanted of a listing.
#[derive(Clone, Debug)]
struct Wanted {
    /// Empty, or ending with `/`.
    prefix: String,
    after: Option<String>,
}

/// Nobody wants the rest.
struct Enough;

impl Lister {
    pub(crate) fn new(
        name: &'static str,
        operator: Operator,
        config: OpendalConfig,
        runtime: Handle,
    ) -> Self {
        let at_once = config.parallelism.min(AT_ONCE);
        let operator = persistent(operator, PAGE);
        Self { of: Arc::new(Of { name, operator, list: config.list, at_once }), runtime }
    }

    /// One object by its path.
    pub(crate) fn stat(&self, path: &str) -> BoxFuture<'static, Found> {
        let (of, path, name) = (Arc::clone(&self.of), path.to_owned(), self.of.name);
        let gone = TierError::new(ErrorKind::Other, name).with_object(&*path);
        // On a task of its own, for the reason that listings are.
        let found = self.runtime.spawn(async move {
            let missing = || TierError::new(ErrorKind::NotFound, name).with_object(&*path);
            of.stat(&path).await?.ok_or_else(missing)
        });
        found.map(|found| found.unwrap_or(Err(gone))).boxed()
    }

    pub(crate) fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Found> {
        let prefix = prefix.trim_end_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        let wanted = Wanted { prefix: format!("{prefix}{slash}"), after: after.map(str::to_owned) };
        let (out, found) = tokio::sync::mpsc::channel(QUEUE);
        let of = Arc::clone(&self.of);
        let name = of.name;
        // On a task of its own: names that OpenDAL does not expect make it panic, and that ends the listing with an error.
        let listing = self.runtime.spawn(async move {
            let _ = of.list(&wanted, &out).await;
        });
        let listed = stream::unfold(found, async |mut found| Some((found.recv().await?, found)));
        let ended = stream::once(async move {
            let error = listing.await.err()?;
            let detail = if error.is_panic() {
                "the store's answer makes no sense to OpenDAL"
            } else {
                "the runtime ended"
            };
            Some(Err(TierError::new(ErrorKind::Other, name).with_object("the listing").with_detail(detail)))
        });
        listed.chain(ended.filter_map(std::future::ready)).boxed()
    }
}

/// The operator, which repeats what fails for a moment and what takes longer than `page`.
fn persistent(operator: Operator, page: Duration) -> Operator {
    let wait = RetryLayer::new()
        .with_max_times(REPEATS)
        .with_min_delay(FIRST_WAIT)
        .with_max_delay(LONGEST_WAIT)
        .with_jitter()
        // By default each repetition is logged with the whole URL, which may hold a token.
        .with_notify(|_: RetryEvent<'_>| ());
    operator.layer(TimeoutLayer::new().with_timeout(page).with_io_timeout(page)).layer(wait)
}

impl Of {
    async fn list(&self, wanted: &Wanted, out: &Sender<Found>) -> Result<(), Enough> {
        if !wanted.prefix.is_empty()
            && let Err(error) = check_path(self.name, wanted.prefix.trim_end_matches('/'))
        {
            return send(out, Err(error)).await;
        }
        let capability = self.operator.info().capability();
        match &self.list {
            Some(file) => self.read_list(file, wanted, out).await,
            None if !capability.list => {
                let error = TierError::new(ErrorKind::Unsupported, self.name).with_object("the listing");
                let remedy = "a web server lists nothing; name a file with one path a line in FOREREAD_HTTP_LIST, use \
                              `webdav://` where the server speaks that, or load a catalog that was made of this URL";
                send(out, Err(error.with_detail(remedy))).await
            }
            None if capability.list_with_recursive && self.name != "webdav" => self.flat(wanted, out).await,
            None => self.walk(wanted, out).await,
        }
    }

    /// Page by page, in the store's order. No store promises which that is, so none is told where to start: keys could
    /// be lost.
    async fn flat(&self, wanted: &Wanted, out: &Sender<Found>) -> Result<(), Enough> {
        let options = ListOptions { recursive: true, ..ListOptions::default() };
        let mut lister = match self.operator.lister_options(&wanted.prefix, options).await {
            Ok(lister) => lister,
            Err(error) => return send(out, Err(self.failed(&wanted.prefix, &error))).await,
        };
        loop {
            match lister.try_next().await {
                Ok(None) => return Ok(()),
                Ok(Some(entry)) => {
                    if wanted.is(entry.path()) && !entry.path().ends_with('/') {
                        self.object(entry.path(), entry.metadata(), out).await?;
                    }
                }
                Err(error) => return send(out, Err(self.failed(&wanted.prefix, &error))).await,
            }
        }
    }

    /// Directory by directory, several at once.
    async fn walk(&self, wanted: &Wanted, out: &Sender<Found>) -> Result<(), Enough> {
        let mut waiting = VecDeque::from([wanted.prefix.clone()]);
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < self.at_once
                && let Some(directory) = waiting.pop_back()
            {
                under_way.push(self.directory(directory, wanted, out));
            }
            match under_way.next().await {
                None => return Ok(()),
                Some(below) => waiting.extend(below?),
            }
        }
    }

    /// Sends the objects in a directory, and returns the directories.
    async fn directory(
        &self,
        path: String,
        wanted: &Wanted,
        out: &Sender<Found>,
    ) -> Result<Vec<String>, Enough> {
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
                    // Servers list the directory itself, too. What is not below it would be walked for ever.
                    let inside = found.strip_prefix(&path).is_some_and(|rest| !rest.is_empty());
                    if !inside || found == "/" || wanted.is_hidden(found) {
                        continue;
                    }
                    if found.ends_with('/') {
                        if !wanted.is_before(found) {
                            below.push(found.to_owned());
                        }
                    } else if wanted.is(found) {
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

    /// Asks for the objects that a file names.
    async fn read_list(&self, file: &Path, wanted: &Wanted, out: &Sender<Found>) -> Result<(), Enough> {
        let path = file.to_owned();
        let text = match tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => {
                let why = format!("the list of paths cannot be read: {error}");
                return send(out, Err(TierError::invalid(self.name, &file.display().to_string(), why))).await;
            }
            Err(_) => return Ok(()),
        };
        let lines = text.lines().map(|line| line.trim_end_matches('\r'));
        let mut waiting: Vec<String> = lines.filter(|line| wanted.is(line)).map(str::to_owned).collect();
        waiting.sort_unstable();
        waiting.dedup();
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < self.at_once
                && let Some(path) = waiting.pop()
            {
                under_way.push(async move { self.ask(&path, out).await });
            }
            match under_way.next().await {
                None => return Ok(()),
                Some(sent) => sent?,
            }
        }
    }

    /// Sends an object on; one that came without its length is asked for it.
    async fn object(&self, path: &str, metadata: &Metadata, out: &Sender<Found>) -> Result<(), Enough> {
        if !metadata.is_file() {
            return self.ask(path, out).await;
        }
        send(out, self.known(path, metadata)).await
    }

    async fn ask(&self, path: &str, out: &Sender<Found>) -> Result<(), Enough> {
        match self.stat(path).await.transpose() {
            Some(found) => send(out, found).await,
            None => Ok(()),
        }
    }

    /// An object by its path; none where something else is there: a directory, a device.
    async fn stat(&self, path: &str) -> Result<Option<Object>, TierError> {
        check_path(self.name, path)?;
        match self.operator.stat(path).await {
            Ok(metadata) if metadata.is_file() => self.known(path, &metadata).map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(self.failed(path, &error)),
        }
    }

    fn known(&self, path: &str, metadata: &Metadata) -> Found {
        check_path(self.name, path)?;
        Ok(Object { path: path.into(), size: metadata.content_length(), version: self.version(metadata) })
    }

    /// What tells this state of the object, where a read can tell another one from it.
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

impl Wanted {
    /// Whether an object is to be listed.
    fn is(&self, path: &str) -> bool {
        path.strip_prefix(&*self.prefix).is_some_and(|rest| !rest.is_empty())
            && !self.is_hidden(path)
            && self.after.as_deref().is_none_or(|after| path > after)
    }

    /// Whether a part of the path below the prefix begins with a dot.
    fn is_hidden(&self, path: &str) -> bool {
        let below = path.strip_prefix(&*self.prefix).unwrap_or(path);
        below.split('/').any(|part| part.starts_with('.'))
    }

    /// Whether all that lies in this directory, whose path ends with `/`, comes before what is wanted.
    fn is_before(&self, directory: &str) -> bool {
        self.after.as_deref().is_some_and(|after| !after.starts_with(directory) && directory < after)
    }
}

async fn send(out: &Sender<Found>, found: Found) -> Result<(), Enough> {
    out.send(found).await.map_err(|_| Enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first answer never comes.
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
            let (mut head, mut asked) = (vec![0; 4096], Vec::new());
            while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
                let read = stream.read(&mut head).await.unwrap();
                asked.extend_from_slice(&head[..read]);
            }
            let answer = "<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>/a.jpg</D:href>\
                <D:propstat><D:prop><D:getlastmodified>Thu, 01 Jan 2026 00:00:00 GMT</D:getlastmodified>\
                <D:getcontentlength>3</D:getcontentlength><D:resourcetype/></D:prop><D:status>HTTP/1.1 200 OK</D:status>\
                </D:propstat></D:response></D:multistatus>";
            let head = format!("HTTP/1.1 207 Multi-Status\r\nContent-Length: {}\r\n\r\n", answer.len());
            stream.write_all(format!("{head}{answer}").as_bytes()).await.unwrap();
            (stalled, stream)
        });
        let options = [("endpoint".to_owned(), format!("http://{address}"))];
        let operator = Operator::from_iter::<opendal::services::Webdav>(options).unwrap();
        let client = operator.context().with_http_transport(crate::transport::transporter(false).unwrap());
        let operator = persistent(operator.with_context(client), Duration::from_millis(200));
        let of = Of { name: "webdav", operator, list: None, at_once: 1 };
        let (out, mut found) = tokio::sync::mpsc::channel(QUEUE);
        let wanted = Wanted { prefix: String::new(), after: None };
        let listing = async move { of.list(&wanted, &out).await.is_ok() };
        assert!(tokio::time::timeout(Duration::from_secs(60), listing).await.unwrap());
        let object = found.recv().await.unwrap().unwrap();
        assert_eq!((&*object.path, object.size), ("a.jpg", 3));
        drop(server.await.unwrap());
    }

    #[test]
    fn what_is_wanted() {
        let wanted = Wanted { prefix: "a/".into(), after: Some("a/m".into()) };
        for (path, is) in [("a/n", true), ("a/m", false), ("a/", false), ("ab/n", false), ("a/n/.x", false)] {
            assert_eq!(wanted.is(path), is, "{path}");
        }
        assert!(wanted.is_before("a/l/") && !wanted.is_before("a/m/") && !wanted.is_before("a/n/"));
        let hidden = Wanted { prefix: ".git/".into(), after: None };
        assert!(hidden.is(".git/config"), "what the caller names is not hidden");
    }
}
