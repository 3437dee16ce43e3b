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

use super::bulk::Bulk;
use super::compare::{differences, pack, unpack};
use super::hub::Hub;
use super::leader::Leader;
use super::messages::{Words, ranks};
use super::waiting::{BACK, Doubt, NOT_ALL, Patience};
use super::{MeetError, MeetErrorKind};

/// How long connected ranks may take to receive the failure.
const TELL: Duration = Duration::from_secs(2);

/// How long late ranks are awaited, to send them the failure.
const TELL_LATE: Duration = Duration::from_secs(10);

/// How long to wait for further ranks that differ after the first one, to name them all.
const GATHER_DIFFERENCES: Duration = Duration::from_millis(300);

/// What rank 0 waits for: all ranks to connect, or their parts of a key.
#[derive(Debug)]
pub(super) struct Steps {
    pub patience: Patience,
    /// The rendezvous address, for messages.
    place: String,
    doubt: Doubt,
    /// Transferred pieces and reported work at the last check.
    moved: Option<(u64, u64)>,
}

/// State outside of the leader.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// Pieces of bulk that were sent and received.
    pub moved: u64,
    /// A process that connected with another token or version.
    pub mistaken: Option<String>,
}

impl Steps {
    pub(super) fn new(patience: Patience, place: String) -> Self {
        Self { patience, place, doubt: Doubt::default(), moved: None }
    }

    /// Starts to wait. For parts of a key, the deadline restarts.
    pub(super) fn begin(&mut self, key: Option<&str>, leader: &Leader, moved: u64, now: Instant) {
        if key.is_some() {
            self.patience.begin(now);
        }
        self.moved = Some((moved, leader.works().0));
        self.doubt = Doubt::default();
    }

    /// Returns when the wait is `complete` or has failed, and `None` before. Notifies the other
    /// ranks once a second.
    pub(super) fn poll(
        &mut self,
        leader: &mut Leader,
        key: Option<&str>,
        complete: impl FnOnce(&Leader) -> bool,
        outside: Outside,
        now: Instant,
    ) -> Option<Result<(), MeetError>> {
        if let Some(error) = leader.failed() {
            return Some(Err(error));
        }
        if complete(leader) {
            return Some(Ok(()));
        }
        if now < self.patience.next() {
            return None;
        }
        let (missing, more) = leader.missing(key);
        let (works, on) = leader.works();
        let gone = leader.gone(key, now);
        let long = gone.as_ref().is_some_and(|(since, _)| *since >= BACK);
        let for_good = self.doubt.confirmed(long, now);
        if let Some((_, gone)) = gone.as_ref().filter(|_| for_good) {
            let seconds = BACK.as_secs();
            let line = format!("{gone}: not back within {seconds} s; see what was said there last");
            return Some(Err(MeetError::new(MeetErrorKind::Deadline, line)));
        }
        // Once all ranks are connected, refused processes do not matter.
        let mistaken = outside.mistaken.filter(|_| key.is_none());
        let strays = leader.strays().filter(|_| key.is_none());
        let refused = strays.as_ref().map(|strays| strays.error.to_string());
        let why = gone.map(|(_, gone)| gone).into_iter().chain(refused).chain(mistaken);
        let why: Vec<_> = why.collect();
        let why = (!why.is_empty()).then(|| why.join("; "));
        let moved = (outside.moved, works);
        if key.is_some() && self.moved != Some(moved) {
            if self.moved.is_some_and(|before| before.0 != moved.0) {
                leader.work_on();
            }
            self.moved = Some((moved.0, leader.works().0));
            self.patience.begin(now);
        }
        if self.patience.over(now) {
            // Every missing rank is claimed by a refused process alone.
            let error = match strays.filter(|strays| strays.are_all) {
                Some(strays) => strays.error,
                None => self.nobody(leader, key, (&missing, more), why),
            };
            return Some(Err(error));
        }
        let on: Vec<_> = why.into_iter().chain(on).collect();
        let on = (!on.is_empty()).then(|| on.join("; "));
        leader.announce(&missing, more, on.clone());
        match key {
            None => self.patience.show_absent(&missing, more, on, now),
            Some(_) => self.patience.show(&missing, more, on, now),
        }
        None
    }

    /// The error for ranks that did not come or answer.
    fn nobody(
        &self,
        leader: &Leader,
        key: Option<&str>,
        (missing, more): (&[Rank], usize),
        why: Option<String>,
    ) -> MeetError {
        let (who, seconds) = (ranks(missing, more), self.patience.deadline().as_secs());
        let line = match key {
            None => format!(
                "{who} of {} did not come to {} within {seconds} s: see whether they were started, say the same of where \
                 to meet, and have the same token; {NOT_ALL}",
                leader.world, self.place
            ),
            Some(_) => {
                let places = leader.places(missing);
                format!("{who} ({places}) did not answer within {seconds} s: see what they wait for")
            }
        };
        let line = why.map(|why| format!("{line}; {why}")).unwrap_or(line);
        MeetError::new(MeetErrorKind::Deadline, line)
    }
}

