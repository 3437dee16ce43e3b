//! Directories as origins, on a real file system.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking, too")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use foreread_local::{LocalBackend, LocalConfig, LocalOrigin};
use foreread_tier::{
    Backend, Buffer, Buffers, ErrorKind, HeapBuffers, Object, OpenContext, OpenOptions, OriginTier,
    ReadRequest, Span, TierError, Version,
};
use foreread_tier_testing::{NEVER, ReadAll, conformance, until};
use foreread_types::{SampleId, SampleKey, Tick};
use futures::StreamExt;
use tempfile::TempDir;

fn write(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn open(root: &Path) -> LocalOrigin {
    LocalOrigin::open(root, LocalConfig::default(), Arc::new(HeapBuffers)).unwrap()
}

fn request(tag: u32, object: &Object, span: Span) -> ReadRequest {
    let key = SampleKey::new(Default::default(), SampleId(u64::from(tag)));
    ReadRequest::new(key, object.clone(), span, Tick(0))
}

async fn read_all(
    origin: &LocalOrigin,
    requests: Vec<ReadRequest>,
) -> BTreeMap<u32, Result<Bytes, TierError>> {
    let count = requests.len();
    let answers = origin.read_all(requests).map(|answer| (answer.tag, answer.result)).collect::<Vec<_>>();
    let answers = tokio::time::timeout(NEVER, answers).await.expect("the batch never ended");
    assert_eq!(answers.len(), count);
    answers.into_iter().collect()
}

async fn read(origin: &LocalOrigin, object: &Object) -> Result<Bytes, TierError> {
    read_all(origin, vec![request(7, object, Span::Whole)]).await.remove(&0).unwrap()
}

async fn kind(origin: &LocalOrigin, object: &Object) -> ErrorKind {
    read(origin, object).await.unwrap_err().kind()
}

async fn list(origin: &LocalOrigin) -> (Vec<Object>, Vec<TierError>) {
    let found = tokio::time::timeout(NEVER, origin.list("", None).collect::<Vec<_>>()).await.unwrap();
    let (mut objects, mut errors) = (Vec::new(), Vec::new());
    for found in found {
        match found {
            Ok(object) => objects.push(object),
            Err(error) => errors.push(error),
        }
    }
    objects.sort_by(|a: &Object, b| a.path.cmp(&b.path));
    errors.sort_by_key(ToString::to_string);
    (objects, errors)
}

fn paths(objects: &[Object]) -> Vec<&str> {
    objects.iter().map(|object| &*object.path).collect()
}

/// One indexed file.
async fn one(content: impl AsRef<[u8]>) -> (TempDir, LocalOrigin, Object) {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "a/file", content);
    let origin = open(directory.path());
    let object = list(&origin).await.0.remove(0);
    assert_eq!(read(&origin, &object).await.unwrap().len() as u64, object.size);
    (directory, origin, object)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: SAMPLE-2
async fn origin_conformance() {
    let directory = tempfile::tempdir().unwrap();
    let samples = conformance::samples(3);
    for sample in &samples {
        write(directory.path(), &sample.object.path, &sample.content);
    }
    for &(path, size) in conformance::HIDDEN {
        write(directory.path(), path, vec![1; size as usize]);
    }
    for parallelism in [1, 2, 32] {
        let config = LocalConfig::default().with_parallelism(parallelism);
        let origin = LocalOrigin::open(directory.path(), config, Arc::new(HeapBuffers)).unwrap();
        conformance::origin(&origin, &samples).await;
    }
}

#[tokio::test]
// semantics: SAMPLE-2
async fn names_of_caches_are_not_samples() {
    let (directory, origin, object) = one("x").await;
    for name in ["foreread-cache", "foreread-cache-1000", "foreread-cache-1000.3", "foreread-cache-shared"] {
        write(directory.path(), &format!("{name}/sample"), "x");
        write(directory.path(), &format!("below/{name}.bin"), "x");
    }
    let (objects, errors) = list(&origin).await;
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(objects, [object]);
}

#[tokio::test]
async fn directory_is_opened_by_path_or_url() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "a b/file", "x");
    let runtime = tokio::runtime::Handle::current();
    let context = OpenContext { buffers: Arc::new(HeapBuffers), runtime, seed: 0 };
    let root = directory.path().to_str().unwrap();
    for url in [format!("{root}/a b"), format!("file://{root}/a%20b")] {
        let origin = LocalBackend::new().open(&url, &OpenOptions::default(), &context).await.unwrap();
        let found: Vec<_> = origin.list("", None).collect().await;
        assert_eq!(&*found[0].as_ref().unwrap().path, "file");
        assert!(origin.profile().parallelism > 1);
    }
    for (path, kind) in [("nothing", ErrorKind::NotFound), ("a b/file", ErrorKind::Invalid)] {
        let url = format!("{root}/{path}");
        let error = LocalBackend::new().open(&url, &OpenOptions::default(), &context).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(&url) && !error.to_string().contains('\n'), "{error}");
    }
}

