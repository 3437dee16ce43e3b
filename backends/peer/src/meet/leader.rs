//! What rank 0 knows and the others ask it for: the store, the ranks, and why there is no run, if there is none.
//!
//! A value behind a lock, without waiting: tasks that serve the other ranks ([`super::sessions`]) put in what they hear and take
//! out what is to be said; rank 0's own steps ([`super::first`]) wait for what is complete. The price is one lock for all
//! ranks; what is done under it is short.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::sync::watch;
use tokio::time::Instant;

use super::board::Board;
use super::members::{Members, News, Seated, Session, Strays, not_yet};
use super::messages::{Hello, Message, Person, key};
use super::store::Store;
use super::waiting::NAMED;
use super::{MeetError, MeetErrorKind};
use crate::Nonce;

#[derive(Debug)]
pub(super) struct Leader {
    /// Which process rank 0 is.
    pub process: u64,
    /// What the run's id begins with.
    pub nonce: Nonce,
    pub world: usize,
    /// Which of its process's loaders it is.
    loader: u16,
    /// Where the process's other loaders meet.
    board: Arc<Board>,
    state: Mutex<State>,
    /// Something came that rank 0 may wait for.
    arrived: watch::Sender<()>,
    /// Something is to be said to the others.
    published: watch::Sender<()>,
    /// Pieces of values that left.
    pub moved: Arc<AtomicU64>,
    lowest: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    members: Members,
    store: Store,
    failed: Option<MeetError>,
    /// Ranks that know why there is no run, or that it is over.
    told: BTreeSet<usize>,
    waiting: Option<(u64, Message)>,
    /// How much was worked on so far, and on what last.
    works: (u64, Option<String>),
    started: bool,
    ended: bool,
    /// Changes of addresses since the start.
    moves: u64,
}

/// Why a connection gets no rank.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There will be no run, or it is over: that this rank was told counts.
    NoRun(Message),
    /// This connection is refused, and the meeting goes on.
    Connection(Message),
}

/// What a connection's task has to say next.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Another connection has the rank.
    pub(super) replaced: bool,
    pub(super) refuse: Option<Message>,
    pub(super) values: Vec<(String, Bytes)>,
    pub(super) waiting: Option<(u64, Message)>,
}

impl Leader {
    pub(super) fn new(me: Person, world: usize, version: String, process: u64, nonce: Nonce) -> Self {
        let members = Members::new(me, world, version, process);
        let mut store = Store::new(world);
        // A report is acknowledged as it comes.
        store.put(key::REPORT, Bytes::new());
        // There is room for it whatever comes.
        store.want(key::DONE);
        let state = State {
            members,
            store,
            failed: None,
            told: BTreeSet::new(),
            waiting: None,
            works: (0, None),
            started: false,
            ended: false,
            moves: 0,
        };
        Self {
            process,
            nonce,
            world,
            loader: 0,
            board: Arc::default(),
            state: Mutex::new(state),
            arrived: watch::Sender::default(),
            published: watch::Sender::default(),
            moved: Arc::default(),
            lowest: watch::Sender::default(),
        }
    }

