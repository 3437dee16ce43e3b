//! `foreread control` and two agents on this machine: tokens, limits, draining, and a restart.

mod many_agents;
mod one_cache;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use foreread_agent::ClusterToken;
use foreread_connection::{Address, ControlConnection, SystemTransport};
use foreread_tier_testing::store::{HttpStore, NumberedObjects};
use foreread_tier_testing::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent_node::{LENGTH, PATIENT, Running, TAKEN, digests};
use crate::s3::at;
use crate::support::{number, run};

pub(crate) const ALICE: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";
const BOB: &str = "4c0d92f7ba8e4167a35e19d2c680fb73";

/// A file that its owner alone may read.
pub(crate) fn private(path: PathBuf, text: &str) -> PathBuf {
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A bucket of 1,000 samples, a control process, and agents.
pub(crate) struct Cluster {
    store: HttpStore,
    directory: TempDir,
    address: String,
    processes: Vec<u32>,
}

impl Cluster {
    pub(crate) fn new(policy: &str) -> Self {
        let store = HttpStore::start();
        store.numbered("train", NumberedObjects::new(1000, LENGTH));
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let path = |name: &str| directory.path().join(name);
        private(path("tokens"), &format!("alice {ALICE}\nbob {BOB}\n"));
        for (name, token) in [("alice", ALICE), ("bob", BOB), ("eve", &BOB.replace('4', "5"))] {
            // Eve is not known, and calls herself Alice.
            let named = if name == "eve" { "alice" } else { name };
            private(path(name), &format!("{named} {token}\n"));
        }
        fs::write(path("agent.toml"), policy).unwrap();
        let mut cluster = Self { store, directory, address: "127.0.0.1:0".to_owned(), processes: Vec::new() };
        cluster.start_control();
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start_control(&mut self) {
        let mut command = self.control(&["start", "--listen", &self.address, "--http", "127.0.0.1:0"]);
        command.arg("--tokens").arg(self.path("tokens")).arg("--policy").arg(self.path("agent.toml"));
        run(&mut command).ok();
        let status = self.status();
        status["address"].as_str().unwrap().clone_into(&mut self.address);
        self.processes.push(number(&status, "/process") as u32);
    }

    pub(crate) fn control(&self, arguments: &[&str]) -> Command {
        let mut command = at(&self.store, &["control"]);
        command.args(arguments).arg("--socket").arg(self.path("control/control.sock"));
        command
    }

    /// The link of its page for a browser.
    pub(crate) fn link(&self) -> String {
        fs::read_to_string(self.path("control/http.url")).unwrap().trim().to_owned()
    }

    fn status(&self) -> Value {
        run(&mut self.control(&["status", "--report", "json"])).json()
    }

    fn socket(&self, node: &str) -> PathBuf {
        self.path(node).with_extension("agent").join("node.sock")
    }

    fn agent(&self, node: &str, arguments: &[&str]) -> Command {
        let mut command = at(&self.store, &["agent"]);
        command.args(arguments).arg("--socket").arg(self.socket(node));
        command
    }

    /// The command that starts an agent of a user with memory for so many samples.
    fn starting(&self, node: &str, user: &str, samples: u64) -> Command {
        let memory = (samples * TAKEN).to_string();
        let mut command = self.agent(node, &["start", "--memory", &memory, "--node", node]);
        command.args(["--control", &self.address, "--control-token"]).arg(self.path(user));
        command
    }

    pub(crate) fn start_agent(&mut self, node: &str, user: &str, samples: u64) {
        run(&mut self.starting(node, user, samples)).ok();
        self.processes.push(number(&self.agent_status(node), "/process") as u32);
    }

    fn agent_status(&self, node: &str) -> Value {
        run(&mut self.agent(node, &["status", "--report", "json"])).json()
    }

    pub(crate) fn job(&self, node: &str, name: &str, arguments: &[&str]) -> Command {
        let mut command = at(&self.store, &["load", "s3://train", "--report", "json", "--progress", "off"]);
        command.args(["--job-name", name]).args(arguments).env(PATIENT.0, PATIENT.1);
        if !arguments.contains(&"--look-ahead") {
            command.args(["--look-ahead", "2MB"]);
        }
        command.arg("--agent").arg(self.socket(node));
        command
    }

    fn kill_control(&mut self) {
        kill(self.processes[0]);
        self.processes.remove(0);
    }
}

fn kill(process: u32) {
    // It may have ended.
    let _ = Pid::from_raw(process as i32).map(|process| kill_process(process, Signal::KILL));
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.processes.iter().copied().for_each(kill);
    }
}

/// The node of a status, by its name.
fn node<'a>(status: &'a Value, name: &str) -> &'a Value {
    let nodes = status["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["name"] == name).unwrap_or_else(|| panic!("no {name}: {status}"))
}

