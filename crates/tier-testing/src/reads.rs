//! Several reads of a tier as one stream, for tests.

use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{ReadRequest, Tier, TierError};
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};

/// The answer to one of several reads.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The position of its request.
    pub tag: u32,
    /// The bytes, or why there are none.
    pub result: Result<Bytes, TierError>,
}

/// Reads in one burst.
pub trait ReadAll {
    /// Begins all of `requests` and submits them. Yields their answers, in the order of arrival.
    fn read_all(&self, requests: Vec<ReadRequest>) -> BoxStream<'static, Answered>;
}

impl<T: Tier + ?Sized> ReadAll for T {
    fn read_all(&self, requests: Vec<ReadRequest>) -> BoxStream<'static, Answered> {
        let begin = |(request, tag)| self.read(Arc::new(request)).map(move |result| Answered { tag, result });
        let reads: FuturesUnordered<_> = requests.into_iter().zip(0..).map(begin).collect();
        self.submit();
        reads.boxed()
    }
}
