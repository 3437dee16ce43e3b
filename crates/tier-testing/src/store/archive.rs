//! A tar archive of any length, generated on read.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::content::{Content, NumberedObjects};

/// The length of a header, and the alignment of everything.
const BLOCK: u64 = 512;

/// An archive (ustar) of the objects of a [`NumberedObjects`] in their order: of any size, without
/// the memory.
#[derive(Clone, Debug)]
pub struct Archive {
    members: NumberedObjects,
}

impl Archive {
    /// The archive of `members`.
    ///
    /// # Panics
    /// If a member is longer than the 8 GiB of a plain header, or its name than 100 bytes.
    pub fn new(members: NumberedObjects) -> Self {
        assert!(members.size() < 1 << 33, "a member of {} bytes", members.size());
        assert!(members.name(members.count()).len() <= 100, "{}", members.name(members.count()));
        Self { members }
    }

    /// The length of one member with its header and padding.
    fn stride(&self) -> u64 {
        BLOCK + self.members.size().next_multiple_of(BLOCK)
    }

    /// The byte range of member `id`.
    pub fn extent(&self, id: u64) -> Range<u64> {
        let start = id * self.stride() + BLOCK;
        start..start + self.members.size()
    }

    fn header(&self, id: u64) -> Bytes {
        let mut header = [0; BLOCK as usize];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, &self.members.name(id));
        for (at, number) in [(100, "0000644"), (108, "0000000"), (116, "0000000")] {
            put(at, number); // mode, user, group
        }
        put(124, &format!("{:011o}\0{:011o}\0", self.members.size(), 0)); // size, time
        put(148, "        0"); // the checksum counts as spaces, type: plain file
        put(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        Bytes::copy_from_slice(&header)
    }
}

impl Content for Archive {
    fn size(&self) -> u64 {
        self.members.count() * self.stride() + 2 * BLOCK
    }

    fn range(&self, range: Range<u64>) -> Bytes {
        let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let (id, within) = (at / self.stride(), at % self.stride());
            let own = BLOCK + self.members.size();
            // The item at this position (padding and the end are zeros), and its start.
            let (part, begins) = match within {
                _ if id >= self.members.count() => (Bytes::new(), within),
                0..BLOCK => (self.header(id), 0),
                _ if within < own => (self.members.bytes(id), BLOCK),
                _ => (Bytes::new(), within),
            };
            let most = (range.end - at) as usize;
            let left = part.slice((within - begins) as usize..);
            let length = match left.len() {
                0 => most.min((self.stride() - within) as usize),
                some => most.min(some),
            };
            match left.is_empty() {
                true => bytes.resize(bytes.len() + length, 0),
                false => bytes.extend_from_slice(&left[..length]),
            }
            at += length as u64;
        }
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_ranges_equal_slices_of_the_whole() {
        let archive = Archive::new(NumberedObjects::new(5, 700));
        let whole = archive.range(0..archive.size());
        assert_eq!(whole.len() as u64, 5 * (512 + 1024) + 1024);
        for id in 0..5 {
            let extent = archive.extent(id);
            assert_eq!(whole[extent.start as usize..extent.end as usize], archive.members.bytes(id));
            assert!(whole[extent.start as usize - 512..].starts_with(archive.members.name(id).as_bytes()));
        }
        for start in (0..archive.size()).step_by(97) {
            for end in [start, start + 1, start + 600, start + 2000].map(|end| end.min(archive.size())) {
                assert_eq!(archive.range(start..end), whole[start as usize..end as usize], "{start}..{end}");
            }
        }
    }

    #[test]
    fn archive_may_be_larger_than_memory() {
        let archive = Archive::new(NumberedObjects::new(1 << 30, 1 << 20));
        assert!(archive.size() > 1 << 50);
        assert_eq!(archive.range(archive.size() - 2000..archive.size()).len(), 2000);
    }
}
