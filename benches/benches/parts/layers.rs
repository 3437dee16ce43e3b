//! What each layer adds to a sample, over a tier that answers at once.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use criterion::{Criterion, Throughput};
use foreread_layers::{Limited, Metered, RetryPolicy, Retrying, Throttled};
use foreread_tier::{Completion, Completions, Object, ReadRequest, Span, Tier, TierProfile};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::{StreamExt, stream};

/// Answers at once with the same bytes.
#[derive(Debug)]
struct Echo(Bytes);

impl Tier for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn profile(&self) -> &TierProfile {
        const { &TierProfile::new(1) }
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        let bytes = self.0.clone();
        stream::iter(batch)
            .map(move |request| Completion { tag: request.tag, result: Ok(bytes.clone()) })
            .boxed()
    }
}

const BATCH: u32 = 64;

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path: Arc<str> = "train/n01440764/n01440764_10026.JPEG".into();
    let request = |tag: u32| ReadRequest {
        tag,
        key: SampleKey::new(DatasetId(0), SampleId(u64::from(tag))),
        object: Object { path: Arc::clone(&path), size: 100_000, version: None },
        span: Span::Whole,
        due: Tick(u64::from(tag)),
    };
    let echo = || Arc::new(Echo(Bytes::from(vec![0; 100_000])));
    let some = |places| NonZeroUsize::new(places).unwrap_or(NonZeroUsize::MIN);
    let retrying = |tier| Retrying::new(tier, RetryPolicy::default(), 0);
    let throttled = Throttled::new(Arc::new(Metered::new(echo())), NonZeroU64::MAX);
    let tiers: [(&str, Arc<dyn Tier>); 7] = [
        ("bare", echo()),
        ("metered", Arc::new(Metered::new(echo()))),
        ("limited, room for all", Arc::new(Limited::new(echo(), some(1000)))),
        ("limited, 8 places", Arc::new(Limited::new(echo(), some(8)))),
        ("throttled, rate not reached", Arc::new(Throttled::new(echo(), NonZeroU64::MAX))),
        ("retrying, nothing fails", Arc::new(retrying(echo() as Arc<dyn Tier>))),
        ("all four", Arc::new(retrying(Arc::new(Limited::new(Arc::new(throttled), some(1000)))))),
    ];
    let mut group = criterion.benchmark_group("layers, a batch of 64");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    for (name, tier) in &tiers {
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                let answers = tier.read((0..BATCH).map(request).collect());
                runtime.block_on(answers.for_each(|_| std::future::ready(())));
            });
        });
    }
    group.finish();
    Ok(())
}
