//! The messages that rank 0 sends on each connection, and their order.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::members::RankSession;
use super::super::messages::{Hello, MeetMessage, key};
use super::super::shared_catalog::{self, SharedCatalog};
use super::Leader;

/// The session of an admitted rank: the requests and the messages sent on its connection.
#[derive(Debug)]
pub(crate) struct FollowerSession {
    pub(crate) session: RankSession,
    /// It has no roster.
    is_new: bool,
    welcomed: bool,
    steps: u32,
    moves: u64,
    /// The keys whose values it requests.
    pub(super) wanted: Vec<String>,
    waiting: Option<u64>,
    /// The numbers of the catalogs that it requests.
    pub(super) bulks: BTreeSet<usize>,
    /// It is a relay, and the catalogs that all nodes need were not queued yet.
    passes_on: bool,
    /// Whether the end of the run was sent.
    pub(crate) over: bool,
}

/// The next message of a connection.
#[derive(Debug)]
pub(crate) enum NextSend {
    /// A message and its bulk.
    Message(MeetMessage, Bytes),
    /// The catalog of this number.
    Bulk(usize, SharedCatalog),
    /// A refusal. The connection closes after it.
    Refuse(MeetMessage),
    /// The rank has a newer connection: this one closes.
    Replaced,
}

impl Leader {
    /// The next message for a connection, which counts as sent. `None` if all was sent.
    pub(crate) fn next_send(&mut self, to: &mut FollowerSession) -> Option<NextSend> {
        if !self.members.is_current(to.session) {
            return Some(NextSend::Replaced);
        }
        if let Some(error) = &self.failed {
            return Some(NextSend::Refuse(MeetMessage::refuse(error)));
        }
        if self.roster.is_some() {
            if !std::mem::replace(&mut to.welcomed, true) {
                return Some(self.welcome(to));
            }
            // The number of steps comes from the other end.
            if let Some((key, value)) = to.steps.checked_add(1).and_then(|next| self.store.step(next)) {
                to.steps += 1;
                return Some(value_message(key, value.clone()));
            }
            let moved = key::moved(to.moves);
            if let Some(value) = self.store.value(&moved) {
                to.moves += 1;
                return Some(value_message(&moved, value.clone()));
            }
            let found = to.wanted.iter().position(|key| self.store.value(key).is_some());
            if let Some(key) = found.map(|at| to.wanted.remove(at)) {
                to.over |= key == key::DONE;
                return Some(value_message(&key, self.store.value(&key).cloned().unwrap_or_default()));
            }
            if !self.bulks.is_empty() && std::mem::take(&mut to.passes_on) {
                to.bulks.extend((0..self.bulks.len()).filter(|number| self.bulks[*number].is_pushed()));
            }
            if let Some(number) = to.bulks.pop_first() {
                return self.bulk(to.session.rank, number);
            }
        }
        let (number, waiting) = self.waiting.as_ref().filter(|_| !self.started)?;
        (to.waiting.replace(*number) != Some(*number))
            .then(|| NextSend::Message(waiting.clone(), Bytes::new()))
    }

    /// Rank 0's id and, if the rank has none, the roster.
    fn welcome(&mut self, to: &mut FollowerSession) -> NextSend {
        let mut roster = Bytes::new();
        if to.is_new {
            to.moves = self.moves;
            if self.roster.as_ref().is_none_or(|(moves, _)| *moves != self.moves) {
                // Only texts and numbers: it cannot fail.
                let text = serde_json::to_vec(&self.infos()).unwrap_or_default();
                self.roster = Some((self.moves, text.into()));
            }
            roster = self.roster.as_ref().map(|(_, roster)| roster.clone()).unwrap_or_default();
            to.passes_on = shared_catalog::relay(self.nodes(), to.session.rank) == Some(to.session.rank);
        }
        let (process, nonce, place) = (self.process, self.nonce.to_string(), self.members.location(0));
        let length = roster.len() as u64;
        NextSend::Message(MeetMessage::Welcome { process, nonce, place, moves: to.moves, length }, roster)
    }

    /// A catalog for a rank, within the byte limit. A rank that lost its connection gets it again.
    fn bulk(&mut self, rank: usize, number: usize) -> Option<NextSend> {
        let bulk = self.bulks.get(number)?.clone();
        if self.bulk_to.insert((rank, number)) {
            self.bulk_bytes = self.bulk_bytes.saturating_add(bulk.length());
        }
        if self.bulk_bytes <= shared_catalog::MAX_SENT_BYTES {
            return Some(NextSend::Bulk(number, bulk));
        }
        Some(NextSend::Refuse(self.refuse_rank(shared_catalog::too_large(self.bulk_bytes))))
    }
}

impl FollowerSession {
    pub(super) fn new(session: RankSession, hello: &Hello) -> Self {
        Self {
            session,
            is_new: hello.met.is_none(),
            welcomed: false,
            steps: hello.steps,
            moves: hello.moves,
            wanted: Vec::new(),
            waiting: None,
            bulks: BTreeSet::new(),
            passes_on: false,
            over: false,
        }
    }
}

fn value_message(key: &str, value: Bytes) -> NextSend {
    NextSend::Message(MeetMessage::value(key, value.len()), value)
}
