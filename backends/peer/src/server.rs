//! Serves samples to other ranks.
//!
//! Each listener has a task that accepts connections. Each connection has a task that authenticates
//! it and then serves it. The number of unauthenticated connections is bounded (`pending_auth.rs`).
//! Authenticated ones are passed to the rendezvous or served (`serving/`). Nothing that an
//! unauthenticated peer sends is kept. It is logged at most once a minute, in one line.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use foreread_connection::handshake::{self, Identity, PATIENCE, Purpose, SampleOffer};
use foreread_connection::{
    Address, BoxedStream, ControlConnection, PeerIdentity, RunId, TransportListener, WireError,
    WireErrorKind, WireProtection,
};
use foreread_tier::PeerService;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::counters::PeerCounters;
use crate::pending_auth::{AuthSlot, LOG_EVERY, PendingAuth, RefusalLog};
use crate::serving::driver::PeerConnection;
use crate::serving::shared::{ServerLimits, ServingShared};
use foreread_tier::lock;

/// Unauthenticated connections of one listener at a time.
const MAX_PENDING_AUTH: usize = 64;

/// Rendezvous connections that wait to be taken.
const MEETING_QUEUE_LENGTH: usize = 1024;

/// Delay before the next connection is accepted after an error.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// State that all connections share.
#[derive(Debug)]
struct ServerShared {
    identity: Identity,
    offer: SampleOffer,
    serving: Arc<ServingShared>,
    /// The run whose samples are served, once known.
    run: OnceLock<RunId>,
    meetings: mpsc::Sender<(PeerIdentity, ControlConnection)>,
    links: mpsc::Sender<(PeerIdentity, ControlConnection)>,
    unauthenticated: RefusalLog,
    other_runs: RefusalLog,
    misconfigured: RefusalLog,
}

impl ServerShared {
    /// Counts and logs a connection that failed authentication.
    fn note_unauthenticated(&self, from: &str, error: &WireError) {
        self.serving.counters.now().unauthenticated += 1;
        self.unauthenticated.note(Some((from, error)));
    }
}

/// Serves samples to other ranks until it is dropped.
#[derive(Debug)]
pub struct PeerServer {
    shared: Arc<ServerShared>,
    addresses: Vec<Address>,
    meetings: Mutex<Option<mpsc::Receiver<(PeerIdentity, ControlConnection)>>>,
    links: Mutex<Option<mpsc::Receiver<(PeerIdentity, ControlConnection)>>>,
    tasks: JoinSet<()>,
}

impl PeerServer {
    /// Serves on all `listeners`, with tasks of `runtime`. Samples are refused until
    /// [`enter`](Self::enter) names the run. Requests of its ranks wait until
    /// [`serve`](Self::serve) names the source.
    pub fn start(
        runtime: &Handle,
        identity: Identity,
        listeners: Vec<Box<dyn TransportListener>>,
        settings: ServerLimits,
        counters: Arc<PeerCounters>,
    ) -> Self {
        let (sender, meetings) = mpsc::channel(MEETING_QUEUE_LENGTH);
        let (of_stores, links) = mpsc::channel(MEETING_QUEUE_LENGTH);
        let shared = Arc::new(ServerShared {
            identity,
            offer: SampleOffer::new(settings.wire),
            serving: Arc::new(ServingShared::new(settings, counters)),
            run: OnceLock::new(),
            meetings: sender,
            links: of_stores,
            unauthenticated: RefusalLog::new("unauthenticated peers"),
            other_runs: RefusalLog::new("ranks of other runs"),
            misconfigured: RefusalLog::new("ranks that are not served"),
        });
        let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
        let between_nodes = listeners.iter().any(|listener| matches!(listener.address(), Address::Tcp(..)));
        if between_nodes && settings.wire == WireProtection::Checksummed {
            tracing::warn!(
                "samples between nodes are not authenticated ({}=checksummed)",
                WireProtection::VARIABLE
            );
        }
        let mut tasks = JoinSet::new();
        for listener in listeners {
            tasks.spawn_on(take(listener, Arc::clone(&shared)), runtime);
        }
        let (meetings, links) = (Mutex::new(Some(meetings)), Mutex::new(Some(links)));
        Self { shared, addresses, meetings, links, tasks }
    }

    /// How samples between nodes are protected.
    pub fn wire(&self) -> WireProtection {
        self.shared.serving.settings.wire
    }

    /// The addresses of its listeners.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Serves samples to ranks of `run` from now on, and to no others. A server is in one run as
    /// long as it lives: a second call has no effect.
    pub fn enter(&self, run: RunId) {
        let _ = self.shared.run.set(run); // the first one stays
    }

    /// Sets the source of the samples.
    pub fn serve(&self, source: Weak<dyn PeerService>) {
        self.shared.serving.set_source(source);
    }

    /// The rendezvous connections of other ranks, for the first caller. They wait until it takes
    /// them. Once the receiver is dropped, such connections are refused.
    pub fn meetings(&self) -> Option<mpsc::Receiver<(PeerIdentity, ControlConnection)>> {
        lock(&self.meetings).take()
    }

