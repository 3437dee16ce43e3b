//! The agent as a tier.

use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{
    LayoutsFuture, Object, OriginTier, ReadFuture, ReadRequest, Tier, TierError, TierProfile,
};
use foreread_types::{DatasetId, SampleKey};
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::link::Link;

/// An origin whose samples come from the agent where that is possible.
#[derive(Clone, Debug)]
pub struct AgentOrigin {
    link: Arc<Link>,
    dataset: DatasetId,
    direct: Arc<dyn OriginTier>,
}

impl AgentOrigin {
    pub(crate) fn new(link: Arc<Link>, dataset: u32, direct: Arc<dyn OriginTier>) -> Self {
        Self { link, dataset: DatasetId(dataset), direct }
    }
}

impl Tier for AgentOrigin {
    fn name(&self) -> &str {
        self.direct.name()
    }

    fn profile(&self) -> &TierProfile {
        self.direct.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let (link, direct) = (Arc::clone(&self.link), Arc::clone(&self.direct));
        let key = SampleKey::new(self.dataset, request.key.id);
        let Some(answer) = link.request(key, request.due) else {
            link.count(request.len(), false);
            return direct.read(request);
        };
        Box::pin(async move {
            link.send();
            match answer.await {
                // The engine checks the length, and the checksum where the catalog has one.
                Ok(sample) => {
                    link.count(sample.as_ref().len() as u64, true);
                    Ok(Bytes::from_owner(sample))
                }
                Err(_) => {
                    link.count(request.len(), false);
                    direct.read(request).await
                }
            }
        })
    }

    fn submit(&self) {
        self.link.send();
        self.direct.submit();
    }
}

impl OriginTier for AgentOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.direct.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.direct.stat(path)
    }

    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        self.direct.layouts(paths)
    }

    fn place(&self) -> &str {
        self.direct.place()
    }
}
