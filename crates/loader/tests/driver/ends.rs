//! The end of runs that cannot continue: an error with its cause, and never a hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use foreread_loader::{LoadErrorKind, Loader, ReadSource};
use foreread_oracle::{OracleError, Order, Sampler, Sequential};
use foreread_tier::{
    CacheTier, Charge, ErrorKind, Lookup, ReadFuture, ReadRequest, Sample, Tier, TierError, TierProfile,
};
use foreread_tier_testing::{FailingTier, Fault, StoredCache, When, until};
use foreread_types::{Fingerprint, Footprint, SampleId, SampleKey};
use futures::future::{Ready, pending};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::rig::{Custom, Rig, mixed, next};

const LONG: Duration = Duration::from_secs(3600);

/// Takes batches up to the error, which must come soon. Returns their number, and the error's kind
/// and text.
async fn until_error(loader: &mut Loader) -> (usize, LoadErrorKind, String) {
    let mut batches = 0;
    loop {
        match next(loader).await.expect("an error before the end") {
            Ok(_) => batches += 1,
            Err(error) => {
                assert!(loader.next().await.is_none(), "after an error the run is over");
                return (batches, error.kind(), error.to_string());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_read_delays_only_its_batch_and_no_drop() {
    let fake = mixed(64, 37, 1_000).with_latency(Duration::from_millis(1));
    let key = fake.request(SampleId(9), Default::default()).key;
    let failing = FailingTier::new(Arc::new(fake.clone())).on(When::Key(key), Fault::Never);
    let rig = Rig::new(fake).origin(failing);
    let at = rig.ids().iter().position(|&id| id == SampleId(9)).unwrap();
    let mut loader = rig.start();
    for _ in 0..at / 8 {
        rig.check(&next(&mut loader).await.unwrap().unwrap());
    }
    assert!(timeout(LONG, loader.next()).await.is_err());
    drop(loader);
    tokio::time::sleep(LONG).await;
    assert_eq!(rig.fake.counts().tally().in_flight, 0);
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-19, FAIL-22
async fn panicking_tier_is_named() {
    let fake = mixed(64, 37, 1_000);
    let inner = fake.clone();
    let left = Arc::new(AtomicUsize::new(20));
    let answering = Custom(move |request| {
        let left = Arc::clone(&left);
        inner.read(request).inspect(move |_| {
            assert!(left.fetch_sub(1, Ordering::Relaxed) != 1, "on the twentieth");
        })
    });
    let (batches, kind, text) = until_error(&mut Rig::new(fake.clone()).origin(answering).start()).await;
    assert_eq!((batches, kind), (2, LoadErrorKind::Sample(ErrorKind::Closed)));
    assert!(text.contains("custom: 0") && text.contains("the tier panicked: on the twentieth"), "{text}");

    let reading = Custom(|_| -> Ready<_> { panic!("at once") });
    let (batches, kind, text) = until_error(&mut Rig::new(fake).origin(reading).start()).await;
    assert_eq!((batches, kind), (0, LoadErrorKind::Sample(ErrorKind::Closed)));
    assert!(text.contains("custom") && text.contains("the tier panicked: at once"), "{text}");
}

/// A disk that panics in the given call.
#[derive(Debug)]
struct PanickingCache {
    inner: StoredCache,
    at: &'static str,
    panics: AtomicUsize,
}

impl PanickingCache {
    fn at(&self, call: &str) {
        if call == self.at {
            self.panics.fetch_add(1, Ordering::Relaxed);
            panic!("of {call}");
        }
    }
}

impl Tier for PanickingCache {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.at("read");
        self.inner.read(request)
    }

    fn submit(&self) {
        self.inner.submit();
    }
}

#[async_trait]
impl CacheTier for PanickingCache {
    fn footprint(&self) -> Footprint {
        self.inner.footprint()
    }

    fn read_memory(&self) -> Footprint {
        self.inner.read_memory()
    }

    fn keeps_memory(&self) -> bool {
        self.inner.keeps_memory()
    }

    fn lookup(&self, key: SampleKey) -> Lookup {
        self.at("lookup");
        self.inner.lookup(key)
    }

    fn reserve(&self, bytes: u64) -> Option<Charge> {
        self.at("reserve");
        self.inner.reserve(bytes)
    }

    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
        self.at("store");
        tokio::task::yield_now().await;
        self.at("end of a store");
        self.inner.store(room, key, sample).await
    }

    async fn remove(&self, keys: Vec<SampleKey>) {
        self.at("remove");
        self.inner.remove(keys).await;
    }
}

/// A panic in a look-up ended the run with a question: "did a tier panic?".
#[tokio::test(start_paused = true)]
// semantics: FAIL-19
async fn panicking_cache_is_reported_or_costs_one_sample() {
    for (at, is_end) in
        [("lookup", true), ("reserve", true), ("store", false), ("end of a store", false), ("read", false)]
    {
        let cache = PanickingCache { inner: StoredCache::new(1 << 20), at, panics: AtomicUsize::new(0) };
        let cache = Arc::new(cache);
        let rig = Rig::new(mixed(64, 37, 1_000)).cache(ReadSource::Disk, Arc::clone(&cache) as _, 1 << 20);
        let mut loader = rig.start();
        if is_end {
            let (_, kind, text) = until_error(&mut loader).await;
            assert_eq!(kind, LoadErrorKind::Panic, "{text}");
            assert!(text.contains(&format!("of {at}")), "{text}");
        } else {
            assert_eq!(rig.check_all(&mut loader).await, 16, "{at}");
        }
        assert!(cache.panics.load(Ordering::Relaxed) > 0, "{at}");
    }
}

/// Sequential, up to an epoch for which it fails.
#[derive(Debug)]
struct FailingSampler {
    inner: Sequential,
    panics: bool,
    requested: AtomicUsize,
}

impl Sampler for FailingSampler {
    fn population(&self) -> u64 {
        self.inner.population()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn is_distinct(&self) -> bool {
        true
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        self.requested.fetch_add(1, Ordering::Relaxed);
        if epoch < 2 {
            return self.inner.order(epoch);
        }
        assert!(!self.panics, "too tired");
        Err(OracleError::custom("epoch 2 is too much"))
    }

    fn fingerprint(&self) -> Fingerprint {
        self.inner.fingerprint()
    }
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-20
async fn failed_order_ends_the_run_after_earlier_epochs() {
    for panics in [false, true] {
        let inner = Sequential::new(40).unwrap();
        let sampler = Arc::new(FailingSampler { inner, panics, requested: AtomicUsize::new(0) });
        let fake = mixed(40, 37, 1_000).with_latency(Duration::from_millis(5));
        let rig = Rig { sampler: Arc::clone(&sampler) as _, epochs: 5, look_ahead: 20_000, ..Rig::new(fake) };
        let (batches, kind, text) = until_error(&mut rig.start()).await;
        assert_eq!((batches, kind), (10, LoadErrorKind::Order), "{text}");
        assert!(
            text.contains(if panics { "the sampler panicked: too tired" } else { "epoch 2 is too much" }),
            "{text}"
        );
        assert_eq!(sampler.requested.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn runtime_shutdown_ends_the_run() {
    let runtime = Runtime::new().unwrap();
    let fake = mixed(64, 37, 1_000);
    let reads = Arc::new(AtomicUsize::new(0));
    let begun = Arc::clone(&reads);
    let silent = Custom(move |_| {
        begun.fetch_add(1, Ordering::Relaxed);
        pending()
    });
    let loader = Rig::new(fake).origin(silent).start_on(runtime.handle());
    let trainer = std::thread::spawn(move || loader.batches().next());
    until("reads begin", || reads.load(Ordering::Relaxed) > 0);
    drop(runtime);
    let error = trainer.join().unwrap().expect("an error").unwrap_err();
    assert_eq!(error.kind(), LoadErrorKind::Stopped);
}
