//! Who answers other ranks.
//!
//! One task for each listener takes connections, and one for each connection proves who is there and then serves it. Those
//! who have not proved themselves stand in the doorway (`doorway.rs`), which has few places; those of other ranks are handed
//! to the meeting or served (`serving/`). Nothing that a stranger sends is kept, and nothing of his is written to a log but
//! one line a minute.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use foreread_tier::Serve;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::doorway::{Doorway, LOG_EVERY, Place, StrangerLog};
use crate::handshake::{self, Identity, Offer, PATIENCE, Purpose};
use crate::lock;
use crate::serving::Serving;
use crate::{
    Address, Connection, Counters, Greeting, Listener, RunId, Stream, Wire, WireError, WireErrorKind,
};

/// Connections of one listener that have not proved themselves, at one time.
const DOORWAY: usize = 64;

/// Meetings that wait to be taken.
const MEETINGS: usize = 1024;

/// How long to wait before the next connection is taken after one could not be.
const PAUSE: Duration = Duration::from_millis(20);

/// Bytes in one permit of the budget: permits are counted in 32 bits.
const PIECE: u64 = 1024;

/// How much others may be given at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of answers that may wait to be written, over all connections; beside it one answer on each.
    pub budget: u64,
    /// Bytes of one connection that may be asked of the engine or wait to be written; one sample always may.
    pub share: u64,
    /// How samples are protected on connections between nodes, alike on all ranks.
    pub wire: Wire,
}

impl Default for Settings {
    /// 32 MiB, of which one connection gets 4 MiB; authenticated.
    fn default() -> Self {
        Self { budget: 32 << 20, share: 4 << 20, wire: Wire::default() }
    }
}

impl Settings {
    fn permits(&self) -> u32 {
        (self.budget / PIECE).clamp(1, u64::from(u32::MAX >> 3)) as u32
    }

    /// The permits that so many bytes take; never more than there are.
    pub(crate) fn pieces(&self, bytes: u64) -> u32 {
        bytes.div_ceil(PIECE).clamp(1, u64::from(self.permits())) as u32
    }
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    offer: Offer,
    pub(crate) counters: Arc<Counters>,
    /// The budget.
    pub(crate) room: Arc<Semaphore>,
    /// The run whose samples are served; none before it is known.
    run: OnceLock<RunId>,
    source: RwLock<Option<Weak<dyn Serve>>>,
    meetings: mpsc::Sender<(Greeting, Connection)>,
    strangers: StrangerLog,
    other_runs: StrangerLog,
    mix_ups: StrangerLog,
}

impl Shared {
    /// Whether anybody was named who has the samples: until then questions wait.
    pub(crate) fn has_source(&self) -> bool {
        self.source.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Who has the samples, where there is somebody (still).
    pub(crate) fn source(&self) -> Option<Arc<dyn Serve>> {
        self.source.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade)
    }

    /// Somebody did not prove to be of this job.
    fn stranger(&self, from: &str, error: &WireError) {
        self.counters.now().strangers += 1;
        self.strangers.note(Some((from, error)));
    }
}

/// Answers other ranks for as long as it lives.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    meetings: Mutex<Option<mpsc::Receiver<(Greeting, Connection)>>>,
    tasks: JoinSet<()>,
}

impl Server {
    /// Answers on all `listeners`, by tasks of `runtime`. Nobody is served samples before [`enter`](Self::enter) names
    /// the run; what its ranks ask for waits until [`serve`](Self::serve) says who has it.
    pub fn start(
        runtime: &Handle,
        identity: Identity,
        listeners: Vec<Box<dyn Listener>>,
        settings: Settings,
        counters: Arc<Counters>,
    ) -> Self {
        let (sender, meetings) = mpsc::channel(MEETINGS);
        let shared = Arc::new(Shared {
            identity,
            offer: Offer::new(settings.wire),
            settings,
            counters,
            room: Arc::new(Semaphore::new(settings.permits() as usize)),
            run: OnceLock::new(),
            source: RwLock::default(),
            meetings: sender,
            strangers: StrangerLog::new("strangers"),
            other_runs: StrangerLog::new("ranks of other runs"),
            mix_ups: StrangerLog::new("ranks that were started otherwise"),
        });
        let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
        let between_nodes = listeners.iter().any(|listener| matches!(listener.address(), Address::Tcp(..)));
        if between_nodes && settings.wire == Wire::Checksummed {
            tracing::warn!("samples between nodes are not authenticated ({}=checksummed)", Wire::VARIABLE);
        }
        let mut tasks = JoinSet::new();
        for listener in listeners {
            tasks.spawn_on(take(listener, Arc::clone(&shared)), runtime);
        }
        Self { shared, addresses, meetings: Mutex::new(Some(meetings)), tasks }
    }

