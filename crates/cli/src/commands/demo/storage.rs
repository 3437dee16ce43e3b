//! The demo's storage: a directory with a latency per read, as a backend that is registered at run
//! time.

use std::sync::Arc;
use std::time::Duration;

use foreread::Registry;
use foreread::backend::{
    Backend, LayoutsFuture, Object, OpenContext, OpenOptions, OriginTier, ReadFuture, ReadRequest, Tier,
    TierError, TierProfile,
};
use futures::future::BoxFuture;
use futures::stream::BoxStream;

pub const LATENCY: Duration = Duration::from_millis(8);

/// Opens `slow://DIR`.
#[derive(Debug)]
pub struct SlowBackend;

#[async_trait::async_trait]
impl Backend for SlowBackend {
    fn schemes(&self) -> &[&str] {
        &["slow"]
    }

    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let path = url.strip_prefix("slow://").unwrap_or(url);
        let registry = Registry::with_defaults();
        let backend = registry.find(path).map_err(|error| {
            TierError::new(foreread::backend::ErrorKind::Unsupported, "slow").with_detail(error.to_string())
        })?;
        Ok(Arc::new(SlowOrigin(backend.open(path, options, context).await?)))
    }
}

/// An origin with a latency.
#[derive(Debug)]
struct SlowOrigin(Arc<dyn OriginTier>);

impl Tier for SlowOrigin {
    fn name(&self) -> &str {
        "slow"
    }

    fn profile(&self) -> &TierProfile {
        self.0.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            tokio::time::sleep(LATENCY).await;
            inner.read(request).await
        })
    }

    fn submit(&self) {
        self.0.submit();
    }
}

impl OriginTier for SlowOrigin {
    fn place(&self) -> &str {
        self.0.place()
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.0.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.0.stat(path)
    }

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        self.0.directories()
    }

    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        self.0.layouts(paths)
    }
}
