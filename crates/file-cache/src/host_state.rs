//! The state of the host: the files, their copies, and the room for them. All of it happens under
//! one lock, which programs never wait for.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use foreread_local::disk::SharedRoom;
use foreread_planner::{FileChoice, FileCopy};
use foreread_preload::layout::{GENERATIONS, Identity, OpenKind};
use serde::{Deserialize, Serialize};

mod asked;
pub(crate) use asked::MOST_ASKED;
mod room;
#[cfg(test)]
mod testing;

use asked::Awaited;
use room::Lack;

use crate::adoption::EarlierCopies;
use crate::copying::{copy_path, remove_copy};
use crate::listing::ListedFile;
use crate::original::Unfit;
use crate::table::{EarlierCopy, Table};
use crate::writes::WriteBudget;

/// Blocks of a disk. A copy takes whole ones.
const BLOCK: u64 = 4096;

/// How long nothing is copied to a full disk.
const FULL_PAUSE: Duration = Duration::from_secs(5);

/// The counts of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostCounts {
    /// The files of all datasets.
    pub files: u64,
    /// Files that have no place in the table, or whose changes have none.
    pub left_out: u64,
    /// The bytes that copies may take.
    pub capacity: u64,
    /// The bytes that copies take.
    pub held_bytes: u64,
    /// The number of copies.
    pub copies: u64,
    /// Copies that an earlier run has left.
    pub adopted: u64,
    /// Copies that were made, and their bytes.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Copies that left for others.
    pub evicted: u64,
    /// Files that were not copied for lack of a budget of writes, at least once.
    pub over_budget: u64,
    /// Files that found no room, at least once.
    pub no_room: u64,
    /// Copies that failed: a full disk, or an error.
    pub failed: u64,
    /// Files that no copy can stand for: with extended attributes or holes, in memory, and
    /// databases.
    pub unfit: u64,
    /// Epochs whose order was recognised.
    pub recognised: u64,
}

#[derive(Debug)]
struct HostFile {
    path: PathBuf,
    place: u32,
    is_link: bool,
    /// Whether the kernel keeps its pages over opens. If not, programs wait for its copy.
    keeps_pages: bool,
    /// Whether a program is reading the original, so that no copy is made next to it.
    is_left: bool,
    /// The bytes of its copy, while programs wait for it.
    awaited: u64,
    copy: Option<EarlierCopy>,
    /// Whether the copy is not published until the meaning of its path is known.
    is_doubted: bool,
    /// The bytes of a copy, as far as they are known.
    bytes: u64,
    /// Whether it was counted as a file without room, and as one over the budget of writes.
    is_counted: [bool; 2],
}

/// Work of a host with a file, which may wait for a file server.
#[derive(Debug)]
pub(crate) enum HostWork {
    Copy(CopyJob),
    Check(CopyCheck),
}

/// A copy whose path may mean another file by now.
#[derive(Debug)]
pub(crate) struct CopyCheck {
    pub(crate) path: PathBuf,
    number: u32,
    /// The renames of directories that had begun.
    renames: u64,
}

/// A file that is to be copied.
#[derive(Debug)]
pub(crate) struct CopyJob {
    pub(crate) copy: FileCopy,
    pub(crate) path: PathBuf,
    pub(crate) hash: u64,
    pub(crate) generation: u32,
    /// The renames of directories that had begun.
    renames: u64,
    /// Whether it is made because a program waits for it.
    is_asked: bool,
    /// The bytes that were copied, to which this copy adds its own.
    pub(crate) done: Arc<AtomicU64>,
}

#[derive(Debug)]
pub(crate) struct HostState {
    pub(crate) table: Table,
    /// Whether all files of the first datasets are known.
    pub(crate) is_listed: bool,
    pub(crate) earlier: EarlierCopies,
    /// Copies that are to be checked, by their files' numbers.
    doubts: VecDeque<u32>,
    copies: PathBuf,
    files: Vec<HostFile>,
    by_hash: HashMap<u64, u32>,
    pub(crate) choice: FileChoice,
    room: SharedRoom,
    /// `None`: writes wear nothing out.
    writes: Option<Arc<dyn WriteBudget>>,
    generation: u32,
    /// The first number of this host.
    first_generation: u32,
    /// The bytes of copies that are being made.
    reserved: u64,
    ahead_from: Instant,
    any_from: Instant,
    awaited: Awaited,
    /// From when on programs ask for copies again.
    asks_from: Instant,
    /// The fewest bytes that the budget of writes did not have, and the time of the next try.
    lacking: Option<(u64, Instant)>,
    /// Copies that no program finds any more, and that were in use, by their hashes. They take
    /// their room until no process has them.
    leaving: VecDeque<(u64, EarlierCopy)>,
    pub(crate) counts: HostCounts,
}

