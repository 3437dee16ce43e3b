//! An in-memory origin of given bytes. Its objects may be far larger than memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::{Catalog, DatasetError, IndexOptions, IndexProgress};
use foreread_tier::{
    ErrorKind, Object, OriginTier, ReadFuture, ReadRequest, Span, StoredPart, Tier, TierError, TierProfile,
};
use foreread_types::SampleId;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};

/// An object: parts by their offset, with zeros between them.
#[derive(Clone, Debug, Default)]
pub struct Content {
    pub size: u64,
    parts: BTreeMap<u64, Bytes>,
}

impl Content {
    /// Appends `bytes`.
    pub fn push(&mut self, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        self.parts.insert(self.size, bytes);
        self.size += length;
    }

    /// Appends zeros.
    pub fn hole(&mut self, bytes: u64) {
        self.size += bytes;
    }

    pub fn read(&self, start: u64, end: u64) -> Vec<u8> {
        let mut read = vec![0; (end - start) as usize];
        let before = self.parts.range(..start).next_back();
        for (&at, part) in before.into_iter().chain(self.parts.range(start..end)) {
            let (from, to) = (at.max(start), (at + part.len() as u64).min(end));
            if from < to {
                let bytes = &part[(from - at) as usize..(to - at) as usize];
                read[(from - start) as usize..(to - start) as usize].copy_from_slice(bytes);
            }
        }
        read
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        let mut content = Self::default();
        content.push(bytes);
        content
    }
}

#[derive(Debug)]
pub struct Held {
    objects: BTreeMap<String, Arc<Content>>,
    profile: TierProfile,
    latency: Duration,
    pub requests: Arc<AtomicU64>,
    pub bytes: Arc<AtomicU64>,
}

impl Held {
    pub fn new<C: Into<Content>>(objects: impl IntoIterator<Item = (impl Into<String>, C)>) -> Self {
        Self {
            objects: objects
                .into_iter()
                .map(|(path, content)| (path.into(), Arc::new(content.into())))
                .collect(),
            profile: TierProfile::new(64),
            latency: Duration::ZERO,
            requests: Arc::default(),
            bytes: Arc::default(),
        }
    }

    /// Sets the latency of each read.
    pub fn slow(self, latency: Duration) -> Self {
        Self { latency, ..self }
    }

    /// The bytes of a sample, read through the catalog's entry.
    pub fn sample(&self, catalog: &Catalog, id: u64) -> Vec<u8> {
        let entry = catalog.entry(SampleId(id)).unwrap();
        match entry.span {
            Span::Whole => self.objects[&*entry.object.path].read(0, entry.object.size),
            Span::Range(range) => self.objects[&*entry.object.path].read(range.start, range.end),
            Span::Made(parts) => self.decoded(&entry.object.path, &parts),
        }
    }

    fn decoded(&self, path: &str, parts: &[StoredPart]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in parts {
            let stored = self.objects[path].read(part.stored.start, part.stored.end);
            let decoded = foreread_formats::decode::decode(&part.recipe, &stored).unwrap();
            bytes.extend_from_slice(&decoded[part.delivered.start as usize..part.delivered.end as usize]);
        }
        bytes
    }

    pub async fn index(&self, options: &IndexOptions) -> Result<Catalog, DatasetError> {
        self.index_with(options, |_| ()).await
    }

    pub async fn index_with(
        &self,
        options: &IndexOptions,
        progress: impl FnMut(IndexProgress),
    ) -> Result<Catalog, DatasetError> {
        Catalog::index(self, "/data", options, progress).await
    }
}

impl Tier for Held {
    fn name(&self) -> &str {
        "held"
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let content = self.objects.get(&*request.object.path).cloned();
        let (latency, requests, bytes) = (self.latency, Arc::clone(&self.requests), Arc::clone(&self.bytes));
        Box::pin(async move {
            requests.fetch_add(1, Relaxed);
            if !latency.is_zero() {
                tokio::time::sleep(latency).await;
            }
            let Span::Range(range) = &request.span else { panic!("shards are read in parts: {request:?}") };
            assert!(!range.is_empty() && range.end <= request.object.size, "{request:?}");
            bytes.fetch_add(range.end - range.start, Relaxed);
            let gone = TierError::new(ErrorKind::NotFound, "held").with_object(&*request.object.path);
            content.map(|content| Bytes::from(content.read(range.start, range.end))).ok_or(gone)
        })
    }

    fn submit(&self) {}
}

impl OriginTier for Held {
    fn place(&self) -> &str {
        "held"
    }

    fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let object = |(path, content): (&String, &Arc<Content>)| {
            Ok(Object { path: path.as_str().into(), size: content.size, version: None })
        };
        stream::iter(self.objects.iter().map(object).collect::<Vec<_>>()).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let found = self.objects.get(path).map(|content| content.size);
        let object = found.map(|size| Object { path: path.into(), size, version: None });
        let missing = TierError::new(ErrorKind::NotFound, "held").with_object(path);
        Box::pin(std::future::ready(object.ok_or(missing)))
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}
