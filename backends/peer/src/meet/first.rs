//! Rank 0's own steps of a meeting.
//!
//! They wait on the [`Hub`] for what the others bring. A step's deadline counts the time in which nothing moves: an arrival
//! of bytes, or a rank that says what it works on, begins it anew, so a long listing is no reason to give up as long as
//! somebody says that it goes on. The time in which all have to come is counted strictly. Whatever ends a meeting is told to
//! all who are here, and for a while to who comes later: each rank prints the reason, not only the first.
//!
//! [`Steps`] decides, without I/O or clock; [`First`] waits and calls it.

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

/// How long those who are here may take to hear why there is no run.
const TELL: Duration = Duration::from_secs(2);

/// How long those who are late are waited for, to be told.
const TELL_LATE: Duration = Duration::from_secs(10);

/// How long others that differ may come after the first that does, to be named with it.
const GATHER_DIFFERENCES: Duration = Duration::from_millis(300);

/// What rank 0 waits for: that all come, or their parts of a key.
#[derive(Debug)]
pub(super) struct Steps {
    pub patience: Patience,
    /// Where they meet, for messages.
    place: String,
    doubt: Doubt,
    /// What had moved, and how much was worked on, when it was looked last.
    moved: Option<(u64, u64)>,
}

/// What is known apart from the leader.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// Pieces of bulk that were sent and received.
    pub moved: u64,
    /// Who came with another token or version.
    pub mistaken: Option<String>,
}

impl Steps {
    pub(super) fn new(patience: Patience, place: String) -> Self {
        Self { patience, place, doubt: Doubt::default(), moved: None }
    }

    /// Begins to wait; for parts of a key the deadline begins anew.
    pub(super) fn begin(&mut self, key: Option<&str>, leader: &Leader, moved: u64, now: Instant) {
        if key.is_some() {
            self.patience.begin(now);
        }
        self.moved = Some((moved, leader.works().0));
        self.doubt = Doubt::default();
    }

    /// Whether what is waited for is `complete`, or `None` while it is not; tells the others once a second.
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
        // Where all have come, who else came does not matter.
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
            // Nobody else has claimed those ranks.
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

    /// That ranks did not come or answer.
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

/// Rank 0 while ranks meet.
#[derive(Debug)]
pub(super) struct First {
    pub hub: Arc<Hub>,
    pub steps: Steps,
}

impl First {
    /// Waits until all are here.
    pub(super) async fn arrive(&mut self) -> Result<(), MeetError> {
        self.wait(None, Leader::all_here).await?;
        self.hub.with(Leader::welcome_all);
        Ok(())
    }

    /// Gives all `value`, and `bulks` to those who need them.
    pub(super) async fn share(&mut self, key: &str, value: Bytes, bulks: Vec<Bulk>) -> Result<(), MeetError> {
        if !bulks.is_empty() {
            self.hub.with(|leader| leader.put_bulks(bulks));
        }
        self.come(key, None).await?;
        self.hub.with(|leader| leader.put(key, value));
        Ok(())
    }

    /// What each rank brings, this one's first, where all have the same words. The ranks wait for the value that is made of
    /// it, which [`agree`](Self::agree) puts.
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
        // Only the last part that came can differ.
        self.wait(Some(key), |leader| leader.store.is_whole(key) || differs(leader)).await?;
        if self.hub.with(|leader| differs(leader)) {
            // Whoever else differs says so at about the same time.
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

    /// Puts the value of a key that all have given their parts of. A rank that comes later compares its words with these.
    pub(super) fn agree(&self, key: &str, words: &Words, value: &[u8]) {
        self.hub.with(|leader| leader.put(key, pack(words, value)));
    }

    /// Begins, when all are ready and have the same words.
    pub(super) async fn start(&mut self, key: &str, words: &Words) -> Result<(), MeetError> {
        self.gather(key, words, &[]).await?;
        match self.hub.with(|leader| leader.start(key, pack(words, &[]))) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error).await),
        }
    }

    /// Rank 0 works on something: nobody's deadline passes.
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

    /// Waits for the parts of a key, or for all to come.
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
                // The hub lives as long as this.
                _ = arrivals.changed() => {}
                () = sleep_until(self.steps.patience.next()) => {}
            }
        }
    }

    /// Sees to it that the others hear of `error`; returns what is to be said here.
    pub(super) async fn fail(&mut self, error: MeetError) -> MeetError {
        let failed = self.hub.with(|leader| {
            leader.fail(error);
            leader.failed()
        });
        let error = failed.unwrap_or_else(|| MeetError::new(MeetErrorKind::Broken, "no run"));
        let (began, hub) = (Instant::now(), Arc::clone(&self.hub));
        let late = match error.kind() {
            // Who has not come by now does not come soon.
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
