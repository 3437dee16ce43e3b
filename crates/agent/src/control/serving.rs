//! The connections of agents to the control process.
//!
//! Each is a session. One more task computes grants for all of them, a moment after something has
//! changed, so that the reports of many agents cost one computation. An agent that takes no
//! messages is disconnected: its leases end automatically.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::connection::within;
use foreread_connection::handshake::{PATIENCE, answer};
use foreread_connection::{
    BoxedStream, ControlConnection, Purpose, SampleOffer, Session, SessionBounds, TransportListener,
    WireError, WireErrorKind, WireProtection,
};
use foreread_host::held_leases::SILENT;
use foreread_host::json::{decoded, encoded};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::cluster::OutgoingGrant;
use super::intervals::REPORT_INTERVAL;
use super::messages::{
    APPLIED, Applied, GOODBYE, GRANT, HELLO, Hello, MAX_REPORT, NOTES, REFUSED, REPORT, ROSTER, Report,
};
use super::state::ControlState;

/// Connections before the end of the handshake, and after it.
const MAX_STRANGERS: usize = 2048;
const MAX_CONNECTIONS: usize = 12_000;

/// How long a handshake may take. Strangers do not keep agents out for longer.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Messages that wait at either end.
pub(super) const MAX_WAITING: usize = 64;

/// The bounds of a session with an agent.
const BOUNDS: SessionBounds = SessionBounds {
    heartbeat: REPORT_INTERVAL,
    silence: SILENT.saturating_mul(2),
    send: SILENT,
    most: MAX_REPORT,
    queue: MAX_WAITING,
};

/// How long after a change grants are computed.
const SETTLE: Duration = Duration::from_millis(10);

/// This process computes grants for one part in so many of its time at most.
const BUSY_PART: u32 = 50;

/// A message to an agent.
pub(super) type Outgoing = (u32, Bytes);

/// Accepts agents until the process ends.
pub(super) async fn serve(mut listener: Box<dyn TransportListener>, state: Arc<ControlState>) {
    let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
    let known = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            // No descriptor, for example.
            Err(_) => {
                sleep(SETTLE).await;
                continue;
            }
        };
        // Strangers wait for each other, and not agents that are connected for strangers.
        let Ok(permit) = Arc::clone(&strangers).try_acquire_owned() else { continue };
        let (state, known) = (Arc::clone(&state), Arc::clone(&known));
        tokio::spawn(async move {
            let welcomed = welcome(stream, &from, &state).await;
            drop(permit);
            let result = match (welcomed, known.try_acquire()) {
                (Ok((connection, user)), Ok(_permit)) => serve_agent(connection, &from, &user, &state).await,
                (Ok(_), Err(_)) => {
                    Err(WireError::new(WireErrorKind::Refused, "too many agents are connected"))
                }
                (Err(error), _) => Err(error),
            };
            if let Err(error) = result {
                tracing::info!(%error, from, "a connection ended");
            }
        });
    }
}

/// The connection of an agent that knows a token, and the token's name.
async fn welcome(
    stream: BoxedStream,
    from: &str,
    state: &ControlState,
) -> Result<(ControlConnection, String), WireError> {
    let offer = SampleOffer::new(WireProtection::Sealed);
    let is_wanted = |purpose| purpose == Purpose::Rendezvous;
    let has_spoken = AtomicBool::new(false);
    let handshake = answer(stream, from.to_owned(), &state.identities, &offer, is_wanted, &has_spoken);
    let (channel, peer) = within(HANDSHAKE, from, handshake).await?;
    let user = state.user(peer.job).ok_or_else(|| WireError::malformed("no such token"))?;
    Ok((ControlConnection::new(channel, peer.job), user))
}

async fn serve_agent(
    connection: ControlConnection,
    from: &str,
    user: &str,
    state: &Arc<ControlState>,
) -> Result<(), WireError> {
    let malformed = |why: String| WireError::malformed(format!("{from}: {why}"));
    let Session { sender, mut receiver, writer } = Session::start(connection, from, BOUNDS);
    let first = within(PATIENCE, from, receiver.next()).await?;
    let Some((HELLO, payload)) = first else { return Err(malformed("it did not say hello".to_owned())) };
    let hello: Hello = decoded(&payload).map_err(malformed)?;
    let (number, name) = match state.hello(user, hello, sender.clone()) {
        Ok(welcomed) => welcomed,
        Err(why) => {
            sender.try_send(REFUSED, Bytes::from(why.clone()));
            drop(sender);
            writer.ended().await;
            return Err(WireError::new(WireErrorKind::Refused, why));
        }
    };
    drop(sender);
    tracing::info!(node = name, user, from, "an agent is connected");
    let connected = ConnectedAgent { state, number, name };
    let reading = async {
        loop {
            let Some((kind, payload)) = receiver.next().await? else { return Ok(()) };
            match kind {
                REPORT => connected.report(decoded(&payload).map_err(malformed)?),
                APPLIED => connected.applied(decoded(&payload).map_err(malformed)?),
                GOODBYE => {
                    connected.goodbye();
                    return Ok(());
                }
                // Of a later version.
                _ => {}
            }
        }
    };
    let result = reading.await;
    writer.abort();
    result
}

/// An agent that is connected, until this is dropped.
struct ConnectedAgent<'a> {
    state: &'a Arc<ControlState>,
    number: u64,
    name: String,
}

impl ConnectedAgent<'_> {
    fn report(&self, report: Report) {
        self.state.with_cluster(|cluster, now| cluster.report(&self.name, self.number, report, now));
        self.state.changed.notify_one();
    }

    fn applied(&self, applied: Applied) {
        let is_freed = self
            .state
            .with_cluster(|cluster, now| cluster.applied(&self.name, self.number, applied.number, now));
        if is_freed {
            self.state.changed.notify_one();
        }
    }

    fn goodbye(&self) {
        self.state.with_cluster(|cluster, _| cluster.goodbye(&self.name, self.number));
        tracing::info!(node = self.name, "an agent has ended");
    }
}

impl Drop for ConnectedAgent<'_> {
    fn drop(&mut self) {
        self.state.disconnected(&self.name, self.number);
    }
}

/// Computes and sends grants, when something has changed and at least once per interval.
pub(super) async fn grant_regularly(state: Arc<ControlState>) {
    let mut ticks = interval(REPORT_INTERVAL / 4);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = state.changed.notified() => sleep(SETTLE).await,
            _ = ticks.tick() => {}
        }
        let begun = Instant::now();
        let (grants, notes) = state.with_cluster(|cluster, now| {
            let grants = cluster.grants(now);
            let notes = grants
                .iter()
                .any(|it| it.with_notes)
                .then(|| encoded(&state.sealed(cluster.notes().clone())));
            (grants, notes.unwrap_or_default())
        });
        for OutgoingGrant { connection, grant, with_notes, roster } in grants {
            if with_notes {
                state.send(connection, (NOTES, notes.clone()));
            }
            state.send(connection, (GRANT, encoded(&grant)));
            if let Some(roster) = roster {
                state.send(connection, (ROSTER, roster));
            }
        }
        // A slow round costs time, and not the agents.
        sleep((begun.elapsed() * BUSY_PART).min(SILENT / 6)).await;
    }
}
