//! The cost of each layer per sample, over a tier that responds immediately.

use std::future::ready;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use criterion::{Criterion, Throughput};
use foreread_layers::{Bandwidth, Limit, RetryPolicy, Stack};
use foreread_tier::{
    ErrorKind, Object, OriginTier, ReadFuture, ReadRequest, Span, Tier, TierError, TierProfile,
};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};

/// A tier that responds immediately with the same bytes.
#[derive(Debug)]
struct Echo(Bytes);

impl Tier for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn profile(&self) -> &TierProfile {
        const { &TierProfile::new(1) }
    }

    fn read(&self, _: Arc<ReadRequest>) -> ReadFuture {
        Box::pin(ready(Ok(self.0.clone())))
    }

    fn submit(&self) {}
}

impl OriginTier for Echo {
    fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        futures::stream::empty().boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        Box::pin(ready(Err(TierError::new(ErrorKind::NotFound, "echo").with_object(path))))
    }

    fn place(&self) -> &str {
        "echo"
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

const BATCH: u32 = 64;

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path: Arc<str> = "train/n01440764/n01440764_10026.JPEG".into();
    let request = |id: u32| {
        ReadRequest::new(
            SampleKey::new(DatasetId(0), SampleId(u64::from(id))),
            Object { path: Arc::clone(&path), size: 100_000, version: None },
            Span::Whole,
            Tick(u64::from(id)),
        )
    };
    let echo = || Arc::new(Echo(Bytes::from(vec![0; 100_000]))) as Arc<dyn OriginTier>;
    let some = |places| NonZeroUsize::new(places).unwrap_or(NonZeroUsize::MIN);
    let bare = Stack::bare;
    let all = Stack::bare()
        .with_retry(RetryPolicy::default())
        .with_limit(Some(Limit::new(some(1000))))
        .with_bandwidth(Some(Bandwidth::new(NonZeroU64::MAX)));
    let tiers: [(&str, Arc<dyn OriginTier>); 7] = [
        ("bare", echo()),
        ("metered", bare().wrap(echo())),
        ("limited, limit not reached", bare().with_limit(Some(Limit::new(some(1000)))).wrap(echo())),
        ("limited to 8", bare().with_limit(Some(Limit::new(some(8)))).wrap(echo())),
        ("bandwidth not reached", bare().with_bandwidth(all.bandwidth.clone()).wrap(echo())),
        ("retried, nothing fails", bare().with_retry(RetryPolicy::default()).wrap(echo())),
        ("all four", all.wrap(echo())),
    ];
    let mut group = criterion.benchmark_group("layers, a batch of 64");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    for (name, tier) in &tiers {
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                let reads: FuturesUnordered<_> =
                    (0..BATCH).map(|id| tier.read(Arc::new(request(id)))).collect();
                tier.submit();
                runtime.block_on(reads.for_each(|_| ready(())));
            });
        });
    }
    group.finish();
    Ok(())
}
