//! Rank 0's state and decisions: the key-value store, the ranks, and the failure of the rendezvous,
//! if any.
//!
//! A state machine without I/O, tasks or clock. Events are calls (a hello, a message, the end of a
//! connection, a step of rank 0), each with the time. [`Leader::next_send`] returns the next
//! message for a connection. The price is that callers call it for each connection after each
//! change. [`LeaderChanges`] tells them when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::time::Instant;

mod due;

pub(super) use self::due::{Due, Speaker};
use super::board::Board;
use super::bulk::{self, Bulk};
use super::members::{Members, Seated, Session, Strays, not_yet};
use super::messages::{Hello, Message, Person, key};
use super::store::Store;
use super::waiting::NAMED;
use super::{MeetError, MeetErrorKind};
use crate::Nonce;

/// Pending value requests per connection.
const MOST_WANTED: usize = 16;

/// Changes since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Rank 0's steps may be complete.
    pub(super) arrived: bool,
    /// There may be messages for other ranks.
    pub(super) published: bool,
}

#[derive(Debug, Default)]
pub(super) struct Leader {
    /// The random id of rank 0's process.
    process: u64,
    /// The start of the run's id.
    pub(super) nonce: Nonce,
    pub(super) world: usize,
    /// The number of the process's loader.
    loader: u16,
    /// The addresses of the process's other loaders.
    board: Arc<Board>,
    pub(super) members: Members,
    pub(super) store: Store,
    /// Catalogs.
    bulks: Vec<Bulk>,
    /// Pairs of catalog and rank that were sent, and the sum of their bytes, counted once.
    bulk_to: BTreeSet<(usize, usize)>,
    bulk_bytes: u64,
    failed: Option<MeetError>,
    /// Ranks that have received the failure, or the end of the run.
    told: BTreeSet<usize>,
    waiting: Option<(u64, Message)>,
    /// The number of progress reports, and the last one.
    works: (u64, Option<String>),
    /// The roster as JSON, with the number of changes it includes. Present once all ranks were
    /// connected.
    roster: Option<(u64, Bytes)>,
    started: bool,
    ended: bool,
    /// Changes of addresses since the roster.
    moves: u64,
    lowest: u64,
    changes: Changes,
}

/// Why a connection is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The rendezvous has failed, or the run is over. The rank counts as informed.
    NoRun(Message),
    /// This connection is refused, and the rendezvous continues.
    Connection(Message),
}

/// Why a message ends its connection.
#[derive(Debug)]
pub(super) enum Fault {
    /// The rank is sent the reason.
    Refuse(Message),
    Broken,
}

impl Leader {
    pub(super) fn new(me: Person, world: usize, version: String, process: u64, nonce: Nonce) -> Self {
        let members = Members::new(me, world, version, process);
        let mut store = Store::new(world);
        // Has a value from the start, so that reports are acknowledged at once.
        store.put(key::REPORT, Bytes::new());
        // Reserves room for the key.
        store.want(key::DONE);
        Self { process, nonce, world, members, store, ..Self::default() }
    }

    /// Sets the number of the process's loader, and the addresses of the others.
    pub(super) fn of_loader(self, loader: u16, board: Arc<Board>) -> Self {
        Self { loader, board, ..self }
    }

    /// Changes since the last call.
    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    fn changed(&mut self, publish: bool) {
        self.changes.arrived = true;
        self.changes.published |= publish;
    }

    // Events of connections.

