//! One dataset in one directory: its segments, and how they are found again.
//!
//! # Recovery
//!
//! The owner reads the index, checks the headers of the segments, and then makes the files agree with what it found,
//! whatever had happened to them: entries without a whole record below them are dropped, what no entry claims is cut
//! off or punched out, files without a living record are removed. Data is not read, so the time depends on the number
//! of samples and not on their bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use foreread_tier::TierError;
use foreread_types::{DatasetIdentity, SampleId};
use rustix::io::Errno;

use super::aligned::Aligned;
use super::error::{from_errno, from_io, lost};
use super::file::DirectFile;
use super::folder::Folder;
use super::format::{BLOCK, Entry, MAX_SEGMENTS, MAX_START, Place, SEGMENT_MAGIC, file_header};
use super::index::{self, Found, Index, Listed};
use super::layout::{self, INDEX, segment_name};
use super::room::Room;
use super::table::Table;

/// What a segment takes beside its records at most, in bytes: its header and the file system's own list of its blocks.
pub(super) const SEGMENT: u64 = 24 << 10;

/// The error of a write for which there is no room left within the capacity; the file system's is `NOSPC`.
pub(super) const NO_ROOM: Errno = Errno::NOBUFS;

/// What file systems allocate beside a file's data, in bytes; less than this is not worth punching.
const TRIFLE: u64 = 64 << 10;

/// The segments of one dataset in one directory, as readers see them.
#[derive(Debug)]
pub(super) struct Shelf {
    identity: DatasetIdentity,
    /// Whether another process writes here.
    followed: bool,
    /// The dataset's directory; none while another process has not made it.
    folder: RwLock<Option<Arc<Folder>>>,
    segments: RwLock<BTreeMap<u16, Arc<DirectFile>>>,
}

impl Shelf {
    /// One that this tier owns.
    pub(super) fn owned(identity: DatasetIdentity, folder: Folder) -> Self {
        let folder = RwLock::new(Some(Arc::new(folder)));
        Self { identity, followed: false, folder, segments: RwLock::default() }
    }

    /// One that another process writes, and whose directory is found by whoever follows it.
    pub(super) fn followed(identity: DatasetIdentity) -> Self {
        Self { identity, followed: true, folder: RwLock::default(), segments: RwLock::default() }
    }

    pub(super) fn identity(&self) -> DatasetIdentity {
        self.identity
    }

    /// The dataset's directory.
    ///
    /// # Errors
    /// [`Errno::NOENT`] while another process has not made it.
    pub(super) fn folder(&self) -> Result<Arc<Folder>, Errno> {
        let folder = self.folder.read().unwrap_or_else(PoisonError::into_inner);
        folder.as_ref().map(Arc::clone).ok_or(Errno::NOENT)
    }

    pub(super) fn set_folder(&self, folder: Option<Arc<Folder>>) {
        *self.folder.write().unwrap_or_else(PoisonError::into_inner) = folder;
    }

    /// The segment `number`; a reader opens those that the owner has begun since.
    pub(super) fn segment(&self, number: u16) -> Result<Arc<DirectFile>, Errno> {
        if let Some(file) = self.segments.read().unwrap_or_else(PoisonError::into_inner).get(&number) {
            return Ok(Arc::clone(file));
        }
        // The owner has all of its segments open. One that is missing has just been removed, and opening its file while
        // it is unlinked would keep its blocks allocated.
        if !self.followed {
            return Err(Errno::NOENT);
        }
        let file = Arc::new(DirectFile::open(&*self.folder()?, &segment_name(number), false, false)?);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(segments.entry(number).or_insert(file)))
    }

    /// Forgets open files whose names mean others, or nothing, by now: an owner that has emptied a segment removes its
    /// file and uses its number again.
    pub(super) fn forget_replaced(&self) {
        let folder = self.folder();
        let is_there = |number, file: &DirectFile| {
            folder.as_ref().is_ok_and(|folder| file.is_at(folder, &segment_name(number)))
        };
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.retain(|&number, file| is_there(number, file));
    }

    fn insert(&self, number: u16, file: Arc<DirectFile>) {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).insert(number, file);
    }

    fn forget(&self, number: u16) {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

/// A segment as its owner sees it.
#[derive(Debug)]
struct Segment {
    file: Arc<DirectFile>,
    /// Where the next record goes.
    end: u64,
    living: u64,
}

/// The same dataset in the same directory as its owner sees it: what is written to.
#[derive(Debug)]
pub(super) struct Ledger {
    folder: Arc<Folder>,
    index: Index,
    segments: BTreeMap<u16, Segment>,
    /// The one that is appended to.
    active: Option<u16>,
    /// Numbers of what can be neither used nor removed. Its room is counted as wasted.
    unusable: Vec<u16>,
}

/// What one shelf may become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The length at which a segment is closed.
    pub(super) segment: u64,
    /// The most samples that there can be.
    pub(super) samples: u64,
    /// How many segments have their headers counted from the start.
    pub(super) segments: usize,
}

