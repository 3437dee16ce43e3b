//! The list of what a dataset's segments hold: appended to after the data, read instead of the data.
//!
//! An entry of 32 bytes says that a record was written or is dead; the last word on a place counts. Entries are of one
//! size and carry a checksum of their own, so a torn tail is cut, and one that is damaged costs its own sample only.
//! A list with more dead entries than living ones is written anew and renamed into place.
//!
//! Not synced: a killed process loses nothing that was written, and what a power failure tears out of order is found
//! when it is read. Syncing would cost a device flush a block to save reads of the origin after a power failure.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use foreread_types::{DatasetIdentity, SampleId};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::folder::Folder;
use super::format::{
    ENTRY, Entry, INDEX_HEADER, INDEX_MAGIC, Place, file_header, is_right, push_entry, read_entry,
};
use super::layout::{INDEX, NEXT_INDEX};

/// Dead entries that are not worth a rewriting.
const SLACK: u64 = 1024;

/// The most entries that an index has beside `most` living ones before it is rewritten, and then some.
fn bound(most: u64) -> u64 {
    most.saturating_mul(2).saturating_add(SLACK)
}

/// The bytes that an index of at most `most` samples takes at most, while it is rewritten, too.
pub(super) fn room(most: u64) -> u64 {
    let entries = bound(most).saturating_add(most).saturating_add(SLACK);
    entries.saturating_mul(ENTRY as u64).saturating_add(2 * 8192)
}

/// What an index lists.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// In the order of their entries.
    pub(super) entries: Vec<Entry>,
    /// How many entries were damaged.
    pub(super) damaged: u64,
    /// How many entries of any kind there are up to the last whole one.
    pub(super) length: u64,
}

impl Listed {
    /// What is alive at the end.
    pub(super) fn living(&self) -> Vec<(SampleId, Place)> {
        let mut last: HashMap<SampleId, (usize, Place)> = HashMap::with_capacity(self.entries.len());
        for (at, entry) in self.entries.iter().enumerate() {
            if !entry.dead {
                last.insert(entry.id, (at, entry.place));
            } else if last.get(&entry.id).is_some_and(|(_, place)| *place == entry.place) {
                last.remove(&entry.id);
            }
        }
        let mut living: Vec<_> = last.into_iter().map(|(id, (at, place))| (at, id, place)).collect();
        living.sort_unstable_by_key(|(at, ..)| *at);
        living.into_iter().map(|(_, id, place)| (id, place)).collect()
    }
}

/// What is in an open index from its `from`-th entry on; `None` if it is no right one.
fn scan(
    file: &fs::File,
    directory: u8,
    identity: DatasetIdentity,
    from: u64,
) -> std::io::Result<Option<Listed>> {
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut header = Vec::with_capacity(INDEX_HEADER);
    let mut start = file;
    std::io::Seek::rewind(&mut start)?;
    start.take(INDEX_HEADER as u64).read_to_end(&mut header)?;
    if !is_right(&header, INDEX_MAGIC, identity, 0) {
        return Ok(None);
    }
    let mut listed = Listed { length: from, ..Listed::default() };
    let mut bytes = vec![0; ENTRY << 12];
    let mut position = from;
    let mut damaged = 0;
    loop {
        let mut filled = 0;
        let offset = INDEX_HEADER as u64 + position * ENTRY as u64;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        for entry in bytes[..filled].chunks_exact(ENTRY) {
            match read_entry(entry, directory, identity, position) {
                Some(entry) => {
                    listed.entries.push(entry);
                    listed.length = position + 1;
                    listed.damaged += std::mem::take(&mut damaged);
                }
                None => damaged += 1,
            }
            position += 1;
        }
        if filled < bytes.len() {
            return Ok(Some(listed));
        }
    }
}

/// What is found in an index's place.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    /// It is damaged, of another version or dataset, or no file.
    Wrong,
    Right(Listed),
}

/// Everything in the index of a dataset's cache.
pub(super) fn read(dataset: &Folder, directory: u8, identity: DatasetIdentity) -> std::io::Result<Found> {
    match dataset.open(INDEX, OFlags::RDONLY) {
        Ok(file) => Ok(scan(&file.into(), directory, identity, 0)?.map_or(Found::Wrong, Found::Right)),
        Err(Errno::NOENT) => Ok(Found::Nothing),
        Err(Errno::LOOP) => Ok(Found::Wrong), // a link
        Err(errno) => Err(errno.into()),
    }
}

/// An index as its owner has it: open at its end.
#[derive(Debug)]
pub(super) struct Index {
    dataset: Arc<Folder>,
    identity: DatasetIdentity,
    file: fs::File,
    entries: u64,
    /// The most entries that it may have.
    bound: u64,
}

