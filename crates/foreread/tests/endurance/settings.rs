//! Settings of a Rust program: policies against outages, settings of storage backends,
//! configurations with setters.

use std::sync::Arc;
use std::time::Duration;

use foreread::policy::{DeadlinePolicy, RetryPolicy};
use foreread::{Builder, Config, ErrorKind, LoadError, Loader, Memory};
use foreread_tier::ErrorKind as TierErrorKind;
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, When};
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::rig::Fakes;
use crate::small::{builder, origin};

const SAMPLES: u64 = 200;

/// Longer than the default patience of two minutes.
const OUTAGE: Duration = Duration::from_secs(600);

/// Reads an origin that does not answer at first, with policies that `set` chooses: the number of
/// samples that arrived, the error that ended the run, and the simulated time that it took.
async fn outage(fault: Fault, set: impl FnOnce(Builder) -> Builder) -> (u64, Option<LoadError>, Duration) {
    let origin = FakeOrigin::uniform(SAMPLES, 500).with_latency(Duration::from_millis(10));
    let began = Instant::now();
    let failing = FailingTier::new(Arc::new(origin)).on(When::Before(began + OUTAGE), fault);
    let fakes = Fakes::default().with("fake://train", Arc::new(failing));
    let builder = Loader::builder("fake://train").registry(fakes.registry()).epochs(1).batch_size(10);
    // The clock is this runtime's.
    let builder = builder.memory(Memory::Bytes(0)).runtime(Handle::current());
    let mut loader = set(builder).start_async().await.unwrap();
    let (mut samples, mut error) = (0, None);
    while let Some(batch) = loader.next().await {
        match batch {
            Ok(batch) => samples += batch.iter().count() as u64,
            Err(found) => error = Some(found),
        }
    }
    (samples, error, began.elapsed())
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-29
async fn longer_outage_than_the_default_is_survived_by_patience() {
    let down = || Fault::Error(TierErrorKind::Transient);
    let (samples, error, _) = outage(down(), |builder| builder).await;
    assert_eq!(samples, 0);
    assert!(error.is_some(), "the default gives up, or this test shows nothing");
    let (samples, error, _) = outage(down(), |builder| builder.patience(2 * OUTAGE)).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(samples, SAMPLES);
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-29
async fn short_patience_and_deadline_end_a_run_early() {
    let second = Duration::from_secs(1);
    let retry = RetryPolicy::default().with_patience(second);
    let (_, error, took) =
        outage(Fault::Error(TierErrorKind::Transient), |builder| builder.retry(retry)).await;
    assert!(error.is_some() && took < 2 * second, "{took:?}");
    // A store that never answers: 30 s pass before the default deadline, and no hedge answers
    // either.
    let deadline = DeadlinePolicy::default().with_floor(second / 10);
    let set = |builder: Builder| builder.retry(retry).deadline(deadline).hedge(None);
    let (_, error, took) = outage(Fault::Never, set).await;
    assert!(error.is_some() && took < 3 * second, "{took:?}");
    let none = DeadlinePolicy::default().with_floor(Duration::ZERO);
    let error = builder(&origin(3)).epochs(1).deadline(none).start_async().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[test]
// semantics: FAIL-30
fn setters_change_a_configuration_and_drop_nothing() {
    let mut config = Config::default();
    (config.epochs, config.seed, config.batch_size) = (3, 7, 5);
    let fakes = Fakes::default().with("fake://train", Arc::new(origin(20)));
    let builder = Loader::builder_with("fake://train", config).registry(fakes.registry()).batch_size(4);
    let ready = builder.origin_parallelism(2).origin_limit(1 << 30).prepare().unwrap();
    let config = ready.prepared().config();
    assert_eq!((config.epochs, config.seed, config.batch_size), (3, 7, 4));
    assert_eq!((config.origin_parallelism, config.origin_limit), (Some(2), Some(1 << 30)));
}

#[test]
// semantics: FAIL-30
fn epochs_without_a_number_are_an_error_that_names_them() {
    let error = builder(&origin(3)).prepare().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().starts_with("epochs: "), "{error}");
    // A source has no epochs of its own.
    builder(&origin(3)).source().unwrap();
}

#[test]
// semantics: FAIL-28
fn unknown_storage_options_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "a").unwrap();
    let builder = || Loader::builder(directory.path().to_str().unwrap()).epochs(1);
    let error = builder().storage_option("profile", "x").prepare().unwrap_err();
    assert!(error.to_string().contains("profile"), "{error}");
    let validated = builder().validate(directory.path().to_str().unwrap());
    assert!(validated.validate_storage_option("profile", "x").prepare().is_err());
}

#[cfg(feature = "s3")]
mod accounts {
    use foreread::{Builder, Loader, Memory};
    use foreread_tier::ErrorKind as TierErrorKind;
    use foreread_tier_testing::store::{HttpStore, NumberedObjects};

    const SAMPLES: u64 = 40;

    /// A store with one bucket, which lets one account in.
    fn store(account: &str, bytes: u64) -> (HttpStore, NumberedObjects) {
        let (store, objects) = (HttpStore::start(), NumberedObjects::new(SAMPLES, bytes));
        store.numbered("train", objects.clone());
        store.allow(account);
        (store, objects)
    }

    fn builder(store: &HttpStore, account: &str) -> Builder {
        Loader::builder("s3://train")
            .storage_option("endpoint", store.endpoint())
            .storage_option("access_key_id", account)
            .storage_option("secret_access_key", "secret")
            .memory(Memory::Bytes(0))
            .epochs(1)
            .batch_size(10)
    }

    /// All samples of a run, by dataset and id, with whether they are those of its store.
    fn read(loader: Loader, stores: &[&NumberedObjects]) -> u64 {
        let mut count = 0;
        for batch in &loader {
            let batch = batch.unwrap();
            let objects = stores[batch.dataset().0 as usize];
            for (id, bytes) in batch.iter() {
                assert_eq!(*bytes, objects.bytes(id.0), "sample {id}");
                count += 1;
            }
        }
        count
    }

    #[test]
    // semantics: FAIL-28
    fn two_accounts_read_two_buckets_in_one_process() {
        let ((one, ones), (two, twos)) = (store("one", 700), store("two", 900));
        let first = builder(&one, "one").start().unwrap();
        let second = builder(&two, "two").start().unwrap();
        assert_eq!((read(first, &[&ones]), read(second, &[&twos])), (SAMPLES, SAMPLES));
        let error = builder(&one, "two").start().unwrap_err();
        assert_eq!(error.tier_kind(), Some(TierErrorKind::Denied), "{error}");
    }

    #[test]
    // semantics: FAIL-28
    fn validation_data_have_an_account_of_their_own() {
        let ((one, ones), (two, twos)) = (store("one", 700), store("two", 900));
        let both = || builder(&one, "one").validate("s3://train");
        let validated = both()
            .validate_storage_option("endpoint", two.endpoint())
            .validate_storage_option("access_key_id", "two")
            .validate_storage_option("secret_access_key", "secret");
        assert_eq!(read(validated.start().unwrap(), &[&ones, &twos]), 2 * SAMPLES);
    }

    #[test]
    // semantics: FAIL-28
    fn unknown_option_of_a_bucket_lists_the_known_ones() {
        let (one, _) = store("one", 700);
        let error = builder(&one, "one").storage_option("acces_key", "x").prepare().unwrap_err().to_string();
        assert!(error.contains("acces_key") && error.contains("secret_access_key"), "{error}");
    }
}
