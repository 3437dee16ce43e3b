//! Eight agents in network namespaces and a control process, and a thousand simulated agents.
//!
//! The first needs `FOREREAD_TEST_NETWORK`, as the tests of ranks in networks do. An ordinary run
//! has a fifth of the rate of a long one, because other tests use the machine meanwhile.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_agent::ClusterToken;
use foreread_connection::{Address, ControlConnection, SystemTransport};
use foreread_store::Client;
use foreread_store::attach::STATUS;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent_node::eventually;
use crate::control::{ALICE, private};
use crate::needs_network::MACHINES;
use crate::support::{Samples, binary, clean, content, number, run};

const NODES: usize = 8;

/// Two jobs on each node, one with the weight 3. They read more than the limit.
const JOBS: &str = r#"
for n in 0 1 2 3 4 5 6 7; do
    mkdir -m 700 agent$n
    on $n "$FOREREAD" agent start --memory 0 --node n$n --socket "$PWD/agent$n/node.sock" \
        --control 10.7.0.1:7400 --control-token "$PWD/token"
done
for n in 0 1 2 3 4 5 6 7; do
    for job in light heavy; do
        seed=$((seed + 1))
        on $n "$FOREREAD" load "$DATASET" --seed $seed --epochs 100000 --batch-size 16 --look-ahead 16MB --job-name $job-$n \
            --progress off --agent "$PWD/agent$n/node.sock" > /dev/null 2>&1 &
    done
done
"#;

/// The machines, which run what is said to them.
struct Machines {
    shell: Child,
    stdin: Option<ChildStdin>,
    directory: TempDir,
    _samples: Samples,
    limit: f64,
}

impl Machines {
    fn new() -> Option<Self> {
        let Ok(words) = std::env::var("FOREREAD_TEST_NETWORK") else {
            println!("skipped: FOREREAD_TEST_NETWORK names no way to make networks");
            return None;
        };
        let is_soak = std::env::var_os("FOREREAD_SOAK").is_some();
        let limit = if is_soak { 200e6 } else { 40e6 };
        let samples = Samples::new();
        (0..400_u64).for_each(|id| samples.add(&id.to_string(), &content(id, 100_000)));
        let directory = tempfile::tempdir().unwrap();
        private(directory.path().join("token"), ALICE);
        let policy = format!("[cluster.limit]\n'*' = '{limit}'\n[cluster.weight]\n'*/heavy-*' = 3\n");
        fs::write(directory.path().join("agent.toml"), policy).unwrap();
        fs::create_dir(directory.path().join("control")).unwrap();
        fs::set_permissions(directory.path().join("control"), fs::Permissions::from_mode(0o700)).unwrap();
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["sh"]).current_dir(directory.path());
        clean(&mut command)
            .env("DATASET", samples.path())
            .env("FOREREAD", binary())
            .env("MACHINES", NODES.to_string())
            .stdin(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let stdin = shell.stdin.take();
        let mut machines = Self { shell, stdin, directory, _samples: samples, limit };
        machines.say(MACHINES);
        machines.start_control();
        machines.say(JOBS);
        Some(machines)
    }

    fn say(&mut self, script: &str) {
        self.stdin.as_mut().unwrap().write_all(format!("{script}\n").as_bytes()).unwrap();
    }

