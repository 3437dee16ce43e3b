//! A storage backend in one file: objects in a map, opened by `map://NAME`. The conformance suite checks it.
//!
//! To use a backend, register it: `Loader::builder("map://pets").registry(Registry::with_defaults().register(Maps))` in
//! Rust, `foreread_cli::run_with` for the command. Run the checks with `cargo run -p foreread-tier --example backend`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use foreread_tier::{
    Backend, Context, ErrorKind, HeapBuffers, Object, OpenOptions, OriginTier, ReadFuture, ReadRequest, Span,
    Tier, TierError, TierProfile,
};
use foreread_tier_testing::conformance;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;

const PROFILE: TierProfile = TierProfile::new(16).with_listing_in_order(true);

/// Opens `map://NAME`.
#[derive(Debug)]
struct Maps(BTreeMap<String, Arc<Map>>);

/// One store: its place is its URL, which no other data may have.
#[derive(Debug, Default)]
struct Map {
    place: String,
    objects: BTreeMap<String, Bytes>,
}

#[async_trait]
impl Backend for Maps {
    fn schemes(&self) -> &[&str] {
        &["map"]
    }

    async fn open(&self, url: &str, _: &OpenOptions, _: &Context) -> Result<Arc<dyn OriginTier>, TierError> {
        match self.0.get(url) {
            Some(map) => Ok(Arc::<Map>::clone(map)),
            None => Err(TierError::new(ErrorKind::NotFound, "map").with_object(url)),
        }
    }
}

impl Map {
    fn object(&self, path: &str) -> Result<(Object, Bytes), TierError> {
        let error = |kind| TierError::new(kind, "map").with_object(path);
        if path.split('/').any(|part| part == "..") || path.starts_with('/') {
            return Err(error(ErrorKind::Invalid));
        }
        let bytes = self.objects.get(path).ok_or_else(|| error(ErrorKind::NotFound))?;
        let object = Object { path: path.into(), size: bytes.len() as u64, version: None };
        Ok((object, bytes.clone()))
    }

    fn answer(&self, request: &ReadRequest) -> Result<Bytes, TierError> {
        let (found, bytes) = self.object(&request.object.path)?;
        // Another size or version than the catalog's is a change, and never delivered.
        if found.size != request.object.size || found.version != request.object.version {
            return Err(TierError::new(ErrorKind::Changed, "map").with_object(&*found.path));
        }
        match &request.span {
            Span::Whole => Ok(bytes),
            // An allocation of its own: a slice would keep all that it was cut from.
            Span::Range(range) => {
                Ok(Bytes::copy_from_slice(&bytes[range.start as usize..range.end as usize]))
            }
        }
    }
}

impl Tier for Map {
    fn name(&self) -> &str {
        "map"
    }

    fn profile(&self) -> &TierProfile {
        &PROFILE
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        std::future::ready(self.answer(&request)).boxed()
    }

    /// Nothing is held back.
    fn submit(&self) {}
}

impl OriginTier for Map {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let below = |path: &str| {
            path.strip_prefix(prefix.trim_end_matches('/'))
                .is_some_and(|rest| prefix.is_empty() || rest.starts_with('/'))
        };
        let is_hidden = |path: &str| path[prefix.len()..].split('/').any(|part| part.starts_with('.'));
        let paths = self.objects.range::<str, _>((from, Bound::Unbounded)).map(|(path, _)| path);
        let paths = paths.filter(|path| below(path) && !is_hidden(path));
        let found: Vec<_> = paths.map(|path| self.object(path).map(|(object, _)| object)).collect();
        stream::iter(found).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        std::future::ready(self.object(path).map(|(object, _)| object)).boxed()
    }

    fn place(&self) -> &str {
        &self.place
    }
}

#[tokio::main]
async fn main() -> Result<(), TierError> {
    let samples = conformance::samples(7);
    let objects =
        samples.iter().map(|known| (known.object.path.to_string(), known.content.clone())).collect();
    let url = "map://pets".to_owned();
    let maps = Maps([(url.clone(), Arc::new(Map { place: url.clone(), objects }))].into());
    let context = Context { buffers: Arc::new(HeapBuffers), runtime: Handle::current(), seed: 7 };
    let map = maps.open(&url, &OpenOptions::default(), &context).await?;
    conformance::origin(&*map, &samples).await;
    println!("{} objects: the backend keeps the contract", samples.len());
    Ok(())
}

#[cfg(test)]
#[test]
fn example_backend_keeps_the_contract() {
    main().unwrap();
}
