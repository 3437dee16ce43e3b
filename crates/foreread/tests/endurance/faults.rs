//! Failing origins under a whole run, on a simulated clock: everything is delivered intact, or one
//! clear error names what was not, after all batches before it.

use std::sync::Arc;
use std::time::Duration;

use foreread::{Config, LoadError, Loader, Memory, OnError};
use foreread_tier::ErrorKind;
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, When};
use foreread_types::{DatasetId, SampleId, SampleKey};
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::rig::Fakes;

const SAMPLES: u64 = 20_000;
const BATCH: u64 = 50;
const STALL: Fault = Fault::Stall(Duration::from_secs(5));
const TRANSIENT: Fault = Fault::Error(ErrorKind::Transient);

/// How a run went.
struct Fared {
    ids: Vec<SampleId>,
    error: Option<LoadError>,
    took: Duration,
    faults: u64,
    skipped: u64,
}

fn config(on_error: OnError) -> Config {
    let mut config = Config::default();
    (config.epochs, config.batch_size, config.seed, config.on_error) = (1, BATCH, 5, on_error);
    // As many samples ahead as the default look-ahead has of 100 KB each, a small part of them
    // kept.
    (config.look_ahead, config.memory) = (4_000_000, Memory::Bytes(2_000_000));
    config
}

/// Reads a faulty origin to the end as a trainer does that computes for `compute` on each batch;
/// what is delivered is compared byte by byte.
async fn train(rules: &[(When, Fault)], compute: Duration, on_error: OnError) -> Fared {
    let origin = FakeOrigin::new((0..SAMPLES).map(|id| (format!("{:03}/{id:05}", id / 100), 700 + id % 600)));
    let origin = origin.with_latency(Duration::from_millis(10)).with_parallelism(64);
    let mut failing = FailingTier::new(Arc::new(origin.clone())).with_seed(11);
    for (when, fault) in rules {
        failing = failing.on(when.clone(), fault.clone());
    }
    let failing = Arc::new(failing);
    let registry = Fakes::default().with("fake://train", Arc::clone(&failing) as Arc<_>).registry();
    let builder = Loader::builder_with("fake://train", config(on_error)).registry(registry);
    // The clock is this runtime's.
    let builder = builder.runtime(Handle::current());
    let mut loader = builder.start_async().await.unwrap();
    let (began, mut ids, mut error) = (Instant::now(), Vec::new(), None);
    while let Some(batch) = timeout(Duration::from_secs(3600), loader.next()).await.expect("it hangs") {
        match batch {
            Ok(batch) => {
                for (id, bytes) in batch.iter() {
                    assert_eq!(*bytes, origin.expected(id), "sample {id}");
                    ids.push(id);
                }
                sleep(compute).await;
            }
            Err(found) => error = Some(found),
        }
    }
    let skipped = loader.report().skipped;
    Fared { ids, error, took: began.elapsed(), faults: failing.faults(), skipped }
}

fn order() -> Vec<SampleId> {
    let Config { sampler, seed, .. } = config(OnError::Fail);
    let order = foreread::order::sampler(sampler, SAMPLES, seed).unwrap().order(0).unwrap();
    (0..SAMPLES).map(|at| order.at(at)).collect()
}

/// Every sample comes, in order and intact; how long it took.
async fn delivered(rules: &[(When, Fault)], compute: Duration) -> Duration {
    let fared = train(rules, compute, OnError::Fail).await;
    assert!(fared.error.is_none(), "{rules:?}: {:?}", fared.error);
    assert!(fared.ids == order(), "{rules:?}: other samples, or in another order");
    assert!(rules.is_empty() || fared.faults > 20, "{rules:?}: {} faults", fared.faults);
    println!("{rules:?}, {compute:?} a batch: {:?}", fared.took);
    fared.took
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-15
async fn one_bad_read_in_100_costs_less_than_a_tenth_of_the_time() {
    // With the trainer the bottleneck, and with the origin.
    for compute in [Duration::from_millis(10), Duration::ZERO] {
        let usual = delivered(&[], compute).await.as_secs_f64();
        for fault in [TRANSIENT, Fault::Short, STALL] {
            let took = delivered(&[(When::Chance(0.01), fault.clone())], compute).await.as_secs_f64();
            assert!(took < 1.10 * usual, "{fault:?}: {took} s instead of {usual} s");
        }
    }
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-15
async fn one_read_in_ten_and_bursts_are_delivered() {
    let ten = When::Chance(0.1);
    let burst = |reads| When::Burst { reads, of: 3000 };
    for rules in [
        vec![(ten.clone(), TRANSIENT)],
        vec![(ten.clone(), Fault::Short)],
        vec![(ten, Fault::Error(ErrorKind::Throttled))],
        vec![(burst(200), TRANSIENT)],
        vec![(burst(200), Fault::Short)],
        vec![(burst(50), STALL)],
        vec![(When::Every(51), TRANSIENT), (When::Every(67), Fault::Short), (When::Every(211), STALL)],
        vec![(When::Every(401), Fault::Never)],
    ] {
        delivered(&rules, Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-15
async fn persistent_failure_is_one_error_after_earlier_batches() {
    let order = order();
    let at = 4321;
    let key = SampleKey::new(DatasetId(0), order[at]);
    let path = format!("{:03}/{:05}", key.id.0 / 100, key.id.0);
    for (fault, parts) in [
        (Fault::Short, ["bytes instead of", "after 8 attempts"]),
        (Fault::Long, ["changed since it was indexed", "index the dataset again"]),
        (TRANSIENT, ["transient failure", "after 8 attempts"]),
        (Fault::Never, ["no answer in", "after"]),
        (Fault::Error(ErrorKind::NotFound), ["not found", "index the dataset again"]),
        (Fault::Error(ErrorKind::Denied), ["permission denied", "permission to read it"]),
    ] {
        let fared = train(&[(When::Key(key), fault.clone())], Duration::ZERO, OnError::Fail).await;
        let error = fared.error.unwrap_or_else(|| panic!("{fault:?} was not said"));
        assert_eq!(error.key(), Some(key));
        let text = error.to_string();
        for part in [&*path, parts[0], parts[1]] {
            assert!(text.contains(part) && !text.contains('\n'), "{fault:?}: '{part}' is not in: {text}");
        }
        let before = at - at % BATCH as usize;
        assert!(fared.ids == order[..before], "{fault:?}: all batches before it, and nothing else");
    }
}

/// Wrong lengths that no second try mends: with `skip` all others are delivered, and the count is
/// right.
#[tokio::test(start_paused = true)]
// semantics: FAIL-15
async fn wrong_lengths_are_skipped_where_that_is_chosen_and_counted() {
    let fared = train(&[(When::Chance(0.01), Fault::Long)], Duration::ZERO, OnError::Skip).await;
    assert!(fared.error.is_none() && fared.skipped > 20);
    assert_eq!(fared.skipped, fared.faults);
    let mut left = fared.ids.iter().peekable();
    let missing = order().into_iter().filter(|id| left.next_if_eq(&id).is_none()).count() as u64;
    assert_eq!((missing, left.next()), (fared.skipped, None), "the others come, in their order");
}
