//! The ranks of a run, from its start to its end.
//!
//! Samples flow between ranks directly. Rank 0 is needed for the progress of all ranks, their
//! reports, the end of the run and restarted ranks. When rank 0 dies, these services end and the
//! run continues. Each wait for rank 0 has a timeout. The layers above read around a dead rank.
//! This module only reports it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::RunId;
use foreread_tier::{OpenContext, PeerService};
use foreread_types::Rank;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::endpoint::LocalEndpoint;
use super::follower_driver::FollowerDriver;
use super::hub::Hub;
use super::members::RECONNECT_TIMEOUT;
use super::messages::key;
use super::owned_task::OwnedTask;
use super::roster::RunRoster;
use super::run_session::{Outbox, RunEvents, run};
use crate::counters::PeerCounters;
use crate::peer_client::{PeerClient, PeerClientFactory};
use crate::server::PeerServer;
use foreread_tier::lock;

/// Timeout for sending the final messages.
const FINAL_MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// How the ranks ended the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// All ranks were done.
    Together,
    /// Rank 0 no longer waited for these ranks: they are gone, or the deadline passed.
    Without(Vec<Rank>),
    /// Rank 0 did not reply before the deadline: it waits for other ranks, or is gone.
    Unheard,
}

/// The connections to other ranks that a run needs in addition to those for samples.
#[derive(Debug)]
pub(super) enum RunLink {
    Rank0 {
        hub: Arc<Hub>,
        _serving: Option<OwnedTask>,
        _following: OwnedTask,
    },
    Follower {
        outbox: watch::Sender<Outbox>,
        events: watch::Receiver<RunEvents>,
        task: Mutex<Option<OwnedTask>>,
    },
}

impl RunLink {
    pub(super) fn rank0(
        hub: Arc<Hub>,
        serving: Option<OwnedTask>,
        roster: &Arc<RunRoster>,
        context: &OpenContext,
    ) -> Self {
        let following = apply_roster_changes(Arc::clone(&hub), Arc::clone(roster));
        Self::Rank0 { hub, _serving: serving, _following: OwnedTask(context.runtime.spawn(following)) }
    }

    pub(super) fn follower(
        mut driver: FollowerDriver,
        roster: &Arc<RunRoster>,
        context: &OpenContext,
    ) -> Self {
        // The roster has them.
        driver.follower.forget();
        let (outbox, outbox_changes) = watch::channel(Outbox::default());
        let (sender, events) = watch::channel(RunEvents::default());
        let task = OwnedTask(context.runtime.spawn(run(driver, Arc::clone(roster), outbox_changes, sender)));
        Self::Follower { outbox, events, task: Mutex::new(Some(task)) }
    }
}

/// The ranks of a run, which have started together.
#[derive(Debug)]
pub struct RunGroup {
    endpoint: Arc<LocalEndpoint>,
    running: RunLink,
    roster: Arc<RunRoster>,
    run: RunId,
    requester: PeerClientFactory,
    /// Serves samples until all ranks are done.
    server: Mutex<Option<PeerServer>>,
}

impl RunGroup {
    pub(super) fn new(
        endpoint: Arc<LocalEndpoint>,
        running: RunLink,
        roster: Arc<RunRoster>,
        (run, requester): (RunId, PeerClientFactory),
        server: PeerServer,
    ) -> Self {
        Self { endpoint, running, roster, run, requester, server: Mutex::new(Some(server)) }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.endpoint.launched.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.endpoint.launched.world_size
    }

    /// The run's id, equal on all ranks.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Sets the progress of this rank, a count that only grows. Does not wait. Only the latest
    /// value is sent to rank 0.
    pub fn progress(&self, at: u64) {
        match &self.running {
            RunLink::Rank0 { hub, .. } => hub.with(|leader| leader.progress(0, at)),
            RunLink::Follower { outbox, .. } => {
                outbox.send_modify(|outbox| outbox.progress = Some(at));
            }
        }
    }

    /// On rank 0, the lowest progress of all ranks: 0 until each has sent one. `None` on other
    /// ranks. The receiver can wait for changes.
    pub fn lowest(&self) -> Option<watch::Receiver<u64>> {
        match &self.running {
            RunLink::Rank0 { hub, .. } => Some(hub.lowest()),
            RunLink::Follower { .. } => None,
        }
    }

    /// Sends this rank's report to rank 0, at most 256 MiB. Returns whether rank 0 has acknowledged
    /// it before the deadline.
    ///
    /// # Cancel safety
    /// The report is sent even if the future is dropped.
    pub async fn report(&self, report: Bytes, deadline: Duration) -> bool {
        match &self.running {
            RunLink::Rank0 { hub, .. } => {
                // Rank 0's own steps never conflict.
                drop(hub.with(|leader| leader.part(0, key::REPORT, report)));
                true
            }
            RunLink::Follower { outbox, events, .. } => {
                outbox.send_modify(|outbox| outbox.report = Some(report));
                let mut events = events.clone();
                timeout(deadline, events.wait_for(|events| events.reported))
                    .await
                    .is_ok_and(|got| got.is_ok())
            }
        }
    }

    /// On rank 0, the reports of all ranks including its own. `None` for ranks that are gone, or do
    /// not report before the deadline. Empty on other ranks.
    pub async fn reports(&self, deadline: Duration) -> Vec<Option<Bytes>> {
        let RunLink::Rank0 { hub, .. } = &self.running else { return Vec::new() };
        let until = Instant::now() + deadline;
        let mut arrivals = hub.arrivals();
        loop {
            arrivals.mark_unchanged();
            let (reports, (coming, _)) = hub.with(|leader| {
                (leader.store.parts(key::REPORT), leader.unfinished(key::REPORT, Instant::now()))
            });
            if coming == 0 || Instant::now() >= until {
                return reports;
            }
            wait_for_arrival(&mut arrivals, until).await;
        }
    }

