//! The origin: a prefix of a bucket, or any `object_store`, with its reader and its lister.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use foreread_tier::{
    ErrorKind, Object, OpenContext, OpenOptions, OriginTier, ReadFuture, ReadRequest, Tier, TierError,
    TierProfile,
};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::ObjectStore;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::config::{BucketPrefix, DEFAULT_PARALLELISM};
use crate::error::BucketContext;
use crate::lister::{BucketListing, ObjectStream};
use crate::reader::ObjectReader;

/// A prefix of a bucket, or any `object_store`, whose objects are samples.
///
/// A read has no separate task. It makes progress when its future is polled, and its connections
/// run on the runtime of the [`OpenContext`]. Dropping the future cancels the request.
pub struct ObjectStoreOrigin {
    profile: TierProfile,
    reader: Arc<ObjectReader>,
    /// `None` for an origin that lists without pages.
    listing: Option<BucketListing>,
    /// Limits the number of parallel reads.
    places: Arc<Semaphore>,
    runtime: Handle,
    /// See [`OriginTier::place`].
    place: String,
}

impl fmt::Debug for ObjectStoreOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStoreOrigin").field("place", &self.reader.place).finish_non_exhaustive()
    }
}

impl ObjectStoreOrigin {
    /// The origin of all objects of `store`, which may be any implementation of [`ObjectStore`].
    /// `store` has its own credentials, timeouts and retries. For a part of it, wrap it in a
    /// [`PrefixStore`](object_store::prefix::PrefixStore).
    ///
    /// `place` identifies the data on disks ([`OriginTier::place`]) and in messages. Two origins
    /// must not have the same.
    ///
    /// Objects are listed in the origin's order, so an interrupted listing restarts. A change is
    /// detected by the ETag, and by the size alone for an object that was listed without an ETag.
    /// Failures without a specific kind in `object_store` are permanent, because `store` has
    /// retried them.
    pub fn new(store: Arc<dyn ObjectStore>, place: impl Into<String>, context: &OpenContext) -> Self {
        let place = place.into();
        let shown = BucketContext {
            tier: "object_store",
            bucket: place.clone(),
            endpoint: None,
            region: None,
            signed: true,
            proxy: None,
        };
        let location = BucketPrefix { bucket: String::new(), prefix: String::new() };
        let buffers = Arc::clone(&context.buffers);
        let reader = ObjectReader { store, credentials: None, place: shown, location, buffers };
        Self::of(reader, None, None, context.runtime.clone(), place)
    }

    pub(crate) fn of(
        reader: ObjectReader,
        listing: Option<BucketListing>,
        parallelism: Option<usize>,
        runtime: Handle,
        place: String,
    ) -> Self {
        let profile = TierProfile::new(parallelism.unwrap_or(DEFAULT_PARALLELISM))
            .with_listing_in_order(listing.is_some());
        // The layers determine the best number of parallel reads. This limit only keeps reads from
        // opening more sockets than a process may have.
        let places = Arc::new(Semaphore::new(parallelism.unwrap_or(OpenOptions::MAX_PARALLELISM / 4)));
        Self { profile, reader: Arc::new(reader), listing, places, runtime, place }
    }

    /// The result of `work` about `object`, which runs in the context of the runtime.
    fn answer<T: Send + 'static>(
        &self,
        object: &str,
        work: impl Future<Output = Result<T, TierError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, TierError>> {
        let found = on(self.runtime.clone(), stream::once(work).boxed()).into_future();
        let gone = TierError::new(ErrorKind::Closed, self.name()).with_object(object);
        found.map(|(found, _)| found.unwrap_or(Err(gone))).boxed()
    }
}

impl Tier for ObjectStoreOrigin {
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
                // The semaphore is never closed.
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

    /// Each read is a separate request, so there is nothing to submit.
    fn submit(&self) {}
}

impl OriginTier for ObjectStoreOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> ObjectStream {
        let found = match &self.listing {
            Some(listing) => listing.clone().list(prefix, after).boxed(),
            None => self.reader.list(prefix, after),
        };
        on(self.runtime.clone(), found)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let (listing, reader, path_of) = (self.listing.clone(), Arc::clone(&self.reader), Arc::from(path));
        self.answer(path, async move {
            let Some(listing) = listing else { return reader.stat(&path_of).await };
            match listing.stat(&path_of).await {
                // A caller without the permission to list may be able to read. If a listing has no
                // order, a read is cheaper.
                Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unordered) => {
                    let found = listing.repeated(&path_of, "answer", || reader.stat(&path_of)).await;
                    // If reading is denied too, the error names the permission to list.
                    let kind = error.kind();
                    found.map_err(|other| if other.kind() == kind { error } else { other })
                }
                found => found,
            }
        })
    }

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        let (listing, reader) = (self.listing.clone(), Arc::clone(&self.reader));
        self.answer("", async move {
            match listing {
                Some(listing) => listing.directories().await,
                None => reader.directories().await,
            }
        })
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

/// Polls the stream in the context of `runtime`. Connections start tasks and set timers, and the
/// caller may be a plain thread.
fn on<T: Send + 'static>(runtime: Handle, mut stream: BoxStream<'static, T>) -> BoxStream<'static, T> {
    stream::poll_fn(move |context| {
        let _entered = runtime.enter();
        stream.as_mut().poll_next(context)
    })
    .boxed()
}
