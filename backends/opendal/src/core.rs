//! The origin: an operator with its profile, reader and lister.

use std::sync::Arc;

use foreread_tier::{
    ErrorKind, Object, OpenContext, OriginTier, ReadFuture, ReadRequest, Tier, TierError, TierProfile,
};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use opendal::Operator;
use tokio::sync::Semaphore;

use crate::OpendalConfig;
use crate::lister::ObjectLister;
use crate::reader::ObjectReader;

/// An origin that is accessed through an OpenDAL operator.
///
/// Reads run on the task that polls them. A listing runs on a separate task, which ends when its
/// stream is dropped. Paths with `..`, absolute paths, and paths that OpenDAL would change are
/// refused without a request.
#[derive(Debug)]
pub struct OpendalOrigin {
    profile: TierProfile,
    reader: Arc<ObjectReader>,
    lister: ObjectLister,
    /// One permit for each concurrent read.
    permits: Arc<Semaphore>,
    /// See [`OriginTier::place`].
    place: String,
}

impl OpendalOrigin {
    /// The origin of the operator's objects. The operator's layers are kept. It should have no
    /// retry and limit layers. The origin's place is OpenDAL's scheme, name and root. Two origins
    /// for which these are equal need catalogs with names.
    pub fn new(operator: Operator, config: OpendalConfig, context: &OpenContext) -> Self {
        let (name, info) = (operator.info().scheme(), operator.info());
        let place = format!("{name} {} {}", info.name(), info.root());
        Self::named(name, place, operator, config, context)
    }

    pub(crate) fn named(
        name: &'static str,
        place: String,
        operator: Operator,
        config: OpendalConfig,
        context: &OpenContext,
    ) -> Self {
        let parallelism = config.parallelism;
        Self {
            profile: TierProfile::new(parallelism),
            reader: Arc::new(ObjectReader::new(name, operator.clone(), Arc::clone(&context.buffers))),
            lister: ObjectLister::new(name, operator, config, context.runtime.clone()),
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
            // Permits are granted in the order of requests.
            match permits.acquire().await {
                Ok(_permit) => reader.read(&request).await,
                Err(error) => Err(TierError::new(ErrorKind::Closed, reader.name())
                    .with_object(&*request.object.path)
                    .with_source(error)),
            }
        })
    }

    /// Each read is a separate request.
    fn submit(&self) {}
}

impl OriginTier for OpendalOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.lister.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.lister.stat(path)
    }

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        self.lister.directories()
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}
