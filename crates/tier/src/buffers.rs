//! Memory for samples: one trait for plain, aligned, pinned and shared memory.
//!
//! A [`Buffer`] is memory of an exact length that is filled from its start and then frozen into
//! [`Bytes`] without a copy. It is uninitialised, because clearing 100 KB costs a third of reading
//! it from the page cache. [`Buffer::fill`] keeps that safe.

use std::alloc::Layout;
use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes};
use tokio::runtime::Handle;

use crate::arena::{ArenaMemory, CACHE_LINE, SharedPlace};

/// Allocates memory for samples.
pub trait Buffers: Debug + Send + Sync + 'static {
    /// Memory for exactly `length` bytes, aligned to `align` and to 64 bytes. `None` if memory is
    /// short or `align` is not a power of two. Lengths come from catalogs, so a file of ten
    /// terabytes must cost an error and not the process.
    fn allocate(&self, length: usize, align: usize) -> Option<Buffer>;

    /// The same, with the time that the memory will be in use. Allocators use that to keep memory
    /// apart that is freed together.
    fn allocate_for(&self, lifetime: Lifetime, length: usize, align: usize) -> Option<Buffer> {
        let _ = lifetime;
        self.allocate(length, align)
    }

    /// Gives unused memory back to the system from time to time, by a task on `runtime`. Called
    /// when a run begins.
    fn return_unused_on(&self, runtime: &Handle) {
        let _ = runtime;
    }

    /// From now on, new memory is such that other processes can map it. Returns whether that is
    /// possible. Once on, it stays on.
    fn share(&self) -> bool {
        false
    }

    /// The region of shared memory in which `bytes` lie entirely, and their offset in it. `None`
    /// for other memory: private regions, the program's allocator, and empty slices.
    fn shared_place(&self, bytes: &[u8]) -> Option<SharedPlace> {
        let _ = bytes;
        None
    }
}

/// How long memory will be in use, as far as its reader knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// Until the trainer drops the sample.
    #[default]
    Passing,
    /// As long as the plan keeps the sample in memory.
    Kept,
    /// Until the samples are copied out of a block.
    Block,
}

/// Memory from the program's allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapBuffers;

impl Buffers for HeapBuffers {
    fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
        Buffer::heap(length, align)
    }
}

/// Memory that is being filled.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    /// The usable length of the memory.
    length: usize,
    filled: usize,
}

/// The owner of a buffer's memory.
#[derive(Debug)]
enum Memory {
    Heap(Heap),
    Arena(ArenaMemory),
}

impl Memory {
    fn pointer(&self) -> NonNull<u8> {
        match self {
            Self::Heap(heap) => heap.pointer,
            Self::Arena(memory) => memory.pointer(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Heap(heap) => heap.layout.size(),
            Self::Arena(memory) => memory.size(),
        }
    }
}

impl Buffer {
    /// `length` bytes from the program's allocator, aligned to `align` and to 64 bytes. `None` if
    /// memory is short or `align` is not a power of two.
    pub fn heap(length: usize, align: usize) -> Option<Self> {
        Some(Self { memory: Memory::Heap(Heap::new(length, align)?), length, filled: 0 })
    }

    /// The first `length` bytes of `memory`.
    pub(crate) fn of_arena(memory: ArenaMemory, length: usize) -> Self {
        debug_assert!(length <= memory.size());
        Self { memory: Memory::Arena(memory), length, filled: 0 }
    }

    /// The length of the full buffer.
    pub fn capacity(&self) -> usize {
        self.length
    }

    /// The number of filled bytes.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Lets `read` fill the empty part or a prefix of it. `read` returns the prefix that it
    /// initialised, as `rustix::io::pread` does. Returns the number of new bytes.
    ///
    /// # Errors
    /// Those of `read`. Nothing counts as filled then.
    ///
    /// # Panics
    /// If `read` returns a slice that is not a prefix of its argument.
    pub fn fill<E>(
        &mut self,
        read: impl for<'a> FnOnce(&'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], E>,
    ) -> Result<usize, E> {
        let empty = self.empty();
        let (start, room) = (empty.as_ptr().cast::<u8>(), empty.len());
        let done = read(empty)?;
        // A `&mut [u8]` is initialised memory. It remains to check that it is *this* memory.
        assert!(
            done.is_empty() || (done.as_ptr() == start && done.len() <= room),
            "a read filled other memory"
        );
        let count = done.len();
        self.filled += count;
        Ok(count)
    }

