//! An agent over HTTP: its page, status and metrics, with real jobs.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use foreread_tier_testing::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::agent_node::PATIENT;
use crate::support::{Samples, assert_digests, foreread, number, run};

/// An agent with a loopback port, and a directory of samples.
pub struct ShownAgent {
    pub samples: Samples,
    directory: TempDir,
    process: u32,
}

impl ShownAgent {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let mut agent = Self { samples: Samples::awkward(200, 5_000), directory, process: 0 };
        agent.restart("127.0.0.1:0");
        agent
    }

    /// Starts the agent's process.
    pub fn restart(&mut self, address: &str) {
        run(&mut self.agent(&["start", "--memory", "500KB", "--http", address])).ok();
        self.process = number(&self.status(), "/process") as u32;
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn agent(&self, arguments: &[&str]) -> Command {
        let mut command = foreread(["agent"]);
        command.args(arguments).arg("--socket").arg(self.file("node.sock"));
        command
    }

    /// `agent status --report json`.
    fn status(&self) -> Value {
        run(&mut self.agent(&["status", "--report", "json"])).json()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process as i32).unwrap(), signal).unwrap();
    }

    /// A job that uses the agent.
    fn job(&self, arguments: &[&str]) -> Command {
        let mut command = foreread(["load", "--progress", "off", "--report", "json"]);
        command.arg(self.samples.path()).args(arguments).arg("--agent").arg(self.file("node.sock"));
        command.env(PATIENT.0, PATIENT.1);
        command
    }

    /// A job with this name that runs until it is dropped.
    pub fn endless_job(&self, name: &str) -> EndlessJob {
        let mut command = self.job(&["--epochs", "1000000", "--compute-ms", "50"]);
        command.arg0(name).stdout(Stdio::null()).stderr(Stdio::null());
        EndlessJob(command.spawn().unwrap())
    }

    /// The page's link.
    pub fn link(&self) -> String {
        fs::read_to_string(self.file("http.url")).unwrap().trim().to_owned()
    }

    pub fn address(&self) -> SocketAddr {
        let link = self.link();
        link.strip_prefix("http://").unwrap().split('/').next().unwrap().parse().unwrap()
    }

    /// The body of a path, from the Unix socket.
    fn get(&self, path: &str) -> String {
        let (status, body) = get(UnixStream::connect(self.file("http.sock")).unwrap(), path);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    fn get_json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path)).unwrap()
    }
}

impl Drop for ShownAgent {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.process as i32).unwrap(), Signal::KILL);
    }
}

/// A job that runs until it is dropped.
pub struct EndlessJob(Child);

impl Drop for EndlessJob {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The status and the body of an answer.
fn get(mut stream: impl Read + Write, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
// semantics: AGENT-20
fn status_and_metrics_are_those_of_the_jobs() {
    let agent = ShownAgent::start();
    let text = run(&mut agent.agent(&["status"])).ok();
    let link = text.lines().find_map(|line| line.strip_prefix("page         ")).unwrap();
    let token = fs::read_to_string(agent.file("http.token")).unwrap();
    assert_eq!(link, format!("http://{}/?token={}", agent.address(), token.trim()));
    assert!(!agent.status().to_string().contains(token.trim()));
    let report = run(&mut agent.job(&["--epochs", "2", "--digest"])).json();
    assert_digests(&agent.samples, &report);
    let _job = agent.endless_job("train \"one\"");
    until("the job is shown", || {
        let jobs = agent.get_json("/api/v1/status")["jobs"].clone();
        jobs.as_array().is_some_and(|jobs| jobs.len() == 1 && jobs[0]["name"] == "train \"one\"")
    });
    let before = agent.status();
    until("its reads are shown", || {
        let shown = agent.get_json("/api/v1/status");
        ["/hits", "/reads", "/read_bytes"].iter().all(|it| number(&shown, it) >= number(&before, it))
    });
    let shown = agent.get_json("/api/v1/status");
    let url = agent.samples.path().to_str().unwrap();
    assert_eq!((&shown["memory"], &shown["process"]), (&before["memory"], &before["process"]));
    assert_eq!((&shown["datasets"][0]["url"], &shown["datasets"][0]["samples"]), (&url.into(), &200.into()));
    let metrics = agent.get("/metrics");
    let process = number(&shown, "/jobs/0/process");
    let line = format!("foreread_agent_job_weight{{program=\"train \\\"one\\\"\",process=\"{process}\"}} ");
    assert!(metrics.contains(&line), "{metrics}");
    assert!(
        metrics.contains(&format!("foreread_agent_dataset_samples{{dataset=\"{url}\"}} 200\n")),
        "{metrics}"
    );
    until("each second is a point", || {
        let history = agent.get_json("/api/v1/history");
        let points = history["points"].as_array().unwrap().clone();
        points.len() > 2 && points.last().unwrap()["jobs"][0]["process"] == process
    });
}

#[test]
// semantics: AGENT-20
fn addresses_that_others_reach_are_usage_errors() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let socket = directory.path().join("node.sock");
    for address in ["0.0.0.0:0", "192.0.2.1:80", "[::]:0", "127.0.0.1", "localhost:80", ""] {
        for command in ["start", "serve"] {
            let arguments = ["agent", command, "--memory", "5MB", "--http", address, "--socket"];
            let line = run(foreread(arguments).arg(&socket)).fails(2);
            assert!(line.contains("--http") && line.contains("127.0.0.1:0"), "{line}");
        }
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["agent", "start", "--memory", "5MB", "--http", &address, "--socket"];
    let line = run(foreread(arguments).arg(&socket)).fails(1);
    assert!(line.contains(&format!("cannot listen on {address}")), "{line}");
    assert!(!socket.exists() && !directory.path().join("http.sock").exists());
}

#[test]
fn agent_of_a_command_shows_its_page() {
    let foreread_path = crate::support::binary().to_str().unwrap();
    let script = format!("{foreread_path} agent status");
    let words = ["agent", "run", "--memory", "5MB", "--http", "127.0.0.1:0", "--", "sh", "-c", &script];
    let done = run(&mut foreread(words));
    let notice = done.stderr.lines().find(|line| line.contains("page is at http://127.0.0.1:")).unwrap();
    assert!(!notice.contains("token"), "{notice}");
    let link = Path::new(notice.split("; ").nth(1).unwrap().split(' ').next().unwrap());
    assert!(link.ends_with("http.url") && !link.exists(), "{notice}");
    let text = done.ok();
    assert!(text.contains("page         http://127.0.0.1:") && text.contains("/?token="), "{text}");
    // Without a port, there is no token.
    let words = ["agent", "run", "--memory", "5MB", "--", "sh", "-c", &script];
    let text = run(&mut foreread(words)).ok();
    assert!(text.contains("page         at the Unix socket") && !text.contains("token"), "{text}");
}

#[test]
// semantics: AGENT-22
fn silent_clients_delay_no_job_and_no_owner() {
    let agent = ShownAgent::start();
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(agent.address()).unwrap()).collect();
    // Clients that request much, and receive nothing.
    let greedy: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = UnixStream::connect(agent.file("http.sock")).unwrap();
            let request = "GET /uPlot.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let report = run(&mut agent.job(&["--epochs", "2", "--digest"])).json();
    assert_digests(&agent.samples, &report);
    assert_eq!(number(&report, "/agent/direct_samples"), 0);
    assert!(agent.get("/metrics").contains("foreread_agent_jobs"));
    drop((silent, greedy));
}