    /// Admits a connection, or returns why not.
    pub(super) fn hello(&mut self, hello: &Hello, seen: &str, now: Instant) -> Result<Speaker, Refusal> {
        if hello.loader != self.loader {
            return Err(Refusal::Connection(self.elsewhere(hello.loader)));
        }
        let rank = hello.person.rank as usize;
        let stray = self.members.stray(hello);
        let may_be = self.members.may_be(hello);
        if let Some(error) = &self.failed {
            if stray.is_none() && may_be {
                return Err(Refusal::NoRun(Message::refuse(error)));
            }
            // Most likely a rank of the next launch.
            let why = format!("the ranks that met here before are ending: {error}");
            return Err(Refusal::Connection(not_yet(why)));
        }
        // A rank of this run that lost its connection may still get the end of the run.
        if self.ended && !(hello.started && may_be) {
            let why = "the ranks that met here before are ending".to_owned();
            return Err(Refusal::Connection(not_yet(why)));
        }
        if let Some(error) = stray {
            // Left over by an earlier run, or misconfigured. The right process may still come.
            if !self.started {
                self.members.note_stray(rank, &error);
            }
            return Err(Refusal::Connection(Message::refuse(&error)));
        }
        let done = self.store.part_of(rank, key::DONE).is_some();
        match self.members.seat(hello, seen, self.started, done, now) {
            Seated::Refused(refuse) => Err(Refusal::Connection(refuse)),
            Seated::Replaced(error) => {
                self.fail(error.clone());
                Err(Refusal::NoRun(Message::refuse(&error)))
            }
            Seated::Here { session, has_moved } => {
                let has_moved = has_moved && self.roster.is_some();
                if has_moved {
                    self.store.forget(rank, &[key::REPORT, key::DONE]);
                    self.publish_move(rank);
                }
                self.changed(has_moved);
                Ok(Speaker::new(session, hello))
            }
        }
    }

    /// Publishes changed addresses of a rank.
    fn publish_move(&mut self, rank: usize) {
        let Some(person) = self.members.all.get(rank).and_then(|member| member.person.as_ref()) else {
            return;
        };
        // Only texts and numbers: it cannot fail.
        let person = serde_json::to_vec(person).unwrap_or_default();
        self.store.put(&key::moved(self.moves), person.into());
        self.moves += 1;
    }

    /// The reply to a rank of another loader of this process.
    fn elsewhere(&self, loader: u16) -> Message {
        match self.board.addresses(loader) {
            Some(addresses) => {
                Message::Elsewhere { addresses: addresses.iter().map(ToString::to_string).collect() }
            }
            None => {
                let (ours, theirs) = (u32::from(self.loader) + 1, u32::from(loader) + 1);
                let line =
                    format!("rank 0 there has loader {ours} of its process, and this is loader {theirs}");
                // This process's earlier loaders have ended, so the other one was restarted, or
                // rank 0 belongs to an earlier run.
                let hint = "; a process that was started again cannot come back: start all ranks again";
                not_yet(if self.started && theirs < ours { line + hint } else { line })
            }
        }
    }

    /// Handles a message of a rank.
    ///
    /// # Errors
    /// The connection must end.
    pub(super) fn message(&mut self, from: &mut Speaker, message: Message, bulk: Bytes) -> Result<(), Fault> {
        let rank = from.session.rank;
        match message {
            Message::Part { key, .. } => {
                self.part(rank, &key, bulk).map_err(Fault::Refuse)?;
                // Values of steps are sent without a request.
                if !key.starts_with(key::STEP) {
                    if from.wanted.len() >= MOST_WANTED {
                        return Err(Fault::Broken);
                    }
                    from.wanted.push(key);
                }
            }
            Message::Fetch { number } if (number as usize) < self.bulks.len() => {
                from.bulks.insert(number as usize);
            }
            Message::Fetch { .. } => return Err(Fault::Broken),
            Message::Working { on } => self.work(rank, &on),
            Message::GiveUp { why } => self.give_up(rank, &why),
            Message::Progress { at } => self.progress(rank, at),
            // Messages of rank 0, or of a later version.
            _ => {}
        }
        Ok(())
    }

    /// A connection has ended. Whether its rank is gone is decided by
    /// [`check_lost`](Self::check_lost) later. `false` if the rank has a newer connection.
    pub(super) fn disconnect(&mut self, session: Session, now: Instant) -> bool {
        let was_current = self.members.disconnect(session, now);
        self.changed(false);
        was_current
    }

    /// Logs a rank as gone if it has not reconnected since a while. Not at once: if this process
    /// was paused, all ranks have lost their connections and reconnect.
    pub(super) fn check_gone(&mut self, session: Session) {
        let member = self.members.all.get(session.rank);
        let gone = member.is_some_and(|member| member.session == session.number && !member.connected);
        let done = self.store.part_of(session.rank, key::DONE).is_some();
        if gone && !done && self.started && !self.ended {
            let rank = session.rank;
            tracing::warn!("rank {rank} does not answer any more; its samples are read from the origin");
        }
        self.changed(false);
    }

