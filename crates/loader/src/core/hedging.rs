//! Decides which samples of the front batch are hedged by a read of the origin.
//!
//! A hedge makes sense where the origin delivers a sample sooner than its owner. The rules, for a
//! trainer that has waited for `waited`:
//!
//! 1. An owner is slow when it delivers less than 1/[`SLOW_SHARE`] of its share of what the origin,
//!    or all owners together, deliver. Only slow owners are hedged.
//! 2. A sample is hedged when three conditions hold. `waited` exceeds the origin's time for it
//!    (twice its latency, and the bytes). Its owner will not deliver it by [`TOLERATED_WAIT`]. The
//!    origin will deliver it before its owner.
//! 3. Hedges in flight are bounded by what the origin delivers in [`MAX_HEDGED_TIME`]. One is
//!    always allowed.
//!
//! Owners deliver by due time, so the last uses of a batch are hedged first, and owner and origin
//! work from both ends. The price: an owner that resumes within a second costs a few hedges of that
//! batch.

use std::collections::BTreeMap;
use std::time::Duration;

use foreread_types::Tick;

use super::window::{HedgeState, UseState};
use super::{Core, CoreAction};
use crate::report::ReadSource;

/// An owner that delivers less than a quarter of its share is slow.
const SLOW_SHARE: f64 = 4.0;

/// Owners that deliver the batch within this many seconds of waiting are not hedged.
const TOLERATED_WAIT: f64 = 1.6;

/// All hedges in flight take the origin at most this many seconds, unless there is only one.
const MAX_HEDGED_TIME: f64 = 1.0;

/// The pace of reads of the origin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OriginPace {
    /// The time that a small read takes.
    pub latency: Duration,
    /// The bytes per second of all reads together. Positive.
    pub bytes_per_second: f64,
}

/// The state of one owner for the front batch.
#[derive(Clone, Debug, Default)]
struct OwnerProgress {
    /// Bytes delivered since the trainer began to wait.
    delivered: u64,
    /// Outstanding uses by due time, each with its bytes and whether it is hedged.
    owed: Vec<(Tick, u64, bool)>,
}

/// The uses to hedge now, if `open` bytes are hedged already.
fn uses_to_hedge(
    waited: Duration,
    origin: OriginPace,
    mut open: u64,
    owners: &BTreeMap<usize, OwnerProgress>,
) -> Vec<Tick> {
    let waited = waited.as_secs_f64().max(0.001);
    let latency = origin.latency.as_secs_f64();
    let seconds_of = |bytes: u64| bytes as f64 / origin.bytes_per_second;
    let all: u64 = owners.values().map(|owner| owner.delivered).sum();
    let share = (all as f64 / waited).max(origin.bytes_per_second) / owners.len().max(1) as f64;
    let mut chosen = Vec::new();
    for owner in owners.values() {
        let pace = owner.delivered as f64 / waited;
        if pace * SLOW_SHARE >= share {
            continue;
        }
        let mut left: u64 = owner.owed.iter().map(|(_, bytes, _)| bytes).sum();
        for &(tick, bytes, hedged) in owner.owed.iter().rev() {
            let by_owner = if pace > 0.0 { left as f64 / pace } else { f64::INFINITY };
            left -= bytes;
            let by_origin = latency + seconds_of(open + bytes);
            let is_due = waited >= 2.0 * latency + seconds_of(bytes) && waited + by_owner > TOLERATED_WAIT;
            let has_room = open == 0 || seconds_of(open + bytes) <= MAX_HEDGED_TIME;
            if !hedged && is_due && has_room && by_origin < by_owner {
                open += bytes;
                chosen.push(tick);
            }
        }
    }
    chosen
}

impl Core {
    /// Hedges outstanding samples of slow owners while the trainer waits for the front batch.
    pub(super) fn waited_long(
        &mut self,
        waited: Duration,
        origin: OriginPace,
        actions: &mut Vec<CoreAction>,
    ) {
        let Some(batch) = self.batches.front().filter(|_| self.handed == 0) else { return };
        let mut owners: BTreeMap<usize, OwnerProgress> = BTreeMap::new();
        for (&store, &delivered) in &self.delivered {
            owners.entry(store).or_default().delivered = delivered;
        }
        let mut open = 0;
        for tick in (batch.first.0..batch.first.0 + batch.ticks).map(Tick) {
            let Some(slot) = self.window.get(tick) else { continue };
            if let UseState::RequestingPeer { store, hedge } = slot.state {
                open += if hedge == HedgeState::Open { slot.bytes } else { 0 };
                owners.entry(store).or_default().owed.push((tick, slot.bytes, hedge != HedgeState::None));
            }
        }
        for tick in uses_to_hedge(waited, origin, open, &owners) {
            let Some(slot) = self.window.get_mut(tick) else { continue };
            let UseState::RequestingPeer { hedge, .. } = &mut slot.state else { continue };
            *hedge = HedgeState::Open;
            self.charged += slot.bytes;
            actions.push(CoreAction::Hedge { tick, key: slot.key });
            if let Some(batch) = self.batches.front_mut() {
                batch.counts.hedged += 1;
            }
        }
    }

