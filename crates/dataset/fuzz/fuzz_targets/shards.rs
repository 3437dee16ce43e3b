//! Indexes any bytes as a shard of each format. The result is samples within the bytes, or an
//! error.
#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use foreread_dataset::{Catalog, Format, IndexOptions};
use foreread_tier::{
    ErrorKind, Object, OriginTier, ReadFuture, ReadRequest, Span, Tier, TierError, TierProfile,
};
use foreread_types::SampleId;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use libfuzzer_sys::fuzz_target;

#[derive(Debug)]
struct One(Bytes, TierProfile);

impl Tier for One {
    fn name(&self) -> &str {
        "one"
    }

    fn profile(&self) -> &TierProfile {
        &self.1
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let Span::Range(range) = &request.span else { panic!("shards are read in parts") };
        let bytes = self.0.slice(range.start as usize..range.end as usize);
        Box::pin(std::future::ready(Ok(bytes)))
    }

    fn submit(&self) {}
}

impl OriginTier for One {
    fn place(&self) -> &str {
        "one"
    }

    fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let object = Object { path: "shard".into(), size: self.0.len() as u64, version: None };
        stream::iter([Ok(object)]).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let error = TierError::new(ErrorKind::NotFound, "one").with_object(path);
        Box::pin(std::future::ready(Err(error)))
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

fuzz_target!(|bytes: &[u8]| {
    let origin = One(Bytes::copy_from_slice(bytes), TierProfile::new(4));
    for format in Format::ALL.into_iter().filter(|format| format.is_packed()) {
        let options = IndexOptions::default().with_format(format);
        let index = Catalog::index(&origin, "/data", &options, |_| ());
        let Ok(catalog) = futures::executor::block_on(index) else { continue };
        for id in (0..catalog.len()).map(SampleId) {
            let Ok(entry) = catalog.entry(id) else { panic!("{id} has no place") };
            match entry.span {
                Span::Range(range) => assert!(range.start <= range.end && range.end <= bytes.len() as u64),
                Span::Made(parts) => {
                    for part in &*parts {
                        assert!(part.check(bytes.len() as u64).is_ok());
                        // Bytes or an error, but no panic.
                        let stored = &bytes[part.stored.start as usize..part.stored.end as usize];
                        let _ = foreread_formats::decode::decode(&part.recipe, stored);
                    }
                }
                Span::Whole => panic!("{id} is not a part"),
            }
        }
    }
});
