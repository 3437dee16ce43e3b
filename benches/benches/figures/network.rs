//! Two ranks on a link of 1 Gbit/s, each in a separate network namespace. The figure is the
//! bandwidth of samples from the other rank, compared with that of iperf3 on the same link just
//! before.
//!
//! Needs root, iproute2 and iperf3, and is skipped without them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use foreread_benches::table::{Figure, Goal};
use serde::Deserialize;

/// Sets up two network namespaces and runs in them iperf3, then two ranks with memory for all.
const SCRIPT: &str = r#"
set -e
ip link set lo up
mount -t tmpfs tmpfs /run/netns 2>/dev/null || { mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns; }
for n in 0 1; do ip netns add n$n; done
ip link add wire0 netns n0 type veth peer name wire1 netns n1
for n in 0 1; do
    ip -n n$n addr add 10.8.0.$((n + 1))/24 dev wire$n
    ip -n n$n link set lo up
    ip -n n$n link set wire$n up
    ip netns exec n$n tc qdisc add dev wire$n root tbf rate 1gbit burst 512k latency 20ms
done
ip netns exec n0 iperf3 --server --one-off > /dev/null &
sleep 0.5
ip netns exec n1 iperf3 --client 10.8.0.1 --time 5 --json > iperf.json
for n in 0 1; do
    RANK=$n WORLD_SIZE=2 FOREREAD_MEET=10.8.0.1:29100 FOREREAD_TOKEN=b7e1c95a03f64d2893ab5c17e0d68f42 \
        ip netns exec n$n "$PROGRAM" --part ranks run "$DATASET" 1073741824 0 > rank-$n.json &
done
wait
"#;

#[derive(Deserialize)]
struct IperfReport {
    end: IperfEnd,
}

#[derive(Deserialize)]
struct IperfEnd {
    sum_received: IperfSum,
}

#[derive(Deserialize)]
struct IperfSum {
    bits_per_second: f64,
}

pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let is_installed = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !is_installed("iperf3") || !is_installed("ss") || !rustix::process::geteuid().is_root() {
        eprintln!("network: skipped, needs root, iproute2 and iperf3");
        return Ok(Vec::new());
    }
    let work_directory = tempfile::tempdir()?;
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT])
        .env("PROGRAM", std::env::current_exe()?)
        .env("DATASET", directory)
        .current_dir(&work_directory)
        .status()?;
    ensure!(status.success(), "the script failed: {status}");
    let read = |name: &str| {
        std::fs::read_to_string(work_directory.path().join(name)).with_context(|| format!("no {name}"))
    };
    let iperf: IperfReport = serde_json::from_str(&read("iperf.json")?)?;
    let link = iperf.end.sum_received.bits_per_second / 8.0;
    let mut used = f64::MAX;
    for rank in 0..2 {
        let found: super::ranks::RankMeasurement =
            serde_json::from_str(&read(&format!("rank-{rank}.json"))?)?;
        used = used.min(found.received_bytes / found.seconds);
    }
    let what = "2 ranks on a link of 1 Gbit/s: bandwidth of peer samples / iperf3's";
    let note = format!("{:.1} of {:.1} MB/s, in both directions at once", used / 1e6, link / 1e6);
    Ok(vec![Figure::new(what, Goal::AtLeast(0.95), used / link, "times").note(note)])
}
