//! One dataset of a run: its catalog and its origin.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_layers::{RetryPolicy, Units};
use foreread_tier::{ErrorKind, Lifetime, ReadRequest, Span, Tier, TierError};
use foreread_types::{SampleKey, Tick};
use tokio::time::timeout;

use crate::blocks::BlockTable;
use crate::locate::{Location, Locator};
use crate::read_results::{Checksum, read_alone};

/// How long an error waits for the path of its sample.
const NAME_TIMEOUT: Duration = Duration::from_secs(1);

/// One dataset of the run. Cheap to clone. Clones share their threads for look-ups in the catalog's
/// file.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub(crate) catalog: Catalog,
    pub(crate) origin: Arc<dyn Tier>,
    pub(crate) blocks: BlockTable,
    pub(crate) locator: Locator,
    /// The stored units of its origin, if samples share some.
    pub(crate) units: Option<Units>,
}

impl Dataset {
    /// The samples of `catalog`, read from `origin` with its layers.
    pub fn new(catalog: Catalog, origin: Arc<dyn Tier>) -> Self {
        let locator = Locator::new(catalog.clone());
        Self { catalog, origin, blocks: BlockTable::default(), locator, units: None }
    }

    /// Sets the blocks that the first epoch reads. Without them each sample is read alone.
    #[must_use]
    pub fn with_blocks(self, blocks: BlockTable) -> Self {
        Self { blocks, ..self }
    }

    /// Sets the stored units of the origin's layers. The run tells them its order.
    #[must_use]
    pub fn with_units(self, units: Units) -> Self {
        Self { units: Some(units), ..self }
    }

    /// Sets the policy that repeats reads of the catalog's file after an I/O error.
    #[must_use]
    pub fn with_retry(self, retry: RetryPolicy) -> Self {
        Self { locator: self.locator.with_retry(retry), ..self }
    }

    /// The dataset of a sample, and the sample's length. `None` if there is no such sample.
    pub(crate) fn find(datasets: &[Self], key: SampleKey) -> Option<(&Self, u64)> {
        let dataset = datasets.get(key.dataset.0 as usize)?;
        (key.id.0 < dataset.catalog.len()).then(|| (dataset, dataset.catalog.sizes().bytes(key.id)))
    }

    /// Checks length and checksum of bytes that did not pass through
    /// [`ReadsInFlight`](crate::read_results::ReadsInFlight).
    pub(crate) fn checked(&self, key: SampleKey, bytes: Bytes) -> Result<Bytes, TierError> {
        let expected = self.catalog.sizes().bytes(key.id);
        if bytes.len() as u64 != expected {
            return Err(TierError::new(ErrorKind::Changed, self.origin.name())
                .with_detail(format!("{} bytes instead of {expected}", bytes.len())));
        }
        if let Some(sum) = self.catalog.checksum(key.id) {
            Checksum { sum, at: 0 }.passed(self.origin.name(), &bytes)?;
        }
        Ok(bytes)
    }

    /// The location of a sample in the origin. Does not block the thread.
    pub(crate) async fn located(&self, key: SampleKey) -> Result<Location, TierError> {
        let missing = || TierError::new(ErrorKind::Closed, "catalog");
        self.locator.locate_all(vec![key.id]).await.pop().unwrap_or_else(|| Err(missing()))
    }

    /// Reads a sample from the origin, without its block. The bytes are not
    /// [checked](Self::checked).
    pub(crate) async fn read(
        &self,
        key: SampleKey,
        due: Tick,
        lifetime: Lifetime,
    ) -> Result<Bytes, TierError> {
        let (object, span) = self.located(key).await?;
        let server = self.catalog.server(key.id);
        let request = ReadRequest { server, lifetime, ..ReadRequest::new(key, object, span, due) };
        match request.span {
            // An empty range needs no request.
            Span::Range(_) if request.is_empty() => Ok(Bytes::new()),
            _ => read_alone(&*self.origin, request).await,
        }
    }

    /// Adds the sample's path to `error`, unless it names an object. Does not block the thread.
    /// Waits at most [`NAME_TIMEOUT`].
    pub(crate) async fn named(&self, key: SampleKey, error: TierError) -> TierError {
        if error.object().is_some() {
            return error;
        }
        let catalog = self.catalog.clone();
        let path = self.locator.run(move || catalog.path(key.id).ok().map(Cow::into_owned));
        match timeout(NAME_TIMEOUT, path).await {
            Ok(Ok(Some(path))) => error.with_object(path),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier_testing::FakeOrigin;
    use foreread_types::{DatasetId, SampleId};

    use super::*;
    use crate::locate::THREADS;
    use crate::locate::tests::FakeServer;

    /// A hanging file server kept a failed run from ending.
    #[tokio::test]
    // semantics: FAIL-21
    async fn error_waits_at_most_a_second_for_its_path() {
        let fake = FakeOrigin::uniform(10, 100);
        let server = FakeServer::new(fake.clone());
        let objects = (0..10).map(|id| fake.object(SampleId(id)));
        let catalog = Catalog::from_objects("fake://", objects).unwrap();
        let dataset = Dataset {
            locator: Locator::new(server.clone()),
            ..Dataset::new(catalog, Arc::new(fake.clone()))
        };
        let key = SampleKey::new(DatasetId(0), SampleId(7));
        let error = || TierError::new(ErrorKind::Other, "engine");
        let named = dataset.named(key, error()).await;
        assert_eq!(named.object(), Some(&*fake.object(key.id).path));
        server.hang(0..10);
        let stuck = (0..THREADS as u64).map(|id| dataset.located(SampleKey::new(DatasetId(0), SampleId(id))));
        let stuck = futures::future::join_all(stuck);
        tokio::select! {
            biased;
            _ = stuck => panic!("the server hangs"),
            named = dataset.named(key, error()) => assert_eq!(named.object(), None),
        }
        server.release();
    }
}
