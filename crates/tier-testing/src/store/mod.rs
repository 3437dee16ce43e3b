//! An object store in this process, for tests and benchmarks: S3 over HTTP, with counts and
//! injected faults.
//!
//! It supports the requests of reading clients, path style, on its own port on the loopback
//! interface: `GET` (with `Range` and `If-Match`), `HEAD`, `PUT`, and `ListObjectsV2`. Objects are
//! bytes ([`HttpStore::put`]) or generated on request ([`NumberedObjects`], [`Archive`], [`made`]),
//! so a bucket of a million keys or of 10 GB costs no memory. A body costs no allocation per
//! request, because benchmarks compare clients with it: only slices are sent.
//!
//! Decision: the server has its own runtime and threads. So a test without async code can start
//! one, and a client that blocks its runtime does not block the server. The price is that a paused
//! clock does not apply to it.
//!
//! ```
//! use foreread_tier_testing::store::{NumberedObjects, HttpStore};
//! let store = HttpStore::start();
//! store.numbered("images", NumberedObjects::new(1_000_000, 110_000));
//! store.bucket("notes");
//! store.put("notes", "a/b.txt", "hello");
//! assert!(store.endpoint().starts_with("http://127.0.0.1:"));
//! assert_eq!(store.requests().get, 0);
//! ```

mod access;
mod answer;
mod archive;
mod body;
mod bucket;
mod content;
mod counters;
mod faults;
mod order;
mod serve;
mod xml;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

pub use archive::Archive;
pub use body::PART;
pub use content::{Content, NumberedObjects, made};
pub use counters::{Kind, RequestCounts};
pub use faults::{Fault, When};
pub use order::ListingOrder;

use access::Access;
use bucket::{Bucket, BucketKeys};
use faults::Faults;
use serve::StoreShared;

use crate::ceiling::RateCeiling;

/// A running store. It stops when dropped.
pub struct HttpStore {
    address: SocketAddr,
    shared: Arc<StoreShared>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for HttpStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("address", &self.address).finish_non_exhaustive()
    }
}

impl HttpStore {
    /// A store without buckets, on one thread, with seed 0.
    pub fn start() -> Self {
        Self::start_with(1, 0)
    }

