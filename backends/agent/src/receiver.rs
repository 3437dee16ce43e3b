//! The thread that receives a job's samples, watches the agent, and looks for one while there is
//! none.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foreread_store::RequestStream;

use crate::announcer;
use crate::connection::Connection;
use crate::job::AgentJob;
use crate::link::ClientLink;
use crate::watch::{Look, Pauses, Watch};

/// Receives until the job ends, and looks for an agent while there is none. The thread of the
/// orders starts with the first one, unless it runs already.
pub(crate) fn run(link: &Arc<ClientLink>, job: &AgentJob, mut announcing: Option<JoinHandle<()>>) {
    let mut pauses = Pauses::default();
    // Jobs that lost one agent must not all come back at one moment.
    let jitter = f64::from(std::process::id() % 64) / 64.0;
    while let Some(served) = serve(link, job) {
        if !link.wait_until(Instant::now() + pauses.next(served, jitter)) {
            break;
        }
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
                tracing::debug!(agent = ?job.place, why, "{} does not read this job's data", job.called);
                pauses.refused();
            }
            Err(error) => tracing::debug!(%error, "{} cannot be reached", job.called),
        }
    }
    if let Some(thread) = announcing {
        // A panic was reported when it happened.
        let _ = thread.join();
    }
}

/// Receives from the agent, if there is one, until its connection ends. Returns how long it has
/// served. `None` if the job ends, or no other agent may follow.
fn serve(link: &Arc<ClientLink>, job: &AgentJob) -> Option<Option<Duration>> {
    let Some(connection) = link.connection() else { return Some(None) };
    let begun = Instant::now();
    if let Connection::Served(_, stream) = &*connection {
        receive(link, stream, job.called);
    }
    if link.is_closed() {
        return None;
    }
    let reads = link.give_up(true);
    if let Some(make) = &job.alone {
        link.set_alone(make());
    }
    let until = if job.comes_back { ", until it is back" } else { "" };
    let warning =
        format!("{} has ended; samples are read from storage, without a shared cache{until}", job.called);
    if reads {
        tracing::warn!("{warning}");
    } else {
        link.warn_later(warning);
    }
    job.comes_back.then(|| Some(begun.elapsed()))
}

/// Receives until the connection or the job ends. Pings a quiet agent, and gives up a silent one
/// until it answers.
fn receive(link: &ClientLink, stream: &RequestStream, called: &'static str) {
    let mut watch = Watch::default();
    while let Ok(received) = stream.receive() {
        if !received.is_empty() {
            link.distribute(received);
        }
        // Requests that the agent did not take before.
        link.send();
        if link.is_closed() {
            return;
        }
        match watch.look(stream.heard(), link.open_since(), Instant::now()) {
            Look::Quiet => {}
            Look::Ping if stream.ping(0).is_err() => return,
            Look::Ping => {}
            Look::Silent => {
                tracing::warn!(
                    "{called} gives no sign of life; samples are read from storage until it answers"
                );
                link.give_up(false);
            }
            Look::Answers => {
                tracing::info!("{called} answers again");
                link.resume();
            }
        }
    }
}
