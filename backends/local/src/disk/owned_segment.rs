//! A segment that this process writes: its end, its live records and its dead bytes.

use std::ops::Range;
use std::sync::Arc;

use foreread_tier::Buffer;
use rustix::io::Errno;

use super::dead_space::DeadSpace;
use super::file::DirectFile;
use super::place::{BLOCK, RecordPlace};
use super::quota::Quota;

/// File systems allocate more than a file's data. Smaller amounts are not worth punching.
const MIN_RECLAIM: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct OwnedSegment {
    pub(super) file: Arc<DirectFile>,
    /// The end of the last record. The file ends with that block.
    pub(super) end: u64,
    /// The number of live records, and their bytes.
    pub(super) live: u64,
    pub(super) live_bytes: u64,
    pub(super) dead: DeadSpace,
}

impl OwnedSegment {
    pub(super) fn new(file: Arc<DirectFile>, end: u64) -> Self {
        Self { file, end, live: 0, live_bytes: 0, dead: DeadSpace::default() }
    }

    /// Frees the blocks that hold nothing but `range` and other dead bytes.
    pub(super) fn bury(&mut self, range: Range<u64>, quota: &Quota) {
        let free = self.dead.bury(range);
        let bytes = free.end - free.start;
        if bytes > 0 {
            quota.release(bytes);
            if self.file.punch(free.start, bytes).is_err() {
                quota.write_off(bytes);
            }
        }
    }

    /// Cuts off the bytes that were written after `end`.
    pub(super) fn cut_off(&mut self, end: u64) {
        let _ = self.file.set_length(end.next_multiple_of(BLOCK)); // no entry names it
        self.end = end;
    }

    /// The bytes of the last block, which is not full.
    pub(super) fn read_tail(&self) -> Result<Vec<u8>, Errno> {
        let length = (self.end % BLOCK) as usize;
        if length == 0 {
            return Ok(Vec::new());
        }
        let mut block = Buffer::heap(BLOCK as usize, BLOCK as usize).ok_or(Errno::NOMEM)?;
        self.file.read(&mut block, self.end - length as u64)?;
        block.as_ref().get(..length).map(<[u8]>::to_vec).ok_or(Errno::IO)
    }

    /// Takes over the live records in `places`, which are in order, and frees the blocks without a
    /// byte of them. The dead bytes of other blocks are charged already.
    pub(super) fn recover(&mut self, places: &[RecordPlace], quota: &Quota) {
        self.live = places.len() as u64;
        self.live_bytes = places.iter().map(|place| place.bytes()).sum();
        self.end = places.last().map_or(BLOCK, |place| place.range().end);
        let ends = [BLOCK].into_iter().chain(places.iter().map(|place| place.range().end));
        let gaps = ends.zip(places).map(|(end, place)| end..place.offset());
        let free = gaps.map(|gap| self.dead.bury(gap));
        let free: Vec<Range<u64>> = free.filter(|free| !free.is_empty()).collect();
        let length = self.end.next_multiple_of(BLOCK);
        let used = length - free.iter().map(|free| free.end - free.start).sum::<u64>();
        let tidied: Result<(), Errno> = (|| {
            self.file.set_length(length)?;
            if self.file.size()?.1 <= used + MIN_RECLAIM {
                return Ok(());
            }
            free.iter().try_for_each(|free| self.file.punch(free.start, free.end - free.start))
        })();
        if let Err(errno) = tidied {
            tracing::debug!(%errno, "a segment's dead records keep their space");
        }
        let taken = self.file.size().map_or(length, |(_, allocated)| allocated);
        quota.write_off(taken.saturating_sub(used + MIN_RECLAIM));
    }
}
