//! A control process with a thousand agents that only report.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foreread_agent::ClusterToken;
use foreread_connection::{Address, ControlConnection, SystemTransport, WireError};
use foreread_store::Client;
use foreread_tier_testing::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{ALICE, private};
use crate::support::{foreread, is_soak, number, run};

/// A control process, which ends with this.
struct ControlProcess(u32);

impl Drop for ControlProcess {
    fn drop(&mut self) {
        // It may have ended.
        let _ = Pid::from_raw(self.0 as i32).map(|process| kill_process(process, Signal::KILL));
    }
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

/// An agent that only reports, each second, until the sender of `ends` is dropped. It is counted
/// once it was granted a part of a limit. It dials again when its connection ends, as agents do:
/// the control process closes connections of agents that are late on a busy machine.
async fn report_only(
    (address, token): (Address, Arc<ClusterToken>),
    number: usize,
    granted: Arc<AtomicUsize>,
    mut ends: oneshot::Receiver<()>,
) {
    let mut is_granted = false;
    let mut first_part = || {
        if !std::mem::replace(&mut is_granted, true) {
            granted.fetch_add(1, Ordering::Relaxed);
        }
    };
    loop {
        tokio::select! {
            _ = &mut ends => break,
            _ended = report_on_a_connection(&address, &token, number, &mut first_part) => {}
        }
        tokio::time::sleep(Duration::from_millis(100 + number as u64 % 400)).await;
    }
}

/// Connects, and reports until the connection ends. `has_part` is called with each grant of a part.
async fn report_on_a_connection(
    address: &Address,
    token: &ClusterToken,
    number: usize,
    has_part: &mut impl FnMut(),
) -> Result<(), WireError> {
    let timeout = Duration::from_secs(300);
    let identity = token.identity();
    let (connection, _) =
        ControlConnection::open(&SystemTransport, address, &identity, None, timeout).await?;
    let (mut sender, mut receiver) = connection.split();
    let node = format!("node-{number:04}");
    let addresses = [format!("10.1.{}.{}:7401", number / 256, number % 256)];
    let hello = json!({"versions": [1, 1], "node": node, "instance": node, "addresses": addresses});
    sender.send(1, hello.to_string().into()).await?;
    let mut report = report_of(number);
    let (mut sent, mut applied) = (0_u64, 0);
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                sent += 1;
                (report["number"], report["applied"]) = (json!(sent), json!(applied));
                sender.send(2, report.to_string().into()).await?;
            }
            message = receiver.receive(1 << 20) => {
                let Some((kind, payload)) = message? else { return Ok(()) };
                if [0, 7, 8].contains(&kind) {
                    // Heartbeats, notes for a control process after this one, and rosters.
                    continue;
                }
                assert_eq!(kind, 5);
                let grant: Value = serde_json::from_slice(&payload).unwrap();
                applied = grant["number"].as_u64().unwrap();
                if grant["leases"][0]["bytes_per_second"].as_u64().is_some_and(|rate| rate > 1) {
                    has_part();
                }
                sender.send(3, json!({"number": applied}).to_string().into()).await?;
            }
        }
    }
}

/// The report of an agent with two jobs.
fn report_of(number: usize) -> Value {
    let job = |name: &str| {
        json!({"name": name, "process": number, "datasets": ["s3://bucket/train"], "weight": 1, "hits": 5,
               "reads": 9, "read_bytes": 77_000_000, "samples_per_second": 512.5, "stalled_share": 0.5})
    };
    let demand = |name: &str| json!({"store": "s3://bucket", "job": name, "weight": 1, "wanted": null});
    json!({
        "demands": [demand("search-1"), demand("search-2")],
        "status": {
            "process": number + 1, "memory": 1_000_000_000, "jobs": [job("search-1"), job("search-2")],
            "datasets": [{"url": "s3://bucket/train", "samples": 1_000_000, "bytes": 100_000_000_000_u64}],
            "stores": [{"name": "s3://bucket", "bytes_per_second": 1000.0}],
        },
    })
}

#[test]
// semantics: CONTROL-9
fn thousand_agents_cost_little_time_and_memory() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let token = private(directory.path().join("token"), ALICE);
    let policy = directory.path().join("agent.toml");
    fs::write(&policy, "[cluster.limit]\n's3://bucket' = '1GB/s'\n").unwrap();
    let socket = directory.path().join("control.sock");
    let mut command = foreread(["control", "start", "--listen", "127.0.0.1:0"]);
    command.arg("--tokens").arg(&token).arg("--policy").arg(&policy).arg("--socket").arg(&socket);
    run(&mut command).ok();
    let status = || -> Value {
        let client = Client::connect(&socket.display().to_string()).unwrap();
        serde_json::from_slice(&client.call("status", b"").unwrap()).unwrap()
    };
    let first = status();
    let process = number(&first, "/process") as u32;
    let control = ControlProcess(process);
    let address: Address = first["address"].as_str().unwrap().parse().unwrap();
    let token = Arc::new(ClusterToken::read(&token).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let granted = Arc::new(AtomicUsize::new(0));
    let agents: Vec<_> = (0..AGENTS)
        .map(|number| {
            let (ending, ends) = oneshot::channel();
            let target = (address.clone(), Arc::clone(&token));
            (runtime.spawn(report_only(target, number, Arc::clone(&granted), ends)), ending)
        })
        .collect();
    until("all are connected", || status()["nodes"].as_array().unwrap().len() == AGENTS);
    until("all have a part of the limit", || granted.load(Ordering::Relaxed) == AGENTS);
    if is_soak() {
        let (begun, (before, _)) = (Instant::now(), used_by(process));
        std::thread::sleep(Duration::from_secs(31));
        let share = (used_by(process).0 - before) / begun.elapsed().as_secs_f64();
        println!("{:.1} % of a core", 100.0 * share);
        assert!(share < 0.1, "{share}");
    }
    let (_, resident) = used_by(process);
    let granted: u64 = status()["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| number(node, "/leases/0/bytes_per_second"))
        .sum();
    for (agent, ending) in agents {
        drop(ending);
        runtime.block_on(agent).unwrap();
    }
    drop(control);
    println!("{:.1} MiB, {granted} of 1 GB/s", resident as f64 / 1048576.0);
    assert!(granted <= 1_000_000_000 + AGENTS as u64, "{granted}");
    assert!(resident < 100 << 20, "{resident}");
}
