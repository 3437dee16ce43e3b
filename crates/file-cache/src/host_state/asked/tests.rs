use std::sync::Arc;
use std::time::Duration;

use foreread_preload::layout::{Identity, OpenKind};

use super::super::testing::{Budget, next, state};
use super::super::{CopyJob, HostWork};
use super::*;
use crate::original::Unfit;
use crate::table::EarlierCopy;

fn with_room(cache: &tempfile::TempDir, room: u64) -> HostState {
    let budget = Arc::new(Budget::default());
    crate::writes::WriteBudget::give_back(&*budget, 1 << 40);
    state(cache.path(), room, &budget, false)
}

fn wait(state: &HostState, hash: u64) -> CopyWait {
    state.table.wait(state.table.find(hash).unwrap())
}

/// The next copy of a thread that makes those that programs wait for.
fn next_asked(state: &mut HostState) -> Option<CopyJob> {
    match state.next(true)? {
        HostWork::Copy(job) => Some(job),
        HostWork::Check(_) => None,
    }
}

fn copied(state: &mut HostState, job: &CopyJob, size: u64) {
    let identity = Identity { size, inode: job.hash, ..Identity::default() };
    state.table.watch(&identity);
    let inode = job.hash + 100;
    state.copied(job, EarlierCopy { inode, generation: job.generation, crc32c: 0, changed: 0, identity });
    state.answer(job.copy.file);
}

#[test]
// semantics: FILES-8
fn copy_that_a_program_waits_for_is_made_at_once_and_only_once() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 20);
    assert_eq!(wait(&state, 1), CopyWait::Ask);
    (0..3).for_each(|_| state.record(1, OpenKind::Asked));
    assert_eq!(wait(&state, 1), CopyWait::Coming);
    let job = next_asked(&mut state).unwrap();
    assert!(state.reserve(&job, 5000) && next(&mut state).is_none());
    copied(&mut state, &job, 5000);
    assert_eq!((wait(&state, 1), state.counts().copies), (CopyWait::No, 1));
    // A program that has read the original gets no copy next to it.
    state.record(2, OpenKind::Absent);
    assert!(next(&mut state).is_none() && wait(&state, 2) == CopyWait::Ask);
}

#[test]
fn every_way_without_a_copy_is_an_answer() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 4 * 4096);
    let ask = |state: &mut HostState, hash| {
        state.record(hash, OpenKind::Asked);
        next_asked(state).unwrap()
    };
    let job = ask(&mut state, 1);
    state.is_unfit(&job, Unfit::Fresh);
    state.answer(job.copy.file);
    let job = ask(&mut state, 2);
    assert!(state.reserve(&job, 5000));
    state.release(5000);
    state.failed(&job, false);
    state.answer(job.copy.file);
    // It is larger than the room.
    let job = ask(&mut state, 3);
    assert!(!state.reserve(&job, 5 * 4096));
    state.answer(job.copy.file);
    assert_eq!([1, 2, 3].map(|hash| wait(&state, hash)), [CopyWait::No; 3]);
    let job = ask(&mut state, 4);
    assert!(state.reserve(&job, 4 * 4096));
    copied(&mut state, &job, 4 * 4096);
    // No room is left. The answer comes at once, and others do not ask for some time.
    let now = Instant::now();
    state.record(5, OpenKind::Asked);
    assert!(next_asked(&mut state).is_none());
    assert_eq!((wait(&state, 5), state.counts().no_room), (CopyWait::No, 2));
    assert!(state.asks_from > now + Duration::from_millis(500));
}

#[test]
fn large_file_is_copied_in_a_later_epoch() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 40);
    for hash in 1..=20 {
        state.record(hash, OpenKind::Asked);
        let job = next_asked(&mut state).unwrap();
        assert!(!state.reserve(&job, MOST_AWAITED + 1));
        assert_eq!(wait(&state, hash), CopyWait::No);
        state.answer(job.copy.file);
    }
    assert!(next(&mut state).is_none());
    // The next epoch.
    (1..=2).for_each(|hash| state.record(hash, OpenKind::Absent));
    let job = next(&mut state).unwrap();
    assert!(job.copy.is_ahead && state.reserve(&job, MOST_AWAITED + 1));
    assert_eq!(wait(&state, job.hash), CopyWait::No, "programs do not wait for it");
}

#[test]
fn file_that_is_copied_ahead_is_waited_for() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 20);
    for hash in 1..=20 {
        state.record(hash, OpenKind::Asked);
        let job = next_asked(&mut state).unwrap();
        state.is_unfit(&job, Unfit::Fresh);
        state.answer(job.copy.file);
    }
    (1..=2).for_each(|hash| state.record(hash, OpenKind::Absent));
    let asks = (3..=20).filter(|hash| wait(&state, *hash) == CopyWait::Ask).count();
    assert_eq!(asks, 18, "each epoch may ask anew");
    let job = next(&mut state).unwrap();
    assert_eq!((job.copy.is_ahead, wait(&state, job.hash)), (true, CopyWait::Coming));
    state.record(job.hash, OpenKind::Asked);
    assert!(next_asked(&mut state).is_none(), "it is read once");
}
