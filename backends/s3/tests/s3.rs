//! Buckets as origins, against an origin in this process.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking, too")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foreread_s3::object_store::local::LocalFileSystem;
use foreread_s3::object_store::memory::InMemory;
use foreread_s3::object_store::path::Path;
use foreread_s3::object_store::{ObjectStore, ObjectStoreExt};
use foreread_s3::{Environment, ObjectStoreOrigin, S3Backend};
use foreread_tier::{
    Backend, Buffer, Buffers, ErrorKind, HeapBuffers, Object, OpenContext, OpenOptions, OriginTier,
    ReadRequest, Span, TierError, Version,
};
use foreread_tier_testing::store::{Fault, HttpStore, Kind, NumberedObjects, When};
use foreread_tier_testing::{Answered, NEVER, ReadAll, conformance, until};
use foreread_types::{SampleId, SampleKey, Tick};
use futures::StreamExt;
use tokio::runtime::Handle;

fn context() -> OpenContext {
    OpenContext { buffers: Arc::new(HeapBuffers), runtime: Handle::current(), seed: 1 }
}

/// The environment of a user with keys for this origin.
fn signed(store: &HttpStore) -> Environment {
    Environment::new([
        ("AWS_ENDPOINT_URL", store.endpoint().as_str()),
        ("AWS_ACCESS_KEY_ID", "AKIDTEST"),
        ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
    ])
}

fn unsigned(store: &HttpStore) -> Environment {
    Environment::new([("AWS_ENDPOINT_URL", store.endpoint().as_str()), ("AWS_SKIP_SIGNATURE", "true")])
}

async fn open_in(
    environment: Environment,
    url: &str,
    context: &OpenContext,
) -> Result<Arc<dyn OriginTier>, TierError> {
    let backend = S3Backend::new().with_environment(environment);
    tokio::time::timeout(NEVER, backend.open(url, &OpenOptions::default(), context)).await.unwrap()
}

async fn open(environment: Environment, url: &str) -> Arc<dyn OriginTier> {
    open_in(environment, url, &context()).await.unwrap()
}

fn request(tag: u32, object: &Object, span: Span) -> ReadRequest {
    let key = SampleKey::new(Default::default(), SampleId(u64::from(tag)));
    ReadRequest::new(key, object.clone(), span, Tick(0))
}

async fn read_all(
    origin: &dyn OriginTier,
    batch: Vec<ReadRequest>,
) -> BTreeMap<u32, Result<Bytes, TierError>> {
    let count = batch.len();
    let answers =
        origin.read_all(batch).map(|Answered { tag, result }| (tag, result)).collect::<BTreeMap<_, _>>();
    let answers = tokio::time::timeout(NEVER, answers).await.expect("the batch never ended");
    assert_eq!(answers.len(), count);
    answers
}

async fn read(origin: &dyn OriginTier, object: &Object) -> Result<Bytes, TierError> {
    read_all(origin, vec![request(7, object, Span::Whole)]).await.remove(&0).unwrap()
}

async fn list(origin: &dyn OriginTier) -> Vec<Result<Object, TierError>> {
    let found = origin.list("", None).collect::<Vec<_>>();
    tokio::time::timeout(NEVER, found).await.expect("the listing never ended")
}

async fn objects(origin: &dyn OriginTier) -> Vec<Object> {
    let mut objects: Vec<_> = list(origin).await.into_iter().map(Result::unwrap).collect();
    objects.sort_by(|a, b| a.path.cmp(&b.path));
    objects
}

