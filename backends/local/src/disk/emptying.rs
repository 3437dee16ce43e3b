//! Emptying segments of small records.
//!
//! A removed record of 1 KB frees nothing while another one lives in its block. Once such dead
//! bytes are more than a quarter of the live ones, the worst segment is emptied. Its live records
//! are written again elsewhere, and it is removed. The price is at most four bytes written for each
//! byte that is recovered. Only a run that removes many small samples pays it, for example the next
//! run with more memory.
//!
//! A record is written, listed, then published, then its old place is freed. A process that is
//! killed in between leaves two copies, of which the index names the last. A read of the old place
//! finds an invalid record, and looks it up again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foreread_tier::Buffer;
use foreread_types::SampleId;

use super::aligned::Aligned;
use super::file::DirectFile;
use super::format::check_record;
use super::place::{BLOCK, RecordPlace};
use super::record_block::RecordBlock;
use super::writer::DirectoryWriter;

/// The bytes that are moved at once. That much space is reserved for it in each directory, so that
/// a full one can be emptied too. Larger records stay where they are.
pub(super) const PIECE: u64 = 64 << 10;

type Record = (SampleId, RecordPlace);

/// The emptying of segments by a writer.
#[derive(Debug, Default)]
pub(super) struct Emptying {
    /// Segments may have too many dead bytes.
    is_due: bool,
    now: Option<EmptiedSegment>,
}

/// A segment that is being emptied.
#[derive(Debug)]
struct EmptiedSegment {
    set: usize,
    number: u16,
    file: Arc<DirectFile>,
    /// The rest of its records, the last ones first.
    records: Vec<Record>,
    moved: u64,
}

impl Emptying {
    /// Records were removed.
    pub(super) fn check(&mut self) {
        self.is_due = true;
    }
}

/// Takes the records, in the order of their places, that one piece covers, and their blocks.
fn take_piece(rest: &mut Vec<Record>) -> (Vec<Record>, Range<u64>) {
    let mut blocks = rest.last().map_or(0..0, |(_, place)| place.blocks());
    let mut piece = Vec::new();
    while let Some((id, place)) = rest.pop_if(|(_, place)| place.blocks().end - blocks.start <= PIECE) {
        blocks.end = place.blocks().end;
        piece.push((id, place));
    }
    (piece, blocks)
}

impl DirectoryWriter {
    /// Moves a few records out of the segment with the most dead bytes, if there are too many of
    /// them. `false` if there is nothing to do.
    pub(super) fn empty_a_piece(&mut self) -> bool {
        let writable = self.directory().is_writable();
        if !writable || self.store.closing.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut now) = self.emptying.now.take().or_else(|| self.next_segment()) else { return false };
        self.wait_for_reads();
        let (piece, blocks) = take_piece(&mut now.records);
        let moved = self.move_records(now.set, &now.file, &piece, blocks);
        now.moved += moved.unwrap_or(0);
        match moved {
            Some(_) if !now.records.is_empty() => self.emptying.now = Some(now),
            Some(_) if now.moved > 0 => {}
            // Damaged records, or no space in the file system.
            _ => self.segment_writers[now.set].give_up(now.number),
        }
        true
    }

    /// The next segment to empty.
    fn next_segment(&mut self) -> Option<EmptiedSegment> {
        if !std::mem::take(&mut self.emptying.is_due) {
            return None;
        }
        let store = Arc::clone(&self.store);
        let dirs = &store.directories[usize::from(self.number)].dirs;
        let (set, number) = (0..dirs.len())
            .find_map(|set| self.segment_writers[set].to_empty().map(|number| (set, number)))?;
        // There may be more.
        self.emptying.is_due = true;
        self.segment_writers[set].close_segment(number);
        let is_movable = |(_, place): &Record| place.segment == number && place.bytes() <= PIECE - 2 * BLOCK;
        let mut records: Vec<Record> = store.sets[set].table.of(self.number).filter(is_movable).collect();
        records.sort_unstable_by_key(|(_, place)| std::cmp::Reverse(place.start));
        // The owner has all of its segments open.
        let Ok(file) = dirs[set].segment(number) else {
            self.segment_writers[set].give_up(number);
            return None;
        };
        Some(EmptiedSegment { set, number, file, records, moved: 0 })
    }

    /// Writes `records`, which are in `blocks` of `file`, elsewhere. Returns how many. `None` if
    /// that is not possible. Damaged records stay, and are found when they are read.
    fn move_records(
        &mut self,
        set: usize,
        file: &DirectFile,
        records: &[Record],
        blocks: Range<u64>,
    ) -> Option<u64> {
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        let (dir, table) = (&directory.dirs[set], &store.sets[set].table);
        let length = (blocks.end - blocks.start) as usize;
        let mut memory = Buffer::heap(length, BLOCK as usize)?;
        file.read(&mut memory, blocks.start).ok()?;
        let head = dir.next_start();
        let memory_of_block = Aligned::new((head + length).next_multiple_of(BLOCK as usize));
        let mut block = RecordBlock::new(set, head, memory_of_block);
        let mut old = Vec::with_capacity(records.len());
        for &(id, place) in records {
            let Range { start, end } = place.range();
            let range = (start - blocks.start) as usize..(end - blocks.start) as usize;
            let record = memory.as_ref().get(range).unwrap_or_default();
            // A record that was removed meanwhile is not moved.
            if table.get(id) == Some(place)
                && check_record(record, store.sets[set].record_identity(id), id).is_ok()
            {
                block.push_record(id, place.length, record);
                old.push((id, place));
            }
        }
        if old.is_empty() {
            return Some(0);
        }
        let places = self.place(&mut block).ok()?;
        directory.quota.write_off(places.iter().map(|place| place.footprint()).sum());
        let (mut freed, mut dead) = (Vec::new(), Vec::new());
        for ((id, place), to) in old.into_iter().zip(places) {
            match table.relocate(id, place, to) {
                true => freed.push(place),
                // It was removed. That frees the old place later.
                false => dead.push((id, to)),
            }
        }
        let writer = &mut self.segment_writers[set];
        writer.free_moved(dir, &directory.quota, &freed);
        writer.remove_records(dir, self.number, table, &directory.quota, &dead).ok()?;
        Some(freed.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::RecordLength;
    use super::*;

    #[test]
    fn pieces_cover_all_records_once() {
        let record = |at: u64, sample| {
            let length = RecordLength::of(sample).unwrap();
            (SampleId(at), RecordPlace { directory: 0, segment: 0, start: (at / 64) as u32, length })
        };
        let mut rest: Vec<Record> = (0..1000).rev().map(|at| record(4096 + at * 2048, 1000)).collect();
        let mut taken = Vec::new();
        while !rest.is_empty() {
            let (piece, blocks) = take_piece(&mut rest);
            assert!(blocks.end - blocks.start <= PIECE && !piece.is_empty());
            assert!(piece.iter().all(|(_, place)| {
                blocks.start <= place.blocks().start && place.blocks().end <= blocks.end
            }));
            taken.extend(piece);
        }
        assert!(taken.len() == 1000 && taken.is_sorted_by_key(|(_, place)| place.start));
    }
}
