//! A storage backend in one file: objects in a map, opened by `map://`. The conformance suite
//! checks it.
//!
//! To use a backend, register it:
//! `Loader::builder("map://").registry(Registry::with_defaults().register(map))` in Rust,
//! `foreread_cli::run_with` for the command. Run the checks with `cargo run -p foreread-tier
//! --example backend`.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{
    Backend, Buffers, ErrorKind, HeapBuffers, ListRange, Object, OpenContext, OpenOptions, OriginTier,
    ReadFuture, ReadRequest, Tier, TierError, TierProfile, check_path,
};
use foreread_tier_testing::{KnownSample, conformance};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};

/// Objects by their paths, and memory for samples.
#[derive(Clone, Debug)]
struct Map(BTreeMap<String, (Object, Bytes)>, Arc<dyn Buffers>);

#[async_trait::async_trait]
impl Backend for Map {
    fn schemes(&self) -> &[&str] {
        &["map"]
    }

    async fn open(
        &self,
        _: &str,
        _: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        Ok(Arc::new(Self(self.0.clone(), Arc::clone(&context.buffers))))
    }
}

impl Map {
    fn find(&self, path: &str) -> Result<&(Object, Bytes), TierError> {
        check_path(path).map_err(|why| TierError::invalid("map", path, why))?;
        self.0.get(path).ok_or_else(|| TierError::new(ErrorKind::NotFound, "map").with_object(path))
    }

    fn bytes(&self, request: &ReadRequest) -> Result<Bytes, TierError> {
        let path = &*request.object.path;
        let (found, bytes) = self.find(path)?;
        // An object of another size or version than the catalog's is never delivered.
        if *found != request.object {
            return Err(TierError::changed("map", path, format!("it has {} bytes", found.size)));
        }
        let range = request.range().map_err(|why| TierError::invalid("map", path, why))?;
        // A copy: a slice would keep the whole object in memory.
        let part = &bytes[range.start as usize..range.end as usize];
        let buffer = self.1.allocate_for(request.lifetime, part.len(), 1);
        let mut buffer = buffer.ok_or_else(|| TierError::new(ErrorKind::Other, "map").with_object(path))?;
        buffer.extend(part);
        Ok(buffer.freeze())
    }
}

impl Tier for Map {
    fn name(&self) -> &str {
        "map"
    }

    fn profile(&self) -> &TierProfile {
        const { &TierProfile::new(16).with_listing_in_order(true) }
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        ready(self.bytes(&request)).boxed()
    }

    fn submit(&self) {}
}

impl OriginTier for Map {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let range = ListRange::new(prefix, after);
        let found = self.0.values().filter(|(object, _)| range.includes(&object.path));
        stream::iter(found.map(|(object, _)| Ok(object.clone())).collect::<Vec<_>>()).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        ready(self.find(path).map(|(object, _)| object.clone())).boxed()
    }

    /// Identifies the data for caches, so it must be unique to them.
    fn place(&self) -> &str {
        "map://"
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

#[tokio::main]
async fn main() -> Result<(), TierError> {
    let samples = conformance::samples(7);
    let entry =
        |known: &KnownSample| (known.object.path.to_string(), (known.object.clone(), known.content.clone()));
    let map = Map(samples.iter().map(entry).collect(), Arc::new(HeapBuffers));
    let runtime = tokio::runtime::Handle::current();
    let context = OpenContext { buffers: Arc::new(HeapBuffers), runtime, seed: 7 };
    let origin = map.open("map://", &OpenOptions::default(), &context).await?;
    conformance::origin(&*origin, &samples).await;
    println!("{} objects: the backend keeps the contract", samples.len());
    Ok(())
}

#[cfg(test)]
#[test]
fn origin_conformance() {
    main().unwrap();
}