    /// Waits until the connection to rank 0 was lost for this long without a break. Pending forever
    /// on rank 0.
    ///
    /// # Cancel safety
    /// Only the elapsed time is lost.
    pub async fn rank0_lost(&self, this_long: Duration) {
        let RunLink::Follower { events, .. } = &self.running else {
            return std::future::pending().await;
        };
        let mut events = events.clone();
        loop {
            if events.wait_for(|events| events.is_lost).await.is_err() {
                // The connection was closed, not lost.
                return std::future::pending().await;
            }
            let back = async {
                if events.wait_for(|events| !events.is_lost).await.is_err() {
                    // Rank 0 refuses this rank.
                    std::future::pending::<()>().await;
                }
            };
            if timeout(this_long, back).await.is_err() {
                return;
            }
        }
    }

    /// Reports that this rank is done. Serves samples until all ranks are done or gone, or the
    /// deadline passes, and then shuts the server down.
    ///
    /// # Cancel safety
    /// The report is sent even if the future is dropped.
    pub async fn leave(&self, deadline: Duration) -> RunEnd {
        let left = self.end_run(Instant::now() + deadline).await;
        let server = lock(&self.server).take();
        if let Some(server) = server {
            server.close().await;
        }
        self.endpoint.withdraw();
        left
    }

    async fn end_run(&self, until: Instant) -> RunEnd {
        match &self.running {
            RunLink::Rank0 { hub, .. } => {
                drop(hub.with(|leader| leader.part(0, key::DONE, Bytes::new())));
                let mut arrivals = hub.arrivals();
                let missing = loop {
                    arrivals.mark_unchanged();
                    let (working, missing) = hub.with(|leader| leader.unfinished(key::DONE, Instant::now()));
                    if working == 0 || Instant::now() >= until {
                        break missing;
                    }
                    wait_for_arrival(&mut arrivals, until).await;
                };
                hub.with(|leader| leader.end(&missing));
                // The other ranks close their connections once they have received it.
                let last = async {
                    loop {
                        arrivals.mark_unchanged();
                        if hub.with(|leader| leader.all_informed()) || arrivals.changed().await.is_err() {
                            return;
                        }
                    }
                };
                drop(timeout(FINAL_MESSAGE_TIMEOUT, last).await);
                if missing.is_empty() { RunEnd::Together } else { RunEnd::Without(missing) }
            }
            RunLink::Follower { outbox, task, events } => {
                outbox.send_modify(|outbox| outbox.done = true);
                let mut events = events.clone();
                let over = timeout_at(until, events.wait_for(|events| events.over.is_some())).await;
                let missing = over.ok().and_then(|over| over.ok().and_then(|events| events.over.clone()));
                outbox.send_modify(|outbox| outbox.end = true);
                let task = lock(task).take();
                if let Some(mut task) = task {
                    drop(timeout(FINAL_MESSAGE_TIMEOUT, &mut task.0).await);
                }
                match missing {
                    None => RunEnd::Unheard,
                    Some(missing) if missing.is_empty() => RunEnd::Together,
                    Some(missing) => RunEnd::Without(missing),
                }
            }
        }
    }

    /// On rank 0, the ranks that are disconnected. For tests: clients of a rank detect its end
    /// sooner.
    #[cfg(feature = "testing")]
    pub fn gone(&self) -> Vec<Rank> {
        match &self.running {
            RunLink::Rank0 { hub, .. } => hub.with(|leader| leader.lost(Instant::now())),
            RunLink::Follower { .. } => Vec::new(),
        }
    }

    /// The counters of samples.
    pub fn counters(&self) -> &Arc<PeerCounters> {
        &self.requester.counters
    }

    /// Starts to answer requests for samples, which wait until then. Once `source` is dropped, the
    /// answer is [`ErrorKind::Absent`](foreread_tier::ErrorKind::Absent).
    pub fn serve(&self, source: Weak<dyn PeerService>) {
        if let Some(server) = &*lock(&self.server) {
            server.serve(source);
        }
    }

    /// The client of another rank's samples.
    pub fn client(&self, rank: Rank) -> Arc<PeerClient> {
        self.roster.remote(rank, &self.requester)
    }
}

impl Drop for RunGroup {
    fn drop(&mut self) {
        self.endpoint.withdraw();
    }
}

/// Waits for an arrival, or until disconnected ranks are checked again.
async fn wait_for_arrival(arrivals: &mut watch::Receiver<()>, until: Instant) {
    let next = until.min(Instant::now() + RECONNECT_TIMEOUT / 4);
    // The caller checks in any case.
    drop(timeout_at(next, arrivals.changed()).await);
}

/// Applies address changes of restarted ranks at rank 0, as the other ranks do.
async fn apply_roster_changes(hub: Arc<Hub>, roster: Arc<RunRoster>) {
    let mut published = hub.published();
    let mut moves = 0;
    loop {
        while let Some(info) = hub.with(|leader| leader.store.value(&key::moved(moves)).cloned()) {
            if let Ok(info) = serde_json::from_slice(&info) {
                roster.update(&info);
            }
            moves += 1;
        }
        if published.changed().await.is_err() {
            return;
        }
    }
}
