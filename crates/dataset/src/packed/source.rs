//! A shard as a file that the parsers of `foreread-formats` read.

use std::ops::Range;

use bytes::Bytes;
use foreread_formats::{FileSource, ReadError};
use foreread_tier::Object;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::reader::ShardStore;

/// An object of an origin, whose reads are counted.
#[derive(Debug)]
pub(crate) struct ShardSource<'a> {
    pub(crate) store: &'a ShardStore<'a>,
    pub(crate) object: &'a Object,
}

impl FileSource for ShardSource<'_> {
    fn size(&self) -> u64 {
        self.object.size
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        let read = self.store.read(self.object, range.start, range.end - range.start);
        read.map(|bytes| bytes.map_err(ReadError::from)).boxed()
    }
}
