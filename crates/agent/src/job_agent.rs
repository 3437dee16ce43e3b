//! An agent for the processes of one job on a node, which one of them hosts.
//!
//! The first process that locks the directory of the socket hosts the agent. The others try again
//! once a second, so that one of them takes over if it ends. All of them are jobs of the agent, by
//! its socket, and read storage by themselves while there is none.
//!
//! Decision: this is the agent as it is, in a process of the job. So scripts that are not changed
//! share one cache with any order. They use the protocol of an agent that a user has started. The
//! price is a thread in each process, and a cache that is empty after a takeover. The thread has
//! the agent meet those of other nodes, too.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foreread_host::cluster_cache::text_hash;
use foreread_launcher::{Launched, LauncherEnv, Rendezvous};
use foreread_open::memory_group::memory_group;
use foreread_store::Client;
use foreread_tier::user_directory;

use crate::error::AgentError;
use crate::job_nodes::{AgentMeetings, JobNodes, MeetingStep};
use crate::{Agent, AgentSettings};

/// How often a process tries to host the agent.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a start waits until an agent serves. Then the process begins without one.
const START_TIMEOUT: Duration = Duration::from_secs(5);

const POLL: Duration = Duration::from_millis(5);

/// The processes of a job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeJob {
    /// How many they are.
    pub ranks: u32,
    /// The name of their directory.
    name: String,
}

impl NodeJob {
    /// The job that a launcher has started this process for. `None` without a launcher that says
    /// how many processes the node has.
    pub fn launched() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let parent = std::os::unix::process::parent_id();
        Self::of(&LauncherEnv::of_this_process(&variable), parent, &memory_group())
    }

    fn of(environment: &LauncherEnv<'_>, parent: u32, memory: &str) -> Option<Self> {
        let launched = Launched::by(environment).ok().flatten()?;
        let ranks = launched.on_node()?;
        // Without a name of the job, its processes have one parent.
        let job = if launched.job.is_empty() { parent.to_string() } else { launched.job };
        // Jobs on other nodes may have the same name, and one node of this job.
        let host = match &launched.rendezvous {
            Some(Rendezvous::Host { host, .. }) => host,
            Some(Rendezvous::List(all)) => all.first().map_or("", |(host, _)| host),
            Some(Rendezvous::Node { .. } | Rendezvous::Directory(_)) | None => "",
        };
        let words = format!("{} {job} {} {host}", launched.launcher, launched.world_size);
        Some(Self::named(ranks, &words, memory))
    }

    /// The job of processes that this one's parent has started on this machine, without a launcher.
    /// `group` names them among the children of the parent.
    pub fn spawned(ranks: u32, group: &str) -> Self {
        let parent = std::os::unix::process::parent_id();
        Self::named(ranks, &format!("spawned {parent} {group} {ranks}"), &memory_group())
    }

    fn named(ranks: u32, job: &str, memory: &str) -> Self {
        // The memory counts for the host, so processes that are limited apart share none. The name
        // is short, because paths of sockets are.
        let name = format!("job-{:016x}", text_hash(&format!("{job} {memory}")));
        Self { ranks, name }
    }

    /// The socket of the agent that they share.
    pub fn socket(&self) -> PathBuf {
        user_directory().join(&self.name).join("node.sock")
    }
}

/// A message to the thread that hosts the agent.
enum HostCommand {
    /// The agent is to meet those of the other nodes.
    Meet(Box<JobNodes>),
    /// A step of the meeting of the agent with this number.
    Step(u64, MeetingStep),
    End,
}

/// This process's part in an agent of its job. Dropping it ends the agent, if it is hosted here.
#[derive(Debug)]
pub struct JobAgent {
    socket: PathBuf,
    commands: Sender<HostCommand>,
    thread: Option<JoinHandle<()>>,
}

impl JobAgent {
    /// Hosts the agent of these settings, or waits until another process does. Returns once an
    /// agent serves, at the latest after five seconds.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn start(settings: AgentSettings) -> Result<Self, AgentError> {
        let socket = settings.socket.clone();
        let (commands, received) = mpsc::channel();
        let own = commands.clone();
        let hosting = std::thread::Builder::new()
            .name("foreread-host".to_owned())
            .spawn(move || host(&settings, &own, &received));
        let thread = hosting.map_err(|error| AgentError::system("cannot start a thread", error))?;
        let begun = Instant::now();
        // The host of another process may be stopped.
        let is_late = || begun.elapsed() >= START_TIMEOUT;
        while !serves(&socket, &mut || is_late()) && !thread.is_finished() && !is_late() {
            std::thread::sleep(POLL);
        }
        Ok(Self { socket, commands, thread: Some(thread) })
    }

    /// Lets the agent meet those of the other nodes in the background, while it is hosted here.
    pub fn meet(&self, nodes: JobNodes) {
        // The thread has ended if no agent can be hosted.
        let _ = self.commands.send(HostCommand::Meet(Box::new(nodes)));
    }

    /// The path of the agent's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for JobAgent {
    fn drop(&mut self) {
        let _ = self.commands.send(HostCommand::End);
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
        // It stays while another process uses it.
        let _ = self.socket.parent().map(std::fs::remove_dir);
    }
}

