//! A shard as a file that the parsers of `foreread-formats` read.

use std::ops::Range;

use bytes::Bytes;
use foreread_formats::{FileSource, FormatError, FormatErrorKind, ReadError};
use foreread_tier::{Object, TierError};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::reader::ShardStore;
use super::shard_error::ShardError;

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

impl From<FormatError> for ShardError {
    fn from(error: FormatError) -> Self {
        let (at, why) = (error.at(), error.why().to_owned());
        match error.kind() {
            FormatErrorKind::Damaged => Self::damaged(at, why),
            FormatErrorKind::Unread => {
                match error.into_read_error().map(|error| error.downcast::<TierError>()) {
                    Some(Ok(error)) => Self::Unread(*error),
                    _ => Self::damaged(at, why),
                }
            }
            _ => Self::unsupported(at, why),
        }
    }
}
