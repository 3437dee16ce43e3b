//! Serves the samples of this owner to other agents.
//!
//! Their jobs are attached here as those of this node are: the datasets are opened and compared,
//! and the orders announced. A request names a dataset of such a job by a number that is never used
//! again. Connections for samples are for this instance of the agent, so a request of an earlier
//! one's client is refused.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use foreread_connection::connection::within;
use foreread_connection::{
    Address, ControlConnection, MessageSender, SystemTransport, Transport, TransportListener, WireError,
};
use foreread_launcher::INTERFACE;
use foreread_peer::{Nonce, PeerCounters, PeerServer, RunId, Settings};
use foreread_store::{ConnectionId, StoreRequest};
use foreread_tier::{ErrorKind, PeerReplies, PeerReply, PeerRequest, PeerService, TierError};
use foreread_types::{DatasetId, Fingerprint, Rank, SampleKey, Tick};
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::ClusterMember;
use super::addresses::own_addresses;
use super::link::SILENT;
use super::messages::{
    ANSWER, BLOCKS, CATALOG, CatalogPiece, END, JOB, JobAnswer, JobBegins, JobBlocks, JobName, MAX_MESSAGE,
    OPEN, OPENED, ORDER, Open, PING, PONG, RESTART, VERSIONS,
};
use super::orders::{OrderPiece, expanded};
use crate::AgentError;
use crate::agent_state::AgentState;
use crate::connections::MAX_DATASETS;
use crate::control::{decoded, encoded};

/// The most jobs of one agent.
const MAX_JOBS: usize = 4096;

/// The number of a connection for the first job of another agent: far above those of own jobs.
const FIRST_CONNECTION: u64 = 1 << 62;

/// The most places of an order: for each of the samples that are sent and each node, and at least.
/// They take 4 bytes each for a moment.
const MAX_PLACES: u64 = 16;
const MIN_PLACES: u64 = 1 << 20;

/// The most bytes of a name.
const MAX_NAME: usize = 255;

/// The run of the samples of one instance of an agent.
pub(super) fn run_of(instance: &str) -> RunId {
    let text = format!("foreread agent {instance}");
    let bound = Fingerprint(xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
    RunId::new(Nonce::default(), &[bound])
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct ShareServer {
    /// Where other agents reach it.
    pub(crate) addresses: Vec<String>,
    /// Dropped before what it serves.
    _server: PeerServer,
    _service: Arc<ShareService>,
}

/// What is served.
#[derive(Debug)]
struct ShareService {
    state: Arc<AgentState>,
    next_job: AtomicU32,
}

impl ShareServer {
    /// Listens at an address, and says which ones others reach.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub(crate) fn start(
        runtime: &Handle,
        state: &Arc<AgentState>,
        member: &ClusterMember,
        listen: Option<&Address>,
        towards: &Address,
    ) -> Result<Self, AgentError> {
        let listener = runtime.block_on(bind(listen))?;
        let addresses = match (listener.address(), listen) {
            (Address::Tcp(_, port), None) => addresses(towards, *port)
                .map_err(|error| AgentError::system("cannot share samples", error))?,
            (address, _) => vec![address.clone()],
        };
        let addresses = addresses.iter().map(Address::to_string).collect();
        let settings = Settings { wire: member.wire, ..Settings::default() };
        let counters = Arc::new(PeerCounters::default());
        let server = PeerServer::start(runtime, member.identity.clone(), vec![listener], settings, counters);
        server.enter(run_of(&member.instance));
        let service = Arc::new(ShareService { state: Arc::clone(state), next_job: AtomicU32::new(0) });
        let served = Arc::downgrade(&service);
        server.serve(served as Weak<dyn PeerService>);
        let (meetings, service_of, member) = (server.meetings(), Arc::downgrade(&service), member.clone());
        runtime.spawn(async move {
            let Some(mut meetings) = meetings else { return };
            while let Some((peer, connection)) = meetings.recv().await {
                let Some(service) = service_of.upgrade() else { return };
                let member = member.clone();
                tokio::spawn(async move {
                    if let Err(error) = service.serve_agent(connection, &peer.from, &member).await {
                        tracing::debug!(%error, "the connection of another agent ended");
                    }
                });
            }
        });
        Ok(Self { addresses, _server: server, _service: service })
    }
}

/// Listens at an address, or at any free port.
async fn bind(listen: Option<&Address>) -> Result<Box<dyn TransportListener>, AgentError> {
    let anywhere = ["::", "0.0.0.0"].map(|host| Address::tcp(host, 0));
    let tried = listen.map_or(&anywhere[..], std::slice::from_ref);
    let mut last = None;
    for address in tried {
        match SystemTransport.listen(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                last = Some(AgentError::system(format!("cannot share samples at {address}"), error));
            }
        }
    }
    Err(last.unwrap_or(AgentError::Memory))
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
        let mut open: HashSet<u32> = requested.iter().map(|request| request.tag).collect();
        let mut by_job: BTreeMap<u32, Vec<PeerRequest>> = BTreeMap::new();
        for request in requested {
            by_job.entry(request.key.dataset.0 / MAX_DATASETS as u32).or_default().push(request);
        }
        for (number, requests) in by_job {
            let job = self.state.job(connection_of(number));
            let mut wanted = Vec::with_capacity(requests.len());
            for PeerRequest { tag, key, due } in requests {
                let dataset = key.dataset.0 % MAX_DATASETS as u32;
                let own = SampleKey::new(DatasetId(dataset), key.id);
                let answers = answers.clone();
                // A closed channel: the other agent does not want it any more.
                let answer = move |result| drop(answers.send(PeerReply::Done { tag, result }));
                match job.as_ref().and_then(|job| job.key(own)) {
                    Some(key) => wanted.push(StoreRequest { key, due, answer: Box::new(answer) }),
                    None => answer(Err(unknown())),
                }
            }
            if let Some(job) = job {
                self.state.store.request(job.job, wanted);
            }
        }
        drop(answers);
        let mut ready = Vec::with_capacity(open.len());
        while let Ok(reply) = replies.try_recv() {
            if let PeerReply::Done { tag, .. } = &reply {
                open.remove(tag);
            }
            ready.push(reply);
        }
        ready.extend(open.into_iter().map(|tag| PeerReply::Reading { tag }));
        let later = futures::stream::poll_fn(move |context| replies.poll_recv(context));
        futures::stream::iter(ready).chain(later).boxed()
    }
}

