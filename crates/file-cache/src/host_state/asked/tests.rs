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
    state.awaited.bytes_per_second = Some(1e9);
    state.record(2, OpenKind::Asked);
    let job = state.next_asked().unwrap();
    assert!(state.reserve(&job, 4_000_000_000) && wait(&state, 2) == CopyWait::Coming);
    state.record(3, OpenKind::Asked);
    let other = state.next_asked().unwrap();
    assert!(!state.reserve(&other, 4_000_000_000));
    state.answer(&other);
    // The program that reads it gets no copy next to it. The next open does not wait for a new
    // epoch to be noticed: programs open many files at its beginning.
    assert_eq!(wait(&state, 3), CopyWait::No);
    state.record(3, OpenKind::Absent);
    assert!(wait(&state, 3) == CopyWait::Ask && next(&mut state).is_none());
    copied(&mut state, &job, 4_000_000_000);
    assert_eq!((state.awaited.bytes, state.awaited.jobs, state.awaited.asked), (0, 0, 0));
}

#[test]
fn speed_counts_copies_that_are_not_whole() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 40);
    state.record(1, OpenKind::Asked);
    let job = state.next_asked().unwrap();
    assert_eq!(state.awaited.most(), FIRST_BYTES);
    job.done.fetch_add(1_000_000_000, Ordering::Relaxed);
    state.awaited.begun = Instant::now() - Duration::from_secs(10);
    let most = state.awaited.most();
    assert!((FIRST_BYTES + 1..=500_000_000).contains(&most), "{most}");
    copied(&mut state, &job, 0);
    // It is the speed until the next copies say another one.
    state.record(2, OpenKind::Asked);
    let job = state.next_asked().unwrap();
    let later = state.awaited.most();
    assert!((FIRST_BYTES + 1..=most).contains(&later) && job.done.load(Ordering::Relaxed) == 0, "{later}");
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

/// Programs open all files, and the first two again.
fn epoch_without_copies(state: &mut HostState) {
    for hash in 1..=20 {
        state.record(hash, OpenKind::Asked);
        let asked = state.next_asked().unwrap();
        state.is_unfit(&asked, Unfit::Fresh);
        state.answer(&asked);
        // It has opened the original.
        state.record(hash, OpenKind::Absent);
        let next_to_it = next(state).unwrap();
        state.is_unfit(&next_to_it, Unfit::Fresh);
        state.answer(&next_to_it);
    }
    (1..=2).for_each(|hash| state.record(hash, OpenKind::Absent));
}

/// The next copy of a file that no program has opened.
fn next_ahead(state: &mut HostState) -> CopyJob {
    loop {
        let job = next(state).unwrap();
        if job.copy.is_ahead {
            return job;
        }
        state.is_unfit(&job, Unfit::Fresh);
        state.answer(&job);
    }
}

#[test]
fn file_that_is_copied_ahead_is_waited_for() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 20);
    epoch_without_copies(&mut state);
    let asks = (1..=20).filter(|hash| wait(&state, *hash) == CopyWait::Ask).count();
    assert_eq!(asks, 20, "the next open may ask");
    let job = next_ahead(&mut state);
    assert_eq!(wait(&state, job.hash), CopyWait::Coming);
    state.record(job.hash, OpenKind::Asked);
    assert!(state.next_asked().is_none(), "it is read once");
}

#[test]
fn copy_ahead_that_no_program_could_wait_for_comes_later() {
    let cache = tempfile::tempdir().unwrap();
    let mut state = with_room(&cache, 1 << 40);
    epoch_without_copies(&mut state);
    state.record(20, OpenKind::Asked);
    let asked = state.next_asked().unwrap();
    assert!(state.reserve(&asked, FIRST_BYTES - 10_000));
    // A size is known when the file was opened, at the earliest.
    let ahead = next_ahead(&mut state);
    assert!(!state.reserve(&ahead, 20_000));
    state.answer(&ahead);
    assert_eq!(wait(&state, ahead.hash), CopyWait::No, "a program reads the original");
    state.ahead_from = Instant::now();
    assert!(next(&mut state).is_none(), "it is not opened again for nothing");
    // Room for it: it is the next one.
    copied(&mut state, &asked, FIRST_BYTES - 10_000);
    state.ahead_from = Instant::now();
    let again = next(&mut state).unwrap();
    assert_eq!((again.hash, wait(&state, again.hash)), (ahead.hash, CopyWait::Coming));
    assert!(state.reserve(&again, 20_000));
}
