//! Ceph's S3 gateway, for tests against a real S3 service: one monitor, one store, one manager, one
//! gateway, on loopback, from Debian's packages.
//!
//! Decisions: the store keeps its objects in memory (`memstore`). It starts sooner than one in a
//! file, needs no preallocated gigabyte, and leaves nothing to remove. The price is that a dataset
//! must fit in memory (1 GiB for tests). One copy of everything, no high availability, `cephx` on
//! (the gateway never connects without it). Two users are made: `full` may do everything, `reader`
//! only the actions that a bucket's policy allows. The gateway logs each request with its method
//! and path, so that tests count them where they arrive.
//!
//! `cargo xtask ceph` starts it for use by hand.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::test_server::{TestServer, free_ports, status};
use crate::workspace::Workspace;

/// The variable with the gateway, for tests.
pub const VARIABLE: &str = "FOREREAD_TEST_CEPH";

/// Capacity for tests, in bytes.
pub const ROOM: u64 = 1 << 30;

/// Timeout for the start of a daemon. It takes seconds, more on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// Attempts to start: another process may take a port first.
const TRIES: u32 = 3;

/// Entities of the cluster and their capabilities.
const KEYS: &[(&str, &[(&str, &str)])] = &[
    ("mon.", &[("mon", "allow *")]),
    ("client.admin", &[("mon", "allow *"), ("osd", "allow *"), ("mgr", "allow *")]),
    ("osd.0", &[("mon", "allow profile osd"), ("osd", "allow *"), ("mgr", "allow profile osd")]),
    ("mgr.a", &[("mon", "allow profile mgr"), ("osd", "allow *")]),
    (GATEWAY, &[("mon", "allow rw"), ("osd", "allow rwx"), ("mgr", "allow rw")]),
];

const GATEWAY: &str = "client.rgw";

/// The gateway's users.
const USERS: [&str; 2] = ["full", "reader"];

/// Address and keys of a running gateway.
struct Gateway {
    endpoint: String,
    /// Access key and secret key of each of [`USERS`].
    keys: [(String, String); 2],
}

/// Starts a gateway. The value for tests is a JSON object: `endpoint`, `region`, `log` (the
/// gateway's log file), and for each user `access_key` and `secret_key`. It has `room` bytes.
pub fn start(workspace: &Workspace, room: u64) -> Result<TestServer> {
    let began = Instant::now();
    let mut tries = 1;
    let service = loop {
        match start_once(&workspace.services(), room) {
            Ok(service) => break service,
            Err(error) if tries < TRIES => eprintln!("xtask: {error:#}; Ceph is started again"),
            Err(error) => return Err(error.context("Ceph's gateway cannot be started")),
        }
        tries += 1;
    };
    println!("Ceph's gateway is up after {:.1} s", began.elapsed().as_secs_f64());
    Ok(service)
}

fn start_once(home: &Path, room: u64) -> Result<TestServer> {
    let mut service = TestServer::new(home)?;
    let [monitor, gateway] = free_ports()?;
    let cluster = random_id()?;
    let directory = service.directory();
    configure(directory, &cluster, [monitor, gateway], room)?;
    let tool = |program: &str| {
        let mut command = Command::new(program);
        command.env_remove("CEPH_ARGS").env("CEPH_CONF", directory.join("ceph.conf"));
        command
    };
    keys(&service, &tool)?;

    let (map, keyring) = (directory.join("monmap"), directory.join("keyring"));
    let address = format!("[v2:127.0.0.1:{monitor}]");
    let mut make = tool("monmaptool");
    service.run(make.args(["--create", "--fsid", &cluster, "--addv", "a", &address]).arg(&map))?;
    let mut make = tool("ceph-mon");
    make.args(["--mkfs", "-i", "a", "--monmap"]).arg(&map).arg("--keyring").arg(&keyring);
    service.run(&mut make)?;
    service.start("monitor", tool("ceph-mon").args(["-f", "-i", "a"]))?;
    service.start("gateway", tool("radosgw").args(["-f", "-n", GATEWAY]))?;

    let deadline = DEADLINE.as_secs().to_string();
    let store = random_id()?;
    let mut ask = tool("ceph");
    service.run(ask.args(["--connect-timeout", &deadline, "osd", "new", &store]))?;
    service.run(tool("ceph-osd").args(["-i", "0", "--mkfs", "--osd-uuid", &store]))?;
    service.start("store", tool("ceph-osd").args(["-f", "-i", "0"]))?;
    service.start("manager", tool("ceph-mgr").args(["-f", "-i", "a"]))?;
    service.wait("Ceph's gateway", DEADLINE, || status(gateway) == Some(200))?;

    let mut users = Vec::new();
    for user in USERS {
        let (access, secret) = (format!("{user}{}", random_id()?), random_id()?);
        let mut make = tool("radosgw-admin");
        make.args(["user", "create", "--uid", user, "--display-name", user]);
        service.run(make.args(["--access-key", &access, "--secret-key", &secret]))?;
        users.push((access, secret));
    }
    let Ok(keys) = users.try_into() else { bail!("not every user has keys") };
    let gateway = Gateway { endpoint: format!("http://127.0.0.1:{gateway}"), keys };
    let value = gateway.json(&log_of(service.directory()));
    service.set_test_value(value);
    Ok(service)
}

