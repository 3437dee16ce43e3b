//! A rank other than 0 during the rendezvous: its state and decisions.
//!
//! A state machine without I/O, tasks or clock. Messages of rank 0 and results of connection
//! attempts are calls, each with the time. Values of steps arrive without a request and wait here
//! until this rank is at their step. [`FollowerDriver`](super::follower_driver::FollowerDriver)
//! does the I/O.

use std::collections::BTreeMap;

use bytes::Bytes;
use foreread_connection::{Address, Nonce};
use foreread_types::Rank;
use tokio::time::Instant;

use super::dial::DialError;
use super::members::RECONNECT_TIMEOUT;
use super::messages::{Hello, MeetMessage, RankInfo, key, ranks};
use super::waiting::{RETURN_TIMEOUT, TwoStepCheck, WaitDeadline, absent_rank_hint};
use super::{MeetError, MeetErrorKind};

/// How long rank 0's address must answer with another token before this rank gives up. The reply is
/// unauthenticated. It may come from an earlier run that is about to end, or from any process while
/// rank 0 is not started.
const OTHER_TOKEN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// A rank other than 0 during the rendezvous.
#[derive(Debug)]
pub(super) struct Follower {
    pub hello: Hello,
    pub wait: WaitDeadline,
    /// The rendezvous address, for messages.
    place: String,
    /// Whether rank 0 has replied on the current connection.
    is_connected: bool,
    /// The ranks that rank 0 waits for, how many more there are, and why.
    missing: (Vec<Rank>, usize, Option<String>),
    works: u64,
    why: Option<String>,
    /// The location of rank 0, once connected.
    first: Option<String>,
    /// Since when the connection to rank 0 is lost.
    lost: Option<Instant>,
    loss_check: TwoStepCheck,
    /// Attempts to connect since the last connection.
    pub attempts: u32,
    /// Since when rank 0's address answers with another token, and the address.
    other_token: Option<(Instant, Address)>,
    /// The start of the run's id, once rank 0 has sent it.
    pub nonce: Option<Nonce>,
    /// All ranks, once they are connected.
    pub infos: Vec<RankInfo>,
    /// Ranks whose addresses have changed since, the oldest change first.
    pub moved: Vec<RankInfo>,
    /// Values that have arrived.
    values: BTreeMap<String, Bytes>,
    /// The error with which rank 0 has refused this rank.
    refused: Option<MeetError>,
    /// Whether the connection was lost since the roster arrived. Messages without acknowledgement
    /// may be lost.
    pub was_lost: bool,
    /// Transferred pieces at the last check.
    transferred: u64,
}

/// The effect of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FollowerEvent {
    /// It was handled.
    Handled,
    /// Rank 0 has admitted this rank.
    Welcome,
    /// Rank 0 refuses the connection for now.
    RetryLater,
    /// This rank's loader listens at these addresses.
    Redirect(Vec<String>),
}

impl Follower {
    pub(super) fn new(hello: Hello, wait: WaitDeadline, place: String) -> Self {
        Self {
            hello,
            wait,
            place,
            is_connected: false,
            missing: (vec![Rank(0)], 0, None),
            works: 0,
            why: None,
            first: None,
            lost: None,
            loss_check: TwoStepCheck::default(),
            attempts: 0,
            other_token: None,
            nonce: None,
            infos: Vec::new(),
            moved: Vec::new(),
            values: BTreeMap::new(),
            refused: None,
            was_lost: false,
            transferred: 0,
        }
    }

    /// An attempt to connect to rank 0 has failed.
    ///
    /// # Errors
    /// No later attempt can succeed.
    pub(super) fn dial_failed(&mut self, error: DialError, now: Instant) -> Result<(), MeetError> {
        match error {
            DialError::Fatal(error) => return Err(error),
            DialError::NotYet(why) => (self.why, self.other_token) = (why, None),
            DialError::OtherToken(at) => {
                self.why = Some(format!("the process at {at} has another token (FOREREAD_TOKEN)"));
                if self.other_token.is_none() {
                    self.other_token = Some((now, at));
                    self.wait.show_now();
                }
            }
        }
        Ok(())
    }

