//! Memory of the kernel: mapped, given back page by page, and unmapped.

use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::space::HUGE_PAGE;

/// Anonymous private memory, aligned to huge pages. Dropping it unmaps it.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned by this value alone and is plain bytes.
unsafe impl Send for Region {}

impl Region {
    /// Maps `length` bytes, a multiple of the page size and not zero. All but the first `small`
    /// bytes get huge pages, where the kernel has them. `None` if memory or address space is short.
    pub(super) fn map(length: usize, small: usize) -> Option<Self> {
        let mapped = length.checked_add(HUGE_PAGE)?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let mapping = NonNull::new(mapping.ok()?.cast::<u8>())?;
        let before = mapping.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
        let after = HUGE_PAGE - before;
        // SAFETY: the mapping is `before + length + after` bytes long, so all three parts lie in
        // it. The outer two were just mapped, and nothing uses them. A failure leaves them mapped
        // and untouched, which costs address space alone.
        let start = unsafe {
            let start = mapping.add(before);
            if before > 0 {
                let _ = munmap(mapping.as_ptr().cast(), before);
            }
            if after > 0 {
                let _ = munmap(start.add(length).as_ptr().cast(), after);
            }
            start
        };
        let small = small.min(length);
        // SAFETY: the advice changes the size of the pages of this mapping and not its contents.
        // Kernels without huge pages refuse it.
        let _ = unsafe { madvise(start.add(small).as_ptr().cast(), length - small, Advice::LinuxHugepage) };
        Some(Self { start, length })
    }

    /// The address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

/// Gives the contents of these bytes back to the kernel. They are zero afterwards.
///
/// # Safety
/// The bytes lie in a living [`Region`], are whole pages, and belong to no buffer.
pub(super) unsafe fn discard(bytes: Range<usize>) {
    let start = std::ptr::with_exposed_provenance_mut(bytes.start);
    // SAFETY: the caller guarantees that the bytes are mapped by this module, so they are private
    // and anonymous, and that nothing refers to their contents. A failure leaves them as they are.
    let _ = unsafe { madvise(start, bytes.len(), Advice::LinuxDontNeed) };
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, with this length, and not yet unmapped. A region is dropped when
        // no buffer lies in it, so no reference into it exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
