//! The origin: an operator, its profile, and who reads and lists it.

use std::sync::Arc;

use foreread_tier::{
    Context, ErrorKind, Object, OriginTier, ReadFuture, ReadRequest, Tier, TierError, TierProfile,
};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use opendal::Operator;
use tokio::sync::Semaphore;

use crate::OpendalConfig;
use crate::lister::Lister;
use crate::reader::Reader;

/// A store behind one of OpenDAL's operators.
///
/// Reads run on the task that polls them; listings on one of their own, which ends when nobody wants what it
/// finds. Paths that climb, are absolute, or that OpenDAL would name differently are refused before the store sees them.
#[derive(Debug)]
pub struct OpendalOrigin {
    profile: TierProfile,
    reader: Arc<Reader>,
    lister: Lister,
    /// One permit for each read that may be under way.
    permits: Arc<Semaphore>,
    /// See [`OriginTier::place`].
    place: String,
}

impl OpendalOrigin {
    /// The origin of what `operator` holds. Its layers are kept; layers that try again or limit are better left out. Its
    /// place is what OpenDAL calls it (scheme, name and root): two stores for which these are equal need catalogs with
    /// names of their own.
    pub fn new(operator: Operator, config: OpendalConfig, context: &Context) -> Self {
        let (name, info) = (operator.info().scheme(), operator.info());
        let place = format!("{name} {} {}", info.name(), info.root());
        Self::named(name, place, operator, config, context)
    }

    pub(crate) fn named(
        name: &'static str,
        place: String,
        operator: Operator,
        config: OpendalConfig,
        context: &Context,
    ) -> Self {
        let parallelism = config.parallelism;
        Self {
            profile: TierProfile::new(parallelism),
            reader: Arc::new(Reader::new(name, operator.clone(), Arc::clone(&context.buffers))),
            lister: Lister::new(name, operator, config, context.runtime.clone()),
            permits: Arc::new(Semaphore::new(parallelism)),
            place,
        }
    }
}

impl Tier for OpendalOrigin {
    fn name(&self) -> &str {
        self.reader.name()
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let (reader, permits) = (Arc::clone(&self.reader), Arc::clone(&self.permits));
        Box::pin(async move {
            // Permits are given in the order in which they were asked for.
            match permits.acquire().await {
                Ok(_permit) => reader.read(&request).await,
                Err(error) => Err(TierError::new(ErrorKind::Closed, reader.name())
                    .with_object(&*request.object.path)
                    .with_source(error)),
            }
        })
    }

    /// Each read is a request of its own.
    fn submit(&self) {}
}

impl OriginTier for OpendalOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.lister.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.lister.stat(path)
    }

    fn place(&self) -> &str {
        &self.place
    }
}
