//! Recycled memory, most recently freed first.
//!
//! An origin reads a sample into memory, the trainer drops it some milliseconds later, and a sample
//! of about that size follows. If the allocator returns other memory each time, none of it is in
//! the processor's caches. If it returns memory to the kernel in between, every page is faulted in
//! and cleared again. Reading a page-cached sample of 100 KB then takes two to four times as long.
//! So freed buffers are kept in free lists by size, and the last freed one is reused first.
//!
//! * Memory is allocated exactly as long as requested, and reused where it is at most two
//!   sixty-fourths too long. That excess is the price. With samples of many lengths, every third
//!   request finds no match.
//! * After [`Buffers::allow_longer_buffers`], memory is allocated up to an eighth longer. All
//!   buffers of a free list then fit every request for it, and a few lists suffice. The total
//!   excess is at most [`MAX_SPARE`]. Beyond that, only memory of the exact length is handed out.
//! * Free memory is bounded as well. Above the bound it returns to the allocator. So does memory
//!   that was not reused while [`SWEEP_LIMITS`] limits' worth of memory came back. Otherwise each
//!   list would keep its peak, and samples of many lengths would fill the limit epoch by epoch.
//! * Small buffers are left to the allocator, which handles them well, and so are very large ones,
//!   because a few would fill the limit. Page-aligned memory for direct I/O has its own free lists,
//!   which share the bound.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Buffers;
use crate::buffers::{Buffer, CACHE_LINE, Heap};

/// Default bound on free memory, in bytes.
const DEFAULT_LIMIT: usize = 32 << 20;

/// Bound on the excess of all buffers in use together, in bytes.
const MAX_SPARE: usize = 16 << 20;

/// Memory that stays unused while this many times the limit is returned is released.
const SWEEP_LIMITS: usize = 2;

/// Buffers of `1 << MIN_POWER` to `1 << MAX_POWER` bytes are recycled.
const MIN_POWER: u32 = 13;
const MAX_POWER: u32 = 23;

/// `1 << STEPS` free lists between a power of two and the next.
const STEPS: u32 = 6;

/// `1 << ROOMY_STEPS` lengths between a power of two and the next, where memory may be longer than
/// its contents.
const ROOMY_STEPS: u32 = 3;

/// The number of free lists.
const FREE_LISTS: usize = ((MAX_POWER - MIN_POWER) << STEPS) as usize + 1;

/// The alignment of memory for direct I/O.
const PAGE: usize = 4096;

/// Recycles memory from the program's allocator. Clones share it.
#[derive(Clone, Debug)]
pub struct RecycledBuffers {
    plain: Arc<FreeLists>,
    paged: Arc<FreeLists>,
    is_roomy: Arc<AtomicBool>,
}

impl Default for RecycledBuffers {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT)
    }
}

impl RecycledBuffers {
    /// Keeps at most `limit` bytes of free memory.
    pub fn new(limit: usize) -> Self {
        let (kept, spare) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let free_lists = |align| {
            let free_lists = std::array::from_fn(|_| Mutex::default());
            let (kept, spare) = (Arc::clone(&kept), Arc::clone(&spare));
            Arc::new(FreeLists { align, limit, kept, spare, since: AtomicUsize::new(0), free_lists })
        };
        Self { plain: free_lists(CACHE_LINE), paged: free_lists(PAGE), is_roomy: Arc::default() }
    }

    /// Bytes of free memory.
    pub fn kept(&self) -> usize {
        self.plain.kept.load(Ordering::Relaxed)
    }
}

impl Buffers for RecycledBuffers {
    fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
        if !align.is_power_of_two() || align > PAGE {
            return Buffer::heap(length, align);
        }
        let free_lists = if align <= CACHE_LINE { &self.plain } else { &self.paged };
        // The largest excess, and the length to allocate.
        let (most, size) = match self.is_roomy.load(Ordering::Relaxed) {
            false => (usize::MAX, length),
            true => {
                let most = MAX_SPARE.saturating_sub(free_lists.spare.load(Ordering::Relaxed));
                let size = with_room(length);
                (most, if size - length <= most { size } else { length })
            }
        };
        let Some(list) = list_of(size) else { return Buffer::heap(length, align) };
        let lengths = length..=length.saturating_add(most);
        let kept = free_lists.take(list, &lengths).or_else(|| free_lists.take(list + 1, &lengths));
        let memory = kept.or_else(|| Heap::new(size, free_lists.align))?;
        Some(Buffer::recycled(memory, length, Arc::clone(free_lists)))
    }

    fn allow_longer_buffers(&self) {
        self.is_roomy.store(true, Ordering::Relaxed);
    }
}

/// Free memory by size, all of it aligned to `align`.
#[derive(Debug)]
pub(crate) struct FreeLists {
    align: usize,
    limit: usize,
    /// Free bytes of all lists that share the limit.
    kept: Arc<AtomicUsize>,
    /// The excess of all buffers in use over their requested or filled lengths. Shared like `kept`.
    spare: Arc<AtomicUsize>,
    /// Bytes returned since the last sweep.
    since: AtomicUsize,
    free_lists: [Mutex<FreeList>; FREE_LISTS],
}

