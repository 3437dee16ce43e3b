//! Reads outside of the announced order.
//!
//! A sample comes from the fastest cache that has it, else from the origin. Such a read is
//! independent of all others. The price is that two simultaneous requests for one sample read it
//! twice.

use std::future::ready;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{
    CacheTier, ErrorKind, Lifetime, Lookup, ReadBlock, ReadFuture, ReadRequest, Sample, Span, TierError,
};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::cache_stores::{lifetime_in, log_store_error};
use crate::dataset::Dataset;
use crate::locate::location_by_key;
use crate::panics::catch_panic;
use crate::read_results::read_alone;
use crate::report::ReadSource;

/// Reads single samples. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DirectReader {
    datasets: Arc<[Dataset]>,
    caches: Arc<[(ReadSource, Arc<dyn CacheTier>)]>,
}

impl DirectReader {
    /// Reads from these datasets, numbered as in the schedule, through these caches.
    pub fn new(datasets: Vec<Dataset>, caches: Vec<(ReadSource, Arc<dyn CacheTier>)>) -> Self {
        Self { datasets: datasets.into(), caches: caches.into() }
    }

    /// Reads a sample that is used at `due`, and returns its source. With `keep`, a sample from the
    /// origin is stored in the fastest cache with room. Without a plan, the first samples are as
    /// good to keep as any.
    ///
    /// # Errors
    /// If there is no such sample, it cannot be read, its length or checksum is wrong, or a tier
    /// panics.
    ///
    /// # Cancel safety
    /// Dropping the future reads nothing, or reads and stores nothing.
    pub async fn read(
        &self,
        key: SampleKey,
        due: Tick,
        keep: bool,
    ) -> Result<(Sample, ReadSource), TierError> {
        // A panic must not leave the caller without a result.
        catch_panic("engine", self.find(key, due, keep)).await
    }

    /// Reads a sample from the origin, into memory of this lifetime.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Dropping the future cancels the read.
    pub async fn read_for(&self, key: SampleKey, due: Tick, lifetime: Lifetime) -> Result<Bytes, TierError> {
        let read = async {
            let (of, _) = Dataset::find(&self.datasets, key).ok_or_else(|| unknown(key))?;
            match of.read(key, due, lifetime).await.and_then(|bytes| of.checked(key, bytes)) {
                Ok(bytes) => Ok(bytes),
                Err(error) => Err(of.named(key, error).await),
            }
        };
        catch_panic("engine", read).await
    }

    /// Starts to read samples of one block from the origin, as one request where that is possible.
    /// `bytes` are those of the block in its object. Returns their reads, in the order of `ids`.
    ///
    /// # Cancel safety
    /// Dropping the future reads nothing. Dropping all reads cancels the request.
    pub async fn read_block(
        &self,
        dataset: DatasetId,
        ids: Vec<SampleId>,
        (bytes, due): (Range<u64>, Tick),
        lifetime: Lifetime,
    ) -> Vec<ReadFuture> {
        let Some(of) = self.datasets.get(dataset.0 as usize) else {
            let failed = |id| Box::pin(ready(Err(unknown(SampleKey::new(dataset, id))))) as ReadFuture;
            return ids.into_iter().map(failed).collect();
        };
        let located = of.locator.locate_all(ids.clone()).await;
        let reads = located.iter().flatten().filter(|(_, span)| !is_empty(span)).count();
        let block = Arc::new(ReadBlock { bytes, reads });
        let reads = ids.into_iter().zip(located).map(|(id, location)| {
            let key = SampleKey::new(dataset, id);
            // The reads of a block are complete before any of them is polled.
            let read = location.map(|(object, span)| match is_empty(&span) {
                true => Box::pin(ready(Ok(Bytes::new()))) as ReadFuture,
                false => {
                    let (block, server) = (Some(Arc::clone(&block)), of.catalog.server(id));
                    let request = ReadRequest::new(key, object, span, due);
                    of.origin.read(Arc::new(ReadRequest { block, server, lifetime, ..request }))
                }
            });
            let of = of.clone();
            Box::pin(catch_panic("engine", async move {
                let received = match read {
                    Ok(read) => read.await,
                    Err(error) => Err(error),
                };
                match received.and_then(|bytes| of.checked(key, bytes)) {
                    Ok(bytes) => Ok(bytes),
                    Err(error) => Err(of.named(key, error).await),
                }
            })) as ReadFuture
        });
        let reads = reads.collect();
        of.origin.submit();
        reads
    }

    async fn find(&self, key: SampleKey, due: Tick, keep: bool) -> Result<(Sample, ReadSource), TierError> {
        let (of, bytes) = Dataset::find(&self.datasets, key).ok_or_else(|| unknown(key))?;
        for (source, cache) in &*self.caches {
            match cache.lookup(key) {
                Lookup::Ready(sample) => return Ok((sample, *source)),
                Lookup::Absent => {}
                Lookup::Stored => match fetch(&**cache, key, bytes, due).await {
                    Ok(bytes) => return Ok((Sample::uncharged(bytes), *source)),
                    // The origin has it.
                    Err(error) => log_store_error(&**cache, key, &error),
                },
            }
        }
        let lifetime = lifetime_in(self.caches.first().map(|(_, cache)| cache).filter(|_| keep));
        let received = of.read(key, due, lifetime).await;
        let bytes = match received.and_then(|bytes| of.checked(key, bytes)) {
            Ok(bytes) => bytes,
            Err(error) => return Err(of.named(key, error).await),
        };
        let sample = Sample::uncharged(bytes);
        if keep {
            self.keep(key, &sample).await;
        }
        Ok((sample, ReadSource::Origin))
    }

    /// Stores a sample in the fastest cache with room, whose budget then counts it.
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

/// Reads a sample from a cache, and removes it there if the cache has lost it.
async fn fetch(cache: &dyn CacheTier, key: SampleKey, bytes: u64, due: Tick) -> Result<Bytes, TierError> {
    let (object, span) = location_by_key(bytes);
    let received = read_alone(cache, ReadRequest::new(key, object, span, due)).await;
    if received.as_ref().is_err_and(|error| error.kind().is_loss()) {
        cache.remove(vec![key]).await;
    }
    received
}

/// Whether a sample needs no request.
fn is_empty(span: &Span) -> bool {
    matches!(span, Span::Range(range) if range.is_empty())
}

fn unknown(key: SampleKey) -> TierError {
    TierError::new(ErrorKind::Invalid, "catalog").with_detail(format!("there is no sample {key}"))
}

#[cfg(test)]
mod tests {
    use foreread_dataset::Catalog;
    use foreread_tier_testing::{FakeOrigin, StoredCache};
    use futures::FutureExt;

    use super::*;
    use crate::locate::Locator;
    use crate::locate::tests::FakeServer;

    /// A cached sample waited for the catalog's file server, which only the origin needs.
    #[tokio::test]
    // semantics: SAMPLE-20
    async fn cached_sample_needs_no_catalog_look_up() {
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
        let direct = DirectReader::new(vec![dataset], vec![(ReadSource::Disk, disk)]);
        let (sample, source) = direct.read(key, Tick(0), false).now_or_never().expect("no wait").unwrap();
        assert_eq!((sample.bytes(), source), (fake.expected(key.id), ReadSource::Disk));
    }
}