/// An origin with one object in the bucket `train`, indexed below `images`.
async fn one(content: &str) -> (HttpStore, Arc<dyn OriginTier>, Object) {
    let store = HttpStore::start();
    store.bucket("train");
    store.put("train", "images/a.jpg", content.to_owned());
    let origin = open(signed(&store), "s3://train/images").await;
    let object = objects(&*origin).await.remove(0);
    store.reset();
    (store, origin, object)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: SAMPLE-6
async fn origin_conformance_of_prefix_and_bucket() {
    for (url, below) in [("s3://train/a prefix/x", "a prefix/x/"), ("s3a://train", "")] {
        let store = HttpStore::start();
        store.bucket("train");
        let known = conformance::samples(5);
        for sample in &known {
            store.put("train", &format!("{below}{}", sample.object.path), sample.content.clone());
        }
        for (path, size) in conformance::HIDDEN {
            store.put("train", &format!("{below}{path}"), vec![0; *size as usize]);
        }
        for holder in ["", "a/", "b/c/"] {
            store.put("train", &format!("{below}{holder}"), "");
        }
        if !below.is_empty() {
            store.put("train", "a prefix/xyz", "beside");
        }
        let origin = open(signed(&store), url).await;
        conformance::origin(&*origin, &known).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: SAMPLE-6
async fn origin_conformance_of_object_stores() {
    let directory = tempfile::tempdir().unwrap();
    let files = LocalFileSystem::new_with_prefix(directory.path()).unwrap();
    for store in [Arc::new(InMemory::new()) as Arc<dyn ObjectStore>, Arc::new(files)] {
        let known = conformance::samples(5);
        for sample in &known {
            let path = Path::parse(&*sample.object.path).unwrap();
            store.put(&path, sample.content.clone().into()).await.unwrap();
        }
        for (path, size) in conformance::HIDDEN {
            store.put(&Path::parse(path).unwrap(), vec![0; *size as usize].into()).await.unwrap();
        }
        let origin = ObjectStoreOrigin::new(Arc::clone(&store), store.to_string(), &context());
        conformance::origin(&origin, &known).await;
        let denied = origin.list("../x", None).next().await.unwrap().unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Invalid, "{denied}");
    }
}

/// A third-party server: s3s-fs, which stores objects as files. It delays each body by 44 ms unless
/// `TCP_NODELAY` is set on its sockets. It ignores `If-Match`, and a change must be detected all
/// the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: BUCKET-2
async fn origin_conformance_of_s3s_server() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("train")).unwrap();
    let files = s3s_fs::FileSystem::new(root.path()).unwrap();
    let mut service = s3s::service::S3ServiceBuilder::new(files);
    service.set_auth(s3s::auth::SimpleAuth::from_single("AKIDTEST", "hush-hush"));
    let service = service.build();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(hyper_util::rt::TokioIo::new(stream), service.clone());
            tokio::spawn(connection);
        }
    });
    let environment = Environment::new([
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "AKIDTEST"),
        ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
    ]);
    let known = conformance::samples(5);
    let put = |path: &str, content: &[u8]| {
        let file = root.path().join("train/images").join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    };
    known.iter().for_each(|sample| put(&sample.object.path, &sample.content));
    conformance::HIDDEN.iter().for_each(|(path, size)| put(path, &vec![0; *size as usize]));
    let origin = open(environment.clone(), "s3://train/images").await;
    conformance::origin(&*origin, &known).await;
    // The server checks signatures, which shows that this crate's are valid.
    let wrong = Environment::new([
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "AKIDTEST"),
        ("AWS_SECRET_ACCESS_KEY", "another"),
    ]);
    let error = list(&*open(wrong, "s3://train/images").await).await.remove(0).unwrap_err();
    assert!(error.to_string().contains("AWS_SECRET_ACCESS_KEY"), "{error}");
}

#[tokio::test]
// semantics: BUCKET-1
async fn read_is_one_get_and_no_head() {
    let (store, origin, object) = one("0123456789").await;
    assert_eq!(object.size, 10);
    assert!(matches!(&object.version, Some(Version::ETag(_))));
    assert_eq!(read(&*origin, &object).await.unwrap(), "0123456789");
    let part = read_all(&*origin, vec![request(1, &object, Span::Range(3..5))]).await.remove(&0).unwrap();
    assert_eq!(part.unwrap(), "34");
    let requests = store.requests();
    assert_eq!((requests.get, requests.head, requests.list, requests.bytes), (2, 0, 0, 12));
    assert_eq!(origin.name(), "s3");
    assert!(!origin.profile().kernel_cached);
}

/// Records the requested buffers.
#[derive(Debug, Default)]
struct Seen(Mutex<Vec<usize>>);

impl Buffers for Seen {
    fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
        self.0.lock().unwrap().push(length);
        if length > 1 << 30 { None } else { HeapBuffers.allocate(length, align) }
    }
}

#[tokio::test]
async fn read_allocates_once_and_exactly() {
    let (store, _, object) = one("0123456789").await;
    let seen = Arc::new(Seen::default());
    let context = OpenContext { buffers: Arc::clone(&seen) as _, ..context() };
    let origin = open_in(signed(&store), "s3://train/images", &context).await.unwrap();
    read(&*origin, &object).await.unwrap();
    let huge = Object { size: 1 << 50, version: None, ..object.clone() };
    assert_eq!(read(&*origin, &huge).await.unwrap_err().kind(), ErrorKind::Changed);
    assert_eq!(*seen.0.lock().unwrap(), [10]);
}

