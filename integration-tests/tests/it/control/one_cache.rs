//! The caches of several agents as one.

use std::fs;

use foreread_tier_testing::store::NumberedObjects;
use foreread_tier_testing::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Cluster, kill};
use crate::agent_node::{LENGTH, Running, TAKEN, digests};
use crate::s3::at;
use crate::support::{foreread, number, run};

impl Cluster {
    /// Agents of Alice with memory for so many samples each, which share their caches.
    fn sharing(nodes: &[&str], samples: u64) -> Self {
        let mut cluster = Self::new("");
        nodes.iter().for_each(|node| cluster.start_agent(node, "alice", samples));
        cluster.await_sharing(nodes);
        cluster
    }

    /// Waits until these agents share their caches, and no others.
    fn await_sharing(&self, nodes: &[&str]) {
        let shares = |node: &&str| number(&self.agent_status(node), "/control/shares_with") as usize;
        until("the agents have one cache", || nodes.iter().all(|node| shares(node) == nodes.len()));
    }

    fn digests(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = at(&self.store, &["load", "s3://train", "--report", "json", "--digest"]);
        digests(&run(command.args(arguments).args(["--agent", "off"])).json())
    }

    /// The status of an agent, without a process for it.
    fn look(&self, node: &str) -> Value {
        crate::agent_node::look(&self.socket(node))
    }
}

/// The requests of an agent's own jobs, and the samples that it has read from storage.
fn uses_and_reads(status: &Value) -> (u64, u64) {
    let jobs = status["jobs"].as_array().unwrap().iter().filter(|job| job["node"].is_null());
    let kinds = ["/hits", "/joined", "/disk_reads", "/node_reads", "/reads"];
    let uses = jobs.map(|job| kinds.map(|kind| number(job, kind)).iter().sum::<u64>()).sum();
    (uses, number(status, "/reads"))
}

#[test]
// semantics: CONTROL-10
fn one_copy_for_all_nodes_and_each_sample_is_read_once() {
    let cluster = Cluster::sharing(&["n1", "n2", "n3"], 500);
    let epochs = ["--epochs", "2", "--seed"];
    let read_by = |node: &str, seed: &str| {
        let before = cluster.store.requests().get;
        let arguments = [&epochs[..], &[seed, "--digest"]].concat();
        let report = run(&mut cluster.job(node, "a", &arguments)).json();
        let read = cluster.store.requests().get - before;
        assert_eq!(digests(&report), cluster.digests(&[&epochs[..], &[seed]].concat()));
        assert_eq!(number(&report, "/agent/direct_samples"), 0, "{report}");
        read
    };
    // An agent alone would read 1,500. Nodes that answer late on a busy machine cost some reads.
    let read = read_by("n1", "1");
    assert!((1000..1400).contains(&read), "{read}");
    // Another job on another node, in another order, reads nothing.
    let read = read_by("n2", "2");
    assert!(read <= 16, "{read}");
    let statuses = ["n1", "n2", "n3"].map(|node| cluster.agent_status(node));
    // One copy of each first. Then second copies take the room that is left.
    let held: u64 = statuses.iter().map(|status| number(status, "/samples")).sum();
    assert!(held >= 1000, "{held}");
    let of_nodes = number(&statuses[1], "/node_reads");
    assert!(of_nodes > 0 && number(&statuses[2], "/node_reads") == 0, "{statuses:?}");
    let text = run(&mut cluster.agent("n1", &["status"])).ok();
    assert!(
        text.contains("connected; 3 nodes have one cache") && text.contains("% from other nodes"),
        "{text}"
    );
}

