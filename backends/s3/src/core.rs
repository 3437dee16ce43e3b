//! The origin: a prefix of a bucket, and who reads and lists it.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use foreread_tier::{
    ErrorKind, Object, OpenOptions, OriginTier, ReadFuture, ReadRequest, Tier, TierError, TierProfile,
};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::config::PARALLELISM;
use crate::lister::{Listing, Objects};
use crate::reader::Reader;

/// A prefix of a bucket whose objects are samples.
///
/// Requests are polled by whoever polls the future of a read, without a task for each; the connections below them run
/// on the runtime that the origin was opened with, whatever thread it is that polls. Dropping the future ends the request.
pub struct ObjectOrigin {
    profile: TierProfile,
    reader: Arc<Reader>,
    listing: Listing,
    /// As many as reads may be under way.
    places: Arc<Semaphore>,
    runtime: Handle,
    /// See [`OriginTier::place`].
    place: String,
}

impl fmt::Debug for ObjectOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectOrigin").field("place", &self.reader.place).finish_non_exhaustive()
    }
}

impl ObjectOrigin {
    pub(crate) fn new(
        reader: Reader,
        listing: Listing,
        parallelism: Option<usize>,
        runtime: Handle,
        place: String,
    ) -> Self {
        let profile = TierProfile::new(parallelism.unwrap_or(PARALLELISM)).with_listing_in_order(true);
        // The layers find out how many are worth having under way; this only keeps reads from opening more sockets
        // than a process has.
        let places = Arc::new(Semaphore::new(parallelism.unwrap_or(OpenOptions::MAX_PARALLELISM / 4)));
        Self { profile, reader: Arc::new(reader), listing, places, runtime, place }
    }
}

impl Tier for ObjectOrigin {
    fn name(&self) -> &str {
        self.reader.place.tier
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let (reader, places) = (Arc::clone(&self.reader), Arc::clone(&self.places));
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let mut read = pin!(async {
                // It is never closed.
                let _place = places.acquire().await;
                reader.read(&request).await
            });
            poll_fn(|context| {
                let _entered = runtime.enter();
                read.as_mut().poll(context)
            })
            .await
        })
    }

    /// Each read is a request of its own.
    fn submit(&self) {}
}

impl OriginTier for ObjectOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> Objects {
        on(self.runtime.clone(), self.listing.clone().list(prefix, after).boxed())
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let (listing, reader, path_of) = (self.listing.clone(), Arc::clone(&self.reader), Arc::from(path));
        let found = stream::once(async move {
            match listing.stat(&path_of).await {
                // Who may not list may read; and where a listing has no order, a read is the shorter way.
                Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unordered) => {
                    let found = listing.repeated(&path_of, "answer", || reader.stat(&path_of)).await;
                    // Where nothing may be read either, what helps is what it takes to list.
                    let kind = error.kind();
                    found.map_err(|other| if other.kind() == kind { error } else { other })
                }
                found => found,
            }
        })
        .boxed();
        let found = on(self.runtime.clone(), found).into_future();
        let gone = TierError::new(ErrorKind::Closed, self.name()).with_object(path);
        found.map(|(found, _)| found.unwrap_or(Err(gone))).boxed()
    }

    fn place(&self) -> &str {
        &self.place
    }
}

/// The stream, polled as if on `runtime`: connections start tasks and set timers, and who polls may be a plain thread.
fn on<T: Send + 'static>(runtime: Handle, mut stream: BoxStream<'static, T>) -> BoxStream<'static, T> {
    stream::poll_fn(move |context| {
        let _entered = runtime.enter();
        stream.as_mut().poll_next(context)
    })
    .boxed()
}
