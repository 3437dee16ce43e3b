//! Copies that programs wait for, because the kernel keeps no pages of their files over opens: a
//! copy next to a program would read the storage a second time.
//!
//! A program asks for the copy of a file that it opens. The answer comes at once: the copy is
//! coming, or the program reads the original. How long it may take is estimated by the speed of the
//! copies so far. Where many programs ask at once, some read originals: these files are copied at
//! their next open, or ahead of it. A file that takes too long by itself is copied next to the
//! program, as elsewhere: it is read twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foreread_planner::FileCopy;
use foreread_preload::layout::CopyWait;

use super::room::Lack;
use super::{CopyJob, HostState};

/// The most copies at once that programs wait for.
pub(crate) const MOST_ASKED: usize = 64;

/// A program should wait for no longer than this, by the speed so far.
const MOST_WAIT: Duration = Duration::from_secs(5);

/// Bytes that programs wait for while the speed is not known, and at least, however slow copies
/// are: few of them say little about the speed of many.
const FIRST_BYTES: u64 = 64 << 20;
const LEAST_BYTES: u64 = 16 << 20;

/// The shortest time that says something about the speed.
const SHORTEST: Duration = Duration::from_millis(100);

/// The copies that programs wait for, and the speed of all copies.
#[derive(Debug)]
pub(super) struct Awaited {
    queue: VecDeque<u32>,
    /// The copies that are being made, and their bytes.
    asked: usize,
    bytes: u64,
    /// All copies that are being made.
    jobs: usize,
    /// Since when there are some without a break, and the bytes that were copied since, also of
    /// copies that are not whole.
    begun: Instant,
    pub(super) done: Arc<AtomicU64>,
    /// The speed before.
    bytes_per_second: Option<f64>,
}

impl Awaited {
    pub(super) fn new(now: Instant) -> Self {
        let (queue, asked, bytes, jobs, done) = Default::default();
        Self { queue, asked, bytes, jobs, begun: now, done, bytes_per_second: None }
    }

    /// A copy begins.
    pub(super) fn begins(&mut self) {
        if self.jobs == 0 {
            self.begun = Instant::now();
            self.done.store(0, Ordering::Relaxed);
        }
        self.jobs += 1;
    }

    /// A copy ends.
    fn ends(&mut self) {
        self.bytes_per_second = self.speed();
        self.jobs -= 1;
    }

    /// The speed of all copies together, in bytes per second.
    fn speed(&self) -> Option<f64> {
        let (done, time) = (self.done.load(Ordering::Relaxed), self.begun.elapsed());
        match self.jobs > 0 && done > 0 && time >= SHORTEST {
            true => Some(done as f64 / time.as_secs_f64()),
            false => self.bytes_per_second,
        }
    }

    /// Whether programs may wait for so many bytes more.
    fn has_room(&self, bytes: u64) -> bool {
        let most = self.most();
        bytes <= most.saturating_sub(self.bytes) || self.bytes == 0 && bytes <= most
    }

    /// The bytes that programs may wait for.
    fn most(&self) -> u64 {
        match self.speed() {
            Some(speed) => LEAST_BYTES.max((speed * MOST_WAIT.as_secs_f64()) as u64),
            None => FIRST_BYTES,
        }
    }
}

impl HostState {
    /// Lets the next program that opens a file wait for its copy.
    pub(crate) fn let_ask(&mut self, number: u32) {
        let is_refused = self.choice.is_refused(number);
        let file = &self.files[number as usize];
        let has_none = file.copy.is_none() && !is_refused;
        if !file.keeps_pages && has_none && self.table.wait(file.place) == CopyWait::No {
            self.table.set_wait(file.place, CopyWait::Ask);
        }
    }

    /// A program waits for the copy of a file: it is coming, or the original is to be opened.
    pub(super) fn asked(&mut self, number: u32) {
        let (place, bytes) = (self.files[number as usize].place, self.files[number as usize].bytes);
        if self.table.wait(place) != CopyWait::Ask {
            return;
        }
        let now = Instant::now();
        let lack = match () {
            () if !self.fits(bytes) => Some(Lack::Room),
            () if !self.has_budget(now) => Some(Lack::Budget),
            () => None,
        };
        let is_full = self.asked_jobs()[1] >= MOST_ASKED;
        if is_full || self.table.is_marked(place) || now < self.any_from || !self.choice.begin(number) {
            self.files[number as usize].is_left = true;
            self.table.set_wait(place, CopyWait::No);
        } else if let Some(lack) = lack {
            self.give_up(FileCopy { file: number, is_ahead: false }, lack);
            self.table.set_wait(place, CopyWait::No);
        } else {
            self.table.set_wait(place, CopyWait::Coming);
            self.awaited.queue.push_back(number);
        }
    }

    /// The next copy that a program waits for.
    pub(crate) fn next_asked(&mut self) -> Option<CopyJob> {
        let file = self.awaited.queue.pop_front()?;
        self.awaited.asked += 1;
        Some(self.job(FileCopy { file, is_ahead: false }, true))
    }

    /// How many copies that programs wait for have not begun, and have not ended.
    pub(crate) fn asked_jobs(&self) -> [usize; 2] {
        let waiting = self.awaited.queue.len();
        [waiting, waiting + self.awaited.asked]
    }

    /// Whether a file may be copied ahead now: programs that open it meanwhile can wait for it, so
    /// it is read once, or it takes too long in any case.
    pub(super) fn may_copy_ahead(&self, number: u32) -> bool {
        let file = &self.files[number as usize];
        file.keeps_pages || file.bytes > self.awaited.most() || self.awaited.has_room(file.bytes)
    }

    /// A file is being copied ahead, so a program that opens it now waits for the copy.
    pub(super) fn is_coming(&mut self, number: u32) {
        let file = &self.files[number as usize];
        if !file.keeps_pages && file.bytes <= self.awaited.most() {
            self.table.set_wait(file.place, CopyWait::Coming);
        }
    }

    /// Decides whether programs wait for the copy of a file, whose `size` is known now. `false` if
    /// it is not made now.
    pub(super) fn is_awaited(&mut self, job: &CopyJob, size: u64) -> bool {
        let number = job.copy.file;
        let place = self.files[number as usize].place;
        if self.table.wait(place) != CopyWait::Coming {
            return true;
        }
        if self.awaited.has_room(size) {
            self.awaited.bytes += size;
            self.files[number as usize].awaited = size;
            return true;
        }
        self.table.set_wait(place, CopyWait::No);
        if size > self.awaited.most() {
            return true;
        }
        // Programs read it meanwhile.
        self.files[number as usize].is_left = true;
        match job.copy.is_ahead {
            true => self.wait_ahead(number),
            false => self.choice.copied(number, false),
        }
        false
    }

    /// A file is not being copied any more: it has a copy, or its original is to be opened.
    pub(crate) fn answer(&mut self, job: &CopyJob) {
        let file = &mut self.files[job.copy.file as usize];
        self.awaited.bytes -= std::mem::take(&mut file.awaited);
        self.awaited.ends();
        self.awaited.asked -= usize::from(job.is_asked);
        if self.table.wait(file.place) == CopyWait::Coming {
            self.table.set_wait(file.place, CopyWait::No);
        }
    }

    /// Tells programs that this host is alive, and whether they may ask for copies.
    pub(crate) fn note_alive(&mut self) {
        let now = Instant::now();
        self.table.note_alive(now >= self.asks_from && now >= self.any_from);
    }
}

#[cfg(test)]
mod tests;