    fn start_control(&mut self) {
        self.say(
            "on 0 \"$FOREREAD\" control serve --listen 10.7.0.1:7400 --tokens \"$PWD/token\" --policy \
             \"$PWD/agent.toml\" --socket \"$PWD/control/control.sock\" 2> control.log & control=$!",
        );
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn set(&self, change: &str) {
        let mut command = crate::support::foreread(["control", "set", change, "--socket"]);
        run(command.arg(self.path("control/control.sock"))).ok();
    }

    /// What an agent shows. `None` if it does not serve yet.
    fn agent(&self, node: usize) -> Option<Value> {
        let socket = self.path(&format!("agent{node}/node.sock"));
        let answer = Client::connect(&socket.display().to_string()).ok()?.call(STATUS, b"").ok()?;
        serde_json::from_slice(&answer).ok()
    }

    /// The bytes that each agent and each of its two jobs have read, with the time.
    fn look(&self) -> Vec<(Instant, u64, [u64; 2])> {
        let look = |node| {
            let status = self.agent(node).unwrap();
            let of = |name: &str| {
                let jobs = status["jobs"].as_array().unwrap().iter();
                let named = jobs.filter(|job| job["name"].as_str().unwrap().starts_with(name));
                named.map(|job| number(job, "/read_bytes")).sum()
            };
            (Instant::now(), number(&status, "/read_bytes"), ["light", "heavy"].map(of))
        };
        (0..NODES).map(look).collect()
    }

    /// Parts of the limit that are read during a time: all of it, and by each node's jobs.
    fn rates(&self, time: Duration) -> (f64, Vec<[f64; 2]>) {
        let before = self.look();
        std::thread::sleep(time);
        let mut total = 0.0;
        let mut jobs = Vec::new();
        for ((begun, all, each), (ended, all_now, each_now)) in before.iter().zip(self.look()) {
            let took = (ended - *begun).as_secs_f64() * self.limit;
            total += (all_now - all) as f64 / took;
            jobs.push([0, 1].map(|at| (each_now[at] - each[at]) as f64 / took));
        }
        (total, jobs)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // The namespace of processes ends with its first one.
        drop(self.stdin.take());
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// How far parts are from what they should be, as a part of it.
fn furthest(jobs: &[[f64; 2]], expected: [f64; 2]) -> f64 {
    let parts = jobs.iter().flat_map(|of| [0, 1].map(|at| (of[at] / expected[at] - 1.0).abs()));
    parts.fold(0.0, f64::max)
}

#[test]
// semantics: CONTROL-2, CONTROL-3, CONTROL-4, CONTROL-5
fn eight_nodes_hold_one_limit_whatever_happens_to_control() {
    let Some(mut machines) = Machines::new() else { return };
    let is_soak = std::env::var_os("FOREREAD_SOAK").is_some();
    eventually("all jobs read", || {
        let all: Vec<Value> = (0..NODES).filter_map(|node| machines.agent(node)).collect();
        let read = |status: &Value| {
            let jobs = status["jobs"].as_array().unwrap();
            jobs.len() == 2 && jobs.iter().all(|job| number(job, "/read_bytes") > 1_000_000)
        };
        all.len() == NODES && all.iter().all(read)
    });
    // Leases of agents that had no jobs yet come back within a report.
    std::thread::sleep(Duration::from_secs(3));
    let (total, jobs) = machines.rates(Duration::from_secs(5));
    // Sixteen jobs: each heavy one has three times what a light one has.
    let (light, heavy) = (1.0 / 32.0, 3.0 / 32.0);
    let off = furthest(&jobs, [light, heavy]);
    println!("total {total:.4} of the limit, shares within {:.1} %", 100.0 * off);
    assert!(total <= 1.02, "{total}");
    assert!(!is_soak || total >= 0.98 && off < 0.05, "{total} {jobs:?}");

    // A new weight.
    machines.set("weight@*/heavy-*=1");
    let begun = Instant::now();
    let is_equal = |jobs: &[[f64; 2]]| furthest(jobs, [1.0 / 16.0; 2]) < if is_soak { 0.1 } else { 0.3 };
    eventually("the weight is in force", || is_equal(&machines.rates(Duration::from_millis(500)).1));
    let took = begun.elapsed().as_secs_f64();
    println!("a new weight was in force after {took:.1} s, half a second of looking included");
    assert!(!is_soak || took <= 2.5, "{took}");

    // Killed, and restarted after two seconds. Each job reads in each half second.
    machines.say("kill -9 $control; sleep 2");
    machines.start_control();
    let mut most = 0.0_f64;
    for _ in 0..12 {
        let (total, jobs) = machines.rates(Duration::from_millis(500));
        most = most.max(total);
        assert!(jobs.iter().flatten().all(|rate| *rate > 0.0), "a job has read nothing: {jobs:?}");
    }
    println!("while it was restarted, at most {most:.3} of the limit in half a second");
    assert!(most <= 1.1, "{most}");

    // Cut off from half of the nodes, longer than leases hold.
    machines.say("for n in 4 5 6 7; do ip link set outer$n down; done");
    let (mut most, begun) = (0.0_f64, Instant::now());
    while begun.elapsed() < Duration::from_secs(20) {
        let (total, _) = machines.rates(Duration::from_secs(2));
        most = most.max(total);
    }
    let (total, jobs) = machines.rates(Duration::from_secs(3));
    let absent: f64 = jobs[4..].iter().flatten().sum();
    println!("without half of the nodes, at most {most:.4}; then {total:.4}, and {absent:.4} by these");
    assert!(most <= 1.02 && total <= 1.02, "{most} {total}");
    assert!(!is_soak || (absent - 0.5).abs() < 0.02, "{absent}");
    machines.say("for n in 4 5 6 7; do ip link set outer$n up; done");
    eventually("all are connected", || {
        (0..NODES).all(|node| machines.agent(node).unwrap()["control"]["is_connected"] == true)
    });
}

/// The processor time of a process in seconds, and its resident bytes.
fn used_by(process: u32) -> (f64, u64) {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = [11, 12].map(|at| fields[at].parse::<f64>().unwrap()).iter().sum();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    (ticks / 100.0, 1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
}

const AGENTS: usize = 1000;

/// An agent that only reports, for some seconds. Returns whether it was granted a part of a limit.
async fn report_only(address: Address, token: Arc<ClusterToken>, number: usize, seconds: u64) -> bool {
    let timeout = Duration::from_secs(30);
    let identity = token.identity();
    let connection = loop {
        // While many handshakes are under way, others are closed, and agents dial again.
        match ControlConnection::open(&SystemTransport, &address, &identity, None, timeout).await {
            Ok((connection, _)) => break connection,
            Err(_) => tokio::time::sleep(Duration::from_millis(100 + number as u64 % 400)).await,
        }
    };
    let (mut sender, mut receiver) = connection.split();
    let node = format!("node-{number:04}");
    let hello = json!({"versions": [1, 1], "node": node, "instance": node});
    sender.send(1, hello.to_string().into()).await.unwrap();
    let job = |name: &str| {
        json!({"name": name, "process": number, "datasets": ["s3://bucket/train"], "weight": 1, "hits": 5,
               "reads": 9, "read_bytes": 77_000_000, "samples_per_second": 512.5, "stalled_share": 0.5})
    };
    let demand = |name: &str| json!({"store": "s3://bucket", "job": name, "weight": 1, "wanted": null});
    let mut report = json!({
        "demands": [demand("search-1"), demand("search-2")],
        "status": {
            "memory": 1_000_000_000, "jobs": [job("search-1"), job("search-2")],
            "datasets": [{"url": "s3://bucket/train", "samples": 1_000_000, "bytes": 100_000_000_000_u64}],
            "stores": [{"name": "s3://bucket", "bytes_per_second": 1000.0}],
        },
    });
    let (begun, mut sent, mut applied, mut is_granted) = (Instant::now(), 0_u64, 0, false);
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    while begun.elapsed() < Duration::from_secs(seconds) {
        tokio::select! {
            _ = ticks.tick() => {
                sent += 1;
                (report["number"], report["applied"]) = (json!(sent), json!(applied));
                sender.send(2, report.to_string().into()).await.unwrap();
            }
            message = receiver.receive(1 << 20) => {
                let (kind, payload) = message.unwrap().unwrap();
                if kind == 7 {
                    // Notes, which are for a control process after this one.
                    continue;
                }
                assert_eq!(kind, 5);
                let grant: Value = serde_json::from_slice(&payload).unwrap();
                applied = grant["number"].as_u64().unwrap();
                is_granted |= grant["leases"][0]["bytes_per_second"].as_u64().is_some_and(|rate| rate > 1);
                sender.send(3, json!({"number": applied}).to_string().into()).await.unwrap();
            }
        }
    }
    is_granted
}

#[test]
// semantics: CONTROL-9
fn thousand_agents_cost_little_time_and_memory() {
    let seconds = if std::env::var_os("FOREREAD_SOAK").is_some() { 40 } else { 14 };
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let token = private(directory.path().join("token"), ALICE);
    let policy = directory.path().join("agent.toml");
    fs::write(&policy, "[cluster.limit]\n's3://bucket' = '1GB/s'\n").unwrap();
    let socket = directory.path().join("control.sock");
    let mut command = crate::support::foreread(["control", "start", "--listen", "127.0.0.1:0"]);
    command.arg("--tokens").arg(&token).arg("--policy").arg(&policy).arg("--socket").arg(&socket);
    run(&mut command).ok();
    let status = || -> Value {
        let client = Client::connect(&socket.display().to_string()).unwrap();
        serde_json::from_slice(&client.call("status", b"").unwrap()).unwrap()
    };
    let first = status();
    let process = number(&first, "/process") as u32;
    let address: Address = first["address"].as_str().unwrap().parse().unwrap();
    let token = Arc::new(ClusterToken::read(&token).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let agents: Vec<_> = (0..AGENTS)
        .map(|number| runtime.spawn(report_only(address.clone(), Arc::clone(&token), number, seconds)))
        .collect();
    eventually("all are connected", || status()["nodes"].as_array().unwrap().len() == AGENTS);
    std::thread::sleep(Duration::from_secs(4));
    let (begun, (before, _)) = (Instant::now(), used_by(process));
    std::thread::sleep(Duration::from_secs(seconds - 9));
    let (after, resident) = used_by(process);
    let share = (after - before) / begun.elapsed().as_secs_f64();
    let granted: u64 = status()["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| number(node, "/leases/0/bytes_per_second"))
        .sum();
    let results: Vec<bool> = agents.into_iter().map(|agent| runtime.block_on(agent).unwrap()).collect();
    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
    println!("{:.1} % of a core, {:.1} MiB, {granted} of 1 GB/s", 100.0 * share, resident as f64 / 1048576.0);
    assert!(results.iter().all(|is_granted| *is_granted));
    assert!(granted <= 1_000_000_000 + AGENTS as u64, "{granted}");
    assert!(resident < 100 << 20, "{resident}");
    assert!(std::env::var_os("FOREREAD_SOAK").is_none() || share < 0.1, "{share}");
}
