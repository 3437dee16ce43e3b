//! Where the memory for samples comes from: one seam for plain, aligned, pinned and shared memory.
//!
//! A [`Buffer`] is memory of an exact length that is filled from its beginning and then frozen into
//! [`Bytes`] without a copy. It is handed out uninitialised, because clearing 100 KB costs a third of reading it from
//! the page cache; [`Buffer::fill`] keeps that safe.

use std::alloc::Layout;
use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use bytes::Bytes;

/// Hands out memory for samples.
pub trait Buffers: Debug + Send + Sync + 'static {
    /// Memory for exactly `length` bytes that begins at a multiple of `align` (a power of two).
    fn allocate(&self, length: usize, align: usize) -> Buffer;
}

/// Memory from the program's allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapBuffers;

impl Buffers for HeapBuffers {
    fn allocate(&self, length: usize, align: usize) -> Buffer {
        Buffer::heap(length, align)
    }
}

/// Memory that is being filled.
#[derive(Debug)]
pub struct Buffer {
    memory: Heap,
    filled: usize,
}

impl Buffer {
    /// `length` bytes from the program's allocator, at a multiple of `align`.
    ///
    /// # Panics
    /// If `align` is no power of two or the length exceeds `isize::MAX`. Aborts if memory is exhausted.
    pub fn heap(length: usize, align: usize) -> Self {
        Self { memory: Heap::new(length, align), filled: 0 }
    }

    /// How many bytes it holds when full.
    pub fn capacity(&self) -> usize {
        self.memory.layout.size()
    }

    /// How many bytes have been filled.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Lets `read` fill a part of what is still empty. It returns the part that it initialised, which must begin
    /// where the slice it was given begins (as `rustix::io::pread` returns it); the number of bytes is returned.
    ///
    /// # Errors
    /// Those of `read`; nothing counts as filled then.
    ///
    /// # Panics
    /// If `read` returns another slice than the beginning of what it was given.
    pub fn fill<E>(
        &mut self,
        read: impl for<'a> FnOnce(&'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], E>,
    ) -> Result<usize, E> {
        let empty = &mut self.memory.as_uninit()[self.filled..];
        let (start, room) = (empty.as_ptr().cast::<u8>(), empty.len());
        let done = read(empty)?;
        // A `&mut [u8]` is initialised memory; that it is *this* memory is what has to be checked.
        assert!(done.is_empty() || (done.as_ptr() == start && done.len() <= room), "a read filled other memory");
        let count = done.len();
        self.filled += count;
        Ok(count)
    }

    /// Copies `bytes` in behind what has been filled.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn extend(&mut self, bytes: &[u8]) {
        let empty = &mut self.memory.as_uninit()[self.filled..][..bytes.len()];
        empty.write_copy_of_slice(bytes);
        self.filled += bytes.len();
    }

    /// The filled part, shared from now on. The allocation lives until the last handle is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the first `filled` bytes were initialised through `fill` or `extend`, the memory is ours, at least
        // `filled` bytes long, and nobody writes to it while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.pointer.as_ptr(), self.filled) }
    }
}

/// An allocation that is neither initialised nor grown.
#[derive(Debug)]
struct Heap {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation is owned by this value alone and is plain bytes.
unsafe impl Send for Heap {}
// SAFETY: shared references only read (`Buffer::as_ref`).
unsafe impl Sync for Heap {}

impl Heap {
    fn new(length: usize, align: usize) -> Self {
        let layout = match Layout::from_size_align(length, align) {
            Ok(layout) => layout,
            Err(error) => panic!("a buffer of {length} bytes at a multiple of {align}: {error}"),
        };
        if length == 0 {
            return Self { pointer: layout.dangling_ptr(), layout };
        }
        // SAFETY: the layout's size is not zero.
        let pointer = unsafe { std::alloc::alloc(layout) };
        match NonNull::new(pointer) {
            Some(pointer) => Self { pointer, layout },
            None => std::alloc::handle_alloc_error(layout),
        }
    }

    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the pointer is valid for `size` bytes (dangling and aligned where that is zero), owned by this
        // value and borrowed mutably; `MaybeUninit` needs no initialisation.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().cast(), self.layout.size()) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated in `new` with this very layout, and not yet freed.
            unsafe { std::alloc::dealloc(self.pointer.as_ptr(), self.layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_in_parts_and_frozen_without_a_copy() {
        let mut buffer = HeapBuffers.allocate(10, 4096);
        buffer.extend(&[1, 2, 3]);
        let count = buffer.fill(|empty| Ok::<_, ()>(empty[..4].write_copy_of_slice(&[4, 5, 6, 7]))).unwrap();
        assert_eq!((count, buffer.filled(), buffer.capacity()), (4, 7, 10));
        let address = buffer.as_ref().as_ptr();
        let bytes = buffer.freeze();
        assert_eq!((&bytes[..], bytes.as_ptr()), (&[1, 2, 3, 4, 5, 6, 7][..], address));
        assert_eq!(address as usize % 4096, 0);
    }

    #[test]
    fn an_empty_buffer_allocates_nothing_and_freezes() {
        assert!(HeapBuffers.allocate(0, 1).freeze().is_empty());
    }

    #[test]
    #[should_panic(expected = "other memory")]
    fn filling_other_memory_is_caught() {
        let other: &'static mut [u8] = Box::leak(vec![0; 4].into_boxed_slice());
        let _ = Buffer::heap(10, 1).fill(|_| Ok::<_, ()>(other));
    }
}
