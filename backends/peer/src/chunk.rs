//! Samples that were handed to whoever has them, until all are answered.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use foreread_tier::{Completion, ErrorKind, Sample, Served, TierError};
use foreread_types::SampleKey;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

/// One sample of a chunk.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Its place in the request.
    pub(crate) tag: u32,
    pub(crate) key: SampleKey,
    pub(crate) length: u64,
    pub(crate) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing was said of it.
    Silent,
    /// It is being read.
    Reading,
    /// It was answered, or is no longer wanted.
    Done,
}

/// What was said of a sample.
pub(crate) struct Event {
    pub(crate) request: u64,
    pub(crate) tag: u32,
    pub(crate) key: SampleKey,
    /// Bytes that no longer count as silent.
    pub(crate) freed: u64,
    pub(crate) said: Said,
}

pub(crate) enum Said {
    Reading,
    Done(Result<Bytes, TierError>),
    Kept(Sample),
}

/// Samples of one request that were handed over together: the place in `slots` is the tag that the answers carry.
pub(crate) struct Chunk {
    pub(crate) request: u64,
    pub(crate) slots: Vec<Slot>,
    answers: Option<BoxStream<'static, Served>>,
    left: usize,
}

impl Chunk {
    pub(crate) fn new(request: u64, slots: Vec<Slot>, answers: Option<BoxStream<'static, Served>>) -> Self {
        Self { request, left: slots.len(), slots, answers }
    }

    /// Bytes of which nothing was said.
    pub(crate) fn silent(&self) -> u64 {
        let silent = self.slots.iter().filter(|slot| slot.state == State::Silent);
        silent.fold(0, |sum, slot| sum.saturating_add(slot.length))
    }

    /// Those that are being read.
    pub(crate) fn reading(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter(|slot| slot.state == State::Reading).map(|slot| slot.tag)
    }

    /// One is no longer wanted; says how many bytes no longer count as silent.
    pub(crate) fn forget(&mut self, tag: u32) -> u64 {
        let Some(place) = self.slots.iter().position(|slot| slot.tag == tag) else { return 0 };
        self.say(place, State::Done).map_or(0, |(_, freed)| freed)
    }

    /// Changes a sample's state; `None` where nothing new is said.
    fn say(&mut self, place: usize, state: State) -> Option<(&Slot, u64)> {
        let slot = self.slots.get_mut(place)?;
        if slot.state == State::Done || slot.state == state {
            return None;
        }
        let freed = if slot.state == State::Silent { slot.length } else { 0 };
        slot.state = state;
        if state == State::Done {
            self.left -= 1;
        }
        Some((slot, freed))
    }

    fn event(&mut self, place: usize, said: Said) -> Option<Event> {
        let request = self.request;
        let state = if matches!(said, Said::Reading) { State::Reading } else { State::Done };
        let (slot, freed) = self.say(place, state)?;
        Some(Event { request, tag: slot.tag, key: slot.key, freed, said })
    }
}

impl Stream for Chunk {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = &mut *self;
        loop {
            if this.left == 0 {
                this.answers = None;
                return Poll::Ready(None);
            }
            let event = match &mut this.answers {
                Some(answers) => match answers.poll_next_unpin(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Served::Reading { tag })) => this.event(tag as usize, Said::Reading),
                    Poll::Ready(Some(Served::Done(Completion { tag, result }))) => {
                        this.event(tag as usize, Said::Done(result))
                    }
                    Poll::Ready(Some(Served::Kept { tag, sample })) => {
                        this.event(tag as usize, Said::Kept(sample))
                    }
                    Poll::Ready(None) => {
                        this.answers = None;
                        continue;
                    }
                },
                // Nobody will say more: nothing is held here.
                None => {
                    let open = this.slots.iter().position(|slot| slot.state != State::Done);
                    let absent = || Said::Done(Err(TierError::new(ErrorKind::Absent, "peer")));
                    open.and_then(|place| this.event(place, absent()))
                }
            };
            if event.is_some() {
                return Poll::Ready(event);
            }
        }
    }
}
