//! Two tiers on one directory.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use foreread_local::disk::{self, Access, CleanRule, DiskTier, WhenOwned};
use foreread_tier::{CacheTier, ErrorKind, HeapBuffers};
use foreread_tier_testing::until;
use foreread_types::{DatasetId, DatasetIdentity};

use crate::rig::{config, dataset, is_stored, known, open, open_as, place, read, run, sample, store, verify};

#[test]
fn second_tier_is_refused_with_the_owners_process_id() {
    let directory = tempfile::tempdir().unwrap();
    let _owner = open(directory.path(), 8 << 20);
    let error = open_as(config(directory.path(), 8 << 20).when_owned(WhenOwned::Refuse)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(directory.path().to_str().unwrap()), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert_eq!(error.kind(), ErrorKind::Other);
}

#[test]
fn second_tier_reads_the_cache_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let owner = open(directory.path(), 8 << 20);
    run(async {
        for id in 0..20 {
            store(&owner, &known(id)).await.unwrap().unwrap();
        }
        let reader = open_as(config(directory.path(), 8 << 20)).unwrap();
        assert_eq!(reader.access(), [Access::ReadOnly]);
        assert_eq!(verify(&reader, known).await, 20);
        assert!(reader.reserve(4096).is_none() && reader.capacity() == 0);
        // The reader sees samples that the owner adds and removes.
        store(&owner, &known(30)).await.unwrap().unwrap();
        owner.remove(vec![known(3).key, known(4).key]).await;
        reader.refresh();
        assert_eq!(verify(&reader, known).await, 19);
        assert!(is_stored(&reader, &known(30)) && !is_stored(&reader, &known(3)));
        // Removed and not seen yet: absent or corrupt, never wrong.
        owner.remove(vec![known(5).key]).await;
        store(&owner, &known(31)).await.unwrap().unwrap();
        assert!(read(&reader, &known(5)).await.is_err() && !is_stored(&reader, &known(5)));
        reader.remove(vec![known(6).key]).await;
        assert!(!is_stored(&reader, &known(6)) && is_stored(&owner, &known(6)));
        assert_eq!(verify(&owner, known).await, 19);
    });
}

#[test]
fn reader_follows_an_owner_that_writes_later() {
    let directory = tempfile::tempdir().unwrap();
    let owner = open(directory.path(), 8 << 20);
    let reader = open_as(config(directory.path(), 8 << 20)).unwrap();
    run(store(&owner, &known(9))).unwrap().unwrap();
    until("the reader follows", || is_stored(&reader, &known(9)));
    assert_eq!(run(read(&reader, &known(9))).unwrap(), known(9).content);
}

#[test]
fn list_and_clean_keep_caches_in_use() {
    let directory = tempfile::tempdir().unwrap();
    assert!(disk::list(directory.path()).unwrap().is_empty());
    assert!(disk::list(&directory.path().join("no/such")).is_err());
    let owner = open(directory.path(), 8 << 20);
    run(async {
        for id in 0..10 {
            store(&owner, &known(id)).await.unwrap().unwrap();
        }
    });
    let entries = disk::list(directory.path()).unwrap();
    assert_eq!(entries.iter().map(|entry| entry.samples).collect::<Vec<_>>(), [10, 0]);
    for entry in &entries {
        assert!(entry.in_use && entry.owner == Some(std::process::id()));
        assert!(entry.last_used.elapsed().unwrap() < Duration::from_secs(60));
    }
    assert!(entries[0].bytes > 100_000);
    assert!(disk::clean(directory.path(), &CleanRule::all()).unwrap().is_empty());
    let reader = open_as(config(directory.path(), 8 << 20)).unwrap();
    drop(owner);
    assert!(disk::clean(directory.path(), &CleanRule::all()).unwrap().is_empty(), "a reader uses it");
    assert_eq!(disk::list(directory.path()).unwrap()[0].owner, None);
    drop(reader);
    assert!(disk::clean(directory.path(), &CleanRule::default()).unwrap().is_empty());
    assert!(
        disk::clean(directory.path(), &CleanRule::older_than(Duration::from_secs(60))).unwrap().is_empty()
    );
    let removed = disk::clean(directory.path(), &CleanRule::dataset(DatasetIdentity(1))).unwrap();
    assert_eq!(removed.iter().map(|removed| removed.identity).collect::<Vec<_>>(), [DatasetIdentity(1)]);
    assert!(removed[0].bytes > 100_000);
    let lock = place(directory.path(), 2).join("lock");
    let old = SystemTime::now() - Duration::from_secs(100);
    std::fs::File::options().write(true).open(lock).unwrap().set_modified(old).unwrap();
    assert_eq!(
        disk::clean(directory.path(), &CleanRule::older_than(Duration::from_secs(60))).unwrap().len(),
        1
    );
    let tier = open(directory.path(), 8 << 20);
    assert_eq!(tier.stored(DatasetId(0)).samples, 0);
}