    /// A store on `threads` threads. `seed` selects the requests with random faults.
    ///
    /// # Panics
    /// If the machine has no free port or thread.
    pub fn start_with(threads: usize, seed: u64) -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), threads, seed)
    }

    /// The same at a fixed address, for other processes.
    ///
    /// # Panics
    /// If the address is in use or the machine has no free thread.
    pub fn start_at(address: SocketAddr, threads: usize, seed: u64) -> Self {
        let shared = Arc::new(StoreShared {
            buckets: RwLock::default(),
            counters: Arc::default(),
            faults: Faults::new(seed),
            access: Access::default(),
            ceiling: RwLock::default(),
            latency: AtomicU64::new(0),
            places: RwLock::default(),
            tags: AtomicU64::new(1),
            untagged: AtomicBool::new(false),
        });
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("test-store")
            .enable_all()
            .build()
            .unwrap_or_else(|error| panic!("the store has no threads: {error}"));
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("{error}"));
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, runtime: Some(runtime) }
    }

    /// Its address: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    fn with_bucket(&self, name: &str, change: impl FnOnce(&mut Bucket)) {
        let mut buckets = self.shared.buckets.write().unwrap_or_else(PoisonError::into_inner);
        change(
            buckets.entry(name.to_owned()).or_insert_with(|| Bucket::new(BucketKeys::Map(BTreeMap::new()))),
        );
    }

    /// Creates an empty bucket, if there is none of that name.
    pub fn bucket(&self, name: &str) {
        self.with_bucket(name, |_| {});
    }

    /// Creates or replaces a bucket of numbered objects.
    pub fn numbered(&self, name: &str, objects: NumberedObjects) {
        self.with_bucket(name, |bucket| bucket.keys = BucketKeys::Numbered(objects));
    }

    /// Stores an object under a new tag, like a `PUT`.
    ///
    /// # Panics
    /// If there is no such bucket, or its objects are numbered.
    pub fn put(&self, bucket: &str, key: &str, content: impl Into<Bytes>) {
        self.put_content(bucket, key, Arc::new(content.into()));
    }

    /// Stores a generated object.
    ///
    /// # Panics
    /// If there is no such bucket, or its objects are numbered.
    pub fn put_content(&self, bucket: &str, key: &str, content: Arc<dyn Content>) {
        if let Err(refusal) = self.shared.store(bucket, key, content) {
            panic!("{bucket}/{key}: {refusal:?}");
        }
    }

    /// Removes an object, if it exists.
    pub fn remove(&self, bucket: &str, key: &str) {
        self.with_bucket(bucket, |bucket| {
            if let BucketKeys::Map(map) = &mut bucket.keys {
                map.remove(key);
            }
        });
    }

    /// Stores further objects without a tag, like stores without versions.
    pub fn forget_tags(&self) {
        self.shared.untagged.store(true, Relaxed);
    }

    /// Denies listings of a bucket, or reads of its objects.
    pub fn deny(&self, bucket: &str, list: bool, read: bool) {
        self.with_bucket(bucket, |bucket| (bucket.list_denied, bucket.read_denied) = (list, read));
    }

    /// Lists a bucket in another order than S3.
    pub fn set_order(&self, bucket: &str, order: ListingOrder) {
        self.with_bucket(bucket, |bucket| bucket.order = order);
    }

    /// Redirects requests for a bucket that are signed for another region.
    pub fn set_region(&self, bucket: &str, region: &str) {
        self.with_bucket(bucket, |bucket| bucket.region = Some(region.to_owned()));
    }

    /// Admits an access key. After the first call, requests without an admitted key are denied.
    pub fn allow(&self, access_key: &str) {
        self.shared.access.allow(access_key);
    }

    /// Expires an access key or a session token.
    pub fn expire(&self, key_or_token: &str) {
        self.shared.access.expire(key_or_token);
    }

    /// Sets a wait before each answer.
    pub fn set_latency(&self, latency: Duration) {
        self.shared.latency.store(latency.as_nanos() as u64, Relaxed);
    }

    /// Processes at most `requests` at once, from the wait before an answer to its end. The others
    /// wait. `None`: no limit.
    pub fn set_at_once(&self, requests: Option<usize>) {
        let places = requests.map(|requests| Arc::new(Semaphore::new(requests)));
        *self.shared.places.write().unwrap_or_else(PoisonError::into_inner) = places;
    }

    /// Answers `503 SlowDown` above a rate in requests per second, with a burst of a twentieth of a
    /// second. `None`: no ceiling.
    pub fn set_ceiling(&self, rate: Option<f64>) {
        let ceiling = rate.map(|rate| RateCeiling::new("", rate, (rate / 20.0).max(1.0), None));
        *self.shared.ceiling.write().unwrap_or_else(PoisonError::into_inner) = ceiling;
    }

    /// Adds a rule for requests of this kind. The first matching rule applies.
    pub fn on(&self, kind: Kind, when: When, fault: Fault) {
        self.shared.faults.add(kind, when, fault);
    }

    /// Removes all rules.
    pub fn mend(&self) {
        self.shared.faults.clear();
    }

    /// The counts of requests.
    pub fn requests(&self) -> RequestCounts {
        *self.shared.counters.lock()
    }

    /// Resets the counts.
    pub fn reset(&self) {
        self.shared.counters.reset();
    }
}

