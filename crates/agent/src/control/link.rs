//! An agent's connection to the control process of its cluster.
//!
//! The agent dials, and dials again when the connection breaks or the control process is silent. It
//! reports once per second, and at once when a job begins to wait for its turn at an origin. No job
//! waits for any of this: the last grant holds until its leases end.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::AgentError;
use bytes::Bytes;
use foreread_connection::{
    Address, Backoff, ControlConnection, Identity, ParseWireError, Session, SessionBounds, SystemTransport,
    WireError, WireErrorKind, WireProtection,
};
use foreread_host::cluster_cache::{
    ClusterCache, ClusterMember, ClusterRoster, ShareServer, StoreName, text_hash,
};
use foreread_host::held_leases::SILENT;
use foreread_host::host_control::ControlGrant;
use foreread_host::host_state::HostState;
use foreread_host::json::{decoded, encoded};
use foreread_host::provider::HostProvider;
use foreread_host::status::AgentStatus;
use foreread_peer::meet::NodeMeeting;
use foreread_store::StoreJob;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::ClusterToken;
use super::cluster::wrong_node_name;
use super::intervals::REPORT_INTERVAL;
use super::messages::{
    APPLIED, Applied, ClusterNotes, GOODBYE, GRANT, Grant, HELLO, Hello, MAX_GRANT, MAX_ORIGINS, NOTES,
    OriginDemand, REFUSED, REPORT, ROSTER, Report, VERSIONS,
};
use super::serving::MAX_WAITING;
use super::warm_part::{OwnAgent, warm};

/// How often the agent looks at the requests of its jobs, and at the end of leases.
const LOOK: Duration = Duration::from_millis(200);

/// The pauses before an agent dials again, the first and the longest. A refused one waits longer.
const DIAL_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(350));
const REFUSED_AGAIN: Duration = Duration::from_secs(2);

/// The bounds of its session.
const BOUNDS: SessionBounds = SessionBounds {
    heartbeat: REPORT_INTERVAL,
    silence: SILENT,
    send: SILENT,
    most: MAX_GRANT,
    queue: MAX_WAITING,
};

/// How long a start waits for the first grant, and an end for the message about it.
const FIRST_GRANT: Duration = Duration::from_secs(2);
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// A job that does not wait wants 1.5 times the rate that it has read, plus this rate.
const MORE: u64 = 1_000_000;

/// The most jobs and datasets of a report.
const MAX_SHOWN: usize = 512;

/// The reports whose times are known.
const MAX_REPORTS: usize = 64;

/// A control process, and the token and name with which an agent connects to it.
#[derive(Clone, Debug)]
pub struct ControlTarget {
    /// Where it is, as `HOST:PORT`.
    pub address: String,
    /// The file with the token.
    pub tokens: PathBuf,
    /// The name of this agent. By default, its machine's name.
    pub node: Option<String>,
    /// Whether it shares its cache with the other agents of the token.
    pub share: ShareChoice,
}

/// How the caches of a cluster's agents are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShareChoice {
    /// At a free port of the host.
    #[default]
    Auto,
    /// This agent's cache is its own.
    Off,
    /// At this address, as `HOST:PORT`.
    At(String),
}

/// Where an agent finds its control process.
#[derive(Debug)]
enum ControlPlace {
    /// The control process of a cluster.
    Cluster(Address),
    /// That of a job, in the process that hosts the agent of rank 0's node.
    Job(Arc<NodeMeeting>),
}

impl ControlPlace {
    async fn open(&self, identity: &Identity) -> Result<ControlConnection, WireError> {
        match self {
            Self::Cluster(address) => {
                let opened = ControlConnection::open(&SystemTransport, address, identity, None, SILENT);
                Ok(opened.await?.0)
            }
            Self::Job(meeting) => match meeting.find().await {
                Ok((connection, found)) if found.token.expose() == identity.token.expose() => Ok(connection),
                // The next process at rank 0's node has generated another one.
                Ok(_) => Err(WireError::new(WireErrorKind::OtherToken, "it has another token")),
                Err(why) => {
                    let why = why.unwrap_or_else(|| "it does not listen".to_owned());
                    Err(WireError::new(WireErrorKind::Disconnected, why))
                }
            },
        }
    }
}

