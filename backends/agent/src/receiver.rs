//! The thread that receives a job's samples, watches the agent, and connects again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::SILENCE;
use crate::client::AgentJob;
use crate::link::{Connection, Link};

/// How long an agent is silent before it is pinged.
const PING_AFTER: Duration = Duration::from_millis(100);

/// The pauses before connecting again: the first, and the longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// How often a pause looks for the end of the job.
const CLOSE_POLL: Duration = Duration::from_millis(50);

/// Receives until the job ends.
pub(crate) fn run(link: &Arc<Link>, job: &AgentJob) {
    let mut pause = RECONNECT.0;
    loop {
        if let Some(connection) = link.connection() {
            let begun = Instant::now();
            receive(link, &connection, job.called);
            if link.is_closed() {
                return;
            }
            link.give_up(true);
            if let Some(make) = &job.alone {
                link.set_alone(make());
            }
            let until = if job.comes_back { ", until it is back" } else { "" };
            tracing::warn!(
                "{} has ended; samples are read from storage, without a shared cache{until}",
                job.called
            );
            if !job.comes_back {
                return;
            }
            if begun.elapsed() > RECONNECT.1 {
                pause = RECONNECT.0;
            }
        }
        // Jobs that lost one agent must not all come back at one moment.
        let jitter = pause.mul_f64(f64::from(std::process::id() % 64) / 64.0);
        if !sleep(link, pause + jitter) {
            return;
        }
        pause = (pause * 2).min(RECONNECT.1);
        match job.connect(&|| link.is_closed()) {
            Ok(connected) if connected.is_accepted() => {
                tracing::info!("{} is back", job.called);
                link.connect(connected.connection);
            }
            Ok(_) => tracing::debug!(agent = %job.address, "the node's agent does not read this job's data"),
            Err(error) => tracing::debug!(%error, "the node's agent cannot be reached"),
        }
    }
}

/// Sleeps, unless the job ends.
fn sleep(link: &Link, duration: Duration) -> bool {
    let until = Instant::now() + duration;
    while Instant::now() < until {
        if link.is_closed() {
            return false;
        }
        std::thread::sleep(CLOSE_POLL.min(duration));
    }
    true
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
        if quiet >= SILENCE && self.pinged.is_some_and(|pinged| now.duration_since(pinged) <= quiet) {
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
