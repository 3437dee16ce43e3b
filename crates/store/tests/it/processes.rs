//! Worker processes, and the release of their samples when either end is killed.

use std::os::unix::process::CommandExt;

use foreread_store::{Client, StoreErrorKind};
use foreread_tier_testing::until;
use foreread_types::SampleId;

use crate::leftovers;
use crate::rig::{
    ChildProcess, PARKED, ROLE, TestEngine, client, content, get, get_all, print_line, read_line, server,
    sized,
};

const MIB: u64 = 1 << 20;

/// The entry point of child processes. Without a role, which the parent sets, it does nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(' ');
    let name = words.next().unwrap();
    let words: Vec<_> = words.collect();
    match name {
        "reader" => reader(words[0], words[1].parse().unwrap()),
        "holder" => holder(words[0]),
        "waiter" => waiter(words[0]),
        "stranger" => print_line(match Client::connect(words[0]) {
            Ok(_) => "let in".to_owned(),
            Err(error) => format!("{:?}: {error}", error.kind()),
        }),
        "main" => main_process(),
        "forking-main" => leftovers::forking_main(),
        "mapped" => crate::memory::mapped(),
        "passed-on" => crate::memory::passed_on(),
        "cycles" => leftovers::cycles(words[0].parse().unwrap()),
        "forks" => leftovers::forks(),
        "inherits" => leftovers::inherits(),
        role => panic!("{role}"),
    }
}

fn reader(address: &str, seed: u64) {
    let client = Client::connect(address).unwrap();
    let mut state = seed;
    for _ in 0..40 {
        let ids: Vec<_> = (0..64)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match state >> 60 {
                    0 => sized(200_000, state >> 40 & 63),
                    _ => SampleId(state >> 33 & 0xffff),
                }
            })
            .collect();
        get_all(&client, &ids);
    }
    print_line("done");
}

/// Takes as much of the memory as it can and holds it.
fn holder(address: &str) {
    let client = Client::connect(address).unwrap();
    let held = get_all(&client, &(0..20).map(|number| sized(100_000, number)).collect::<Vec<_>>());
    print_line(held.iter().filter(|held| held.is_shared()).count());
    read_line();
}

/// Waits for a sample that never arrives.
fn waiter(address: &str) {
    let client = Client::connect(address).unwrap();
    let held = get(&client, SampleId(5));
    print_line("waits");
    let got = client.get(&[SampleId(PARKED)]).pop().unwrap().unwrap_err();
    assert_eq!(held.as_ref(), content(SampleId(5)));
    print_line(format!("{:?}: {got}", got.kind()));
    let again = Client::connect(address).unwrap_err();
    print_line(format!("{:?}: {again}", again.kind()));
}

/// A separate main process, until it is killed.
fn main_process() {
    let server = server(TestEngine::threaded(), MIB);
    print_line(server.address());
    read_line();
}

#[test]
// semantics: WORKER-1
fn worker_processes_get_their_samples() {
    let server = server(TestEngine::threaded(), 4 * MIB);
    let mut workers: Vec<_> =
        (1..=8).map(|seed| ChildProcess::start(&format!("reader {} {seed}", server.address()))).collect();
    for worker in &mut workers {
        assert_eq!(worker.next_line(), "done");
        assert!(worker.child.wait().unwrap().success());
    }
    until("all is given back", || server.status().used_bytes == 0 && server.status().clients == 0);
}

#[test]
// semantics: WORKER-4
fn killed_worker_releases_all_its_slots() {
    let server = server(TestEngine::threaded(), MIB);
    for _ in 0..5 {
        let mut holder = ChildProcess::start(&format!("holder {}", server.address()));
        let shared: u64 = holder.next_line().parse().unwrap();
        assert!(shared >= 9 && server.status().used_bytes >= shared * 100_000);
        holder.kill();
        until("all is given back", || server.status().used_bytes == 0 && server.status().clients == 0);
    }
    assert!(get(&client(&server), sized(MIB, 0)).is_shared());
}