#[tokio::test]
async fn file_that_shrank_grew_or_vanished_is_named() {
    let (directory, origin, object) = one([5; 20]).await;
    let file = directory.path().join("a/file");
    for length in [17, 0, 23, 100_000] {
        fs::write(&file, vec![5; length]).unwrap();
        let error = read(&origin, &object).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
        let expected = format!("local: a/file: {}: {length} bytes instead of 20", ErrorKind::Changed);
        assert_eq!(error.to_string(), expected);
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(kind(&origin, &object).await, ErrorKind::NotFound);
    fs::create_dir(&file).unwrap();
    assert_eq!(kind(&origin, &object).await, ErrorKind::Changed);
    fs::remove_dir_all(directory.path().join("a")).unwrap();
    fs::write(directory.path().join("a"), "").unwrap();
    assert_eq!(kind(&origin, &object).await, ErrorKind::NotFound);
}

#[tokio::test]
// semantics: FAIL-2
async fn file_overwritten_in_place_is_changed() {
    let (directory, origin, object) = one([5; 20]).await;
    let file = fs::OpenOptions::new().write(true).open(directory.path().join("a/file")).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    assert_eq!(kind(&origin, &object).await, ErrorKind::Changed);
    let unversioned = Object { version: None, ..object.clone() };
    assert_eq!(read(&origin, &unversioned).await.unwrap()[..], [5; 20]);
    let tagged = Object { version: Some(Version::ETag("x".into())), ..object };
    assert_eq!(kind(&origin, &tagged).await, ErrorKind::Invalid);
}

#[tokio::test]
// semantics: FAIL-2
async fn file_changed_under_its_old_time_is_named() {
    let (directory, origin, _) = one([5; 20]).await;
    let (file, link) = (directory.path().join("a/file"), directory.path().join("link"));
    let restore = || {
        fs::copy(&file, &link).unwrap();
        let time = fs::metadata(&file).unwrap().modified().unwrap();
        fs::File::options().write(true).open(&link).unwrap().set_modified(time).unwrap();
        fs::rename(&link, &file).unwrap();
    };
    let rewrite = || {
        let time = fs::metadata(&file).unwrap().modified().unwrap();
        fs::write(&file, [6; 20]).unwrap();
        fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    };
    let chmod = || fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let hard_link = || {
        let _ = fs::remove_file(&link);
        fs::hard_link(&file, &link).unwrap();
    };
    let changes: [(&str, &dyn Fn()); 4] =
        [("rewritten", &rewrite), ("mode", &chmod), ("link", &hard_link), ("restored", &restore)];
    for (what, change) in changes {
        let object = list(&origin).await.0.remove(0);
        let seen = |span| read_all(&origin, vec![request(7, &object, span)]);
        let spans = [Span::Whole, Span::Range(3..9)];
        for span in spans.clone() {
            assert!(seen(span).await[&0].is_ok());
        }
        // Change times advance a few milliseconds at a time.
        let state = || fs::metadata(&file).map(|file| (file.ctime(), file.ctime_nsec(), file.ino())).unwrap();
        let before = state();
        while state() == before {
            change();
        }
        for span in spans {
            let error = seen(span).await[&0].clone().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Changed, "{what}");
            assert!(error.to_string().contains("a/file") && error.to_string().contains("index it again"));
        }
        // Another place, and a catalog without changes.
        let Some(Version::Written { modified, changed, location }) = object.version else { panic!() };
        let elsewhere = Version::Written { modified, changed, location: !location };
        for version in [elsewhere, Version::Modified(modified)] {
            assert!(read(&origin, &Object { version: Some(version), ..object.clone() }).await.is_ok());
        }
        assert!(read(&origin, &list(&origin).await.0[0]).await.is_ok(), "{what}: indexed again");
        let _ = fs::remove_file(&link);
    }
}