#[tokio::test]
// semantics: BUCKET-2
async fn replaced_object_is_an_error() {
    let (store, origin, object) = one("old").await;
    store.put("train", "images/a.jpg", "new");
    for span in [Span::Whole, Span::Range(0..2)] {
        let error =
            read_all(&*origin, vec![request(1, &object, span)]).await.remove(&0).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
        let text = error.to_string();
        assert!(
            text.contains("a.jpg") && text.contains("s3://train") && text.contains("index it again"),
            "{text}"
        );
    }
    store.remove("train", "images/a.jpg");
    assert_eq!(read(&*origin, &object).await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// A server that sends this response to every request, and the requests that it received.
fn saying(answer: impl Into<Vec<u8>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let requested: Arc<Mutex<Vec<String>>> = Arc::default();
    let (heard, answer) = (Arc::clone(&requested), answer.into());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut head, mut byte) = (stream.unwrap(), Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                head.push(byte[0]);
            }
            heard.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
            let _ = stream.write_all(&answer);
        }
    });
    (endpoint, requested)
}

#[tokio::test]
// semantics: SAMPLE-11
async fn redirect_or_response_without_etag_is_refused() {
    let object = Object { path: "a".into(), size: 2, version: Some(Version::ETag("\"t\"".into())) };
    let origin = |endpoint: &str| {
        let environment = Environment::new([
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", "AKIDTEST"),
            ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
            ("AWS_SESSION_TOKEN", "hush-token"),
        ]);
        async move { open(environment, "s3://b").await }
    };
    let plain = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
        Connection: close\r\n\r\nxx";
    let (elsewhere, requested) = saying(plain);
    let untagged = read(&*origin(&elsewhere).await, &object).await.unwrap_err();
    assert_eq!(untagged.kind(), ErrorKind::Unsupported, "{untagged}");
    assert_eq!(requested.lock().unwrap().len(), 1);
    let away = format!(
        "HTTP/1.1 302 Found\r\nLocation: {elsewhere}/evil\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let (redirects, _) = saying(away);
    let error = read(&*origin(&redirects).await, &object).await.unwrap_err();
    assert!(error.to_string().contains("s3://b"), "{error}");
    assert_eq!(requested.lock().unwrap().len(), 1, "the token went elsewhere");
}

/// MinIO and Ceph return metadata unchanged.
#[tokio::test]
// semantics: BUCKET-5
async fn object_with_illegible_metadata_is_read() {
    let mut answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: \"t\"\r\n\
        Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n"
        .as_bytes()
        .to_vec();
    answer.extend(
        b"Content-Disposition: attachment; filename=\xfc.jpg\r\nx-amz-meta-author: M\xfcller\r\n\r\nxx",
    );
    let (endpoint, _) = saying(answer);
    let environment =
        Environment::new([("AWS_ENDPOINT_URL", endpoint.as_str()), ("AWS_SKIP_SIGNATURE", "true")]);
    let object = Object { path: "a".into(), size: 2, version: Some(Version::ETag("\"t\"".into())) };
    assert_eq!(read(&*open(environment, "s3://b").await, &object).await.unwrap(), "xx");
}

#[tokio::test]
async fn fault_has_its_kind_and_names_bucket_and_object() {
    let (store, origin, object) = one(&"x".repeat(100_000)).await;
    for (fault, kind) in [
        (Fault::Internal, ErrorKind::Transient),
        (Fault::SlowDown(None), ErrorKind::Throttled),
        (Fault::SlowDown(Some(7)), ErrorKind::Throttled),
        (Fault::Expired, ErrorKind::Expired),
        (Fault::Close, ErrorKind::Transient),
        (Fault::CloseInBody, ErrorKind::Transient),
        (Fault::Half, ErrorKind::Transient),
        (Fault::Replaced, ErrorKind::Changed),
    ] {
        store.on(Kind::Get, When::Always, fault);
        let error = read(&*origin, &object).await.unwrap_err();
        store.mend();
        let text = error.to_string();
        assert_eq!(error.kind(), kind, "{fault:?}: {text}");
        assert!(
            text.starts_with("s3: a.jpg: ") && text.contains("s3://train") && !text.contains('\n'),
            "{text}"
        );
        let wait = if fault == Fault::SlowDown(Some(7)) { Some(Duration::from_secs(7)) } else { None };
        assert_eq!(error.retry_after(), wait);
        assert_eq!(read(&*origin, &object).await.unwrap().len(), 100_000, "after {fault:?}");
    }
    for fault in [Fault::Late(Duration::from_millis(20)), Fault::StallBody(Duration::from_millis(20))] {
        store.on(Kind::Get, When::First(1), fault);
        assert_eq!(read(&*origin, &object).await.unwrap().len(), 100_000);
        store.mend();
    }
    let endpoint = store.endpoint();
    drop(store);
    let error = read(&*origin, &object).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient);
    assert!(error.to_string().contains(&endpoint), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn dropping_a_batch_ends_its_requests() {
    let (store, origin, object) = one("x").await;
    store.set_latency(Duration::from_secs(3600));
    let mut batch = origin.read_all((0..8).map(|tag| request(tag, &object, Span::Whole)).collect());
    let reading = tokio::spawn(async move { batch.next().await.is_some() });
    until("the requests come", || store.requests().in_flight == 8);
    reading.abort();
    until("the requests end", || store.requests().in_flight == 0);
    assert!(reading.await.unwrap_err().is_cancelled());
}

#[test]
fn reads_may_be_polled_from_a_plain_thread() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (_store, origin, object) = runtime.block_on(one("hello"));
    let answers = futures::executor::block_on(
        origin.read_all(vec![request(0, &object, Span::Whole)]).collect::<Vec<_>>(),
    );
    assert_eq!(answers[0].result.as_ref().unwrap(), "hello");
    assert_eq!(futures::executor::block_on(origin.list("", None).collect::<Vec<_>>()).len(), 1);
}

#[tokio::test]
async fn denied_read_or_listing_names_the_remedy() {
    let store = HttpStore::start();
    store.bucket("train");
    store.put("train", "images/a.jpg", "x");
    store.allow("AKIDTEST");
    let origin = open(signed(&store), "s3://train/images").await;
    let object = objects(&*origin).await.remove(0);

    let first = async |environment: Environment, url: &str| {
        let found = list(&*open(environment, url).await).await;
        assert_eq!(found.len(), 1);
        found.into_iter().next().unwrap().unwrap_err()
    };
    let wrong = Environment::new([
        ("AWS_ENDPOINT_URL", store.endpoint().as_str()),
        ("AWS_ACCESS_KEY_ID", "AKIDWRONG"),
        ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
    ]);
    for (error, kind, expected) in [
        (first(wrong.clone(), "s3://train/images").await, ErrorKind::Denied, "AWS_ACCESS_KEY_ID"),
        (first(unsigned(&store), "s3://train/images").await, ErrorKind::Denied, "AWS_SKIP_SIGNATURE"),
        (first(signed(&store), "s3://trian/images").await, ErrorKind::NotFound, "no such bucket"),
    ] {
        let text = error.to_string();
        assert_eq!(error.kind(), kind, "{text}");
        assert!(
            text.contains(expected) && (text.contains("s3://train") || text.contains("s3://trian")),
            "{text}"
        );
        assert!(!text.contains("AKID") && !text.contains("hush"), "{text}");
    }
    store.deny("train", true, true);
    let error = first(signed(&store), "s3://train/images").await;
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("s3:ListBucket"), "{error}");
    let error = read(&*origin, &object).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("s3:GetObject"), "{error}");
    store.deny("train", false, false);
    store.set_region("train", "eu-north-1");
    for error in
        [first(signed(&store), "s3://train/images").await, read(&*origin, &object).await.unwrap_err()]
    {
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("AWS_REGION=eu-north-1"),
            "{error}"
        );
    }
}

