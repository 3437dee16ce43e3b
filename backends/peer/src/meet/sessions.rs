//! Rank 0's end of each other rank's connection.
//!
//! One task for a connection: it hands what comes to the [`Leader`](super::leader::Leader), which decides, and sends what is
//! due. All state that outlives the connection is in the leader, so a rank whose connection broke says again what it has had
//! no answer to.

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

/// Who has proved to be of the job says soon which rank it is.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// Serves all that come. Ends with the last handle on `meetings`.
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

/// Tells all that come where rank 0 listens. Ends with the last handle on `meetings`.
pub(super) async fn redirect_all(
    addresses: &[Address],
    traffic: &Arc<Traffic>,
    mut meetings: mpsc::Receiver<(Greeting, Connection)>,
) {
    while let Some((_, connection)) = meetings.recv().await {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        let link = Link::new(connection, Arc::clone(traffic));
        link.say(&Message::Elsewhere { addresses }).await;
        // It closes when it has left, which nobody waits for here.
        tokio::spawn(link.close());
    }
}

/// One connection, from the rank's introduction on.
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
        // Where this process did not run when it was time, the others had no time to come back either.
        if next.elapsed() < RECONNECT / 3 {
            return hub.with(|leader| leader.check_gone(session));
        }
    }
}

/// A connection of a rank.
struct Serving<'a> {
    hub: &'a Hub,
    speaker: Speaker,
}

enum Told {
    All,
    Refused,
    /// Another connection has the rank.
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
                        // One whose connection broke comes back to hear it.
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
                // It ends with the leader.
                _ = news.changed() => {}
            }
        }
    }

    /// Nothing can be said to a rank any more; it may have said something before, above all why it gives up.
    async fn last_words(&mut self, link: &mut Link) {
        let listen = async {
            while let Some(come) = link.next().await {
                // What it would be answered does not reach it.
                drop(self.hear(come));
            }
        };
        // Whoever says more than that is cut short.
        drop(timeout(LAST_WORDS, listen).await);
    }

    /// Says all that there is to say.
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

    /// Takes what a rank says.
    fn hear(&mut self, come: Incoming) -> Result<(), Fault> {
        let Incoming { message, bulk, room } = come;
        let heard = self.hub.with(|leader| leader.message(&mut self.speaker, message, bulk));
        // The leader has counted it.
        drop(room);
        heard
    }
}