/// The parts of a connection, before it is opened.
struct LinkStart {
    place: ControlPlace,
    /// On the way to the control process.
    address: Address,
    identity: Identity,
    node: String,
    share: ShareChoice,
    /// Gets a message with the first grant.
    first: Option<std_mpsc::Sender<()>>,
}

/// The connection of an agent, which is there until this is dropped.
#[derive(Debug)]
pub(crate) struct ControlLink {
    end: Option<oneshot::Sender<()>>,
    ended: std_mpsc::Receiver<()>,
    _serving: Option<ShareServer>,
}

impl ControlLink {
    /// Dials, and waits a moment for the first grant: jobs should not begin without limits.
    ///
    /// # Errors
    /// If the address or the token is not valid.
    pub(crate) fn start(
        runtime: &Handle,
        provider: &Arc<HostProvider>,
        target: ControlTarget,
        own: OwnAgent,
    ) -> Result<Self, AgentError> {
        let wrong = || AgentError::Address { address: target.address.clone() };
        let address: Address = target.address.parse().map_err(|_| wrong())?;
        let Address::Tcp(..) = address else { return Err(wrong()) };
        let identity = ClusterToken::read(&target.tokens)?.identity();
        let node = target.node.unwrap_or_else(machine);
        if let Some(why) = wrong_node_name(&node) {
            return Err(AgentError::Setting(format!("--node: {why}")));
        }
        let (first, granted) = std_mpsc::channel();
        let place = ControlPlace::Cluster(address.clone());
        let start = LinkStart { place, address, identity, node, share: target.share, first: Some(first) };
        let link = Self::begin(runtime, provider, own, start)?;
        if granted.recv_timeout(FIRST_GRANT).is_err() {
            tracing::warn!("the control process is not reached yet: until then, only own limits hold");
        }
        Ok(link)
    }

    /// Dials the control process of this agent's job, which was met there.
    ///
    /// # Errors
    /// If samples cannot be served to the other nodes.
    pub(crate) fn of_job(
        runtime: &Handle,
        provider: &Arc<HostProvider>,
        own: OwnAgent,
        meeting: Arc<NodeMeeting>,
        identity: Identity,
    ) -> Result<Self, AgentError> {
        let (address, node) = (meeting.towards(), machine());
        let (place, share) = (ControlPlace::Job(meeting), ShareChoice::Auto);
        // Its jobs have no limits to wait for.
        let start = LinkStart { place, address, identity, node, share, first: None };
        Self::begin(runtime, provider, own, start)
    }

    fn begin(
        runtime: &Handle,
        provider: &Arc<HostProvider>,
        own: OwnAgent,
        start: LinkStart,
    ) -> Result<Self, AgentError> {
        let LinkStart { place, address, identity, node, share, first } = start;
        let state = Arc::clone(&provider.state);
        let instance = state.name().to_owned();
        let wire = std::env::var(WireProtection::VARIABLE).ok().filter(|text| !text.is_empty());
        let wire = wire
            .map(|text| text.parse().map_err(|error: ParseWireError| AgentError::Setting(error.to_string())));
        let wire = wire.transpose()?.unwrap_or_default();
        let network = Arc::new(SystemTransport);
        let seed = text_hash(&instance);
        let member = ClusterMember {
            identity: identity.clone(),
            own: StoreName { node: node.clone(), instance },
            wire,
            network,
        };
        let serving = serve_samples(runtime, provider, &member, &share, &address)?;
        state.begin_control(address.to_string(), node.clone());
        let (end, on_end) = oneshot::channel();
        let (has_ended, ended) = std_mpsc::channel();
        let (rosters, roster) = watch::channel(ClusterRoster::default());
        runtime.spawn(apply_rosters(Arc::clone(&state.cluster), roster));
        let dialing = DialingAgent {
            state,
            own,
            place,
            address,
            identity,
            node,
            addresses: serving.as_ref().map_or_else(Vec::new, |serving| serving.addresses.clone()),
            rosters,
            notes: None,
            uses: HashMap::new(),
            waited: HashSet::new(),
            waited_before: HashSet::new(),
            last_look: Instant::now(),
            sent: VecDeque::new(),
            number: 0,
            applied: 0,
            warmed: 0,
            first,
            pauses: Backoff::new(DIAL_AGAIN.0, DIAL_AGAIN.1, seed),
            attempts: 0,
        };
        runtime.spawn(apply_regularly(Arc::downgrade(&dialing.state)));
        runtime.spawn(async move {
            dialing.run(on_end).await;
            // The agent may wait no longer.
            let _ = has_ended.send(());
        });
        Ok(Self { end: Some(end), ended, _serving: serving })
    }

