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

use foreread_types::SampleId;

use super::aligned::Aligned;
use super::file::DirectFile;
use super::format::check_record;
use super::packer::RecordBlock;
use super::place::{BLOCK, RecordPlace};
use super::writer::DirectoryWriter;

/// The bytes that are moved at once, and need that much free space.
const PIECE: u64 = 256 << 10;

type Record = (SampleId, RecordPlace);

/// The first records, in the order of their places, that one piece covers, and their blocks.
fn first_piece(records: &[Record]) -> (usize, Range<u64>) {
    let start = records.first().map_or(0, |(_, place)| place.blocks().start);
    let end = |at: usize| records.get(at).map_or(start, |(_, place)| place.blocks().end);
    let count = (1..records.len()).find(|&at| end(at) - start > PIECE).unwrap_or(records.len());
    (count, start..end(count.saturating_sub(1)))
}

impl DirectoryWriter {
    /// Empties the segment with the most dead bytes, if there are too many of them.
    pub(super) fn empty_a_segment(&mut self, set: usize) {
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        let Some(segment) = self.segment_writers[set].to_empty() else { return };
        if !directory.is_writable() || directory.quota.free() < PIECE {
            return;
        }
        let of_segment = |(_, place): &Record| place.segment == segment;
        let mut records: Vec<Record> = store.sets[set].table.of(self.number).filter(of_segment).collect();
        records.sort_unstable_by_key(|(_, place)| place.start);
        // The owner has all of its segments open.
        let Ok(file) = directory.dirs[set].segment(segment) else { return };
        self.segment_writers[set].close_segment(segment);
        let mut rest = &records[..];
        while !rest.is_empty() {
            let (count, blocks) = first_piece(rest);
            let (piece, next) = rest.split_at(count);
            if self.move_records(set, &file, piece, blocks).is_none() {
                return;
            }
            rest = next;
        }
    }

    /// Writes `records`, which are in `blocks` of `file`, elsewhere. `None` if that is not possible
    /// now. Damaged records stay, and are found when they are read.
    fn move_records(
        &mut self,
        set: usize,
        file: &DirectFile,
        records: &[Record],
        blocks: Range<u64>,
    ) -> Option<()> {
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        let length = (blocks.end - blocks.start) as usize;
        let mut memory = store.buffers.allocate(length, BLOCK as usize)?;
        file.read(&mut memory, blocks.start).ok()?;
        let mut block = RecordBlock::new(set, 0, &[], Aligned::new(length));
        let mut old = Vec::with_capacity(records.len());
        for &(id, place) in records {
            let Range { start, end } = place.range();
            let range = (start - blocks.start) as usize..(end - blocks.start) as usize;
            let record = memory.as_ref().get(range).unwrap_or_default();
            if check_record(record, store.sets[set].identity, id).is_ok() {
                block.push_record(id, place.length, record);
                old.push((id, place));
            }
        }
        block.close();
        let bytes = old.iter().map(|(_, place)| place.footprint()).sum();
        let room = directory.quota.budget().try_charge(bytes)?;
        let places = self.try_write(&block).ok()?;
        directory.quota.keep(room, bytes);
        let (mut freed, mut dead) = (Vec::new(), Vec::new());
        for ((id, place), to) in old.into_iter().zip(places) {
            match store.sets[set].table.relocate(id, place, to) {
                true => freed.push(place),
                // It was removed. That frees the old place later.
                false => dead.push((id, to)),
            }
        }
        let (writer, dir) = (&mut self.segment_writers[set], &directory.dirs[set]);
        writer.free_moved(dir, &directory.quota, &freed);
        let removed =
            writer.remove_records(dir, self.number, &store.sets[set].table, &directory.quota, &dead);
        removed.ok()
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
        let records: Vec<Record> = (0..1000).map(|at| record(4096 + at * 2048, 1000)).collect();
        let mut rest = &records[..];
        while !rest.is_empty() {
            let (count, blocks) = first_piece(rest);
            assert!(blocks.end - blocks.start <= PIECE && count > 0);
            assert!(rest[..count].iter().all(|(_, place)| {
                blocks.start <= place.blocks().start && place.blocks().end <= blocks.end
            }));
            rest = &rest[count..];
        }
        let large = [record(4096, 1 << 20), record(4096 + (2 << 20), 1000)];
        assert_eq!(first_piece(&large), (1, large[0].1.blocks()));
    }
}
