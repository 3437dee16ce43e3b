//! Rank 0's end of each other rank's connection.
//!
//! One task for a connection: it gives the rank its place, hands what it brings to the [`Hub`], and tells it what the hub
//! has for it. All state that outlives the connection is in the hub, so a rank whose connection broke takes up where it
//! was on the next one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::hub::{Hub, Item, Ticket};
use super::link::{Incoming, Link};
use super::messages::{Hello, Message, Step};
use crate::{Connection, Greeting};

/// Who has proved to be of the job says soon which rank it is.
const INTRODUCTION: Duration = Duration::from_secs(10);

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
        Err(refuse) => {
            let last = matches!(refuse, Message::Refuse { again: false, .. });
            link.say(&refuse).await;
            link.close().await;
            if last {
                hub.heard(hello.person.rank as usize);
            }
            return;
        }
    };
    if link.say(&Message::Welcome { instance: hub.instance }).await {
        serve(&hub, ticket, &hello, link).await;
    }
    hub.unseat(ticket);
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
            Told::Broken => return,
        }
        tokio::select! {
            come = link.next() => {
                let Some(Incoming::Message(message)) = come else {
                    if position.over {
                        hub.heard(ticket.rank);
                    }
                    return;
                };
                if hear(hub, ticket.rank, &mut position, &mut link, message).await.is_none() {
                    link.close().await;
                    return;
                }
            }
            // It ends with the hub.
            _ = news.changed() => {}
        }
    }
}

enum Told {
    All,
    Refused,
    Broken,
}

/// Says all that there is to say.
async fn tell(hub: &Hub, ticket: Ticket, position: &mut Position, link: &Link) -> Told {
    let due = hub.due(ticket, position.events, position.wants.map(|(round, _)| round));
    if due.replaced {
        return Told::Broken;
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

/// Takes what a rank says; `None` where nothing more is to be said to it.
async fn hear(
    hub: &Hub,
    rank: usize,
    position: &mut Position,
    link: &mut Link,
    message: Message,
) -> Option<()> {
    match message {
        Message::Step { round, step, words } => {
            let item = match step {
                Step::Gather => Item::Bulk(link.whole(MOST_BROUGHT).await?),
                Step::Compare => Item::Words(words),
                Step::Share | Step::Start => Item::Here,
            };
            if let Err(refuse) = hub.deposit(rank, round, step, item) {
                link.say(&refuse).await;
                return None;
            }
            if step == Step::Gather {
                // It is here; the rank need not wait for the others'.
                return link.say(&Message::Over { round }).await.then_some(());
            }
            position.wants = Some((round, step));
        }
        Message::Working { on } => hub.work(rank, &on),
        Message::GiveUp { why } => hub.give_up(rank, &why),
        Message::Progress { at } => hub.progress(rank, at),
        Message::Report => {
            let report: Bytes = link.whole(MOST_BROUGHT).await?;
            hub.report(rank, report);
            return link.say(&Message::Reported).await.then_some(());
        }
        Message::Done => hub.done(rank),
        // What rank 0 says itself, or a later version.
        _ => {}
    }
    Some(())
}
