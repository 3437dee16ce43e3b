//! One dataset's files in one directory: segments, index and recovery.
//!
//! # Recovery
//!
//! The owner reads the index and checks the headers of the segments. Then it makes the files agree
//! with both. Entries without a whole record are dropped. Space without an entry is cut off or
//! punched out. Files without a live record are removed. Data is not read, so the time depends on
//! the number of samples and not on their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use foreread_tier::TierError;
use foreread_types::{DatasetIdentity, SampleId};
use rustix::io::Errno;

use super::aligned::Aligned;
use super::dead_space::whole_blocks;
use super::error::{from_errno, from_io, warn_lost};
use super::file::DirectFile;
use super::folder::Folder;
use super::format::{IndexEntry, SEGMENT_MAGIC, file_header};
use super::index::{self, IndexEntries, IndexFile, IndexWriter};
use super::layout::{self, INDEX, segment_name};
use super::owned_segment::OwnedSegment;
use super::place::{BLOCK, INDEX_SHARE, MAX_SEGMENTS, RecordPlace};
use super::quota::Quota;
use super::record_block::RecordBlock;
use super::table::PlaceTable;

/// The bytes of a segment without its records: its header, its last block where that is not full,
/// and the file system's block list.
pub(super) const SEGMENT_OVERHEAD: u64 = 24 << 10;

/// The error of a write beyond the capacity. A full file system returns `NOSPC`.
pub(super) const NO_ROOM: Errno = Errno::NOBUFS;

/// Dead bytes are recovered once they are more than this part of the live ones. Large samples never
/// come near it.
const EMPTIED_PART: u64 = 4;
const MIN_EMPTIED: u64 = 256 << 10;

/// The segments of one dataset in one directory, for reading.
#[derive(Debug)]
pub(super) struct DatasetDir {
    identity: DatasetIdentity,
    /// Whether another process writes here.
    followed: bool,
    /// The dataset's directory. `None` while another process has not created it.
    folder: RwLock<Option<Arc<Folder>>>,
    segments: RwLock<BTreeMap<u16, Arc<DirectFile>>>,
    /// Where the next record begins, modulo [`BLOCK`].
    written: AtomicU64,
    /// Bytes of records that are queued.
    queued: AtomicU64,
}

impl DatasetDir {
    /// A directory that this tier owns.
    pub(super) fn owned(identity: DatasetIdentity, folder: Folder) -> Self {
        let folder = RwLock::new(Some(Arc::new(folder)));
        Self {
            identity,
            followed: false,
            folder,
            segments: RwLock::default(),
            written: AtomicU64::new(0),
            queued: AtomicU64::new(0),
        }
    }

    /// A directory that another process writes. Its follower finds and sets the folder.
    pub(super) fn followed(identity: DatasetIdentity) -> Self {
        Self {
            identity,
            followed: true,
            folder: RwLock::default(),
            segments: RwLock::default(),
            written: AtomicU64::new(0),
            queued: AtomicU64::new(0),
        }
    }

    pub(super) fn identity(&self) -> DatasetIdentity {
        self.identity
    }

    /// The dataset's directory.
    ///
    /// # Errors
    /// [`Errno::NOENT`] while another process has not created it.
    pub(super) fn folder(&self) -> Result<Arc<Folder>, Errno> {
        let folder = self.folder.read().unwrap_or_else(PoisonError::into_inner);
        folder.as_ref().map(Arc::clone).ok_or(Errno::NOENT)
    }

    pub(super) fn set_folder(&self, folder: Option<Arc<Folder>>) {
        *self.folder.write().unwrap_or_else(PoisonError::into_inner) = folder;
    }