#[test]
// semantics: CONTROL-10
fn agents_of_other_tokens_have_caches_of_their_own() {
    let mut cluster = Cluster::new("");
    cluster.start_agent("n1", "alice", 1000);
    cluster.start_agent("n2", "bob", 1000);
    run(cluster.starting("n3", "alice", 1000).args(["--share", "off"])).ok();
    cluster.processes.push(number(&cluster.agent_status("n3"), "/process") as u32);
    for node in ["n1", "n2", "n3"] {
        let before = cluster.store.requests().get;
        run(&mut cluster.job(node, "a", &["--epochs", "2"])).json();
        let read = cluster.store.requests().get - before;
        assert!((1000..1046).contains(&read), "{node}: {read}");
        assert_eq!(number(&cluster.agent_status(node), "/control/shares_with"), 0);
    }
    let mut command = cluster.starting("n4", "alice", 1);
    assert!(run(command.args(["--share", "nowhere"])).fails(1).contains("HOST:PORT"));
}

#[test]
// semantics: CONTROL-11
fn killed_node_costs_reads_and_no_sample() {
    let cluster = Cluster::sharing(&["n1", "n2", "n3"], 500);
    let arguments = ["--epochs", "4", "--compute-ms", "20", "--digest", "--seed", "7"];
    let jobs = ["n1", "n2"].map(|node| Running::start(cluster.job(node, "a", &arguments)));
    until("the second epoch has begun", || uses_and_reads(&cluster.look("n1")).0 > 1200);
    kill(cluster.processes[3]);
    let alone = cluster.digests(&["--epochs", "4", "--seed", "7"]);
    for job in jobs {
        let report = job.report();
        assert_eq!(digests(&report), alone);
        assert_eq!(number(&report, "/agent/direct_samples"), 0, "{report}");
    }
    cluster.await_sharing(&["n1", "n2"]);
    // The others keep the samples that it has kept, a third of all. Gaps in their memory cost some.
    until("an epoch reads a fifth of the samples at most", || {
        let before = cluster.store.requests().get;
        run(&mut cluster.job("n2", "b", &["--epochs", "1"])).json();
        cluster.store.requests().get - before <= 200
    });
}

/// An owner whose storage is slow answers at once that it reads. One epoch from there would take
/// four minutes, and a job that hangs for two fails this test.
#[test]
// semantics: CONTROL-11
fn owner_with_slow_storage_is_not_waited_for() {
    let mut cluster = Cluster::new("");
    cluster.start_agent("n1", "alice", 600);
    run(cluster.starting("n2", "alice", 600).args(["--origin-limit", "20KB/s"])).ok();
    cluster.processes.push(number(&cluster.agent_status("n2"), "/process") as u32);
    cluster.await_sharing(&["n1", "n2"]);
    let arguments = ["--epochs", "2", "--digest", "--seed", "7"];
    let report = Running::start(cluster.job("n1", "a", &arguments)).report();
    assert_eq!(digests(&report), cluster.digests(&["--epochs", "2", "--seed", "7"]));
    assert_eq!(number(&report, "/agent/direct_samples"), 0, "{report}");
    let read = number(&cluster.agent_status("n1"), "/reads");
    assert!(read > 600, "{read}");
}

#[test]
// semantics: CONTROL-10
fn warm_on_one_node_reads_what_is_owned_there() {
    let cluster = Cluster::sharing(&["n1", "n2"], 1200);
    // Second copies are not part of the samples to fill.
    let job = Running::start(cluster.job("n1", "a", &["--epochs", "1", "--compute-ms", "40"]));
    until("half of an epoch has passed", || uses_and_reads(&cluster.look("n1")).0 > 500);
    drop(job);
    let mut command = at(&cluster.store, &["warm", "s3://train", "--wait", "100%", "--agent"]);
    let text = run(command.arg(cluster.socket("n1"))).ok();
    let own: u64 = text.split(" of ").next().unwrap().trim().parse().unwrap_or_else(|_| panic!("{text}"));
    assert!((450..550).contains(&own), "{text}");
    let before = cluster.store.requests().get;
    run(&mut cluster.job("n1", "b", &["--epochs", "1"])).json();
    let read = cluster.store.requests().get - before;
    assert!(read <= 300, "{read}");
}

