//! The state of the control process: the cluster, the connections of agents, and the log of changes
//! with their users.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use foreread_connection::{Identity, SessionSender};
use foreread_host::policy::{CLUSTER_WORDS, Policy, PolicyError, PolicySource};
use foreread_host::policy_file::PolicyFile;
use tokio::sync::Notify;

use super::cluster::Cluster;
use super::messages::{ClusterNotes, Hello};
use super::serving::Outgoing;
use super::status::ControlChange;
use super::tokens::ClusterToken;

/// The changes that the status shows.
const MAX_CHANGES: usize = 100;

#[derive(Debug)]
pub(super) struct ControlState {
    cluster: Mutex<Cluster>,
    /// By the number of a connection.
    connections: Mutex<HashMap<u64, SessionSender>>,
    next_connection: AtomicU64,
    /// One for each token, which has the name.
    pub(super) identities: Vec<Identity>,
    users: HashMap<u64, String>,
    /// Signals that grants may have changed.
    pub(super) changed: Notify,
    begun: Instant,
    file: Mutex<PolicyFile>,
    pub(super) file_name: String,
    mistake: Mutex<Option<String>>,
    changes: Mutex<VecDeque<ControlChange>>,
    is_stopped: AtomicBool,
}

/// Every change is complete before a lock is released, even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ControlState {
    /// The state without agents. It waits `settled` for those of an earlier process.
    ///
    /// # Errors
    /// A mistake in the policy file.
    pub(super) fn new(
        tokens: &[ClusterToken],
        mut file: PolicyFile,
        settled: Duration,
    ) -> Result<Self, PolicyError> {
        let policy = Policy::new(CLUSTER_WORDS);
        let policy = match file.changed().transpose()? {
            Some(values) => policy.with_file(values),
            None => policy,
        };
        let identities: Vec<Identity> = tokens.iter().map(ClusterToken::identity).collect();
        let users = identities.iter().zip(tokens).map(|(it, token)| (it.job, token.name.clone())).collect();
        Ok(Self {
            cluster: Mutex::new(Cluster::new(policy, settled)),
            connections: Mutex::default(),
            next_connection: AtomicU64::new(1),
            identities,
            users,
            changed: Notify::new(),
            begun: Instant::now(),
            file_name: file.path().display().to_string(),
            file: Mutex::new(file),
            mistake: Mutex::default(),
            changes: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// The name of the token of a job.
    pub(super) fn user(&self, job: u64) -> Option<String> {
        self.users.get(&job).cloned()
    }

    /// Notes with the proof that this process, or one before it, has written them.
    pub(super) fn sealed(&self, notes: ClusterNotes) -> ClusterNotes {
        notes.sealed(self.identities.iter().map(|identity| &identity.token))
    }

    /// Time since the start, which all of the cluster's times count from.
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(super) fn with_cluster<T>(&self, work: impl FnOnce(&mut Cluster, Duration) -> T) -> T {
        let mut cluster = lock(&self.cluster);
        // The time is taken under the lock, so it never goes back.
        let now = self.now();
        work(&mut cluster, now)
    }

    /// Handles the hello of an agent. Returns the number of its connection, and its name.
    pub(super) fn hello(
        &self,
        user: &str,
        hello: Hello,
        outgoing: SessionSender,
    ) -> Result<(u64, String), String> {
        let number = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let mut hello = hello;
        // Agents keep notes, and do not write them.
        hello.notes = hello.notes.filter(|notes| *notes == self.sealed(notes.clone()));
        lock(&self.connections).insert(number, outgoing);
        let welcomed = self.with_cluster(|cluster, now| cluster.hello(number, user, hello, now));
        match welcomed {
            Ok(name) => {
                self.changed.notify_one();
                Ok((number, name))
            }
            Err(why) => {
                lock(&self.connections).remove(&number);
                Err(why)
            }
        }
    }

    pub(super) fn disconnected(&self, name: &str, connection: u64) {
        lock(&self.connections).remove(&connection);
        self.with_cluster(|cluster, _| cluster.disconnected(name, connection));
        self.changed.notify_one();
    }

    /// Sends a message to an agent. An agent that does not read its messages is disconnected.
    pub(super) fn send(&self, connection: u64, (kind, payload): Outgoing) {
        let mut connections = lock(&self.connections);
        if connections.get(&connection).is_some_and(|outgoing| !outgoing.try_send(kind, payload.clone())) {
            // Its writer ends, and with it the connection.
            connections.remove(&connection);
        }
    }

    /// Changes the policy, at once. All changes are made, or none.
    pub(super) fn set(&self, changes: &[String], by: &str) -> Result<(), PolicyError> {
        self.with_cluster(|cluster, _| {
            let mut policy = cluster.policy().clone();
            for change in changes {
                policy.set_text(change, PolicySource::Set)?;
            }
            cluster.set_policy(policy);
            Ok(())
        })?;
        changes.iter().for_each(|change| self.note(change, by));
        self.changed.notify_one();
        Ok(())
    }

    /// Forgets an agent that is gone.
    pub(super) fn forget(&self, node: &str, by: &str) -> Result<(), PolicyError> {
        self.with_cluster(|cluster, now| cluster.forget(node, now))?;
        self.note(&format!("forget {node}"), by);
        self.changed.notify_one();
        Ok(())
    }

    /// Makes the agents fill their memory with a dataset. Returns their number.
    pub(super) fn warm(&self, target: &str, by: &str) -> usize {
        let number = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        let count = self.with_cluster(|cluster, now| cluster.warm(target, number, now));
        self.note(&format!("warm {target}"), by);
        self.changed.notify_one();
        count
    }

    /// Reads the policy file again, if it has changed. May take as long as its file server.
    pub(super) fn reload(&self) {
        let Some(read) = lock(&self.file).changed() else { return };
        match read {
            Ok(values) => {
                self.with_cluster(|cluster, _| {
                    let policy = cluster.policy().with_file(values);
                    cluster.set_policy(policy);
                });
                *lock(&self.mistake) = None;
                self.note("the policy file was read again", &self.file_name);
                self.changed.notify_one();
            }
            Err(error) => {
                tracing::warn!(%error, "the policy file has a mistake, and the policy stays as it was");
                *lock(&self.mistake) = Some(error.to_string());
            }
        }
    }

    pub(super) fn mistake(&self) -> Option<String> {
        lock(&self.mistake).clone()
    }

    /// Logs a change.
    fn note(&self, change: &str, by: &str) {
        tracing::info!(change, by, "a change");
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        let mut changes = lock(&self.changes);
        if changes.len() >= MAX_CHANGES {
            changes.pop_front();
        }
        changes.push_back(ControlChange { time, by: by.to_owned(), change: change.to_owned() });
    }

    /// The last changes, the newest one last.
    pub(super) fn changes(&self) -> Vec<ControlChange> {
        lock(&self.changes).iter().cloned().collect()
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }
}