    /// The segment `number`. A reader opens segments that the owner has added.
    pub(super) fn segment(&self, number: u16) -> Result<Arc<DirectFile>, Errno> {
        if let Some(file) = self.segments.read().unwrap_or_else(PoisonError::into_inner).get(&number) {
            return Ok(Arc::clone(file));
        }
        // The owner has all of its segments open. A missing one was just removed. Opening its file
        // while it is unlinked would keep its blocks allocated.
        if !self.followed {
            return Err(Errno::NOENT);
        }
        let file = Arc::new(DirectFile::open(&*self.folder()?, &segment_name(number), false, false)?);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(segments.entry(number).or_insert(file)))
    }

    /// Closes files that were removed or replaced. An owner removes an emptied segment and reuses
    /// its number.
    pub(super) fn forget_replaced(&self) {
        let folder = self.folder();
        let is_there = |number, file: &DirectFile| {
            folder.as_ref().is_ok_and(|folder| file.is_at(folder, &segment_name(number)))
        };
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.retain(|&number, file| is_there(number, file));
    }

    /// The offset in a block of the device at which the next record will probably begin, after
    /// queued records. A wrong offset only costs a copy.
    pub(super) fn next_start(&self) -> usize {
        let queued = self.queued.load(Ordering::Acquire);
        (self.written.load(Ordering::Acquire).wrapping_add(queued) % BLOCK) as usize
    }

    /// Records of `bytes` bytes are queued.
    pub(super) fn queue(&self, bytes: u64) {
        self.queued.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Queued records of `bytes` bytes were written, or not.
    pub(super) fn unqueue(&self, bytes: u64) {
        self.queued.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Records of `bytes` bytes were written after the last ones.
    fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::AcqRel);
    }

    /// The next record begins a block.
    fn begins_block(&self) {
        self.written.fetch_and(!(BLOCK - 1), Ordering::AcqRel);
    }

    fn insert(&self, number: u16, file: Arc<DirectFile>) {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).insert(number, file);
    }

    fn forget(&self, number: u16) {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

/// The writing half of [`DatasetDir`]: its index and segments.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    folder: Arc<Folder>,
    index: IndexWriter,
    segments: BTreeMap<u16, OwnedSegment>,
    /// The segment that is appended to.
    active: Option<u16>,
    /// The bytes of its last block, which is not full. The next records are written with them.
    tail: Vec<u8>,
    /// The number of live records.
    live: u64,
    /// The number of segments whose overhead was not reserved from the start.
    extra: usize,
    /// Segments that cannot be emptied, such as those with damaged records.
    stuck: BTreeSet<u16>,
    /// Numbers of files that can neither be used nor removed. Their space is written off.
    unusable: Vec<u16>,
}

/// The limits of each dataset's files in a directory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentLimits {
    /// The length at which a segment is closed.
    pub(super) segment: u64,
    /// The number of segments whose overhead is reserved from the start.
    pub(super) segments: usize,
}

impl SegmentWriter {
    /// Recovers the records of `dir` and puts them into `table`, as far as the quota
    /// allows.
    pub(super) fn recover(
        dir: &DatasetDir,
        directory: u8,
        table: &PlaceTable,
        quota: &Quota,
        limits: SegmentLimits,
    ) -> Result<Self, TierError> {
        let folder = dir.folder().map_err(|errno| from_errno(errno, dir.identity))?;
        let path = folder.path_of(INDEX);
        let listed = match index::read(&folder, directory, dir.identity)
            .map_err(|error| from_io(&error, path.display()))?
        {
            IndexFile::Valid(listed) => listed,
            // Segments without an index are unused.
            other => {
                if matches!(other, IndexFile::Invalid) {
                    warn_lost(dir.identity, "what it held", "the index is damaged or of another version");
                }
                let left = layout::remove_files(&folder);
                for (left, errno) in left.map_err(|errno| from_errno(errno, folder.path().display()))? {
                    // A remaining segment is counted below. A remaining index blocks the new one.
                    if left == INDEX {
                        return Err(from_errno(errno, path.display()));
                    }
                }
                IndexEntries::default()
            }
        };
        if listed.damaged > 0 {
            warn_lost(dir.identity, format_args!("{} entries", listed.damaged), "the index is damaged");
        }
        let (mut segments, mut unusable) = open_segments(dir, &folder, quota)?;
        let mut found = listed.live();
        found.sort_unstable_by_key(|(_, place)| (place.segment, place.start));
        let mut missing = 0;
        let mut kept: BTreeMap<u16, Vec<RecordPlace>> = BTreeMap::new();
        let mut live = Vec::with_capacity(found.len());
        let total = found.len();
        for (id, place) in found {
            let before = kept.get(&place.segment).and_then(|places| places.last());
            let gap = before.map_or(BLOCK, |place| place.range().end)..place.offset();
            let file = segments.get(&place.segment);
            let whole = file.is_some_and(|segment| place.range().end <= segment.end) && gap.start <= gap.end;
            missing += u64::from(!whole);
            // The record may be of another dataset size, be present in another directory, or exceed
            // the quota.
            if whole && table.knows(id) && table.get(id).is_none() {
                let free = whole_blocks(&gap);
                let dead = gap.end - gap.start - (free.end - free.start);
                if quota.try_reserve(place.footprint() + dead) {
                    table.put(id, place);
                    kept.entry(place.segment).or_default().push(place);
                    live.push((id, place));
                }
            }
        }
        if missing > 0 {
            warn_lost(
                dir.identity,
                format_args!("{missing} samples"),
                "their segments are gone, cut off or damaged",
            );
        }
        // The index first: no entry may name space that is given up.
        let rewrite = live.len() < total || listed.length == 0 || listed.damaged > 0;
        let index = if rewrite || index::needs_rewrite(listed.length, live.len() as u64) {
            IndexWriter::rewrite(&folder, dir.identity, live.iter().copied())
        } else {
            IndexWriter::resume(&folder, dir.identity, listed.length)
        };
        let index = index.map_err(|error| from_io(&error, path.display()))?;
        segments.retain(|number, segment| match kept.get(number) {
            Some(places) => {
                segment.recover(places, quota);
                dir.insert(*number, Arc::clone(&segment.file));
                true
            }
            None => {
                if !remove_segment(&folder, *number, quota) {
                    unusable.push(*number);
                }
                false
            }
        });
        let extra = segments.len().saturating_sub(limits.segments);
        quota.write_off(extra as u64 * SEGMENT_OVERHEAD);
        let live = live.len() as u64;
        let (active, tail, stuck) = (None, Vec::new(), BTreeSet::new());
        let mut writer = Self { folder, index, segments, active, tail, live, extra, stuck, unusable };
        let is_open = |segment: &OwnedSegment| segment.end < limits.segment;
        let last = writer.segments.iter().rev().find(|(_, segment)| is_open(segment));
        if let Some((number, tail)) = last.and_then(|(number, last)| Some((*number, last.read_tail().ok()?)))
        {
            (writer.active, writer.tail) = (Some(number), tail);
        }
        dir.wrote(writer.tail.len() as u64);
        Ok(writer)
    }

