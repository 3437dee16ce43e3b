//! Rank 0's end of each other rank's connection.
//!
//! One task for a connection: it gives the rank its place, hands what it brings to the [`Leader`], and tells it the values
//! that it waits for. All state that outlives the connection is in the leader, so a rank whose connection broke says again
//! what it has had no answer to.

use std::sync::Arc;
use std::time::Duration;

use foreread_types::Rank;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::leader::{Leader, Refusal};
use super::link::{Incoming, Link};
use super::members::{RECONNECT, Session};
use super::messages::{Message, key};
use crate::{Address, Connection, Greeting};

/// Who has proved to be of the job says soon which rank it is.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// How long what a rank said before its connection broke is listened to.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What one rank may bring for a key, in bytes.
pub(super) const LARGEST_PART: u64 = 256 << 20;

/// Values that one connection may wait for at a time.
const MOST_WANTED: usize = 16;

/// Serves all that come. Ends with the last handle on `meetings`.
pub(super) async fn serve_all(leader: Arc<Leader>, mut meetings: mpsc::Receiver<(Greeting, Connection)>) {
    let mut all = JoinSet::new();
    loop {
        tokio::select! {
            come = meetings.recv() => match come {
                Some((greeting, connection)) => {
                    all.spawn(attend(Arc::clone(&leader), greeting, connection));
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
    mut meetings: mpsc::Receiver<(Greeting, Connection)>,
) {
    while let Some((_, connection)) = meetings.recv().await {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        let link = Link::new(connection, Arc::default());
        link.say(&Message::Elsewhere { addresses }).await;
        // It closes when it has left, which nobody waits for here.
        tokio::spawn(link.close());
    }
}

/// One connection, from the rank's introduction on.
async fn attend(leader: Arc<Leader>, greeting: Greeting, connection: Connection) {
    let mut link = Link::new(connection, Arc::clone(&leader.moved));
    let Ok(Some(Incoming::Message(Message::Hello(hello)))) = timeout(INTRODUCTION, link.next()).await else {
        return tracing::debug!(from = greeting.from, "a rank did not introduce itself");
    };
    if hello.person.rank != greeting.rank.0 {
        let (one, other) = (hello.person.rank, greeting.rank);
        return tracing::warn!(from = greeting.from, "a rank says to be {one} and {other}");
    }
    let session = match leader.seat(&hello, &greeting.from) {
        Ok(session) => session,
        Err(Refusal::NoRun(refuse)) => {
            link.say(&refuse).await;
            link.close().await;
            return leader.heard(hello.person.rank as usize);
        }
        Err(Refusal::Connection(refuse)) => {
            tracing::debug!(from = greeting.from, ?refuse, "refused a rank its place");
            link.say(&refuse).await;
            return link.close().await;
        }
    };
    let place = leader.places(&[Rank(0)]);
    let welcome = Message::Welcome { process: leader.process, nonce: leader.nonce.to_string(), place };
    if link.say(&welcome).await {
        Serving { leader: &leader, session, wanted: Vec::new(), waiting: None, over: false }
            .serve(link)
            .await;
    }
    if !leader.disconnect(session) {
        return;
    }
    loop {
        let next = Instant::now() + RECONNECT;
        sleep_until(next).await;
        // Where this process did not run when it was time, the others had no time to come back either.
        if next.elapsed() < RECONNECT / 3 {
            return leader.check_gone(session);
        }
    }
}

/// What a connection's task remembers.
struct Serving<'a> {
    leader: &'a Leader,
    session: Session,
    /// The keys whose values the rank waits for.
    wanted: Vec<String>,
    /// What it was told last of who is missing.
    waiting: Option<u64>,
    /// Whether it was told that the run is over.
    over: bool,
}

enum Told {
    All,
    Refused,
    /// Another connection has the rank.
    Replaced,
    Broken,
}

enum Heard {
    Well,
    /// It was told why nothing more is said to it.
    Refused,
    Broken,
}

impl Serving<'_> {
    async fn serve(&mut self, mut link: Link) {
        let mut news = self.leader.news();
        loop {
            news.mark_unchanged();
            match self.tell(&link).await {
                Told::All => {}
                Told::Refused => {
                    link.close().await;
                    return self.leader.heard(self.session.rank);
                }
                Told::Replaced => return,
                Told::Broken => return self.last_words(&mut link).await,
            }
            tokio::select! {
                come = link.next() => {
                    let Some(Incoming::Message(message)) = come else {
                        // One whose connection broke comes back to hear it.
                        if self.over && link.was_closed() {
                            self.leader.heard(self.session.rank);
                        }
                        return;
                    };
                    match self.hear(&mut link, message).await {
                        Heard::Well => {}
                        Heard::Refused => return link.close().await,
                        Heard::Broken => return self.last_words(&mut link).await,
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
                if let Incoming::Message(message) = come {
                    // What it would be answered does not reach it.
                    self.hear(link, message).await;
                }
            }
        };
        // Whoever says more than that is cut short.
        drop(timeout(LAST_WORDS, listen).await);
    }

    /// Says all that there is to say.
    async fn tell(&mut self, link: &Link) -> Told {
        let due = self.leader.due(self.session, &self.wanted);
        if due.replaced {
            return Told::Replaced;
        }
        if let Some(refuse) = due.refuse {
            return if link.say(&refuse).await { Told::Refused } else { Told::Broken };
        }
        for (key, value) in due.values {
            self.wanted.retain(|wanted| *wanted != key);
            self.over |= key == key::DONE;
            if !link.say_with(&Message::Value { key }, value).await {
                return Told::Broken;
            }
        }
        if let Some((number, waiting)) = due.waiting
            && self.waiting.replace(number) != Some(number)
            && !link.say(&waiting).await
        {
            return Told::Broken;
        }
        Told::All
    }

    /// Takes what a rank says.
    async fn hear(&mut self, link: &mut Link, message: Message) -> Heard {
        let (leader, rank) = (self.leader, self.session.rank);
        let wanted = match message {
            Message::Wait { key } => leader.want(rank, &key).map(|()| key),
            Message::Exchange { key } => {
                let Some(part) = link.whole(LARGEST_PART).await else { return Heard::Broken };
                leader.part(rank, &key, part).map(|()| key)
            }
            Message::Working { on } => {
                leader.work(rank, &on);
                return Heard::Well;
            }
            Message::GiveUp { why } => {
                leader.give_up(rank, &why);
                return Heard::Well;
            }
            Message::Progress { at } => {
                leader.progress(rank, at);
                return Heard::Well;
            }
            // What rank 0 says itself, or a later version.
            _ => return Heard::Well,
        };
        match wanted {
            Ok(key) if self.wanted.len() < MOST_WANTED => self.wanted.push(key),
            Ok(_) => return Heard::Broken,
            Err(refuse) => {
                link.say(&refuse).await;
                return Heard::Refused;
            }
        }
        Heard::Well
    }
}