#[tokio::test]
// semantics: FAIL-16
async fn fifo_in_place_of_a_file_does_not_hang() {
    let (directory, origin, object) = one([5; 20]).await;
    let file = directory.path().join("a/file");
    fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &file,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert_eq!(kind(&origin, &object).await, ErrorKind::Changed);
    let (objects, errors) = list(&origin).await;
    assert!(objects.is_empty() && errors.is_empty(), "{objects:?} {errors:?}");
}

#[tokio::test]
// semantics: SAMPLE-1
async fn files_may_be_empty_or_large() {
    let (_directory, origin, object) = one([]).await;
    assert_eq!(read(&origin, &object).await.unwrap().len(), 0);
    let large: Vec<u8> = (0..64u32 << 20).map(|at| (at >> 12) as u8 ^ at as u8).collect();
    let (_directory, origin, object) = one(&large).await;
    assert!(read(&origin, &object).await.unwrap() == large);
    let lie = Object { size: 1 << 60, ..object.clone() };
    assert_eq!(kind(&origin, &lie).await, ErrorKind::Changed);
    let lie = Object { size: u64::MAX, ..object };
    assert_eq!(kind(&origin, &lie).await, ErrorKind::Invalid);
}

#[tokio::test]
async fn ranges_of_one_object_are_read_separately() {
    let content: Vec<u8> = (0..=255).collect();
    let (_directory, origin, object) = one(&content).await;
    let ranges = [0..1, 255..256, 10..200, 0..256, 10..200];
    let requests = ranges.iter().cloned().enumerate();
    let requests = requests.map(|(tag, range)| request(tag as u32, &object, Span::Range(range))).collect();
    for (tag, result) in read_all(&origin, requests).await {
        let range = &ranges[tag as usize];
        assert_eq!(result.unwrap(), content[range.start as usize..range.end as usize]);
    }
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for range in [5..5, 9..3, 200..257] {
        let answers = read_all(&origin, vec![request(0, &object, Span::Range(range))]).await;
        assert_eq!(answers[&0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    }
    let other = Object { size: 300, ..object };
    let answers = read_all(&origin, vec![request(0, &other, Span::Range(0..10))]).await;
    assert_eq!(answers[&0].as_ref().unwrap_err().kind(), ErrorKind::Changed);
}

#[tokio::test]
async fn paths_out_of_the_root_never_reach_the_file_system() {
    let (directory, _, object) = one([5; 20]).await;
    let origin = open(&directory.path().join("a"));
    let absolute = directory.path().join("a/file").to_str().unwrap().to_owned();
    for path in
        ["../a/file", "x/../file", "./file", "", "file/", "x//file", &absolute, "fi\0le", &"x".repeat(5000)]
    {
        let object = Object { path: path.into(), ..object.clone() };
        assert_eq!(kind(&origin, &object).await, ErrorKind::Invalid, "{path:?}");
    }
}

/// Counts allocations for reads.
#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl Buffers for Counted {
    fn allocate(&self, capacity: usize, align: usize) -> Option<Buffer> {
        self.0.fetch_add(1, Ordering::Relaxed);
        HeapBuffers.allocate(capacity, align)
    }
}

#[tokio::test]
// semantics: FAIL-17
async fn queued_reads_are_cancelled_by_dropping_their_futures() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "file", vec![1; 1 << 20]);
    let config = LocalConfig::default().with_parallelism(1);
    let buffers = Arc::new(Counted::default());
    let origin =
        LocalOrigin::open(directory.path(), config, Arc::clone(&buffers) as Arc<dyn Buffers>).unwrap();
    let object = list(&origin).await.0.remove(0);
    let many = || (0..20_000).map(|tag| request(tag, &object, Span::Whole)).collect();
    for _ in 0..5 {
        let mut stream = origin.read_all(many());
        assert!(stream.next().await.unwrap().result.is_ok());
    }
    // It is queued after the others.
    assert!(read(&origin, &object).await.is_ok());
    let reads = buffers.0.load(Ordering::Relaxed);
    assert!(reads < 100_000, "{reads} reads, all requested ones");
}

fn threads(named: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == named))
        .count()
}

