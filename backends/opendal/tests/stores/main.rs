//! Services of OpenDAL: directories, memory, and real WebDAV and web servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

#[cfg(all(feature = "http", feature = "webdav"))]
mod faults;
#[cfg(all(feature = "http", feature = "webdav"))]
mod server;
#[cfg(all(feature = "http", feature = "webdav"))]
mod web;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use foreread_opendal::{OpendalConfig, OpendalOrigin};
use foreread_tier::{HeapBuffers, Object, OpenContext, OriginTier, TierError};
use foreread_tier_testing::{NEVER, conformance};
use futures::StreamExt;
use opendal::{Operator, services};

fn context() -> OpenContext {
    OpenContext { buffers: Arc::new(HeapBuffers), runtime: tokio::runtime::Handle::current(), seed: 0 }
}

fn write(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// A directory with the files of the conformance suite.
fn samples() -> (tempfile::TempDir, Vec<foreread_tier_testing::KnownSample>) {
    let (directory, samples) = (tempfile::tempdir().unwrap(), conformance::samples(3));
    for sample in &samples {
        write(directory.path(), &sample.object.path, &sample.content);
    }
    for &(path, size) in conformance::HIDDEN {
        write(directory.path(), path, vec![1; size as usize]);
    }
    (directory, samples)
}

/// The listed objects by path, and the errors.
async fn list(origin: &dyn OriginTier, prefix: &str) -> (BTreeMap<String, Object>, Vec<TierError>) {
    let listing = origin.list(prefix, None).collect::<Vec<_>>();
    let found = tokio::time::timeout(NEVER, listing).await.unwrap();
    let (mut objects, mut errors) = (BTreeMap::new(), Vec::new());
    for found in found {
        match found {
            Ok(object) => assert!(objects.insert(object.path.to_string(), object).is_none()),
            Err(error) => errors.push(error),
        }
    }
    (objects, errors)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: OPENDAL-2
async fn origin_conformance_directory() {
    let (directory, samples) = samples();
    for parallelism in [1, 32] {
        let root = directory.path().to_str().unwrap();
        let operator = Operator::new(services::Fs::default().root(root)).unwrap();
        let config = OpendalConfig::default().with_parallelism(parallelism);
        let origin = OpendalOrigin::new(operator, config, &context());
        conformance::origin(&origin, &samples).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: OPENDAL-2
async fn origin_conformance_memory() {
    let operator = Operator::new(services::Memory::default()).unwrap();
    let samples = conformance::samples(3);
    for sample in &samples {
        operator.write(&sample.object.path, sample.content.clone()).await.unwrap();
    }
    for &(path, size) in conformance::HIDDEN {
        operator.write(path, vec![1; size as usize]).await.unwrap();
    }
    conformance::origin(&OpendalOrigin::new(operator, OpendalConfig::default(), &context()), &samples).await;
}

#[tokio::test]
async fn missing_directory_is_an_error_or_empty() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let operator = Operator::new(services::Fs::default().root(root)).unwrap();
    let origin = OpendalOrigin::new(operator, OpendalConfig::default(), &context());
    assert!(list(&origin, "nothing").await.0.is_empty());
    let (_, errors) = list(&origin, "../a").await;
    assert_eq!(errors.len(), 1, "{errors:?}");
}
