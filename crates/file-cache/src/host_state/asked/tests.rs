use std::sync::Arc;
use std::time::Duration;

use foreread_preload::layout::{Identity, OpenKind};

use super::super::CopyJob;
use super::super::testing::{Budget, next, state};
use super::*;
use crate::listing::ListedFile;
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

fn copied(state: &mut HostState, job: &CopyJob, size: u64) {
    let identity = Identity { size, inode: job.hash, ..Identity::default() };
    state.table.watch(&identity);
    let inode = job.hash + 100;
    state.copied(job, EarlierCopy { inode, generation: job.generation, crc32c: 0, changed: 0, identity });
    state.answer(job);
}

#[test]
// semantics: FILES-8
fn copy_that_a_program_waits_for_is_made_at_once_and_only_once() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 20);
    assert_eq!(wait(&state, 1), CopyWait::Ask);
    (0..3).for_each(|_| state.record(1, OpenKind::Asked));
    assert_eq!(wait(&state, 1), CopyWait::Coming);
    let job = state.next_asked().unwrap();
    assert!(state.reserve(&job, 5000) && next(&mut state).is_none());
    copied(&mut state, &job, 5000);
    assert_eq!((wait(&state, 1), state.counts().copies), (CopyWait::No, 1));
    // A program that cannot wait gets a copy next to it.
    state.record(2, OpenKind::Absent);
    assert!(next(&mut state).is_some_and(|job| job.hash == 2) && wait(&state, 2) == CopyWait::Ask);
}

#[test]
fn every_way_without_a_copy_is_an_answer() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 4 * 4096);
    let ask = |state: &mut HostState, hash| {
        state.record(hash, OpenKind::Asked);
        state.next_asked().unwrap()
    };
    let job = ask(&mut state, 1);
    state.is_unfit(&job, Unfit::Fresh);
    state.answer(&job);
    let job = ask(&mut state, 2);
    assert!(state.reserve(&job, 5000));
    state.release(5000);
    state.failed(&job, false);
    state.answer(&job);
    // It is larger than the room.
    let job = ask(&mut state, 3);
    assert!(!state.reserve(&job, 5 * 4096));
    state.answer(&job);
    assert_eq!([1, 2, 3].map(|hash| wait(&state, hash)), [CopyWait::No; 3]);
    let job = ask(&mut state, 4);
    assert!(state.reserve(&job, 4 * 4096));
    copied(&mut state, &job, 4 * 4096);
    // No room is left. The answer comes at once, and others do not ask for some time.
    let now = Instant::now();
    state.record(5, OpenKind::Asked);
    assert!(state.next_asked().is_none());
    assert_eq!((wait(&state, 5), state.counts().no_room), (CopyWait::No, 2));
    assert!(state.asks_from > now + Duration::from_millis(500));
}

#[test]
fn file_that_takes_too_long_is_copied_next_to_the_program() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 40);
    state.record(1, OpenKind::Asked);
    let job = state.next_asked().unwrap();
    assert!(state.reserve(&job, FIRST_BYTES + 1));
    assert_eq!(wait(&state, 1), CopyWait::No);
    copied(&mut state, &job, FIRST_BYTES + 1);
    assert_eq!(state.counts().copies, 1);
    // The speed of the copies decides from now on.
    let speed = state.awaited.bytes_per_second.get_or_insert(1e9);
    *speed = 1e9;
    state.record(2, OpenKind::Asked);
    let job = state.next_asked().unwrap();
    assert!(state.reserve(&job, 4_000_000_000) && wait(&state, 2) == CopyWait::Coming);
    state.record(3, OpenKind::Asked);
    let other = state.next_asked().unwrap();
    assert!(!state.reserve(&other, 4_000_000_000));
    state.answer(&other);
    // The program that reads it gets no copy next to it.
    state.record(3, OpenKind::Absent);
    assert!(wait(&state, 3) == CopyWait::No && next(&mut state).is_none());
    copied(&mut state, &job, 4_000_000_000);
    assert_eq!((state.awaited.bytes, state.awaited.jobs, state.awaited.asked), (0, 0, 0));
}

#[test]
fn no_more_programs_wait_than_copies_are_made() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 40);
    for hash in 21..=100 {
        state.add(ListedFile { hash, path: format!("/{hash}").into(), is_link: false, keeps_pages: false });
    }
    (1..=100).for_each(|hash| state.record(hash, OpenKind::Asked));
    let coming = (1..=100).filter(|hash| wait(&state, *hash) == CopyWait::Coming).count();
    assert_eq!((coming, state.asked_jobs()), (MOST_ASKED, [MOST_ASKED; 2]));
    let job = state.next_asked().unwrap();
    state.is_unfit(&job, Unfit::Fresh);
    state.answer(&job);
    assert_eq!(state.asked_jobs(), [MOST_ASKED - 1; 2]);
}

#[test]
fn file_that_is_copied_ahead_is_waited_for() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 20);
    for hash in 1..=20 {
        state.record(hash, OpenKind::Asked);
        let asked = state.next_asked().unwrap();
        state.is_unfit(&asked, Unfit::Fresh);
        state.answer(&asked);
        // It has opened the original.
        state.record(hash, OpenKind::Absent);
        let next_to_it = next(&mut state).unwrap();
        state.is_unfit(&next_to_it, Unfit::Fresh);
        state.answer(&next_to_it);
    }
    (1..=2).for_each(|hash| state.record(hash, OpenKind::Absent));
    let asks = (3..=20).filter(|hash| wait(&state, *hash) == CopyWait::Ask).count();
    assert_eq!(asks, 18, "each epoch may ask anew");
    let mut job = next(&mut state).unwrap();
    while !job.copy.is_ahead {
        state.is_unfit(&job, Unfit::Fresh);
        state.answer(&job);
        job = next(&mut state).unwrap();
    }
    assert_eq!(wait(&state, job.hash), CopyWait::Coming);
    state.record(job.hash, OpenKind::Asked);
    assert!(state.next_asked().is_none(), "it is read once");
}