/// An agent that is stopped by a signal accepts connections and answers nothing.
#[test]
// semantics: CONTROL-11
fn paused_node_costs_reads_and_no_sample() {
    let cluster = Cluster::sharing(&["n1", "n2", "n3"], 500);
    let arguments = ["--epochs", "3", "--compute-ms", "100", "--digest", "--seed", "7"];
    let jobs = ["n1", "n2"].map(|node| Running::start(cluster.job(node, "a", &arguments)));
    until("the first epoch has begun", || uses_and_reads(&cluster.look("n1")).0 > 400);
    let paused = Pid::from_raw(cluster.processes[3] as i32).unwrap();
    kill_process(paused, Signal::STOP).unwrap();
    let alone = cluster.digests(&["--epochs", "3", "--seed", "7"]);
    for job in jobs {
        let report = job.report();
        assert_eq!(digests(&report), alone);
        let stalled: f64 =
            report["epochs"].as_array().unwrap().iter().map(|it| it["stall_seconds"].as_f64().unwrap()).sum();
        println!("the trainer has waited for {stalled:.1} s");
    }
    kill_process(paused, Signal::CONT).unwrap();
    until("it is there again", || number(&cluster.agent_status("n3"), "/control/shares_with") == 3);
}

#[test]
// semantics: CONTROL-11
fn node_that_is_drained_or_comes_back_moves_its_samples_alone() {
    let mut cluster = Cluster::sharing(&["n1", "n2"], 1000);
    run(&mut cluster.job("n1", "a", &["--epochs", "1"])).json();
    run(&mut cluster.control(&["drain", "alice@n2"])).ok();
    let read = |cluster: &Cluster| {
        let before = cluster.store.requests().get;
        let report = run(&mut cluster.job("n1", "a", &["--epochs", "2", "--digest"])).json();
        assert_eq!(number(&report, "/agent/direct_samples"), 0, "{report}");
        cluster.store.requests().get - before
    };
    until("the roster has changed", || {
        let held = number(&cluster.agent_status("n1"), "/datasets/0/held_samples");
        held == 1000 || read(&cluster) > 1
    });
    assert!(read(&cluster) <= 16);
    run(&mut cluster.agent("n2", &["stop"])).ok();
    until("n1 is alone", || number(&cluster.agent_status("n1"), "/control/shares_with") == 0);
    run(&mut cluster.control(&["set", "drain@alice@n2=none"])).ok();
    cluster.start_agent("n2", "alice", 1000);
    cluster.await_sharing(&["n1", "n2"]);
    let read = read(&cluster);
    assert!(read <= 600, "{read}");
}

#[test]
// semantics: CONTROL-10
fn ranks_of_several_nodes_have_one_cache() {
    let cluster = Cluster::sharing(&["n1", "n2"], 600);
    let meet = tempfile::tempdir().unwrap();
    let ranks = ["n1", "n2"].iter().zip(["0", "1"]).map(|(node, rank)| {
        let mut command = cluster.job(node, "ranks", &["--epochs", "3", "--digest"]);
        command.args(["--rank", rank, "--world-size", "2"]).env("FOREREAD_MEET", meet.path());
        command.env("FOREREAD_TOKEN", super::ALICE);
        Running::start(command)
    });
    let ranks: Vec<Running> = ranks.collect();
    let reports: Vec<Value> = ranks.into_iter().map(Running::report).collect();
    let read = cluster.store.requests().get;
    assert!((1000..1046).contains(&read), "{read}: {reports:?}");
    // Samples come from the agents, and not from each other.
    for report in &reports {
        assert_eq!(report["epochs"][2]["reads"]["peer"]["samples"].as_u64().unwrap_or(0), 0, "{report}");
    }
}