impl Ledger {
    /// Finds again what `shelf` holds and puts it into `table`, as far as there is room.
    pub(super) fn recover(
        shelf: &Shelf,
        directory: u8,
        table: &Table,
        room: &Room,
        bounds: Bounds,
    ) -> Result<Self, TierError> {
        let folder = shelf.folder().map_err(|errno| from_errno(errno, shelf.identity))?;
        let path = folder.path_of(INDEX);
        let listed = match index::read(&folder, directory, shelf.identity)
            .map_err(|error| from_io(&error, path.display()))?
        {
            Found::Right(listed) => listed,
            // Segments without an index are of no use.
            other => {
                if matches!(other, Found::Wrong) {
                    lost(shelf.identity, "what it held", "the index is damaged or of another version");
                }
                let left = layout::remove_files(&folder);
                for (left, errno) in left.map_err(|errno| from_errno(errno, folder.path().display()))? {
                    // A segment that stays is counted below; an index that does leaves no place for ours.
                    if left == INDEX {
                        return Err(from_errno(errno, path.display()));
                    }
                }
                Listed::default()
            }
        };
        if listed.damaged > 0 {
            lost(shelf.identity, format_args!("{} entries", listed.damaged), "the index is damaged");
        }
        let (mut segments, mut unusable) = open_segments(shelf, &folder, room)?;
        let found = listed.living();
        let mut missing = 0;
        let mut kept: BTreeMap<u16, Vec<Place>> = BTreeMap::new();
        let mut living = Vec::with_capacity(found.len());
        let total = found.len();
        for (id, place) in found {
            let end = place.offset() + place.bytes();
            let whole = segments.get(&place.segment).is_some_and(|segment| end <= segment.end);
            missing += u64::from(!whole);
            // Not of this dataset, or in another directory as well, or more than may be kept now.
            if whole && table.knows(id) && table.get(id).is_none() && room.find(place.blocks) {
                table.put(id, place);
                kept.entry(place.segment).or_default().push(place);
                living.push((id, place));
            }
        }
        if missing > 0 {
            lost(
                shelf.identity,
                format_args!("{missing} samples"),
                "their segments are gone, cut off or damaged",
            );
        }
        // The index first: once a place is given up, nothing may name it any longer.
        let dead = listed.length - living.len() as u64;
        let rewrite = living.len() < total || dead > living.len() as u64 + 1024 || listed.length == 0;
        let index = if rewrite || listed.damaged > 0 {
            Index::rewrite(&folder, shelf.identity, living.iter().copied(), bounds.samples)
        } else {
            Index::resume(&folder, shelf.identity, listed.length, bounds.samples)
        };
        let index = index.map_err(|error| from_io(&error, path.display()))?;
        segments.retain(|number, segment| match kept.get_mut(number) {
            Some(places) => {
                segment.living = places.len() as u64;
                tidy(segment, places, room);
                shelf.insert(*number, Arc::clone(&segment.file));
                true
            }
            None => {
                if !discard(&folder, *number, room) {
                    unusable.push(*number);
                }
                false
            }
        });
        let active = segments
            .iter()
            .rev()
            .find(|(_, segment)| segment.end < bounds.segment)
            .map(|(&number, _)| number);
        Ok(Self { folder, index, segments, active, unusable })
    }