    /// Appends a copy of `bytes`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn extend(&mut self, bytes: &[u8]) {
        let empty = &mut self.empty()[..bytes.len()];
        empty.write_copy_of_slice(bytes);
        self.filled += bytes.len();
    }

    /// The filled part as shared bytes. The allocation lives until the last handle is dropped.
    pub fn freeze(self) -> Bytes {
        let filled = self.filled;
        match self.memory {
            Memory::Heap(memory) => Bytes::from_owner(HeapBytes { memory, filled }),
            Memory::Arena(memory) => Bytes::from_owner(ArenaBytes { memory, filled }),
        }
    }

    /// The part that is not filled.
    fn empty(&mut self) -> &mut [MaybeUninit<u8>] {
        assert!(self.filled <= self.length && self.length <= self.memory.size());
        // SAFETY: the pointer is valid for `size` bytes (if zero: dangling and aligned), which the
        // part does not exceed. The memory is owned by this value and borrowed mutably.
        // `MaybeUninit` needs no initialisation.
        unsafe {
            let start = self.memory.pointer().add(self.filled);
            std::slice::from_raw_parts_mut(start.as_ptr().cast(), self.length - self.filled)
        }
    }
}

// SAFETY: `chunk_mut` returns exactly the memory after the filled part, up to the length.
// `advance_mut` counts no more than that as filled, and its caller guarantees that it is
// initialised.
unsafe impl BufMut for Buffer {
    fn remaining_mut(&self) -> usize {
        self.length - self.filled
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(count <= self.remaining_mut(), "{count} bytes where {} are empty", self.remaining_mut());
        self.filled += count;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        UninitSlice::uninit(self.empty())
    }
}

/// Filled memory that goes back to the allocator.
struct HeapBytes {
    memory: Heap,
    filled: usize,
}

impl AsRef<[u8]> for HeapBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `Buffer::as_ref`; nothing is ever written here.
        unsafe { std::slice::from_raw_parts(self.memory.pointer.as_ptr(), self.filled) }
    }
}

/// Filled memory that goes back to its arena. One exists per sample in memory, so it must not
/// exceed [`HeapBytes`].
struct ArenaBytes {
    memory: ArenaMemory,
    filled: usize,
}

const _: () = assert!(size_of::<ArenaBytes>() <= size_of::<HeapBytes>());

impl AsRef<[u8]> for ArenaBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `Buffer::as_ref`; nothing is ever written here.
        unsafe { std::slice::from_raw_parts(self.memory.pointer().as_ptr(), self.filled) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the first `filled` bytes were initialised through `fill` or `extend`. The memory
        // is ours, at least `filled` bytes long, and nothing writes to it while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.pointer().as_ptr(), self.filled) }
    }
}

/// An allocation that is neither initialised nor grown.
///
/// Alignment to a cache line is not requested from the allocator. Glibc before 2.38 does not reuse
/// freed aligned memory, so a process would grow without bound. It is a plain allocation,
/// [`CACHE_LINE`] bytes longer, which is used from the first cache line at least 16 bytes in. The
/// byte before that line stores the offset.
#[derive(Debug)]
struct Heap {
    pointer: NonNull<u8>,
    layout: Layout,
}

/// The alignment of plain allocations.
const GRAIN: usize = 16;

/// The plain allocation that memory of this layout lies in.
fn around(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(layout.size().checked_add(CACHE_LINE)?, GRAIN).ok()
}

// SAFETY: the allocation is owned by this value alone and is plain bytes.
unsafe impl Send for Heap {}
// SAFETY: shared references only read (`Buffer::as_ref`).
unsafe impl Sync for Heap {}

