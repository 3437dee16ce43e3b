//! An agent whose memory cgroup is smaller than the memory that it was given.
//!
//! `FOREREAD_TEST_CGROUP` holds the words that make a mount namespace, to be put before a command.
//! In it the hierarchy of memory cgroups can be mounted, and groups be made.

use std::process::Command;

use rustix::process::{Pid, test_kill_process};

use foreread_tier_testing::until;

use crate::agent_node::{Node, Running, TAKEN, digests};
use crate::support::{binary, needed, number, run};

/// Makes a group with `$LIMIT` bytes, starts an agent in it, and removes the group when that has
/// ended. Cgroup version 1, or else 2.
const START: &str = r#"
set -e
mkdir on
mount -t cgroup -o memory cgroup on 2>/dev/null || mount -t cgroup2 cgroup2 on
mkdir "on/foreread-$$"
if [ -e "on/foreread-$$/memory.max" ]; then
    echo "$LIMIT" > "on/foreread-$$/memory.max"
    echo 0 > "on/foreread-$$/memory.swap.max" 2>/dev/null || true
else
    echo "$LIMIT" > "on/foreread-$$/memory.limit_in_bytes"
fi
sh -c 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"' sh "on/foreread-$$" "$@"
(until rmdir "on/foreread-$$"; do sleep 0.1; done) >/dev/null 2>&1 &
"#;

#[test]
#[ignore = "needs memory cgroups"]
// semantics: AGENT-23
fn agent_beyond_its_memory_cgroup_costs_no_sample() {
    let words = needed("FOREREAD_TEST_CGROUP");
    let mut node = Node::without_agent(8000, 10_000);
    let (directory, socket) = (node.directory.path().join("group"), node.socket());
    std::fs::create_dir(&directory).unwrap();
    let arguments = ["--seed", "3", "--epochs", "2", "--batch-size", "100"];
    let expected = node.digests(&arguments);

    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["sh", "-c", START, "sh"]).arg(binary());
    command.args(["agent", "start", "--memory", &(8000 * TAKEN).to_string(), "--socket"]).arg(&socket);
    // The environment of its jobs, so that both have the same credentials.
    for (name, value) in node.foreread(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let started = run(command.current_dir(&directory).env("LIMIT", "40000000"));
    let warning = started.stderr.clone();
    started.ok();
    node.process = number(&node.status(), "/process") as u32;
    assert!(warning.contains("is more than the"), "it warns: {warning}");

    // A job of another group, so the kernel can end the agent alone.
    let job = Running::start(node.job(&arguments));
    let process = Pid::from_raw(node.process as i32).unwrap();
    until("the kernel ends the agent", || test_kill_process(process).is_err());
    until("it notices", || job.errors().contains("the node's agent has ended"));
    let report = job.report();
    assert_eq!(digests(&report), expected);
    assert!(number(&report, "/agent/samples") > 0, "the agent was used");
    node.process = 0;
}
