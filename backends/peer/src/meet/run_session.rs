//! The connection of a follower to rank 0 during the run.
//!
//! One task sends the latest progress, the report and the end of this rank, and receives messages
//! of rank 0. A broken connection is reconnected as long as the run lasts. The run does not depend
//! on it, because samples flow between ranks without rank 0.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::MeetError;
use super::follower::Follower;
use super::follower_driver::FollowerDriver;
use super::link::{IncomingMessage, RankLink};
use super::messages::{MeetMessage, key};
use super::roster::RunRoster;
use super::waiting::WaitDeadline;

/// How often progress is sent.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Longer than any run.
const UNLIMITED: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The messages that this rank sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outbox {
    pub progress: Option<u64>,
    pub report: Option<Bytes>,
    pub done: bool,
    /// The task ends once all is sent.
    pub end: bool,
}

/// The facts that this rank has received from rank 0.
#[derive(Debug, Default)]
pub(super) struct RunEvents {
    /// Rank 0 has the report.
    pub reported: bool,
    /// The connection is lost.
    pub is_lost: bool,
    /// The run is over, without these ranks.
    pub over: Option<Vec<Rank>>,
}

/// Maintains the connection until the run ends.
pub(super) async fn run(
    mut driver: FollowerDriver,
    roster: Arc<RunRoster>,
    mut outbox: watch::Receiver<Outbox>,
    events: watch::Sender<RunEvents>,
) {
    driver.follower.wait = WaitDeadline::new(UNLIMITED, Box::new(|_| ()), Instant::now());
    driver.follower.hello.started = true;
    loop {
        if let Some(link) = driver.link.take() {
            events.send_modify(|events| events.is_lost = false);
            let session =
                RunSession { link, follower: &mut driver.follower, roster: &roster, events: &events };
            if session.run(&mut outbox).await {
                return;
            }
            driver.follower.closed(Instant::now());
            events.send_modify(|events| events.is_lost = true);
            tracing::warn!("rank 0 does not answer; the run continues without its coordination");
        }
        tokio::select! {
            connected = reconnect(&mut driver) => if !connected {
                return;
            },
            () = ended(&mut outbox) => return,
        }
    }
}

async fn ended(outbox: &mut watch::Receiver<Outbox>) {
    // If the sender was dropped, the run has ended as well.
    drop(outbox.wait_for(|outbox| outbox.end).await);
}

/// Reconnects. `false` if rank 0 refuses this rank.
async fn reconnect(driver: &mut FollowerDriver) -> bool {
    let connected = async {
        let found = driver.find().await?;
        let connected = driver.introduce(found).await?;
        if !connected {
            driver.pause().await?;
        }
        Ok(())
    };
    let connected: Result<(), MeetError> = connected.await;
    match connected {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "this rank continues without rank 0");
            false
        }
    }
}

/// One connection to rank 0.
struct RunSession<'a> {
    link: RankLink,
    follower: &'a mut Follower,
    roster: &'a RunRoster,
    events: &'a watch::Sender<RunEvents>,
}

impl RunSession<'_> {
    /// Sends and receives until the run ends (`true`) or the link breaks.
    async fn run(mut self, outbox: &mut watch::Receiver<Outbox>) -> bool {
        let mut sent = Outbox::default();
        let mut next = Instant::now();
        loop {
            self.publish_events();
            let now = outbox.borrow_and_update().clone();
            let at_once = now.done || now.end || now.report != sent.report;
            if let Some(at) = now.progress.filter(|at| sent.progress != Some(*at))
                && (at_once || Instant::now() >= next)
            {
                next = Instant::now() + PROGRESS_INTERVAL;
                if !self.link.send(&MeetMessage::Progress { at }).await {
                    return now.end;
                }
                sent.progress = now.progress;
            }
            if let Some(report) = now.report.clone().filter(|_| sent.report.is_none()) {
                if !self.part(key::REPORT, report).await {
                    return now.end;
                }
                sent.report.clone_from(&now.report);
            }
            if now.done && !sent.done {
                if !self.part(key::DONE, Bytes::new()).await {
                    return now.end;
                }
                sent.done = true;
            }
            if now.end {
                self.link.close().await;
                return true;
            }
            let unsent = now.progress != sent.progress;
            tokio::select! {
                come = self.link.next() => {
                    let Some(IncomingMessage { message, bulk, .. }) = come else { return false };
                    if let Err(error) = self.follower.handle(message, bulk, Instant::now()) {
                        tracing::debug!(%error, "rank 0 ends the connection");
                        return false;
                    }
                },
                changed = outbox.changed() => if changed.is_err() {
                    return true;
                },
                () = sleep_until(next), if unsent => {}
            }
        }
    }

    async fn part(&self, key: &str, part: Bytes) -> bool {
        self.link.send_with_bulk(&MeetMessage::part(key, &part), part).await
    }

    /// Publishes the values that have arrived.
    fn publish_events(&mut self) {
        self.follower.moved.drain(..).for_each(|info| self.roster.update(&info));
        if let Ok(Some(_)) = self.follower.take(key::REPORT) {
            self.events.send_modify(|events| events.reported = true);
        }
        if let Ok(Some(missing)) = self.follower.take(key::DONE) {
            let missing: Vec<u32> = serde_json::from_slice(&missing).unwrap_or_default();
            let missing = missing.into_iter().map(Rank).collect();
            self.events.send_modify(|events| events.over = Some(missing));
        }
    }
}