fn unknown() -> TierError {
    TierError::new(ErrorKind::Absent, "cluster").with_detail("this agent does not know the job")
}

/// A job of another agent, until it is dropped.
struct RemoteJob {
    state: Arc<AgentState>,
    number: u32,
    /// The part of an order that arrives, with its dataset and beginning.
    order: Option<(u32, Tick, Vec<u8>)>,
    /// The last change of its orders. They are made one after another.
    changing: Option<JoinHandle<()>>,
    /// The last request to attach it.
    attaching: Option<JoinHandle<()>>,
}

impl RemoteJob {
    /// Changes its orders, after all changes before. It may look at all samples.
    fn change(&mut self, change: impl FnOnce() + Send + 'static) {
        let before = self.changing.take();
        self.changing = Some(tokio::spawn(async move {
            if let Some(before) = before {
                // A panic was reported when it happened.
                let _ = before.await;
            }
            let _ = tokio::task::spawn_blocking(change).await;
        }));
    }
}

impl Drop for RemoteJob {
    fn drop(&mut self) {
        self.state.disconnected(connection_of(self.number));
    }
}

impl ShareService {
    /// Serves the messages of another agent.
    async fn serve_agent(
        self: &Arc<Self>,
        connection: ControlConnection,
        from: &str,
        own: &ClusterMember,
    ) -> Result<(), WireError> {
        let malformed = |why: String| WireError::malformed(format!("{from}: {why}"));
        let (sender, mut receiver) = connection.split();
        let (outgoing, waiting) = mpsc::unbounded_channel();
        let writing = tokio::spawn(write(sender, waiting));
        let _writing = AbortOnDrop(writing);
        let send = |kind: u32, payload: Bytes| {
            // The writer has ended, and with it the connection.
            let _ = outgoing.send((kind, payload));
        };
        let first = within(SILENT, from, receiver.receive(MAX_MESSAGE)).await?;
        let Some((OPEN, payload)) = first else { return Err(malformed("it did not say who it is".into())) };
        let opened: Open = decoded(&payload).map_err(malformed)?;
        if opened.node.is_empty() || opened.node.len() > MAX_NAME {
            return Err(malformed("it has no name, or a long one".into()));
        }
        if opened.versions.0 > VERSIONS.1 || opened.versions.1 < VERSIONS.0 {
            return Err(malformed("it speaks another version".into()));
        }
        let (node, instance) = (own.node.clone(), own.instance.clone());
        send(OPENED, encoded(&Open { versions: VERSIONS, node, instance }));
        let mut jobs: HashMap<u32, RemoteJob> = HashMap::new();
        loop {
            let received = within(SILENT, from, receiver.receive(MAX_MESSAGE)).await?;
            let Some((kind, payload)) = received else { return Ok(()) };
            if outgoing.is_closed() {
                return Err(malformed("it takes no messages".into()));
            }
            match kind {
                PING => send(PONG, Bytes::new()),
                JOB => {
                    let JobBegins { job, mut attach } = decoded(&payload).map_err(malformed)?;
                    if attach.name.len() > MAX_NAME {
                        attach.name.clear();
                    }
                    if jobs.len() >= MAX_JOBS && !jobs.contains_key(&job) {
                        return Err(malformed("it has too many jobs".into()));
                    }
                    if let Entry::Vacant(entry) = jobs.entry(job) {
                        let new = self.new_job(&opened.node);
                        entry.insert(new.ok_or_else(|| malformed("there were too many jobs".into()))?);
                    }
                    let Some(remote) = jobs.get_mut(&job) else { continue };
                    if remote.attaching.as_ref().is_some_and(|attaching| !attaching.is_finished()) {
                        return Err(malformed("it attaches a job twice at once".into()));
                    }
                    let (state, number, outgoing) =
                        (Arc::clone(&self.state), remote.number, outgoing.clone());
                    remote.attaching = Some(tokio::spawn(async move {
                        let first = number * MAX_DATASETS as u32;
                        let answer = match state.attach(connection_of(number), attach).await {
                            Ok(attached) => {
                                JobAnswer { job, datasets: attached.datasets, first, refused: None }
                            }
                            Err(error) => {
                                let refused = Some(error.to_string());
                                JobAnswer { job, refused, ..JobAnswer::default() }
                            }
                        };
                        let _ = outgoing.send((ANSWER, encoded(&answer)));
                    }));
                }
                CATALOG => {
                    let piece = CatalogPiece::decode(&payload);
                    let CatalogPiece { job, piece } = piece.ok_or_else(|| malformed("no catalog".into()))?;
                    let Some(remote) = jobs.get(&job) else { continue };
                    let mut connections = self.state.lock();
                    if let Some(there) = connections.get_mut(&connection_of(remote.number)) {
                        there.add_catalog(piece).map_err(|why| malformed(why.to_owned()))?;
                    }
                }
                ORDER => {
                    let piece = OrderPiece::decode(&payload).ok_or_else(|| malformed("no order".into()))?;
                    if let Some(remote) = jobs.get_mut(&piece.job) {
                        self.add_order(remote, piece).map_err(malformed)?;
                    }
                }
                RESTART => {
                    let JobName { job } = decoded(&payload).map_err(malformed)?;
                    let Some(remote) = jobs.get_mut(&job) else { continue };
                    if let Some(job) = self.state.job(connection_of(remote.number)) {
                        let store = self.state.store.clone();
                        remote.change(move || store.restart(job.job));
                    }
                }
                BLOCKS => {
                    let JobBlocks { job, dataset } = decoded(&payload).map_err(malformed)?;
                    let Some(remote) = jobs.get_mut(&job) else { continue };
                    if let Ok(known) = self.state.dataset(connection_of(remote.number), dataset) {
                        remote.change(move || {
                            if let Err(error) = known.hosted.read_in_blocks(None) {
                                tracing::info!(%error, "samples are read one by one");
                            }
                        });
                    }
                }
                END => {
                    let JobName { job } = decoded(&payload).map_err(malformed)?;
                    jobs.remove(&job);
                }
                // Of a later version.
                _ => {}
            }
        }
    }

