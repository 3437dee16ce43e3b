//! The cost of the layers per sample without waits:
//! `cargo run --release -p foreread-layers --example stack_cost`.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use foreread_layers::{AdaptivePolicy, Limit, Stack};
use foreread_tier::{Object, OriginTier, ReadFuture, ReadRequest, Span, Tier, TierError, TierProfile};
use foreread_tier_testing::ReadAll;
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};

/// Answers at once.
#[derive(Debug)]
struct InstantOrigin(Bytes);

impl Tier for InstantOrigin {
    fn name(&self) -> &str {
        "instant"
    }

    fn profile(&self) -> &TierProfile {
        const { &TierProfile::new(1024) }
    }

    fn read(&self, _: Arc<ReadRequest>) -> ReadFuture {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }

    fn submit(&self) {}
}

impl OriginTier for InstantOrigin {
    fn place(&self) -> &str {
        "instant"
    }

    fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        stream::empty().boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let error = TierError::new(foreread_tier::ErrorKind::NotFound, "bench").with_object(path);
        Box::pin(std::future::ready(Err(error)))
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

fn main() {
    let bare = Stack::bare().with_retry(Default::default());
    let adaptive = || Some(Limit::adaptive(AdaptivePolicy::default()));
    let fixed = std::num::NonZeroUsize::new(1024).map(Limit::new);
    println!("ns per sample, in batches of:               64       1");
    for (what, stack) in [
        ("no layers", None),
        ("metered, retrying", Some(bare.clone())),
        ("... and a fixed limit", Some(bare.clone().with_limit(fixed))),
        ("... or an adaptive one", Some(bare.clone().with_limit(adaptive()))),
        ("metered, retrying, deadlines", Some(bare.clone().with_deadline(Some(Default::default())))),
        ("metered, retrying, hedges", Some(bare.with_hedge(Some(Default::default())))),
        ("all", Some(Stack::new(0))),
    ] {
        let origin: Arc<dyn OriginTier> = Arc::new(InstantOrigin(Bytes::from(vec![0; 100_000])));
        let tier = stack.map_or(Arc::clone(&origin), |stack| stack.wrap(origin));
        println!("{what:36} {:8.0} {:8.0}", cost(&*tier, 64), cost(&*tier, 1));
    }
}

/// Nanoseconds a sample, the median of several runs.
fn cost(tier: &dyn Tier, batch: u32) -> f64 {
    let object = Object { path: "a/b".into(), size: 100_000, version: None };
    let mut runs: Vec<f64> = (0..9)
        .map(|_| {
            let samples = 200_000 / batch * batch;
            let began = Instant::now();
            for first in (0..samples).step_by(batch as usize) {
                let requests = (0..batch).map(|tag| {
                    let id = u64::from(first + tag);
                    let key = SampleKey::new(DatasetId(0), SampleId(id));
                    ReadRequest::new(key, object.clone(), Span::Whole, Tick(id))
                });
                let answers = tier.read_all(requests.collect()).count().now_or_never();
                assert_eq!(answers, Some(batch as usize), "a read had to wait");
            }
            began.elapsed().as_nanos() as f64 / f64::from(samples)
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}
