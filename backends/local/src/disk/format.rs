//! The byte format of a cache on disk, and the word that locates a sample.
//!
//! Everything is little endian, begins with a magic number and a version, and ends with its own
//! crc32c. A record contains the dataset's identity and the sample's id. So a swapped file, a stale
//! index, a hole or an overwritten block can never deliver another sample. The worst case is a
//! miss.
//!
//! ```text
//! segment   4096 bytes of header, then records
//! record    64 bytes of header, the sample, zeros up to a multiple of 4096
//! index     64 bytes of header, then entries of 32 bytes: record written, or record dead
//! ```

use foreread_types::{DatasetIdentity, Footprint, SampleId};

/// Alignment of offsets, lengths and memory for direct I/O. No device in use has larger logical
/// blocks.
pub(super) const BLOCK: u64 = 4096;

/// The length of a record's header in bytes. One cache line, so that samples begin at one.
pub(super) const HEADER: usize = 64;

/// The space of a sample on disk.
pub(super) const FOOTPRINT: Footprint = Footprint::new(HEADER as u64, BLOCK);

/// The lengths of an index header and of an entry in bytes.
pub(super) const INDEX_HEADER: usize = 64;
pub(super) const ENTRY: usize = 32;

const VERSION: u32 = 1;
pub(super) const SEGMENT_MAGIC: [u8; 8] = *b"FORESEG\n";
pub(super) const INDEX_MAGIC: [u8; 8] = *b"FOREIDX\n";
const RECORD_MAGIC: [u8; 4] = *b"FREC";

/// The location of a record. It packs into one word that is never zero, so tables need no locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecordPlace {
    /// The tier's directory, below [`MAX_DIRECTORIES`].
    pub(super) directory: u8,
    /// The segment, below [`MAX_SEGMENTS`].
    pub(super) segment: u16,
    /// The first block within the segment, below [`MAX_START`].
    pub(super) start: u32,
    /// The number of blocks, 1 to [`MAX_BLOCKS`].
    pub(super) blocks: u32,
}

pub(super) const MAX_DIRECTORIES: usize = 1 << 5;
pub(super) const MAX_SEGMENTS: u16 = 1 << 15;
pub(super) const MAX_START: u32 = 1 << 24;
pub(super) const MAX_BLOCKS: u32 = (1 << 20) - 1;

impl RecordPlace {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.directory) << 59
            | u64::from(self.segment) << 44
            | u64::from(self.start) << 20
            | u64::from(self.blocks)
    }

    /// `None` for zero.
    pub(super) fn unpack(word: u64) -> Option<Self> {
        let part = |shift: u32, bits: u32| (word >> shift) & ((1 << bits) - 1);
        (word != 0).then(|| Self {
            directory: part(59, 5) as u8,
            segment: part(44, 15) as u16,
            start: part(20, 24) as u32,
            blocks: part(0, 20) as u32,
        })
    }

    pub(super) fn offset(self) -> u64 {
        u64::from(self.start) * BLOCK
    }

    pub(super) fn bytes(self) -> u64 {
        u64::from(self.blocks) * BLOCK
    }

    fn is_valid(self) -> bool {
        self.segment < MAX_SEGMENTS
            && self.start > 0
            && self.start < MAX_START
            && (1..=MAX_BLOCKS).contains(&self.blocks)
    }
}

/// The number of blocks of a sample of `length` bytes. `None` if it is too large for the cache.
pub(super) fn blocks_of(length: u64) -> Option<u32> {
    u32::try_from(FOOTPRINT.of(length) / BLOCK).ok().filter(|&blocks| blocks <= MAX_BLOCKS)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    bytes.get(at..at + 16).and_then(|part| part.try_into().ok()).map_or(0, u128::from_le_bytes)
}

/// Writes the checksum of the preceding bytes into the last four.
fn write_checksum(bytes: &mut [u8]) {
    if let Some((text, sum)) = bytes.split_last_chunk_mut::<4>() {
        *sum = crc32c::crc32c(text).to_le_bytes();
    }
}