/// Where the gateway logs requests.
fn log_of(directory: &Path) -> String {
    directory.join("gateway.log").display().to_string()
}

fn configure(directory: &Path, cluster: &str, [monitor, gateway]: [u16; 2], room: u64) -> Result<()> {
    let here = directory.display();
    let text = format!(
        "[global]
        fsid = {cluster}
        mon_host = [v2:127.0.0.1:{monitor}/0]
        mon_initial_members = a
        auth_cluster_required = cephx
        auth_service_required = cephx
        auth_client_required = cephx
        keyring = {here}/keyring
        # No sockets and files outside of this directory.
        admin_socket =
        run_dir = {here}
        crash_dir = {here}
        log_file = {here}/$name.log
        mon_data = {here}/monitor
        osd_data = {here}/store
        mgr_data = {here}/manager
        ms_bind_ipv6 = false
        public_addr = 127.0.0.1
        cluster_addr = 127.0.0.1
        osd_objectstore = memstore
        memstore_device_bytes = {room}
        osd_crush_chooseleaf_type = 0
        osd_pool_default_size = 1
        osd_pool_default_min_size = 1
        osd_pool_default_pg_num = 1
        osd_pool_default_pg_autoscale_mode = off
        mon_allow_pool_size_one = true
        # A disk that others have filled is no reason to stop: hardly anything is written to it.
        mon_data_avail_warn = 1
        mon_data_avail_crit = 0
        # Waiting for more changes before any is agreed upon makes sense where there is more than one monitor.
        paxos_propose_interval = 0.05
        [{GATEWAY}]
        log_file = {}
        rgw_data = {here}/gateway
        rgw_frontends = beast endpoint=127.0.0.1:{gateway}
        # Every request, with its method and path.
        debug_rgw = 1\n",
        log_of(directory)
    );
    std::fs::write(directory.join("ceph.conf"), text.replace("\n        ", "\n"))
        .context("cannot write Ceph's configuration")?;
    for name in ["monitor", "store", "manager", "gateway"] {
        std::fs::create_dir(directory.join(name)).context("cannot make a directory for Ceph")?;
    }
    Ok(())
}

fn keys(service: &TestServer, tool: &impl Fn(&str) -> Command) -> Result<()> {
    let keyring = service.directory().join("keyring");
    service.run(tool("ceph-authtool").arg("--create-keyring").arg(&keyring))?;
    for (name, rights) in KEYS {
        let mut make = tool("ceph-authtool");
        make.arg(&keyring).args(["--gen-key", "-n", name]);
        make.args(rights.iter().flat_map(|(of, right)| ["--cap", of, right]));
        service.run(&mut make)?;
    }
    Ok(())
}

/// A new UUID.
fn random_id() -> Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("the kernel gives no UUID")?;
    Ok(id.trim().to_owned())
}

impl Gateway {
    fn json(&self, log: &str) -> String {
        let mut object = serde_json::json!({"endpoint": self.endpoint, "region": "us-east-1", "log": log});
        for (user, (access, secret)) in USERS.iter().zip(&self.keys) {
            object[user] = serde_json::json!({"access_key": access, "secret_key": secret});
        }
        object.to_string()
    }
}

/// Whether it is installed.
pub fn is_there() -> bool {
    Command::new("radosgw").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// `cargo xtask ceph`: a gateway for use by hand, until Ctrl-C.
pub fn serve() -> Result<bool> {
    let workspace = Workspace::load()?;
    let service = start(&workspace, ROOM)?;
    print!("{}", exports(&service.test_value().to_string_lossy(), VARIABLE)?);
    println!("# Ctrl-C ends it and removes what was stored");
    loop {
        std::thread::sleep(Duration::from_secs(1));
        service.check()?;
    }
}

/// Shell commands that select the gateway and the user `full`.
fn exports(gateway: &str, variable: &str) -> Result<String> {
    let of: serde_json::Value = serde_json::from_str(gateway).context("the server's value is not JSON")?;
    let value = |pointer: &str| of.pointer(pointer).and_then(|value| value.as_str()).unwrap_or_default();
    let mut text = String::new();
    for (name, value) in [
        ("AWS_ENDPOINT_URL", value("/endpoint")),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", value("/region")),
        ("AWS_ACCESS_KEY_ID", value("/full/access_key")),
        ("AWS_SECRET_ACCESS_KEY", value("/full/secret_key")),
        (variable, gateway),
    ] {
        let _ = writeln!(text, "export {name}='{value}'");
    }
    let _ = writeln!(text, "# requests are logged in {}", value("/log"));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_exports_match_the_value_for_tests() {
        let keys = ["full", "reader"].map(|user| (format!("{user}-access"), format!("{user}-secret")));
        let value = Gateway { endpoint: "http://127.0.0.1:7".into(), keys }.json("/x/gateway.log");
        let text = exports(&value, "FOREREAD_TEST_CEPH").unwrap();
        for line in [
            "export AWS_ENDPOINT_URL='http://127.0.0.1:7'",
            "export AWS_SECRET_ACCESS_KEY='full-secret'",
            &format!("export FOREREAD_TEST_CEPH='{value}'"),
            "# requests are logged in /x/gateway.log",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(value.contains("reader-secret") && exports("{", "X").is_err());
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(random_id().unwrap(), random_id().unwrap());
        assert_eq!(random_id().unwrap().len(), 36);
    }
}