    /// How it protects samples between nodes.
    pub fn wire(&self) -> Wire {
        self.shared.settings.wire
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Serves samples to ranks of `run` from now on, and to no others; before, to nobody. A server is in one run for as
    /// long as it lives: a second call changes nothing.
    pub fn enter(&self, run: RunId) {
        let _ = self.shared.run.set(run); // the first one stays
    }

    /// Has `source` answer from now on.
    pub fn serve(&self, source: Weak<dyn Serve>) {
        *self.shared.source.write().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    /// The connections of ranks that want to meet, for whoever takes them first. They wait until somebody does; when the
    /// receiver is dropped, such connections are refused.
    pub fn meetings(&self) -> Option<mpsc::Receiver<(Greeting, Connection)>> {
        lock(&self.meetings).take()
    }

    /// Ends all connections and listens no longer when it returns: the addresses are free.
    ///
    /// # Cancel safety
    /// Dropping the future ends them as well, a little later.
    pub async fn close(mut self) {
        self.tasks.shutdown().await;
    }

    /// What was done.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }

    /// Bytes of the budget that are in use.
    pub fn in_use(&self) -> u64 {
        let free = self.shared.room.available_permits() as u64;
        (u64::from(self.shared.settings.permits()) - free) * PIECE
    }
}

/// Takes the connections of one listener. Their tasks end with it.
async fn take(mut listener: Box<dyn Listener>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let offer = Arc::new(shared.offer.over(listener.address()));
    // One for each listener: strangers on a port do not stand in the way of ranks at the node's own socket.
    let doorway = Arc::new(Doorway::new(DOORWAY));
    let mut minute = interval(LOG_EVERY);
    minute.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    let place = doorway.enter();
                    connections.spawn(attend(stream, from, place, Arc::clone(&offer), Arc::clone(&shared)));
                }
                Err(error) => {
                    doorway.push_out();
                    pause(&shared, listener.address(), error).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            _ = minute.tick() => shared.strangers.note(None),
        }
    }
}

/// No connection could be taken; somebody has given up what he held.
async fn pause(shared: &Shared, address: &Address, error: io::Error) {
    shared.stranger("nobody", &WireError::io(&format!("{address}: cannot take a connection"), error));
    sleep(PAUSE).await;
}

/// Most likely a rank that was started wrong; its own end is told of it as well.
fn is_mix_up(kind: WireErrorKind) -> bool {
    matches!(kind, WireErrorKind::OtherJob | WireErrorKind::Unwanted | WireErrorKind::OtherWire)
}

/// One connection, from its first byte to its last.
async fn attend(stream: Stream, from: String, mut place: Place, offer: Arc<Offer>, shared: Arc<Shared>) {
    let wanted = |purpose| match purpose {
        Purpose::Samples(run) => shared.run.get() == Some(&run),
        Purpose::Meeting => !shared.meetings.is_closed(),
    };
    let answer = handshake::answer(stream, from.clone(), &shared.identity, &offer, wanted, &place.spoke);
    let answered = tokio::select! {
        answered = timeout(PATIENCE, answer) => answered.unwrap_or_else(|_| {
            let detail = format!("it did not say who it is in {} s", PATIENCE.as_secs());
            Err(WireError::new(WireErrorKind::Late, detail))
        }),
        _ = &mut place.out => {
            Err(WireError::new(WireErrorKind::Late, "it said nothing, and others came"))
        }
    };
    let spoke = place.spoke.load(Relaxed);
    drop(place);
    let (channel, greeting) = match answered {
        Ok(answered) => answered,
        Err(error) if is_mix_up(error.kind()) => return shared.mix_ups.note(Some((&from, &error))),
        Err(error) if error.kind() == WireErrorKind::OtherRun && shared.run.get().is_none() => {
            return tracing::debug!(from, %error, "refused samples before the run has started");
        }
        // One that an earlier run left over asks every few seconds.
        Err(error) if error.kind() == WireErrorKind::OtherRun => {
            return shared.other_runs.note(Some((&from, &error)));
        }
        // Most likely a rank that has died or is cut off; it is no news that somebody's handshake broke off.
        Err(error) if spoke && matches!(error.kind(), WireErrorKind::Gone | WireErrorKind::Late) => {
            tracing::debug!(from, %error, "a handshake was not finished");
            return;
        }
        Err(error) => {
            if spoke && matches!(error.kind(), WireErrorKind::OtherToken | WireErrorKind::OtherVersion) {
                shared.counters.note_mistaken(format!("somebody at {from}: {error}"));
            }
            return shared.stranger(&from, &error);
        }
    };
    match greeting.purpose {
        Purpose::Samples(run) => {
            let rank = greeting.rank;
            if let Err(error) = Serving::new(Arc::clone(&shared), rank, run, channel).await {
                tracing::debug!(%rank, from, %error, "a connection of a rank ended");
            }
        }
        Purpose::Meeting => {
            let connection = Connection::new(channel, shared.identity.job);
            // Refused by then: the connection closes, which its other end sees.
            let _ = shared.meetings.send((greeting, connection)).await;
        }
    }
}
