//! A file that a parser reads, and the reads in blocks that keep its requests few.
//!
//! Directories and trees lie in many small pieces. One request for each would be slow on an object
//! store. So [`BlockReader`] reads aligned blocks, keeps the last ones, and joins ranges that are
//! close together. The price is the bytes between the pieces.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::BoxFuture;
use lru::LruCache;

use crate::FormatError;
pub use crate::error::ReadError;

/// The most blocks that a [`BlockReader`] keeps.
const KEPT: usize = 256;

/// Requests of one file that run at once.
const AT_ONCE: usize = 32;

/// A file.
pub trait FileSource: Send + Sync {
    /// Its length in bytes.
    fn size(&self) -> u64;

    /// Reads a range that is not empty and lies in the file. Returns exactly these bytes. Many
    /// reads may run at once.
    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>>;
}

/// A file in memory, for tests.
impl FileSource for Bytes {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        let bytes = self.slice(range.start as usize..range.end as usize);
        Box::pin(std::future::ready(Ok(bytes)))
    }
}

/// A part of a file, as a file by itself.
pub(crate) struct FilePart<'a> {
    source: &'a dyn FileSource,
    start: u64,
    length: u64,
}

impl<'a> FilePart<'a> {
    /// The `length` bytes at `start`. `None` if they are not in the file.
    pub(crate) fn new(source: &'a dyn FileSource, start: u64, length: u64) -> Option<Self> {
        let end = start.checked_add(length)?;
        (end <= source.size()).then_some(Self { source, start, length })
    }
}

impl FileSource for FilePart<'_> {
    fn size(&self) -> u64 {
        self.length
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        self.source.read(self.start + range.start..self.start + range.end)
    }
}

/// Reads a file in aligned blocks, and keeps the last ones.
pub struct BlockReader<'a> {
    source: &'a dyn FileSource,
    block: u64,
    kept: Mutex<LruCache<u64, Bytes>>,
}

impl std::fmt::Debug for BlockReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockReader").field("size", &self.size()).field("block", &self.block).finish()
    }
}

impl<'a> BlockReader<'a> {
    /// Reads `source` in blocks of `block` bytes, at least one. It keeps at most 256 blocks.
    pub fn new(source: &'a dyn FileSource, block: u64) -> Self {
        let kept = std::num::NonZeroUsize::new(KEPT).unwrap_or(std::num::NonZeroUsize::MIN);
        Self { source, block: block.max(1), kept: Mutex::new(LruCache::new(kept)) }
    }

    /// The file's length in bytes.
    pub fn size(&self) -> u64 {
        self.source.size()
    }

    /// Reads `length` bytes at `start`.
    ///
    /// # Errors
    /// [`Damaged`](crate::FormatErrorKind::Damaged) if they are not in the file.
    /// [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
    pub async fn read(&self, start: u64, length: u64) -> Result<Bytes, FormatError> {
        let end = start.checked_add(length).filter(|&end| end <= self.size());
        let end = end.ok_or_else(|| FormatError::cut_short(start, self.size()))?;
        if length == 0 {
            return Ok(Bytes::new());
        }
        let first = start / self.block;
        let blocks = first..end.div_ceil(self.block);
        if blocks.end - blocks.start == 1 {
            let block = self.block(first).await?;
            let from = (start - first * self.block) as usize;
            return Ok(block.slice(from..from + length as usize));
        }
        let known: Option<Vec<Bytes>> = blocks.clone().map(|number| self.kept(number)).collect();
        let (at, bytes) = match known {
            Some(known) => {
                let mut bytes = BytesMut::with_capacity((length + 2 * self.block) as usize);
                known.iter().for_each(|block| bytes.extend_from_slice(block));
                (first * self.block, bytes.freeze())
            }
            None => {
                let range = self.range(&blocks);
                let bytes = self.source.read(range.clone()).await?;
                self.keep(range.start, &bytes);
                (range.start, bytes)
            }
        };
        let from = (start - at) as usize;
        Ok(bytes.slice(from..from + length as usize))
    }