/// Memory of about one length, the last freed at the end.
#[derive(Debug, Default)]
struct FreeList {
    free: Vec<Heap>,
    /// The smallest length of `free` since the last sweep: that many from the front were not used.
    least: usize,
}

impl FreeLists {
    /// The alignment of the memory.
    pub(crate) fn align(&self) -> usize {
        self.align
    }

    fn take(&self, list: usize, lengths: &RangeInclusive<usize>) -> Option<Heap> {
        let mut list = self.free_lists.get(list)?.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = list.free.pop_if(|memory| lengths.contains(&memory.size()))?;
        list.least = list.least.min(list.free.len());
        drop(list);
        self.kept.fetch_sub(memory.size(), Ordering::Relaxed);
        Some(memory)
    }

    /// Adds to the excess of the buffers in use.
    pub(crate) fn add_spare(&self, spare: usize) {
        self.spare.fetch_add(spare, Ordering::Relaxed);
    }

    /// Keeps `memory`, of which `used` bytes were requested, or returns it to the allocator.
    pub(crate) fn put(&self, used: usize, memory: Heap) {
        let size = memory.size();
        self.spare.fetch_sub(size - used, Ordering::Relaxed);
        let Some(list) = list_of(size) else { return };
        let since = self.since.fetch_add(size, Ordering::Relaxed);
        let due = self.limit.saturating_mul(SWEEP_LIMITS);
        // Of several threads, exactly one sweeps.
        if since < due && since + size >= due {
            self.sweep();
            self.since.store(0, Ordering::Relaxed);
        }
        if self.kept.fetch_add(size, Ordering::Relaxed) + size > self.limit {
            self.kept.fetch_sub(size, Ordering::Relaxed);
            return;
        }
        self.free_lists[list].lock().unwrap_or_else(PoisonError::into_inner).free.push(memory);
    }