#[test]
// semantics: WORKER-4
fn workers_killed_at_any_moment_harm_no_server() {
    let rounds = if std::env::var_os("FOREREAD_SOAK").is_some() { 200 } else { 15 };
    let server = server(TestEngine::threaded(), MIB);
    let good = client(&server);
    for round in 0..rounds {
        let mut worker = ChildProcess::start(&format!("reader {} {round}", server.address()));
        until("it is connected", || server.status().clients == 2);
        std::thread::sleep(std::time::Duration::from_micros(round * 397 % 20_000));
        worker.kill();
        get(&good, SampleId(round));
        until("it is gone", || server.status().clients == 1);
    }
    drop(good);
    until("all is given back", || server.status().used_bytes == 0);
}

#[test]
// semantics: WORKER-5
fn killed_main_process_ends_the_waits_of_its_workers() {
    let mut main = ChildProcess::start("main");
    let address = main.next_line();
    let mut workers: Vec<_> = (0..3).map(|_| ChildProcess::start(&format!("waiter {address}"))).collect();
    for worker in &mut workers {
        assert_eq!(worker.next_line(), "waits");
    }
    main.kill();
    for worker in &mut workers {
        for _ in 0..2 {
            let received = worker.next_line();
            assert!(received.starts_with("Gone: the main process is gone"), "{received}");
        }
        assert!(worker.child.wait().unwrap().success());
    }
}

/// The socket stays open, because a process forked after the workers connected holds copies of it.
#[test]
// semantics: WORKER-5
fn killed_main_process_with_forks_ends_the_waits() {
    let mut main = ChildProcess::start("forking-main");
    let address = main.next_line();
    let mut worker = ChildProcess::start(&format!("waiter {address}"));
    assert_eq!(worker.next_line(), "waits");
    main.send_line("fork");
    let sibling = Sibling(main.next_line().parse().unwrap());
    main.kill();
    for _ in 0..2 {
        let received = worker.next_line();
        assert!(received.starts_with("Gone: the main process is gone"), "{received}");
    }
    drop(sibling);
}

/// An orphaned process, killed when dropped.
struct Sibling(i32);

impl Drop for Sibling {
    fn drop(&mut self) {
        let process = rustix::process::Pid::from_raw(self.0).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
}

#[test]
// semantics: WORKER-7
fn process_of_another_user_is_refused() {
    let server = server(TestEngine::threaded(), MIB);
    let own = rustix::process::geteuid();
    if !own.is_root() {
        // Only root can become another user. `is_same_user` has its own test.
        get(&client(&server), SampleId(1));
        return;
    }
    // Other users may not read the binary's directory, so it is opened before the user changes.
    let role = format!("stranger {}", server.address());
    let mut stranger = ChildProcess::start_by(&role, |command| {
        let _ = command.uid(65_534).current_dir("/");
    });
    let received = stranger.next_line();
    assert!(received.starts_with("Refused: "), "{received}");
    assert_eq!(server.status().clients, 0);
}

#[test]
// semantics: WORKER-8
fn forked_child_connects_on_its_own() {
    let mut forking = ChildProcess::start("inherits");
    assert_eq!(forking.next_line(), "parent: served");
    assert!(forking.child.wait().unwrap().success());
}

#[test]
// semantics: WORKER-8
fn idle_forked_children_do_not_affect_the_server() {
    let mut forking = ChildProcess::start("forks");
    assert_eq!(forking.next_line(), "served");
    assert!(forking.child.wait().unwrap().success());
}

#[test]
fn connect_without_a_server_fails() {
    let server = server(TestEngine::threaded(), MIB);
    let address = server.address();
    drop(server);
    assert_eq!(Client::connect(&address).unwrap_err().kind(), StoreErrorKind::Gone);
    assert_eq!(Client::connect("nonsense").unwrap_err().kind(), StoreErrorKind::Invalid);
}
