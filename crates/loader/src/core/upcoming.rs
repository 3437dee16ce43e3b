//! The uses that have not been issued yet, in order, and when a sample comes round again.
//!
//! An epoch's order costs milliseconds to compute, too long for a runtime's thread, so the core asks for each pass's
//! stream ([`Action::Deal`](super::Action::Deal)) while it still works on the one before. Look-ahead then runs across
//! the boundary without noticing it.

use std::collections::VecDeque;

use foreread_oracle::{AccessStream, Pass, Run};
use foreread_types::{SampleId, SampleKey, Tick};

/// How many ids are taken from the stream at a time.
const CHUNK: usize = 256;

/// The next use to be issued.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextUse {
    pub(super) pass: usize,
    /// Number of its batch within the pass.
    pub(super) batch: u64,
    /// Whether it is the last of its batch.
    pub(super) closes: bool,
    pub(super) key: SampleKey,
}

#[derive(Debug)]
pub(super) struct UpcomingUses {
    run: Run,
    dealt: VecDeque<(Pass, AccessStream)>,
    /// The first pass that has not been dealt; `requested` says whether it has been requested for, `truncated` that it never will be
    /// there, nor any after it.
    undealt: usize,
    requested: bool,
    truncated: bool,
    /// Position of the next use in the front pass.
    index: u64,
    chunk: Vec<SampleId>,
    chunk_from: u64,
}

impl UpcomingUses {
    pub(super) fn new(run: Run) -> Self {
        Self {
            run,
            dealt: VecDeque::new(),
            undealt: 0,
            requested: false,
            truncated: false,
            index: 0,
            chunk: Vec::new(),
            chunk_from: 0,
        }
    }

    /// The first pass that has not been dealt, unless all have been that ever will.
    fn pending(&self) -> Option<Pass> {
        if self.truncated { None } else { self.run.pass(self.undealt) }
    }

    /// The pass that should be dealt next, once: so that the one being issued, the one after it and everything up to
    /// `horizon` ticks beyond the next use are known.
    pub(super) fn to_deal(&mut self, horizon: u64) -> Option<usize> {
        if self.requested || (self.dealt.len() >= 2 && self.covers(horizon)) {
            return None;
        }
        let pass = self.pending()?;
        self.requested = true;
        Some(pass.index)
    }

    /// Whether the uses up to `horizon` ticks beyond the next one are known, or all that there are.
    pub(super) fn covers(&self, horizon: u64) -> bool {
        let is_known = match (self.dealt.front(), self.dealt.back()) {
            (Some((first, _)), Some((last, _))) => {
                last.first_tick.0 + last.samples > (first.first_tick.0 + self.index).saturating_add(horizon)
            }
            _ => false,
        };
        // Second, because it counts passes, and this is requested for every use.
        is_known || self.pending().is_none()
    }

    /// Takes a stream that was requested for; any other is ignored.
    pub(super) fn dealt(&mut self, pass: usize, stream: AccessStream) {
        if !self.requested || pass != self.undealt {
            return;
        }
        if let Some(pass) = self.run.pass(pass) {
            self.dealt.push_back((pass, stream));
        }
        self.undealt += 1;
        self.requested = false;
    }

    /// Takes note that a stream that was requested for cannot be had: the run ends before it.
    pub(super) fn deal_failed(&mut self, pass: usize) {
        if self.requested && pass == self.undealt {
            (self.requested, self.truncated) = (false, true);
        }
    }

    /// The next use; `None` at the end, or while its pass is being dealt.
    pub(super) fn peek(&mut self) -> Option<NextUse> {
        while let Some((pass, _)) = self.dealt.front() {
            if self.index < pass.samples {
                break;
            }
            self.dealt.pop_front();
            (self.index, self.chunk_from) = (0, 0);
            self.chunk.clear();
        }
        let (pass, stream) = self.dealt.front()?;
        if self.index >= self.chunk_from + self.chunk.len() as u64 {
            let count = CHUNK.min((pass.samples - self.index) as usize);
            self.chunk.resize(count, SampleId::default());
            self.chunk_from = self.index;
            stream.fill(self.index, &mut self.chunk);
        }
        let id = *self.chunk.get((self.index - self.chunk_from) as usize)?;
        let batch_size = pass.batch_size.max(1);
        Some(NextUse {
            pass: pass.index,
            batch: self.index / batch_size,
            closes: (self.index + 1).is_multiple_of(batch_size) || self.index + 1 == pass.samples,
            key: SampleKey::new(pass.dataset, id),
        })
    }

    /// Goes past the use that [`peek`](Self::peek) showed.
    pub(super) fn advance(&mut self) {
        self.index += 1;
    }

    /// Whether every use has been issued.
    pub(super) fn is_exhausted(&mut self) -> bool {
        self.peek().is_none() && self.dealt.is_empty() && self.pending().is_none()
    }

    /// When `key` is used next after the use at `tick`, if that is at most `horizon` ticks later.
    ///
    /// `tick` is the sample's last use that has been issued, so passes that have been issued whole need not be known.
    pub(super) fn next_use(&self, key: SampleKey, tick: Tick, horizon: u64) -> Option<Tick> {
        let latest = tick.0.saturating_add(horizon);
        for (pass, stream) in &self.dealt {
            let first = pass.first_tick.0;
            if first > latest {
                break;
            }
            if pass.dataset != key.dataset || first + pass.samples <= tick.0 + 1 {
                continue;
            }
            let from = (tick.0 + 1).saturating_sub(first);
            if let Some(index) = stream.next_use(key.id, from) {
                let next = first + index;
                return (index < pass.samples && next <= latest).then_some(Tick(next));
            }
        }
        None
    }
}