fn has_valid_checksum(bytes: &[u8]) -> bool {
    bytes.split_last_chunk::<4>().is_some_and(|(text, sum)| crc32c::crc32c(text).to_le_bytes() == *sum)
}

/// The header of the record of `data`.
pub(super) fn record_header(identity: DatasetIdentity, id: SampleId, data: &[u8]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&RECORD_MAGIC);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..24].copy_from_slice(&identity.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&id.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&(data.len() as u64).to_le_bytes());
    bytes[40..44].copy_from_slice(&crc32c::crc32c(data).to_le_bytes());
    write_checksum(&mut bytes);
    bytes
}

/// Checks that `record` holds the whole record of this sample, and returns the sample's length.
///
/// # Errors
/// The fault of the record.
pub(super) fn check_record(
    record: &[u8],
    identity: DatasetIdentity,
    id: SampleId,
) -> Result<usize, &'static str> {
    let Some((header, data)) = record.split_at_checked(HEADER) else { return Err("the file ends there") };
    if header[..4] != RECORD_MAGIC || !has_valid_checksum(header) {
        return Err("no record begins there");
    }
    if u32_at(header, 4) != VERSION {
        return Err("the record is of another version");
    }
    if u128_at(header, 8) != identity.0 || u64_at(header, 24) != id.0 {
        return Err("the record is another sample's");
    }
    let length = u64_at(header, 32);
    if FOOTPRINT.of(length) != record.len() as u64 {
        return Err("the record has another length");
    }
    if crc32c::crc32c(&data[..length as usize]) != u32_at(header, 40) {
        return Err("its checksum does not match");
    }
    Ok(length as usize)
}

/// The header of a segment or index, `length` bytes.
pub(super) fn file_header(magic: [u8; 8], identity: DatasetIdentity, number: u16, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes[..8].copy_from_slice(&magic);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..28].copy_from_slice(&identity.0.to_le_bytes());
    bytes[28..30].copy_from_slice(&number.to_le_bytes());
    write_checksum(&mut bytes);
    bytes
}

/// Whether `bytes` are a valid header for this dataset and file number, of this version.
pub(super) fn is_valid_header(bytes: &[u8], magic: [u8; 8], identity: DatasetIdentity, number: u16) -> bool {
    bytes.starts_with(&magic)
        && has_valid_checksum(bytes)
        && u32_at(bytes, 8) == VERSION
        && u128_at(bytes, 12) == identity.0
        && u32_at(bytes, 28) == u32::from(number)
}

/// One index entry: a record was written, or is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) id: SampleId,
    /// Its directory is that of the index.
    pub(super) place: RecordPlace,
    pub(super) dead: bool,
}

/// Appends the entry at `position` in the index of `identity`. The checksum covers both, so that an
/// entry is valid only there.
pub(super) fn push_entry(out: &mut Vec<u8>, entry: IndexEntry, identity: DatasetIdentity, position: u64) {
    let mut bytes = [0; ENTRY];
    bytes[..8].copy_from_slice(&entry.id.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&u32::from(entry.place.segment).to_le_bytes());
    bytes[12..16].copy_from_slice(&entry.place.start.to_le_bytes());
    bytes[16..20].copy_from_slice(&entry.place.blocks.to_le_bytes());
    bytes[20..24].copy_from_slice(&u32::from(entry.dead).to_le_bytes());
    let sum = entry_sum(&bytes[..28], identity, position);
    bytes[28..].copy_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(&bytes);
}

fn entry_sum(bytes: &[u8], identity: DatasetIdentity, position: u64) -> u32 {
    let sum = crc32c::crc32c(&identity.0.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, &position.to_le_bytes()), bytes)
}

