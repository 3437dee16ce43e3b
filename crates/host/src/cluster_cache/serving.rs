//! Serves the samples that this store owns to other stores.
//!
//! Their jobs are attached here like jobs of this node: the datasets are opened and compared, and
//! the orders announced. A request names a dataset of such a job by a number that is never used
//! again. Connections for samples are for this instance of the store, so a request of an earlier
//! one's client is refused.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use foreread_connection::{
    Address, ControlConnection, Session, SessionSender, SessionWriter, Transport, TransportListener,
    WireError,
};
use foreread_launcher::INTERFACE;
use foreread_peer::{Nonce, PeerCounters, PeerIdentity, PeerServer, RunId, ServerLimits};
use foreread_store::attach::{ATTACH, Attached};
use foreread_store::{ConnectionId, StoreJobs, StoreRequest};
use foreread_tier::{ANNOUNCE_INTERVAL, PeerReplies, PeerReply, PeerRequest, PeerService};
use foreread_types::{DatasetId, Fingerprint, Rank, SampleKey};
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::addresses::own_addresses;
use super::link::BOUNDS;
use super::messages::{ANSWER, CALL, END, JobAnswer, JobCall, OPEN, OPENED, Open, VERSIONS};
use super::names::{ClusterMember, StoreName};
use crate::connections::MAX_DATASETS;
use crate::error::HostError;
use crate::json::{decoded, encoded};

/// The most jobs of one store.
const MAX_JOBS: usize = 4096;

/// The number of a connection for the first job of another store: far above the numbers of own
/// jobs.
const FIRST_CONNECTION: u64 = 1 << 62;

/// The bytes of all calls of a store that wait. Orders take long, and signs of life must not wait
/// for them.
const MAX_WAITING: usize = 512 << 20;

/// The most bytes of a name.
const MAX_NAME: usize = 255;

/// Serves jobs of other stores, by the connections that these have here.
pub trait LinkedJobs: StoreJobs {
    /// Whether it carries out calls of this name.
    fn accepts(&self, name: &str) -> bool;

    /// A job of another node begins.
    fn begin(&self, connection: ConnectionId, node: &str);

    /// Whether the storage of a dataset of a job waits for servers that are silent.
    fn is_patient(&self, connection: ConnectionId, dataset: DatasetId) -> bool;
}

/// The run of the samples of one instance of an agent.
pub(super) fn run_of(instance: &str) -> RunId {
    let text = format!("foreread agent {instance}");
    let bound = Fingerprint(xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
    RunId::new(Nonce::default(), &[bound])
}

/// Serves until it is dropped.
#[derive(Debug)]
pub struct ShareServer {
    /// Where other agents reach it.
    pub addresses: Vec<String>,
    /// Dropped before the service.
    _server: PeerServer,
    _service: Arc<ShareService>,
}

/// Serves jobs of other stores, over connections that others accept.
#[derive(Debug)]
pub struct ShareService {
    jobs: Arc<dyn LinkedJobs>,
    next_job: AtomicU32,
}

impl ShareServer {
    /// Listens at an address. Has the addresses that others reach.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub async fn start(
        runtime: &Handle,
        jobs: Arc<dyn LinkedJobs>,
        member: &ClusterMember,
        listen: Option<&Address>,
        towards: &Address,
    ) -> Result<Self, HostError> {
        let listener = bind(&*member.network, listen).await?;
        let addresses = match (listener.address(), listen) {
            (Address::Tcp(_, port), None) => {
                addresses(towards, *port).map_err(|error| HostError::system("cannot share samples", error))?
            }
            (address, _) => vec![address.clone()],
        };
        let addresses = addresses.iter().map(Address::to_string).collect();
        let settings = ServerLimits { wire: member.wire, ..ServerLimits::default() };
        let counters = Arc::new(PeerCounters::default());
        let server = PeerServer::start(runtime, member.identity.clone(), vec![listener], settings, counters);
        server.enter(run_of(&member.own.instance));
        let links = server.links();
        let service = ShareService::start(runtime, jobs, member.own.clone(), links);
        let served = Arc::downgrade(&service);
        server.serve(served as Weak<dyn PeerService>);
        Ok(Self { addresses, _server: server, _service: service })
    }
}

