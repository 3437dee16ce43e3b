//! The index of a dataset's segments. It is appended to after the data, and read instead of the
//! data.
//!
//! An entry of 20 bytes records that a record was written or is dead. The last entry for a location
//! counts. Entries have a fixed size and their own checksum. So a torn tail is cut off, and a
//! damaged entry costs only its own sample. An index with a dead entry for every eight live ones is
//! rewritten and renamed into place. So its bytes are at most `INDEX_SHARE` per live record.
//!
//! Nothing is synced. A killed process loses nothing that was written. Records that a power failure
//! has torn are detected when they are read. Syncing would cost a device flush per block, to save
//! reads from the origin after a power failure.

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
    ENTRY, INDEX_HEADER, INDEX_MAGIC, IndexEntry, file_header, is_valid_header, push_entry, read_entry,
};
use super::layout::{INDEX, NEXT_INDEX};
use super::place::RecordPlace;

/// Dead entries that do not justify a rewrite.
const COMPACTION_SLACK: u64 = 1024;

/// Whether an index of `entries` entries, of which `live` count, has to be rewritten.
pub(super) fn needs_rewrite(entries: u64, live: u64) -> bool {
    entries > live + live / 8 + COMPACTION_SLACK
}

/// The bytes of an index beyond the shares of its records: the slack, twice while it is rewritten,
/// and the file system's rounding.
pub(super) const INDEX_OVERHEAD: u64 = 2 * (COMPACTION_SLACK * ENTRY as u64 + 8192);

/// The entries of an index.
#[derive(Debug, Default)]
pub(super) struct IndexEntries {
    /// In file order.
    pub(super) entries: Vec<IndexEntry>,
    /// The number of damaged entries.
    pub(super) damaged: u64,
    /// The number of entries up to the last valid one, damaged ones included.
    pub(super) length: u64,
}

impl IndexEntries {
    /// The records that are live at the end.
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

/// The entries of an open index from entry `from` on. `None` if its header is invalid.
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

/// The state of an index file.
#[derive(Debug)]
pub(super) enum IndexFile {
    Missing,
    /// Damaged, of another version or dataset, or not a file.
    Invalid,
    Valid(IndexEntries),
}

/// Reads the whole index of a dataset's cache.
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

/// An index that its owner appends to.
#[derive(Debug)]
pub(super) struct IndexWriter {
    dataset: Arc<Folder>,
    identity: DatasetIdentity,
    file: fs::File,
    entries: u64,
}

impl IndexWriter {
    /// Opens the index of `dataset` and cuts it off after `entries`.
    pub(super) fn resume(
        dataset: &Arc<Folder>,
        identity: DatasetIdentity,
        entries: u64,
    ) -> std::io::Result<Self> {
        let file = fs::File::from(dataset.open(INDEX, OFlags::RDWR)?);
        file.set_len(INDEX_HEADER as u64 + entries * ENTRY as u64)?;
        Ok(Self { dataset: Arc::clone(dataset), identity, file, entries })
    }

    /// Replaces the index of `dataset` by one with `live` records.
    pub(super) fn rewrite(
        dataset: &Arc<Folder>,
        identity: DatasetIdentity,
        live: impl Iterator<Item = (SampleId, RecordPlace)>,
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
            // If it were renamed before its bytes were on the disk, it could be empty after a power
            // failure.
            file.sync_data()?;
            dataset.rename(NEXT_INDEX, INDEX)?;
            Ok(file)
        });
        match written {
            Ok(file) => Ok(Self { dataset: Arc::clone(dataset), identity, file, entries }),
            Err(error) => {
                let _ = dataset.remove(NEXT_INDEX); // frees its space
                Err(error)
            }
        }
    }

    /// Whether `more` entries, after which `live` records are live, require a rewrite first.
    pub(super) fn is_full(&self, more: u64, live: u64) -> bool {
        needs_rewrite(self.entries + more, live)
    }

    /// Replaces itself by an index of `live` records.
    pub(super) fn compact(
        &mut self,
        live: impl Iterator<Item = (SampleId, RecordPlace)>,
    ) -> std::io::Result<()> {
        *self = Self::rewrite(&self.dataset, self.identity, live)?;
        Ok(())
    }

    /// Appends all entries, or none on an error.
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
                // The next append overwrites partial entries, or opening cuts them off.
                let _ = self.file.set_len(end);
                Err(error)
            }
        }
    }
}

/// A reader of an index that another process appends to.
#[derive(Debug)]
pub(super) struct IndexFollower {
    identity: DatasetIdentity,
    directory: u8,
    open: Option<(fs::File, u64)>,
}

/// Changes since the last poll.
#[derive(Debug)]
pub(super) struct IndexUpdate {
    /// The index was replaced: earlier entries are void.
    pub(super) replaced: bool,
    pub(super) entries: Vec<IndexEntry>,
}

impl IndexFollower {
    pub(super) fn new(identity: DatasetIdentity, directory: u8) -> Self {
        Self { identity, directory, open: None }
    }

    /// Stops following the file.
    pub(super) fn close(&mut self) -> IndexUpdate {
        IndexUpdate { replaced: self.open.take().is_some(), entries: Vec::new() }
    }

    /// Returns the new entries of the index of `dataset`. A missing or invalid index has none.
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
