//! What rank 0 knows of all: who is here, what each brought to each round, how far each has come.
//!
//! A value behind a lock, without waiting: tasks that serve the other ranks ([`super::attend`]) put in what they hear
//! and take out what is to be said; rank 0's own steps ([`super::first`]) wait for what is complete. Rounds are kept
//! for the whole run, so that a rank that is started again goes through the same ones with the same results. The price is that
//! what was shared stays in memory, which for a catalog it does anyway.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::sync::watch;
use tokio::time::Instant;

use super::compare::difference;
use super::messages::{Hello, Message, Person, SILENCE, Step};
pub(super) use super::seats::{AGAIN, Due, Item, Refusal, Strays, Ticket};
use super::seats::{Round, Seat, State};
use super::waiting::NAMED;
use super::{MeetError, MeetErrorKind};
use crate::run_id::Nonce;

/// Rounds that a run may have; more are a mistake of whoever sends them.
const MOST_ROUNDS: usize = 64;

/// How long after its last try a process counts as one that claims a taken rank: one that is waited for tries every second.
const CLAIMS: Duration = SILENCE.saturating_add(Duration::from_secs(2));

#[derive(Debug)]
pub(super) struct Hub {
    pub instance: u64,
    /// What the run's id begins with.
    pub nonce: Nonce,
    pub world: usize,
    version: String,
    state: Mutex<State>,
    /// Something came that rank 0 may wait for.
    arrived: watch::Sender<()>,
    /// Something is to be said to the others.
    published: watch::Sender<()>,
    /// Pieces of bulk that left.
    pub moved: Arc<AtomicU64>,
    lowest: watch::Sender<u64>,
}

impl Hub {
    pub(super) fn new(me: Person, world: usize, version: String, instance: u64, nonce: Nonce) -> Self {
        let mut seats: Vec<Seat> = (0..world).map(|_| Seat::default()).collect();
        if let Some(first) = seats.first_mut() {
            *first = Seat { person: Some(me), instance, connected: true, ..Seat::default() };
        }
        let state = State { seats, connected: 1, ..State::default() };
        Self {
            instance,
            nonce,
            world,
            version,
            state: Mutex::new(state),
            arrived: watch::Sender::default(),
            published: watch::Sender::default(),
            moved: Arc::default(),
            lowest: watch::Sender::default(),
        }
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

    // What the tasks of connections do.

    /// Why a process can have no place in this meeting, whatever the others do, if that is so.
    fn stray(&self, hello: &Hello) -> Option<MeetError> {
        let (rank, place) = (hello.person.rank, hello.person.place());
        let differs = |what: &str, theirs: &dyn std::fmt::Display, ours: &dyn std::fmt::Display| {
            let line =
                format!("rank {rank} ({place}) differs from rank 0: {what} is {theirs}, rank 0's is {ours}");
            Some(MeetError::new(MeetErrorKind::Differs, line))
        };
        if hello.world_size as usize != self.world {
            return differs("world size", &hello.world_size, &self.world);
        }
        if hello.version != self.version {
            return differs("version", &hello.version, &self.version);
        }
        hello.met.filter(|met| *met != self.instance).map(|_| {
            let line = format!(
                "rank 0 was started again while rank {rank} ({place}) of an earlier run is alive: end that process, \
                 and start all ranks again"
            );
            MeetError::new(MeetErrorKind::Broken, line)
        })
    }

    /// Gives a rank its place, or says why not.
    pub(super) fn seat(&self, hello: &Hello, seen: &str) -> Result<Ticket, Refusal> {
        let mut state = self.state();
        let (person, rank) = (&hello.person, hello.person.rank);
        let again = |why: String| {
            Refusal::Connection(Message::Refuse { kind: "refused".to_owned(), why, again: true })
        };
        let refuse = |error: &MeetError| Refusal::Connection(Message::refuse(error));
        let stray = self.stray(hello);
        if let Some(error) = &state.failed {
            let refuse = Message::refuse(error);
            return Err(if stray.is_none() { Refusal::NoRun(refuse) } else { Refusal::Connection(refuse) });
        }
        let known = state.seats.get(rank as usize).is_some_and(|seat| seat.instance == hello.instance);
        // One of this run whose connection broke may still hear that it is over.
        if state.ended && !(hello.started && known) {
            return Err(again("the ranks that met here before are ending".to_owned()));
        }
        if let Some(error) = stray {
            // What an earlier run left over, or a mistake: the rank that is meant may still come.
            if !state.started && (rank as usize) < self.world {
                state.strays.insert(rank as usize, error.clone());
            }
            return Err(refuse(&error));
        }
        let started = state.started;
        let Some(seat) = state.seats.get_mut(rank as usize) else {
            let line = format!("rank {rank} of {} ranks: ranks count from 0", self.world);
            return Err(refuse(&MeetError::new(MeetErrorKind::Setting, line)));
        };
        if seat.connected && seat.instance != hello.instance {
            // A process that died on a machine that died is noticed a little later.
            let line = twice(seat.person.as_ref(), person);
            let now = Instant::now();
            let claimed = seat.claimed.filter(|(_, last)| now.duration_since(*last) < CLAIMS);
            let (since, _) = *seat.claimed.insert((claimed.map_or(now, |(since, _)| since), now));
            if rank != 0 && now.duration_since(since) < CLAIMS {
                return Err(again(line));
            }
            return Err(refuse(&MeetError::new(MeetErrorKind::Setting, line)));
        }
        if started && seat.done && seat.instance != hello.instance {
            return Err(again(format!("rank {rank} is done here and the others are not yet")));
        }
        let was = std::mem::replace(&mut seat.connected, true);
        let known = seat.person.is_some();
        if seat.instance != hello.instance {
            (seat.report, seat.done) = (None, false);
        }
        seat.instance = hello.instance;
        seat.turn += 1;
        seat.claimed = None;
        let mut person = person.clone();
        person.addresses.iter_mut().for_each(|address| *address = as_seen(address, seen));
        seat.person = Some(person.clone());
        let ticket = Ticket { rank: rank as usize, turn: seat.turn };
        state.strays.remove(&ticket.rank);
        if !was {
            state.connected += 1;
        }
        if started && known {
            state.event(Some(ticket.rank), Message::Back(person));
        }
        drop(state);
        self.changed(started);
        Ok(ticket)
    }

    /// A connection is gone; whether its rank is, [`look_again`](Self::look_again) says later. `false` where another has
    /// the place already.
    pub(super) fn unseat(&self, ticket: Ticket) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let Some(seat) = state.seats.get_mut(ticket.rank).filter(|seat| seat.turn == ticket.turn) else {
            return false;
        };
        (seat.connected, seat.lost) = (false, Some(Instant::now()));
        state.connected -= 1;
        self.changed(false);
        true
    }

