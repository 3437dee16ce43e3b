//! Another rank as a tier: the client of its samples.
//!
//! The connection is opened by the first request and stays open. When it breaks, all open requests
//! fail at once, because the samples are sooner read elsewhere. When it falls silent, the client
//! first reconnects once and sends the open requests again, because the rank may have been paused.
//! After a failure, the next request reconnects after a backoff that doubles with each failure in a
//! row. Requests during the backoff fail at once. The caller decides when the rank is no longer
//! used, not this module.
//!
//! A request waits at most [`CONNECT_TIMEOUT`] for the connection, and then as the `client` module
//! defines. Another rank's store is linked before the run starts, and its samples have no number of
//! a run until then: requests wait for that, too.

use std::fmt;
use std::future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::channel::AuthenticatedStream;
use foreread_connection::frame::MAX_SAMPLES_PER_REQUEST;
use foreread_connection::handshake::{self, Identity, Purpose};
use foreread_connection::{
    Address, Backoff, ControlConnection, RunId, Transport, WireError, WireErrorKind, WireProtection,
};
use foreread_tier::{Buffers, ErrorKind, OpenContext, ReadFuture, ReadRequest, Tier, TierError, TierProfile};
use foreread_types::{Rank, mix};
use tokio::runtime::Handle;
use tokio::sync::{SetOnce, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::client::driver::{ClientCommand, ClientTask, PendingSample};
use crate::client::{ClientMachine, RECONNECT_JITTER, SampleCaller};
use crate::counters::PeerCounters;
use crate::first_of::first_of;
use crate::tier_error::{NAME, error_of};
use foreread_tier::lock;

/// Timeout of connect and handshake together.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long requests wait for the start of the run.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// The first and the longest backoff after failed connections, without jitter.
pub const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(333));

/// The values that all peer clients of a process share.
#[derive(Clone, Debug)]
pub struct PeerClientFactory {
    pub(crate) identity: Identity,
    /// Known once the run has started.
    pub(crate) run: Arc<SetOnce<RunId>>,
    pub(crate) wire: WireProtection,
    pub(crate) network: Arc<dyn Transport>,
    pub(crate) buffers: Arc<dyn Buffers>,
    pub(crate) runtime: Handle,
    pub(crate) seed: u64,
    pub(crate) counters: Arc<PeerCounters>,
}

impl PeerClientFactory {
    /// Requests samples of `run` (`None` before its start) as `identity` over `network`, with the
    /// memory, the runtime and the seed of `context`. Samples between nodes are authenticated.
    pub fn new(
        identity: Identity,
        run: impl Into<Option<RunId>>,
        network: Arc<dyn Transport>,
        context: &OpenContext,
        counters: Arc<PeerCounters>,
    ) -> Self {
        let (buffers, runtime) = (Arc::clone(&context.buffers), context.runtime.clone());
        Self {
            identity,
            run: Arc::new(SetOnce::new_with(run.into())),
            wire: WireProtection::default(),
            network,
            buffers,
            runtime,
            seed: context.seed,
            counters,
        }
    }

    /// Sets how samples between nodes are protected.
    #[must_use]
    pub fn with_wire(self, wire: WireProtection) -> Self {
        Self { wire, ..self }
    }

    /// A client of `rank`, which listens at any of `addresses`. Sockets of this node are tried
    /// first.
    pub fn remote(&self, rank: Rank, mut addresses: Vec<Address>) -> Arc<PeerClient> {
        addresses.sort();
        let backoff = Backoff::new(BACKOFF.0, BACKOFF.1, mix(self.seed ^ u64::from(rank.0)));
        let state = Mutex::new(ClientState { addresses, link: ConnectionState::Idle, tasks: 0, backoff });
        let (burst, sweeps) = (Mutex::default(), AtomicBool::new(false));
        let inner = ClientShared { requester: self.clone(), rank, burst, sweeps, state };
        Arc::new(PeerClient(Arc::new(ClientHandle(Arc::new(inner)))))
    }
}

/// A client of another rank. Read requests need their key, and of the object only its length and a
/// name for errors.
///
/// Dropping it closes the connection once no caller waits for samples.
pub struct PeerClient(Arc<ClientHandle>);

/// Keeps the connection open. Held by the [`PeerClient`] and by pending reads.
struct ClientHandle(Arc<ClientShared>);

impl std::ops::Deref for ClientHandle {
    type Target = Arc<ClientShared>;

    fn deref(&self) -> &Arc<ClientShared> {
        &self.0
    }
}

/// State that the connection's task shares.
pub(crate) struct ClientShared {
    pub(crate) requester: PeerClientFactory,
    pub(crate) rank: Rank,
    /// Samples that were requested since the last frame.
    burst: Mutex<Vec<PendingSample>>,
    /// The connection's task has been sent a sweep that it has not handled.
    pub(crate) sweeps: AtomicBool,
    state: Mutex<ClientState>,
}

struct ClientState {
    addresses: Vec<Address>,
    link: ConnectionState,
    /// The number of tasks so far, from which they are numbered.
    tasks: u64,
    backoff: Backoff,
}

