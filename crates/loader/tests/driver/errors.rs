//! The contents of errors: sample, path, tier and remedy.

use std::sync::Arc;

use foreread_dataset::{Catalog, DatasetErrorKind};
use foreread_loader::{LoadErrorKind, OnError, ReadSource};
use foreread_oracle::Sequential;
use foreread_tier::{ErrorKind, ReadRequest, Tier, TierError};
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, StoredCache, When};
use foreread_types::{SampleId, SampleKey};
use futures::FutureExt;

use crate::rig::{Custom, Rig, next};

async fn failure(rig: &Rig) -> foreread_loader::LoadError {
    let mut loader = rig.start();
    loop {
        if let Err(error) = next(&mut loader).await.expect("an error before the end") {
            return error;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn error_names_sample_path_tier_and_remedy() {
    let cases = [
        (Fault::Error(ErrorKind::NotFound), ErrorKind::NotFound, "index the dataset again"),
        (Fault::Error(ErrorKind::Denied), ErrorKind::Denied, "permission"),
        (Fault::Error(ErrorKind::Expired), ErrorKind::Expired, "renew the credentials"),
        (Fault::Error(ErrorKind::Corrupt), ErrorKind::Corrupt, "skipped or substituted"),
        (Fault::Short, ErrorKind::Changed, "index the dataset again"),
        (Fault::Long, ErrorKind::Changed, "index the dataset again"),
    ];
    for (fault, kind, remedy) in cases {
        let fake = FakeOrigin::uniform(200, 100).with_name("store");
        let key = SampleKey::new(Default::default(), SampleId(117));
        let rig = Rig::new(fake.clone()).origin(FailingTier::new(Arc::new(fake)).on(When::Key(key), fault));
        let error = failure(&rig).await;
        assert_eq!((error.kind(), error.key()), (LoadErrorKind::Sample(kind), Some(key)));
        let text = error.to_string();
        for part in ["sample 117 (epoch 0)", "store: 00001/00000117", kind.as_str(), remedy] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains('\n'));
    }
}

/// Only the latest of the tolerated errors are kept.
#[tokio::test(start_paused = true)]
async fn final_error_names_its_own_sample_after_many() {
    const SAMPLES: u64 = 20_000;
    let fake = FakeOrigin::uniform(SAMPLES, 10).with_name("store");
    let inner = fake.clone();
    // All samples fail but one of each batch, and all of the last batch.
    let is_bad = |id: SampleId| id.0 % 8 != 7 || id.0 + 8 >= SAMPLES;
    let failing = Custom(move |request: Arc<ReadRequest>| {
        let is_bad = is_bad(request.key.id);
        let error = || TierError::new(ErrorKind::Denied, "store");
        inner.read(request).map(move |result| if is_bad { Err(error()) } else { result })
    });
    let sampler = Arc::new(Sequential::new(SAMPLES).unwrap());
    let rig = Rig { sampler, on_error: OnError::Substitute, look_ahead: 10_000, ..Rig::new(fake) };
    let error = failure(&rig.origin(failing)).await;
    assert_eq!(error.kind(), LoadErrorKind::Sample(ErrorKind::Denied));
    assert_eq!(error.key().map(|key| key.id), Some(SampleId(SAMPLES - 8)));
}

/// A run that skips bad samples would have skipped the rest and succeeded.
#[tokio::test(start_paused = true)]
// semantics: SAMPLE-20
async fn truncated_catalog_ends_the_run_under_every_policy() {
    const SAMPLES: u64 = 2000;
    for on_error in [OnError::Fail, OnError::Skip, OnError::Substitute] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.foreread");
        let mut rig = Rig { look_ahead: 10_000, on_error, ..Rig::new(FakeOrigin::uniform(SAMPLES, 100)) };
        rig.listed().save(&path).unwrap();
        rig.catalog = Some(Catalog::open(&path).unwrap());
        let mut loader = rig.start();
        rig.check(&next(&mut loader).await.unwrap().unwrap());
        std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        let error = loop {
            match next(&mut loader).await.expect("an error before the end") {
                Ok(batch) => assert_eq!(rig.check(&batch).len() as u64, rig.batch_size),
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), error.key()), (LoadErrorKind::Catalog, None));
        assert_eq!(error.dataset_kind(), Some(DatasetErrorKind::Changed));
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
        assert_eq!(loader.report().skipped, 0);
    }
}

/// Samples on disk were looked up in the catalog's file, and were lost with it.
#[tokio::test(start_paused = true)]
// semantics: SAMPLE-20
async fn cached_samples_are_read_without_the_catalogs_file() {
    const SAMPLES: u64 = 200;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.foreread");
    let disk = Arc::new(StoredCache::new(1 << 20));
    let mut rig = Rig { look_ahead: 10_000, ..Rig::new(FakeOrigin::uniform(SAMPLES, 100)) }.cache(
        ReadSource::Disk,
        Arc::clone(&disk) as _,
        1 << 20,
    );
    rig.listed().save(&path).unwrap();
    rig.catalog = Some(Catalog::open(&path).unwrap());
    let mut loader = rig.start();
    let mut batches = 0;
    while let Some(batch) = next(&mut loader).await {
        rig.check(&batch.unwrap());
        batches += 1;
        if batches == SAMPLES / rig.batch_size {
            // The first epoch is over.
            assert_eq!(disk.len() as u64, SAMPLES);
            std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        }
    }
    assert_eq!(batches, 2 * SAMPLES / rig.batch_size);
    assert_eq!(loader.report().passes[1].reads.from(ReadSource::Disk).samples, SAMPLES);
}

/// The run ended with the disk's error, which users cannot act on.
#[tokio::test(start_paused = true)]
// semantics: SAMPLE-20
async fn catalog_error_after_a_cache_error_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.foreread");
    let failing = FailingTier::new(Arc::new(StoredCache::new(1 << 20)))
        .on(When::Always, Fault::Error(ErrorKind::Transient));
    let rig = Rig { look_ahead: 10_000, ..Rig::new(FakeOrigin::uniform(200, 100)) };
    let mut rig = rig.cache(ReadSource::Disk, Arc::new(failing), 1 << 20);
    rig.listed().save(&path).unwrap();
    rig.catalog = Some(Catalog::open(&path).unwrap());
    let mut loader = rig.start();
    // The first epoch stores everything.
    for _ in 0..25 {
        rig.check(&next(&mut loader).await.unwrap().unwrap());
    }
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    let error = loop {
        if let Err(error) = next(&mut loader).await.expect("an error before the end") {
            break error;
        }
    };
    assert_eq!((error.kind(), error.key()), (LoadErrorKind::Catalog, None), "{error}");
}

#[tokio::test(start_paused = true)]
async fn object_changed_between_epochs_names_the_epoch() {
    let rig = Rig { look_ahead: 1_000, ..Rig::new(FakeOrigin::uniform(50, 100)) };
    let mut loader = rig.start();
    for _ in 0..7 {
        rig.check(&next(&mut loader).await.unwrap().unwrap());
    }
    let last = *rig.ids().last().unwrap();
    rig.fake.change(last, 101);
    let error = loop {
        if let Err(error) = next(&mut loader).await.unwrap() {
            break error;
        }
    };
    assert_eq!(error.kind(), LoadErrorKind::Sample(ErrorKind::Changed));
    assert!(error.to_string().contains("(epoch 1)"), "{error}");
}