fn lease(status: &Value, name: &str) -> u64 {
    number(node(status, name), "/leases/0/bytes_per_second")
}

const LIMIT: u64 = 4_000_000;

#[test]
// semantics: CONTROL-2, CONTROL-5, CONTROL-8
fn users_share_a_limit_whatever_the_number_of_their_jobs() {
    let mut cluster = Cluster::new("[cluster.limit]\n's3://train' = '4MB/s'\n");
    cluster.start_agent("n1", "alice", 0);
    cluster.start_agent("n2", "bob", 0);
    let endless = ["--epochs", "1000"];
    let mut jobs: Vec<Running> =
        (0..5).map(|at| Running::start(cluster.job("n1", &format!("a{at}"), &endless))).collect();
    jobs.push(Running::start(cluster.job("n2", "b", &endless)));
    until("both get half of the limit", || {
        let status = cluster.status();
        let (one, other) = (lease(&status, "alice@n1"), lease(&status, "bob@n2"));
        assert!(one + other <= LIMIT / 100 * 102, "{status}");
        one.abs_diff(LIMIT / 2) < LIMIT / 50 && other.abs_diff(LIMIT / 2) < LIMIT / 50
    });
    // A job cannot get more by its own messages.
    let client = foreread_store::Client::connect(&cluster.socket("n1").display().to_string()).unwrap();
    let lie = json!({"stalled_seconds": 1e12}).to_string();
    let _ = client.call(foreread_store::attach::PROGRESS, lie.as_bytes());
    let set = |changes: &[&str]| run(cluster.control(&["set"]).args(changes)).ok();
    set(&["user-weight@alice=3", "weight@alice/a0=4"]);
    until("the weights are in force", || {
        let status = cluster.status();
        lease(&status, "alice@n1").abs_diff(LIMIT * 3 / 4) < LIMIT / 50
    });
    let weights = |status: &Value| -> Vec<u64> {
        status["jobs"].as_array().unwrap().iter().map(|job| number(job, "/weight")).collect()
    };
    until("the weight of a job is in force", || {
        let mut weights = weights(&cluster.agent_status("n1"));
        weights.sort_unstable();
        weights == [1, 1, 1, 1, 4]
    });
    assert_eq!(weights(&cluster.agent_status("n2")), [1]);
    // The log has the user and the change. A mistake changes nothing.
    let status = cluster.status();
    let changes = status["changes"].as_array().unwrap();
    assert!(
        changes
            .iter()
            .any(|it| it["change"] == "user-weight@alice=3" && !it["by"].as_str().unwrap().is_empty())
    );
    let mut mistake = cluster.control(&["set", "user-weight@bob=5", "colour=3"]);
    assert!(run(&mut mistake).fails(2).contains("no such key; known are limit, user-weight"));
    assert!(!cluster.status().to_string().contains("user-weight@bob"));
    // The file is read again.
    fs::write(cluster.path("agent.toml"), "[cluster.limit]\n's3://train' = '8MB/s'\n").unwrap();
    until("the file is in force", || number(&cluster.status(), "/stores/0/limit") == 2 * LIMIT);
    let text = run(&mut cluster.control(&["status"])).ok();
    assert!(text.contains("node         alice@n1 (alice): connected, 5 jobs"), "{text}");
    assert!(text.contains("policy       user-weight@alice=3 (set)"), "{text}");
    drop(jobs);
}

