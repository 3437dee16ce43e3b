//! The connection to rank 0 during the run, as the other ranks keep it.
//!
//! One task, which says what this rank has to say (the latest counts, not each) and hears of the others. When the
//! connection breaks it is made again for as long as the run lasts; the run itself does not depend on it: samples flow between
//! ranks without rank 0.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::MeetError;
use super::link::{Incoming, Link};
use super::member::Member;
use super::messages::{Message, key};
use super::roster::Roster;
use super::sessions::LARGEST_PART;
use super::waiting::Patience;

/// How often a rank says how far it is.
const OFTEN: Duration = Duration::from_millis(200);

/// As long as a run lasts.
const EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What this rank has to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outbox {
    pub progress: Option<u64>,
    pub report: Option<Bytes>,
    pub done: bool,
    /// The task should end when all is said.
    pub end: bool,
}

/// What the rest of this rank learns of rank 0.
#[derive(Debug)]
pub(super) struct Heard {
    /// Rank 0 has the report.
    pub reported: watch::Sender<bool>,
    /// There is no connection to it.
    pub lost: watch::Sender<bool>,
    /// The run is over, without these.
    pub over: watch::Sender<Option<Vec<Rank>>>,
}

/// Speaks to rank 0 until the run ends.
pub(super) async fn run(
    mut member: Member,
    roster: Arc<Roster>,
    mut outbox: watch::Receiver<Outbox>,
    heard: Heard,
) {
    member.patience = Patience::new(EVER, Box::new(|_| ()));
    member.hello.started = true;
    let mut moves = 0;
    loop {
        if let Some(link) = member.link.take() {
            heard.lost.send_replace(false);
            let session = Speaking { link, roster: &roster, heard: &heard, moves: &mut moves };
            if session.speak(&mut outbox).await {
                return;
            }
            heard.lost.send_replace(true);
            tracing::warn!("rank 0 does not answer; the run goes on, and its end is not told to the others");
        }
        tokio::select! {
            made = again(&mut member) => if !made {
                return;
            },
            () = ended(&mut outbox) => return,
        }
    }
}

async fn ended(outbox: &mut watch::Receiver<Outbox>) {
    // An error is the end, too: nobody is left who could say something.
    drop(outbox.wait_for(|outbox| outbox.end).await);
}

/// Makes the connection again; `false` where rank 0 does not want it.
async fn again(member: &mut Member) -> bool {
    let made = async {
        let found = member.find().await?;
        let made = member.introduce(found).await?;
        if !made {
            member.pause().await?;
        }
        Ok(())
    };
    let made: Result<(), MeetError> = made.await;
    match made {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "this rank goes on without rank 0");
            false
        }
    }
}

/// One connection to rank 0.
struct Speaking<'a> {
    link: Link,
    roster: &'a Roster,
    heard: &'a Heard,
    /// Changes of addresses that were heard of, over all connections.
    moves: &'a mut u64,
}

impl Speaking<'_> {
    /// Says and hears all, until the run ends (`true`) or the link breaks.
    async fn speak(mut self, outbox: &mut watch::Receiver<Outbox>) -> bool {
        let mut said = Outbox::default();
        let mut next = Instant::now();
        if !self.link.say(&Message::Wait { key: key::moved(*self.moves) }).await {
            return false;
        }
        loop {
            let now = outbox.borrow_and_update().clone();
            let hurry = now.done || now.end || now.report != said.report;
            if let Some(at) = now.progress.filter(|at| said.progress != Some(*at))
                && (hurry || Instant::now() >= next)
            {
                next = Instant::now() + OFTEN;
                if !self.link.say(&Message::Progress { at }).await {
                    return now.end;
                }
                said.progress = now.progress;
            }
            if let Some(report) = now.report.clone().filter(|_| said.report.is_none()) {
                if !self.link.say_with(&Message::Exchange { key: key::REPORT.to_owned() }, report).await {
                    return now.end;
                }
                said.report.clone_from(&now.report);
            }
            if now.done && !said.done {
                let done = Message::Exchange { key: key::DONE.to_owned() };
                if !self.link.say_with(&done, Bytes::new()).await {
                    return now.end;
                }
                said.done = true;
            }
            if now.end {
                self.link.close().await;
                return true;
            }
            let unsaid = now.progress != said.progress;
            tokio::select! {
                come = self.link.next() => match come {
                    Some(Incoming::Message(Message::Value { key })) => if !self.value(&key).await {
                        return false;
                    },
                    Some(_) => {}
                    None => return false,
                },
                changed = outbox.changed() => if changed.is_err() {
                    return true;
                },
                () = sleep_until(next), if unsaid => {}
            }
        }
    }

    /// Takes a value; `false` if the link broke within it.
    async fn value(&mut self, key: &str) -> bool {
        let Some(value) = self.link.whole(LARGEST_PART).await else { return false };
        match key {
            key::REPORT => _ = self.heard.reported.send_replace(true),
            key::DONE => {
                let missing: Vec<u32> = serde_json::from_slice(&value).unwrap_or_default();
                self.heard.over.send_replace(Some(missing.into_iter().map(Rank).collect()));
            }
            moved if moved == key::moved(*self.moves) => {
                if let Ok(person) = serde_json::from_slice(&value) {
                    self.roster.place(&person);
                }
                *self.moves += 1;
                return self.link.say(&Message::Wait { key: key::moved(*self.moves) }).await;
            }
            _ => {}
        }
        true
    }
}
