//! The list of what a dataset's segments hold: appended to after the data, read instead of the data.
//!
//! An entry of 32 bytes says that a record was written or is dead; the last word on a place counts. Entries are of one
//! size and carry a checksum of their own, so a torn tail is cut, and one that is damaged costs its own sample only.
//! A list with more dead entries than live ones is written anew and renamed into place.
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
    ENTRY, INDEX_HEADER, INDEX_MAGIC, IndexEntry, RecordPlace, file_header, is_valid_header, push_entry,
    read_entry,
};
use super::layout::{INDEX, NEXT_INDEX};

/// Dead entries that are not worth a rewriting.
const COMPACTION_SLACK: u64 = 1024;

/// The most entries that an index has beside `most` live ones before it is rewritten, and then some.
fn max_entries(most: u64) -> u64 {
    most.saturating_mul(2).saturating_add(COMPACTION_SLACK)
}

/// The bytes that an index of at most `most` samples takes at most, while it is rewritten, too.
pub(super) fn max_bytes(most: u64) -> u64 {
    let entries = max_entries(most).saturating_add(most).saturating_add(COMPACTION_SLACK);
    entries.saturating_mul(ENTRY as u64).saturating_add(2 * 8192)
}

/// What an index lists.
#[derive(Debug, Default)]
pub(super) struct IndexEntries {
    /// In the order of their entries.
    pub(super) entries: Vec<IndexEntry>,
    /// How many entries were damaged.
    pub(super) damaged: u64,
    /// How many entries of any kind there are up to the last whole one.
    pub(super) length: u64,
}

impl IndexEntries {
    /// What is alive at the end.
    pub(super) fn live(&self) -> Vec<(SampleId, RecordPlace)> {
        let mut last: HashMap<SampleId, (usize, RecordPlace)> = HashMap::with_capacity(self.entries.len());
        for (at, entry) in self.entries.iter().enumerate() {
            if !entry.dead {
                last.insert(entry.id, (at, entry.place));
            } else if last.get(&entry.id).is_some_and(|(_, place)| *place == entry.place) {
                last.remove(&entry.id);
            }
        }
        let mut live: Vec<_> = last.into_iter().map(|(id, (at, place))| (at, id, place)).collect();
        live.sort_unstable_by_key(|(at, ..)| *at);
        live.into_iter().map(|(_, id, place)| (id, place)).collect()
    }
}

/// What is in an open index from its `from`-th entry on; `None` if it is no right one.
fn scan(
    file: &fs::File,
    directory: u8,
    identity: DatasetIdentity,
    from: u64,
) -> std::io::Result<Option<IndexEntries>> {
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut header = Vec::with_capacity(INDEX_HEADER);
    let mut start = file;
    std::io::Seek::rewind(&mut start)?;
    start.take(INDEX_HEADER as u64).read_to_end(&mut header)?;
    if !is_valid_header(&header, INDEX_MAGIC, identity, 0) {
        return Ok(None);
    }
    let mut listed = IndexEntries { length: from, ..IndexEntries::default() };
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
pub(super) enum IndexFile {
    Missing,
    /// It is damaged, of another version or dataset, or no file.
    Invalid,
    Valid(IndexEntries),
}

/// Everything in the index of a dataset's cache.
pub(super) fn read(dataset: &Folder, directory: u8, identity: DatasetIdentity) -> std::io::Result<IndexFile> {
    match dataset.open(INDEX, OFlags::RDONLY) {
        Ok(file) => {
            Ok(scan(&file.into(), directory, identity, 0)?.map_or(IndexFile::Invalid, IndexFile::Valid))
        }
        Err(Errno::NOENT) => Ok(IndexFile::Missing),
        Err(Errno::LOOP) => Ok(IndexFile::Invalid), // a link
        Err(errno) => Err(errno.into()),
    }
}

/// An index as its owner has it: open at its end.
#[derive(Debug)]
pub(super) struct IndexWriter {
    dataset: Arc<Folder>,
    identity: DatasetIdentity,
    file: fs::File,
    entries: u64,
    /// The most entries that it may have.
    max_entries: u64,
}

impl IndexWriter {
    /// Goes on with the index of `dataset` after its first `entries`; what comes after them is cut off.
    pub(super) fn resume(
        dataset: &Arc<Folder>,
        identity: DatasetIdentity,
        entries: u64,
        most: u64,
    ) -> std::io::Result<Self> {
        let file = fs::File::from(dataset.open(INDEX, OFlags::RDWR)?);
        file.set_len(INDEX_HEADER as u64 + entries * ENTRY as u64)?;
        Ok(Self { dataset: Arc::clone(dataset), identity, file, entries, max_entries: max_entries(most) })
    }

    /// Writes an index of `live` in the place of the one of `dataset`.
    pub(super) fn rewrite(
        dataset: &Arc<Folder>,
        identity: DatasetIdentity,
        live: impl Iterator<Item = (SampleId, RecordPlace)>,
        most: u64,
    ) -> std::io::Result<Self> {
        let mut bytes = file_header(INDEX_MAGIC, identity, 0, INDEX_HEADER);
        let mut entries = 0;
        for (id, place) in live {
            push_entry(&mut bytes, IndexEntry { id, place, dead: false }, identity, entries);
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
            Ok(file) => Ok(Self {
                dataset: Arc::clone(dataset),
                identity,
                file,
                entries,
                max_entries: max_entries(most),
            }),
            Err(error) => {
                let _ = dataset.remove(NEXT_INDEX); // gives its max_bytes back; it counts for nothing
                Err(error)
            }
        }
    }

    /// Whether so many entries more are too many, so that it is to be rewritten first.
    pub(super) fn is_full(&self, more: u64) -> bool {
        self.entries + more > self.max_entries
    }

    /// Replaces itself with an index of `live`.
    pub(super) fn compact(
        &mut self,
        live: impl Iterator<Item = (SampleId, RecordPlace)>,
    ) -> std::io::Result<()> {
        let next = Self::rewrite(&self.dataset, self.identity, live, 0)?;
        *self = Self { max_entries: self.max_entries, ..next };
        Ok(())
    }

    /// Appends entries: all of them or, on an error, none.
    pub(super) fn append(&mut self, entries: impl Iterator<Item = IndexEntry>) -> std::io::Result<()> {
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
pub(super) struct IndexFollower {
    identity: DatasetIdentity,
    directory: u8,
    open: Option<(fs::File, u64)>,
}

/// What a follower has found since it looked last.
#[derive(Debug)]
pub(super) struct IndexUpdate {
    /// The index was replaced: what was known before counts no longer.
    pub(super) replaced: bool,
    pub(super) entries: Vec<IndexEntry>,
}

impl IndexFollower {
    pub(super) fn new(identity: DatasetIdentity, directory: u8) -> Self {
        Self { identity, directory, open: None }
    }

    /// Forgets what it follows.
    pub(super) fn close(&mut self) -> IndexUpdate {
        IndexUpdate { replaced: self.open.take().is_some(), entries: Vec::new() }
    }

    /// What is new in the index of `dataset`. One that is not there, or no right one, has no news.
    pub(super) fn poll(&mut self, dataset: &Folder) -> std::io::Result<IndexUpdate> {
        let replaced = self.open.take_if(|(file, _)| !dataset.has_file(file, INDEX)).is_some();
        let none = IndexUpdate { replaced, entries: Vec::new() };
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
        Ok(IndexUpdate { replaced, entries: listed.entries })
    }
}