#[test]
// semantics: CONTROL-1
fn strangers_get_nothing() {
    let mut cluster = Cluster::new("[cluster.limit]\n's3://train' = '4MB/s'\n");
    cluster.start_agent("n1", "alice", 100);
    // Another token. The agent serves its jobs all the same, within its own limits.
    let mut command = at(&cluster.store, &["agent", "start", "--memory", "1MB", "--node", "n3"]);
    command.arg("--socket").arg(cluster.socket("n3"));
    command.args(["--control", &cluster.address, "--control-token"]).arg(cluster.path("eve"));
    run(&mut command).ok();
    let status = cluster.agent_status("n3");
    cluster.processes.push(number(&status, "/process") as u32);
    let control = &status["control"];
    assert!(control["problem"].as_str().unwrap().contains("token") && control["is_connected"] == false);
    assert_eq!(cluster.status()["nodes"].as_array().unwrap().len(), 1);
    // A name that is taken gets a number.
    let mut command = at(&cluster.store, &["agent", "start", "--memory", "1MB", "--node", "n1"]);
    command.arg("--socket").arg(cluster.socket("twice"));
    command.args(["--control", &cluster.address, "--control-token"]).arg(cluster.path("alice"));
    run(&mut command).ok();
    cluster.processes.push(number(&cluster.agent_status("twice"), "/process") as u32);
    until("both are there", || {
        let nodes = cluster.status()["nodes"].to_string();
        nodes.contains("alice@n1-2") && cluster.agent_status("twice")["control"]["is_connected"] == true
    });
    // Garbage before, in and after the handshake.
    garbage(&cluster);
    until("it is still connected", || node(&cluster.status(), "alice@n1")["is_connected"] == true);
    // The page takes a token.
    let link = cluster.link();
    let (address, token) = link.strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
    let wrong = if token.starts_with('a') { "b" } else { "a" }.to_owned() + &token[1..];
    for (token, answer) in [(token, "HTTP/1.1 200"), (&wrong, "HTTP/1.1 401"), ("", "HTTP/1.1 401")] {
        for path in ["/api/v1/status", "/metrics", "/"] {
            assert!(get(address, path, token).starts_with(answer), "{path}");
        }
    }
    // It is up to a second old.
    let node = "foreread_control_node_connected{node=\"alice@n1\"";
    until("metrics have the node", || get(address, "/metrics", token).contains(node));
    // The files of tokens have to be private.
    let wrong = cluster.path("public");
    fs::copy(cluster.path("alice"), &wrong).unwrap();
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = cluster.agent("n4", &["start", "--memory", "1MB", "--control", &cluster.address]);
    assert!(run(command.arg("--control-token").arg(&wrong)).fails(1).contains("chmod 600"));
    let mut command = cluster.agent("n4", &["start", "--memory", "1MB", "--control", "nowhere"]);
    assert!(run(command.arg("--control-token").arg(cluster.path("bob"))).fails(1).contains("HOST:PORT"));
}