    /// A new job. `None` if there are no numbers left: none is used twice.
    fn new_job(&self, node: &str) -> Option<RemoteJob> {
        let number = self.next_job.fetch_add(1, Ordering::Relaxed);
        if number >= u32::MAX / MAX_DATASETS as u32 {
            self.next_job.store(number, Ordering::Relaxed);
            return None;
        }
        self.state.lock().entry(connection_of(number)).or_default().node = Some(node.to_owned());
        let state = Arc::clone(&self.state);
        Some(RemoteJob { state, number, order: None, changing: None, attaching: None })
    }

    /// Adds a piece of an order, and announces the order if it was the last one.
    fn add_order(&self, remote: &mut RemoteJob, piece: OrderPiece<'_>) -> Result<(), String> {
        let OrderPiece { first, per_position, places, piece, .. } = piece;
        let connection = connection_of(remote.number);
        let Some(job) = self.state.job(connection) else { return Ok(()) };
        let dataset = job.datasets.get(piece.number as usize).copied().flatten();
        let Some(known) = dataset.and_then(|id| self.state.datasets.get(id)) else { return Ok(()) };
        let nodes = self.state.cluster.nodes().max(1);
        let most = (piece.total / 8).saturating_mul(MAX_PLACES).saturating_mul(nodes).max(MIN_PLACES);
        if u64::from(places) > most || piece.total / 8 > u64::from(places) {
            tracing::info!("an order of another agent is too long, and is not known");
            return Ok(());
        }
        if piece.at == 0 {
            remote.order = Some((piece.number, first, Vec::new()));
        }
        let Some((number, begun, part)) = &mut remote.order else { return Ok(()) };
        if (*number, *begun, part.len() as u64) != (piece.number, first, piece.at) {
            return Err("a piece of an order does not follow the one before".to_owned());
        }
        part.extend(piece.bytes);
        if (part.len() as u64) < piece.total {
            return Ok(());
        }
        let Some((_, _, part)) = remote.order.take() else { return Ok(()) };
        let (store, id) = (self.state.store.clone(), known.id);
        remote.change(move || {
            let announced = store.announce(job.job, id, first, per_position, expanded(&part, places));
            if let Err(error) = announced {
                tracing::info!(%error, "an order of another agent is not known");
            }
        });
        Ok(())
    }
}

/// Sends what waits.
async fn write(mut sender: MessageSender, mut waiting: mpsc::UnboundedReceiver<(u32, Bytes)>) {
    while let Some((kind, payload)) = waiting.recv().await {
        if within(SILENT, "an agent", sender.send(kind, payload)).await.is_err() {
            break;
        }
    }
    sender.shutdown().await;
}

/// A task that ends with this.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
