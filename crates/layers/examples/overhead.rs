//! What each layer adds to a sample: `cargo run --release -p foreread-layers --example overhead`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
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
const ROUNDS: u64 = 20_000;

async fn measure(what: &str, tier: &dyn Tier, base: f64) -> f64 {
    let path: Arc<str> = "train/n01440764/n01440764_10026.JPEG".into();
    let request = |tag: u32, round: u64| ReadRequest {
        tag,
        key: SampleKey::new(DatasetId(0), SampleId(round * u64::from(BATCH) + u64::from(tag))),
        object: Object { path: Arc::clone(&path), size: 100_000, version: None },
        span: Span::Whole,
        due: Tick(round * u64::from(BATCH) + u64::from(tag)),
    };
    let mut best = f64::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        for round in 0..ROUNDS / 5 {
            let mut stream = tier.read((0..BATCH).map(|tag| request(tag, round)).collect());
            while let Some(completion) = stream.next().await {
                std::hint::black_box(&completion);
            }
        }
        best = best.min(began.elapsed().as_secs_f64() * 1e9 / (ROUNDS / 5 * u64::from(BATCH)) as f64);
    }
    println!("{what:<44} {best:>7.1} ns a sample, {:>7.1} above the bare tier", best - base);
    best
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let echo = || Arc::new(Echo(Bytes::from(vec![0; 100_000])));
    let some = |places| NonZeroUsize::new(places).unwrap_or(NonZeroUsize::MIN);
    let base = measure("bare", &*echo(), 0.0).await;
    measure("metered", &Metered::new(echo()), base).await;
    measure("limited, room for all", &Limited::new(echo(), some(1000)), base).await;
    measure("limited, 8 places for a batch of 64", &Limited::new(echo(), some(8)), base).await;
    measure("throttled, rate not reached", &Throttled::new(echo(), NonZeroU64::MAX), base).await;
    measure("retrying, nothing fails", &Retrying::new(echo(), RetryPolicy::default(), 0), base).await;
    let throttled = Throttled::new(Arc::new(Metered::new(echo())), NonZeroU64::MAX);
    let limited = Limited::new(Arc::new(throttled), some(1000));
    measure("all four", &Retrying::new(Arc::new(limited), RetryPolicy::default(), 0), base).await;
}
