//! Rank 0's own steps of a meeting.
//!
//! They wait on the [`Hub`] for what the others bring. A step's deadline counts the time in which nothing moves: an arrival
//! of bytes, or a rank that says what it works on, begins it anew, so a long listing is no reason to give up as long as
//! somebody says that it goes on. The time in which all have to come is counted strictly. Whatever ends a meeting is told to
//! all who are here, and for a while to who comes later: each rank prints the reason, not only the first.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::time::{Instant, sleep_until, timeout};

use super::compare::differences;
use super::hub::{Hub, Item};
use super::messages::{Step, Words, ranks};
use super::waiting::{BACK, Doubt, NOT_ALL, Patience};
use super::{MeetError, MeetErrorKind};
use crate::Counters;

/// How long those who are here may take to hear why there is no run.
const TELL: Duration = Duration::from_secs(2);

/// How long those who are late are waited for, to be told.
const TELL_LATE: Duration = Duration::from_secs(10);

/// How long others that differ may come after the first that does, to be named with it.
const GATHER_DIFFERENCES: Duration = Duration::from_millis(300);

/// Rank 0 while ranks meet.
#[derive(Debug)]
pub(super) struct First {
    pub hub: Arc<Hub>,
    pub patience: Patience,
    pub round: u32,
    /// Where they meet, for messages.
    pub place: String,
    /// Who comes there and is turned away.
    pub counters: Arc<Counters>,
}

impl First {
    /// Waits until all are here.
    pub(super) async fn arrive(&mut self) -> Result<(), MeetError> {
        self.wait(None, |hub| hub.all_here()).await
    }

    /// Gives all `blob`; they get it as they come for it.
    pub(super) async fn share(&mut self, blob: Bytes) -> Result<(), MeetError> {
        let round = self.come(Step::Share, Item::Here).await?;
        self.hub.conclude(round, blob, false);
        Ok(())
    }

    /// What each rank brings, this one's first.
    pub(super) async fn gather(&mut self, own: Bytes) -> Result<Vec<Bytes>, MeetError> {
        let round = self.come(Step::Gather, Item::Bulk(own)).await?;
        self.wait(Some(round), |hub| hub.all_at(round)).await?;
        let items = self.hub.items(round);
        self.hub.conclude(round, Bytes::new(), false);
        let bulk = |item| match item {
            Some(Item::Bulk(bytes)) => bytes,
            _ => Bytes::new(),
        };
        Ok(items.into_iter().map(bulk).collect())
    }

    /// Finds out whether all have the same words.
    pub(super) async fn compare(&mut self, words: Words) -> Result<(), MeetError> {
        let round = self.come(Step::Compare, Item::Words(words)).await?;
        let differs = |hub: &Hub| hub.all_at(round) || hub.differs_at(round);
        self.wait(Some(round), differs).await?;
        if differences(&self.hub.items(round)).is_some() {
            // Whoever else differs says so at about the same time.
            let hub = &self.hub;
            let mut arrivals = hub.arrivals();
            let others = async { while !hub.all_at(round) && arrivals.changed().await.is_ok() {} };
            drop(timeout(GATHER_DIFFERENCES, others).await);
        }
        if let Some(line) = differences(&self.hub.items(round)) {
            return Err(self.fail(MeetError::new(MeetErrorKind::Differs, line)).await);
        }
        self.hub.conclude(round, Bytes::new(), false);
        Ok(())
    }

    /// Begins, when all are ready.
    pub(super) async fn start(&mut self) -> Result<Bytes, MeetError> {
        let round = self.come(Step::Start, Item::Here).await?;
        self.wait(Some(round), |hub| hub.all_at(round)).await?;
        let roster: Bytes = serde_json::to_vec(&self.hub.people()).unwrap_or_default().into();
        self.hub.conclude(round, roster.clone(), true);
        Ok(roster)
    }

    /// Rank 0 works on something: nobody's deadline passes.
    pub(super) fn working(&mut self, on: &str) {
        self.hub.work(0, on);
        self.hub.announce(&[Rank(0)], 0, self.hub.works().1);
        self.patience.begin();
    }

    async fn come(&mut self, step: Step, item: Item) -> Result<u32, MeetError> {
        let round = self.round;
        if self.hub.deposit(0, round, step, item).is_err() && self.hub.failed().is_none() {
            let line =
                format!("the ranks do not follow the same steps: rank 0's step {round} is {}", step.as_str());
            self.hub.fail(MeetError::new(MeetErrorKind::Broken, line));
        }
        self.round += 1;
        match self.hub.failed() {
            Some(error) => Err(self.fail(error).await),
            None => Ok(round),
        }
    }

