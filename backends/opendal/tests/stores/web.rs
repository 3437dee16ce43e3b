//! WebDAV and plain HTTP, at a real server.

use std::sync::Arc;

use foreread_opendal::OpendalBackend;
use foreread_tier::{Backend, ErrorKind, OpenOptions, OriginTier, Version};
use foreread_tier_testing::{KnownSample, ReadAll, conformance};
use futures::StreamExt;

use crate::server::{FaultMode, WebDavServer};
use crate::{context, list, samples, write};

pub async fn open(url: &str, settings: &[(&str, &str)]) -> Arc<dyn OriginTier> {
    let mut options = OpenOptions::default();
    for (name, value) in settings {
        options.settings.insert((*name).to_owned(), (*value).to_owned());
    }
    OpendalBackend::new().open(url, &options, &context()).await.unwrap()
}

/// The samples with the versions of a listing.
async fn listed(origin: &dyn OriginTier, samples: &[KnownSample]) -> Vec<KnownSample> {
    let (objects, errors) = list(origin, "").await;
    assert!(errors.is_empty(), "{errors:?}");
    let of = |sample: &KnownSample| KnownSample {
        object: objects[&*sample.object.path].clone(),
        ..sample.clone()
    };
    samples.iter().map(of).collect()
}

/// A list of all paths, including hidden ones.
fn list_file(samples: &[KnownSample]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let hidden = conformance::HIDDEN.iter().map(|(path, _)| *path);
    let paths: Vec<&str> = samples.iter().map(|sample| &*sample.object.path).chain(hidden).collect();
    std::fs::write(file.path(), paths.join("\n")).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: OPENDAL-2
async fn origin_conformance_webdav() {
    let (directory, samples) = samples();
    let server = WebDavServer::start(directory.path()).await;
    let origin = open(&format!("webdav://{}/", server.address), &[]).await;
    assert_eq!(origin.name(), "webdav");
    conformance::origin(&*origin, &samples).await;
    // The same below a directory whose name must be escaped.
    let deeper = tempfile::tempdir().unwrap();
    for sample in &samples {
        write(&deeper.path().join("one two/ü%"), &sample.object.path, &sample.content);
    }
    let server = WebDavServer::start(deeper.path()).await;
    let origin = open(&format!("webdav://{}/one%20two/%C3%BC%25", server.address), &[]).await;
    conformance::origin(&*origin, &samples).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: OPENDAL-2
async fn origin_conformance_web_server() {
    let (directory, samples) = samples();
    let server = WebDavServer::start(directory.path()).await;
    let file = list_file(&samples);
    let origin =
        open(&format!("http://{}", server.address), &[("list", file.path().to_str().unwrap())]).await;
    assert_eq!(origin.name(), "http");
    conformance::origin(&*origin, &samples).await;
}

#[tokio::test]
// semantics: OPENDAL-1
async fn read_is_one_request_and_listing_one_per_directory() {
    let (directory, samples) = samples();
    let server = WebDavServer::start(directory.path()).await;
    let file = list_file(&samples);
    let web = open(&format!("http://{}", server.address), &[("list", file.path().to_str().unwrap())]).await;
    let dav = open(&format!("webdav://{}", server.address), &[]).await;
    for (origin, listing, directories) in [(&web, "HEAD", samples.len()), (&dav, "PROPFIND", 7)] {
        let known = listed(&**origin, &samples).await;
        let requests = server.take_requests();
        assert!(requests.iter().all(|(method, _)| method == listing), "{requests:?}");
        // `a`, `a.b`, `ab`, `b`, `b/c`, `b/c/d` and the root. Hidden ones are not listed.
        assert_eq!(requests.len(), directories, "{requests:?}");
        assert!(known.iter().all(|sample| matches!(sample.object.version, Some(Version::ETag(_)))));
        let mut batch: Vec<_> = known.iter().zip(0..).map(|(sample, tag)| sample.whole(tag)).collect();
        batch.push(known[6].range(100, 10..20));
        let count = batch.len();
        let answers: Vec<_> = origin.read_all(batch).collect().await;
        assert!(answers.iter().all(|answer| answer.result.is_ok()), "{answers:?}");
        let requests = server.take_requests();
        assert!(requests.iter().all(|(method, _)| method == "GET"), "{requests:?}");
        assert_eq!(requests.len(), count, "one GET a sample, and nothing else");
    }
}

#[tokio::test]
// semantics: OPENDAL-3
async fn replaced_object_is_named() {
    let (directory, samples) = samples();
    let server = WebDavServer::start(directory.path()).await;
    let file = list_file(&samples);
    let web = open(&format!("http://{}", server.address), &[("list", file.path().to_str().unwrap())]).await;
    let dav = open(&format!("webdav://{}", server.address), &[]).await;
    for origin in [&web, &dav] {
        let known = listed(&**origin, &samples).await;
        let replaced = known.iter().find(|sample| &*sample.object.path == "ab/6").unwrap();
        let content = vec![9; replaced.content.len()];
        write(directory.path(), "new", &content);
        std::fs::rename(directory.path().join("new"), directory.path().join("ab/6")).unwrap();
        let batch = known.iter().zip(0..).map(|(sample, tag)| sample.whole(tag)).collect();
        let answers: Vec<_> = origin.read_all(batch).collect().await;
        let errors: Vec<_> = answers.iter().filter_map(|answer| answer.result.as_ref().err()).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!((errors[0].kind(), errors[0].object()), (ErrorKind::Changed, Some("ab/6")));
    }
}

#[tokio::test]
// semantics: OPENDAL-5
async fn web_server_without_a_list_names_the_remedy() {
    let (directory, _) = samples();
    let server = WebDavServer::start(directory.path()).await;
    let url = format!("http://{}", server.address);
    let (objects, errors) = list(&*open(&url, &[]).await, "").await;
    assert!(objects.is_empty() && errors.len() == 1 && server.take_requests().is_empty());
    let error = errors[0].to_string();
    assert_eq!(errors[0].kind(), ErrorKind::Unsupported);
    assert!(error.contains("FOREREAD_HTTP_LIST") && error.contains("webdav://"), "{error}");
    // A missing list, and a list that names a missing object.
    let (_, errors) = list(&*open(&url, &[("list", "/no/such/list")]).await, "").await;
    assert!(errors[0].to_string().contains("/no/such/list"), "{errors:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a/1\r\n\n../climbs\na/none\n").unwrap();
    let (objects, errors) = list(&*open(&url, &[("list", file.path().to_str().unwrap())]).await, "").await;
    assert_eq!(objects.keys().collect::<Vec<_>>(), ["a/1"]);
    assert_eq!(errors.len(), 1, "what begins with a dot is hidden: {errors:?}");
    assert_eq!((errors[0].kind(), errors[0].object()), (ErrorKind::NotFound, Some("a/none")));
}

#[tokio::test]
// semantics: OPENDAL-9
async fn denied_access_names_the_remedy_without_secrets() {
    let (directory, samples) = samples();
    let server = WebDavServer::start(directory.path()).await;
    server.behave(FaultMode::AskWho);
    let url = format!("webdav://{}", server.address);
    let host = format!("http://{}", server.address);
    let settings = |password| [("username", "user"), ("password", password), ("host", &*host)];
    let known = listed(&*open(&url, &settings("password")).await, &samples).await;
    let wrong = open(&url, &settings("hunter2")).await;
    let answers: Vec<_> = wrong.read_all(vec![known[0].whole(0)]).collect().await;
    let error = answers[0].result.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    let line = error.to_string();
    assert!(
        line.contains("a/0") && line.contains("401") && line.contains("FOREREAD_WEBDAV_PASSWORD"),
        "{line}"
    );
    assert!(!format!("{error:?} {wrong:?}").contains("hunter2"));
}
