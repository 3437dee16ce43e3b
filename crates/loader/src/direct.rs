//! Reads outside of the order: for whoever asks for a sample that no plan foresaw.
//!
//! From whichever cache has it, else from the origin, at once and on its own account: such a read waits for nobody, and
//! nobody waits for it. The price is that two who ask for the same sample at the same time read it twice.

use std::sync::Arc;

use foreread_tier::{CacheTier, ErrorKind, Lookup, Sample, TierError};
use foreread_types::{SampleKey, Tick};

use crate::dataset::Dataset;
use crate::driver::log_store_error;
use crate::read_results::catch_panic;
use crate::report::Source;
use crate::sample_server::fetch;

/// Reads single samples; cheap to clone.
#[derive(Clone, Debug)]
pub struct Direct {
    datasets: Arc<[Dataset]>,
    caches: Arc<[(Source, Arc<dyn CacheTier>)]>,
}

impl Direct {
    /// Reads from these datasets, as the schedule numbers them, by way of these caches.
    pub fn new(datasets: Vec<Dataset>, caches: Vec<(Source, Arc<dyn CacheTier>)>) -> Self {
        Self { datasets: datasets.into(), caches: caches.into() }
    }

    /// A sample, and where it came from. With `keep`, what came from the origin stays in the fastest cache that has room:
    /// for a future that nobody knows, the first come are as good to keep as any.
    ///
    /// # Errors
    /// If there is no such sample, or it cannot be read, is not as long as the catalog says or does not add up; if a tier
    /// panics.
    ///
    /// # Cancel safety
    /// Dropping the future reads nothing, or reads and keeps nothing.
    pub async fn read(&self, key: SampleKey, keep: bool) -> Result<(Sample, Source), TierError> {
        // Whoever asked may wait for an answer without an end.
        catch_panic("engine", self.find(key, keep)).await
    }

    async fn find(&self, key: SampleKey, keep: bool) -> Result<(Sample, Source), TierError> {
        let unknown =
            || TierError::new(ErrorKind::Invalid, "catalog").with_detail(format!("there is no sample {key}"));
        let (of, bytes) = Dataset::find(&self.datasets, key).ok_or_else(unknown)?;
        for (source, cache) in &*self.caches {
            match cache.lookup(key) {
                Lookup::Ready(sample) => return Ok((sample, *source)),
                Lookup::Absent => {}
                Lookup::Stored => match fetch(&**cache, key, bytes, Tick(0)).await {
                    Ok(bytes) => return Ok((Sample::uncharged(bytes), *source)),
                    // The origin has it.
                    Err(error) => log_store_error(&**cache, key, &error),
                },
            }
        }
        let came = of.read(key, Tick(0)).await;
        let bytes = match came.and_then(|bytes| of.checked(key, bytes)) {
            Ok(bytes) => bytes,
            Err(error) => return Err(of.named(key, error).await),
        };
        let sample = Sample::uncharged(bytes);
        if keep {
            self.keep(key, &sample).await;
        }
        Ok((sample, Source::Origin))
    }

    /// Keeps a sample in the fastest cache that has room, whose budget then counts it.
    async fn keep(&self, key: SampleKey, sample: &Sample) {
        for (_, cache) in &*self.caches {
            let Some(room) = cache.reserve(cache.footprint().of(sample.len() as u64)) else { continue };
            match cache.store(room, key, sample.clone()).await {
                Ok(()) => return,
                Err(error) => log_store_error(&**cache, key, &error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_dataset::Catalog;
    use foreread_tier_testing::{FakeOrigin, StoredCache};
    use foreread_types::{DatasetId, SampleId};
    use futures::FutureExt;

    use super::*;
    use crate::locate::Locator;
    use crate::locate::tests::FakeServer;

    /// It waited for the catalog's file server, of which only the origin needs anything.
    #[tokio::test]
    // semantics: SAMPLE-20
    async fn kept_sample_waits_for_no_name() {
        let fake = FakeOrigin::uniform(4, 100);
        let server = FakeServer::new(fake.clone());
        server.hang(0..4);
        let objects = (0..4).map(|id| fake.object(SampleId(id)));
        let catalog = Catalog::from_objects("fake://", objects).unwrap();
        let dataset = Dataset {
            locator: Locator::new(server.clone()),
            ..Dataset::new(catalog, Arc::new(fake.clone()))
        };
        let disk = Arc::new(StoredCache::new(1 << 20));
        let key = SampleKey::new(DatasetId(0), SampleId(2));
        let room = disk.reserve(disk.footprint().of(100)).unwrap();
        disk.store(room, key, Sample::uncharged(fake.expected(key.id))).await.unwrap();
        let direct = Direct::new(vec![dataset], vec![(Source::Disk, disk)]);
        let (sample, source) = direct.read(key, false).now_or_never().expect("no wait").unwrap();
        assert_eq!((sample.bytes(), source), (fake.expected(key.id), Source::Disk));
    }
}