#[test]
// semantics: DISK-19
fn list_has_the_last_location_of_each_dataset() {
    let directory = tempfile::tempdir().unwrap();
    let locations = || disk::list(directory.path()).unwrap().into_iter().map(|entry| entry.location);
    let open_at = |location: &str| {
        let locations = vec![(DatasetIdentity(1), location.to_owned())];
        drop(open_as(config(directory.path(), 8 << 20).with_locations(locations)).unwrap());
    };
    for location in ["s3://bucket/train", "/data", "/data"] {
        open_at(location);
        assert_eq!(locations().collect::<Vec<_>>(), [Some(location.to_owned()), None]);
    }
    // A text that is longer than a block, or no line, is not stored.
    open_at(&"x".repeat(5000));
    open_at("/a\n/b");
    assert_eq!(locations().next().unwrap().as_deref(), Some("/data"));
    std::fs::write(place(directory.path(), 1).join("lock"), [0xff, 0xfe]).unwrap();
    assert_eq!(locations().next().unwrap(), None);
}

/// The owner of the directory has another dataset. A later owner stores the reader's.
#[test]
// semantics: DISK-19
fn cache_that_a_reader_found_later_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let open_with = |print| {
        DiskTier::open(config(directory.path(), 8 << 20), &[dataset(print)], Arc::new(HeapBuffers)).unwrap()
    };
    let owner = open_with(1);
    let reader = open_with(2);
    assert_eq!(reader.access(), [Access::ReadOnly]);
    drop(owner);
    let other = open_with(2);
    run(store(&other, &known(9))).unwrap().unwrap();
    drop(other);
    assert!(!disk::list(directory.path()).unwrap().is_empty()); // waits for the last writes
    reader.refresh();
    assert!(is_stored(&reader, &known(9)));
    assert!(disk::clean(directory.path(), &CleanRule::all()).unwrap().is_empty(), "the reader uses it");
    assert_eq!(run(read(&reader, &known(9))).unwrap(), known(9).content);
    drop(reader);
    assert_eq!(disk::clean(directory.path(), &CleanRule::all()).unwrap().len(), 1);
}

#[test]
fn reader_follows_an_owner_that_reuses_a_segment_number() {
    let directory = tempfile::tempdir().unwrap();
    let config = || config(directory.path(), 32 << 20).with_segment(1 << 20);
    let owner = open_as(config()).unwrap();
    let big = |id| sample(id, 300_000);
    let segment = place(directory.path(), 1).join("00000.segment");
    run(async {
        for id in 0..6 {
            store(&owner, &big(id)).await.unwrap().unwrap();
        }
        let reader = open_as(config()).unwrap();
        assert_eq!(read(&reader, &big(0)).await.unwrap(), big(0).content);
        owner.remove((0..3).map(|id| big(id).key).collect()).await;
        assert!(!segment.exists(), "emptied and removed");
        for id in 6..12 {
            store(&owner, &big(id)).await.unwrap().unwrap();
        }
        assert!(segment.exists(), "its number is used again");
        reader.refresh();
        assert_eq!(verify(&reader, big).await, 9);
        assert_eq!(reader.counts().corrupt, 0);
    });
}
