//! Ended servers and clients leave no resources. Each test runs in its own process, so that the
//! counts are its own.

use std::collections::BTreeMap;
use std::fs;

use foreread_store::{Client, StoreErrorKind};
use foreread_tier_testing::until;
use foreread_types::SampleId;

use crate::rig::{
    ChildProcess, TestEngine, client, content, get, get_all, print_line, read_line, server, sized,
};

const MIB: u64 = 1 << 20;

/// Descriptors by kind, threads, and mappings of shared memory.
fn left() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(target) = fs::read_link(entry.unwrap().path()) else { continue };
        let target = target.display().to_string();
        // Sockets and pipes have numbers.
        let kind = target.split(':').next().unwrap().to_owned();
        *found.entry(format!("fd {kind}")).or_insert(0) += 1;
    }
    found.insert("threads".to_owned(), fs::read_dir("/proc/self/task").unwrap().count());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    found.insert("mappings".to_owned(), maps.lines().filter(|line| line.contains("memfd:foreread")).count());
    let names = fs::read_to_string("/proc/net/unix").unwrap();
    let own =
        OWN.with_borrow(|own| names.lines().filter(|line| own.iter().any(|it| line.ends_with(it))).count());
    found.insert("names".to_owned(), own);
    found
}

thread_local! {
    /// The addresses that this process has used.
    static OWN: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// In a separate process: starts and stops `count` times.
pub fn cycles(count: u64) {
    let engine = TestEngine::direct();
    let cycle = |round: u64| {
        let server = server(std::sync::Arc::clone(&engine), 4 * MIB);
        OWN.with_borrow_mut(|own| own.push(server.address().split_once(':').unwrap().0.to_owned()));
        let clients = [client(&server), client(&server)];
        let held = get_all(&clients[0], &(0..20).map(|number| sized(10_000, number)).collect::<Vec<_>>());
        get(&clients[1], sized(5 * MIB, 1));
        get(&clients[1], sized(10_000, 1));
        let in_use = left();
        assert!(in_use["mappings"] == 3 && in_use["names"] > 0, "{in_use:?}");
        // The order of the drops does not matter.
        match round % 3 {
            0 => drop((held, clients, server)),
            1 => drop((server, held, clients)),
            _ => drop((clients, server, held)),
        }
    };
    // One-time allocations of the process (such as thread buffers) exist after the first cycle.
    cycle(0);
    until("all is given back", || left()["mappings"] == 0);
    let before = left();
    for round in 1..=count {
        cycle(round);
        // Where the server ends first, a thread waits for the end of its clients.
        until("all is given back", || left() == before);
    }
    assert_eq!((before["mappings"], before["names"]), (0, 0));
    print_line("clean");
}

#[test]
// semantics: WORKER-6
fn fifty_restarts_leave_nothing() {
    let mut process = ChildProcess::start("cycles 50");
    assert_eq!(process.next_line(), "clean");
    assert!(process.child.wait().unwrap().success());
}

/// Forks, runs `child` in the child, and returns its exit status.
fn in_child(child: impl FnOnce()) -> i32 {
    // SAFETY: after a fork of a process with several threads the child must need no lock that
    // another thread held. These tests are about that: the child does the same as workers right
    // after a fork (glibc keeps its own allocator usable there). It ends by `_exit`, so that
    // nothing of the parent's is run twice.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the process at once, whatever its state.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        number => {
            assert!(number > 0);
            let mut status = 0;
            // SAFETY: waits for the child that was just made. `status` is a local number.
            assert_eq!(unsafe { libc::waitpid(number, &raw mut status, 0) }, number);
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
        }
    }
}

/// In a separate process: children that do nothing with their inherited handles, or drop them.
pub fn forks() {
    let server = server(TestEngine::threaded(), MIB);
    let worker = client(&server);
    // So large that its release would be sent at once.
    let large = sized(100_000, 1);
    let held = get(&worker, large);
    for _ in 0..10 {
        assert_eq!(in_child(|| {}), 0);
        let mut moved = Some((
            // A copy of the handle, as the child of a Python process finalizes its inherited
            // objects.
            unsafe_copy(&server),
            unsafe_copy(&worker),
            unsafe_copy(&held),
        ));
        assert_eq!(in_child(|| drop(moved.take().map(|(a, b, c)| (into(a), into(b), into(c))))), 0);
        get(&worker, SampleId(6));
        assert_eq!(held.as_ref(), content(large));
        assert!(server.status().used_bytes >= 100_000);
    }
    drop(held);
    get(&worker, SampleId(6));
    assert_eq!(server.status().clients, 1);
    // A living child keeps copies of all sockets. The end is detected all the same.
    let sleeper = sleeper();
    let other = client(&server);
    let address = server.address();
    drop(server);
    for client in [&worker, &other] {
        assert_eq!(client.get(&[SampleId(1)]).pop().unwrap().unwrap_err().kind(), StoreErrorKind::Gone);
    }
    assert_eq!(Client::connect(&address).unwrap_err().kind(), StoreErrorKind::Gone);
    // SAFETY: a signal to our own child, which is not waited for yet.
    unsafe { libc::kill(sleeper, libc::SIGKILL) };
    print_line("served");
}

/// A forked child that only waits.
fn sleeper() -> i32 {
    // SAFETY: the child only waits until it is killed.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: the call waits for a signal.
            unsafe { libc::pause() };
        },
        number => number,
    }
}

/// In a separate process: a main process that forks on command and is then killed.
pub fn forking_main() {
    let server = server(TestEngine::threaded(), MIB);
    print_line(server.address());
    read_line();
    print_line(sleeper());
    read_line();
}

/// The bits of a value, for a forked child to drop. There both copies belong to the child.
fn unsafe_copy<T>(value: &T) -> std::mem::MaybeUninit<T> {
    let mut copy = std::mem::MaybeUninit::uninit();
    // SAFETY: both have one type and do not overlap. The copy is only used as a value in a child
    // process, which forgets the original.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(value), copy.as_mut_ptr(), 1) };
    copy
}

fn into<T>(copy: std::mem::MaybeUninit<T>) -> T {
    // SAFETY: it was copied whole from a value, which is never used again in this process (a forked
    // child).
    unsafe { copy.assume_init() }
}

/// In a separate process: a child that inherits its parent's client and connects on its own.
pub fn inherits() {
    let server = server(TestEngine::threaded(), MIB);
    let address = server.address();
    let worker = client(&server);
    get(&worker, SampleId(5));
    for round in 0..10 {
        let status = in_child(|| {
            assert!(!worker.is_own());
            let refused = worker.get(&[SampleId(1)]).pop().unwrap().unwrap_err();
            assert_eq!(refused.kind(), StoreErrorKind::Forked);
            assert_eq!(worker.call("echo", b"").unwrap_err().kind(), StoreErrorKind::Forked);
            let own = Client::connect(&address).unwrap();
            get(&own, SampleId(round));
            get_all(&own, &(0..100).map(SampleId).collect::<Vec<_>>());
        });
        assert_eq!(status, 0);
        get(&worker, SampleId(round));
    }
    until("the children are gone", || server.status().clients == 1);
    print_line("parent: served");
}