/// Drives the steps of rank 0 until the start.
#[derive(Debug)]
pub(super) struct First {
    pub hub: Arc<Hub>,
    pub steps: Steps,
}

impl First {
    /// Waits until all ranks are connected.
    pub(super) async fn arrive(&mut self) -> Result<(), MeetError> {
        self.wait(None, Leader::all_here).await?;
        self.hub.with(Leader::welcome_all);
        Ok(())
    }

    /// Publishes `value`, and `bulks` to ranks that need them.
    pub(super) async fn share(&mut self, key: &str, value: Bytes, bulks: Vec<Bulk>) -> Result<(), MeetError> {
        if !bulks.is_empty() {
            self.hub.with(|leader| leader.put_bulks(bulks));
        }
        self.come(key, None).await?;
        self.hub.with(|leader| leader.put(key, value));
        Ok(())
    }

    /// The parts of all ranks, this one's first, if their settings are equal. The ranks wait for
    /// the value, which [`agree`](Self::agree) publishes.
    pub(super) async fn gather(
        &mut self,
        key: &str,
        words: &Words,
        own: &[u8],
    ) -> Result<Vec<Bytes>, MeetError> {
        let own = pack(words, own);
        let ours = unpack(&own).0;
        self.come(key, Some(own)).await?;
        let differs =
            |leader: &Leader| leader.store.parts(key).iter().flatten().any(|part| unpack(part).0 != ours);
        // Only the last part that arrived can differ.
        self.wait(Some(key), |leader| leader.store.is_whole(key) || differs(leader)).await?;
        if self.hub.with(|leader| differs(leader)) {
            // Other ranks that differ send their parts at about the same time.
            let hub = &self.hub;
            let mut arrivals = hub.arrivals();
            let others = async {
                while !hub.with(|leader| leader.store.is_whole(key)) && arrivals.changed().await.is_ok() {}
            };
            drop(timeout(GATHER_DIFFERENCES, others).await);
        }
        let parts = self.hub.with(|leader| leader.store.parts(key));
        let said: Vec<_> = parts.iter().map(|part| part.as_ref().map(|part| unpack(part).0)).collect();
        if let Some(line) = differences(&said) {
            return Err(self.fail(MeetError::new(MeetErrorKind::Differs, line)).await);
        }
        Ok(parts.iter().map(|part| part.as_ref().map(|part| unpack(part).1).unwrap_or_default()).collect())
    }

    /// Publishes the value of a key. A rank that comes later compares its settings with these.
    pub(super) fn agree(&self, key: &str, words: &Words, value: &[u8]) {
        self.hub.with(|leader| leader.put(key, pack(words, value)));
    }

    /// Starts the run, once all ranks are ready and have equal settings.
    pub(super) async fn start(&mut self, key: &str, words: &Words) -> Result<(), MeetError> {
        self.gather(key, words, &[]).await?;
        match self.hub.with(|leader| leader.start(key, pack(words, &[]))) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error).await),
        }
    }

    /// Rank 0 reports progress: deadlines of all ranks restart.
    pub(super) fn working(&mut self, on: &str) {
        self.hub.with(|leader| {
            leader.work(0, on);
            let on = leader.works().1;
            leader.announce(&[Rank(0)], 0, on);
        });
        self.steps.patience.begin(Instant::now());
    }

    /// Rank 0 is at the step of this key, with its part.
    async fn come(&mut self, key: &str, part: Option<Bytes>) -> Result<(), MeetError> {
        let refused = self.hub.with(|leader| {
            let come = match part {
                Some(part) => leader.part(0, key, part),
                None => leader.want(0, key),
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
            let outside = Outside { moved: hub.traffic.moved(), mistaken };
            let polled = hub.with(|leader| self.steps.poll(leader, key, &complete, outside, Instant::now()));
            match polled {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => return Err(self.fail(error).await),
                None => {}
            }
            tokio::select! {
                // The hub lives as long as this driver.
                _ = arrivals.changed() => {}
                () = sleep_until(self.steps.patience.next()) => {}
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
            MeetErrorKind::Deadline => TELL,
            _ => self.steps.patience.left(began).clamp(TELL, TELL_LATE),
        };
        let mut arrivals = hub.arrivals();
        loop {
            arrivals.mark_unchanged();
            let ((told, here), world) = hub.with(|leader| (leader.told(), leader.world));
            if told + 1 >= world {
                return error;
            }
            let until = began + if told + here + 1 >= world { TELL } else { late };
            if Instant::now() >= until || timeout(until - Instant::now(), arrivals.changed()).await.is_err() {
                return error;
            }
        }
    }
}