/// Decodes and validates an entry of [`ENTRY`] bytes.
pub(super) fn read_entry(
    bytes: &[u8],
    directory: u8,
    identity: DatasetIdentity,
    position: u64,
) -> Option<IndexEntry> {
    let text = bytes.get(..28)?;
    if bytes.len() != ENTRY || entry_sum(text, identity, position) != u32_at(bytes, 28) {
        return None;
    }
    let segment = u16::try_from(u32_at(bytes, 8)).ok()?;
    let place = RecordPlace { directory, segment, start: u32_at(bytes, 12), blocks: u32_at(bytes, 16) };
    let dead = match u32_at(bytes, 20) {
        0 => false,
        1 => true,
        _ => return None,
    };
    place.is_valid().then_some(IndexEntry { id: SampleId(u64_at(bytes, 0)), place, dead })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: DatasetIdentity = DatasetIdentity(0x1234_5678_9abc_def0_1122_3344_5566_7788);

    fn record(id: u64, data: &[u8]) -> Vec<u8> {
        let mut record = record_header(IDENTITY, SampleId(id), data).to_vec();
        record.extend_from_slice(data);
        record.resize(FOOTPRINT.of(data.len() as u64) as usize, 0);
        record
    }

    #[test]
    fn record_location_packs_into_one_word() {
        for place in [
            RecordPlace {
                directory: 31,
                segment: MAX_SEGMENTS - 1,
                start: MAX_START - 1,
                blocks: MAX_BLOCKS,
            },
            RecordPlace { directory: 0, segment: 0, start: 1, blocks: 1 },
            RecordPlace { directory: 3, segment: 77, start: 12_345, blocks: 28 },
        ] {
            assert!(place.is_valid());
            assert_eq!(RecordPlace::unpack(place.pack()), Some(place));
        }
        assert_eq!(RecordPlace::unpack(0), None);
        assert_eq!(blocks_of(u64::MAX), None);
        assert_eq!((blocks_of(0), blocks_of(4096 - 64), blocks_of(4096 - 63)), (Some(1), Some(1), Some(2)));
    }

    #[test]
    fn record_with_a_flipped_bit_is_invalid() {
        let whole = record(7, b"some bytes of a sample");
        assert_eq!(check_record(&whole, IDENTITY, SampleId(7)), Ok(22));
        assert!(check_record(&whole, IDENTITY, SampleId(8)).is_err());
        assert!(check_record(&whole, DatasetIdentity(1), SampleId(7)).is_err());
        for bit in 0..(HEADER + 22) * 8 {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(check_record(&bad, IDENTITY, SampleId(7)).is_err(), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(check_record(&whole[..length], IDENTITY, SampleId(7)).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn index_entry_is_valid_only_whole_and_at_its_position() {
        let place = RecordPlace { directory: 2, segment: 7, start: 99, blocks: 28 };
        let entry = IndexEntry { id: SampleId(5), place, dead: false };
        let mut bytes = Vec::new();
        push_entry(&mut bytes, entry, IDENTITY, 3);
        assert_eq!(read_entry(&bytes, 2, IDENTITY, 3), Some(entry));
        assert_eq!(read_entry(&bytes, 2, IDENTITY, 4), None);
        assert_eq!(read_entry(&bytes, 2, DatasetIdentity(9), 3), None);
        for bit in 0..ENTRY * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_entry(&bytes, 2, IDENTITY, 3), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn header_with_a_damaged_byte_is_invalid() {
        let header = file_header(SEGMENT_MAGIC, IDENTITY, 3, 4096);
        let check = |bytes: &[u8]| is_valid_header(bytes, SEGMENT_MAGIC, IDENTITY, 3);
        assert!(check(&header));
        assert!(!is_valid_header(&header, SEGMENT_MAGIC, IDENTITY, 4));
        assert!(!is_valid_header(&header, SEGMENT_MAGIC, DatasetIdentity(0), 3));
        assert!(!is_valid_header(&header, INDEX_MAGIC, IDENTITY, 3));
        assert!(!check(&[]) && !check(b"hello world") && !check(&[0; 4096]));
        for byte in 0..4096 {
            let mut bad = header.clone();
            bad[byte] ^= 0x40;
            assert!(!check(&bad), "byte {byte}");
        }
    }
}