/// The part of uses that nearest next use over the whole cluster reads, by the simulator.
fn simulated(samples: u64, jobs: usize, cache: f64) -> f64 {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let paces = vec!["1"; jobs].join(", ");
    let text =
        format!("[several-jobs]\nsamples = {samples}\ncache = {cache}\npaces = [{paces}]\nepochs = 4\n");
    fs::write(file.path(), text).unwrap();
    let mut command = foreread(["simulate", "--policy", "next-use", "--report", "json"]);
    let report = run(command.arg(file.path())).json();
    report["policies"][0]["origin_reads"].as_f64().unwrap()
}

/// Four nodes with a tenth of the dataset each, and two jobs on each of them. With little memory,
/// gaps take a part of it. So the simulator has a cache for the samples that were held.
#[test]
// semantics: CONTROL-10
fn eight_jobs_read_what_one_cache_would() {
    let is_soak = std::env::var_os("FOREREAD_SOAK").is_some();
    let (samples, length, compute) = if is_soak { (16_000, 100_000, "160") } else { (2000, LENGTH, "60") };
    let (nodes, taken) = (["n1", "n2", "n3", "n4"], length.next_multiple_of(64) + 192);
    let mut cluster = Cluster::new("");
    cluster.store.numbered("train", NumberedObjects::new(samples, length));
    let tenth = (samples / 10 * taken).div_ceil(TAKEN);
    nodes.iter().for_each(|node| cluster.start_agent(node, "alice", tenth));
    cluster.await_sharing(&nodes);
    let look_ahead = (30 * length).to_string();
    let mut jobs: Vec<Running> = (0..8)
        .map(|at| {
            let seed = (100 + at).to_string();
            let arguments = ["--epochs", "7", "--seed", &seed, "--compute-ms", compute, "--digest"];
            let arguments = [&arguments[..], &["--look-ahead", &look_ahead]].concat();
            Running::start(cluster.job(nodes[at % 4], &format!("job-{at}"), &arguments))
        })
        .collect();
    let (mut held, mut looks, mut next) = (0, 0, 0);
    let mut after = |epochs: u64| {
        let mut passed = (0, 0);
        until("the epochs have passed", || {
            // Looks at all nodes cost the time of the jobs.
            let (of_first, _) = uses_and_reads(&cluster.look(nodes[0]));
            if of_first < next {
                return false;
            }
            next = of_first + samples / 20;
            let statuses = nodes.map(|node| cluster.look(node));
            passed = statuses.iter().map(uses_and_reads).fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
            if passed.0 >= 8 * 2 * samples {
                held += statuses.iter().map(|status| number(status, "/samples")).sum::<u64>();
                looks += 1;
            }
            for job in &mut jobs {
                assert_eq!(job.child.try_wait().unwrap(), None, "{}", job.errors());
            }
            passed.0 >= 8 * epochs * samples
        });
        passed
    };
    let (begin, end) = (after(2), after(6));
    let measured = (end.1 - begin.1) as f64 / (end.0 - begin.0) as f64;
    let held = held as f64 / looks as f64 / samples as f64;
    let expected = simulated(samples, 8, held);
    let of_memory = simulated(samples, 8, 0.4);
    println!(
        "{measured:.4} of the uses are read from storage. The simulator: {expected:.4} with the {held:.4} of \
         the dataset that were held, and {of_memory:.4} with .4"
    );
    for (at, job) in jobs.into_iter().enumerate() {
        let report = job.report();
        assert_eq!(number(&report, "/agent/direct_samples"), 0, "{report}");
        if at < 2 {
            let seed = (100 + at).to_string();
            assert_eq!(digests(&report), cluster.digests(&["--epochs", "7", "--seed", &seed]));
        }
    }
    // Other work makes the paces of processes wander. On simulated time, the store's test of this
    // name has the bound of a quiet machine.
    let most = if is_soak { 1.03 } else { 1.2 };
    assert!(measured <= expected * most && measured >= expected * 0.9, "{measured} {expected}");
}
