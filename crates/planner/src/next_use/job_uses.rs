//! The uses that one job still has: its orders, its position and its pace.

use crate::next_use::epoch_uses::EpochUses;
use crate::next_use::pace::Pace;

/// A use is near if it is less than this part of an epoch ahead, as its inverse.
const NEAR_PER_EPOCH: u32 = 8;

/// One job. With several ranks on a node it is still one job, with positions in its global order.
#[derive(Clone, Debug)]
pub(crate) struct JobUses {
    pub(crate) dataset: usize,
    current: EpochUses,
    following: Option<EpochUses>,
    /// The position of the next use.
    position: u32,
    pace: Pace,
}

impl JobUses {
    pub(crate) fn new(
        dataset: usize,
        current: EpochUses,
        following: Option<EpochUses>,
        position: u32,
        pace: Pace,
    ) -> Self {
        Self { dataset, current, following, position, pace }
    }

    /// Begins the epoch that follows, whose own successor is `following`. Without a known order,
    /// the job has no uses in it.
    pub(crate) fn begin_epoch(&mut self, following: Option<EpochUses>) {
        match std::mem::replace(&mut self.following, following) {
            Some(next) => (self.current, self.position) = (next, 0),
            None => self.position = self.current.length(),
        }
    }

    /// Sets the epoch after the present one.
    pub(crate) fn follow(&mut self, following: EpochUses) {
        self.following = Some(following);
    }

    /// Counts a use at a position. Uses out of order change nothing but the sample's own table.
    ///
    /// A sample that is announced for another position is used early: workers may be further ahead
    /// than the look-ahead, and do not know their positions. The job is then where it is announced,
    /// unless that is far away.
    pub(crate) fn used(&mut self, position: u32, sample: u32, now: u64) {
        let announced = match self.current.position(sample, position) == Some(position) {
            true => Some(position),
            false => self.current.position(sample, self.position),
        };
        let Some(announced) = announced else { return };
        let (after, near) = (announced.saturating_add(1), self.current.length() / NEAR_PER_EPOCH);
        let is_near = announced == position || announced <= self.position.saturating_add(near);
        if after > self.position && is_near {
            self.pace.advance(u64::from(after - self.position), now);
            self.position = after;
        }
        self.current.pass(sample, after);
    }

    /// Whether the job uses each sample once per epoch, as far as its orders are known: of the
    /// dataset, or of the `own` samples that no other node keeps.
    pub(crate) fn uses_permutations(&self, own: u64) -> bool {
        let are_all = |epoch: &EpochUses| epoch.is_permutation(own);
        are_all(&self.current) && self.following.as_ref().is_none_or(are_all)
    }

    /// Whether the job will use a sample again, as far as its orders are known.
    pub(crate) fn has_use(&self, sample: u32) -> bool {
        self.distance(sample).is_some()
    }

    /// The predicted time of the next use of a sample.
    pub(crate) fn next_use(&self, sample: u32, now: u64) -> Option<u64> {
        let ns = (self.distance(sample)? + 1) as f64 * self.pace.ns_per_sample(now);
        Some(now.saturating_add(ns as u64))
    }

    /// The samples that the job uses before it uses this one.
    fn distance(&self, sample: u32) -> Option<u64> {
        let following = || {
            let rest = self.current.length().saturating_sub(self.position);
            self.following.as_ref()?.position(sample, 0).map(|at| u64::from(rest) + u64::from(at))
        };
        let current = self.current.position(sample, self.position);
        current.map(|at| u64::from(at - self.position)).or_else(following)
    }

    /// Nanoseconds per sample, at the present pace.
    pub(crate) fn ns_per_sample(&self, now: u64) -> f64 {
        self.pace.ns_per_sample(now)
    }

    /// Nanoseconds of an epoch at the present pace.
    pub(crate) fn epoch_ns(&self, now: u64) -> f64 {
        f64::from(self.current.length()) * self.pace.ns_per_sample(now)
    }
}
