//! Rank 0's end of each other rank's connection.
//!
//! One task for a connection: it gives the rank its place, hands what it brings to the [`Hub`], and tells it what the hub
//! has for it. All state that outlives the connection is in the hub, so a rank whose connection broke takes up where it
//! was on the next one.

use std::sync::Arc;
use std::time::Duration;

use foreread_types::Rank;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::hub::{AGAIN, Hub, Item, Refusal, Ticket};
use super::link::{Incoming, Link};
use super::messages::{Hello, Message, Step};
use crate::{Connection, Greeting};

/// Who has proved to be of the job says soon which rank it is.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// How long what a rank said before its connection broke is listened to.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What one rank may bring to a round, or report.
pub(super) const MOST_BROUGHT: u64 = 256 << 20;

/// Serves all that come. Ends with the last handle on `meetings`.
pub(super) async fn admit(hub: Arc<Hub>, mut meetings: mpsc::Receiver<(Greeting, Connection)>) {
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

/// One connection, from the rank's introduction on.
async fn attend(hub: Arc<Hub>, greeting: Greeting, connection: Connection) {
    let mut link = Link::new(connection, Arc::clone(&hub.moved));
    let Ok(Some(Incoming::Message(Message::Hello(hello)))) = timeout(INTRODUCTION, link.next()).await else {
        return tracing::debug!(from = greeting.from, "a rank did not introduce itself");
    };
    if hello.person.rank != greeting.rank.0 {
        let (one, other) = (hello.person.rank, greeting.rank);
        return tracing::warn!(from = greeting.from, "a rank says to be {one} and {other}");
    }
    let ticket = match hub.seat(&hello, &greeting.from) {
        Ok(ticket) => ticket,
        Err(Refusal::NoRun(refuse)) => {
            link.say(&refuse).await;
            link.close().await;
            return hub.heard(hello.person.rank as usize);
        }
        Err(Refusal::Connection(refuse)) => {
            tracing::debug!(from = greeting.from, ?refuse, "refused a rank its place");
            link.say(&refuse).await;
            return link.close().await;
        }
    };
    let place = hub.places(&[Rank(0)]);
    if link.say(&Message::Welcome { instance: hub.instance, nonce: hub.nonce.to_string(), place }).await {
        serve(&hub, ticket, &hello, link).await;
    }
    if !hub.unseat(ticket) {
        return;
    }
    loop {
        let next = Instant::now() + AGAIN;
        sleep_until(next).await;
        // Where this process did not run when it was time, the others had no time to come back either.
        if next.elapsed() < AGAIN / 3 {
            return hub.look_again(ticket);
        }
    }
}

/// What a connection's task remembers.
struct Position {
    /// The round that the rank waits for.
    wants: Option<(u32, Step)>,
    /// The last event that it was told, once it has started.
    events: Option<u64>,
    /// What it was told last of who is missing.
    waiting: Option<u64>,
    /// Whether it was told that the run is over.
    over: bool,
}

async fn serve(hub: &Hub, ticket: Ticket, hello: &Hello, mut link: Link) {
    let mut news = hub.news();
    let mut position =
        Position { wants: None, events: hello.started.then_some(0), waiting: None, over: false };
    loop {
        news.mark_unchanged();
        match tell(hub, ticket, &mut position, &link).await {
            Told::All => {}
            Told::Refused => {
                link.close().await;
                return hub.heard(ticket.rank);
            }
            Told::Replaced => return,
            Told::Broken => return last_words(hub, ticket.rank, &mut position, &mut link).await,
        }
        tokio::select! {
            come = link.next() => {
                let Some(Incoming::Message(message)) = come else {
                    // One whose connection broke comes back to hear it.
                    if position.over && link.was_closed() {
                        hub.heard(ticket.rank);
                    }
                    return;
                };
                match hear(hub, ticket.rank, &mut position, &mut link, message).await {
                    Heard::Well => {}
                    Heard::Refused => return link.close().await,
                    Heard::Broken => return last_words(hub, ticket.rank, &mut position, &mut link).await,
                }
            }
            // It ends with the hub.
            _ = news.changed() => {}
        }
    }
}

/// Nothing can be said to a rank any more; it may have said something before, above all why it gives up.
async fn last_words(hub: &Hub, rank: usize, position: &mut Position, link: &mut Link) {
    let listen = async {
        while let Some(come) = link.next().await {
            if let Incoming::Message(message) = come {
                // What it would be answered does not reach it.
                hear(hub, rank, position, link, message).await;
            }
        }
    };
    // Whoever says more than that is cut short.
    drop(timeout(LAST_WORDS, listen).await);
}

enum Told {
    All,
    Refused,
    /// Another connection has the place.
    Replaced,
    Broken,
}

enum Heard {
    Well,
    /// It was told why nothing more is said to it.
    Refused,
    Broken,
}

impl Heard {
    fn of(whole: bool) -> Self {
        if whole { Self::Well } else { Self::Broken }
    }
}

/// Says all that there is to say.
async fn tell(hub: &Hub, ticket: Ticket, position: &mut Position, link: &Link) -> Told {
    let due = hub.due(ticket, position.events, position.wants.map(|(round, _)| round));
    if due.replaced {
        return Told::Replaced;
    }
    if let Some(refuse) = due.refuse {
        return if link.say(&refuse).await { Told::Refused } else { Told::Broken };
    }
    if let (Some(outcome), Some((round, step))) = (due.outcome, position.wants) {
        position.wants = None;
        let over = Message::Over { round };
        let said = match step {
            Step::Share | Step::Start => link.say_with(&over, outcome).await,
            Step::Gather | Step::Compare => link.say(&over).await,
        };
        if !said {
            return Told::Broken;
        }
        if step == Step::Start {
            position.events = Some(0);
            // What happened before is told at the next turn.
            return Box::pin(tell(hub, ticket, position, link)).await;
        }
    }
    for (number, event) in due.events {
        if !link.say(&event).await {
            return Told::Broken;
        }
        position.events = Some(number);
        position.over |= matches!(event, Message::AllDone { .. });
    }
    if let Some((number, waiting)) = due.waiting
        && position.waiting.replace(number) != Some(number)
        && !link.say(&waiting).await
    {
        return Told::Broken;
    }
    Told::All
}

/// Takes what a rank says.
async fn hear(hub: &Hub, rank: usize, position: &mut Position, link: &mut Link, message: Message) -> Heard {
    match message {
        Message::Step { round, step, words } => {
            let item = match step {
                Step::Gather => match link.whole(MOST_BROUGHT).await {
                    Some(bulk) => Item::Bulk(bulk),
                    None => return Heard::Broken,
                },
                Step::Compare => Item::Words(words),
                Step::Share | Step::Start => Item::Here,
            };
            if let Err(refuse) = hub.deposit(rank, round, step, item) {
                link.say(&refuse).await;
                return Heard::Refused;
            }
            if step == Step::Gather {
                // It is here; the rank need not wait for the others'.
                return Heard::of(link.say(&Message::Over { round }).await);
            }
            position.wants = Some((round, step));
        }
        Message::Working { on } => hub.work(rank, &on),
        Message::GiveUp { why } => hub.give_up(rank, &why),
        Message::Progress { at } => hub.progress(rank, at),
        Message::Report => {
            let Some(report) = link.whole(MOST_BROUGHT).await else { return Heard::Broken };
            hub.report(rank, report);
            return Heard::of(link.say(&Message::Reported).await);
        }
        Message::Done => hub.done(rank),
        // What rank 0 says itself, or a later version.
        _ => {}
    }
    Heard::Well
}