/// The bytes that a copy takes.
pub(crate) fn footprint(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

impl HostState {
    /// Copies below `copies` take room, earlier ones included.
    pub(crate) fn new(
        table: Table,
        copies: PathBuf,
        room: SharedRoom,
        earlier: EarlierCopies,
        writes: Option<Arc<dyn WriteBudget>>,
    ) -> Self {
        let now = Instant::now();
        room.set_files(earlier.held());
        // Numbers of copies are never used again, also by later hosts.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let generation = since.as_millis() as u32 % GENERATIONS;
        let (files, by_hash, choice, counts) = Default::default();
        Self {
            table,
            is_listed: false,
            earlier,
            doubts: VecDeque::new(),
            copies,
            files,
            by_hash,
            choice,
            room,
            writes,
            generation,
            first_generation: generation,
            reserved: 0,
            ahead_from: now,
            any_from: now,
            awaited: Awaited::new(now),
            asks_from: now,
            lacking: None,
            leaving: VecDeque::new(),
            counts,
        }
    }

    /// The host's counts, and its present room.
    pub(crate) fn counts(&self) -> HostCounts {
        HostCounts { capacity: self.room.for_files(), held_bytes: self.room.files(), ..self.counts }
    }

    /// Adds a file. Returns its number if it is new.
    pub(crate) fn add(&mut self, file: ListedFile) -> Option<u32> {
        if let Some(known) = self.by_hash.get(&file.hash) {
            let known = &self.files[*known as usize];
            if known.path != file.path {
                // Two paths with one hash: neither is served.
                self.table.mark(known.place);
                self.counts.left_out += 1;
            }
            return None;
        }
        let Some(place) = self.table.insert(file.hash, file.is_link) else {
            self.counts.left_out += 1;
            return None;
        };
        let number = self.files.len() as u32;
        self.by_hash.insert(file.hash, number);
        self.choice.add(number);
        self.files.push(HostFile {
            path: file.path,
            place,
            is_link: file.is_link,
            keeps_pages: file.keeps_pages,
            is_left: false,
            awaited: 0,
            copy: None,
            is_doubted: false,
            bytes: BLOCK,
            is_counted: [false; 2],
        });
        self.counts.files += 1;
        self.let_ask(number);
        Some(number)
    }

    /// Publishes a copy that was there before, and is right. `false` if that is not possible.
    pub(crate) fn adopt(&mut self, number: u32, copy: EarlierCopy) -> bool {
        let file = &mut self.files[number as usize];
        // Its room was counted with that of all earlier copies.
        let has_room = self.room.files() <= self.room.for_files();
        let is_free = !self.table.is_marked(file.place);
        if !(has_room && is_free && self.table.publish(file.place, &copy, file.is_link)) {
            return false;
        }
        file.copy = Some(copy);
        self.choice.has(number);
        self.counts.adopted += 1;
        self.counts.copies += 1;
        true
    }

    /// Removes a copy that was there before, and that no file has.
    pub(crate) fn discard(&mut self, hash: u64, copy: &EarlierCopy) {
        self.table.forget(hash, copy.generation);
        self.leave(hash, copy);
    }

    /// All files of the first datasets are known. Copies of others stay while there is room.
    pub(crate) fn all_are_listed(&mut self) {
        self.earlier.drop_unchecked();
        self.table.forget_earlier(|hash, generation| self.earlier.has(hash, generation));
        let published = self.files.iter().filter_map(|file| file.copy);
        let published: u64 = published.map(|copy| footprint(copy.identity.size)).sum();
        self.room.set_files(published + self.reserved + self.earlier.held());
        self.is_listed = true;
        self.shrink();
    }

    /// Whether a copy is published, or may be soon.
    pub(crate) fn is_known(&self, hash: u64, generation: u32) -> bool {
        if (self.first_generation..=self.generation).contains(&generation)
            || self.earlier.has(hash, generation)
        {
            return true;
        }
        let file = self.by_hash.get(&hash).map(|number| &self.files[*number as usize]);
        file.and_then(|file| file.copy).is_some_and(|copy| copy.generation == generation)
    }

    /// The paths of all files, by their numbers.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }

    /// Notes a record of a program.
    pub(crate) fn record(&mut self, hash: u64, kind: OpenKind) {
        let Some(&number) = self.by_hash.get(&hash) else { return };
        match kind {
            OpenKind::Absent => {
                if self.files[number as usize].is_doubted {
                    self.doubts.push_back(number);
                }
                self.choice.opened(number);
                self.let_ask(number);
            }
            // The result of the open follows.
            OpenKind::Asked => self.asked(number),
            OpenKind::Served | OpenKind::Link => self.choice.opened(number),
            OpenKind::Writing | OpenKind::Changed => {
                self.remove(number);
                self.choice.refuse(number);
            }
            OpenKind::Failed => {
                if self.is_gone(number) {
                    self.remove(number);
                }
                self.choice.opened(number);
            }
            OpenKind::Renamed | OpenKind::Unknown | OpenKind::Refused | OpenKind::Elsewhere => {}
        }
    }

    /// Removes the copy of a file, which may be in use.
    fn remove(&mut self, number: u32) {
        let file = &mut self.files[number as usize];
        let Some(copy) = file.copy.take() else { return };
        self.table.withdraw(file.place);
        let hash = self.hash_of(number);
        self.leave(hash, &copy);
        self.choice.lost(number);
        self.let_ask(number);
        self.counts.copies -= 1;
    }

    /// Whether a copy is not where the table says. A program's own failure is none of the copy's.
    fn is_gone(&self, number: u32) -> bool {
        let copy = self.files[number as usize].copy;
        copy.is_some_and(|copy| {
            std::fs::metadata(copy_path(&self.copies, self.hash_of(number), copy.generation)).is_err()
        })
    }

    fn hash_of(&self, number: u32) -> u64 {
        self.table.hash_at(self.files[number as usize].place)
    }

    /// Publishes no copy until its file is opened again: any path may mean something else by now.
    /// To look at all of them would take minutes on a file server.
    pub(crate) fn doubt_all(&mut self) {
        for file in self.files.iter_mut().filter(|file| file.copy.is_some()) {
            self.table.doubt(file.place);
            file.is_doubted = true;
        }
    }

    /// Publishes the copy of a file again if its path means `now` the file that it was made of.
    /// Otherwise, it is removed.
    pub(crate) fn checked(&mut self, check: &CopyCheck, now: Option<Identity>) {
        let number = check.number;
        if self.table.renames()[0] != check.renames {
            // A directory was renamed meanwhile.
            self.doubts.push_back(number);
            return;
        }
        let file = &mut self.files[number as usize];
        let Some(copy) = file.copy.filter(|_| std::mem::take(&mut file.is_doubted)) else { return };
        let is_its = now.is_some_and(|now| now.has_content_of(&copy.identity));
        let is_free = !self.table.is_marked(file.place);
        if !(is_its && is_free && self.table.publish(file.place, &copy, file.is_link)) {
            self.remove(number);
        }
    }

    /// The copies of files below a directory, to be compared with their originals.
    pub(crate) fn copies_below(&self, directory: &Path) -> Vec<CopyCheck> {
        let renames = self.table.renames()[0];
        let files = self.files.iter().zip(0..);
        let copies = files.filter(|(file, _)| file.copy.is_some() && file.path.starts_with(directory));
        copies.map(|(file, number)| CopyCheck { path: file.path.clone(), number, renames }).collect()
    }

    /// Removes a copy if its path does not mean `now` the file that the copy was made of.
    pub(crate) fn compared(&mut self, check: &CopyCheck, now: Option<Identity>) {
        let copy = self.files[check.number as usize].copy;
        let is_its = copy.is_none_or(|copy| now.is_some_and(|now| now.has_content_of(&copy.identity)));
        if !is_its {
            self.remove(check.number);
        }
    }

    /// The next file to look at.
    pub(crate) fn next(&mut self) -> Option<HostWork> {
        if let Some(job) = self.next_asked() {
            return Some(HostWork::Copy(job));
        }
        if let Some(number) = self.doubts.pop_front() {
            let path = self.files[number as usize].path.clone();
            return Some(HostWork::Check(CopyCheck { path, number, renames: self.table.renames()[0] }));
        }
        self.next_copy().map(HostWork::Copy)
    }

    /// The next file to copy.
    fn next_copy(&mut self) -> Option<CopyJob> {
        let now = Instant::now();
        if now < self.any_from {
            return None;
        }
        loop {
            let copy = self.choice.next_copy()?;
            if copy.is_ahead && now < self.ahead_from {
                self.choice.wait(copy.file);
                return None;
            }
            if copy.is_ahead && !self.may_copy_ahead(copy.file) {
                self.wait_ahead(copy.file);
                return None;
            }
            let file = &mut self.files[copy.file as usize];
            if self.table.is_marked(file.place) {
                self.choice.refuse(copy.file);
                continue;
            }
            if !copy.is_ahead && std::mem::take(&mut file.is_left) {
                // The program reads it. Its next open waits for the copy.
                self.choice.copied(copy.file, false);
                continue;
            }
            // Before the original is opened: without room or budget, that would be in vain.
            let bytes = file.bytes;
            let lack = match copy.is_ahead {
                false if !self.fits(bytes) => Some(Lack::Room),
                _ if !self.has_budget(now) => Some(Lack::Budget),
                _ => None,
            };
            if let Some(lack) = lack {
                self.give_up(copy, lack);
                if copy.is_ahead {
                    return None;
                }
                continue;
            }
            if copy.is_ahead {
                self.is_coming(copy.file);
            }
            return Some(self.job(copy, false));
        }
    }

    /// The job to copy a file.
    fn job(&mut self, copy: FileCopy, is_asked: bool) -> CopyJob {
        self.awaited.begins();
        self.generation = (self.generation + 1) % GENERATIONS;
        let path = self.files[copy.file as usize].path.clone();
        let (hash, renames) = (self.hash_of(copy.file), self.table.renames()[0]);
        let done = Arc::clone(&self.awaited.done);
        CopyJob { copy, path, hash, generation: self.generation, renames, is_asked, done }
    }

    /// A copy is whole.
    pub(crate) fn copied(&mut self, job: &CopyJob, copy: EarlierCopy) {
        self.reserved -= footprint(copy.identity.size);
        let is_doubted = self.table.renames()[0] != job.renames;
        let file = &mut self.files[job.copy.file as usize];
        self.counts.copied += 1;
        self.counts.copied_bytes += copy.identity.size;
        // A directory was renamed meanwhile: the path may mean something else.
        let is_published = is_doubted || self.table.publish(file.place, &copy, file.is_link);
        if is_published && !self.table.is_marked(file.place) && !self.table.is_changed(&copy.identity) {
            (file.copy, file.is_doubted) = (Some(copy), is_doubted);
            self.counts.copies += 1;
            self.choice.copied(job.copy.file, true);
        } else {
            // No program has it, or is about to write to the original.
            self.table.withdraw(file.place);
            remove_copy(&self.copies, job.hash, job.generation);
            self.room.give_back(footprint(copy.identity.size));
            self.choice.refuse(job.copy.file);
        }
    }

    /// A file has no copy, for this reason.
    pub(crate) fn is_unfit(&mut self, job: &CopyJob, why: Unfit) {
        match why {
            // It is tried again at its next open.
            Unfit::Fresh | Unfit::Changed => self.choice.copied(job.copy.file, false),
            Unfit::Kind | Unfit::Written => self.choice.refuse(job.copy.file),
            Unfit::Unwatched => {
                self.counts.left_out += 1;
                self.choice.refuse(job.copy.file);
            }
            Unfit::Attributes | Unfit::Holes | Unfit::Names | Unfit::Memory | Unfit::Database => {
                self.counts.unfit += 1;
                self.choice.refuse(job.copy.file);
            }
        }
    }

    /// A copy failed. A full disk gets no others for some time.
    pub(crate) fn failed(&mut self, job: &CopyJob, is_full: bool) {
        self.counts.failed += 1;
        self.choice.copied(job.copy.file, false);
        if is_full {
            self.any_from = Instant::now() + FULL_PAUSE;
        }
    }

    /// The paths of the copies below a directory.
    pub(crate) fn copies_path(&self) -> &Path {
        &self.copies
    }
}