    /// Waits for the others at `round`, or for all to come.
    async fn wait(
        &mut self,
        round: Option<u32>,
        mut complete: impl FnMut(&Hub) -> bool,
    ) -> Result<(), MeetError> {
        let hub = Arc::clone(&self.hub);
        let mut arrivals = hub.arrivals();
        if round.is_some() {
            self.patience.begin();
        }
        let mut moved = (hub.moved.load(Relaxed), hub.works().0);
        let mut doubt = Doubt::default();
        loop {
            arrivals.mark_unchanged();
            if let Some(error) = hub.failed() {
                return Err(self.fail(error).await);
            }
            if complete(&hub) {
                return Ok(());
            }
            if Instant::now() >= self.patience.next() {
                let (missing, more) = hub.missing(round);
                let (works, on) = hub.works();
                let gone = hub.gone(round);
                let long = gone.as_ref().is_some_and(|(since, _)| *since >= BACK);
                if let Some((_, gone)) = gone.as_ref().filter(|_| doubt.confirmed(long)) {
                    let seconds = BACK.as_secs();
                    let line = format!("{gone}: not back within {seconds} s; see what was said there last");
                    return Err(self.fail(MeetError::new(MeetErrorKind::Deadline, line)).await);
                }
                // Where all have come, who else came does not matter.
                let mistaken = self.counters.other_token().filter(|_| round.is_none());
                let strays = hub.strays().filter(|_| round.is_none());
                let refused = strays.as_ref().map(|strays| strays.error.to_string());
                let why = gone.map(|(_, gone)| gone).into_iter().chain(refused).chain(mistaken);
                let why: Vec<_> = why.collect();
                let why = (!why.is_empty()).then(|| why.join("; "));
                let now = (hub.moved.load(Relaxed), works);
                if now != moved && round.is_some() {
                    if now.0 != moved.0 {
                        hub.work_on();
                    }
                    moved = (now.0, hub.works().0);
                    self.patience.begin();
                }
                if self.patience.over() {
                    // Nobody else has claimed those ranks.
                    if let Some(strays) = strays.filter(|strays| strays.are_all) {
                        return Err(self.fail(strays.error).await);
                    }
                    let error = self.nobody(round, &missing, more, why);
                    return Err(self.fail(error).await);
                }
                let on: Vec<_> = why.into_iter().chain(on).collect();
                let on = (!on.is_empty()).then(|| on.join("; "));
                hub.announce(&missing, more, on.clone());
                match round {
                    None => self.patience.show_absent(&missing, more, on),
                    Some(_) => self.patience.show(&missing, more, on),
                }
            }
            tokio::select! {
                // The hub lives as long as this.
                _ = arrivals.changed() => {}
                () = sleep_until(self.patience.next()) => {}
            }
        }
    }

    fn nobody(&self, round: Option<u32>, missing: &[Rank], more: usize, why: Option<String>) -> MeetError {
        let (who, seconds) = (ranks(missing, more), self.patience.deadline().as_secs());
        let line = match round {
            None => format!(
                "{who} of {} did not come to {} within {seconds} s: see whether they were started, say the same of where \
                 to meet, and have the same token; {NOT_ALL}",
                self.hub.world, self.place
            ),
            Some(_) => {
                let places = self.hub.places(missing);
                format!("{who} ({places}) did not answer within {seconds} s: see what they wait for")
            }
        };
        let line = why.map(|why| format!("{line}; {why}")).unwrap_or(line);
        MeetError::new(MeetErrorKind::Deadline, line)
    }

    /// Sees to it that the others hear of `error`; returns what is to be said here.
    pub(super) async fn fail(&mut self, error: MeetError) -> MeetError {
        self.hub.fail(error);
        let error = self.hub.failed().unwrap_or_else(|| MeetError::new(MeetErrorKind::Broken, "no run"));
        let late = match error.kind() {
            // Who has not come by now does not come soon.
            MeetErrorKind::Deadline => TELL,
            _ => self.patience.left().clamp(TELL, TELL_LATE),
        };
        let (began, hub) = (Instant::now(), Arc::clone(&self.hub));
        let mut arrivals = hub.arrivals();
        loop {
            arrivals.mark_unchanged();
            let (told, here) = hub.told();
            if told + 1 >= hub.world {
                return error;
            }
            let until = began + if told + here + 1 >= hub.world { TELL } else { late };
            if Instant::now() >= until || timeout(until - Instant::now(), arrivals.changed()).await.is_err() {
                return error;
            }
        }
    }
}