impl Heap {
    fn new(length: usize, align: usize) -> Option<Self> {
        // No power of two stays none: 64 does not hide it.
        let align = if align.is_power_of_two() { align.max(CACHE_LINE) } else { return None };
        let layout = Layout::from_size_align(length, align).ok()?;
        if length == 0 {
            return Some(Self { pointer: layout.dangling_ptr(), layout });
        }
        if align > CACHE_LINE {
            // SAFETY: the layout's size is not zero.
            let pointer = unsafe { std::alloc::alloc(layout) };
            return NonNull::new(pointer).map(|pointer| Self { pointer, layout });
        }
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { std::alloc::alloc(around(layout)?) })?;
        let inside = CACHE_LINE - base.as_ptr() as usize % CACHE_LINE;
        // SAFETY: `inside` is 16 to 64, because the base is a multiple of 16. The allocation is 64
        // bytes longer than the memory that follows, so the byte before is the allocation's, too.
        let pointer = unsafe {
            let pointer = base.add(inside);
            pointer.sub(1).write(inside as u8);
            pointer
        };
        Some(Self { pointer, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if self.layout.size() == 0 {
            return;
        }
        if self.layout.align() > CACHE_LINE {
            // SAFETY: allocated in `new` with this very layout, and not yet freed.
            return unsafe { std::alloc::dealloc(self.pointer.as_ptr(), self.layout) };
        }
        // It was a layout in `new`, so it is one here.
        let Some(around) = around(self.layout) else { return };
        // SAFETY: `new` wrote the offset of this memory in its allocation into the byte before. The
        // allocation had this layout and is not yet freed.
        unsafe {
            let inside = usize::from(self.pointer.sub(1).read());
            std::alloc::dealloc(self.pointer.sub(inside).as_ptr(), around);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_filled_in_parts_and_frozen_without_a_copy() {
        let mut buffer = HeapBuffers.allocate(10, 4096).unwrap();
        buffer.extend(&[1, 2, 3]);
        let count = buffer.fill(|empty| Ok::<_, ()>(empty[..4].write_copy_of_slice(&[4, 5, 6, 7]))).unwrap();
        assert_eq!((count, buffer.filled(), buffer.capacity()), (4, 7, 10));
        let address = buffer.as_ref().as_ptr();
        let bytes = buffer.freeze();
        assert_eq!((&bytes[..], bytes.as_ptr()), (&[1, 2, 3, 4, 5, 6, 7][..], address));
        assert_eq!(address as usize % 4096, 0);
    }

    #[test]
    fn buffer_accepts_parts_up_to_its_length() {
        let mut buffer = crate::ArenaBuffers::default().allocate(10_000, 1).unwrap();
        let address = buffer.as_ref().as_ptr();
        buffer.put_slice(&[1; 3]);
        buffer.put_bytes(2, 9_997);
        assert!(!buffer.has_remaining_mut() && buffer.chunk_mut().len() == 0);
        let bytes = buffer.freeze();
        assert_eq!((bytes.len(), bytes.as_ptr(), bytes[2], bytes[9_999]), (10_000, address, 1, 2));
    }

    #[test]
    fn empty_buffer_allocates_nothing_and_freezes() {
        assert!(HeapBuffers.allocate(0, 1).unwrap().freeze().is_empty());
    }

    #[test]
    #[should_panic(expected = "other memory")]
    fn fill_of_other_memory_panics() {
        let other: &'static mut [u8] = Box::leak(vec![0; 4].into_boxed_slice());
        let _ = Buffer::heap(10, 1).unwrap().fill(|_| Ok::<_, ()>(other));
    }

    #[test]
    fn impossible_length_is_refused() {
        assert!(HeapBuffers.allocate(1 << 62, 1).is_none());
        assert!(HeapBuffers.allocate(usize::MAX, 4096).is_none());
    }

    #[test]
    fn alignment_must_be_a_power_of_two() {
        let arena = crate::ArenaBuffers::default();
        let buffers: [&dyn Buffers; 2] = [&HeapBuffers, &arena];
        for buffers in buffers {
            for align in [0, 3, 48, 96, 4097] {
                for length in [0, 100, 100_000, 16 << 20] {
                    assert!(buffers.allocate(length, align).is_none(), "{length} bytes at {align}");
                }
            }
        }
    }

    /// An allocator maps 128 KiB and more separately, at a page and 16 bytes, where copies are
    /// slow.
    #[test]
    fn buffers_of_any_length_begin_at_a_cache_line() {
        let arena = crate::ArenaBuffers::default();
        let buffers: [&dyn Buffers; 2] = [&HeapBuffers, &arena];
        for buffers in buffers {
            for _ in 0..2 {
                let lengths = [1, 100, 1000, 8192, 10_000, 110_000, 131_072, 300_000, 4 << 20, 9 << 20];
                for (length, align) in lengths.into_iter().flat_map(|length| [(length, 1), (length, 4096)]) {
                    let held: Vec<Buffer> =
                        (0..3).map(|_| buffers.allocate(length, align).unwrap()).collect();
                    for mut buffer in held {
                        buffer.extend(&[7]);
                        let address = buffer.freeze().as_ptr() as usize;
                        assert!(
                            address.is_multiple_of(align.max(CACHE_LINE)),
                            "{length} bytes at {address:#x}"
                        );
                    }
                }
            }
        }
    }
}