/// The connections of other stores for messages.
pub(crate) type IncomingLinks = mpsc::Receiver<(PeerIdentity, ControlConnection)>;

impl ShareService {
    /// Serves the messages that come over `links`, until it is dropped.
    pub(crate) fn start(
        runtime: &Handle,
        jobs: Arc<dyn LinkedJobs>,
        own: StoreName,
        links: Option<IncomingLinks>,
    ) -> Arc<Self> {
        let service = Arc::new(Self { jobs, next_job: AtomicU32::new(0) });
        let weak = Arc::downgrade(&service);
        runtime.spawn(async move {
            let Some(mut links) = links else { return };
            while let Some((peer, connection)) = links.recv().await {
                let Some(service) = weak.upgrade() else { return };
                let own = own.clone();
                tokio::spawn(async move {
                    if let Err(error) = service.serve_store(connection, &peer.from, own).await {
                        tracing::debug!(%error, "the connection of another store ended");
                    }
                });
            }
        });
        service
    }
}

/// Listens at an address, or at any free port.
async fn bind(
    network: &dyn Transport,
    listen: Option<&Address>,
) -> Result<Box<dyn TransportListener>, HostError> {
    let anywhere = ["::", "0.0.0.0"].map(|host| Address::tcp(host, 0));
    let tried = listen.map_or(&anywhere[..], std::slice::from_ref);
    let mut last = None;
    for address in tried {
        match network.listen(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                last = Some(HostError::system(format!("cannot share samples at {address}"), error));
            }
        }
    }
    Err(last.unwrap_or(HostError::Memory))
}

/// Where others reach a port of this host: at the interfaces that the user names, or at the address
/// that it has on the way to the control process. If that is on this host, at all addresses.
fn addresses(towards: &Address, port: u16) -> io::Result<Vec<Address>> {
    let names = std::env::var(INTERFACE).ok().filter(|names| !names.is_empty());
    if names.is_none()
        && let Some(own) = address_towards(towards)
    {
        return Ok(vec![Address::tcp(own.to_string(), port)]);
    }
    let mut all = own_addresses(names.as_deref(), port)?;
    if names.is_none() {
        all.push(Address::tcp("127.0.0.1", port));
    }
    Ok(all)
}

/// This host's address on the way to another one. Nothing is sent.
fn address_towards(address: &Address) -> Option<IpAddr> {
    let Address::Tcp(host, port) = address else { return None };
    let own = (host.as_str(), *port).to_socket_addrs().ok()?.find_map(|to| {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip().to_canonical())
    });
    own.filter(|own| !own.is_loopback())
}

/// The connection of a job of another agent.
fn connection_of(number: u32) -> ConnectionId {
    ConnectionId::numbered(FIRST_CONNECTION + u64::from(number))
}

impl PeerService for ShareService {
    fn serve(&self, _from: Rank, requested: Vec<PeerRequest>) -> PeerReplies {
        let (answers, mut replies) = mpsc::unbounded_channel();
        let mut open: BTreeSet<u32> = requested.iter().map(|request| request.tag).collect();
        let mut by_job: BTreeMap<u32, Vec<StoreRequest>> = BTreeMap::new();
        let (mut patient, mut are_patient) = (BTreeSet::new(), BTreeMap::new());
        for PeerRequest { tag, key, due } in requested {
            let dataset = DatasetId(key.dataset.0 % MAX_DATASETS as u32);
            let answers = answers.clone();
            // A closed channel: the other store does not want it any more.
            let answer = move |result| drop(answers.send(PeerReply::Done { tag, result }));
            let job = key.dataset.0 / MAX_DATASETS as u32;
            // Requests of one call are of few datasets.
            let is_patient = || self.jobs.is_patient(connection_of(job), dataset);
            if *are_patient.entry(key.dataset).or_insert_with(is_patient) {
                patient.insert(tag);
            }
            let (key, answer) = (SampleKey::new(dataset, key.id), Box::new(answer));
            by_job.entry(job).or_default().push(StoreRequest { key, due, answer });
        }
        for (number, requests) in by_job {
            self.jobs.request(connection_of(number), requests);
        }
        drop(answers);
        let mut ready = Vec::with_capacity(open.len());
        while let Ok(reply) = replies.try_recv() {
            if let PeerReply::Done { tag, .. } = &reply {
                open.remove(tag);
            }
            ready.push(reply);
        }
        ready.extend(open.iter().map(|tag| PeerReply::Reading { tag: *tag }));
        patient.retain(|tag| open.contains(tag));
        let ready = futures::stream::iter(ready);
        if patient.is_empty() {
            let later = futures::stream::poll_fn(move |context| replies.poll_recv(context));
            return ready.chain(later).boxed();
        }
        let later = LaterReplies { replies, patient, next: Instant::now() + ANNOUNCE_INTERVAL };
        let later = futures::stream::unfold(later, async |mut later| Some((later.next().await?, later)));
        ready.chain(later.flat_map(futures::stream::iter)).boxed()
    }
}

