//! Rank 0's state and decisions: the key-value store, the ranks, and the failure of the rendezvous,
//! if any.
//!
//! A state machine without I/O, tasks or clock. Events are calls (a hello, a message, the end of a
//! connection, a step of rank 0), each with the time. [`Leader::next_send`] returns the next
//! message for a connection. The price is that callers call it for each connection after each
//! change. [`LeaderChanges`] notifies them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::Nonce;
use foreread_types::Rank;
use tokio::time::Instant;

mod send;

pub(super) use self::send::{FollowerSession, NextSend};
use super::loader_directory::LoaderDirectory;
use super::members::{Admission, Members, RankSession, RejectedClaims, retry_later};
use super::messages::{Hello, MeetMessage, RankInfo, key};
use super::shared_catalog::{self, SharedCatalog};
use super::store::KeyValueStore;
use super::waiting::MAX_NAMED_RANKS;
use super::{MeetError, MeetErrorKind};

/// Pending value requests per connection.
const MAX_PENDING_REQUESTS: usize = 16;

/// Changes since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaderChanges {
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
    board: Arc<LoaderDirectory>,
    pub(super) members: Members,
    pub(super) store: KeyValueStore,
    /// Catalogs.
    bulks: Vec<SharedCatalog>,
    /// Pairs of catalog and rank that were sent, and the sum of their bytes, counted once.
    bulk_to: BTreeSet<(usize, usize)>,
    bulk_bytes: u64,
    failed: Option<MeetError>,
    /// Ranks that have received the failure, or the end of the run.
    informed: BTreeSet<usize>,
    waiting: Option<(u64, MeetMessage)>,
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
    changes: LeaderChanges,
}

/// Why a connection is refused.
#[derive(Debug)]
pub(super) enum HelloRefusal {
    /// The rendezvous has failed, or the run is over. The rank counts as informed.
    NoRun(MeetMessage),
    /// This connection is refused, and the rendezvous continues.
    Connection(MeetMessage),
}

/// Why a message ends its connection.
#[derive(Debug)]
pub(super) enum MessageFault {
    /// The rank is sent the reason.
    Refuse(MeetMessage),
    Broken,
}

impl Leader {
    pub(super) fn new(me: RankInfo, world: usize, version: String, process: u64, nonce: Nonce) -> Self {
        let members = Members::new(me, world, version, process);
        let mut store = KeyValueStore::new(world);
        // Has a value from the start, so that reports are acknowledged at once.
        store.put(key::REPORT, Bytes::new());
        // Reserves room for the key.
        store.register(key::DONE);
        Self { process, nonce, world, members, store, ..Self::default() }
    }

    /// Sets the number of the process's loader, and the addresses of the others.
    pub(super) fn with_loader(self, loader: u16, board: Arc<LoaderDirectory>) -> Self {
        Self { loader, board, ..self }
    }

    /// Changes since the last call.
    pub(super) fn take_changes(&mut self) -> LeaderChanges {
        std::mem::take(&mut self.changes)
    }

    fn changed(&mut self, publish: bool) {
        self.changes.arrived = true;
        self.changes.published |= publish;
    }

    // Events of connections.

    /// Admits a connection, or returns why not.
    pub(super) fn hello(
        &mut self,
        hello: &Hello,
        seen: &str,
        now: Instant,
    ) -> Result<FollowerSession, HelloRefusal> {
        if hello.loader != self.loader {
            return Err(HelloRefusal::Connection(self.redirect(hello.loader)));
        }
        let rank = hello.info.rank as usize;
        let rejection = self.members.rejection(hello);
        let owns_rank = self.members.owns_rank(hello);
        if let Some(error) = &self.failed {
            if rejection.is_none() && owns_rank {
                return Err(HelloRefusal::NoRun(MeetMessage::refuse(error)));
            }
            // Most likely a rank of the next launch.
            let why = format!("the ranks that met here before are ending: {error}");
            return Err(HelloRefusal::Connection(retry_later(why)));
        }
        // A rank of this run that lost its connection may still get the end of the run.
        if self.ended && !(hello.started && owns_rank) {
            let why = "the ranks that met here before are ending".to_owned();
            return Err(HelloRefusal::Connection(retry_later(why)));
        }
        if let Some(error) = rejection {
            // Left over by an earlier run, or misconfigured. The right process may still come.
            if !self.started {
                self.members.note_rejected(rank, &error);
            }
            return Err(HelloRefusal::Connection(MeetMessage::refuse(&error)));
        }
        let done = self.store.part_of(rank, key::DONE).is_some();
        match self.members.admit(hello, seen, self.started, done, now) {
            Admission::Refused(refuse) => Err(HelloRefusal::Connection(refuse)),
            Admission::Replaced(error) => {
                self.fail(error.clone());
                Err(HelloRefusal::NoRun(MeetMessage::refuse(&error)))
            }
            Admission::Admitted { session, has_moved } => {
                let has_moved = has_moved && self.roster.is_some();
                if has_moved {
                    self.store.forget(rank, &[key::REPORT, key::DONE]);
                    self.publish_move(rank);
                }
                self.changed(has_moved);
                Ok(FollowerSession::new(session, hello))
            }
        }
    }

