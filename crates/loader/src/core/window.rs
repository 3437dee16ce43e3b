//! The window of uses in progress: from the first that was not handed out to the last that was
//! issued.

use std::collections::VecDeque;

use foreread_types::{KeyMap, SampleKey, Tick};

use crate::report::ReadSource;

/// The state of one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UseState {
    /// Being looked up in the cache at this level.
    LookingUp { level: usize },
    /// Being read from the cache at this level.
    Fetching { level: usize },
    /// Being read from the origin.
    Reading,
    /// Waiting for an earlier use of the same sample.
    Following,
    /// Settled with a sample from this source.
    Ready(ReadSource),
    /// Settled without a sample, which cannot be read.
    Failed,
}

impl UseState {
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::Ready(_) | Self::Failed)
    }
}

/// One use of one sample.
#[derive(Debug)]
pub(super) struct UseSlot {
    pub(super) key: SampleKey,
    pub(super) bytes: u64,
    /// Its charge in the look-ahead while it is looked up or read.
    pub(super) charged: u64,
    pub(super) state: UseState,
    /// Once settled: whether a cache keeps the sample, as far as the core knows.
    pub(super) kept: bool,
    /// The next use of the same sample in the window, which waits for this one.
    pub(super) follower: Option<Tick>,
}

/// Uses in order, found by tick and by sample.
///
/// `latest` maps a sample to its last use in the window, so that a second use nearby joins the
/// first instead of reading again. It is never iterated, so its order has no effect.
#[derive(Debug, Default)]
pub(super) struct UseWindow {
    base: u64,
    slots: VecDeque<UseSlot>,
    latest: KeyMap<Tick>,
}

impl UseWindow {
    /// An empty window whose first use will be `base`.
    pub(super) fn starting_at(base: Tick) -> Self {
        Self { base: base.0, ..Self::default() }
    }

    /// The tick of the next use to be pushed.
    pub(super) fn end(&self) -> Tick {
        Tick(self.base + self.slots.len() as u64)
    }

    pub(super) fn get(&self, tick: Tick) -> Option<&UseSlot> {
        self.slots.get(self.index(tick)?)
    }

    pub(super) fn get_mut(&mut self, tick: Tick) -> Option<&mut UseSlot> {
        let index = self.index(tick)?;
        self.slots.get_mut(index)
    }

    fn index(&self, tick: Tick) -> Option<usize> {
        tick.0.checked_sub(self.base).map(|index| index as usize)
    }

    /// Appends a use and returns the nearest earlier use of the same sample that is still in the
    /// window.
    pub(super) fn push(&mut self, key: SampleKey, bytes: u64, state: UseState) -> Option<Tick> {
        let tick = self.end();
        self.slots.push_back(UseSlot { key, bytes, charged: 0, state, kept: false, follower: None });
        self.latest.insert(key, tick)
    }

    /// Removes the first use.
    pub(super) fn pop(&mut self) -> Option<UseSlot> {
        let slot = self.slots.pop_front()?;
        let tick = Tick(self.base);
        self.base += 1;
        if self.latest.get(&slot.key) == Some(&tick) {
            self.latest.remove(&slot.key);
        }
        Some(slot)
    }
}

/// The element of the ascending `ticks` nearest to `tick`, the earlier of two equally near ones.
pub(super) fn nearest(ticks: &[Tick], tick: Tick) -> Option<Tick> {
    let after = ticks.partition_point(|other| *other < tick);
    let around = &ticks[after.saturating_sub(1)..ticks.len().min(after + 1)];
    around.iter().copied().min_by_key(|other| other.0.abs_diff(tick.0))
}
