//! Rank 0's end of each other rank's connection.
//!
//! One task per connection passes messages to the [`Leader`](super::leader::Leader), which decides,
//! and sends what is due. All state that outlives the connection is in the leader. A rank that lost
//! its connection repeats the requests without a reply.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::bulk;
use super::hub::Hub;
use super::leader::{Due, Fault, Refusal, Speaker};
use super::link::{Incoming, Link, Traffic};
use super::members::RECONNECT;
use super::messages::{LAST_WORDS, Message};
use crate::{Address, Connection, Greeting};

/// Timeout of the hello after the handshake.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// Serves all connections. Ends with the last handle on `meetings`.
pub(super) async fn serve_all(hub: Arc<Hub>, mut meetings: mpsc::Receiver<(Greeting, Connection)>) {
    let mut all = JoinSet::new();
    loop {
        tokio::select! {
            come = meetings.recv() => match come {
                Some((greeting, connection)) => {
                    all.spawn(attend(Arc::clone(&hub), greeting, connection));
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
    traffic: &Arc<Traffic>,
    mut meetings: mpsc::Receiver<(Greeting, Connection)>,
) {
    while let Some((_, connection)) = meetings.recv().await {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        let link = Link::new(connection, Arc::clone(traffic));
        link.say(&Message::Elsewhere { addresses }).await;
        // Closes in the background, after the message was sent.
        tokio::spawn(link.close());
    }
}

/// One connection, from the hello to its end.
async fn attend(hub: Arc<Hub>, greeting: Greeting, connection: Connection) {
    let mut link = Link::new(connection, Arc::clone(&hub.traffic));
    let come = timeout(INTRODUCTION, link.next()).await;
    let Ok(Some(Incoming { message: Message::Hello(hello), .. })) = come else {
        return tracing::debug!(from = greeting.from, "a rank did not introduce itself");
    };
    if hello.person.rank != greeting.rank.0 {
        let (one, other) = (hello.person.rank, greeting.rank);
        return tracing::warn!(from = greeting.from, "a rank says to be {one} and {other}");
    }
    let speaker = match hub.with(|leader| leader.hello(&hello, &greeting.from, Instant::now())) {
        Ok(speaker) => speaker,
        Err(Refusal::NoRun(refuse)) => {
            link.say(&refuse).await;
            link.close().await;
            return hub.with(|leader| leader.heard(hello.person.rank as usize));
        }
        Err(Refusal::Connection(refuse)) => {
            tracing::debug!(from = greeting.from, ?refuse, "refused a rank its place");
            link.say(&refuse).await;
            return link.close().await;
        }
    };
    let session = speaker.session;
    Serving { hub: &hub, speaker }.serve(link).await;
    if !hub.with(|leader| leader.disconnect(session, Instant::now())) {
        return;
    }
    loop {
        let next = Instant::now() + RECONNECT;
        sleep_until(next).await;
        // If this process was paused, the other ranks had no time to reconnect either.
        if next.elapsed() < RECONNECT / 3 {
            return hub.with(|leader| leader.check_gone(session));
        }
    }
}

/// The session of an admitted rank.
struct Serving<'a> {
    hub: &'a Hub,
    speaker: Speaker,
}

enum Told {
    All,
    Refused,
    /// The rank has a newer connection.
    Replaced,
    Broken,
}

impl Serving<'_> {
    async fn serve(&mut self, mut link: Link) {
        let (mut news, rank) = (self.hub.news(), self.speaker.session.rank);
        loop {
            news.mark_unchanged();
            match self.tell(&link).await {
                Told::All => {}
                Told::Refused => {
                    link.close().await;
                    return self.hub.with(|leader| leader.heard(rank));
                }
                Told::Replaced => return,
                Told::Broken => return self.last_words(&mut link).await,
            }
            tokio::select! {
                come = link.next() => {
                    let Some(come) = come else {
                        // A rank whose connection broke reconnects to receive it.
                        if self.speaker.over && link.was_closed() {
                            self.hub.with(|leader| leader.heard(rank));
                        }
                        return;
                    };
                    match self.hear(come) {
                        Ok(()) => {}
                        Err(Fault::Refuse(refuse)) => {
                            link.say(&refuse).await;
                            return link.close().await;
                        }
                        Err(Fault::Broken) => return self.last_words(&mut link).await,
                    }
                }
                // The leader lives as long as the hub.
                _ = news.changed() => {}
            }
        }
    }

    /// Sending failed. Reads the messages that arrived before, above all the reason for giving up.
    async fn last_words(&mut self, link: &mut Link) {
        let listen = async {
            while let Some(come) = link.next().await {
                // A reply would not reach the rank.
                drop(self.hear(come));
            }
        };
        // A rank that keeps sending is cut off.
        drop(timeout(LAST_WORDS, listen).await);
    }

    /// Sends all messages that are due.
    async fn tell(&mut self, link: &Link) -> Told {
        while let Some(due) = self.hub.with(|leader| leader.due(&mut self.speaker)) {
            let said = match due {
                Due::Say(message, bulk) => link.say_with(&message, bulk).await,
                Due::Bulk(number, bulk) => match bulk.value(number).await {
                    Ok((message, bytes)) => {
                        self.hub.traffic.counters().now().bulks += 1;
                        link.say_with(&message, bytes).await
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a rank needs the catalog");
                        let refuse = self.hub.with(|leader| leader.end_with(bulk::unreadable(&error)));
                        return if link.say(&refuse).await { Told::Refused } else { Told::Broken };
                    }
                },
                Due::Refuse(refuse) => {
                    return if link.say(&refuse).await { Told::Refused } else { Told::Broken };
                }
                Due::Replaced => return Told::Replaced,
            };
            if !said {
                return Told::Broken;
            }
        }
        Told::All
    }

    /// Handles a message.
    fn hear(&mut self, come: Incoming) -> Result<(), Fault> {
        let Incoming { message, bulk, room } = come;
        let heard = self.hub.with(|leader| leader.message(&mut self.speaker, message, bulk));
        // The leader has counted the bytes.
        drop(room);
        heard
    }
}