/// Hosts an agent whenever no other process does, until the end.
fn host(settings: &AgentSettings, own: &Sender<HostCommand>, commands: &Receiver<HostCommand>) {
    let (mut hosted, mut number): (Option<Agent>, u64) = (None, 0);
    // The first process of a node warns for all of them.
    let mut is_first = true;
    let mut meetings: Option<AgentMeetings> = None;
    loop {
        if hosted.as_ref().is_none_or(Agent::is_stopped) {
            drop(hosted.take());
            match Agent::start(settings.clone()) {
                Ok(agent) => (hosted, number) = (Some(agent), number + 1),
                // Another process hosts it.
                Err(AgentError::InUse { .. }) => is_first = false,
                // That process has just ended, and has removed the directory.
                Err(AgentError::System { error, .. }) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(%error, "the processes of this node share no cache");
                    return;
                }
            }
        }
        if let (Some(agent), Some(meetings)) = (&mut hosted, &mut meetings) {
            let (report, of) = (own.clone(), number);
            // The thread has ended otherwise.
            let report = move |step| drop(report.send(HostCommand::Step(of, step)));
            meetings.begin(number, agent.leave(), agent.runtime(), report);
            if let Some(warning) = meetings.due(agent.shares_with(), Instant::now()) {
                tracing::warn!("{warning}");
            }
        }
        match commands.recv_timeout(AGAIN) {
            Ok(HostCommand::Meet(nodes)) => meetings = Some(AgentMeetings::new(*nodes, is_first)),
            Ok(HostCommand::Step(of, step)) if of == number => {
                let met = meetings.as_mut().and_then(|meetings| meetings.note(step));
                if let (Some(agent), Some(met)) = (&mut hosted, met)
                    && let Err(error) = agent.join(met, settings.config.clone())
                {
                    tracing::warn!(%error, "this node reads storage without the caches of the other nodes");
                }
            }
            Ok(HostCommand::Step(..)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(HostCommand::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Whether an agent answers at a socket before `stop` returns true.
fn serves(socket: &Path, stop: &mut dyn FnMut() -> bool) -> bool {
    socket.exists() && Client::connect_with(&socket.display().to_string(), stop).is_ok()
}

#[cfg(test)]
mod tests {
    use foreread::Config;

    use super::*;

    fn settings(socket: &Path) -> AgentSettings {
        AgentSettings {
            socket: socket.to_owned(),
            memory: 1 << 20,
            config: Config::default(),
            policy: PathBuf::new(),
            http: None,
            control: None,
        }
    }

    #[test]
    fn processes_of_a_job_have_one_socket() {
        let job = |variables: &[(&str, &str)], memory| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(is, _)| *is == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            NodeJob::of(&LauncherEnv::new(&variable, 7, 8), 8, memory)
        };
        let torchrun_in = |memory, rank, port| {
            let all = [("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", port)];
            job(&[&all[..], &[("RANK", rank), ("WORLD_SIZE", "4"), ("LOCAL_RANK", rank)]].concat(), memory)
                .unwrap()
        };
        let torchrun = |rank, port| torchrun_in("0::/", rank, port);
        assert_eq!((torchrun("0", "29500").ranks, torchrun("1", "29500")), (2, torchrun("0", "29500")));
        assert_ne!(torchrun("0", "29500").socket(), torchrun("0", "29501").socket());
        assert_ne!(torchrun_in("0::/a", "0", "1").socket(), torchrun_in("0::/b", "1", "1").socket());
        assert_eq!(job(&[], ""), None);
    }

    #[test]
    fn another_process_takes_over_and_the_last_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("job/node.sock");
        let first = JobAgent::start(settings(&socket)).unwrap();
        let second = JobAgent::start(settings(&socket)).unwrap();
        assert!(serves(&socket, &mut || false));
        drop(first);
        foreread_tier_testing::until("the second one hosts", || serves(&socket, &mut || false));
        drop(second);
        assert!(!serves(&socket, &mut || false));
    }
}
