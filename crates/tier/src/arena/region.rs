//! Memory of the kernel: mapped, given back page by page, and unmapped.

use std::ops::Range;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::space::HUGE_PAGE;

/// A huge page that takes longer is provided by the host of a virtual machine. The kernel clears
/// one in 40 to 200 us.
const SLOW: Duration = Duration::from_micros(700);

/// The pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageSize {
    Small,
    /// Where the kernel has them.
    Huge,
}

/// Anonymous private memory, aligned to huge pages. Dropping it unmaps it.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    length: usize,
    /// The bytes whose pages were [looked at](Self::reach), from the start.
    looked_at: usize,
}

// SAFETY: the mapping is owned by this value alone and is plain bytes.
unsafe impl Send for Region {}

impl Region {
    /// Maps `length` bytes, a multiple of the page size and not zero. `None` if memory or address
    /// space is short.
    pub(super) fn map(length: usize, pages: PageSize) -> Option<Self> {
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
        let mut region = Self { start, length, looked_at: length };
        if pages == PageSize::Huge {
            // SAFETY: the advice changes the size of this mapping's pages and not its contents.
            // Kernels without huge pages refuse it.
            let advised = unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxHugepage) };
            region.looked_at = if advised.is_ok() { 0 } else { length };
        }
        Some(region)
    }

    /// Gets the huge pages of all bytes before `end`, unless that was done before. If one comes
    /// slowly, the rest gets small pages. Returns whether one did.
    ///
    /// Buffers are taken from the beginning of a new region, so the pages are needed now.
    pub(super) fn reach(&mut self, end: usize) -> bool {
        while self.looked_at < end.min(self.length) {
            let (at, left) = (self.looked_at, self.length - self.looked_at);
            self.looked_at += HUGE_PAGE.min(left);
            let begun = Instant::now();
            // SAFETY: `at` is below the length, so the bytes are this mapping's. Those that hold
            // something keep it. Kernels before 5.14 refuse it.
            let start = unsafe {
                let start = self.start.add(at).as_ptr();
                let _ = madvise(start.cast(), HUGE_PAGE.min(left), Advice::LinuxPopulateWrite);
                start
            };
            if begun.elapsed() >= SLOW {
                // SAFETY: as for the opposite advice in `map`.
                let _ = unsafe { madvise(start.cast(), left, Advice::LinuxNoHugepage) };
                self.looked_at = self.length;
                return true;
            }
        }
        false
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
