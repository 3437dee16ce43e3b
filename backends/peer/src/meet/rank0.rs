//! Rank 0's own steps of a rendezvous.
//!
//! A step waits on the [`Hub`] for the contributions of all ranks. Its deadline restarts when bytes
//! arrive, or when a rank reports progress. A long listing therefore does not time out while it
//! progresses. The deadline for all ranks to connect does not restart. A failure is sent to all
//! connected ranks, and for a while to ranks that come later, so that each rank prints the reason.
//!
//! [`Rank0Steps`] decides, without I/O or clock. [`Rank0Driver`] waits and calls it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::time::{Instant, sleep_until, timeout};

use super::compare::{differences, pack, unpack};
use super::hub::Hub;
use super::leader::Leader;
use super::messages::{ComparedSettings, ranks};
use super::shared_catalog::SharedCatalog;
use super::waiting::{RETURN_TIMEOUT, TwoStepCheck, WaitDeadline, absent_rank_hint};
use super::{MeetError, MeetErrorKind};

/// How long connected ranks may take to receive the failure.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long late ranks are awaited, to send them the failure.
const LATE_FAILURE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for further ranks that differ after the first one, to name them all.
const GATHER_DIFFERENCES: Duration = Duration::from_millis(300);

/// Rank 0's waits: for all ranks to connect, or for their parts of a key.
#[derive(Debug)]
pub(super) struct Rank0Steps {
    pub wait: WaitDeadline,
    /// The rendezvous address, for messages.
    place: String,
    loss_check: TwoStepCheck,
    /// Transferred pieces and reported work at the last check.
    moved: Option<(u64, u64)>,
}

/// State outside of the leader.
#[derive(Debug, Default)]
pub(super) struct ExternalState {
    /// Pieces of bulk that were sent and received.
    pub moved: u64,
    /// A process that connected with another token or version.
    pub mistaken: Option<String>,
}

impl Rank0Steps {
    pub(super) fn new(wait: WaitDeadline, place: String) -> Self {
        Self { wait, place, loss_check: TwoStepCheck::default(), moved: None }
    }

    /// Starts to wait. For parts of a key, the deadline restarts.
    pub(super) fn begin(&mut self, key: Option<&str>, leader: &Leader, moved: u64, now: Instant) {
        if key.is_some() {
            self.wait.restart(now);
        }
        self.moved = Some((moved, leader.work_reports().0));
        self.loss_check = TwoStepCheck::default();
    }

    /// Returns when the wait is `complete` or has failed, and `None` before. Notifies the other
    /// ranks once a second.
    pub(super) fn poll(
        &mut self,
        leader: &mut Leader,
        key: Option<&str>,
        complete: impl FnOnce(&Leader) -> bool,
        outside: ExternalState,
        now: Instant,
    ) -> Option<Result<(), MeetError>> {
        if let Some(error) = leader.failed() {
            return Some(Err(error));
        }
        if complete(leader) {
            return Some(Ok(()));
        }
        if now < self.wait.next() {
            return None;
        }
        let (missing, more) = leader.missing(key);
        let (works, on) = leader.work_reports();
        let gone = leader.longest_absent(key, now);
        let long = gone.as_ref().is_some_and(|(since, _)| *since >= RETURN_TIMEOUT);
        let is_confirmed = self.loss_check.check(long, now);
        if let Some((_, gone)) = gone.as_ref().filter(|_| is_confirmed) {
            let seconds = RETURN_TIMEOUT.as_secs();
            let line = format!("{gone}: it did not reconnect within {seconds} s; check its last output");
            return Some(Err(MeetError::new(MeetErrorKind::Deadline, line)));
        }
        // Once all ranks are connected, refused processes do not matter.
        let mistaken = outside.mistaken.filter(|_| key.is_none());
        let rejected = leader.rejected().filter(|_| key.is_none());
        let refused = rejected.as_ref().map(|rejected| rejected.error.to_string());
        let why = gone.map(|(_, gone)| gone).into_iter().chain(refused).chain(mistaken);
        let why: Vec<_> = why.collect();
        let why = (!why.is_empty()).then(|| why.join("; "));
        let moved = (outside.moved, works);
        if key.is_some() && self.moved != Some(moved) {
            if self.moved.is_some_and(|before| before.0 != moved.0) {
                leader.note_transfer();
            }
            self.moved = Some((moved.0, leader.work_reports().0));
            self.wait.restart(now);
        }
        if self.wait.is_expired(now) {
            // Every missing rank is claimed by a refused process alone.
            let error = match rejected.filter(|rejected| rejected.are_all) {
                Some(rejected) => rejected.error,
                None => self.missing_error(leader, key, (&missing, more), why),
            };
            return Some(Err(error));
        }
        let is_known = why.is_some();
        let on: Vec<_> = why.into_iter().chain(on).collect();
        let on = (!on.is_empty()).then(|| on.join("; "));
        leader.announce_waiting(&missing, more, on.clone());
        match key {
            None if !is_known => self.wait.show_absent(&missing, more, on, now),
            _ => self.wait.show(&missing, more, on, now),
        }
        None
    }