impl Index {
    /// Goes on with the index of `dataset` after its first `entries`; what comes after them is cut off.
    pub(super) fn resume(
        dataset: &Arc<Folder>,
        identity: DatasetIdentity,
        entries: u64,
        most: u64,
    ) -> std::io::Result<Self> {
        let file = fs::File::from(dataset.open(INDEX, OFlags::RDWR)?);
        file.set_len(INDEX_HEADER as u64 + entries * ENTRY as u64)?;
        Ok(Self { dataset: Arc::clone(dataset), identity, file, entries, bound: bound(most) })
    }

    /// Writes an index of `living` in the place of the one of `dataset`.
    pub(super) fn rewrite(
        dataset: &Arc<Folder>,
        identity: DatasetIdentity,
        living: impl Iterator<Item = (SampleId, Place)>,
        most: u64,
    ) -> std::io::Result<Self> {
        let mut bytes = file_header(INDEX_MAGIC, identity, 0, INDEX_HEADER);
        let mut entries = 0;
        for (id, place) in living {
            push_entry(&mut bytes, Entry { id, place, dead: false }, identity, entries);
            entries += 1;
        }
        dataset.remove(NEXT_INDEX)?; // whatever has that name
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let written = dataset.open(NEXT_INDEX, new).map_err(Into::into).and_then(|file| {
            let file = fs::File::from(file);
            file.write_all_at(&bytes, 0)?;
            // Renamed before its bytes were on the disk, it could be empty after a power failure.
            file.sync_data()?;
            dataset.rename(NEXT_INDEX, INDEX)?;
            Ok(file)
        });
        match written {
            Ok(file) => {
                Ok(Self { dataset: Arc::clone(dataset), identity, file, entries, bound: bound(most) })
            }
            Err(error) => {
                let _ = dataset.remove(NEXT_INDEX); // gives its room back; it counts for nothing
                Err(error)
            }
        }
    }

    /// Whether so many entries more are too many, so that it is to be rewritten first.
    pub(super) fn is_full(&self, more: u64) -> bool {
        self.entries + more > self.bound
    }

    /// Replaces itself with an index of `living`.
    pub(super) fn compact(&mut self, living: impl Iterator<Item = (SampleId, Place)>) -> std::io::Result<()> {
        let next = Self::rewrite(&self.dataset, self.identity, living, 0)?;
        *self = Self { bound: self.bound, ..next };
        Ok(())
    }

    /// Appends entries: all of them or, on an error, none.
    pub(super) fn append(&mut self, entries: impl Iterator<Item = Entry>) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        let mut length = self.entries;
        for entry in entries {
            push_entry(&mut bytes, entry, self.identity, length);
            length += 1;
        }
        let end = INDEX_HEADER as u64 + self.entries * ENTRY as u64;
        match self.file.write_all_at(&bytes, end) {
            Ok(()) => {
                self.entries = length;
                Ok(())
            }
            Err(error) => {
                // What was written of them is written over by the next, or cut when it is opened again.
                let _ = self.file.set_len(end);
                Err(error)
            }
        }
    }
}

/// An index as a reader follows it while its owner appends to it.
#[derive(Debug)]
pub(super) struct Follower {
    identity: DatasetIdentity,
    directory: u8,
    open: Option<(fs::File, u64)>,
}

/// What a follower has found since it looked last.
#[derive(Debug)]
pub(super) struct News {
    /// The index was replaced: what was known before counts no longer.
    pub(super) afresh: bool,
    pub(super) entries: Vec<Entry>,
}

impl Follower {
    pub(super) fn new(identity: DatasetIdentity, directory: u8) -> Self {
        Self { identity, directory, open: None }
    }

    /// Forgets what it follows.
    pub(super) fn lose(&mut self) -> News {
        News { afresh: self.open.take().is_some(), entries: Vec::new() }
    }

    /// What is new in the index of `dataset`. One that is not there, or no right one, has no news.
    pub(super) fn look(&mut self, dataset: &Folder) -> std::io::Result<News> {
        let afresh = self.open.take_if(|(file, _)| !dataset.has_file(file, INDEX)).is_some();
        let none = News { afresh, entries: Vec::new() };
        if self.open.is_none() {
            self.open = match dataset.open(INDEX, OFlags::RDONLY) {
                Ok(file) => Some((file.into(), 0)),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(errno.into()),
            };
        }
        let Some((file, seen)) = &mut self.open else { return Ok(none) };
        let Some(listed) = scan(file, self.directory, self.identity, *seen)? else {
            self.open = None;
            return Ok(none);
        };
        *seen = listed.length;
        Ok(News { afresh, entries: listed.entries })
    }
}
