//! Tests do not read the real clock.
//!
//! A sleep that is long enough on one machine is too short on a busy one, and too long on all
//! others. So tests wait for a state that the product shows, by `foreread_tier_testing::until`, or
//! run on simulated time. The exceptions stand here, with the reason.

use std::fs;

use super::{EVERYTHING, lines_before_tests, sources};

/// Files whose tests sleep on the real clock: how often, and why no condition can stand for it.
const SLEEPS: &[(&str, usize, &str)] = &[
    ("crates/tier-testing/src/until.rs", 1, "the loop of all waits for a condition"),
    ("crates/file-cache/src/original.rs", 2, "the kernel's clock of files has ticks of milliseconds"),
    ("crates/agent/tests/linked_ranks/main.rs", 1, "storage is silent for some time"),
    (
        "crates/agent/tests/linked_ranks/rig.rs",
        1,
        "a training step: ranks that read all at once share little",
    ),
    ("xtask/src/test_server.rs", 1, "a child waits for its end"),
    ("backends/local/tests/disk/kill.rs", 2, "processes are killed at any moment"),
    ("crates/store/tests/it/processes.rs", 1, "a process is killed at any moment"),
    ("integration-tests/tests/it/agent_faults.rs", 4, "faults come at any moment"),
    ("integration-tests/tests/it/control/many_agents.rs", 1, "processor time of an idle minute is measured"),
    ("integration-tests/tests/it/disk.rs", 1, "a run is killed at any moment"),
    ("integration-tests/tests/it/needs_ceph.rs", 1, "a run is killed at any moment"),
    ("integration-tests/tests/it/needs_network/cluster.rs", 1, "the network is cut for some time"),
    ("integration-tests/tests/it/ranks.rs", 2, "ranks are killed at any moment"),
    ("integration-tests/tests/it/state.rs", 1, "a run is killed at any moment"),
    ("integration-tests/tests/it/support.rs", 1, "the memory of a process is sampled"),
    ("integration-tests/tests/it/unchanged.rs", 1, "a host is killed at any moment"),
];

/// The same of the Python package.
const PYTHON_SLEEPS: &[(&str, usize, &str)] = &[
    ("recorded.py", 1, "a slow training step"),
    ("serving.py", 1, "files settle by the kernel's clock"),
    ("share_work.py", 5, "a child's own work: it holds samples, polls, or waits for its end"),
    ("slurm_cluster.py", 1, "Slurm starts, or ends"),
    ("test_agent_mix.py", 1, "a slow training step"),
    ("test_command.py", 1, "a signal comes at any moment"),
    ("test_processes.py", 2, "a slow transform, and a child's own wait for its threads"),
    ("test_slurm.py", 2, "Slurm compares times in seconds"),
    ("test_tensorflow.py", 2, "slow decoders"),
    ("test_torch_node.py", 1, "a slow training step"),
    ("test_torch_odd.py", 3, "time between epochs is the subject, and slow transforms"),
    ("test_torch_workers.py", 3, "a child's own wait for a signal"),
    ("test_unchanged.py", 2, "files settle by the kernel's clock, and copies come during runs"),
    ("waiting.py", 1, "the loop of all waits for a condition"),
];

/// The part of a file that only tests run.
fn test_code<'a>(path: &str, text: &'a str) -> &'a str {
    let of_tests =
        ["/tests/", "/testing/", "tier-testing/", "/tests.rs", "_tests.rs", "/stress.rs", "rig.rs"];
    if of_tests.iter().any(|part| path.contains(part)) {
        return text;
    }
    let before: usize = text.split_inclusive('\n').take(lines_before_tests(text)).map(str::len).sum();
    &text[before..]
}

/// The files whose sleeps are not those of a list.
fn unlisted(counts: &[(String, usize)], list: &[(&str, usize, &str)]) -> Vec<String> {
    let listed = |path: &str| list.iter().find(|(name, ..)| *name == path).map_or(0, |(_, count, _)| *count);
    let wrong = counts.iter().filter(|(path, count)| *count != listed(path));
    let wrong = wrong.map(|(path, count)| format!("{path}: {count} sleeps, {} in the list", listed(path)));
    let gone = list.iter().filter(|(name, ..)| counts.iter().all(|(path, _)| path != name));
    wrong.chain(gone.map(|(name, ..)| format!("{name}: there is no such file"))).collect()
}

#[test]
fn tests_that_sleep_are_listed_with_a_reason() {
    // Put together here, so that this file does not contain it.
    let sleep = concat!("thread::", "sleep(");
    let sources = sources(EVERYTHING);
    let tests = sources.iter().filter(|source| !source.path.starts_with("benches/"));
    let count = |path: &str, text: &str| test_code(path, text).matches(sleep).count();
    let counts: Vec<_> = tests.map(|file| (file.path.clone(), count(&file.path, &file.text))).collect();
    let mut wrong = unlisted(&counts, SLEEPS);
    let mut counts = Vec::new();
    for entry in fs::read_dir(super::root().join("crates/python/tests")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            counts.push((name, fs::read_to_string(&path).unwrap().matches("time.sleep(").count()));
        }
    }
    wrong.extend(unlisted(&counts, PYTHON_SLEEPS));
    assert!(wrong.is_empty(), "wait for a condition instead:\n{}", wrong.join("\n"));
}

#[test]
fn code_before_the_tests_may_sleep() {
    let text = "fn wait() {}\n#[cfg(test)]\nmod tests {}\n";
    assert_eq!(test_code("crates/a/src/b.rs", text), "#[cfg(test)]\nmod tests {}\n");
    assert_eq!(test_code("crates/a/src/b/tests.rs", text), text);
}