#[tokio::test]
// semantics: SAMPLE-10
async fn object_is_found_where_only_reading_is_allowed() {
    let (store, origin, object) = one("0123456789").await;
    store.put("train", "images/empty", "");
    store.deny("train", true, false);
    for fault in [Fault::SlowDown(None), Fault::Internal, Fault::Close] {
        store.on(Kind::Get, When::First(2), fault);
        assert_eq!(origin.stat("a.jpg").await.unwrap(), object, "{fault:?}");
        store.mend();
    }
    assert_eq!(origin.stat("empty").await.unwrap().size, 0);
    let missing = origin.stat("nothing").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    store.deny("train", true, true);
    let denied = origin.stat("a.jpg").await.unwrap_err();
    assert!(denied.kind() == ErrorKind::Denied && denied.to_string().contains("s3:ListBucket"), "{denied}");
}

#[tokio::test]
async fn open_without_credentials_fails() {
    let store = HttpStore::start();
    let environment = Environment::new([
        ("AWS_ENDPOINT_URL", store.endpoint().as_str()),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ]);
    let error = open_in(environment, "s3://train/images", &context()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        error.kind() == ErrorKind::Denied && text.contains("s3://train") && text.contains("AWS_PROFILE"),
        "{text}"
    );
    let public = open(unsigned(&store), "s3://train").await;
    assert_eq!(public.name(), "s3");
}

