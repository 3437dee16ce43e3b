//! The connection to rank 0 during the run, as the other ranks keep it.
//!
//! One task, which says what this rank has to say (the latest counts, not each) and hears of the others. When the
//! connection breaks it is made again for as long as the run lasts; the run itself does not depend on it: samples flow between
//! ranks without rank 0.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::MeetError;
use super::link::{Incoming, Link};
use super::messages::Message;
use super::other::Other;
use super::roster::Roster;
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
}

/// Speaks to rank 0 until the run ends.
pub(super) async fn run(
    mut other: Other,
    roster: Arc<Roster>,
    mut outbox: watch::Receiver<Outbox>,
    heard: Heard,
) {
    other.patience = Patience::new(EVER, Box::new(|_| ()));
    other.hello.started = true;
    loop {
        if let Some(link) = other.link.take() {
            heard.lost.send_replace(false);
            if speak(link, &roster, &mut outbox, &heard.reported).await {
                return;
            }
            heard.lost.send_replace(true);
            tracing::warn!("rank 0 does not answer; the run goes on, and its end is not told to the others");
        }
        tokio::select! {
            made = again(&mut other) => if !made {
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
async fn again(other: &mut Other) -> bool {
    let made = async {
        let found = other.find().await?;
        let made = other.introduce(found).await?;
        if !made {
            other.pause().await?;
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

/// Says and hears all, until the run ends (`true`) or the link breaks.
async fn speak(
    mut link: Link,
    roster: &Roster,
    outbox: &mut watch::Receiver<Outbox>,
    reported: &watch::Sender<bool>,
) -> bool {
    let mut said = Outbox::default();
    let mut next = Instant::now();
    loop {
        let now = outbox.borrow_and_update().clone();
        let hurry = now.done || now.end || now.report != said.report;
        if let Some(at) = now.progress.filter(|at| said.progress != Some(*at))
            && (hurry || Instant::now() >= next)
        {
            next = Instant::now() + OFTEN;
            if !link.say(&Message::Progress { at }).await {
                return now.end;
            }
            said.progress = now.progress;
        }
        if let Some(report) = now.report.clone().filter(|_| said.report.is_none()) {
            if !link.say_with(&Message::Report, report).await {
                return now.end;
            }
            said.report.clone_from(&now.report);
        }
        if now.done && !said.done {
            if !link.say(&Message::Done).await {
                return now.end;
            }
            said.done = true;
        }
        if now.end {
            link.close().await;
            return true;
        }
        let unsaid = now.progress != said.progress;
        tokio::select! {
            come = link.next() => match come {
                Some(Incoming::Message(Message::Reported)) => {
                    reported.send_replace(true);
                }
                Some(Incoming::Message(message)) => roster.hear(&message),
                Some(Incoming::Piece(_)) => {}
                None => return false,
            },
            changed = outbox.changed() => if changed.is_err() {
                return true;
            },
            () = sleep_until(next), if unsaid => {}
        }
    }
}