    /// Writes the records of `block`, and returns the segment and the offset of the first one.
    ///
    /// On an error nothing of them is kept.
    pub(super) fn write(
        &mut self,
        dir: &DatasetDir,
        quota: &Quota,
        block: &mut RecordBlock,
        limits: SegmentLimits,
    ) -> Result<(u16, u64), Errno> {
        let length = block.length();
        let fits = |segment: &OwnedSegment| segment.end + length <= limits.segment;
        let number = match self.active.filter(|number| self.segments.get(number).is_some_and(fits)) {
            Some(number) => number,
            None => self.begin_if_allowed(dir, quota, limits)?,
        };
        let segment = self.segments.get_mut(&number).ok_or(Errno::IO)?;
        let (start, head) = (segment.end, self.tail.len() as u64);
        debug_assert_eq!(start % BLOCK, head);
        let (blocks, tail) = block.after(&self.tail);
        if let Err(errno) = segment.file.write(blocks.as_slice(), start - head) {
            segment.cut_off(start);
            return Err(errno);
        }
        segment.end = start + length;
        self.tail = tail;
        dir.wrote(length);
        Ok((number, start))
    }

    fn begin_if_allowed(
        &mut self,
        dir: &DatasetDir,
        quota: &Quota,
        limits: SegmentLimits,
    ) -> Result<u16, Errno> {
        // With many nearly empty segments, their overhead is charged like samples.
        let is_extra = self.segments.len() >= limits.segments;
        if is_extra && !quota.try_reserve(SEGMENT_OVERHEAD) {
            return Err(NO_ROOM);
        }
        let begun = self.begin(dir, quota);
        match begun {
            Ok(_) => self.extra += usize::from(is_extra),
            Err(_) if is_extra => quota.release(SEGMENT_OVERHEAD),
            Err(_) => {}
        }
        begun
    }