impl Drop for HttpStore {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<StoreShared>) {
    let listening = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
    let listener = match listening {
        Ok(listener) => listener,
        Err(error) => panic!("the store cannot listen: {error}"),
    };
    loop {
        // Neither a lack of descriptors nor a connection that closed before it was accepted ends
        // the store.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        shared.counters.lock().connections += 1;
        tokio::spawn(async move {
            // Without it, answers are the same but slower.
            let _ = stream.set_nodelay(true);
            let service = service_fn(|request| shared.serve(request));
            // Disconnecting clients and injected closings end a connection with an error. The test
            // observes its own side.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    /// The answer to a request as text, until the server closes the connection.
    fn send_request(store: &HttpStore, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(store.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(store: &HttpStore, path: &str, headers: &str) -> String {
        send_request(store, "GET", path, headers, "")
    }

    #[test]
    fn objects_are_put_read_in_parts_and_listed() {
        let store = HttpStore::start();
        store.bucket("b");
        assert!(send_request(&store, "PUT", "/b/a/x%20y", "", "hello").starts_with("HTTP/1.1 200"));
        let whole = get(&store, "/b/a/x%20y", "");
        assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with("\r\n\r\nhello"), "{whole}");
        assert!(whole.contains("etag: \"0000000000000001\""), "{whole}");
        let part = get(&store, "/b/a/x%20y", "Range: bytes=1-2\r\nIf-Match: \"0000000000000001\"\r\n");
        assert!(part.starts_with("HTTP/1.1 206") && part.ends_with("\r\n\r\nel"), "{part}");
        assert!(part.contains("content-range: bytes 1-2/5"), "{part}");
        assert!(get(&store, "/b/a/x%20y", "If-Match: \"2\"\r\n").starts_with("HTTP/1.1 412"));
        let head = send_request(&store, "HEAD", "/b/a/x%20y", "", "");
        assert!(head.contains("content-length: 5") && head.ends_with("\r\n\r\n"), "{head}");
        let page = get(&store, "/b?list-type=2&prefix=a%2F&max-keys=7", "");
        assert!(page.contains("<Key>a/x y</Key>") && page.contains("<Size>5</Size>"), "{page}");
        let page = get(&store, "/b/?list-type=2&delimiter=/", "");
        assert!(page.contains("<CommonPrefixes><Prefix>a/</Prefix>"), "{page}");
        assert!(get(&store, "/b/nothing", "").contains("<Code>NoSuchKey</Code>"));
        assert!(get(&store, "/none/nothing", "").contains("<Code>NoSuchBucket</Code>"));
        let requests = store.requests();
        assert_eq!((requests.get, requests.head, requests.list, requests.put), (5, 1, 2, 1));
        assert_eq!(requests.bytes, 7);
        assert!(requests.first_sent.is_some());
        store.reset();
        assert_eq!(store.requests().first_sent, None);
    }

    #[test]
    fn denied_requests_name_the_reason() {
        let store = HttpStore::start();
        store.bucket("b");
        store.put("b", "x", "1");
        store.allow("good");
        let signed = |key| {
            format!(
                "Authorization: AWS4-HMAC-SHA256 Credential={key}/20260101/us-east-1/s3/aws4_request, \
                 Signature=0\r\n"
            )
        };
        assert!(get(&store, "/b/x", "").contains("<Code>AccessDenied</Code>"));
        assert!(get(&store, "/b/x", &signed("bad")).contains("<Code>InvalidAccessKeyId</Code>"));
        assert!(get(&store, "/b/x", &signed("good")).starts_with("HTTP/1.1 200"));
        store.deny("b", true, false);
        assert!(get(&store, "/b?list-type=2", &signed("good")).contains("<Code>AccessDenied</Code>"));
        store.set_region("b", "eu-west-1");
        assert!(get(&store, "/b/x", &signed("good")).contains("x-amz-bucket-region: eu-west-1"));
        store.expire("good");
        assert!(get(&store, "/b/x", &signed("good")).contains("<Code>ExpiredToken</Code>"));
    }

    #[test]
    fn faults_follow_their_rules() {
        let store = HttpStore::start();
        store.numbered("b", NumberedObjects::new(10, 1000));
        let path = "/b/000000/00000003.bin";
        for (fault, expected) in [
            (Fault::Internal, "HTTP/1.1 500"),
            (Fault::SlowDown(Some(3)), "retry-after: 3"),
            (Fault::Expired, "<Code>ExpiredToken</Code>"),
            (Fault::Half, "content-length: 500"),
            (Fault::Replaced, "7265706c61636564"),
            (Fault::StallBody(Duration::from_millis(1)), "content-length: 1000"),
            (Fault::CloseInBody, "content-length: 1000"),
        ] {
            store.on(Kind::Get, When::First(1), fault);
            let answer = get(&store, path, "");
            assert!(answer.contains(expected), "{fault:?}: {answer}");
            store.mend();
        }
        store.on(Kind::Get, When::Always, Fault::Close);
        assert_eq!(get(&store, path, ""), "");
        store.mend();
        store.set_ceiling(Some(0.001));
        assert!(get(&store, path, "").starts_with("HTTP/1.1 200"));
        assert!(get(&store, path, "").contains("<Code>SlowDown</Code>"));
        assert_eq!((store.requests().refused, store.requests().faults), (1, 8));
    }
}