    /// The connections for messages of other stores, for the first caller, as
    /// [`meetings`](Self::meetings).
    pub fn links(&self) -> Option<mpsc::Receiver<(PeerIdentity, ControlConnection)>> {
        lock(&self.links).take()
    }

    /// Closes all connections and listeners. On return, the addresses are free.
    ///
    /// # Cancel safety
    /// If the future is dropped, they are closed a little later.
    pub async fn close(mut self) {
        self.tasks.shutdown().await;
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<PeerCounters> {
        &self.shared.serving.counters
    }

    /// Bytes of the budget that are in use.
    pub fn in_use(&self) -> u64 {
        self.shared.serving.in_use()
    }
}

/// Accepts connections of one listener. Their tasks end with it.
async fn take(mut listener: Box<dyn TransportListener>, shared: Arc<ServerShared>) {
    let mut connections = JoinSet::new();
    let offer = Arc::new(shared.offer.over(listener.address()));
    // One per listener: a flood of a port does not displace ranks at the node's own socket.
    let pending = Arc::new(PendingAuth::new(MAX_PENDING_AUTH));
    let mut minute = interval(LOG_EVERY);
    minute.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // A flood of connections must not delay the others.
            biased;
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            _ = minute.tick() => shared.unauthenticated.note(None),
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    let slot = pending.admit();
                    let (offer, shared) = (Arc::clone(&offer), Arc::clone(&shared));
                    connections.spawn(serve_connection(stream, from, slot, offer, shared));
                }
                Err(error) => {
                    pending.evict();
                    pause(&shared, listener.address(), error).await;
                }
            },
        }
    }
}

/// A connection could not be accepted. One pending connection was evicted to free its descriptor.
async fn pause(shared: &ServerShared, address: &Address, error: io::Error) {
    shared.note_unauthenticated(
        "unknown",
        &WireError::io(&format!("{address}: cannot accept a connection"), error),
    );
    sleep(ACCEPT_RETRY_DELAY).await;
}

/// One connection, from its first byte to its last.
async fn serve_connection(
    stream: BoxedStream,
    from: String,
    mut slot: AuthSlot,
    offer: Arc<SampleOffer>,
    shared: Arc<ServerShared>,
) {
    let wanted = |purpose| match purpose {
        Purpose::Samples(run) => shared.run.get() == Some(&run),
        Purpose::Rendezvous => !shared.meetings.is_closed(),
        Purpose::Link => !shared.links.is_closed(),
    };
    let known = std::slice::from_ref(&shared.identity);
    let answer = handshake::answer(stream, from.clone(), known, &offer, wanted, &slot.named_job);
    let answered = tokio::select! {
        biased;
        answered = timeout(PATIENCE, answer) => answered.unwrap_or_else(|_| {
            let detail = format!("no handshake within {} s", PATIENCE.as_secs());
            Err(WireError::new(WireErrorKind::Timeout, detail))
        }),
        _ = &mut slot.evicted => {
            Err(WireError::new(WireErrorKind::Timeout, "it sent nothing and was evicted"))
        }
    };
    let named_job = slot.named_job.load(Relaxed);
    drop(slot);
    let (channel, greeting) = match answered {
        Ok(answered) => answered,
        Err(error) => {
            let last = Some((&*from, &error));
            return match error.kind() {
                // It knows the token: its settings differ.
                WireErrorKind::OtherJob | WireErrorKind::Refused | WireErrorKind::OtherWire => {
                    shared.misconfigured.note(last);
                }
                WireErrorKind::OtherRun if shared.run.get().is_none() => {
                    tracing::debug!(from, %error, "refused samples before the run has started");
                }
                WireErrorKind::OtherRun => shared.other_runs.note(last),
                // An attempt that was given up.
                WireErrorKind::Disconnected | WireErrorKind::Timeout if named_job => {
                    tracing::debug!(from, %error, "a handshake was not finished");
                }
                kind => {
                    if named_job && matches!(kind, WireErrorKind::OtherToken | WireErrorKind::OtherVersion) {
                        shared.serving.counters.note_mistaken(format!("a process at {from}: {error}"));
                    }
                    shared.note_unauthenticated(&from, &error);
                }
            };
        }
    };
    match greeting.purpose {
        Purpose::Samples(run) => {
            let (rank, serving) = (greeting.rank, Arc::clone(&shared.serving));
            if let Err(error) = PeerConnection::new(serving, rank, run, channel).await {
                tracing::debug!(%rank, from, %error, "a connection of a rank ended");
            }
        }
        Purpose::Rendezvous | Purpose::Link => {
            let is_link = greeting.purpose == Purpose::Link;
            let connection = ControlConnection::new(channel, shared.identity.job);
            let receiver = if is_link { &shared.links } else { &shared.meetings };
            // If it is gone, the connection closes, which its other end detects.
            let _ = receiver.send((greeting, connection)).await;
        }
    }
}