    /// Writes `bytes`, whole records, and answers where they are.
    ///
    /// On an error nothing is kept of them.
    pub(super) fn write(
        &mut self,
        shelf: &Shelf,
        room: &Room,
        bytes: &[u8],
        bounds: Bounds,
    ) -> Result<(u16, u64), Errno> {
        let fits = |segment: &Segment| {
            segment.end + bytes.len() as u64 <= bounds.segment && segment.end / BLOCK < u64::from(MAX_START)
        };
        let number = match self.active.filter(|number| self.segments.get(number).is_some_and(fits)) {
            Some(number) => number,
            None => {
                // Many that are nearly empty: their headers are counted like samples.
                if self.segments.len() >= bounds.segments && !room.take(SEGMENT) {
                    return Err(NO_ROOM);
                }
                self.begin(shelf, room)?
            }
        };
        let segment = self.segments.get_mut(&number).ok_or(Errno::IO)?;
        let start = segment.end;
        if let Err(errno) = segment.file.write(bytes, start) {
            let _ = segment.file.set_length(start); // gives its room back; nothing names it
            return Err(errno);
        }
        segment.end += bytes.len() as u64;
        Ok((number, start))
    }

    /// Begins a segment.
    fn begin(&mut self, shelf: &Shelf, room: &Room) -> Result<u16, Errno> {
        let is_free = |number: &u16| !self.segments.contains_key(number) && !self.unusable.contains(number);
        let number = (0..MAX_SEGMENTS).find(is_free).ok_or(Errno::NOSPC)?;
        let name = segment_name(number);
        let file = Arc::new(DirectFile::open(&self.folder, &name, true, true)?);
        let mut header = Aligned::new(BLOCK as usize);
        header.extend(&file_header(SEGMENT_MAGIC, shelf.identity, number, BLOCK as usize));
        if let Err(errno) = file.write(header.as_slice(), 0) {
            let _ = self.folder.remove(&*name); // gives its room back
            return Err(errno);
        }
        shelf.insert(number, Arc::clone(&file));
        self.segments.insert(number, Segment { file, end: BLOCK, living: 0 });
        let before = self.active.replace(number);
        // What was full and is empty by now was kept for being appended to.
        if let Some(before) = before.filter(|before| self.segments.get(before).is_some_and(|s| s.living == 0))
        {
            self.remove(shelf, room, before);
        }
        Ok(number)
    }

    /// Takes back what [`write`](Self::write) wrote last.
    pub(super) fn unwrite(&mut self, number: u16, start: u64) {
        if let Some(segment) = self.segments.get_mut(&number) {
            let _ = segment.file.set_length(start);
            segment.end = start;
        }
    }

    /// Lists records that have been written.
    pub(super) fn list(
        &mut self,
        directory: u8,
        table: &Table,
        records: &[(SampleId, Place)],
    ) -> std::io::Result<()> {
        self.make_way(directory, table, records.len() as u64)?;
        self.index.append(records.iter().map(|&(id, place)| Entry { id, place, dead: false }))?;
        for (_, place) in records {
            if let Some(segment) = self.segments.get_mut(&place.segment) {
                segment.living += 1;
            }
        }
        Ok(())
    }

    fn make_way(&mut self, directory: u8, table: &Table, entries: u64) -> std::io::Result<()> {
        if self.index.is_full(entries) {
            self.index.compact(table.of(directory))?;
        }
        Ok(())
    }

    /// Lists records as dead and gives their blocks back. On an error they stay listed, and are found to be no records
    /// when the cache is opened again and they are read.
    pub(super) fn bury(
        &mut self,
        shelf: &Shelf,
        directory: u8,
        table: &Table,
        room: &Room,
        records: &[(SampleId, Place)],
    ) -> std::io::Result<()> {
        let entries = records.iter().map(|&(id, place)| Entry { id, place, dead: true });
        let listed =
            self.make_way(directory, table, records.len() as u64).and_then(|()| self.index.append(entries));
        for (_, place) in records {
            let Some(segment) = self.segments.get_mut(&place.segment) else { continue };
            segment.living = segment.living.saturating_sub(1);
            if segment.living > 0 {
                if segment.file.punch(place.offset(), place.bytes()).is_err() {
                    room.waste(place.bytes());
                }
            } else if self.active == Some(place.segment) {
                match segment.file.set_length(BLOCK) {
                    Ok(()) => segment.end = BLOCK,
                    Err(_) => room.waste(place.bytes()),
                }
            } else {
                self.remove(shelf, room, place.segment);
            }
        }
        listed
    }