#[test]
fn queued_reads_are_answered_when_the_origin_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "file", vec![1; 1 << 20]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let origin = open(directory.path());
    let object = runtime.block_on(list(&origin)).0.remove(0);
    let mut stream = origin.read_all((0..10_000).map(|tag| request(tag, &object, Span::Whole)).collect());
    let mut answers: Vec<_> = runtime.block_on(stream.next()).into_iter().collect();
    drop(origin);
    answers.extend(runtime.block_on(stream.collect::<Vec<_>>()));
    assert_eq!(answers.iter().map(|answer| answer.tag).collect::<BTreeSet<_>>().len(), 10_000);
    let closed = |error: &TierError| error.kind() == ErrorKind::Closed;
    assert!(answers.iter().all(|answer| answer.result.as_ref().err().is_none_or(closed)));
    assert!(answers[0].result.is_ok() && answers.iter().any(|answer| answer.result.is_err()));
}

#[tokio::test]
// semantics: SAMPLE-5
async fn symbolic_links_are_followed_and_invalid_ones_named() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    write(&root, "cat/1", "1");
    write(&root, "dog/2", "22");
    write(directory.path(), "outside/3", "333");
    symlink("../dog/2", root.join("cat/also")).unwrap();
    symlink(directory.path().join("outside"), root.join("linked")).unwrap();
    symlink("nothing", root.join("dangling")).unwrap();
    symlink("..", root.join("dog/up")).unwrap();
    symlink("self", root.join("self")).unwrap();
    let origin = open(&root);
    let (objects, errors) = list(&origin).await;
    assert_eq!(paths(&objects), ["cat/1", "cat/also", "dog/2", "linked/3"]);
    for object in &objects {
        assert_eq!(read(&origin, object).await.unwrap().len() as u64, object.size);
    }
    let named: Vec<_> = errors.iter().map(|error| (error.object().unwrap(), error.kind())).collect();
    let expected =
        [("dangling", ErrorKind::NotFound), ("dog/up", ErrorKind::Invalid), ("self", ErrorKind::Invalid)];
    assert_eq!(named, expected, "{errors:?}");
    assert!(errors[1].to_string().contains("cycle"), "{}", errors[1]);
}

#[tokio::test]
// semantics: SAMPLE-17
async fn names_without_utf8_are_errors_and_the_rest_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "a", "x");
    write(directory.path(), ".hidden/b", "x");
    let odd = |bytes: &[u8]| directory.path().join(OsStr::from_bytes(bytes));
    fs::write(odd(b"b\xff"), "x").unwrap();
    fs::create_dir(odd(b"c\xff")).unwrap();
    fs::write(odd(b".\xff"), "x").unwrap();
    let (objects, errors) = list(&open(directory.path())).await;
    assert_eq!(paths(&objects), ["a"]);
    assert_eq!(errors.len(), 2);
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("rename it or exclude it"), "{error}");
    }
}

#[tokio::test]
async fn unreadable_directory_is_denied_and_the_rest_listed() {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        println!("skipped: permissions do not bind root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "a/1", "x");
    write(directory.path(), "b/2", "x");
    fs::set_permissions(directory.path().join("a"), fs::Permissions::from_mode(0o000)).unwrap();
    let (objects, errors) = list(&open(directory.path())).await;
    fs::set_permissions(directory.path().join("a"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(paths(&objects), ["b/2"]);
    assert_eq!((errors[0].kind(), errors[0].object()), (ErrorKind::Denied, Some("a")));
}

#[tokio::test]
async fn large_tree_is_listed_once_from_any_point() {
    let directory = tempfile::tempdir().unwrap();
    let mut expected = BTreeSet::new();
    for number in 0..6000 {
        let path =
            if number % 3 == 0 { format!("flat/{number}") } else { format!("d{}/e/{number}", number % 50) };
        write(directory.path(), &path, "");
        expected.insert(path);
    }
    let origin = open(directory.path());
    let (objects, errors) = list(&origin).await;
    assert!(errors.is_empty());
    assert_eq!(paths(&objects), expected.iter().map(String::as_str).collect::<Vec<_>>());
    let after = &objects[2500].path;
    let rest: BTreeSet<String> =
        origin.list("", Some(after)).map(|found| found.unwrap().path.to_string()).collect().await;
    assert_eq!(rest, expected.range(format!("{after}\0")..).cloned().collect());
    let below: Vec<_> = origin.list("d1/", None).collect().await;
    assert_eq!(below.len(), 80);
    // The walk ends when it is dropped half-way.
    let mut stream = origin.list("", None);
    assert!(stream.next().await.is_some());
    drop(stream);
    until("the walk's threads end", || threads("foreread-list") == 0);
}
