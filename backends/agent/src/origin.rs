//! The agent as a tier.

use std::future::ready;
use std::sync::Arc;

use foreread_tier::{
    LayoutsFuture, Lookup, Object, OriginTier, ReadFuture, ReadRequest, Sample, Tier, TierError, TierProfile,
};
use foreread_types::{DatasetId, SampleKey};
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::connection::Connection;
use crate::link::ClientLink;

/// An origin whose samples come from the agent where that is possible.
#[derive(Clone, Debug)]
pub struct AgentOrigin {
    link: Arc<ClientLink>,
    dataset: DatasetId,
    direct: Arc<dyn OriginTier>,
    profile: TierProfile,
}

impl AgentOrigin {
    pub(crate) fn new(link: Arc<ClientLink>, dataset: u32, direct: Arc<dyn OriginTier>) -> Self {
        let is_here = link.connection().is_some_and(|connection| matches!(*connection, Connection::Here(_)));
        let profile = direct.profile().clone().with_in_process(is_here);
        Self { link, dataset: DatasetId(dataset), direct, profile }
    }

    /// Reads without the agent: from the cache of this time, or from storage.
    fn read_directly(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let (key, bytes) = (SampleKey::new(self.dataset, request.key.id), request.len());
        self.link.count(bytes, false);
        let Some(cache) = self.link.alone() else { return self.direct.read(request) };
        if let Lookup::Ready(sample) = cache.lookup(key) {
            return Box::pin(ready(Ok(sample.bytes())));
        }
        let read = self.direct.read(request);
        Box::pin(async move {
            let received = read.await?;
            // The engine finds the fault of other lengths.
            if received.len() as u64 == bytes
                && let Some(room) = cache.reserve(cache.footprint().of(bytes))
                && let Err(error) = cache.store(room, key, Sample::uncharged(received.clone())).await
            {
                tracing::debug!(%error, "a sample was not kept");
            }
            Ok(received)
        })
    }
}

impl Tier for AgentOrigin {
    fn name(&self) -> &str {
        self.direct.name()
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let key = SampleKey::new(self.dataset, request.key.id);
        let Some(answer) = self.link.request(key, request.due) else {
            return self.read_directly(request);
        };
        let origin = self.clone();
        Box::pin(async move {
            origin.link.send();
            match answer.await {
                // The engine checks the length, and the checksum where the catalog has one.
                Ok(sample) => {
                    origin.link.count(sample.len() as u64, true);
                    Ok(sample)
                }
                Err(_) => origin.read_directly(request).await,
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

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        self.direct.directories()
    }

    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        self.direct.layouts(paths)
    }

    fn place(&self) -> &str {
        self.direct.place()
    }
}