/// The replies to requests, some of which wait for a file server that may be silent for long. The
/// other store would wait for the same server, so it hears that they are still being read.
struct LaterReplies {
    replies: mpsc::UnboundedReceiver<PeerReply>,
    /// The tags of such requests without an answer.
    patient: BTreeSet<u32>,
    /// When they are announced again.
    next: Instant,
}

impl LaterReplies {
    /// The next replies. `None` after the last one.
    async fn next(&mut self) -> Option<Vec<PeerReply>> {
        let is_over = self.patient.is_empty();
        tokio::select! {
            biased;
            reply = self.replies.recv() => {
                let reply = reply?;
                if let PeerReply::Done { tag, .. } = &reply {
                    self.patient.remove(tag);
                }
                Some(vec![reply])
            }
            () = sleep_until(self.next), if !is_over => {
                self.next = Instant::now() + ANNOUNCE_INTERVAL;
                Some(self.patient.iter().map(|tag| PeerReply::Reading { tag: *tag }).collect())
            }
        }
    }
}

/// A job of another store, until it is dropped. Its calls are carried out one after another.
struct LinkedJob {
    jobs: Arc<dyn LinkedJobs>,
    connection: ConnectionId,
    calls: mpsc::UnboundedSender<JobCall>,
    task: JoinHandle<()>,
}

impl LinkedJob {
    /// Begins a job. Its requests have the number `first` for its first dataset.
    fn begin(
        jobs: &Arc<dyn LinkedJobs>,
        node: &str,
        number: u32,
        (to, waiting): (SessionSender, Arc<AtomicUsize>),
    ) -> Self {
        let (connection, first) = (connection_of(number), number * MAX_DATASETS as u32);
        jobs.begin(connection, node);
        let (calls, received) = mpsc::unbounded_channel();
        let job = (connection, first, waiting);
        let task = tokio::spawn(carry_out(Arc::clone(jobs), job, received, to));
        Self { jobs: Arc::clone(jobs), connection, calls, task }
    }
}

impl Drop for LinkedJob {
    fn drop(&mut self) {
        self.task.abort();
        self.jobs.end(self.connection);
    }
}

/// Carries out the calls of a job. Answers calls that attach it, and failures.
async fn carry_out(
    jobs: Arc<dyn LinkedJobs>,
    (connection, first, waiting): (ConnectionId, u32, Arc<AtomicUsize>),
    mut calls: mpsc::UnboundedReceiver<JobCall>,
    to: SessionSender,
) {
    while let Some(JobCall { job, name, payload }) = calls.recv().await {
        waiting.fetch_sub(payload.len(), Ordering::Relaxed);
        let (done, answer) = oneshot::channel();
        // The task may have ended.
        let answered = Box::new(move |result| drop(done.send(result)));
        jobs.carry_out(connection, name, payload, answered);
        let answer = match answer.await {
            Ok(Ok(answer)) if name == ATTACH => numbered(&answer, first),
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the call was dropped".to_owned()),
        };
        let call = name.to_owned();
        let answer = match answer {
            Ok(answer) => JobAnswer { job, call, answer, error: None },
            Err(why) => JobAnswer { job, call, error: Some(why), ..JobAnswer::default() },
        };
        if !to.send(ANSWER, encoded(&answer)).await {
            return;
        }
    }
}