/// Writes a home directory whose profile has this access key.
fn profile(home: &tempfile::TempDir, key: &str) {
    std::fs::create_dir_all(home.path().join(".aws")).unwrap();
    let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = hush-hush\n");
    std::fs::write(home.path().join(".aws/credentials"), text).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: BUCKET-8
async fn expired_credentials_are_fetched_once_and_reads_continue() {
    let store = HttpStore::start();
    store.numbered("train", NumberedObjects::new(200, 1000));
    store.allow("AKIDOLD");
    store.allow("AKIDNEW");
    let home = tempfile::tempdir().unwrap();
    profile(&home, "AKIDOLD");
    let environment = Environment::new([("AWS_ENDPOINT_URL", store.endpoint())]).with_home(home.path());
    let origin = open(environment, "s3://train").await;
    let objects = objects(&*origin).await;
    assert_eq!(objects.len(), 200);
    store.expire("AKIDOLD");
    profile(&home, "AKIDNEW");
    store.reset();
    let batch = (0..).zip(&objects).map(|(tag, object)| request(tag, object, Span::Whole)).collect();
    for (tag, answer) in read_all(&*origin, batch).await {
        assert_eq!(answer.unwrap(), NumberedObjects::new(200, 1000).bytes(u64::from(tag)));
    }
    let requested = store.requests().get;
    assert!((200..=400).contains(&requested), "{requested} requests: each is repeated once at most");
    // If no new credentials are available, the read fails soon.
    store.expire("AKIDNEW");
    let error = read(&*origin, &objects[0]).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Expired && error.to_string().contains("s3://train"), "{error}");
    assert!(!error.to_string().contains("AKID"), "{error}");
    assert_eq!(list(&*origin).await[0].as_ref().unwrap_err().kind(), ErrorKind::Expired);
}

#[tokio::test]
// semantics: BUCKET-15
async fn printed_values_hold_no_secret() {
    const SECRETS: [&str; 3] = ["AKIDTEST", "hush-hush", "token-token"];
    let store = HttpStore::start();
    store.bucket("train");
    store.put("train", "a", "x");
    let environment = Environment::new([
        ("AWS_ENDPOINT_URL", store.endpoint().as_str()),
        ("AWS_ACCESS_KEY_ID", "AKIDTEST"),
        ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
        ("AWS_SESSION_TOKEN", "token-token"),
    ]);
    let backend = S3Backend::new().with_environment(environment.clone());
    let origin = open(environment, "s3://train").await;
    let object = objects(&*origin).await.remove(0);
    let mut printed = vec![format!("{backend:?}"), format!("{origin:?}"), format!("{object:?}")];
    for fault in [
        Fault::Internal,
        Fault::Expired,
        Fault::SlowDown(None),
        Fault::Close,
        Fault::CloseInBody,
        Fault::Half,
    ] {
        store.on(Kind::Get, When::Always, fault);
        let error = read(&*origin, &object).await.unwrap_err();
        store.mend();
        printed.extend([format!("{error}"), format!("{error:?}"), format!("{error:#?}")]);
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            printed.extend([inner.to_string(), format!("{inner:?}")]);
            source = inner.source();
        }
    }
    store.expire("token-token");
    printed.extend(list(&*origin).await.into_iter().map(|found| format!("{found:?}")));
    for text in printed {
        assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: SAMPLE-8
async fn listing_continues_through_faults_and_throttling() {
    let store = HttpStore::start_with(1, 7);
    store.numbered("train", NumberedObjects::new(50_000, 10));
    store.set_latency(Duration::from_millis(2));
    store.on(Kind::List, When::Chance(0.2), Fault::SlowDown(None));
    store.on(Kind::List, When::Chance(0.1), Fault::CloseInBody);
    store.on(Kind::List, When::Chance(0.1), Fault::Close);
    let origin = open(signed(&store), "s3://train").await;
    let found = objects(&*origin).await;
    assert_eq!(found.len(), 50_000);
    assert!(found.windows(2).all(|pair| pair[0].path < pair[1].path), "each once");
    let requests = store.requests();
    assert!(requests.faults > 0 && requests.list < 400, "{requests:?}");
    assert!(requests.peak_in_flight > 1, "side by side: {requests:?}");
}
