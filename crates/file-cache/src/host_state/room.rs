//! The room of copies and the budget of writes: the files that are copied, and the copies that
//! leave.
//!
//! A copy that no program finds any more may still be open in one. It takes its room until no
//! process has it, so the disk never has more than it was given.

use std::time::{Duration, Instant};

use foreread_planner::FileCopy;

use super::{CopyJob, HostState, footprint};
use crate::copying::copy_path;
use crate::eviction::remove_unused;
use crate::table::EarlierCopy;

/// Copies that are looked at for the room of one.
const MOST_VICTIMS: usize = 64;

/// How long nothing is copied after the budget of writes was empty.
const BUDGET_PAUSE: Duration = Duration::from_secs(1);

/// How long programs do not ask for copies after one found no room or no budget.
const ASK_PAUSE: Duration = Duration::from_secs(1);

/// How long no file is copied ahead after one found no room on the disk, or among the bytes that
/// programs wait for.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a file has no copy for now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lack {
    Room,
    Budget,
}

impl HostState {
    /// Removes a copy that no program finds any more, or postpones that if a program has it open.
    pub(super) fn leave(&mut self, hash: u64, copy: &EarlierCopy) {
        if !self.remove_file(hash, copy) {
            self.leaving.push_back((hash, *copy));
        }
    }

    /// Removes a copy's file and gives its room back. `false` if a process has it open.
    fn remove_file(&self, hash: u64, copy: &EarlierCopy) -> bool {
        let is_gone = remove_unused(&copy_path(&self.copies, hash, copy.generation));
        if is_gone {
            self.room.give_back(footprint(copy.identity.size));
        }
        is_gone
    }

    /// Removes copies that were in use, as far as they are not any more.
    fn remove_leaving(&mut self) {
        for _ in 0..self.leaving.len().min(MOST_VICTIMS) {
            let Some((hash, copy)) = self.leaving.pop_front() else { return };
            self.leave(hash, &copy);
        }
    }

    /// Takes `bytes`, for which copies of files that no run has listed may leave. `false` if there
    /// is no room.
    fn take_room(&mut self, bytes: u64) -> bool {
        if !self.room.try_take(bytes) {
            self.remove_leaving();
        } else {
            return true;
        }
        while !self.room.try_take(bytes) {
            if !self.remove_unlisted() {
                return false;
            }
        }
        true
    }

    /// Removes copies of files that no run has listed, until all fit.
    pub(super) fn shrink(&mut self) {
        while self.room.files() > self.room.for_files() && self.remove_unlisted() {}
    }

    /// Removes a copy of a file that no run has listed. `false` if there is none.
    fn remove_unlisted(&mut self) -> bool {
        if !self.is_listed {
            return false;
        }
        let Some((hash, copy)) = self.earlier.take_any() else { return false };
        // A program that outlives its run may have it. The next host looks at it again.
        if self.remove_file(hash, &copy) {
            self.table.forget(hash, copy.generation);
        }
        true
    }

    /// Whether a copy next to the program finds room: those of this run's files leave for files
    /// that are copied ahead only.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        let fixed = self.room.files().saturating_sub(self.earlier.held());
        fixed.saturating_add(bytes) <= self.room.for_files()
    }

    /// Whether the budget of writes has the bytes that it lacked last.
    pub(super) fn has_budget(&mut self, now: Instant) -> bool {
        let (Some((bytes, from)), Some(writes)) = (self.lacking, &self.writes) else { return true };
        if now < from {
            return false;
        }
        if !writes.take(bytes) {
            self.lacking = Some((bytes, now + BUDGET_PAUSE));
            return false;
        }
        writes.give_back(bytes);
        self.lacking = None;
        true
    }

    /// Makes room for a copy of a file of `size` bytes. `false` if there is none: the job is over.
    pub(crate) fn reserve(&mut self, job: &CopyJob, size: u64) -> bool {
        let bytes = footprint(size);
        self.files[job.copy.file as usize].bytes = bytes;
        if !self.is_awaited(job, size) {
            return false;
        }
        if bytes > self.room.capacity() {
            self.count(job.copy.file, Lack::Room);
            self.choice.refuse(job.copy.file);
            return false;
        }
        if !job.copy.is_ahead && !self.fits(bytes) {
            self.give_up(job.copy, Lack::Room);
            return false;
        }
        if self.writes.as_ref().is_some_and(|writes| !writes.take(bytes)) {
            let least = self.lacking.map_or(bytes, |(least, _)| least.min(bytes));
            self.lacking = Some((least, Instant::now() + BUDGET_PAUSE));
            self.give_up(job.copy, Lack::Budget);
            return false;
        }
        if !(self.take_room(bytes) || job.copy.is_ahead && self.make_room(bytes)) {
            self.give_back_writes(bytes);
            self.give_up(job.copy, Lack::Room);
            return false;
        }
        self.reserved += bytes;
        true
    }

    fn give_back_writes(&self, bytes: u64) {
        if let Some(writes) = &self.writes {
            writes.give_back(bytes);
        }
    }

    /// Counts a file without a copy, once for each reason.
    fn count(&mut self, number: u32, lack: Lack) {
        let is_counted = &mut self.files[number as usize].is_counted[lack as usize];
        let count = u64::from(!std::mem::replace(is_counted, true));
        match lack {
            Lack::Room => self.counts.no_room += count,
            Lack::Budget => self.counts.over_budget += count,
        }
    }

    /// Makes no copy for now.
    pub(super) fn give_up(&mut self, copy: FileCopy, lack: Lack) {
        if copy.is_ahead {
            self.wait_ahead(copy.file);
        } else {
            self.choice.copied(copy.file, false);
            self.asks_from = Instant::now() + ASK_PAUSE;
        }
        if !copy.is_ahead || matches!(lack, Lack::Budget) {
            self.count(copy.file, lack);
        }
    }

    /// A file is copied ahead later, and no other one before it.
    pub(super) fn wait_ahead(&mut self, number: u32) {
        self.choice.wait(number);
        self.ahead_from = Instant::now() + PAUSE;
    }

    /// Takes `bytes`, for which used copies leave.
    fn make_room(&mut self, bytes: u64) -> bool {
        for _ in 0..MOST_VICTIMS {
            let Some(victim) = self.choice.victim() else { return false };
            self.evict(victim);
            if self.room.try_take(bytes) {
                return true;
            }
        }
        false
    }

    /// Removes a copy unless it is in use.
    fn evict(&mut self, number: u32) {
        let (hash, at) = (self.hash_of(number), number as usize);
        let Some(copy) = self.files[at].copy.take() else { return };
        // No program finds it from now on.
        self.table.withdraw(self.files[at].place);
        if self.remove_file(hash, &copy) {
            self.counts.copies -= 1;
            self.counts.evicted += 1;
            return self.let_ask(number);
        }
        let file = &mut self.files[at];
        let stays = if file.is_doubted {
            // It waits for its next open. A later host may take it.
            self.table.remember(hash, &copy);
            true
        } else {
            self.table.publish(file.place, &copy, file.is_link)
        };
        file.copy = stays.then_some(copy);
        self.choice.is_busy(number);
    }

    /// A copy of `size` bytes was not made, although it had room.
    pub(crate) fn release(&mut self, size: u64) {
        let bytes = footprint(size);
        self.reserved -= bytes;
        self.room.give_back(bytes);
        self.give_back_writes(bytes);
    }
}

#[cfg(test)]
mod tests;
