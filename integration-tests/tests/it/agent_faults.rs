//! Faults at random moments while jobs use an agent: kills, stops, restarts, changed settings,
//! silent storage. Every job gets every sample, in its order, and nothing is left.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use foreread_tier_testing::TestRandom;
use rustix::process::{Pid, Signal, kill_process};

use crate::agent_node::{LENGTH, Node, PATIENT, Running, TAKEN, digests};
use crate::support::{run, times};

const SAMPLES: u64 = 300;

/// Seeds of jobs.
const SEEDS: u64 = 4;

/// A fault of the agent, a job or the storage.
#[derive(Clone, Copy, Debug)]
enum Fault {
    KillAgent,
    PauseAgent,
    StopAgent,
    RestartAgent,
    KillJob,
    PauseJob,
    ChangeMemory,
    ChangeLimits,
    Warm,
    SilentStorage,
}

const FAULTS: [Fault; 10] = [
    Fault::KillAgent,
    Fault::PauseAgent,
    Fault::StopAgent,
    Fault::RestartAgent,
    Fault::KillJob,
    Fault::PauseJob,
    Fault::ChangeMemory,
    Fault::ChangeLimits,
    Fault::Warm,
    Fault::SilentStorage,
];

/// The arguments of an agent in one case.
struct AgentOfCase {
    memory: u64,
    more: Vec<String>,
}

impl AgentOfCase {
    fn draw(random: &mut TestRandom, node: &Node) -> Self {
        let memory = random.below(SAMPLES) * TAKEN;
        let mut more = Vec::new();
        if random.below(2) == 0 {
            let directory = node.directory.path().join("disk");
            fs::create_dir_all(&directory).unwrap();
            let bytes = 300_000 + random.below(SAMPLES) * LENGTH;
            more = vec!["--disk".to_owned(), format!("{}={bytes}", directory.display())];
        }
        Self { memory, more }
    }

    /// Starts it. A killed agent may hold its directory for a moment more.
    fn start(&self, node: &mut Node) {
        let more: Vec<&str> = self.more.iter().map(String::as_str).collect();
        node.start_with(self.memory, &more);
    }
}

fn apply(
    fault: Fault,
    node: &mut Node,
    agent: &AgentOfCase,
    jobs: &mut Vec<(u64, Running)>,
    random: &mut TestRandom,
) {
    let pause = Duration::from_millis(random.below(400));
    let signal = |process: u32, signal| {
        // It may have ended.
        let _ = kill_process(Pid::from_raw(process as i32).unwrap(), signal);
    };
    match fault {
        Fault::KillAgent => signal(node.process, Signal::KILL),
        Fault::PauseAgent => {
            signal(node.process, Signal::STOP);
            std::thread::sleep(pause);
            signal(node.process, Signal::CONT);
        }
        Fault::StopAgent => drop(run(&mut node.agent(&["stop"]))),
        Fault::RestartAgent => {
            drop(run(&mut node.agent(&["stop"])));
            agent.start(node);
        }
        Fault::KillJob => {
            let at = random.below(jobs.len() as u64) as usize;
            let (seed, job) = jobs.swap_remove(at);
            signal(job.child.id(), Signal::KILL);
            drop(job);
            jobs.push((seed, start_job(node, seed)));
        }
        Fault::PauseJob => {
            let (_, job) = &jobs[random.below(jobs.len() as u64) as usize];
            signal(job.child.id(), Signal::STOP);
            std::thread::sleep(pause);
            signal(job.child.id(), Signal::CONT);
        }
        Fault::ChangeMemory => {
            let memory = random.below(agent.memory + 1);
            drop(run(&mut node.agent(&["set", &format!("memory={memory}")])));
        }
        Fault::ChangeLimits => {
            let (most, rate) = (1 + random.below(50), 2 + random.below(100));
            let changes = [format!("parallelism@*={most}"), format!("limit@*={rate}MB/s")];
            drop(run(&mut node.agent(&["set", &changes[0], &changes[1], "weight@x=3", "pin@*=true"])));
        }
        Fault::Warm => {
            let mut warm = node.foreread(&["warm", "s3://train", "--progress", "off"]);
            drop(run(warm.arg("--agent").arg(node.socket())));
        }
        Fault::SilentStorage => {
            node.store.set_latency(pause);
            std::thread::sleep(pause);
            node.store.set_latency(Duration::ZERO);
        }
    }
}

fn start_job(node: &Node, seed: u64) -> Running {
    let mut command = node.foreread(&["load", "s3://train", "--look-ahead", "300KB", "--report", "json"]);
    command.args(["--digest", "--progress", "off", "--seed", &seed.to_string(), "--epochs", "2"]);
    command.args(["--batch-size", "16", "--compute-ms", "4"]).arg("--agent").arg(node.socket());
    // An agent that is stopped by a signal is silent.
    command.env_remove(PATIENT.0);
    Running::start(command)
}

#[test]
// semantics: AGENT-6
fn jobs_are_complete_whatever_happens_to_their_agent() {
    let mut node = Node::without_agent(SAMPLES, LENGTH);
    let alone =
        |seed: u64| node.digests(&["--seed", &seed.to_string(), "--epochs", "2", "--batch-size", "16"]);
    let expected: HashMap<u64, Vec<String>> = (0..SEEDS).map(|seed| (seed, alone(seed))).collect();
    let TestRandom { seed: first, .. } = TestRandom::new();
    for case in first..first + times(40, 2000) {
        let mut random = TestRandom::of(case);
        let agent = AgentOfCase::draw(&mut random, &node);
        agent.start(&mut node);
        let count = 1 + random.below(3);
        let mut jobs: Vec<(u64, Running)> =
            (0..count).map(|_| random.below(SEEDS)).map(|seed| (seed, start_job(&node, seed))).collect();
        let mut faults = Vec::new();
        for _ in 0..1 + random.below(3) {
            std::thread::sleep(Duration::from_millis(random.below(120)));
            let fault = FAULTS[random.below(FAULTS.len() as u64) as usize];
            faults.push(fault);
            apply(fault, &mut node, &agent, &mut jobs, &mut random);
        }
        for (seed, job) in jobs {
            let report = job.report();
            assert_eq!(digests(&report), expected[&seed], "case {case}, seed {seed}: {faults:?}");
        }
        let _ = kill_process(Pid::from_raw(node.process as i32).unwrap(), Signal::KILL);
        let _ = fs::remove_dir_all(node.directory.path().join("disk"));
    }
    let left: Vec<_> =
        fs::read_dir(node.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let known = ["agent.lock", "agent.log", "node.sock", "http.sock", "http.token"];
    assert!(left.iter().all(|name| known.iter().any(|known| name == known)), "{left:?}");
}