    /// Tells all that a rank is gone whose connection broke a while ago, if no other has been made since. Not at once: this
    /// process may have stood still, and then all have lost it and come back.
    pub(super) fn look_again(&self, ticket: Ticket) {
        let mut state = self.state();
        let seat = state.seats.get(ticket.rank);
        let gone = seat.is_some_and(|seat| seat.turn == ticket.turn && !seat.connected && !seat.done);
        if gone && state.started && !state.ended {
            state.miss(ticket.rank);
            drop(state);
            self.changed(true);
        }
    }

    /// A rank has been told why there will be no run, or that it is over.
    pub(super) fn heard(&self, rank: usize) {
        if rank < self.world {
            self.state().told.insert(rank);
            self.changed(false);
        }
    }

    /// What is to be said to a rank that has heard of all events up to number `events`, and waits for `round`.
    pub(super) fn due(&self, ticket: Ticket, events: Option<u64>, round: Option<u32>) -> Due {
        let state = self.state();
        let replaced = state.seats.get(ticket.rank).is_none_or(|seat| seat.turn != ticket.turn);
        let mut due = Due { replaced, ..Due::default() };
        if due.replaced {
            return due;
        }
        if let Some(error) = &state.failed {
            due.refuse = Some(Message::refuse(error));
            return due;
        }
        if let Some(known) = events {
            due.events = state.since(known);
        } else {
            due.waiting.clone_from(&state.waiting);
        }
        let round = round.and_then(|round| state.rounds.get(round as usize));
        due.outcome = round.and_then(|round| round.outcome.clone());
        due
    }

