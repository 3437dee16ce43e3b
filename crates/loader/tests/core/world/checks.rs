//! The invariants after every step of a run and at its end.

use foreread_loader::core::CoreEvent;
use foreread_planner::{LowerBound, Retention, Scope};
use proptest::{prop_assert, prop_assert_eq};

use super::{Checked, RunEnd, World};

impl World<'_> {
    /// The invariants after every step.
    pub(super) fn check(&self) -> Checked {
        let (staging, unreported) = (self.accounting.staging.get(), self.accounting.unreported.get());
        prop_assert_eq!(self.core.charged(), staging + unreported + self.finding, "counted and outstanding");
        let bound = self.scenario.look_ahead.max(self.model.largest(1 + self.scenario.hold));
        prop_assert!(staging <= bound, "{staging} bytes of staging memory, {bound} at most");
        for (room, cache) in self.accounting.room.iter().zip(&self.scenario.caches) {
            prop_assert!(room.get() <= cache.capacity, "{} bytes of {}", room.get(), cache.capacity);
        }
        Ok(())
    }

    /// The bounds on reads of the origin by a whole run.
    pub(super) fn check_origin(&self) -> Checked {
        let faults = self.scenario.faults;
        let cut = faults.undealt.is_some_and(|pass| self.run.pass(pass).is_some());
        if faults.bad > 0 || cut {
            return Ok(());
        }
        let read: u64 = self.read.iter().map(|(&key, times)| self.scenario.bytes(key) * times).sum();
        let capacity: u64 = self.scenario.caches.iter().map(|cache| cache.capacity).sum();
        let staging = self.scenario.look_ahead.max(self.model.largest(1 + self.scenario.hold));
        let floor =
            LowerBound::of(&self.run, &self.scenario.sizes(), capacity + staging, Scope::Rank).unwrap();
        let floor = floor.bytes.saturating_sub(self.warm);
        prop_assert!(read >= floor, "{read} bytes from the origin, and the floor is {floor}");
        if self.plan.retention() != Retention::Keep || !faults.spare_the_caches() {
            return Ok(());
        }
        let most = self.model.origin_bytes(self.scenario, |key| self.place(key).is_some());
        prop_assert_eq!(most, self.plan.origin_bytes(), "the plan's prediction");
        prop_assert!(read <= most, "{read} bytes from the origin, {most} planned");
        for key in self.model.uses.iter().filter(|&&key| self.place(key).is_some()) {
            prop_assert_eq!(self.read.get(key), Some(&1), "reads of {}", key);
        }
        Ok(())
    }

    /// Drops everything. Then nothing may be charged.
    pub(super) fn drop_everything(&mut self) -> Checked {
        self.queue.clear();
        self.trainer.clear();
        self.requests.clear();
        self.held.clear();
        let bytes = self.accounting.unreported.take();
        self.pass(CoreEvent::Released { bytes })?;
        prop_assert_eq!((self.accounting.staging.get(), self.core.charged()), (0, self.finding));
        prop_assert!(self.end != Some(RunEnd::Complete) || self.finding == 0, "lookups after the end");
        self.stores.clear();
        prop_assert!(self.accounting.room.iter().all(|room| room.get() == 0));
        Ok(())
    }
}