    /// The same for the process's loader of this number, which knows from `board` where others meet.
    pub(super) fn of_loader(self, loader: u16, board: Arc<Board>) -> Self {
        Self { loader, board, ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arrivals(&self) -> watch::Receiver<()> {
        self.arrived.subscribe()
    }

    pub(super) fn news(&self) -> watch::Receiver<()> {
        self.published.subscribe()
    }

    pub(super) fn lowest(&self) -> watch::Receiver<u64> {
        self.lowest.subscribe()
    }

    fn changed(&self, publish: bool) {
        self.arrived.send_replace(());
        if publish {
            self.published.send_replace(());
        }
    }

    // What the tasks of connections do.

    /// Gives a rank to a connection, or says why not.
    pub(super) fn seat(&self, hello: &Hello, seen: &str) -> Result<Session, Refusal> {
        if hello.loader != self.loader {
            return Err(Refusal::Connection(self.elsewhere(hello.loader)));
        }
        let mut state = self.state();
        let rank = hello.person.rank as usize;
        let stray = state.members.stray(hello);
        let may_be = state.members.may_be(hello);
        if let Some(error) = &state.failed {
            if stray.is_none() && may_be {
                return Err(Refusal::NoRun(Message::refuse(error)));
            }
            // Most likely one of the next launch.
            let why = format!("the ranks that met here before are ending: {error}");
            return Err(Refusal::Connection(not_yet(why)));
        }
        // One of this run whose connection broke may still hear that it is over.
        if state.ended && !(hello.started && may_be) {
            let why = "the ranks that met here before are ending".to_owned();
            return Err(Refusal::Connection(not_yet(why)));
        }
        if let Some(error) = stray {
            // What an earlier run left over, or a mistake: the rank that is meant may still come.
            if !state.started {
                state.members.note_stray(rank, &error);
            }
            return Err(Refusal::Connection(Message::refuse(&error)));
        }
        let (started, done) = (state.started, state.store.part_of(rank, key::DONE).is_some());
        match state.members.seat(hello, seen, started, done, Instant::now()) {
            Seated::Refused(refuse) => Err(Refusal::Connection(refuse)),
            Seated::Replaced(error) => {
                state.failed = Some(error.clone());
                drop(state);
                self.changed(true);
                Err(Refusal::NoRun(Message::refuse(&error)))
            }
            Seated::Here { session, news } => {
                if news == News::Moved && started {
                    state.store.forget(rank, &[key::REPORT, key::DONE]);
                    state.publish_move(rank);
                }
                drop(state);
                self.changed(started && news == News::Moved);
                Ok(session)
            }
        }
    }

    /// Where another of this process's loaders is met.
    fn elsewhere(&self, loader: u16) -> Message {
        match self.board.addresses(loader) {
            Some(addresses) => {
                Message::Elsewhere { addresses: addresses.iter().map(ToString::to_string).collect() }
            }
            None => {
                let (ours, theirs) = (u32::from(self.loader) + 1, u32::from(loader) + 1);
                not_yet(format!("rank 0 there has loader {ours} of its process, and this is loader {theirs}"))
            }
        }
    }

    /// A connection is gone; whether its rank is, [`check_gone`](Self::check_gone) says later. `false` where the rank has
    /// another already.
    pub(super) fn disconnect(&self, session: Session) -> bool {
        let was_current = self.state().members.disconnect(session, Instant::now());
        self.changed(false);
        was_current
    }

    /// Says that a rank is gone whose connection broke a while ago, if no other has been made since. Not at once: this
    /// process may have stood still, and then all have lost it and come back.
    pub(super) fn check_gone(&self, session: Session) {
        let state = self.state();
        let member = state.members.all.get(session.rank);
        let gone = member.is_some_and(|member| member.session == session.number && !member.connected);
        let done = state.store.part_of(session.rank, key::DONE).is_some();
        if gone && !done && state.started && !state.ended {
            let rank = session.rank;
            tracing::warn!("rank {rank} does not answer any more; its samples are read from the origin");
        }
        drop(state);
        self.changed(false);
    }

    /// A rank has been told why there will be no run, or that it is over.
    pub(super) fn heard(&self, rank: usize) {
        if rank < self.world {
            self.state().told.insert(rank);
            self.changed(false);
        }
    }

    /// What is to be said on a connection that waits for the values of these keys.
    pub(super) fn due(&self, session: Session, wanted: &[String]) -> Due {
        let state = self.state();
        let mut due = Due { replaced: !state.members.is_current(session), ..Due::default() };
        if due.replaced {
            return due;
        }
        if let Some(error) = &state.failed {
            due.refuse = Some(Message::refuse(error));
            return due;
        }
        if !state.started {
            due.waiting.clone_from(&state.waiting);
        }
        let value = |key: &String| state.store.value(key).map(|value| (key.clone(), value.clone()));
        due.values = wanted.iter().filter_map(value).collect();
        due
    }

    /// A rank's part of a key. One that is not of the same steps ends the meeting.
    ///
    /// # Errors
    /// What the rank is to be told instead, if it may not.
    pub(super) fn part(&self, rank: usize, key: &str, part: Bytes) -> Result<(), Message> {
        self.want(rank, key)?;
        self.state().store.part(rank, key, part);
        self.changed(false);
        Ok(())
    }

    /// A rank will wait for the value of a key.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub(super) fn want(&self, rank: usize, key: &str) -> Result<(), Message> {
        let mut state = self.state();
        let Some(known) = state.store.differs_in_end(key) else {
            if state.store.want(key) {
                return Ok(());
            }
            let line = format!("rank {rank} names {key:?}, for which there is no room");
            return Err(Message::refuse(&MeetError::new(MeetErrorKind::Broken, line)));
        };
        let line = format!(
            "rank {rank} ({}) does not follow the same steps: its {key} is others' {known}",
            state.members.place(rank),
        );
        let error = MeetError::new(MeetErrorKind::Broken, line);
        if !state.started {
            state.failed.get_or_insert(error.clone());
        }
        drop(state);
        self.changed(true);
        Err(Message::refuse(&error))
    }

    /// A rank works on something.
    pub(super) fn work(&self, rank: usize, on: &str) {
        let mut state = self.state();
        state.works = (state.works.0 + 1, Some(format!("rank {rank}: {on}")));
        drop(state);
        self.changed(false);
    }

    /// A rank ends before the start.
    pub(super) fn give_up(&self, rank: usize, why: &str) {
        let mut state = self.state();
        if state.started {
            return;
        }
        let line = format!("rank {rank} ({}) gave up: {why}", state.members.place(rank));
        state.failed.get_or_insert(MeetError::new(MeetErrorKind::Refused, line));
        // It knows why.
        state.told.insert(rank);
        drop(state);
        self.changed(true);
    }

    /// All ends before it began.
    pub(super) fn fail(&self, error: MeetError) {
        self.state().failed.get_or_insert(error);
        self.changed(true);
    }

    /// A rank has come so far. One that was started again counts from less than where it was; nobody's position falls.
    pub(super) fn progress(&self, rank: usize, at: u64) {
        let mut state = self.state();
        let Some(member) = state.members.all.get_mut(rank) else { return };
        let before = member.progress;
        if before.is_some_and(|before| at <= before) {
            return;
        }
        member.progress = Some(at);
        // Only the rank that is furthest behind can move the lowest position.
        if before.is_none_or(|before| before <= *self.lowest.borrow()) {
            let lowest = state.members.lowest();
            // Under the lock, or an older position could be told after a newer one.
            self.lowest.send_if_modified(|known| {
                let rises = lowest > *known;
                *known = lowest.max(*known);
                rises
            });
        }
    }

    // What rank 0 does.

    pub(super) fn failed(&self) -> Option<MeetError> {
        self.state().failed.clone()
    }

    /// How much was worked on so far, and on what last.
    pub(super) fn works(&self) -> (u64, Option<String>) {
        self.state().works.clone()
    }

    /// Bytes move: nobody's deadline passes.
    pub(super) fn work_on(&self) {
        self.state().works.0 += 1;
    }

    pub(super) fn all_here(&self) -> bool {
        self.state().members.connected() == self.world
    }

    /// Puts the value of a key; whoever waits for it gets it.
    pub(super) fn put(&self, key: &str, value: Bytes) {
        self.state().store.put(key, value);
        self.changed(true);
    }

    /// Puts the value that all ranks start with, unless the meeting has failed: who is where.
    pub(super) fn start(&self, key: &str) -> Result<Bytes, MeetError> {
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.started = true;
        let people: Vec<_> = state.members.all.iter().filter_map(|member| member.person.clone()).collect();
        // Texts and numbers alone: it cannot fail.
        let roster = Bytes::from(serde_json::to_vec(&people).unwrap_or_default());
        state.store.put(key, roster.clone());
        drop(state);
        self.changed(true);
        Ok(roster)
    }

    /// The value of a key, if it has one.
    pub(super) fn value(&self, key: &str) -> Option<Bytes> {
        self.state().store.value(key).cloned()
    }

    /// Whether all ranks have given their part of a key.
    pub(super) fn is_whole(&self, key: &str) -> bool {
        self.state().store.is_whole(key)
    }

    /// The parts of a key, by rank.
    pub(super) fn parts(&self, key: &str) -> Vec<Option<Bytes>> {
        self.state().store.parts(key)
    }

    /// The first of the ranks that are not here, or have given no part of a key, and how many there are beside.
    pub(super) fn missing(&self, key: Option<&str>) -> (Vec<Rank>, usize) {
        let state = self.state();
        let is_missing = |rank: &usize| match key {
            None => state.members.all.get(*rank).is_none_or(|member| !member.connected),
            Some(key) => state.store.part_of(*rank, key).is_none(),
        };
        let all: Vec<_> = (0..self.world).filter(is_missing).map(|rank| Rank(rank as u32)).collect();
        (all.iter().copied().take(NAMED).collect(), all.len().saturating_sub(NAMED))
    }

    /// Processes that claim ranks which are not here, and were refused.
    pub(super) fn strays(&self) -> Option<Strays> {
        self.state().members.strays()
    }

    /// Which rank was here, is waited for as [`missing`](Self::missing) says, and is gone: for how long, and in words.
    pub(super) fn gone(&self, key: Option<&str>) -> Option<(Duration, String)> {
        let state = self.state();
        let brought = |rank: usize| key.is_some_and(|key| state.store.part_of(rank, key).is_some());
        let members = state.members.all.iter().enumerate();
        let gone =
            members.filter(|(rank, member)| !member.connected && !member.is_there() && !brought(*rank));
        let mut gone: Vec<_> = gone
            .filter_map(|(rank, member)| {
                Some((member.lost?.elapsed(), rank, member.person.as_ref()?.place()))
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
    pub(super) fn lost(&self) -> Vec<Rank> {
        let state = self.state();
        let lost = state.members.all.iter().enumerate().filter(|(_, member)| !member.is_there());
        lost.map(|(rank, _)| Rank(rank as u32)).collect()
    }

    /// Where ranks are, for messages.
    pub(super) fn places(&self, of: &[Rank]) -> String {
        let state = self.state();
        let places = of.iter().map(|rank| state.members.place(rank.0 as usize));
        places.filter(|place| !place.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Tells the others what is waited for, and `on` what.
    pub(super) fn announce(&self, missing: &[Rank], more: usize, on: Option<String>) {
        let mut state = self.state();
        let works = state.works.0;
        let missing = missing.iter().map(|rank| rank.0).collect();
        let number = state.waiting.as_ref().map_or(0, |(number, _)| number + 1);
        state.waiting = Some((number, Message::Waiting { missing, more: more as u32, on, works }));
        drop(state);
        self.published.send_replace(());
    }

    /// Everybody, as they are now.
    pub(super) fn people(&self) -> Vec<Person> {
        self.state().members.all.iter().filter_map(|member| member.person.clone()).collect()
    }

    /// How many others have been told of the failure, and how many are here.
    pub(super) fn told(&self) -> (usize, usize) {
        let state = self.state();
        (state.told.len(), state.members.connected() - 1)
    }

    /// How many have no part of a key and may still give it; and all that have none.
    pub(super) fn unfinished(&self, key: &str) -> (usize, Vec<Rank>) {
        let state = self.state();
        let members = state.members.all.iter().enumerate();
        let open = members.filter(|(rank, _)| state.store.part_of(*rank, key).is_none());
        let working = open.clone().filter(|(_, member)| member.is_there()).count();
        (working, open.map(|(rank, _)| Rank(rank as u32)).collect())
    }

    /// The run is over; `missing` have not come to their end.
    pub(super) fn end(&self, missing: &[Rank]) {
        let mut state = self.state();
        state.ended = true;
        // Who has heard it is told apart from who was done.
        let done = state.store.parts(key::DONE);
        state.told.extend((0..self.world).filter(|rank| done.get(*rank).is_none_or(Option::is_none)));
        let missing: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        // Numbers alone: it cannot fail.
        state.store.put(key::DONE, serde_json::to_vec(&missing).unwrap_or_default().into());
        drop(state);
        self.changed(true);
    }

    /// Whether all that are done have heard that the run is over.
    pub(super) fn all_heard(&self) -> bool {
        let state = self.state();
        (1..self.world).all(|rank| state.told.contains(&rank))
    }
}

impl State {
    /// A rank has other addresses than the others know.
    fn publish_move(&mut self, rank: usize) {
        let Some(person) = self.members.all.get(rank).and_then(|member| member.person.as_ref()) else {
            return;
        };
        // Texts and numbers alone: it cannot fail.
        let person = serde_json::to_vec(person).unwrap_or_default();
        self.store.put(&key::moved(self.moves), person.into());
        self.moves += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_position_does_not_fall_when_a_rank_is_started_again() {
        let person = Person { rank: 0, node: "a".into(), host: "h".into(), pid: 1, addresses: Vec::new() };
        let leader = Leader::new(person, 2, "1".into(), 7, Nonce::default());
        let lowest = leader.lowest();
        leader.progress(0, 9);
        leader.progress(1, 5);
        assert_eq!(*lowest.borrow(), 5);
        leader.progress(1, 2);
        assert_eq!(*lowest.borrow(), 5, "it was started again");
        leader.progress(1, 7);
        assert_eq!(*lowest.borrow(), 7);
    }

    #[test]
    fn the_lowest_position_follows_ranks_that_step_at_once() {
        let person = Person { rank: 0, node: "a".into(), host: "h".into(), pid: 1, addresses: Vec::new() };
        let leader = Leader::new(person, 2, "1".into(), 7, Nonce::default());
        let (lowest, step) = (leader.lowest(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (leader, step) = (&leader, &step);
                scope.spawn(move || {
                    for at in 1..=20_000 {
                        step.wait();
                        leader.progress(rank, at);
                    }
                });
            }
        });
        assert_eq!(*lowest.borrow(), 20_000);
    }

    #[test]
    fn meeting_that_has_failed_does_not_start() {
        let person = Person { rank: 0, node: "a".into(), host: "h".into(), pid: 1, addresses: Vec::new() };
        let leader = Leader::new(person, 2, "1".into(), 7, Nonce::default());
        leader.give_up(1, "it was interrupted");
        assert!(leader.start("start").unwrap_err().to_string().ends_with("it was interrupted"));
    }
}