    /// The error for ranks that did not come or answer.
    fn missing_error(
        &self,
        leader: &Leader,
        key: Option<&str>,
        (missing, more): (&[Rank], usize),
        why: Option<String>,
    ) -> MeetError {
        let (absent, seconds) = (ranks(missing, more), self.wait.deadline().as_secs());
        let line = match key {
            None => {
                let line = format!(
                    "{absent} of {} did not come to {} within {seconds} s: check whether they were started, \
                     and have the same rendezvous address",
                    leader.world, self.place
                );
                // A known reason follows.
                if why.is_some() { line } else { format!("{line}; {}", absent_rank_hint()) }
            }
            Some(_) => {
                let places = leader.locations(missing);
                format!("{absent} ({places}) did not answer within {seconds} s: check what they wait for")
            }
        };
        let line = why.map(|why| format!("{line}; {why}")).unwrap_or(line);
        MeetError::new(MeetErrorKind::Deadline, line)
    }
}

/// Drives the steps of rank 0 until the start.
#[derive(Debug)]
pub(super) struct Rank0Driver {
    pub hub: Arc<Hub>,
    pub steps: Rank0Steps,
}

impl Rank0Driver {
    /// Waits until all ranks are connected.
    pub(super) async fn arrive(&mut self) -> Result<(), MeetError> {
        self.wait(None, Leader::all_connected).await?;
        self.hub.with(Leader::publish_roster);
        Ok(())
    }

    /// Publishes `value`, and `bulks` to ranks that need them.
    pub(super) async fn share(
        &mut self,
        key: &str,
        value: Bytes,
        bulks: Vec<SharedCatalog>,
    ) -> Result<(), MeetError> {
        if !bulks.is_empty() {
            self.hub.with(|leader| leader.put_bulks(bulks));
        }
        self.contribute(key, None).await?;
        self.hub.with(|leader| leader.put(key, value));
        Ok(())
    }

    /// The parts of all ranks, this one's first, if their settings are equal. The ranks wait for
    /// the value, which [`agree`](Self::agree) publishes.
    pub(super) async fn gather(
        &mut self,
        key: &str,
        words: &ComparedSettings,
        own: &[u8],
    ) -> Result<Vec<Bytes>, MeetError> {
        let own = pack(words, own);
        let ours = unpack(&own).0;
        self.contribute(key, Some(own)).await?;
        let differs =
            |leader: &Leader| leader.store.parts(key).iter().flatten().any(|part| unpack(part).0 != ours);
        // Only the last part that arrived can differ.
        self.wait(Some(key), |leader| leader.store.is_complete(key) || differs(leader)).await?;
        if self.hub.with(|leader| differs(leader)) {
            // Other ranks that differ send their parts at about the same time.
            let hub = &self.hub;
            let mut arrivals = hub.arrivals();
            let others = async {
                while !hub.with(|leader| leader.store.is_complete(key)) && arrivals.changed().await.is_ok() {}
            };
            drop(timeout(GATHER_DIFFERENCES, others).await);
        }
        let parts = self.hub.with(|leader| leader.store.parts(key));
        let values: Vec<_> = parts.iter().map(|part| part.as_ref().map(|part| unpack(part).0)).collect();
        if let Some(line) = differences(&values) {
            return Err(self.fail(MeetError::new(MeetErrorKind::Differs, line)).await);
        }
        Ok(parts.iter().map(|part| part.as_ref().map(|part| unpack(part).1).unwrap_or_default()).collect())
    }