    /// Releases memory that was not used since the last sweep.
    fn sweep(&self) {
        for list in &self.free_lists {
            let untouched: Vec<Heap> = {
                let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
                let least = list.least;
                let untouched = list.free.drain(..least).collect();
                list.least = list.free.len();
                untouched
            };
            let bytes: usize = untouched.iter().map(Heap::size).sum();
            self.kept.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// `length` rounded up to the next of a few lengths.
fn with_room(length: usize) -> usize {
    match length.checked_ilog2() {
        Some(power) if power >= MIN_POWER => length.next_multiple_of(1 << (power - ROOMY_STEPS)),
        _ => length,
    }
}

/// The free list for memory of `length` bytes. It also holds slightly shorter and longer memory.
/// The next list holds only longer memory.
fn list_of(length: usize) -> Option<usize> {
    if !(1 << MIN_POWER..=1 << MAX_POWER).contains(&length) {
        return None;
    }
    let power = length.ilog2();
    let above = (length - (1 << power)) >> (power - STEPS);
    Some((((power - MIN_POWER) << STEPS) as usize) + above)
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;

    #[test]
    fn free_list_holds_similar_lengths() {
        let mut list = 0;
        let mut first = 1 << MIN_POWER;
        for length in 1 << MIN_POWER..=1 << MAX_POWER {
            let on = list_of(length).unwrap();
            if on != list {
                assert_eq!(on, list + 1, "{length}");
                (list, first) = (on, length);
            }
            assert!((length - first) << STEPS < first, "{length} and {first} share a list");
        }
        assert_eq!(list, FREE_LISTS - 1);
        assert!(list_of((1 << MIN_POWER) - 1).is_none() && list_of((1 << MAX_POWER) + 1).is_none());
    }

    #[test]
    fn last_freed_memory_is_reused_first() {
        let buffers = RecycledBuffers::default();
        let (first, second) = (buffers.allocate(100_000, 1).unwrap(), buffers.allocate(100_000, 1).unwrap());
        let (old, young) = (first.as_ref().as_ptr(), second.as_ref().as_ptr());
        drop(first);
        drop(second.freeze());
        let mut again = buffers.allocate(99_000, 1).unwrap();
        assert_eq!((again.as_ref().as_ptr(), again.capacity()), (young, 99_000));
        again.extend(&[1; 99_000]);
        assert!(again.freeze().iter().all(|&byte| byte == 1));
        assert!(![young, old].contains(&buffers.allocate(101_000, 1).unwrap().as_ref().as_ptr()));
        let held = [buffers.allocate(99_999, 1).unwrap(), buffers.allocate(99_999, 1).unwrap()];
        assert_eq!([held[0].as_ref().as_ptr(), held[1].as_ref().as_ptr()], [young, old]);
        assert_eq!(buffers.kept(), 101_000);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn write_past_the_length_panics() {
        let buffers = RecycledBuffers::default();
        drop(buffers.allocate(100_100, 1).unwrap());
        buffers.allocate(100_000, 1).unwrap().extend(&[0; 100_001]);
    }

    #[test]
    fn free_memory_is_bounded_by_the_limit() {
        let buffers = RecycledBuffers::new(250_000);
        let held: Vec<Buffer> = (0..5).map(|_| buffers.allocate(100_000, 1).unwrap()).collect();
        drop(held);
        assert!((200_000..=250_000).contains(&buffers.kept()), "{}", buffers.kept());
        for (length, align) in [(0, 1), (100, 1), (100_000, 8192), (64 << 20, 1), (64 << 20, 4096)] {
            let before = buffers.kept();
            drop(buffers.allocate(length, align).unwrap());
            assert_eq!(buffers.kept(), before, "{length} bytes");
        }
    }

    #[test]
    fn rounded_lengths_share_free_lists() {
        let buffers = RecycledBuffers::default();
        buffers.allow_longer_buffers();
        for length in (90_000..130_000).step_by(500) {
            let buffer = buffers.allocate(length, 1).unwrap();
            assert_eq!(buffer.capacity(), length);
        }
        // One for each sixteenth of 128 KiB that is begun.
        assert_eq!(
            buffers.kept(),
            (88 << 10) + (96 << 10) + (104 << 10) + (112 << 10) + (120 << 10) + (128 << 10)
        );
        for length in [(1 << MIN_POWER) - 1, 1 << MIN_POWER, 100_000, (1 << MAX_POWER) - 1, 1 << MAX_POWER] {
            assert!(with_room(length) >= length && with_room(length) <= length + length / 8, "{length}");
        }
        assert_eq!(with_room(0), 0);
    }

    /// Otherwise a look-ahead of 4 GiB took half a gibibyte of uncounted memory.
    #[test]
    // semantics: CACHE-6
    fn spare_bytes_are_bounded_in_total() {
        let buffers = RecycledBuffers::default();
        buffers.allow_longer_buffers();
        let spare = || buffers.plain.spare.load(Ordering::Relaxed);
        let mut held = Vec::new();
        for round in 0..3 {
            for length in (0..6000).map(|number| 90_000 + number * 7919 % 40_000) {
                let mut buffer = buffers.allocate(length, 1).unwrap();
                assert!(buffer.size() <= length + length / 8);
                // Full, not full, or never frozen: the spare bytes are returned.
                buffer.extend(&[1; 90_000]);
                if length % 3 > 0 {
                    buffer.put_bytes(1, length - 90_000);
                    held.push(Ok(buffer.freeze()));
                } else {
                    held.push(Err(buffer));
                }
            }
            assert!((MAX_SPARE / 2..=MAX_SPARE).contains(&spare()), "{} in round {round}", spare());
            held.drain(..held.len() / 2);
        }
        held.clear();
        assert_eq!(spare(), 0);
        let mut short = buffers.allocate(100_000, 1).unwrap();
        short.extend(&[1; 10]);
        drop(short.freeze());
        assert_eq!(spare(), 0);
    }

    #[test]
    fn unused_free_memory_is_released() {
        let buffers = RecycledBuffers::new(1 << 20);
        let burst: Vec<Buffer> = (0..8).map(|_| buffers.allocate(100_000, 1).unwrap()).collect();
        drop(burst);
        assert_eq!(buffers.kept(), 800_000);
        // Two of the buffers stay in use, while the others are unused.
        for _ in 0..50 {
            let held = [buffers.allocate(100_000, 1).unwrap(), buffers.allocate(99_999, 1).unwrap()];
            drop(held);
        }
        assert_eq!(buffers.kept(), 200_000);
        // When the old buffers fill the free lists, they do not exclude newly used ones.
        drop((0..12).map(|_| buffers.allocate(100_000, 1).unwrap()).collect::<Vec<_>>());
        for _ in 0..50 {
            drop([buffers.allocate(200_000, 1).unwrap(), buffers.allocate(200_000, 1).unwrap()]);
        }
        assert_eq!(buffers.kept(), 400_000);
    }

    #[test]
    fn page_aligned_memory_is_recycled() {
        let buffers = RecycledBuffers::new(300_000);
        let plain = buffers.allocate(114_688, 1).unwrap();
        let first = buffers.allocate(114_688, 4096).unwrap();
        let address = first.as_ref().as_ptr();
        drop((plain, first.freeze()));
        assert_eq!(buffers.kept(), 229_376);
        let again = buffers.allocate(114_688, 512).unwrap();
        assert_eq!((again.as_ref().as_ptr(), address as usize % 4096), (address, 0));
        let held: Vec<Buffer> = (0..4).map(|_| buffers.allocate(114_688, 4096).unwrap()).collect();
        assert!(held.iter().all(|buffer| (buffer.as_ref().as_ptr() as usize).is_multiple_of(4096)));
        drop((held, again));
        assert!(buffers.kept() <= 300_000, "one limit for both: {}", buffers.kept());
    }

    #[test]
    fn buffers_outlive_their_pool() {
        let buffers = RecycledBuffers::default();
        let mut buffer = buffers.allocate(50_000, 1).unwrap();
        drop(buffers);
        buffer.extend(&[7; 50_000]);
        assert_eq!(buffer.freeze().len(), 50_000);
    }
}