    /// Creates a segment and makes it the active one.
    fn begin(&mut self, dir: &DatasetDir, quota: &Quota) -> Result<u16, Errno> {
        let is_free = |number: &u16| !self.segments.contains_key(number) && !self.unusable.contains(number);
        let number = (0..MAX_SEGMENTS).find(is_free).ok_or(Errno::NOSPC)?;
        let name = segment_name(number);
        let file = Arc::new(DirectFile::open(&self.folder, &name, true, true)?);
        let mut header = Aligned::new(BLOCK as usize);
        header.extend(&file_header(SEGMENT_MAGIC, dir.identity, number, BLOCK as usize));
        if let Err(errno) = file.write(header.as_slice(), 0) {
            let _ = self.folder.remove(&*name); // frees its space
            return Err(errno);
        }
        dir.insert(number, Arc::clone(&file));
        self.segments.insert(number, OwnedSegment::new(file, BLOCK));
        let before = self.active.replace(number);
        self.tail.clear();
        dir.begins_block();
        // An empty segment was kept only while it was the active one.
        if let Some(before) = before.filter(|before| self.segments.get(before).is_some_and(|s| s.live == 0)) {
            self.remove(dir, quota, before);
        }
        Ok(number)
    }

    /// Undoes the last [`write`](Self::write), whose records begin at `start`.
    pub(super) fn truncate_to(&mut self, number: u16, start: u64) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.cut_off(start);
        }
        // Its last block may have been written over.
        self.close_segment(number);
    }

    /// Adds written records to the index.
    pub(super) fn list(
        &mut self,
        directory: u8,
        table: &PlaceTable,
        records: &[(SampleId, RecordPlace)],
    ) -> std::io::Result<()> {
        let live = self.live + records.len() as u64;
        self.compact_if_full(directory, table, records.len() as u64, live)?;
        self.index.append(records.iter().map(|&(id, place)| IndexEntry { id, place, dead: false }))?;
        self.live = live;
        for (_, place) in records {
            if let Some(segment) = self.segments.get_mut(&place.segment) {
                segment.live += 1;
                segment.live_bytes += place.bytes();
            }
        }
        Ok(())
    }

    fn compact_if_full(
        &mut self,
        directory: u8,
        table: &PlaceTable,
        entries: u64,
        live: u64,
    ) -> std::io::Result<()> {
        if self.index.is_full(entries, live) {
            self.index.compact(table.of(directory))?;
        }
        Ok(())
    }

    /// Lists records as dead and frees their space. On an error they stay listed. Reading or
    /// recovery then finds that they are invalid.
    pub(super) fn remove_records(
        &mut self,
        dir: &DatasetDir,
        directory: u8,
        table: &PlaceTable,
        quota: &Quota,
        records: &[(SampleId, RecordPlace)],
    ) -> std::io::Result<()> {
        let entries = records.iter().map(|&(id, place)| IndexEntry { id, place, dead: true });
        self.live = self.live.saturating_sub(records.len() as u64);
        // Before the space is freed, as the index needs a part of it.
        let listed =
            self.index.append(entries).and_then(|()| self.compact_if_full(directory, table, 0, self.live));
        for (_, place) in records {
            self.free(dir, quota, *place);
        }
        listed
    }

    /// Frees the space of a dead record, as far as no live one shares it.
    fn free(&mut self, dir: &DatasetDir, quota: &Quota, place: RecordPlace) {
        let Some(segment) = self.segments.get_mut(&place.segment) else {
            return quota.release(place.footprint());
        };
        quota.release(INDEX_SHARE);
        segment.live = segment.live.saturating_sub(1);
        segment.live_bytes = segment.live_bytes.saturating_sub(place.bytes());
        if segment.live > 0 {
            return segment.bury(place.range(), quota);
        }
        quota.release(place.bytes());
        if self.active != Some(place.segment) {
            return self.remove(dir, quota, place.segment);
        }
        quota.release(std::mem::take(&mut segment.dead).bytes());
        self.tail.clear();
        dir.begins_block();
        match segment.file.set_length(BLOCK) {
            Ok(()) => segment.end = BLOCK,
            Err(_) => {
                quota.write_off(segment.end - BLOCK);
                self.active = None;
            }
        }
    }

    /// The segment to empty, if dead bytes that share blocks with live ones take too much space.
    pub(super) fn to_empty(&self) -> Option<u16> {
        let dead: u64 = self.segments.values().map(|segment| segment.dead.bytes()).sum();
        let live: u64 = self.segments.values().map(|segment| segment.live_bytes).sum();
        let others = self.segments.iter().filter(|(number, _)| !self.stuck.contains(number));
        let worst = others.max_by_key(|(_, segment)| segment.dead.bytes());
        let worst = worst.filter(|(_, segment)| segment.dead.bytes() > 0);
        worst.filter(|_| dead > MIN_EMPTIED && dead > live / EMPTIED_PART).map(|(number, _)| *number)
    }

    /// From now on nothing is appended to `segment`.
    pub(super) fn close_segment(&mut self, segment: u16) {
        if self.active.take_if(|active| *active == segment).is_some() {
            self.tail.clear();
        }
    }

    /// From now on `segment` is not emptied.
    pub(super) fn give_up(&mut self, segment: u16) {
        self.stuck.insert(segment);
    }

    /// Frees the old places of records that were written again and listed, as far as they were not
    /// removed meanwhile.
    pub(super) fn free_moved(&mut self, dir: &DatasetDir, quota: &Quota, places: &[RecordPlace]) {
        self.live = self.live.saturating_sub(places.len() as u64);
        for place in places {
            self.free(dir, quota, *place);
        }
    }

    fn remove(&mut self, dir: &DatasetDir, quota: &Quota, number: u16) {
        dir.forget(number);
        if let Some(segment) = self.segments.remove(&number) {
            quota.release(segment.dead.bytes());
        }
        self.stuck.remove(&number);
        if let Some(extra) = self.extra.checked_sub(1) {
            self.extra = extra;
            quota.release(SEGMENT_OVERHEAD);
        }
        if !remove_segment(&self.folder, number, quota) {
            self.unusable.push(number);
        }
    }
}