    /// A rank has received the failure or the end of the run.
    pub(super) fn heard(&mut self, rank: usize) {
        if rank < self.world {
            self.told.insert(rank);
            self.changed(false);
        }
    }

    /// The node of each rank.
    fn nodes(&self) -> impl Iterator<Item = Option<&str>> + Clone {
        self.members.all.iter().map(|member| member.person.as_ref().map(|person| &person.node[..]))
    }

    /// Stores a rank's part of a key. A part of a conflicting step ends the rendezvous.
    ///
    /// # Errors
    /// The refusal to send to the rank.
    pub(super) fn part(&mut self, rank: usize, key: &str, part: Bytes) -> Result<(), Message> {
        self.want(rank, key)?;
        if !self.store.part(rank, key, part) {
            return Err(self.no_room(rank, key));
        }
        self.changed(false);
        Ok(())
    }

    /// A rank's part exceeds a limit: the rendezvous fails. During the run, only this rank is
    /// refused.
    fn no_room(&mut self, rank: usize, key: &str) -> Message {
        let line = format!("there is no room at rank 0 for what rank {rank} brings ({key})");
        self.end_with(MeetError::new(MeetErrorKind::Broken, line))
    }

    /// A rank is at the step of a key.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub(super) fn want(&mut self, rank: usize, key: &str) -> Result<(), Message> {
        let Some(known) = self.store.differs_in_end(key) else {
            return if self.store.want(key) { Ok(()) } else { Err(self.no_room(rank, key)) };
        };
        let line = format!(
            "rank {rank} ({}) does not follow the same steps: its {key} is others' {known}",
            self.members.place(rank),
        );
        Err(self.end_with(MeetError::new(MeetErrorKind::Broken, line)))
    }

    /// A rank reports progress.
    pub(super) fn work(&mut self, rank: usize, on: &str) {
        self.works = (self.works.0 + 1, Some(format!("rank {rank}: {on}")));
        self.changed(false);
    }

    /// A rank gives up before the start.
    pub(super) fn give_up(&mut self, rank: usize, why: &str) {
        if self.started {
            return;
        }
        let line = format!("rank {rank} ({}) gave up: {why}", self.members.place(rank));
        // It knows the reason.
        self.told.insert(rank);
        self.fail(MeetError::new(MeetErrorKind::Refused, line));
    }

    /// A rank reports how far it has come. A restarted rank counts from the start again, but
    /// recorded progress never decreases.
    pub(super) fn progress(&mut self, rank: usize, at: u64) {
        let Some(member) = self.members.all.get_mut(rank) else { return };
        let before = member.progress;
        if before.is_some_and(|before| at <= before) {
            return;
        }
        member.progress = Some(at);
        // Only the rank that is furthest behind can change the lowest progress.
        if before.is_none_or(|before| before <= self.lowest) {
            self.lowest = self.lowest.max(self.members.lowest());
        }
    }

    // Steps of rank 0.

    /// The lowest progress of all ranks.
    pub(super) fn lowest(&self) -> u64 {
        self.lowest
    }

    pub(super) fn failed(&self) -> Option<MeetError> {
        self.failed.clone()
    }

    /// Fails the rendezvous.
    pub(super) fn fail(&mut self, error: MeetError) {
        self.failed.get_or_insert(error);
        self.changed(true);
    }

    /// The number of progress reports, and the last one.
    pub(super) fn works(&self) -> (u64, Option<String>) {
        self.works.clone()
    }

    /// Bytes are transferred: deadlines restart.
    pub(super) fn work_on(&mut self) {
        self.works.0 += 1;
    }

    pub(super) fn all_here(&self) -> bool {
        self.members.connected() == self.world
    }

    /// All ranks are connected: they are admitted and get the roster.
    pub(super) fn welcome_all(&mut self) {
        // Encoded when it is sent.
        self.roster = Some((u64::MAX, Bytes::new()));
        self.changed(true);
    }

    /// Catalogs for the ranks that need them. Called before the value that names them is published.
    /// Fails the rendezvous if too many bytes would leave rank 0.
    pub(super) fn put_bulks(&mut self, bulks: Vec<Bulk>) {
        let relays = (1..self.world).filter(|rank| bulk::relay(self.nodes(), *rank) == Some(*rank)).count();
        let pushed = bulks.iter().filter(|bulk| bulk.is_pushed());
        let pushed = pushed.fold(0u64, |sum, bulk| sum.saturating_add(bulk.length()));
        let all = pushed.saturating_mul(relays as u64);
        if all > bulk::MOST_BYTES {
            self.fail(bulk::too_much(all));
        }
        self.bulks = bulks;
    }

    /// A rank cannot take part. Before the start, this fails the rendezvous. Returns the refusal
    /// for that rank.
    pub(super) fn end_with(&mut self, error: MeetError) -> Message {
        let refuse = Message::refuse(&error);
        if !self.started {
            self.fail(error);
        }
        refuse
    }

    /// Sets the value of a key and sends it to the ranks that wait for it.
    pub(super) fn put(&mut self, key: &str, value: Bytes) {
        self.store.put(key, value);
        self.changed(true);
    }

    /// Sets the value with which all ranks start, unless the rendezvous has failed.
    pub(super) fn start(&mut self, key: &str, value: Bytes) -> Result<(), MeetError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.started = true;
        self.put(key, value);
        Ok(())
    }

    /// The first ranks that are not connected, or have no part of a key, and how many more there
    /// are.
    pub(super) fn missing(&self, key: Option<&str>) -> (Vec<Rank>, usize) {
        let is_missing = |rank: &usize| match key {
            None => self.members.all.get(*rank).is_none_or(|member| !member.connected),
            Some(key) => self.store.part_of(*rank, key).is_none(),
        };
        let all: Vec<_> = (0..self.world).filter(is_missing).map(|rank| Rank(rank as u32)).collect();
        (all.iter().copied().take(NAMED).collect(), all.len().saturating_sub(NAMED))
    }

    /// Refused processes that claim missing ranks.
    pub(super) fn strays(&self) -> Option<Strays> {
        self.members.strays()
    }

    /// The disconnected rank that has been [`missing`](Self::missing) longest: for how long, and a
    /// description.
    pub(super) fn gone(&self, key: Option<&str>, now: Instant) -> Option<(Duration, String)> {
        let brought = |rank: usize| key.is_some_and(|key| self.store.part_of(rank, key).is_some());
        let members = self.members.all.iter().enumerate();
        let gone = members.filter(|(rank, member)| !member.is_there(now) && !brought(*rank));
        let mut gone: Vec<_> = gone
            .filter_map(|(rank, member)| {
                Some((now.duration_since(member.lost?), rank, member.person.as_ref()?.place()))
            })
            .collect();
        gone.sort_by_key(|(since, ..)| std::cmp::Reverse(*since));
        let (since, rank, place) = gone.first()?;
        let others = match gone.len() - 1 {
            0 => String::new(),
            1 => ", and 1 other".to_owned(),
            others => format!(", and {others} others"),
        };
        Some((*since, format!("rank {rank} ({place}) was here and is gone{others}")))
    }

    /// Ranks that are gone.
    #[cfg(feature = "testing")]
    pub(super) fn lost(&self, now: Instant) -> Vec<Rank> {
        let lost = self.members.all.iter().enumerate().filter(|(_, member)| !member.is_there(now));
        lost.map(|(rank, _)| Rank(rank as u32)).collect()
    }

    /// The locations of ranks, for messages.
    pub(super) fn places(&self, of: &[Rank]) -> String {
        let places = of.iter().map(|rank| self.members.place(rank.0 as usize));
        places.filter(|place| !place.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Publishes what is waited for, and the reason `on`.
    pub(super) fn announce(&mut self, missing: &[Rank], more: usize, on: Option<String>) {
        let (works, place) = (self.works.0, self.members.place(0));
        let missing = missing.iter().map(|rank| rank.0).collect();
        let number = self.waiting.as_ref().map_or(0, |(number, _)| number + 1);
        self.waiting = Some((number, Message::Waiting { missing, more: more as u32, on, works, place }));
        self.changes.published = true;
    }

    /// All ranks, as they are now.
    pub(super) fn people(&self) -> Vec<Person> {
        self.members.all.iter().filter_map(|member| member.person.clone()).collect()
    }

    /// How many other ranks have received the failure, and how many are connected.
    pub(super) fn told(&self) -> (usize, usize) {
        (self.told.len(), self.members.connected() - 1)
    }

    /// How many ranks without a part of a key may still send it, and all that have none.
    pub(super) fn unfinished(&self, key: &str, now: Instant) -> (usize, Vec<Rank>) {
        let members = self.members.all.iter().enumerate();
        let open = members.filter(|(rank, _)| self.store.part_of(*rank, key).is_none());
        let working = open.clone().filter(|(_, member)| member.is_there(now)).count();
        (working, open.map(|(rank, _)| Rank(rank as u32)).collect())
    }

    /// The run is over. `missing` are the ranks that were not done.
    pub(super) fn end(&mut self, missing: &[Rank]) {
        self.ended = true;
        // Ranks that were done must still receive it.
        let done = self.store.parts(key::DONE);
        self.told.extend((0..self.world).filter(|rank| done.get(*rank).is_none_or(Option::is_none)));
        let missing: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        // Only numbers: it cannot fail.
        self.put(key::DONE, serde_json::to_vec(&missing).unwrap_or_default().into());
    }

    /// Whether all ranks that were done have received the end of the run.
    pub(super) fn all_heard(&self) -> bool {
        (1..self.world).all(|rank| self.told.contains(&rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn leader(world: usize) -> Leader {
        let person = Person { rank: 0, node: "a".into(), host: "h".into(), pid: 1, addresses: Vec::new() };
        Leader::new(person, world, "1".into(), 7, Nonce::default())
    }

    #[test]
    fn lowest_position_does_not_fall_when_a_rank_is_started_again() {
        let mut leader = leader(2);
        leader.progress(0, 9);
        leader.progress(1, 5);
        assert_eq!(leader.lowest(), 5);
        leader.progress(1, 2);
        assert_eq!(leader.lowest(), 5, "it was started again");
        leader.progress(1, 7);
        assert_eq!(leader.lowest(), 7);
    }

    /// The sessions of all ranks of a rendezvous that is complete.
    fn speakers(leader: &mut Leader, steps: u32) -> Vec<Speaker> {
        let (world_size, version) = (leader.world as u32, "1".to_owned());
        let hello = |rank: u32| {
            let person =
                Person { rank, node: rank.to_string(), host: "h".into(), pid: 1, addresses: Vec::new() };
            Hello { steps, ..Hello::new(person, world_size, version.clone(), 0, u64::from(rank)) }
        };
        let now = Instant::now();
        let all = (1..world_size).map(|rank| leader.hello(&hello(rank), "", now).unwrap()).collect();
        leader.welcome_all();
        all
    }

    #[test]
    fn number_of_steps_from_the_wire_does_not_overflow() {
        let mut leader = leader(2);
        let mut speakers = speakers(&mut leader, u32::MAX);
        leader.put(&key::step(1, "share"), Bytes::new());
        assert!(matches!(leader.due(&mut speakers[0]), Some(Due::Say(Message::Welcome { .. }, _))));
        assert!(leader.due(&mut speakers[0]).is_none());
    }

    #[test]
    fn bulk_counts_once_for_a_rank_that_requests_it_again() {
        let mut leader = leader(3);
        let mut speakers = speakers(&mut leader, 0);
        leader.put_bulks(vec![Bulk::on_request(10 << 30, || Ok(Bytes::new()))]);
        let mut fetch = |rank: usize| {
            let speaker = &mut speakers[rank - 1];
            leader.message(speaker, Message::Fetch { number: 0 }, Bytes::new()).unwrap();
            loop {
                match leader.due(speaker) {
                    Some(Due::Say(..)) => {}
                    due => return due,
                }
            }
        };
        for _ in 0..3 {
            assert!(matches!(fetch(1), Some(Due::Bulk(0, _))));
        }
        match fetch(2) {
            Some(Due::Refuse(Message::Refuse { why, .. })) => assert!(why.contains("send 20 GiB"), "{why}"),
            due => panic!("{due:?}"),
        }
    }

    #[test]
    fn failed_rendezvous_does_not_start() {
        let mut leader = leader(2);
        leader.give_up(1, "it was interrupted");
        let error = leader.start("start", Bytes::new()).unwrap_err();
        assert!(error.to_string().ends_with("it was interrupted"));
    }
}