enum ConnectionState {
    /// No task, and no recent failure.
    Idle,
    /// A task of this number has a connection or opens one.
    Open(u64, mpsc::UnboundedSender<ClientCommand>),
    /// The last connection failed. Retried after this time.
    Down { until: Instant, why: WireError },
}

impl fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.0.state);
        let link = match &state.link {
            ConnectionState::Idle => "none",
            ConnectionState::Open(..) => "open",
            ConnectionState::Down { .. } => "down",
        };
        let addresses = &state.addresses;
        f.debug_struct("PeerClient")
            .field("rank", &self.0.rank)
            .field("addresses", addresses)
            .field("link", &link)
            .finish()
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        lock(&self.state).link = ConnectionState::Idle;
    }
}

impl PeerClient {
    /// The rank.
    pub fn rank(&self) -> Rank {
        self.0.rank
    }

    /// The rank's addresses, the preferred one first.
    pub fn addresses(&self) -> Vec<Address> {
        lock(&self.0.state).addresses.clone()
    }

    /// Connects for messages to the store that the rank hosts.
    ///
    /// # Errors
    /// If the rank is not reached at any of its addresses, each within the timeout.
    pub async fn open_link(&self, timeout: Duration) -> Result<ControlConnection, WireError> {
        let PeerClientFactory { identity, network, .. } = &self.0.requester;
        let (network, to) = (&**network, Some(self.0.rank));
        let open = |address: Address| async move {
            ControlConnection::open_for(Purpose::Link, network, &address, identity, to, timeout).await
        };
        let opened = first_of(self.addresses(), timeout / 2, open).await;
        opened.map(|(_, (connection, _))| connection).map_err(last_of)
    }

    /// Replaces the rank's addresses after its restart. An open connection stays until it breaks.
    pub fn moved(&self, mut addresses: Vec<Address>) {
        addresses.sort();
        let mut state = lock(&self.0.state);
        if state.addresses != addresses {
            state.addresses = addresses;
            state.backoff.reset();
            if matches!(state.link, ConnectionState::Down { .. }) {
                state.link = ConnectionState::Idle;
            }
        }
    }
}

impl Tier for PeerClient {
    fn name(&self) -> &str {
        NAME
    }

    fn profile(&self) -> &TierProfile {
        const { &TierProfile::new(64) }
    }

    /// Requests a sample, together with the others of the burst.
    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        if u32::try_from(request.len()).is_err() {
            let error = TierError::new(ErrorKind::Unsupported, NAME)
                .with_object(&*request.object.path)
                .with_detail("samples of 4 GiB or more are not sent between ranks");
            return Box::pin(future::ready(Err(error)));
        }
        let (answer, incoming) = oneshot::channel();
        lock(&self.0.burst).push(PendingSample { request, answer });
        Box::pin(PendingRead { incoming, remote: Arc::clone(&self.0), is_submitted: false, is_done: false })
    }

    /// Sends the burst in one frame.
    fn submit(&self) {
        self.0.submit();
    }
}

impl ClientShared {
    fn submit(self: &Arc<Self>) {
        let mut burst = std::mem::take(&mut *lock(&self.burst));
        burst.retain(|sample| !sample.is_gone());
        while !burst.is_empty() {
            let rest = burst.split_off(burst.len().min(MAX_SAMPLES_PER_REQUEST));
            self.send(std::mem::replace(&mut burst, rest));
        }
    }

    /// A read was dropped: sends the connection's task a sweep, unless one is pending.
    fn dropped(&self) {
        if let ConnectionState::Open(_, link) = &lock(&self.state).link
            && !self.sweeps.swap(true, AcqRel)
        {
            let _ = link.send(Vec::new()); // the task may have ended
        }
    }

    /// Fails samples.
    fn fail(&self, samples: ClientCommand, why: &WireError) {
        samples.into_iter().for_each(|sample| sample.answer(Err(error_of(self.rank, why))));
    }

    /// Passes samples to the connection's task, which is started if there is none.
    fn send(self: &Arc<Self>, mut samples: ClientCommand) {
        let mut state = lock(&self.state);
        match &state.link {
            ConnectionState::Down { until, why } if Instant::now() < *until => {
                let why = why.clone();
                drop(state);
                return self.fail(samples, &why);
            }
            ConnectionState::Open(_, link) => match link.send(samples) {
                Ok(()) => return,
                // The task ended with its runtime, or panicked.
                Err(unsent) => samples = unsent.0,
            },
            ConnectionState::Idle | ConnectionState::Down { .. } => {}
        }
        let (link, commands) = mpsc::unbounded_channel();
        let _ = link.send(samples); // its receiver is alive
        state.tasks += 1;
        let task = state.tasks;
        state.link = ConnectionState::Open(task, link);
        drop(state);
        self.requester.runtime.spawn(Arc::clone(self).run(task, commands));
    }