    fn remove(&mut self, shelf: &Shelf, room: &Room, number: u16) {
        shelf.forget(number);
        self.segments.remove(&number);
        if !discard(&self.folder, number, room) {
            self.unusable.push(number);
        }
    }
}

/// Opens the segments that are right and removes the others; the numbers of those for which neither can be done.
fn open_segments(
    shelf: &Shelf,
    folder: &Folder,
    room: &Room,
) -> Result<(BTreeMap<u16, Segment>, Vec<u16>), TierError> {
    let (mut segments, mut unusable) = (BTreeMap::new(), Vec::new());
    let found = layout::segments(folder).map_err(|errno| from_errno(errno, folder.path().display()))?;
    for number in found {
        let name = segment_name(number);
        let open = || -> Result<_, Errno> {
            let file = DirectFile::open(folder, &name, true, false)?;
            Ok((file.size()?.0, file))
        };
        match layout::is_segment(folder, shelf.identity, number) {
            Ok(true) => match open() {
                Ok((length, file)) => {
                    segments.insert(number, Segment { file: Arc::new(file), end: length, living: 0 });
                    continue;
                }
                Err(errno) => lost(shelf.identity, &name, errno),
            },
            Ok(false) => {
                lost(shelf.identity, &name, "its header is damaged or of another version");
                if !discard(folder, number, room) {
                    unusable.push(number);
                }
                continue;
            }
            Err(error) => lost(shelf.identity, &name, error),
        }
        // Perhaps it can be opened another time, so it stays; but it takes its room.
        room.waste(folder.allocated(&*name));
        unusable.push(number);
    }
    Ok((segments, unusable))
}

/// Removes a segment; false if it stays, and then its room is wasted.
fn discard(folder: &Folder, number: u16, room: &Room) -> bool {
    let name = segment_name(number);
    match folder.remove(&*name) {
        Ok(()) => true,
        Err(errno) => {
            room.waste(folder.allocated(&*name));
            tracing::warn!(%errno, segment = %folder.path_of(name).display(), "not removed");
            false
        }
    }
}

/// Cuts off and punches out what no record claims, so that the room that it took is there.
fn tidy(segment: &mut Segment, places: &mut [Place], room: &Room) {
    places.sort_unstable_by_key(|place| place.start);
    segment.end = places.iter().map(|place| place.offset() + place.bytes()).max().unwrap_or(BLOCK);
    let living: u64 = BLOCK + places.iter().map(|place| place.bytes()).sum::<u64>();
    let tidied: Result<(), Errno> = (|| {
        segment.file.set_length(segment.end)?;
        if segment.file.size()?.1 <= living + TRIFLE {
            return Ok(());
        }
        let mut at = BLOCK;
        for place in places.iter() {
            if place.offset() > at {
                segment.file.punch(at, place.offset() - at)?;
            }
            at = at.max(place.offset() + place.bytes());
        }
        Ok(())
    })();
    if let Err(errno) = tidied {
        tracing::debug!(%errno, "a segment's dead records keep their room");
    }
    let taken = segment.file.size().map_or(segment.end, |(_, allocated)| allocated);
    room.waste(taken.saturating_sub(living + TRIFLE));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read that has looked up the place of a record before its segment is removed. If it opened the file again, the
    /// file would keep its blocks after it was unlinked.
    #[test]
    fn removed_segment_is_not_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let identity = DatasetIdentity(1);
        let shelf = Shelf::owned(identity, Folder::for_test(directory.path()));
        let (room, table) = (Room::new(1 << 30), Table::new(10, metrics::gauge!("none")));
        let bounds = Bounds { segment: 1 << 20, samples: 10, segments: 4 };
        let mut ledger = Ledger::recover(&shelf, 0, &table, &room, bounds).unwrap();
        let bytes = Aligned::new(BLOCK as usize);
        let (number, _) = ledger.write(&shelf, &room, bytes.as_slice(), bounds).unwrap();
        let file = shelf.segment(number).unwrap();
        // Between the two halves of a removal.
        shelf.forget(number);
        assert!(directory.path().join(segment_name(number)).exists());
        assert_eq!(shelf.segment(number).unwrap_err(), Errno::NOENT);
        ledger.remove(&shelf, &room, number);
        assert_eq!(Arc::strong_count(&file), 1, "nothing keeps the file open");
    }
}