    /// Connected to rank 0, which has not replied yet.
    pub(super) fn reached(&mut self) {
        self.other_token = None;
    }

    /// The connection is closed.
    pub(super) fn closed(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_connected) {
            self.lost.get_or_insert(now);
            self.was_lost |= self.hello.met.is_some();
        } else {
            self.why = Some("it closed the connection without a reply".to_owned());
        }
    }

    /// Handles a message of rank 0.
    ///
    /// # Errors
    /// Rank 0 has refused this rank or ended the rendezvous.
    pub(super) fn handle(
        &mut self,
        message: MeetMessage,
        bulk: Bytes,
        now: Instant,
    ) -> Result<FollowerEvent, MeetError> {
        match message {
            MeetMessage::Welcome { process, nonce, place, moves, .. } => {
                if self.hello.met.is_none() {
                    self.infos = serde_json::from_slice(&bulk).map_err(|error| {
                        let line = "rank 0 sent a list of ranks that cannot be read";
                        MeetError::caused(MeetErrorKind::Broken, line, error)
                    })?;
                    self.hello.moves = moves;
                }
                (self.hello.met, self.nonce) = (Some(process), Nonce::parse(&nonce));
                self.connected(place);
                self.wait.restart(now);
                return Ok(FollowerEvent::Welcome);
            }
            MeetMessage::Waiting { missing, more, on, works, place } => {
                self.connected(place);
                self.missing = (missing.into_iter().map(Rank).collect(), more as usize, on);
                if works > self.works {
                    self.works = works;
                    self.wait.restart(now);
                }
            }
            MeetMessage::Value { key, .. } => {
                self.wait.restart(now);
                if key.starts_with(key::STEP) {
                    self.hello.steps += 1;
                } else if key.starts_with(key::MOVED) {
                    self.hello.moves += 1;
                    self.moved.extend(serde_json::from_slice::<RankInfo>(&bulk).ok());
                    return Ok(FollowerEvent::Handled);
                }
                self.values.insert(key, bulk);
            }
            MeetMessage::Elsewhere { addresses } => return Ok(FollowerEvent::Redirect(addresses)),
            MeetMessage::Refuse { why, again: true, .. } => {
                // Rank 0 is alive.
                (self.lost, self.why, self.is_connected) = (None, Some(why), false);
                return Ok(FollowerEvent::RetryLater);
            }
            MeetMessage::Refuse { kind, why, .. } => {
                return Err(self.refused.insert(MeetError::new(kind, why)).clone());
            }
            // Messages to rank 0, or of a later version.
            _ => {}
        }
        Ok(FollowerEvent::Handled)
    }

    fn connected(&mut self, place: String) {
        (self.first, self.lost, self.why) = (Some(place), None, None);
        (self.is_connected, self.attempts) = (true, 0);
    }

    /// This rank starts to wait for a value.
    pub(super) fn begin(&mut self, now: Instant) {
        self.wait.restart(now);
        // Until rank 0 sends the missing ranks.
        self.missing = (vec![Rank(0)], 0, None);
    }

    /// Drops values that this rank did not need, and the list of ranks.
    pub(super) fn forget(&mut self) {
        self.values.clear();
        (self.infos, self.moved) = Default::default();
    }

    /// Whether rank 0 has refused this rank for good.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// The value of a key, once it has arrived.
    ///
    /// # Errors
    /// Rank 0 is at another step of this number, or has refused this rank.
    pub(super) fn take(&mut self, key: &str) -> Result<Option<Bytes>, MeetError> {
        if let Some(value) = self.values.remove(key) {
            return Ok(Some(value));
        }
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        let start = &key[..key.rfind('/').map_or(0, |end| end + 1)];
        let other = self.values.keys().find(|known| key.starts_with(key::STEP) && known.starts_with(start));
        match other {
            None => Ok(None),
            Some(known) => {
                let rank = self.hello.info.rank;
                let line = format!(
                    "rank {rank} does not follow the same steps: its step is {key}, the others' is {known}"
                );
                Err(MeetError::new(MeetErrorKind::Broken, line))
            }
        }
    }

    /// Checks the deadline and shows the missing ranks or bytes. `transferred` grows while bytes
    /// arrive.
    ///
    /// # Errors
    /// The deadline has passed.
    pub(super) fn check_deadline(&mut self, transferred: u64, now: Instant) -> Result<(), MeetError> {
        if std::mem::replace(&mut self.transferred, transferred) != transferred {
            self.wait.restart(now);
        }
        if !self.is_connected {
            return self.check_rank0_search(now);
        }
        let (missing, more, on) = &self.missing;
        self.wait.show(missing, *more, on.clone(), now);
        if !self.wait.is_expired(now) {
            return Ok(());
        }
        let (rank, seconds) = (self.hello.info.rank, self.wait.deadline().as_secs());
        let absent = ranks(missing, *more);
        // Rank 0 times out at about the same time, and may know more.
        let why = on.as_ref().map(|on| format!("; {on}")).unwrap_or_default();
        let line = format!(
            "rank {rank} waited {seconds} s for {absent}: check whether all were started and what they wait \
             for{why}"
        );
        Err(MeetError::new(MeetErrorKind::Deadline, line))
    }

    /// As [`check_deadline`](Self::check_deadline), without a connection to rank 0.
    fn check_rank0_search(&mut self, now: Instant) -> Result<(), MeetError> {
        let (rank, place) = (self.hello.info.rank, &self.place);
        let seconds = self.wait.deadline().as_secs();
        let why = self.why.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
        // During the run, rank 0 is searched for until the run ends.
        let lost = self.lost.filter(|_| !self.hello.started).map(|lost| now.duration_since(lost));
        let first = self.first.as_deref().filter(|_| lost.is_some_and(|lost| lost >= RECONNECT_TIMEOUT));
        let gone = first.map(|first| format!("rank 0 ({first}) was connected and is gone"));
        let shown = gone.as_ref().map(|gone| format!("; {gone}")).unwrap_or_default();
        let on = format!("at {place}{shown}{why}");
        match self.first {
            None if self.other_token.is_none() => self.wait.show_absent(&[Rank(0)], 0, Some(on), now),
            _ => self.wait.show(&[Rank(0)], 0, Some(on), now),
        }
        // If this process was connected before, in this rendezvous or an earlier one, the address
        // now belongs to another run.
        let met = self.first.is_some() || self.hello.loader > 0;
        if let Some((since, at)) = self.other_token.as_ref().filter(|_| !met)
            && (now.duration_since(*since) >= OTHER_TOKEN_TIMEOUT || self.wait.is_expired(now))
        {
            let line = format!(
                "rank {rank} has another token than rank 0 at {at}: give all ranks the same FOREREAD_TOKEN"
            );
            return Err(MeetError::new(MeetErrorKind::Secret, line));
        }
        let is_confirmed = self.loss_check.check(lost.is_some_and(|lost| lost >= RETURN_TIMEOUT), now);
        if !is_confirmed && !self.wait.is_expired(now) {
            return Ok(());
        }
        if let Some(gone) = gone {
            let line = format!(
                "{gone}: rank {rank} can no longer reach it at {place}; check rank 0's last output{why}"
            );
            return Err(MeetError::new(MeetErrorKind::Deadline, line));
        }
        let last = match &self.why {
            Some(why) => format!("the last attempt: {why}"),
            None => {
                "check whether it was started, and whether it uses the same rendezvous address".to_owned()
            }
        };
        let line = format!(
            "rank {rank} did not find rank 0 at {place} within {seconds} s; {last}; {}",
            absent_rank_hint()
        );
        Err(MeetError::new(MeetErrorKind::Deadline, line))
    }
}
