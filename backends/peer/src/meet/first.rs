//! Rank 0's own steps of a meeting.
//!
//! They wait on the [`Leader`] for what the others bring. A step's deadline counts the time in which nothing moves: an arrival
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
use super::leader::Leader;
use super::messages::{Words, ranks};
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
    pub leader: Arc<Leader>,
    pub patience: Patience,
    /// Where they meet, for messages.
    pub place: String,
    /// Who comes there and is turned away.
    pub counters: Arc<Counters>,
}

impl First {
    /// Waits until all are here.
    pub(super) async fn arrive(&mut self) -> Result<(), MeetError> {
        self.wait(None, |leader| leader.all_here()).await
    }

    /// Gives all `value`; they get it as they come for it.
    pub(super) async fn share(&mut self, key: &str, value: Bytes) -> Result<(), MeetError> {
        self.come(key, None).await?;
        self.leader.put(key, value);
        Ok(())
    }

    /// What each rank brings, this one's first. The ranks wait for the value that is made of it.
    pub(super) async fn gather(&mut self, key: &str, own: Bytes) -> Result<Vec<Bytes>, MeetError> {
        self.come(key, Some(own)).await?;
        self.wait(Some(key), |leader| leader.is_whole(key)).await?;
        Ok(self.leader.parts(key).into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Finds out whether all have the same words. The value of the key is rank 0's, against which a rank that comes later
    /// compares its own.
    pub(super) async fn compare(&mut self, key: &str, words: &Words) -> Result<(), MeetError> {
        // Texts alone: it cannot fail.
        let own = Bytes::from(serde_json::to_vec(words).unwrap_or_default());
        self.come(key, Some(own.clone())).await?;
        let differs = |leader: &Leader| leader.parts(key).iter().flatten().any(|part| *part != own);
        self.wait(Some(key), |leader| leader.is_whole(key) || differs(leader)).await?;
        if differs(&self.leader) {
            // Whoever else differs says so at about the same time.
            let leader = &self.leader;
            let mut arrivals = leader.arrivals();
            let others = async { while !leader.is_whole(key) && arrivals.changed().await.is_ok() {} };
            drop(timeout(GATHER_DIFFERENCES, others).await);
        }
        if let Some(line) = differences(&self.leader.parts(key)) {
            return Err(self.fail(MeetError::new(MeetErrorKind::Differs, line)).await);
        }
        self.leader.put(key, own);
        Ok(())
    }

    /// Begins, when all are ready.
    pub(super) async fn start(&mut self, key: &str) -> Result<Bytes, MeetError> {
        self.gather(key, Bytes::new()).await?;
        match self.leader.start(key) {
            Ok(roster) => Ok(roster),
            Err(error) => Err(self.fail(error).await),
        }
    }

    /// Rank 0 works on something: nobody's deadline passes.
    pub(super) fn working(&mut self, on: &str) {
        self.leader.work(0, on);
        self.leader.announce(&[Rank(0)], 0, self.leader.works().1);
        self.patience.begin();
    }

    /// Rank 0 is at the step of this key, with its part.
    async fn come(&mut self, key: &str, part: Option<Bytes>) -> Result<(), MeetError> {
        let come = match part {
            Some(part) => self.leader.part(0, key, part),
            None => self.leader.want(0, key),
        };
        match self.leader.failed() {
            Some(error) => Err(self.fail(error).await),
            None if come.is_err() => {
                let line = format!("there is no room for another step ({key})");
                Err(self.fail(MeetError::new(MeetErrorKind::Broken, line)).await)
            }
            None => Ok(()),
        }
    }

    /// Waits for the parts of a key, or for all to come.
    async fn wait(
        &mut self,
        key: Option<&str>,
        mut complete: impl FnMut(&Leader) -> bool,
    ) -> Result<(), MeetError> {
        let leader = Arc::clone(&self.leader);
        let mut arrivals = leader.arrivals();
        if key.is_some() {
            self.patience.begin();
        }
        let mut moved = (leader.moved.load(Relaxed), leader.works().0);
        let mut doubt = Doubt::default();
        loop {
            arrivals.mark_unchanged();
            if let Some(error) = leader.failed() {
                return Err(self.fail(error).await);
            }
            if complete(&leader) {
                return Ok(());
            }
            if Instant::now() >= self.patience.next() {
                let (missing, more) = leader.missing(key);
                let (works, on) = leader.works();
                let gone = leader.gone(key);
                let long = gone.as_ref().is_some_and(|(since, _)| *since >= BACK);
                let for_good = doubt.confirmed(long);
                if let Some((_, gone)) = gone.as_ref().filter(|_| for_good) {
                    let seconds = BACK.as_secs();
                    let line = format!("{gone}: not back within {seconds} s; see what was said there last");
                    return Err(self.fail(MeetError::new(MeetErrorKind::Deadline, line)).await);
                }
                // Where all have come, who else came does not matter.
                let mistaken = self.counters.other_token().filter(|_| key.is_none());
                let strays = leader.strays().filter(|_| key.is_none());
                let refused = strays.as_ref().map(|strays| strays.error.to_string());
                let why = gone.map(|(_, gone)| gone).into_iter().chain(refused).chain(mistaken);
                let why: Vec<_> = why.collect();
                let why = (!why.is_empty()).then(|| why.join("; "));
                let now = (leader.moved.load(Relaxed), works);
                if now != moved && key.is_some() {
                    if now.0 != moved.0 {
                        leader.work_on();
                    }
                    moved = (now.0, leader.works().0);
                    self.patience.begin();
                }
                if self.patience.over() {
                    // Nobody else has claimed those ranks.
                    if let Some(strays) = strays.filter(|strays| strays.are_all) {
                        return Err(self.fail(strays.error).await);
                    }
                    let error = self.nobody(key, &missing, more, why);
                    return Err(self.fail(error).await);
                }
                let on: Vec<_> = why.into_iter().chain(on).collect();
                let on = (!on.is_empty()).then(|| on.join("; "));
                leader.announce(&missing, more, on.clone());
                match key {
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

    fn nobody(&self, key: Option<&str>, missing: &[Rank], more: usize, why: Option<String>) -> MeetError {
        let (who, seconds) = (ranks(missing, more), self.patience.deadline().as_secs());
        let line = match key {
            None => format!(
                "{who} of {} did not come to {} within {seconds} s: see whether they were started, say the same of where \
                 to meet, and have the same token; {NOT_ALL}",
                self.leader.world, self.place
            ),
            Some(_) => {
                let places = self.leader.places(missing);
                format!("{who} ({places}) did not answer within {seconds} s: see what they wait for")
            }
        };
        let line = why.map(|why| format!("{line}; {why}")).unwrap_or(line);
        MeetError::new(MeetErrorKind::Deadline, line)
    }

    /// Sees to it that the others hear of `error`; returns what is to be said here.
    pub(super) async fn fail(&mut self, error: MeetError) -> MeetError {
        self.leader.fail(error);
        let error = self.leader.failed().unwrap_or_else(|| MeetError::new(MeetErrorKind::Broken, "no run"));
        let late = match error.kind() {
            // Who has not come by now does not come soon.
            MeetErrorKind::Deadline => TELL,
            _ => self.patience.left().clamp(TELL, TELL_LATE),
        };
        let (began, leader) = (Instant::now(), Arc::clone(&self.leader));
        let mut arrivals = leader.arrivals();
        loop {
            arrivals.mark_unchanged();
            let (told, here) = leader.told();
            if told + 1 >= leader.world {
                return error;
            }
            let until = began + if told + here + 1 >= leader.world { TELL } else { late };
            if Instant::now() >= until || timeout(until - Instant::now(), arrivals.changed()).await.is_err() {
                return error;
            }
        }
    }
}