    /// Publishes the value of a key. A rank that comes later compares its settings with these.
    pub(super) fn agree(&self, key: &str, words: &ComparedSettings, value: &[u8]) {
        self.hub.with(|leader| leader.put(key, pack(words, value)));
    }

    /// Starts the run, once all ranks are ready and have equal settings.
    pub(super) async fn start(&mut self, key: &str, words: &ComparedSettings) -> Result<(), MeetError> {
        self.gather(key, words, &[]).await?;
        match self.hub.with(|leader| leader.start(key, pack(words, &[]))) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error).await),
        }
    }

    /// Rank 0 reports progress: deadlines of all ranks restart.
    pub(super) fn working(&mut self, on: &str) {
        self.hub.with(|leader| {
            leader.note_work(0, on);
            let on = leader.work_reports().1;
            leader.announce_waiting(&[Rank(0)], 0, on);
        });
        self.steps.wait.restart(Instant::now());
    }

    /// Rank 0 is at the step of this key, with its part.
    async fn contribute(&mut self, key: &str, part: Option<Bytes>) -> Result<(), MeetError> {
        let refused = self.hub.with(|leader| {
            let come = match part {
                Some(part) => leader.part(0, key, part),
                None => leader.register(0, key),
            };
            leader.failed().or_else(|| {
                let line = || format!("there is no room for another step ({key})");
                come.err().map(|_| MeetError::new(MeetErrorKind::Broken, line()))
            })
        });
        match refused {
            Some(error) => Err(self.fail(error).await),
            None => Ok(()),
        }
    }

    /// Waits for the parts of a key, or for all ranks to connect.
    async fn wait(&mut self, key: Option<&str>, complete: impl Fn(&Leader) -> bool) -> Result<(), MeetError> {
        let hub = Arc::clone(&self.hub);
        let mut arrivals = hub.arrivals();
        let moved = hub.traffic.moved();
        hub.with(|leader| self.steps.begin(key, leader, moved, Instant::now()));
        loop {
            arrivals.mark_unchanged();
            let mistaken = hub.traffic.counters().mistaken();
            let outside = ExternalState { moved: hub.traffic.moved(), mistaken };
            let polled = hub.with(|leader| self.steps.poll(leader, key, &complete, outside, Instant::now()));
            match polled {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => return Err(self.fail(error).await),
                None => {}
            }
            tokio::select! {
                // The hub lives as long as this driver.
                _ = arrivals.changed() => {}
                () = sleep_until(self.steps.wait.next()) => {}
            }
        }
    }

    /// Sends `error` to the other ranks. Returns the error to report here.
    pub(super) async fn fail(&mut self, error: MeetError) -> MeetError {
        let failed = self.hub.with(|leader| {
            leader.fail(error);
            leader.failed()
        });
        let error = failed.unwrap_or_else(|| MeetError::new(MeetErrorKind::Broken, "no run"));
        let (began, hub) = (Instant::now(), Arc::clone(&self.hub));
        let late = match error.kind() {
            // A rank that missed the deadline does not come soon.
            MeetErrorKind::Deadline => FAILURE_TIMEOUT,
            _ => self.steps.wait.remaining(began).clamp(FAILURE_TIMEOUT, LATE_FAILURE_TIMEOUT),
        };
        let mut arrivals = hub.arrivals();
        loop {
            arrivals.mark_unchanged();
            let ((informed, here), world) =
                hub.with(|leader| (leader.informed_and_connected(), leader.world));
            if informed + 1 >= world {
                return error;
            }
            let until = began + if informed + here + 1 >= world { FAILURE_TIMEOUT } else { late };
            if Instant::now() >= until || timeout(until - Instant::now(), arrivals.changed()).await.is_err() {
                return error;
            }
        }
    }
}
