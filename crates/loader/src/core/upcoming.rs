//! The uses that were not issued yet, in order, and the next use of a sample.
//!
//! An epoch's order costs milliseconds to compute, too long for a runtime's thread. So the core
//! requests each pass's order ([`Action::Deal`](super::CoreAction::Deal)) while it works on the
//! previous one. So the look-ahead crosses the boundary without a pause.

use std::collections::VecDeque;

use foreread_oracle::{AccessStream, Pass, Run};
use foreread_types::{SampleId, SampleKey, Tick};

/// Ids taken from the stream at a time.
const CHUNK: usize = 256;

/// The next use to be issued.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextUse {
    pub(super) pass: usize,
    /// The index of its batch within the pass.
    pub(super) batch: u64,
    /// Whether it is the last of its batch.
    pub(super) closes: bool,
    pub(super) key: SampleKey,
}

#[derive(Debug)]
pub(super) struct UpcomingUses {
    run: Run,
    dealt: VecDeque<(Pass, AccessStream)>,
    /// The first pass without an order. `requested`: its order is being computed. `truncated`: it
    /// will never be available.
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

    /// The first pass without an order, if there will be one.
    fn pending(&self) -> Option<Pass> {
        if self.truncated { None } else { self.run.pass(self.undealt) }
    }

    /// The pass to compute next, returned once. The current pass, the next one and everything up to
    /// `horizon` ticks after the next use should be known.
    pub(super) fn next_to_deal(&mut self, horizon: u64) -> Option<usize> {
        if self.requested || (self.dealt.len() >= 2 && self.covers(horizon)) {
            return None;
        }
        let pass = self.pending()?;
        self.requested = true;
        Some(pass.index)
    }

    /// Whether all uses up to `horizon` ticks after the next one are known.
    pub(super) fn covers(&self, horizon: u64) -> bool {
        let is_known = match (self.dealt.front(), self.dealt.back()) {
            (Some((first, _)), Some((last, _))) => {
                last.first_tick.0 + last.samples > (first.first_tick.0 + self.index).saturating_add(horizon)
            }
            _ => false,
        };
        // Last, because it counts passes, and `covers` is called for every use.
        is_known || self.pending().is_none()
    }

    /// Adds a requested order. Any other is ignored.
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

    /// Ends the run before a pass whose requested order cannot be computed.
    pub(super) fn deal_failed(&mut self, pass: usize) {
        if self.requested && pass == self.undealt {
            (self.requested, self.truncated) = (false, true);
        }
    }

    /// The next use. `None` at the end, or while its order is being computed.
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

    /// Advances past the use returned by [`peek`](Self::peek).
    pub(super) fn advance(&mut self) {
        self.index += 1;
    }

    /// Whether every use has been issued.
    pub(super) fn is_exhausted(&mut self) -> bool {
        self.peek().is_none() && self.dealt.is_empty() && self.pending().is_none()
    }

    /// The next use of `key` after its use at `tick`, if it is at most `horizon` ticks later.
    ///
    /// `tick` is the sample's last issued use, so completely issued passes need not be known.
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