    /// Whether it dials no longer: the control process has another token now, or this node is to
    /// host the next one.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.ended.try_recv(), Err(std_mpsc::TryRecvError::Empty))
    }
}

/// The name of this machine.
fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        // Nothing is reserved for an agent that has sent its goodbye.
        drop(self.end.take());
        let _ = self.ended.recv_timeout(GOODBYE_TIMEOUT);
    }
}

/// Begins to serve samples to other agents, if the cache is shared.
fn serve_samples(
    runtime: &Handle,
    provider: &Arc<HostProvider>,
    member: &ClusterMember,
    share: &ShareChoice,
    control: &Address,
) -> Result<Option<ShareServer>, AgentError> {
    let listen = match share {
        ShareChoice::Off => return Ok(None),
        ShareChoice::Auto => None,
        ShareChoice::At(address) => {
            let wrong = || AgentError::Address { address: address.clone() };
            Some(address.parse().map_err(|_| wrong())?)
        }
    };
    let jobs = Arc::clone(provider) as _;
    let starting = ShareServer::start(runtime, jobs, member, listen.as_ref(), control);
    let serving = runtime.block_on(starting)?;
    provider.state.cluster.join(member.clone());
    Ok(Some(serving))
}

/// Applies rosters. Of several that arrive meanwhile, only the last one counts.
async fn apply_rosters(cluster: Arc<ClusterCache>, mut rosters: watch::Receiver<ClusterRoster>) {
    while rosters.changed().await.is_ok() {
        let roster = rosters.borrow_and_update().clone();
        let cluster = Arc::clone(&cluster);
        // It looks at all samples.
        if tokio::task::spawn_blocking(move || cluster.set_roster(&roster)).await.is_err() {
            return;
        }
    }
}

/// Applies leases, which end by themselves, whatever the connection waits for.
async fn apply_regularly(state: Weak<HostState>) {
    while let Some(state) = state.upgrade() {
        state.apply_leases();
        drop(state);
        sleep(LOOK).await;
    }
}

/// The status of an agent for the control process: without its policy, and within the bounds of a
/// message.
fn shown_status(mut status: AgentStatus) -> AgentStatus {
    status.policy.clear();
    // The jobs of other nodes are in the status of their own agents.
    status.jobs.retain(|job| job.node.is_empty());
    status.jobs.truncate(MAX_SHOWN);
    status.datasets.truncate(MAX_SHOWN);
    status.stores.truncate(MAX_ORIGINS);
    status
}

/// An agent that dials or is connected.
struct DialingAgent {
    state: Arc<HostState>,
    own: OwnAgent,
    place: ControlPlace,
    /// For messages.
    address: Address,
    identity: Identity,
    node: String,
    addresses: Vec<String>,
    rosters: watch::Sender<ClusterRoster>,
    notes: Option<ClusterNotes>,
    /// The bytes that were read for each job from each origin, at the last report.
    uses: HashMap<(String, StoreJob), u64>,
    /// The jobs that have waited for an origin since the last report, and before it.
    waited: HashSet<(String, StoreJob)>,
    waited_before: HashSet<(String, StoreJob)>,
    last_look: Instant,
    /// When reports were sent.
    sent: VecDeque<(u64, Duration)>,
    number: u64,
    applied: u64,
    /// The last request to fill the memory.
    warmed: u64,
    /// For the start, which waits for the first grant.
    first: Option<std_mpsc::Sender<()>>,
    pauses: Backoff,
    /// Attempts to reach the control process since it was reached.
    attempts: u32,
}