    /// Ends a use whose server was silent, without another read.
    pub(super) fn given_up(&mut self, tick: Tick, actions: &mut Vec<CoreAction>) {
        match self.window.get(tick).map(|slot| slot.state) {
            Some(UseState::Reading | UseState::RequestingPeer { hedge: HedgeState::None, .. }) => {
                self.settle(tick, UseState::Failed, false, actions);
            }
            _ => self.failed(tick, false, actions),
        }
    }

    pub(super) fn hedge_arrived(&mut self, tick: Tick, actions: &mut Vec<CoreAction>) {
        let Some(slot) = self.window.get(tick) else { return };
        match slot.state {
            UseState::RequestingPeer { store, hedge: HedgeState::Open } => {
                actions.push(CoreAction::CancelPeerRequest { key: slot.key, store });
                self.settle(tick, UseState::Ready(ReadSource::Origin), false, actions);
            }
            // The owner failed, and the hedge became the use's own read.
            UseState::Reading => self.settle(tick, UseState::Ready(ReadSource::Origin), false, actions),
            _ => {}
        }
    }

    pub(super) fn hedge_failed(&mut self, tick: Tick, actions: &mut Vec<CoreAction>) {
        let Some(slot) = self.window.get_mut(tick) else { return };
        match &mut slot.state {
            UseState::RequestingPeer { hedge, .. } => *hedge = HedgeState::Failed,
            UseState::Reading => self.settle(tick, UseState::Failed, false, actions),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn origin(milliseconds: u64, megabytes: u64) -> OriginPace {
        let latency = Duration::from_millis(milliseconds);
        OriginPace { latency, bytes_per_second: (megabytes * MB) as f64 }
    }

    /// An owner that has delivered `delivered` bytes and owes `owed` samples of `bytes` bytes from
    /// tick `first`.
    fn owner(delivered: u64, first: u64, owed: u64, bytes: u64) -> OwnerProgress {
        OwnerProgress {
            delivered,
            owed: (first..first + owed).map(|tick| (Tick(tick), bytes, false)).collect(),
        }
    }

    fn after(
        milliseconds: u64,
        origin: OriginPace,
        owners: impl IntoIterator<Item = OwnerProgress>,
    ) -> Vec<u64> {
        let owners = (0..).zip(owners).collect();
        uses_to_hedge(Duration::from_millis(milliseconds), origin, 0, &owners)
            .iter()
            .map(|tick| tick.0)
            .collect()
    }

    /// 1 GB per batch from ranks at 3 Gb/s takes 2.7 s, and the origin delivers 100 MB/s.
    #[test]
    // semantics: RANK-18
    fn large_batches_at_full_link_speed_are_not_hedged() {
        for waited in [1000, 1600, 2600] {
            let delivered = 375_000 * waited;
            let left = (1000 * MB - delivered) / MB;
            assert_eq!(after(waited, origin(20, 100), [owner(delivered, 0, left, MB)]), [0; 0]);
            let fifteen = (0..15).map(|number| owner(delivered / 15, number * 100, left / 15, MB));
            assert_eq!(after(waited, origin(20, 100), fifteen), [0; 0]);
        }
    }

    #[test]
    // semantics: RANK-18
    fn silent_owner_among_fast_ones_is_hedged_alone() {
        let owners = [owner(300 * MB, 0, 100, MB), owner(0, 200, 20, MB)];
        let chosen = after(1000, origin(20, 100), owners);
        assert_eq!(chosen, (200..220).rev().collect::<Vec<_>>());
    }

    #[test]
    fn hedges_in_flight_are_one_second_of_the_origin() {
        assert_eq!(after(1000, origin(20, 100), [owner(0, 0, 1000, MB)]).len(), 100);
        // One is always allowed, when the origin would have delivered it by now.
        assert_eq!(after(3100, origin(20, 100), [owner(0, 0, 3, 300 * MB)]), [2]);
        assert_eq!(after(2900, origin(20, 100), [owner(0, 0, 3, 300 * MB)]), [0; 0]);
    }

    #[test]
    // semantics: RANK-18
    fn origin_as_slow_as_the_wait_is_not_used_for_hedges() {
        // The owner most likely reads from the same origin.
        assert_eq!(after(4900, origin(5000, 100), [owner(0, 0, 4, 1000)]), [0; 0]);
        assert_eq!(after(10_100, origin(5000, 100), [owner(0, 0, 4, 1000)]).len(), 4);
    }

    #[test]
    fn slow_link_is_not_hedged_for_what_arrives_soon() {
        // 1 MB/s: the first arrives in time, the others do not.
        let chosen = after(1000, origin(5, 100), [owner(MB, 0, 6, MB / 2)]);
        assert_eq!(chosen, [5, 4, 3, 2, 1]);
    }
}
