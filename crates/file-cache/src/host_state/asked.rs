//! Copies that programs wait for, because the kernel keeps no pages of their files over opens: a
//! copy next to a program would read the storage a second time.
//!
//! In each epoch, a program may ask once for the copy of a file. The answer comes at once: the copy
//! is coming, or the program reads the original. Then it is not copied next to the program. A later
//! epoch copies it ahead. The same holds for large files, whose first byte would come too late.

use std::time::Instant;

use foreread_planner::FileCopy;
use foreread_preload::layout::CopyWait;

use super::HostState;
use super::room::Lack;

/// The longest file that a program waits for, in bytes.
const MOST_AWAITED: u64 = 64 << 20;

impl HostState {
    /// Lets programs ask for the copy of a file.
    pub(super) fn let_ask(&mut self, number: u32) {
        let file = &self.files[number as usize];
        let is_idle = self.table.wait(file.place) == CopyWait::No;
        if !file.keeps_pages && is_idle && !self.takes_too_long(number) {
            self.table.set_wait(file.place, CopyWait::Ask);
        }
    }

    /// Lets programs ask for all copies that are not there, once in each epoch.
    pub(super) fn let_all_ask(&mut self) {
        let epoch = self.choice.epoch();
        if std::mem::replace(&mut self.asked_epoch, epoch) == epoch {
            return;
        }
        for number in 0..self.files.len() as u32 {
            if self.files[number as usize].copy.is_none() {
                self.let_ask(number);
            }
        }
    }

    /// Whether a program should not wait for the copy of a file.
    pub(super) fn takes_too_long(&self, number: u32) -> bool {
        let file = &self.files[number as usize];
        !file.keeps_pages && file.bytes > MOST_AWAITED
    }

    /// A program waits for the copy of a file: it is coming, or the original is to be opened.
    pub(super) fn asked(&mut self, number: u32) {
        let (place, bytes) = (self.files[number as usize].place, self.files[number as usize].bytes);
        if self.table.wait(place) != CopyWait::Ask {
            return;
        }
        let now = Instant::now();
        let copy = FileCopy { file: number, is_ahead: false };
        let lack = match () {
            () if !self.fits(bytes) => Some(Lack::Room),
            () if !self.has_budget(now) => Some(Lack::Budget),
            () => None,
        };
        if self.table.is_marked(place) || now < self.any_from || !self.choice.begin(number) {
            self.table.set_wait(place, CopyWait::No);
        } else if let Some(lack) = lack {
            self.give_up(copy, lack);
            self.table.set_wait(place, CopyWait::No);
        } else {
            self.table.set_wait(place, CopyWait::Coming);
            self.asked.push_back(number);
        }
    }

    /// A file is being copied, so a program that opens it now waits for the copy.
    pub(super) fn is_coming(&mut self, number: u32) {
        let file = &self.files[number as usize];
        if !file.keeps_pages && !self.takes_too_long(number) {
            self.table.set_wait(file.place, CopyWait::Coming);
        }
    }

    /// A file is not being copied any more: it has a copy, or its original is to be opened.
    pub(crate) fn answer(&mut self, number: u32) {
        self.table.set_wait(self.files[number as usize].place, CopyWait::No);
    }

    /// Tells programs that this host is alive, and whether they may ask for copies.
    pub(crate) fn is_alive(&mut self) {
        let now = Instant::now();
        self.table.is_alive(now >= self.asks_from && now >= self.any_from);
    }
}

#[cfg(test)]
mod tests;