    /// A rank has come to a round.
    ///
    /// # Errors
    /// What it is to be told instead, if it may not.
    pub(super) fn deposit(&self, rank: usize, round: u32, step: Step, item: Item) -> Result<(), Message> {
        let mut state = self.state();
        let at = round as usize;
        if at > state.rounds.len() || at >= MOST_ROUNDS {
            let line = format!("rank {rank} is at step {round}, where nobody else is");
            return Err(Message::refuse(&MeetError::new(MeetErrorKind::Broken, line)));
        }
        if at == state.rounds.len() {
            let items = (0..self.world).map(|_| None).collect();
            state.rounds.push(Round { step, items, count: 0, outcome: None });
        }
        let place = state.seats.get(rank).and_then(|seat| seat.person.as_ref().map(Person::place));
        let Some(found) = state.rounds.get_mut(at) else { return Ok(()) };
        if found.step != step {
            let line = format!(
                "rank {rank} ({}) does not follow the same steps: its step {round} is {}, others' is {}",
                place.unwrap_or_default(),
                step.as_str(),
                found.step.as_str()
            );
            let error = MeetError::new(MeetErrorKind::Broken, line);
            if found.outcome.is_none() {
                state.failed = Some(error.clone());
                drop(state);
                self.changed(true);
            }
            return Err(Message::refuse(&error));
        }
        if found.outcome.is_some() {
            // Started again: everything has been decided, and it has to agree.
            if let (Some(Some(Item::Words(ours))), Item::Words(theirs)) = (found.items.first(), &item)
                && let Some(what) = difference(theirs, ours)
            {
                let line = format!("rank {rank} ({}) differs from rank 0: {what}", place.unwrap_or_default());
                return Err(Message::refuse(&MeetError::new(MeetErrorKind::Differs, line)));
            }
            return Ok(());
        }
        let Some(slot) = found.items.get_mut(rank) else { return Ok(()) };
        if slot.replace(item).is_none() {
            found.count += 1;
        }
        drop(state);
        self.changed(false);
        Ok(())
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
        let place = state.seats.get(rank).and_then(|seat| seat.person.as_ref().map(Person::place));
        let line = format!("rank {rank} ({}) gave up: {why}", place.unwrap_or_default());
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
        let Some(seat) = state.seats.get_mut(rank) else { return };
        let before = seat.progress;
        if before.is_some_and(|before| at <= before) {
            return;
        }
        seat.progress = Some(at);
        // Only who was last can move the end of the field.
        if before.is_none_or(|before| before <= *self.lowest.borrow()) {
            let lowest = state.seats.iter().map(|seat| seat.progress.unwrap_or(0)).min().unwrap_or(0);
            drop(state);
            self.lowest.send_if_modified(|known| std::mem::replace(known, lowest) != lowest);
        }
    }

    pub(super) fn report(&self, rank: usize, report: Bytes) {
        if let Some(seat) = self.state().seats.get_mut(rank) {
            seat.report = Some(report);
        }
        self.changed(false);
    }

    pub(super) fn done(&self, rank: usize) {
        if let Some(seat) = self.state().seats.get_mut(rank) {
            seat.done = true;
        }
        self.changed(false);
    }

