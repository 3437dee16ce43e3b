//! The messages of hosts on several nodes: a request for a copy, and its answer.
//!
//! A request names a file by its dataset and its path below that, because each cache has a key of
//! its own for hashes. It also has the identity of the original, without the device: that differs
//! between nodes. So an answer is a copy of exactly the requested content. The price is a request
//! of some hundred bytes.
//!
//! ```text
//! request   dataset u64, inode u64, size u64, modified 2 x i64, changed 2 x i64, path
//! absent    nothing
//! copy      crc32c u32 of all bytes
//! piece     bytes; pieces follow until the size is reached
//! ```
//!
//! All numbers are little endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use foreread_preload::layout::{Identity, PathHash};

/// The kinds of messages.
pub(super) const REQUEST: u32 = 1;
pub(super) const ABSENT: u32 = 2;
pub(super) const COPY: u32 = 3;
pub(super) const PIECE: u32 = 4;

/// The most bytes of a piece.
pub(super) const MAX_PIECE: usize = 128 << 10;

/// The bytes of the answer that a copy follows.
pub(super) const COPY_BYTES: usize = 4;

/// The longest path below a dataset, which is the kernel's limit.
const MAX_PATH: usize = 4096;

/// The bytes before the path.
const FIXED: usize = 7 * 8;

/// The longest request.
pub(super) const MAX_REQUEST: usize = FIXED + MAX_PATH;

/// A request for the copy of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyRequest {
    pub(crate) dataset: u64,
    pub(crate) path: Vec<u8>,
    pub(crate) size: u64,
    inode: u64,
    modified: [i64; 2],
    changed: [i64; 2],
}

impl CopyRequest {
    /// Requests a copy of the file at `path` below a dataset, with this content. `None` if the path
    /// is too long.
    pub(crate) fn new(dataset: u64, path: &[u8], identity: &Identity) -> Option<Self> {
        let Identity { inode, size, modified, changed, .. } = *identity;
        let is_short = path.len() <= MAX_PATH;
        is_short.then(|| Self { dataset, path: path.to_vec(), size, inode, modified, changed })
    }

    /// The hash of the file in a table with this key. `None` if the path is not that of a file.
    pub(crate) fn hash(&self, key: u64) -> Option<u64> {
        PathHash::new(key, self.dataset).add(self.path.iter().copied(), true)?.finish()
    }

    /// Whether a copy of this original has the requested content.
    pub(crate) fn is_for(&self, original: &Identity) -> bool {
        self.inode == original.inode
            && self.size == original.size
            && self.modified == original.modified
            && self.changed == original.changed
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(FIXED + self.path.len());
        for number in [self.dataset, self.inode, self.size] {
            bytes.put_u64_le(number);
        }
        for number in self.modified.into_iter().chain(self.changed) {
            bytes.put_i64_le(number);
        }
        bytes.put_slice(&self.path);
        bytes.freeze()
    }

    /// The request in a message. `None` for any other bytes.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        if !(FIXED + 1..=MAX_REQUEST).contains(&bytes.len()) {
            return None;
        }
        let (dataset, inode, size) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le());
        let modified = [bytes.get_i64_le(), bytes.get_i64_le()];
        let changed = [bytes.get_i64_le(), bytes.get_i64_le()];
        Some(Self { dataset, path: bytes.to_vec(), size, inode, modified, changed })
    }
}

/// The answer before a copy.
pub(super) fn encode_copy(crc32c: u32) -> Bytes {
    Bytes::copy_from_slice(&crc32c.to_le_bytes())
}

/// The checksum in the answer before a copy.
pub(super) fn decode_copy(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { device: 5, inode: 7, size: 11, modified: [-3, 4], changed: [5, 6], ..Identity::default() }
    }

    #[test]
    fn request_round_trips_without_the_device() {
        let request = CopyRequest::new(9, b"a/b.jpg", &identity()).unwrap();
        assert_eq!(CopyRequest::decode(&request.encode()), Some(request.clone()));
        assert!(request.is_for(&Identity { device: 6, blocks: 1, ..identity() }));
        for other in [
            Identity { inode: 8, ..identity() },
            Identity { size: 12, ..identity() },
            Identity { modified: [-3, 5], ..identity() },
            Identity { changed: [4, 6], ..identity() },
        ] {
            assert!(!request.is_for(&other), "{other:?}");
        }
        assert_eq!(decode_copy(&encode_copy(77)), Some(77));
    }

    #[test]
    fn hostile_lengths_and_paths_are_refused() {
        for length in [0, 1, FIXED - 1, FIXED, MAX_REQUEST + 1] {
            assert_eq!(CopyRequest::decode(&vec![b'a'; length]), None, "{length}");
        }
        assert!(CopyRequest::decode(&vec![b'a'; MAX_REQUEST]).is_some());
        assert_eq!(CopyRequest::new(9, &[b'a'; MAX_PATH + 1], &identity()), None);
        for path in ["../secret", "a/../b", "a/", "."] {
            let request = CopyRequest::new(9, path.as_bytes(), &identity()).unwrap();
            assert_eq!(request.hash(1), None, "{path}");
        }
        assert_eq!(decode_copy(b"12345"), None);
    }
}