/// The answer to [`ATTACH`], with the number of the job's first dataset.
fn numbered(answer: &[u8], first_dataset: u32) -> Result<String, String> {
    let attached: Attached = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    // Catalogs in memory are for processes of the node.
    let attached = Attached { first_dataset, catalogs: Vec::new(), ..attached };
    serde_json::to_string(&attached).map_err(|error| error.to_string())
}

impl ShareService {
    /// Serves the messages of another store.
    async fn serve_store(
        self: &Arc<Self>,
        connection: ControlConnection,
        from: &str,
        own: StoreName,
    ) -> Result<(), WireError> {
        let malformed = |why: String| WireError::malformed(format!("{from}: {why}"));
        let Session { sender, mut receiver, writer } = Session::start(connection, from, BOUNDS);
        let _writer = AbortOnDrop(writer);
        let first = receiver.next().await?;
        let Some((OPEN, payload)) = first else { return Err(malformed("it did not say who it is".into())) };
        let opened: Open = decoded(&payload).map_err(malformed)?;
        if opened.node.is_empty() || opened.node.len() > MAX_NAME {
            return Err(malformed("it has no name, or a long one".into()));
        }
        if opened.versions.0 > VERSIONS.1 || opened.versions.1 < VERSIONS.0 {
            return Err(malformed("it speaks another version".into()));
        }
        let answer = Open { versions: VERSIONS, node: own.node, instance: own.instance };
        let (mut jobs, waiting) = (HashMap::<u32, LinkedJob>::new(), Arc::new(AtomicUsize::new(0)));
        if !sender.send(OPENED, encoded(&answer)).await {
            return Err(malformed("it takes no messages".into()));
        }
        loop {
            let Some((kind, payload)) = receiver.next().await? else { return Ok(()) };
            if sender.is_closed() {
                return Err(malformed("it takes no messages".into()));
            }
            match kind {
                CALL => {
                    let call = JobCall::decode(&payload).ok_or_else(|| malformed("no call".into()))?;
                    // Otherwise it is of a later version.
                    let Some(call) = call.filter(|call| self.jobs.accepts(call.name)) else { continue };
                    if jobs.len() >= MAX_JOBS && !jobs.contains_key(&call.job) {
                        return Err(malformed("it has too many jobs".into()));
                    }
                    let job = match jobs.entry(call.job) {
                        Entry::Occupied(job) => job.into_mut(),
                        Entry::Vacant(entry) => {
                            let number = self.new_number();
                            let number =
                                number.ok_or_else(|| malformed("there were too many jobs".into()))?;
                            let to = (sender.clone(), Arc::clone(&waiting));
                            entry.insert(LinkedJob::begin(&self.jobs, &opened.node, number, to))
                        }
                    };
                    let bytes = call.payload.len();
                    if waiting.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_WAITING {
                        return Err(malformed("it calls faster than calls are carried out".into()));
                    }
                    if job.calls.send(call).is_err() {
                        return Err(malformed("the calls of a job have ended".into()));
                    }
                }
                END => {
                    let job = payload.first_chunk().ok_or_else(|| malformed("no job".into()))?;
                    jobs.remove(&u32::from_le_bytes(*job));
                }
                // Of a later version.
                _ => {}
            }
        }
    }

    /// The number of a new job. `None` if there are none left: no number is used twice.
    fn new_number(&self) -> Option<u32> {
        let number = self.next_job.fetch_add(1, Ordering::Relaxed);
        if number >= u32::MAX / MAX_DATASETS as u32 {
            self.next_job.store(number, Ordering::Relaxed);
            return None;
        }
        Some(number)
    }
}

/// The task that sends ends with this.
struct AbortOnDrop(SessionWriter);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
