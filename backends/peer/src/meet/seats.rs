//! What rank 0 keeps of each rank and of each round: plain values, which [`super::hub`] changes under its lock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::MeetError;
use super::messages::{Message, Person, Step, Words};

/// How long a connection may take to be made again before its rank counts as gone for who waits.
pub(super) const AGAIN: Duration = Duration::from_secs(3);

/// What a rank brings to a round.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Here,
    Bulk(Bytes),
    Words(Words),
}

/// One step of all ranks.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) step: Step,
    pub(super) items: Vec<Option<Item>>,
    pub(super) count: usize,
    /// What all get, once it is over.
    pub(super) outcome: Option<Bytes>,
}

/// A rank's place.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) person: Option<Person>,
    pub(super) instance: u64,
    /// Grows with each connection that takes the place.
    pub(super) turn: u64,
    pub(super) connected: bool,
    pub(super) progress: Option<u64>,
    pub(super) report: Option<Bytes>,
    pub(super) done: bool,
    /// When its connection broke.
    pub(super) lost: Option<Instant>,
    /// Since when another process claims the place, and when it did so last.
    pub(super) claimed: Option<(Instant, Instant)>,
}

impl Seat {
    /// Whether something may still be heard of it: a connection that broke a moment ago is being made again.
    pub(super) fn is_there(&self) -> bool {
        self.connected || self.lost.is_some_and(|lost| lost.elapsed() < AGAIN)
    }
}

/// Who sits where since when: what the task of a connection holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) rank: usize,
    pub(super) turn: u64,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) seats: Vec<Seat>,
    pub(super) connected: usize,
    pub(super) rounds: Vec<Round>,
    pub(super) failed: Option<MeetError>,
    /// By the rank that it claims: why a process was refused that is of an earlier run, or of another world size or version.
    pub(super) strays: BTreeMap<usize, MeetError>,
    pub(super) told: BTreeSet<usize>,
    pub(super) waiting: Option<(u64, Message)>,
    pub(super) works: (u64, Option<String>),
    /// The last of each rank, with its number; `None` is for all.
    pub(super) events: Vec<(u64, Option<usize>, Message)>,
    pub(super) started: bool,
    pub(super) ended: bool,
}

/// Why a rank does not get its place.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There will be no run, or it is over: that the rank was told counts.
    NoRun(Message),
    /// This connection is refused, and the meeting goes on.
    Connection(Message),
}

/// Missing ranks that are claimed by processes that were refused.
#[derive(Debug)]
pub(super) struct Strays {
    /// Why the first of them was.
    pub(super) error: MeetError,
    /// Whether every missing rank is claimed by such a process.
    pub(super) are_all: bool,
}

/// What a connection's task has to do next.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Another connection has the place.
    pub(super) replaced: bool,
    pub(super) refuse: Option<Message>,
    pub(super) events: Vec<(u64, Message)>,
    pub(super) waiting: Option<(u64, Message)>,
    pub(super) outcome: Option<Bytes>,
}

impl State {
    pub(super) fn event(&mut self, rank: Option<usize>, message: Message) {
        let number = self.events.last().map_or(1, |(number, ..)| number + 1);
        self.events.retain(|(_, of, _)| *of != rank);
        self.events.push((number, rank, message));
    }

    /// Tells all that a rank does not answer, if they were not told yet.
    pub(super) fn miss(&mut self, rank: usize) {
        let said = |(_, of, message): &(u64, Option<usize>, Message)| {
            *of == Some(rank) && matches!(message, Message::Gone { .. })
        };
        if !self.events.iter().any(said) {
            tracing::warn!("rank {rank} does not answer any more; its samples are read from the origin");
            self.event(Some(rank), Message::Gone { rank: rank as u32 });
        }
    }

    pub(super) fn since(&self, known: u64) -> Vec<(u64, Message)> {
        let new = self.events.iter().filter(|(number, ..)| *number > known);
        new.map(|(number, _, message)| (*number, message.clone())).collect()
    }
}
