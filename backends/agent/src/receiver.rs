//! The thread that receives a job's samples, watches the agent, and looks for one while there is
//! none.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::client::AgentJob;
use crate::link::{Connection, Link};
use crate::{SILENCE, announcer};

/// How long an agent is silent before it is pinged.
const PING_AFTER: Duration = Duration::from_millis(100);

/// The pauses before connecting again: the first, and the longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The pause after a refusal, which would come again.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// Receives until the job ends, and looks for an agent while there is none. The thread of the
/// orders starts with the first one, unless it runs already.
pub(crate) fn run(link: &Arc<Link>, job: &AgentJob, mut announcing: Option<JoinHandle<()>>) {
    let mut pause = RECONNECT.0;
    while let Some(begun) = serve(link, job) {
        if begun.is_some_and(|begun| begun.elapsed() > RECONNECT.1) {
            pause = RECONNECT.0;
        }
        // Jobs that lost one agent must not all come back at one moment.
        let jitter = pause.mul_f64(f64::from(std::process::id() % 64) / 64.0);
        if !link.wait_until(Instant::now() + pause + jitter) {
            break;
        }
        pause = (pause * 2).min(RECONNECT.1);
        match job.connect(&|| link.is_closed()) {
            Ok(connected) if connected.is_accepted() => {
                if announcing.is_none() {
                    announcing = announcer::spawn(link).inspect_err(|error| tracing::warn!(%error)).ok();
                }
                tracing::info!("{} serves this job now", job.called);
                link.connect(connected.connection, connected.attached.capacity);
            }
            Ok(connected) => {
                let why = connected.refusal();
                tracing::debug!(agent = %job.address, why, "{} does not read this job's data", job.called);
                pause = REFUSED_PAUSE;
            }
            Err(error) => tracing::debug!(%error, "{} cannot be reached", job.called),
        }
    }
    if let Some(thread) = announcing {
        // A panic was reported when it happened.
        let _ = thread.join();
    }
}

/// Receives from the agent, if there is one, until its connection ends. Returns when that began.
/// `None` if the job ends, or no other agent may follow.
fn serve(link: &Arc<Link>, job: &AgentJob) -> Option<Option<Instant>> {
    let Some(connection) = link.connection() else { return Some(None) };
    let begun = Instant::now();
    receive(link, &connection, job.called);
    if link.is_closed() {
        return None;
    }
    link.give_up(true);
    if let Some(make) = &job.alone {
        link.set_alone(make());
    }
    let until = if job.comes_back { ", until it is back" } else { "" };
    tracing::warn!("{} has ended; samples are read from storage, without a shared cache{until}", job.called);
    job.comes_back.then_some(Some(begun))
}

/// Receives until the connection or the job ends.
fn receive(link: &Link, connection: &Connection, called: &'static str) {
    let mut watch = Watch { called, ..Watch::default() };
    while let Ok(received) = connection.stream.receive() {
        if !received.is_empty() {
            link.distribute(received);
        }
        // Requests that the agent did not take before.
        link.send();
        if link.is_closed() || watch.look(link, connection).is_err() {
            return;
        }
    }
}

/// Whether the agent gives signs of life.
#[derive(Default)]
struct Watch {
    called: &'static str,
    /// Since when it is silent.
    silent: Option<Instant>,
    pinged: Option<Instant>,
    number: u32,
    /// Whether it seemed silent at the last look.
    is_suspected: bool,
}

impl Watch {
    /// Pings a quiet agent, and gives up a silent one until it answers.
    fn look(&mut self, link: &Link, connection: &Connection) -> Result<(), foreread_store::StoreError> {
        let now = Instant::now();
        let heard = connection.stream.heard();
        if let Some(since) = self.silent {
            if heard.is_some_and(|heard| heard > since) {
                tracing::info!("{} answers again", self.called);
                link.resume();
                self.silent = None;
                return Ok(());
            }
            return self.ping(connection, now);
        }
        let Some(open_since) = link.open_since() else { return Ok(()) };
        let quiet = now.saturating_duration_since(heard.map_or(open_since, |heard| heard.max(open_since)));
        let is_silent =
            quiet >= SILENCE && self.pinged.is_some_and(|pinged| now.duration_since(pinged) <= quiet);
        // On a busy machine this thread is late itself. Messages that have arrived meanwhile are
        // received first.
        if is_silent && !std::mem::replace(&mut self.is_suspected, is_silent) {
            return Ok(());
        }
        self.is_suspected = is_silent;
        if is_silent {
            tracing::warn!(
                "{} gives no sign of life; samples are read from storage until it answers",
                self.called
            );
            self.silent = Some(now);
            link.give_up(false);
        } else if quiet >= PING_AFTER {
            return self.ping(connection, now);
        }
        Ok(())
    }

    fn ping(&mut self, connection: &Connection, now: Instant) -> Result<(), foreread_store::StoreError> {
        if self.pinged.is_some_and(|pinged| now.duration_since(pinged) < PING_AFTER) {
            return Ok(());
        }
        self.pinged = Some(now);
        self.number = self.number.wrapping_add(1);
        connection.stream.ping(self.number)
    }
}