/// Opens valid segments and removes the others. Also returns the numbers of those where neither is
/// possible.
fn open_segments(
    dir: &DatasetDir,
    folder: &Folder,
    quota: &Quota,
) -> Result<(BTreeMap<u16, OwnedSegment>, Vec<u16>), TierError> {
    let (mut segments, mut unusable) = (BTreeMap::new(), Vec::new());
    let found = layout::segments(folder).map_err(|errno| from_errno(errno, folder.path().display()))?;
    for number in found {
        let name = segment_name(number);
        let open = || -> Result<_, Errno> {
            let file = DirectFile::open(folder, &name, true, false)?;
            Ok((file.size()?.0, file))
        };
        match layout::is_segment(folder, dir.identity, number) {
            Ok(true) => match open() {
                Ok((length, file)) => {
                    segments.insert(number, OwnedSegment::new(Arc::new(file), length));
                    continue;
                }
                Err(errno) => warn_lost(dir.identity, &name, errno),
            },
            Ok(false) => {
                warn_lost(dir.identity, &name, "its header is damaged or of another version");
                if !remove_segment(folder, number, quota) {
                    unusable.push(number);
                }
                continue;
            }
            Err(error) => warn_lost(dir.identity, &name, error),
        }
        // It may be possible to open it later, so it stays. Its space is counted.
        quota.write_off(folder.allocated(&*name));
        unusable.push(number);
    }
    Ok((segments, unusable))
}

/// Removes a segment. `false` if it remains, and its space is then written off.
fn remove_segment(folder: &Folder, number: u16, quota: &Quota) -> bool {
    let name = segment_name(number);
    match folder.remove(&*name) {
        Ok(()) => true,
        Err(errno) => {
            quota.write_off(folder.allocated(&*name));
            tracing::warn!(%errno, segment = %folder.path_of(name).display(), "not removed");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read has looked up a record before its segment is removed. If the read opened the file
    /// again, the file would keep its blocks after it was unlinked.
    #[test]
    fn removed_segment_is_not_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let identity = DatasetIdentity(1);
        let dir = DatasetDir::owned(identity, Folder::for_test(directory.path()));
        let (quota, table) =
            (Quota::new(1 << 30, None), PlaceTable::new(10, Vec::new(), metrics::gauge!("none")));
        let limits = SegmentLimits { segment: 1 << 20, segments: 4 };
        let mut writer = SegmentWriter::recover(&dir, 0, &table, &quota, limits).unwrap();
        let mut block = RecordBlock::new(0, 0, Aligned::new(BLOCK as usize));
        let (number, _) = writer.write(&dir, &quota, &mut block, limits).unwrap();
        let file = dir.segment(number).unwrap();
        // Between the two halves of a removal.
        dir.forget(number);
        assert!(directory.path().join(segment_name(number)).exists());
        assert_eq!(dir.segment(number).unwrap_err(), Errno::NOENT);
        writer.remove(&dir, &quota, number);
        assert_eq!(Arc::strong_count(&file), 1, "nothing keeps the file open");
    }
}