    /// Reads many ranges, each `(start, length)`. Ranges in one block or in adjacent ones take one
    /// request of at most `most` bytes. The requests run at once. The results are in the order of
    /// the ranges.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub async fn read_all(&self, ranges: &[(u64, u64)], most: u64) -> Result<Vec<Bytes>, FormatError> {
        let mut order: Vec<usize> = (0..ranges.len()).collect();
        order.sort_unstable_by_key(|&index| ranges[index]);
        let mut groups: Vec<(u64, u64, Vec<usize>)> = Vec::new();
        for index in order {
            let (start, length) = ranges[index];
            let end = start.checked_add(length).filter(|&end| end <= self.size());
            let end = end.ok_or_else(|| FormatError::cut_short(start, self.size()))?;
            let block = start / self.block;
            match groups.last_mut() {
                Some((first, last, members))
                    if block <= last.div_ceil(self.block) && end.max(*last) - *first <= most =>
                {
                    *last = end.max(*last);
                    members.push(index);
                }
                _ => groups.push((start, end, vec![index])),
            }
        }
        let mut found = vec![Bytes::new(); ranges.len()];
        let mut coming = futures::stream::iter(groups)
            .map(|(start, end, members)| async move {
                let bytes = self.read(start, end - start).await?;
                Ok::<_, FormatError>((start, bytes, members))
            })
            .buffer_unordered(AT_ONCE);
        while let Some(group) = coming.next().await {
            let (at, bytes, members) = group?;
            for index in members {
                let (start, length) = ranges[index];
                let from = (start - at) as usize;
                found[index] = bytes.slice(from..from + length as usize);
            }
        }
        Ok(found)
    }

    async fn block(&self, number: u64) -> Result<Bytes, FormatError> {
        if let Some(block) = self.kept(number) {
            return Ok(block);
        }
        let range = self.range(&(number..number + 1));
        let bytes = self.source.read(range.clone()).await?;
        self.keep(range.start, &bytes);
        Ok(bytes)
    }

    /// The bytes of blocks. The last one may be short.
    fn range(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * self.block..(blocks.end.saturating_mul(self.block)).min(self.size())
    }

    fn kept(&self, number: u64) -> Option<Bytes> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Keeps the blocks in `bytes`, which begin at the block boundary `start`. Each is copied if
    /// there are several, so that one kept block does not keep a large range.
    fn keep(&self, start: u64, bytes: &Bytes) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() as u64 <= self.block {
            kept.put(start / self.block, bytes.clone());
            return;
        }
        let blocks = bytes.chunks(self.block as usize);
        // Of a range larger than the cache, only its end would stay.
        if blocks.len() > KEPT / 4 {
            return;
        }
        for (block, number) in blocks.zip(start / self.block..) {
            kept.put(number, Bytes::copy_from_slice(block));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use futures::executor::block_on;
    use proptest::prelude::*;

    use super::*;

    /// Counts requests.
    struct Counted(Bytes, AtomicU64);

    impl FileSource for Counted {
        fn size(&self) -> u64 {
            self.0.size()
        }

        fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
            self.1.fetch_add(1, Relaxed);
            self.0.read(range)
        }
    }

    fn file(length: usize) -> Bytes {
        (0..length).map(|at| (at * 7 % 251) as u8).collect()
    }

    #[test]
    fn kept_blocks_are_not_requested_again() {
        let source = Counted(file(10_000), AtomicU64::new(0));
        let reader = BlockReader::new(&source, 1000);
        for start in [0, 10, 990, 5, 1500] {
            let expected = source.0.slice(start..start + 100);
            assert_eq!(block_on(reader.read(start as u64, 100)).unwrap(), expected);
        }
        // The range over the boundary was one request for both of its blocks.
        assert_eq!(source.1.load(Relaxed), 2);
        let error = block_on(reader.read(9_990, 11)).unwrap_err();
        assert_eq!(error.kind(), crate::FormatErrorKind::Damaged);
        assert!(block_on(reader.read(u64::MAX, 2)).is_err());
        assert_eq!(block_on(reader.read(10_000, 0)).unwrap().len(), 0);
    }

    proptest! {
        #[test]
        fn ranges_are_read_in_their_order(
            ranges in proptest::collection::vec((0u64..3000, 0u64..200), 0..40),
            block in 1u64..500,
        ) {
            let bytes = file(3200);
            let reader = BlockReader::new(&bytes, block);
            let found = block_on(reader.read_all(&ranges, 1000)).unwrap();
            for ((start, length), found) in ranges.iter().zip(found) {
                prop_assert_eq!(&bytes[*start as usize..(start + length) as usize], &found[..]);
            }
        }
    }
}