impl DialingAgent {
    async fn run(mut self, mut end: oneshot::Receiver<()>) {
        loop {
            let served = tokio::select! {
                served = self.connect() => served,
                _ = &mut end => return,
            };
            let result = match served {
                Ok(session) => self.serve(session, &mut end).await,
                Err(error) => Err(error),
            };
            let Err(error) = result else { return };
            if self.note_problem(&error) {
                return;
            }
            let is_refused = error.kind() == WireErrorKind::Refused;
            let wait = if is_refused { REFUSED_AGAIN } else { self.pauses.pause() };
            self.attempts = self.attempts.saturating_add(1);
            let pause = async {
                match &self.place {
                    ControlPlace::Cluster(_) => sleep(wait).await,
                    ControlPlace::Job(meeting) => meeting.pause(self.attempts).await,
                }
            };
            tokio::select! {
                () = pause => {}
                _ = &mut end => return,
            }
        }
    }

    /// Reports why the control process is not reached. Returns whether that is final.
    fn note_problem(&self, error: &WireError) -> bool {
        let is_unnamed = error.kind() == WireErrorKind::OtherJob;
        let problem = match is_unnamed {
            true => format!("{}: it has no token of this name", self.address),
            false => error.to_string(),
        };
        let is_new = self.state.note_control_problem(Some(problem.clone()));
        match &self.place {
            ControlPlace::Cluster(_) if is_new => {
                tracing::warn!(problem, "the control process is not reached, and the last leases hold");
            }
            ControlPlace::Job(_) if is_new => {
                tracing::info!(problem, "rank 0's node is not reached, and the last roster holds");
            }
            ControlPlace::Cluster(_) | ControlPlace::Job(_) => {}
        }
        match &self.place {
            ControlPlace::Cluster(_) => false,
            ControlPlace::Job(meeting) => error.kind() == WireErrorKind::OtherToken || meeting.hosts_next(),
        }
    }

    /// A connection, after the hello.
    async fn connect(&mut self) -> Result<Session, WireError> {
        let connection = self.place.open(&self.identity).await?;
        self.attempts = 0;
        let session = Session::start(connection, &self.address, BOUNDS);
        let leases = self.state.held_leases();
        let (node, instance) = (self.node.clone(), self.state.name().to_owned());
        let (notes, addresses) = (self.notes.clone(), self.addresses.clone());
        let hello = Hello { versions: VERSIONS, node, instance, leases, notes, addresses };
        // The first grants answer the hello and no report.
        (self.number, self.applied) = (0, 0);
        self.sent = VecDeque::from([(0, self.state.now())]);
        // An end that is gone is an error of the first message.
        session.sender.send(HELLO, encoded(&hello)).await;
        Ok(session)
    }