    fn changed(&self, publish: bool) {
        self.arrived.send_replace(());
        if publish {
            self.published.send_replace(());
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

    pub(super) fn all_here(&self) -> bool {
        self.state().connected == self.world
    }

    /// Whether all have come to a round.
    pub(super) fn all_at(&self, round: u32) -> bool {
        self.state().rounds.get(round as usize).is_some_and(|round| round.count == self.world)
    }

    /// Whether somebody at a round has other words than rank 0.
    pub(super) fn differs_at(&self, round: u32) -> bool {
        let state = self.state();
        let Some(round) = state.rounds.get(round as usize) else { return false };
        let Some(Some(Item::Words(ours))) = round.items.first() else { return false };
        round.items.iter().flatten().any(|item| matches!(item, Item::Words(theirs) if theirs != ours))
    }

    /// Bytes move: nobody's deadline passes.
    pub(super) fn work_on(&self) {
        self.state().works.0 += 1;
    }

    /// The first of the ranks that are not here, or not at a round, and how many there are beside.
    pub(super) fn missing(&self, round: Option<u32>) -> (Vec<Rank>, usize) {
        let state = self.state();
        let is_missing = |rank: &usize| match round {
            None => state.seats.get(*rank).is_none_or(|seat| !seat.connected),
            Some(round) => {
                let round = state.rounds.get(round as usize);
                round.is_none_or(|round| round.items.get(*rank).is_none_or(Option::is_none))
            }
        };
        let all: Vec<_> = (0..self.world).filter(is_missing).map(|rank| Rank(rank as u32)).collect();
        let named = all.iter().copied().take(NAMED).collect();
        (named, all.len().saturating_sub(NAMED))
    }

    /// Processes that claim ranks which are not here, and were refused.
    pub(super) fn strays(&self) -> Option<Strays> {
        let state = self.state();
        let is_here = |rank: usize| state.seats.get(rank).is_some_and(|seat| seat.connected);
        let mut claimed = state.strays.iter().filter(|(rank, _)| !is_here(**rank));
        let (_, error) = claimed.next()?;
        let more = claimed.count();
        let are_all = state.connected + more + 1 == self.world;
        let error = match more {
            0 => error.clone(),
            1 => MeetError::new(error.kind(), format!("{error} (another rank is refused, too)")),
            more => MeetError::new(error.kind(), format!("{error} ({more} more ranks are refused, too)")),
        };
        Some(Strays { error, are_all })
    }

    /// Who was here, is waited for as [`missing`](Self::missing) says, and is gone: for how long, and in words.
    pub(super) fn gone(&self, round: Option<u32>) -> Option<(Duration, String)> {
        let state = self.state();
        let brought = |rank: usize| {
            let round = round.and_then(|round| state.rounds.get(round as usize));
            round.is_some_and(|round| round.items.get(rank).is_some_and(Option::is_some))
        };
        let seats = state.seats.iter().enumerate();
        let gone = seats.filter(|(rank, seat)| !seat.connected && !seat.is_there() && !brought(*rank));
        let mut gone: Vec<_> = gone
            .filter_map(|(rank, seat)| Some((seat.lost?.elapsed(), rank, seat.person.as_ref()?.place())))
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

    /// Where ranks are, for messages.
    pub(super) fn places(&self, of: &[Rank]) -> String {
        let state = self.state();
        let seat = |rank: &Rank| state.seats.get(rank.0 as usize)?.person.as_ref().map(Person::place);
        of.iter().filter_map(seat).collect::<Vec<_>>().join(", ")
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

    /// What each rank brought to a round.
    pub(super) fn items(&self, round: u32) -> Vec<Option<Item>> {
        self.state().rounds.get(round as usize).map(|round| round.items.clone()).unwrap_or_default()
    }

    /// A round is over: all that come, or came, to it get `outcome`. What ranks brought is forgotten, but for rank 0's.
    pub(super) fn conclude(&self, round: u32, outcome: Bytes, start: bool) {
        let mut state = self.state();
        if start {
            state.started = true;
            for rank in 0..state.seats.len() {
                if state.seats.get(rank).is_some_and(|seat| !seat.is_there()) {
                    state.miss(rank);
                }
            }
        }
        if let Some(round) = state.rounds.get_mut(round as usize) {
            round.outcome = Some(outcome);
            round.items.truncate(1);
        }
        drop(state);
        self.changed(true);
    }

    /// Everybody, as they are now.
    pub(super) fn people(&self) -> Vec<Person> {
        self.state().seats.iter().filter_map(|seat| seat.person.clone()).collect()
    }

    /// Events after number `known`, with their numbers.
    pub(super) fn events(&self, known: u64) -> Vec<(u64, Message)> {
        self.state().since(known)
    }

    /// How many others have been told of the failure, and how many are here.
    pub(super) fn told(&self) -> (usize, usize) {
        let state = self.state();
        (state.told.len(), state.connected - 1)
    }

    /// Who is neither done nor gone, and who is not done.
    pub(super) fn unfinished(&self) -> (usize, Vec<Rank>) {
        let state = self.state();
        let not_done = state.seats.iter().enumerate().filter(|(_, seat)| !seat.done);
        let working = not_done.clone().filter(|(_, seat)| seat.is_there()).count();
        (working, not_done.map(|(rank, _)| Rank(rank as u32)).collect())
    }

    /// Reports that came, and whether one may still come.
    pub(super) fn reports(&self) -> (Vec<Option<Bytes>>, bool) {
        let state = self.state();
        let more = state.seats.iter().any(|seat| seat.report.is_none() && seat.is_there());
        (state.seats.iter().map(|seat| seat.report.clone()).collect(), more)
    }

    /// The run is over.
    pub(super) fn end(&self, missing: &[Rank]) {
        let mut state = self.state();
        state.ended = true;
        for rank in missing.iter().map(|rank| rank.0 as usize) {
            if state.seats.get(rank).is_some_and(|seat| !seat.connected) {
                state.miss(rank);
            }
        }
        let missing = missing.iter().map(|rank| rank.0).collect();
        state.event(None, Message::AllDone { missing });
        drop(state);
        self.changed(true);
    }

    /// Whether all that are done have heard that the run is over.
    pub(super) fn all_heard(&self) -> bool {
        let state = self.state();
        let mut done = state.seats.iter().enumerate().skip(1).filter(|(_, seat)| seat.done);
        done.all(|(rank, _)| state.told.contains(&rank))
    }
}

/// That a rank is taken by `sitting`, for `coming`.
fn twice(sitting: Option<&Person>, coming: &Person) -> String {
    let (rank, place) = (coming.rank, coming.place());
    if sitting.is_some_and(|sitting| (sitting.pid, &sitting.node) == (coming.pid, &coming.node)) {
        return format!(
            "{place} is rank {rank} twice: another of its loaders meets there already; give each meeting of a process its \
             number, or close the earlier loader first"
        );
    }
    let sitting = sitting.map(Person::place).unwrap_or_default();
    format!(
        "two processes are rank {rank}: {sitting}, and {place}: check what sets their ranks, or whether another run meets \
         there: each needs a place of its own"
    )
}

/// An address as others reach it, of a rank that is seen to come from `seen`.
fn as_seen(address: &str, seen: &str) -> String {
    let anywhere = ["0.0.0.0:", "[::]:"].iter().find_map(|start| address.strip_prefix(start));
    let Some(port) = anywhere else { return address.to_owned() };
    let from: Option<std::net::SocketAddr> = seen.parse().ok();
    match from.map(|from| from.ip().to_canonical()) {
        Some(ip) if !ip.is_loopback() => std::net::SocketAddr::new(ip, port.parse().unwrap_or(0)).to_string(),
        // On rank 0's own host, which everybody has a name for.
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_position_does_not_fall_when_a_rank_is_started_again() {
        let person = Person { rank: 0, node: "a".into(), host: "h".into(), pid: 1, addresses: Vec::new() };
        let hub = Hub::new(person, 2, "1".into(), 7, Nonce::default());
        let lowest = hub.lowest();
        hub.progress(0, 9);
        hub.progress(1, 5);
        assert_eq!(*lowest.borrow(), 5);
        hub.progress(1, 2);
        assert_eq!(*lowest.borrow(), 5, "it was started again");
        hub.progress(1, 7);
        assert_eq!(*lowest.borrow(), 7);
    }

    #[test]
    fn a_rank_that_is_taken_is_told_by_whom() {
        let person = |pid| Person { rank: 1, node: "a".into(), host: "h".into(), pid, addresses: Vec::new() };
        let two = twice(Some(&person(7)), &person(8));
        assert!(two.starts_with("two processes are rank 1: process 7 on h, and process 8 on h: "), "{two}");
        assert!(two.contains("another run meets there"), "{two}");
        let one = twice(Some(&person(7)), &person(7));
        assert!(one.starts_with("process 7 on h is rank 1 twice: another of its loaders"), "{one}");
    }

    #[test]
    fn addresses_are_told_as_they_are_reached() {
        for (address, seen, told) in [
            ("0.0.0.0:7", "10.0.0.3:4000", "10.0.0.3:7"),
            ("[::]:7", "[::ffff:10.0.0.3]:4000", "10.0.0.3:7"),
            ("[::]:7", "[fd00::3]:4000", "[fd00::3]:7"),
            ("[::]:7", "127.0.0.1:4000", "[::]:7"),
            ("[::]:7", "process 31", "[::]:7"),
            ("node3:7", "10.0.0.3:4000", "node3:7"),
            ("unix:/run/x", "10.0.0.3:4000", "unix:/run/x"),
        ] {
            assert_eq!(as_seen(address, seen), told);
        }
    }
}