    /// Publishes changed addresses of a rank.
    fn publish_move(&mut self, rank: usize) {
        let Some(info) = self.members.all.get(rank).and_then(|member| member.info.as_ref()) else {
            return;
        };
        // Only texts and numbers: it cannot fail.
        let info = serde_json::to_vec(info).unwrap_or_default();
        self.store.put(&key::moved(self.moves), info.into());
        self.moves += 1;
    }

    /// The reply to a rank of another loader of this process.
    fn redirect(&self, loader: u16) -> MeetMessage {
        match self.board.addresses(loader) {
            Some(addresses) => {
                MeetMessage::Elsewhere { addresses: addresses.iter().map(ToString::to_string).collect() }
            }
            None => {
                let (ours, theirs) = (u32::from(self.loader) + 1, u32::from(loader) + 1);
                let line =
                    format!("rank 0 there has loader {ours} of its process, and this is loader {theirs}");
                // This process's earlier loaders have ended, so the other one was restarted, or
                // rank 0 belongs to an earlier run.
                let hint = "; a process that was started again cannot come back: start all ranks again";
                retry_later(if self.started && theirs < ours { line + hint } else { line })
            }
        }
    }

    /// Handles a message of a rank.
    ///
    /// # Errors
    /// The connection must end.
    pub(super) fn message(
        &mut self,
        from: &mut FollowerSession,
        message: MeetMessage,
        bulk: Bytes,
    ) -> Result<(), MessageFault> {
        let rank = from.session.rank;
        match message {
            MeetMessage::Part { key, .. } => {
                self.part(rank, &key, bulk).map_err(MessageFault::Refuse)?;
                // Values of steps are sent without a request.
                if !key.starts_with(key::STEP) {
                    if from.wanted.len() >= MAX_PENDING_REQUESTS {
                        return Err(MessageFault::Broken);
                    }
                    from.wanted.push(key);
                }
            }
            MeetMessage::Fetch { number } if (number as usize) < self.bulks.len() => {
                from.bulks.insert(number as usize);
            }
            MeetMessage::Fetch { .. } => return Err(MessageFault::Broken),
            MeetMessage::Working { on } => self.note_work(rank, &on),
            MeetMessage::GiveUp { why } => self.give_up(rank, &why),
            MeetMessage::Progress { at } => self.progress(rank, at),
            // Messages of rank 0, or of a later version.
            _ => {}
        }
        Ok(())
    }

    /// A connection has ended. Whether its rank is gone is decided by
    /// [`check_lost`](Self::check_lost) later. `false` if the rank has a newer connection.
    pub(super) fn disconnect(&mut self, session: RankSession, now: Instant) -> bool {
        let was_current = self.members.disconnect(session, now);
        self.changed(false);
        was_current
    }

    /// Logs a rank as gone if it has not reconnected since a while. Not at once: if this process
    /// was paused, all ranks have lost their connections and reconnect.
    pub(super) fn check_lost(&mut self, session: RankSession) {
        let member = self.members.all.get(session.rank);
        let gone = member.is_some_and(|member| member.session == session.number && !member.connected);
        let done = self.store.part_of(session.rank, key::DONE).is_some();
        if gone && !done && self.started && !self.ended {
            let rank = session.rank;
            tracing::warn!("rank {rank} no longer answers; its samples are read from the origin");
        }
        self.changed(false);
    }

    /// A rank has received the failure or the end of the run.
    pub(super) fn mark_informed(&mut self, rank: usize) {
        if rank < self.world {
            self.informed.insert(rank);
            self.changed(false);
        }
    }

    /// The node of each rank.
    fn nodes(&self) -> impl Iterator<Item = Option<&str>> + Clone {
        self.members.all.iter().map(|member| member.info.as_ref().map(|info| &info.node[..]))
    }

    /// Stores a rank's part of a key. A part of a conflicting step ends the rendezvous.
    ///
    /// # Errors
    /// The refusal to send to the rank.
    pub(super) fn part(&mut self, rank: usize, key: &str, part: Bytes) -> Result<(), MeetMessage> {
        self.register(rank, key)?;
        if !self.store.part(rank, key, part) {
            return Err(self.no_room(rank, key));
        }
        self.changed(false);
        Ok(())
    }

