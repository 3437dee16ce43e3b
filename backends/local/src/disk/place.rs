//! The location of a record in one word, and the space that records take.
//!
//! Records lie back to back, at multiples of 64 bytes, so that samples of 1 KB use the disk as well
//! as large ones. A word has 64 bits for the directory, the segment, the start and the length. The
//! length has 20 bits of its own: up to 32 MiB in steps of 64 bytes, and above in steps of 8 KiB.
//! The price is at most a four-thousandth of a large sample's space.

use std::ops::Range;

use foreread_types::Footprint;

/// Alignment of offsets, lengths and memory for direct I/O. No device in use has larger logical
/// blocks.
pub(super) const BLOCK: u64 = 4096;

/// Alignment of records: a cache line, where samples begin in memory.
pub(super) const UNIT: u64 = 64;

/// The unit of the lengths of large records.
const LARGE_UNIT: u64 = 8192;

/// The length of a record's trailer in bytes.
pub(super) const TRAILER: usize = 24;

/// The bytes of an index per live record: its entry, an entry of a dead record for every eight live
/// ones, and the entry again while the index is rewritten.
pub(super) const INDEX_SHARE: u64 = 44;

/// The space of a sample on disk.
pub(super) const FOOTPRINT: Footprint = Footprint::new(TRAILER as u64, UNIT).with_fixed(INDEX_SHARE);

/// The memory of a read at most: the blocks around a record, wherever it begins in its first one. A
/// read of a sample above 32 MiB takes up to 12 KiB more.
pub(super) const READ_MEMORY: Footprint = Footprint::new(TRAILER as u64 + BLOCK - UNIT, BLOCK);

/// The space to reserve for a footprint. Lengths of large records are rounded up.
pub(super) fn reserved(footprint: u64) -> u64 {
    let is_large = footprint >= u64::from(RecordLength::LARGE) * UNIT;
    footprint.saturating_add(if is_large { LARGE_UNIT } else { 0 })
}

pub(super) const MAX_DIRECTORIES: usize = 1 << 5;
pub(super) const MAX_SEGMENTS: u16 = 1 << 13;
/// The limit of starts, in units.
pub(super) const MAX_START: u32 = 1 << 26;

/// The length of a record, its trailer included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecordLength(u32);

impl RecordLength {
    const LARGE: u32 = 1 << 19;

    /// The length of the record of a sample of `sample` bytes. `None` if it is too large for the
    /// cache (4 GiB).
    pub(super) fn of(sample: u64) -> Option<Self> {
        let bytes = sample.checked_add(TRAILER as u64)?;
        let in_units = |unit| u32::try_from(bytes.div_ceil(unit)).ok().filter(|units| *units < Self::LARGE);
        let large = || in_units(LARGE_UNIT).map(|units| Self(units | Self::LARGE));
        in_units(UNIT).map(Self).or_else(large)
    }

    pub(super) fn bytes(self) -> u64 {
        let unit = if self.0 & Self::LARGE == 0 { UNIT } else { LARGE_UNIT };
        u64::from(self.0 & !Self::LARGE) * unit
    }

    fn is_valid(self) -> bool {
        self.bytes() > 0 && self.0 < 2 * Self::LARGE
    }
}

/// The location of a record. It packs into one word that is never zero, so tables need no locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecordPlace {
    /// The tier's directory, below [`MAX_DIRECTORIES`].
    pub(super) directory: u8,
    /// The segment, below [`MAX_SEGMENTS`].
    pub(super) segment: u16,
    /// The start within the segment in units, below [`MAX_START`].
    pub(super) start: u32,
    pub(super) length: RecordLength,
}

impl RecordPlace {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.directory) << 59
            | u64::from(self.segment) << 46
            | u64::from(self.start) << 20
            | u64::from(self.length.0)
    }

    /// `None` for zero.
    pub(super) fn unpack(word: u64) -> Option<Self> {
        let part = |shift: u32, bits: u32| (word >> shift) & ((1 << bits) - 1);
        (word != 0).then(|| Self {
            directory: part(59, 5) as u8,
            segment: part(46, 13) as u16,
            start: part(20, 26) as u32,
            length: RecordLength(part(0, 20) as u32),
        })
    }

    pub(super) fn offset(self) -> u64 {
        u64::from(self.start) * UNIT
    }

    pub(super) fn bytes(self) -> u64 {
        self.length.bytes()
    }

    /// The record's bytes in its segment.
    pub(super) fn range(self) -> Range<u64> {
        self.offset()..self.offset() + self.bytes()
    }

    /// The blocks that the record is in.
    pub(super) fn blocks(self) -> Range<u64> {
        let Range { start, end } = self.range();
        start / BLOCK * BLOCK..end.next_multiple_of(BLOCK)
    }

    /// The record's bytes and those of its index entry.
    pub(super) fn footprint(self) -> u64 {
        self.bytes() + INDEX_SHARE
    }

    pub(super) fn is_valid(self) -> bool {
        self.segment < MAX_SEGMENTS
            && self.offset() >= BLOCK
            && self.start < MAX_START
            && self.length.is_valid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_location_packs_into_one_word() {
        let length = |sample| RecordLength::of(sample).unwrap();
        for place in [
            RecordPlace {
                directory: 31,
                segment: MAX_SEGMENTS - 1,
                start: MAX_START - 1,
                length: length((4 << 30) - 8192 - 24),
            },
            RecordPlace { directory: 0, segment: 0, start: 64, length: length(0) },
            RecordPlace { directory: 3, segment: 77, start: 12_345, length: length(110_000) },
        ] {
            assert!(place.is_valid());
            assert_eq!(RecordPlace::unpack(place.pack()), Some(place));
        }
        assert_eq!(RecordPlace::unpack(0), None);
    }

    #[test]
    fn lengths_of_records_hold_their_samples() {
        let bytes = |sample| RecordLength::of(sample).map(RecordLength::bytes);
        assert_eq!([0, 40, 41, 1000].map(bytes), [64, 64, 128, 1024].map(Some));
        assert_eq!(bytes((32 << 20) - 64 - 24), Some((32 << 20) - 64), "the last in small units");
        assert_eq!(bytes((32 << 20) - 63 - 24), Some(32 << 20), "the first in large units");
        assert_eq!([(4 << 30) - 8191 - 24, u64::MAX].map(bytes), [None, None]);
        for sample in (0..10_000).chain((32 << 20) - 200..(32 << 20) + 200) {
            let record = bytes(sample).unwrap();
            assert!(record >= sample + TRAILER as u64 && record % UNIT == 0, "{sample}");
            let allowed = if sample < 33_000_000 { 0 } else { sample / 4000 };
            assert!(record + INDEX_SHARE - FOOTPRINT.of(sample) <= allowed, "{sample}");
        }
    }

    #[test]
    fn memory_of_a_read_is_enough_for_each_start() {
        for sample in [0, 1, 1000, 4031, 4032, 4033, 110_000] {
            let most = (0..64).map(|start| {
                let length = RecordLength::of(sample).unwrap();
                let blocks = RecordPlace { directory: 0, segment: 0, start: 64 + start, length }.blocks();
                blocks.end - blocks.start
            });
            assert_eq!(most.max().unwrap(), READ_MEMORY.of(sample), "{sample}");
        }
    }
}
