use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foreread_preload::layout::{Identity, OpenKind};

use super::super::testing::{Budget, next, state};
use super::*;
use crate::writes::WriteBudget;

#[test]
fn empty_budget_has_no_file_opened() {
    let cache = tempfile::tempdir().unwrap();
    let budget = Arc::new(Budget::default());
    let mut state = state(cache.path(), 1 << 20, &budget, true);
    state.record(1, OpenKind::Absent);
    // The size is known from the file alone, so the first one is opened.
    let job = next(&mut state).unwrap();
    assert!(!state.reserve(&job, 5000));
    for hash in 2..=20 {
        state.record(hash, OpenKind::Absent);
        assert!(next(&mut state).is_none(), "file {hash} is opened");
    }
    // Retries are no further files.
    (0..50).for_each(|_| state.record(1, OpenKind::Absent));
    assert!(next(&mut state).is_none());
    assert_eq!((state.counts().over_budget, budget.tries.load(Ordering::Relaxed)), (20, 1));
    // Once there are bytes again, so are copies.
    budget.give_back(1 << 20);
    state.lacking = state.lacking.map(|(bytes, _)| (bytes, Instant::now()));
    state.record(3, OpenKind::Absent);
    let job = next(&mut state).unwrap();
    assert!(state.reserve(&job, 5000));
}

#[test]
fn full_room_has_no_file_opened() {
    let cache = tempfile::tempdir().unwrap();
    let budget = Arc::new(Budget::default());
    budget.give_back(1 << 40);
    let mut state = state(cache.path(), 3 * 4096, &budget, true);
    state.record(1, OpenKind::Absent);
    let job = next(&mut state).unwrap();
    assert!(state.reserve(&job, 3 * 4096));
    state.record(2, OpenKind::Absent);
    assert!(next(&mut state).is_none());
    assert_eq!(state.counts().no_room, 1);
}

#[test]
// semantics: FILES-4
fn changed_copy_that_is_open_keeps_its_room() {
    let cache = tempfile::tempdir().unwrap();
    let budget = Arc::new(Budget::default());
    let mut state = state(cache.path(), 3 * 4096, &budget, true);
    let path = copy_path(&cache.path().join("copies"), 1, 7);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, [1; 8192]).unwrap();
    let identity = Identity { size: 8192, ..Identity::default() };
    let copy = EarlierCopy { inode: 5, generation: 7, crc32c: 0, changed: 0, identity };
    assert!(state.take_room(8192) && state.adopt(0, copy));
    let open = File::open(&path).unwrap();
    state.record(1, OpenKind::Changed);
    assert_eq!((state.counts().held_bytes, state.counts().copies), (8192, 0));
    assert!(!state.take_room(8192) && path.exists());
    drop(open);
    assert!(state.take_room(8192) && !path.exists());
}