    /// A rank's part exceeds a limit: the rendezvous fails. During the run, only this rank is
    /// refused.
    fn no_room(&mut self, rank: usize, key: &str) -> MeetMessage {
        let line = format!("rank 0 has no room for the part of rank {rank} ({key})");
        self.refuse_rank(MeetError::new(MeetErrorKind::Broken, line))
    }

    /// A rank is at the step of a key.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub(super) fn register(&mut self, rank: usize, key: &str) -> Result<(), MeetMessage> {
        let Some(known) = self.store.conflicting_step(key) else {
            return if self.store.register(key) { Ok(()) } else { Err(self.no_room(rank, key)) };
        };
        let line = format!(
            "rank {rank} ({}) does not follow the same steps: its step is {key}, the others' is {known}",
            self.members.location(rank),
        );
        Err(self.refuse_rank(MeetError::new(MeetErrorKind::Broken, line)))
    }

    /// A rank reports progress.
    pub(super) fn note_work(&mut self, rank: usize, on: &str) {
        self.works = (self.works.0 + 1, Some(format!("rank {rank}: {on}")));
        self.changed(false);
    }

    /// A rank gives up before the start.
    pub(super) fn give_up(&mut self, rank: usize, why: &str) {
        if self.started {
            return;
        }
        let line = format!("rank {rank} ({}) gave up: {why}", self.members.location(rank));
        // It knows the reason.
        self.informed.insert(rank);
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
        // Only the rank with the lowest progress can change it.
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
    pub(super) fn work_reports(&self) -> (u64, Option<String>) {
        self.works.clone()
    }

    /// Bytes are transferred: deadlines restart.
    pub(super) fn note_transfer(&mut self) {
        self.works.0 += 1;
    }

    pub(super) fn all_connected(&self) -> bool {
        self.members.connected() == self.world
    }

    /// All ranks are connected: they are admitted and get the roster.
    pub(super) fn publish_roster(&mut self) {
        // Encoded when it is sent.
        self.roster = Some((u64::MAX, Bytes::new()));
        self.changed(true);
    }

    /// Catalogs for the ranks that need them. Called before the value that names them is published.
    /// Fails the rendezvous if too many bytes would leave rank 0.
    pub(super) fn put_bulks(&mut self, bulks: Vec<SharedCatalog>) {
        let relays =
            (1..self.world).filter(|rank| shared_catalog::relay(self.nodes(), *rank) == Some(*rank)).count();
        let pushed = bulks.iter().filter(|bulk| bulk.is_pushed());
        let pushed = pushed.fold(0u64, |sum, bulk| sum.saturating_add(bulk.length()));
        let all = pushed.saturating_mul(relays as u64);
        if all > shared_catalog::MAX_SENT_BYTES {
            self.fail(shared_catalog::too_large(all));
        }
        self.bulks = bulks;
    }

    /// A rank cannot take part. Before the start, this fails the rendezvous. Returns the refusal
    /// for that rank.
    pub(super) fn refuse_rank(&mut self, error: MeetError) -> MeetMessage {
        let refuse = MeetMessage::refuse(&error);
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
        (all.iter().copied().take(MAX_NAMED_RANKS).collect(), all.len().saturating_sub(MAX_NAMED_RANKS))
    }

    /// Refused processes that claim missing ranks.
    pub(super) fn rejected(&self) -> Option<RejectedClaims> {
        self.members.rejected()
    }

    /// The disconnected rank that has been [`missing`](Self::missing) longest: for how long, and a
    /// description.
    pub(super) fn longest_absent(&self, key: Option<&str>, now: Instant) -> Option<(Duration, String)> {
        let brought = |rank: usize| key.is_some_and(|key| self.store.part_of(rank, key).is_some());
        let members = self.members.all.iter().enumerate();
        let gone = members.filter(|(rank, member)| !member.is_reachable(now) && !brought(*rank));
        let mut gone: Vec<_> = gone
            .filter_map(|(rank, member)| {
                Some((now.duration_since(member.lost?), rank, member.info.as_ref()?.location()))
            })
            .collect();
        gone.sort_by_key(|(since, ..)| std::cmp::Reverse(*since));
        let (since, rank, place) = gone.first()?;
        let others = match gone.len() - 1 {
            0 => String::new(),
            1 => ", and 1 other".to_owned(),
            others => format!(", and {others} others"),
        };
        Some((*since, format!("rank {rank} ({place}) was connected and is gone{others}")))
    }

    /// Ranks that are gone.
    #[cfg(feature = "testing")]
    pub(super) fn lost(&self, now: Instant) -> Vec<Rank> {
        let lost = self.members.all.iter().enumerate().filter(|(_, member)| !member.is_reachable(now));
        lost.map(|(rank, _)| Rank(rank as u32)).collect()
    }

    /// The locations of ranks, for messages.
    pub(super) fn locations(&self, of: &[Rank]) -> String {
        let places = of.iter().map(|rank| self.members.location(rank.0 as usize));
        places.filter(|place| !place.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Publishes the progress of waiting, and the reason `on`.
    pub(super) fn announce_waiting(&mut self, missing: &[Rank], more: usize, on: Option<String>) {
        let (works, place) = (self.works.0, self.members.location(0));
        let missing = missing.iter().map(|rank| rank.0).collect();
        let number = self.waiting.as_ref().map_or(0, |(number, _)| number + 1);
        self.waiting = Some((number, MeetMessage::Waiting { missing, more: more as u32, on, works, place }));
        self.changes.published = true;
    }

    /// All ranks, as they are now.
    pub(super) fn infos(&self) -> Vec<RankInfo> {
        self.members.all.iter().filter_map(|member| member.info.clone()).collect()
    }

    /// How many other ranks have received the failure, and how many are connected.
    pub(super) fn informed_and_connected(&self) -> (usize, usize) {
        (self.informed.len(), self.members.connected() - 1)
    }

    /// How many ranks without a part of a key may still send it, and all that have none.
    pub(super) fn unfinished(&self, key: &str, now: Instant) -> (usize, Vec<Rank>) {
        let members = self.members.all.iter().enumerate();
        let open = members.filter(|(rank, _)| self.store.part_of(*rank, key).is_none());
        let working = open.clone().filter(|(_, member)| member.is_reachable(now)).count();
        (working, open.map(|(rank, _)| Rank(rank as u32)).collect())
    }

    /// The run is over. `missing` are the ranks that were not done.
    pub(super) fn end(&mut self, missing: &[Rank]) {
        self.ended = true;
        // Ranks that were done must still receive it.
        let done = self.store.parts(key::DONE);
        self.informed.extend((0..self.world).filter(|rank| done.get(*rank).is_none_or(Option::is_none)));
        let missing: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        // Only numbers: it cannot fail.
        self.put(key::DONE, serde_json::to_vec(&missing).unwrap_or_default().into());
    }

    /// Whether all ranks that were done have received the end of the run.
    pub(super) fn all_informed(&self) -> bool {
        (1..self.world).all(|rank| self.informed.contains(&rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn leader(world: usize) -> Leader {
        Leader::new(RankInfo::example(0), world, "1".into(), 7, Nonce::default())
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
    fn followers(leader: &mut Leader, steps: u32) -> Vec<FollowerSession> {
        let (world_size, version) = (leader.world as u32, "1".to_owned());
        let hello = |rank: u32| {
            let info = RankInfo { node: rank.to_string(), ..RankInfo::example(rank) };
            Hello { steps, ..Hello::new(info, world_size, version.clone(), 0, u64::from(rank)) }
        };
        let now = Instant::now();
        let all = (1..world_size).map(|rank| leader.hello(&hello(rank), "", now).unwrap()).collect();
        leader.publish_roster();
        all
    }

    #[test]
    fn number_of_steps_from_the_wire_does_not_overflow() {
        let mut leader = leader(2);
        let mut followers = followers(&mut leader, u32::MAX);
        leader.put(&key::step(1, "share"), Bytes::new());
        assert!(matches!(
            leader.next_send(&mut followers[0]),
            Some(NextSend::Message(MeetMessage::Welcome { .. }, _))
        ));
        assert!(leader.next_send(&mut followers[0]).is_none());
    }

    #[test]
    fn bulk_counts_once_for_a_rank_that_requests_it_again() {
        let mut leader = leader(3);
        let mut followers = followers(&mut leader, 0);
        leader.put_bulks(vec![SharedCatalog::on_request(10 << 30, || Ok(Bytes::new()))]);
        let mut fetch = |rank: usize| {
            let follower = &mut followers[rank - 1];
            leader.message(follower, MeetMessage::Fetch { number: 0 }, Bytes::new()).unwrap();
            loop {
                match leader.next_send(follower) {
                    Some(NextSend::Message(..)) => {}
                    due => return due,
                }
            }
        };
        for _ in 0..3 {
            assert!(matches!(fetch(1), Some(NextSend::Bulk(0, _))));
        }
        match fetch(2) {
            Some(NextSend::Refuse(MeetMessage::Refuse { why, .. })) => {
                assert!(why.contains("send 20 GiB"), "{why}")
            }
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