/// The answer of an HTTP server.
fn get(address: &str, path: &str, token: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Messages that no agent sends.
fn garbage(cluster: &Cluster) {
    use std::io::Write;
    for text in [&b""[..], b"GET / HTTP/1.0\r\n\r\n", &[0xff; 4096]] {
        let mut stream = std::net::TcpStream::connect(&cluster.address).unwrap();
        // It may be closed already.
        let _ = stream.write_all(text);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address: Address = cluster.address.parse().unwrap();
    let identity = ClusterToken::read(&cluster.path("bob")).unwrap().identity();
    let timeout = Duration::from_secs(300);
    for message in
        [json!([]), json!({"versions": [9, 9], "node": "x"}), json!({"versions": [1, 1], "node": ""})]
    {
        runtime.block_on(async {
            let opened = ControlConnection::open(&SystemTransport, &address, &identity, None, timeout).await;
            let (mut connection, _) = opened.unwrap();
            connection.send(1, message.to_string().into()).await.unwrap();
            // It is refused, or closed.
            let answer = tokio::time::timeout(timeout, connection.receive(4096)).await.unwrap();
            assert!(!matches!(answer, Ok(Some((5, _)))), "{message} was granted something");
        });
    }
    // After a hello, a message that is none. The given rates do not leave the node.
    runtime.block_on(async {
        let opened = ControlConnection::open(&SystemTransport, &address, &identity, None, timeout).await;
        let (mut connection, _) = opened.unwrap();
        let hello = json!({"versions": [1, 1], "node": "x", "instance": "y"});
        connection.send(1, hello.to_string().into()).await.unwrap();
        connection.send(2, "{".into()).await.unwrap();
        let closed = async { while let Ok(Some(_)) = connection.receive(1 << 20).await {} };
        tokio::time::timeout(timeout, closed).await.unwrap();
    });
    run(&mut cluster.control(&["forget", "bob@x"])).ok();
}

#[test]
// semantics: CONTROL-4
fn killed_control_process_is_whole_again_and_no_job_waits() {
    let mut cluster = Cluster::new("[cluster.limit]\n's3://train' = '4MB/s'\n");
    cluster.start_agent("n1", "alice", 0);
    cluster.start_agent("n2", "bob", 0);
    run(&mut cluster.control(&["set", "user-weight@bob=3", "drain@alice@n9=true"])).ok();
    let endless = ["--epochs", "1000"];
    let jobs =
        [Running::start(cluster.job("n1", "a", &endless)), Running::start(cluster.job("n2", "b", &endless))];
    let are_shared = |status: &Value| {
        status["nodes"].as_array().unwrap().len() == 2
            && lease(status, "bob@n2").abs_diff(LIMIT * 3 / 4) < LIMIT / 50
    };
    until("the limit is shared", || are_shared(&cluster.status()));
    let read = |cluster: &Cluster| number(&cluster.agent_status("n2"), "/read_bytes");
    cluster.kill_control();
    let before = read(&cluster);
    until("the job continues without it", || read(&cluster) > before + LIMIT / 4);
    assert_eq!(
        lease_of_agent(&cluster, "n2").map(|limit| limit.abs_diff(LIMIT * 3 / 4) < LIMIT / 50),
        Some(true)
    );
    cluster.start_control();
    until("the new process knows all", || {
        let status = cluster.status();
        status["nodes"].as_array().unwrap().len() == 2 && are_shared(&status)
    });
    // The values that were set are in force again.
    let policy = cluster.status()["policy"].to_string();
    assert!(policy.contains("user-weight@bob") && policy.contains("drain@alice@n9"), "{policy}");
    drop(jobs);
    // An agent that ends leaves nothing reserved.
    run(&mut cluster.agent("n2", &["stop"])).ok();
    until("the rest has all", || {
        let status = cluster.status();
        status["nodes"].as_array().unwrap().len() == 1 && lease(&status, "alice@n1") >= LIMIT - 2
    });
    run(&mut cluster.control(&["stop"])).ok();
    assert!(run(&mut cluster.control(&["status"])).fails(1).contains("no control process"));
}

/// The limit that is in force at an agent.
fn lease_of_agent(cluster: &Cluster, node: &str) -> Option<u64> {
    cluster.agent_status(node)["stores"][0]["limit"].as_u64()
}

#[test]
// semantics: CONTROL-6
fn drained_node_takes_no_new_jobs_and_keeps_its_own() {
    let mut cluster = Cluster::new("");
    cluster.start_agent("n1", "alice", 1000);
    let job = Running::start(cluster.job("n1", "old", &["--epochs", "1000", "--compute-ms", "20"]));
    until("the job is there", || number(node(&cluster.status(), "alice@n1"), "/jobs") == 1);
    until("the node has confirmed, and has the job", || {
        let text = run(&mut cluster.control(&["drain", "alice@n1", "--wait", "0"])).ok();
        text.contains("1 are still there")
    });
    until("the agent knows", || cluster.agent_status("n1")["control"]["is_draining"] == true);
    let report = run(&mut cluster.job("n1", "new", &["--epochs", "1", "--digest"])).json();
    assert_eq!(digests(&report).len(), 1);
    assert!(report["agent"].is_null() || number(&report, "/agent/direct_samples") == 1000, "{report}");
    assert_eq!(cluster.agent_status("n1")["jobs"].as_array().unwrap().len(), 1);
    drop(job);
    let text = run(&mut cluster.control(&["drain", "alice@n1"])).ok();
    assert!(text.contains("and has none"), "{text}");
    run(&mut cluster.control(&["set", "drain@alice@n1=none"])).ok();
    until("it takes jobs again", || cluster.agent_status("n1")["control"]["is_draining"] == false);
    let report = run(&mut cluster.job("n1", "new", &["--epochs", "1"])).json();
    assert_eq!(number(&report, "/agent/direct_samples"), 0, "{report}");
    assert!(run(&mut cluster.control(&["drain", "n9"])).fails(1).contains("no node is called n9"));
    assert!(run(&mut cluster.control(&["forget", "alice@n1"])).fails(2).contains("is connected"));
}

#[test]
// semantics: CONTROL-6
fn nodes_fill_their_memory_each_with_a_part() {
    let mut cluster = Cluster::new("[cluster.quota]\n's3://train' = '4MB'\n");
    cluster.start_agent("n1", "alice", 2000);
    cluster.start_agent("n2", "bob", 2000);
    let text = run(&mut cluster.control(&["warm", "s3://train"])).ok();
    assert!(text.contains("2 nodes fill their memory with s3://train"), "{text}");
    let held = |node: &str| cluster.agent_status(node)["datasets"][0]["held_samples"].as_u64().unwrap_or(0);
    // The quota of both together is less than their halves.
    let quota = 4_000_000 / 2 / TAKEN;
    let has_part = |held: u64| (quota - 5..=quota).contains(&held);
    until("each has its part of the quota", || has_part(held("n1")) && has_part(held("n2")));
    run(&mut cluster.control(&["set", "quota@s3://train=none"])).ok();
    let has_quota = |node: &str| cluster.agent_status(node)["policy"].to_string().contains("cap@");
    until("the quota is gone", || !has_quota("n1") && !has_quota("n2"));
    // On a busy machine, an agent may be silent for a moment. The other one then reads its half,
    // too.
    until("each has its half", || {
        run(&mut cluster.control(&["warm", "s3://train"])).ok();
        held("n1") >= 500 && held("n2") >= 500
    });
    let copies = held("n1") + held("n2") - 1000;
    // Before the quota was known, each may have read its half.
    assert!(cluster.store.requests().get < 2000 + copies, "{:?}", cluster.store.requests());
    until("the cluster has all", || number(&cluster.status(), "/datasets/0/held_samples") >= 1000);
}

/// An agent that never reaches its control process.
#[test]
// semantics: CONTROL-3
fn agent_without_its_control_process_holds_its_own_limit() {
    let mut cluster = Cluster::new("");
    // No process listens there.
    "127.0.0.1:1".clone_into(&mut cluster.address);
    let mut command = cluster.starting("n1", "alice", 100);
    command.args(["--origin-limit", "2MB/s"]);
    let printed = run(&mut command);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    let status = cluster.agent_status("n1");
    let process = number(&status, "/process") as u32;
    let report = run(&mut cluster.job("n1", "a", &["--epochs", "1"])).json();
    let limit = lease_of_agent(&cluster, "n1");
    kill(process);
    assert_eq!(limit, Some(2_000_000));
    assert_eq!(number(&report, "/agent/direct_samples"), 0);
}
