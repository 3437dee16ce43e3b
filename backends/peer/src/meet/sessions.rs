//! Rank 0's end of each other rank's connection.
//!
//! One task per connection passes messages to the [`Leader`](super::leader::Leader), which decides,
//! and sends the messages that are due. All state that outlives the connection is in the leader. A
//! rank that lost its connection repeats the requests without a reply.

use std::sync::Arc;
use std::time::Duration;

use foreread_connection::{Address, ControlConnection, PeerIdentity};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::hub::Hub;
use super::leader::{FollowerSession, HelloRefusal, MessageFault, NextSend};
use super::link::{IncomingMessage, LinkTraffic, RankLink};
use super::members::RECONNECT_TIMEOUT;
use super::messages::{DRAIN_TIMEOUT, MeetMessage};
use super::shared_catalog;

/// Timeout of the hello after the handshake.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves all connections. Ends with the last handle on `meetings`.
pub(super) async fn serve_all(
    hub: Arc<Hub>,
    mut meetings: mpsc::Receiver<(PeerIdentity, ControlConnection)>,
) {
    let mut all = JoinSet::new();
    loop {
        tokio::select! {
            come = meetings.recv() => match come {
                Some((greeting, connection)) => {
                    all.spawn(serve_session(Arc::clone(&hub), greeting, connection));
                }
                None => break,
            },
            Some(_) = all.join_next(), if !all.is_empty() => {}
        }
    }
    while all.join_next().await.is_some() {}
}

/// Redirects all connections to rank 0's addresses. Ends with the last handle on `meetings`.
pub(super) async fn redirect_all(
    addresses: &[Address],
    traffic: &Arc<LinkTraffic>,
    mut meetings: mpsc::Receiver<(PeerIdentity, ControlConnection)>,
) {
    while let Some((_, connection)) = meetings.recv().await {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        let link = RankLink::new(connection, Arc::clone(traffic));
        link.send(&MeetMessage::Elsewhere { addresses }).await;
        // Closes in the background, after the message was sent.
        tokio::spawn(link.close());
    }
}

/// One connection, from the hello to its end.
async fn serve_session(hub: Arc<Hub>, greeting: PeerIdentity, connection: ControlConnection) {
    let mut link = RankLink::new(connection, Arc::clone(&hub.traffic));
    let come = timeout(HELLO_TIMEOUT, link.next()).await;
    let Ok(Some(IncomingMessage { message: MeetMessage::Hello(hello), .. })) = come else {
        return tracing::debug!(from = greeting.from, "a rank sent no hello");
    };
    if hello.info.rank != greeting.rank.0 {
        let (one, other) = (hello.info.rank, greeting.rank);
        return tracing::warn!(from = greeting.from, "a rank claims to be {one} and {other}");
    }
    let follower = match hub.with(|leader| leader.hello(&hello, &greeting.from, Instant::now())) {
        Ok(follower) => follower,
        Err(HelloRefusal::NoRun(refuse)) => {
            link.send(&refuse).await;
            link.close().await;
            return hub.with(|leader| leader.mark_informed(hello.info.rank as usize));
        }
        Err(HelloRefusal::Connection(refuse)) => {
            tracing::debug!(from = greeting.from, ?refuse, "refused a rank");
            link.send(&refuse).await;
            return link.close().await;
        }
    };
    let session = follower.session;
    SessionTask { hub: &hub, follower }.serve(link).await;
    if !hub.with(|leader| leader.disconnect(session, Instant::now())) {
        return;
    }
    loop {
        let next = Instant::now() + RECONNECT_TIMEOUT;
        sleep_until(next).await;
        // If this process was paused, the other ranks had no time to reconnect either.
        if next.elapsed() < RECONNECT_TIMEOUT / 3 {
            return hub.with(|leader| leader.check_lost(session));
        }
    }
}

/// The session of an admitted rank.
struct SessionTask<'a> {
    hub: &'a Hub,
    follower: FollowerSession,
}

enum SendOutcome {
    All,
    Refused,
    /// The rank has a newer connection.
    Replaced,
    Broken,
}

impl SessionTask<'_> {
    async fn serve(&mut self, mut link: RankLink) {
        let (mut published, rank) = (self.hub.published(), self.follower.session.rank);
        loop {
            published.mark_unchanged();
            match self.send_due(&link).await {
                SendOutcome::All => {}
                SendOutcome::Refused => {
                    link.close().await;
                    return self.hub.with(|leader| leader.mark_informed(rank));
                }
                SendOutcome::Replaced => return,
                SendOutcome::Broken => return self.drain(&mut link).await,
            }
            tokio::select! {
                come = link.next() => {
                    let Some(come) = come else {
                        // A rank whose connection broke reconnects to receive it.
                        if self.follower.over && link.was_closed() {
                            self.hub.with(|leader| leader.mark_informed(rank));
                        }
                        return;
                    };
                    match self.handle(come) {
                        Ok(()) => {}
                        Err(MessageFault::Refuse(refuse)) => {
                            link.send(&refuse).await;
                            return link.close().await;
                        }
                        Err(MessageFault::Broken) => return self.drain(&mut link).await,
                    }
                }
                // The leader lives as long as the hub.
                _ = published.changed() => {}
            }
        }
    }

    /// Sending failed. Reads the messages that arrived before, above all the reason for giving up.
    async fn drain(&mut self, link: &mut RankLink) {
        let listen = async {
            while let Some(come) = link.next().await {
                // A reply would not reach the rank.
                drop(self.handle(come));
            }
        };
        // A rank that keeps sending is cut off.
        drop(timeout(DRAIN_TIMEOUT, listen).await);
    }

    /// Sends all messages that are due.
    async fn send_due(&mut self, link: &RankLink) -> SendOutcome {
        while let Some(due) = self.hub.with(|leader| leader.next_send(&mut self.follower)) {
            let sent = match due {
                NextSend::Message(message, bulk) => link.send_with_bulk(&message, bulk).await,
                NextSend::Bulk(number, bulk) => match bulk.value(number).await {
                    Ok((message, bytes)) => {
                        self.hub.traffic.counters().now().bulks += 1;
                        link.send_with_bulk(&message, bytes).await
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a rank needs the catalog");
                        let refuse =
                            self.hub.with(|leader| leader.refuse_rank(shared_catalog::unreadable(&error)));
                        return if link.send(&refuse).await {
                            SendOutcome::Refused
                        } else {
                            SendOutcome::Broken
                        };
                    }
                },
                NextSend::Refuse(refuse) => {
                    return if link.send(&refuse).await { SendOutcome::Refused } else { SendOutcome::Broken };
                }
                NextSend::Replaced => return SendOutcome::Replaced,
            };
            if !sent {
                return SendOutcome::Broken;
            }
        }
        SendOutcome::All
    }

    /// Handles a message.
    fn handle(&mut self, come: IncomingMessage) -> Result<(), MessageFault> {
        let IncomingMessage { message, bulk, room } = come;
        let handled = self.hub.with(|leader| leader.message(&mut self.follower, message, bulk));
        // The leader has counted the bytes.
        drop(room);
        handled
    }
}