    /// The task of a connection, from its opening to its end.
    async fn run(self: Arc<Self>, task: u64, mut commands: mpsc::UnboundedReceiver<ClientCommand>) {
        self.sweeps.swap(false, AcqRel); // set for an earlier task
        let run = timeout(START_TIMEOUT, self.requester.run.wait()).await.ok().copied();
        let mut machine = ClientMachine::new(self.rank, run.map_or(0, |run| run.tag()));
        let (error, useful) = match run {
            Some(run) => self.request_samples(run, &mut commands, &mut machine).await,
            None => (WireError::new(WireErrorKind::Timeout, "the run has not started"), None),
        };
        let lost = machine.open() > 0 || useful.is_none();
        machine.fail(&error);
        self.requester.counters.add(&mut machine.counted);
        tracing::debug!(rank = %self.rank, %error, "a connection to a rank ended");
        {
            let mut state = lock(&self.state);
            if useful == Some(true) {
                state.backoff.reset();
            }
            // A connection that ends without open requests was closed, not lost. The task may have
            // been replaced meanwhile.
            if matches!(state.link, ConnectionState::Open(current, _) if current == task) {
                state.link = if lost {
                    let until = Instant::now() + state.backoff.pause();
                    ConnectionState::Down { until, why: error.clone() }
                } else {
                    ConnectionState::Idle
                };
            }
            commands.close();
        }
        while let Ok(samples) = commands.try_recv() {
            self.fail(samples, &error);
        }
    }

    /// Sends requests on a connection, and on a second one if the first falls silent. Returns why
    /// it ended, and whether any byte arrived. `None` if no connection could be opened.
    async fn request_samples(
        &self,
        run: RunId,
        commands: &mut mpsc::UnboundedReceiver<ClientCommand>,
        machine: &mut ClientMachine<PendingSample>,
    ) -> (WireError, Option<bool>) {
        let (mut was_useful, clock) = (None, Instant::now());
        loop {
            let mut requesting = match self.open(run).await {
                Ok(channel) => ClientTask::new(self, channel, commands, (&mut *machine, clock)),
                Err(error) => return (error, was_useful),
            };
            let error = (&mut requesting).await;
            let useful = requesting.was_useful();
            was_useful = Some(useful || was_useful == Some(true));
            // Only a connection that delivered bytes is followed by a second one.
            if !useful || error.kind() != WireErrorKind::Timeout {
                return (error, was_useful);
            }
            tracing::debug!(rank = %self.rank, %error, "reconnects once");
            // It depends on the seed and the rank, so that a simulated run repeats.
            let drawn = mix(self.requester.seed ^ mix(u64::from(self.rank.0) << 32 | machine.open() as u64));
            sleep(RECONNECT_JITTER.mul_f64((drawn >> 11) as f64 / (1u64 << 53) as f64)).await;
        }
    }

    /// Connects to the rank. An unresponsive address leaves time for the others.
    async fn open(&self, run: RunId) -> Result<AuthenticatedStream, WireError> {
        let PeerClientFactory { identity, wire, network, .. } = &self.requester;
        let until = Instant::now() + CONNECT_TIMEOUT;
        let open = |address: Address| async move {
            let opening = async {
                let connected = network.connect(&address).await;
                let stream = connected.map_err(|error| WireError::io("cannot connect", error))?;
                let (purpose, wire) = (Purpose::Samples(run), wire.over(&address));
                handshake::initiate(stream, identity, purpose, wire, Some(self.rank)).await
            };
            let late = |_| {
                let detail = format!("no answer in {:.1} s", CONNECT_TIMEOUT.as_secs_f64());
                Err(WireError::new(WireErrorKind::Timeout, detail))
            };
            let opened = timeout_at(until, opening).await.unwrap_or_else(late);
            opened.map(|(channel, _)| channel).map_err(|error| error.with(&address))
        };
        let addresses = lock(&self.state).addresses.clone();
        let opened = first_of(addresses, CONNECT_TIMEOUT / 2, open).await;
        opened.map(|(_, channel)| channel).map_err(last_of)
    }
}

/// The last error of all addresses.
fn last_of(mut errors: Vec<(Address, WireError)>) -> WireError {
    let none = || WireError::new(WireErrorKind::Disconnected, "it has no known address");
    errors.pop().map_or_else(none, |(_, error)| error)
}

/// A pending sample. Dropping it cancels the request.
struct PendingRead {
    incoming: oneshot::Receiver<Result<Bytes, TierError>>,
    remote: Arc<ClientHandle>,
    is_submitted: bool,
    is_done: bool,
}

impl Future for PendingRead {
    type Output = Result<Bytes, TierError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        if !std::mem::replace(&mut self.is_submitted, true) {
            self.remote.submit();
        }
        let answer = ready!(Pin::new(&mut self.incoming).poll(cx));
        self.is_done = true;
        Poll::Ready(answer.unwrap_or_else(|_| Err(TierError::new(ErrorKind::Closed, NAME))))
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        if !self.is_done {
            self.incoming.close();
            self.remote.dropped();
        }
    }
}
