//! The byte format of a cache on disk.
//!
//! Everything is little endian, has a magic number and a version, and ends with its own crc32c. A
//! record contains the dataset's identity and the sample's id. So a swapped file, a stale index, a
//! hole or an overwritten block can never deliver another sample. The worst case is a miss.
//!
//! ```text
//! segment   4096 bytes of header, then records, back to back
//! record    the sample, zeros, and 24 bytes of trailer that end at a multiple of 64
//! index     64 bytes of header, then entries of 20 bytes: record written, or record dead
//! ```
//!
//! The trailer follows the sample, so that samples begin at multiples of 64 and small ones share a
//! cache line with it. It has a quarter of the identity's bits. Its checksum covers all of them,
//! and a segment's header has them.

use foreread_types::{DatasetIdentity, SampleId};

use super::place::{RecordLength, RecordPlace, TRAILER};

/// The lengths of an index header and of an entry in bytes.
pub(super) const INDEX_HEADER: usize = 64;
pub(super) const ENTRY: usize = 20;

const VERSION: u32 = 2;
pub(super) const SEGMENT_MAGIC: [u8; 8] = *b"FORESEG\n";
pub(super) const INDEX_MAGIC: [u8; 8] = *b"FOREIDX\n";
/// Ends with the version.
const RECORD_MAGIC: [u8; 2] = *b"F\x02";

/// The bit of an entry's id that marks a dead record.
const DEAD: u64 = 1 << 63;

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

/// The trailer of the record of `data`.
pub(super) fn record_trailer(identity: DatasetIdentity, id: SampleId, data: &[u8]) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..2].copy_from_slice(&RECORD_MAGIC);
    bytes[2..8].copy_from_slice(&id_bytes(id));
    bytes[8..12].copy_from_slice(&crc32c::crc32c(data).to_le_bytes());
    bytes[12..16].copy_from_slice(&(data.len() as u32).to_le_bytes());
    bytes[16..20].copy_from_slice(&(identity.0 as u32).to_le_bytes());
    let sum = trailer_sum(&bytes[..20], identity);
    bytes[20..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Six bytes: a table of more samples would fit in no memory.
fn id_bytes(id: SampleId) -> [u8; 6] {
    let [bytes @ .., _, _] = id.0.to_le_bytes();
    bytes
}

fn trailer_sum(bytes: &[u8], identity: DatasetIdentity) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&identity.0.to_le_bytes()), bytes)
}

/// Checks that `record` is the whole record of this sample, and returns the sample's length.
///
/// # Errors
/// The fault of the record.
pub(super) fn check_record(
    record: &[u8],
    identity: DatasetIdentity,
    id: SampleId,
) -> Result<usize, &'static str> {
    let Some((data, trailer)) = record.split_last_chunk::<TRAILER>() else {
        return Err("the file ends there");
    };
    if trailer[0] != RECORD_MAGIC[0] {
        return Err("no record ends there");
    }
    if trailer[1] != RECORD_MAGIC[1] {
        return Err("the record is of another version");
    }
    if u32_at(trailer, 16) != identity.0 as u32 || trailer[2..8] != id_bytes(id) {
        return Err("the record is another sample's");
    }
    if trailer_sum(&trailer[..20], identity) != u32_at(trailer, 20) {
        return Err("the record's own checksum does not match");
    }
    let length = u32_at(trailer, 12) as usize;
    if RecordLength::of(length as u64).is_none_or(|whole| whole.bytes() != record.len() as u64) {
        return Err("the record has another length");
    }
    if crc32c::crc32c(&data[..length]) != u32_at(trailer, 8) {
        return Err("its checksum does not match");
    }
    Ok(length)
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
    let id = entry.id.0 | if entry.dead { DEAD } else { 0 };
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..16].copy_from_slice(&RecordPlace { directory: 0, ..entry.place }.pack().to_le_bytes());
    let sum = entry_sum(&bytes[..16], identity, position);
    bytes[16..].copy_from_slice(&sum.to_le_bytes());
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
    let text = bytes.get(..16)?;
    if bytes.len() != ENTRY || entry_sum(text, identity, position) != u32_at(bytes, 16) {
        return None;
    }
    let id = u64_at(bytes, 0);
    let place = RecordPlace { directory, ..RecordPlace::unpack(u64_at(bytes, 8))? };
    let entry = IndexEntry { id: SampleId(id & !DEAD), place, dead: id & DEAD != 0 };
    place.is_valid().then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: DatasetIdentity = DatasetIdentity(0x1234_5678_9abc_def0_1122_3344_5566_7788);

    fn record(id: u64, data: &[u8]) -> Vec<u8> {
        let mut record = data.to_vec();
        record.resize(RecordLength::of(data.len() as u64).unwrap().bytes() as usize - TRAILER, 0);
        record.extend_from_slice(&record_trailer(IDENTITY, SampleId(id), data));
        record
    }

    #[test]
    fn record_with_a_flipped_bit_is_invalid() {
        let whole = record(7, b"some bytes of a sample");
        assert_eq!(check_record(&whole, IDENTITY, SampleId(7)), Ok(22));
        assert!(check_record(&whole, IDENTITY, SampleId(8)).is_err());
        assert!(check_record(&whole, DatasetIdentity(1), SampleId(7)).is_err());
        for bit in (0..22 * 8).chain((whole.len() - TRAILER) * 8..whole.len() * 8) {
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
        let place =
            RecordPlace { directory: 2, segment: 7, start: 99, length: RecordLength::of(28).unwrap() };
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