    /// Reports and applies grants. Returns without an error at the end of the agent.
    async fn serve(
        &mut self,
        Session { sender, mut receiver, writer }: Session,
        end: &mut oneshot::Receiver<()>,
    ) -> Result<(), WireError> {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // An agent is in a roster once it has reported.
        let mut reported = None::<Instant>;
        loop {
            tokio::select! {
                message = receiver.next() => {
                    let closed = || WireError::new(WireErrorKind::Disconnected, "it has ended");
                    let (kind, payload) = message?.ok_or_else(closed)?;
                    match kind {
                        GRANT => {
                            let grant: Grant = decoded(&payload).map_err(WireError::malformed)?;
                            self.apply(grant);
                            let applied = encoded(&Applied { number: self.applied });
                            sender.send(APPLIED, applied).await;
                        }
                        NOTES => self.notes = Some(decoded(&payload).map_err(WireError::malformed)?),
                        ROSTER => {
                            let roster = decoded(&payload).map_err(WireError::malformed)?;
                            // Its receiver ends with the runtime.
                            let _ = self.rosters.send(roster);
                        }
                        REFUSED => {
                            let why = String::from_utf8_lossy(&payload).into_owned();
                            return Err(WireError::new(WireErrorKind::Refused, why));
                        }
                        // Of a later version.
                        _ => {}
                    }
                }
                _ = looks.tick() => {
                    let is_urgent = self.look();
                    let is_due = |at: Instant| at.elapsed() + LOOK / 2 >= REPORT_INTERVAL;
                    if is_urgent || reported.is_none_or(is_due) {
                        reported = Some(Instant::now());
                        let report = encoded(&self.report());
                        // A lost connection is an error of the next message.
                        sender.send(REPORT, report).await;
                    }
                }
                _ = &mut *end => {
                    sender.try_send(GOODBYE, Bytes::new());
                    drop(sender);
                    // A control process that does not read it forgets the agent later.
                    let _ = timeout(GOODBYE_TIMEOUT, writer.ended()).await;
                    return Ok(());
                }
            }
        }
    }

    fn apply(&mut self, grant: Grant) {
        self.applied = grant.number;
        let sent = self.sent.iter().find(|(number, _)| *number == grant.report).map(|(_, at)| *at);
        self.state.apply_grant(ControlGrant {
            leases: &grant.leases,
            first_limits: &grant.first_limits,
            // A report that is not known any more was sent long ago, so its lease has ended.
            sent: sent.unwrap_or_default(),
            node: &grant.node,
            is_draining: grant.is_draining,
            values: &grant.policy,
        });
        if let Some(first) = self.first.take() {
            // The start may wait no longer.
            let _ = first.send(());
        }
        for part in grant.warm {
            if part.number != self.warmed {
                self.warmed = part.number;
                warm(self.own.clone(), part);
            }
        }
    }

    /// Records the jobs that wait for their turn. Returns whether a job has begun to wait.
    fn look(&mut self) -> bool {
        let mut is_urgent = false;
        for used in self.state.store.origin_uses().into_iter().filter(|used| used.queued > 0) {
            let key = (used.origin, used.job);
            is_urgent |= !self.waited_before.contains(&key);
            self.waited.insert(key);
        }
        is_urgent
    }

    fn report(&mut self) -> Report {
        let seconds = self.last_look.elapsed().as_secs_f64().max(1e-3);
        self.last_look = Instant::now();
        let jobs = self.state.job_names();
        let mut demands: Vec<OriginDemand> = Vec::new();
        let mut uses = HashMap::new();
        for used in self.state.store.origin_uses() {
            let key = (used.origin, used.job);
            let before = self.uses.get(&key).copied().unwrap_or(0);
            let rate = used.read_bytes.saturating_sub(before) as f64 / seconds;
            let has_waited = self.waited.contains(&key) || used.queued > 0;
            let wanted = (!has_waited).then_some((rate * 1.5) as u64 + if rate > 0.0 { MORE } else { 0 });
            // The agent's own reads belong to no job.
            let known = jobs.get(&used.job).cloned();
            let is_filling = known.is_none();
            let (job, weight) = known.unwrap_or_default();
            demands.push(OriginDemand {
                store: key.0.clone(),
                job,
                weight: weight.max(1),
                is_filling,
                wanted,
            });
            uses.insert(key, used.read_bytes);
        }
        self.uses = uses;
        self.waited_before = std::mem::take(&mut self.waited);
        self.number += 1;
        if self.sent.len() >= MAX_REPORTS {
            self.sent.pop_front();
        }
        self.sent.push_back((self.number, self.state.now()));
        let status = shown_status(self.state.status());
        Report { number: self.number, applied: self.applied, demands, status }
    }
}
