//! The agent's status once per second, for all clients at once.
//!
//! Decision: one task looks at the agent, and clients get the newest status. Each text is rendered
//! at most once per second, and only for a client. A slow client skips seconds, so none has a
//! queue. The price: the agent looks at its jobs once per second, even without clients.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use foreread_host::status::AgentStatus;
use foreread_tier::lock;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::history::StatusHistory;
use super::metrics;
use crate::control::{ControlStatus, NodeStatus};

/// The time between two statuses.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// A status that can be shown: of an agent, or of a cluster as if it were one agent.
pub(crate) trait ShownStatus: Send + Sync + 'static {
    /// The prefix of the names of its metrics.
    fn prefix(&self) -> &'static str;

    /// The status in the form of an agent's.
    fn agent(&self) -> &AgentStatus;

    /// The nodes of a cluster.
    fn nodes(&self) -> &[NodeStatus] {
        &[]
    }

    /// All of it as JSON, in one line.
    fn json(&self) -> String;
}

impl ShownStatus for AgentStatus {
    fn prefix(&self) -> &'static str {
        "foreread_agent"
    }

    fn agent(&self) -> &AgentStatus {
        self
    }

    fn json(&self) -> String {
        json(self)
    }
}

impl ShownStatus for ControlStatus {
    fn prefix(&self) -> &'static str {
        "foreread_control"
    }

    fn agent(&self) -> &AgentStatus {
        &self.cluster
    }

    fn nodes(&self) -> &[NodeStatus] {
        &self.nodes
    }

    fn json(&self) -> String {
        json(self)
    }
}

/// The newest status, for any number of clients.
#[derive(Clone, Debug)]
pub(super) struct StatusFeed {
    latest: watch::Receiver<Arc<StatusSnapshot>>,
}

/// The status at one time, and its texts.
pub(super) struct StatusSnapshot {
    status: Box<dyn ShownStatus>,
    /// The point of this time, as JSON.
    point: Arc<str>,
    history: Arc<Mutex<StatusHistory>>,
    status_text: OnceLock<Bytes>,
    event_text: OnceLock<Bytes>,
    history_text: OnceLock<Bytes>,
    metrics_text: OnceLock<Bytes>,
}

impl StatusFeed {
    /// Calls `status` now, and then once per second until the runtime ends.
    pub(super) fn start<T: ShownStatus>(runtime: &Handle, status: impl Fn() -> T + Send + 'static) -> Self {
        let history = Arc::new(Mutex::new(StatusHistory::default()));
        let look = move || Arc::new(StatusSnapshot::new(Box::new(status()), &history));
        let (sender, latest) = watch::channel(look());
        runtime.spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            // The first one is now.
            ticks.tick().await;
            loop {
                ticks.tick().await;
                if sender.send(look()).is_err() {
                    return;
                }
            }
        });
        Self { latest }
    }

    /// The newest status.
    pub(super) fn latest(&self) -> Arc<StatusSnapshot> {
        Arc::clone(&self.latest.borrow())
    }

    /// The newest status now, and each that follows, as far as the client keeps up.
    pub(super) fn follow(&self) -> watch::Receiver<Arc<StatusSnapshot>> {
        let mut receiver = self.latest.clone();
        receiver.mark_changed();
        receiver
    }
}

impl fmt::Debug for StatusSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusSnapshot").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl StatusSnapshot {
    fn new(status: Box<dyn ShownStatus>, history: &Arc<Mutex<StatusHistory>>) -> Self {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut points = lock(history);
        let point = points.add(status.agent(), time, Instant::now());
        drop(points);
        let (status_text, event_text, history_text, metrics_text) = Default::default();
        let history = Arc::clone(history);
        Self { status, point, history, status_text, event_text, history_text, metrics_text }
    }

    /// The status as JSON.
    pub(super) fn status(&self) -> Bytes {
        self.status_text.get_or_init(|| self.status.json().into()).clone()
    }

    /// A server-sent event: the status and its point.
    pub(super) fn event(&self) -> Bytes {
        let event = || {
            let status = self.status.json();
            format!("data: {{\"status\":{status},\"point\":{}}}\n\n", self.point).into()
        };
        self.event_text.get_or_init(event).clone()
    }

    /// The last points as JSON.
    pub(super) fn history(&self) -> Bytes {
        let history = || lock(&self.history).to_json().into();
        self.history_text.get_or_init(history).clone()
    }

    /// The status in Prometheus's text format.
    pub(super) fn metrics(&self) -> Bytes {
        self.metrics_text.get_or_init(|| metrics::text(&*self.status).into()).clone()
    }
}

/// A value as JSON, in one line. Numbers and texts cannot fail.
pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}
