//! Memory of the kernel: mapped, given back page by page, and unmapped.
//!
//! A private region is anonymous memory. A shared one is a [file](super::shared_region) that other
//! processes map as well.
//!
//! * *Fresh pages come in advance*, for a piece of the region at a time. A huge page is a piece. In
//!   shared regions pieces are short: the kernel seldom has huge pages for files, and 2 MiB of
//!   small ones take a millisecond. Huge pages come whole with their first piece where it has them.
//! * *Missing memory is detected.* The kernel ends a process that touches a page of a file for
//!   which there is no memory. So a buffer in a shared region exists only after its pages. Kernels
//!   before 5.14 cannot get pages in advance.
//! * A forked child does not have the shared regions of its parent. Otherwise their contents would
//!   change there when the parent reuses them.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::shared_region::{SharedRegion, SharedRegions};
use super::space::HUGE_PAGE;

/// A huge page that takes longer is provided by the host of a virtual machine. The kernel clears
/// one in 40 to 200 us.
const SLOW: Duration = Duration::from_micros(700);

/// The bytes of a shared region with small pages that come and go together.
const SMALL_UNIT: usize = 16 << 10;

/// The bytes of a shared region that come and go together.
///
/// A lock would stay locked in a child that is forked while another thread looks. So two threads
/// may look at once.
fn shared_unit() -> usize {
    static UNIT: AtomicUsize = AtomicUsize::new(0);
    let known = UNIT.load(Ordering::Relaxed);
    if known > 0 {
        return known;
    }
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let has_huge = setting.is_ok_and(|text| !text.contains("[never]") && !text.contains("[deny]"));
    let unit = if has_huge { HUGE_PAGE } else { SMALL_UNIT };
    UNIT.store(unit, Ordering::Relaxed);
    unit
}

/// The pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageSize {
    Small,
    /// Where the kernel has them.
    Huge,
}

/// How the pages of a buffer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Fast,
    /// A huge page came slowly. The rest of the region gets small ones.
    Slow,
    /// Memory is short. The bytes must not be touched.
    Failed,
}

/// Memory, aligned to huge pages. Dropping it unmaps it.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    length: usize,
    /// Whether pages that come later may be huge.
    is_huge: bool,
    /// The length of a piece.
    piece: usize,
    /// The pieces whose pages still have to [come](Self::reach).
    pending: Box<[bool]>,
    shared: Option<(Arc<SharedRegion>, Arc<SharedRegions>)>,
}

// SAFETY: the mapping is owned by this value alone and is plain bytes.
unsafe impl Send for Region {}

impl Region {
    /// Maps `length` bytes of private memory, a multiple of the page size and not zero. `None` if
    /// memory or address space is short.
    pub(super) fn map(length: usize, pages: PageSize) -> Option<Self> {
        let start = reserve(length, ProtFlags::READ | ProtFlags::WRITE)?;
        let mut region = Self::new(start, length, HUGE_PAGE);
        region.allow_huge(pages);
        region.pending.fill(region.is_huge);
        Some(region)
    }

    /// The same, as memory that other processes can map, and adds it to `regions`. `None` as well
    /// if the system or a limit of the process does not allow that.
    pub(super) fn map_shared(length: usize, pages: PageSize, regions: &Arc<SharedRegions>) -> Option<Self> {
        let (shared, writable) = SharedRegion::create(length)?;
        let start = reserve(length, ProtFlags::empty())?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: it replaces exactly the range that was just reserved, to which nothing refers.
        // The file is as long, and its size is sealed.
        let mapping = unsafe { mmap(start.as_ptr().cast(), length, protection, flags, &writable, 0) };
        // After a failure the range may be a hole, and another thread may have mapped memory there.
        // So it is not unmapped. The price is address space, where that was short already.
        mapping.ok()?;
        let mut region = Self::new(start, length, shared_unit());
        // SAFETY: the contents stay, and no buffer lies in the region yet. A child that was forked
        // before this has the mapping, but no buffer in it either.
        unsafe { region.advise(0..length, Advice::LinuxDontFork) }.ok()?;
        region.allow_huge(pages);
        region.pending.fill(true);
        let shared = Arc::new(shared);
        // The region holds the table before it changes it, for the sake of forked children.
        region.shared = Some((Arc::clone(&shared), Arc::clone(regions)));
        regions.add(region.address(), &shared);
        Some(region)
    }

    /// The owner of a mapping, with no piece pending.
    fn new(start: NonNull<u8>, length: usize, piece: usize) -> Self {
        let pending = vec![false; length.div_ceil(piece)].into_boxed_slice();
        Self { start, length, is_huge: false, piece, pending, shared: None }
    }

    fn allow_huge(&mut self, pages: PageSize) {
        if pages == PageSize::Huge {
            // SAFETY: the advice changes the size of pages and not their contents. Kernels without
            // huge pages refuse it.
            self.is_huge = unsafe { self.advise(0..self.length, Advice::LinuxHugepage) }.is_ok();
        }
    }

    /// Gives the kernel advice on these bytes, counted from the start.
    ///
    /// # Safety
    /// The bytes lie in the region. If the advice drops contents, no buffer lies in them.
    unsafe fn advise(&self, bytes: Range<usize>, advice: Advice) -> rustix::io::Result<()> {
        debug_assert!(bytes.start <= bytes.end && bytes.end <= self.length);
        // SAFETY: the caller guarantees that the bytes lie in the mapping, which lives as long as
        // `self`, and that nothing refers to contents that are dropped.
        unsafe { madvise(self.start.add(bytes.start).as_ptr().cast(), bytes.len(), advice) }
    }

    /// Gets the pages of these bytes, counted from the start, unless that was done before. A
    /// private region does so for huge pages alone.
    pub(super) fn reach(&mut self, bytes: Range<usize>) -> Reached {
        let mut reached = Reached::Fast;
        let pieces = self.pieces(&bytes);
        let (mut next, end) = (pieces.start, pieces.end);
        while next < end {
            let count = self.pending[next..end].iter().take_while(|pending| **pending).count();
            if count == 0 {
                next += 1;
                continue;
            }
            // Small pages come in one call. A slow huge one must be noticed before the next.
            let count = if self.piece < HUGE_PAGE { count } else { 1 };
            let at = next * self.piece;
            let begun = Instant::now();
            // SAFETY: a pending piece begins before the end of the region. Bytes that hold
            // something keep it. Kernels before 5.14 refuse it, and pages then come when touched.
            let done = unsafe {
                self.advise(at..self.length.min(at + count * self.piece), Advice::LinuxPopulateWrite)
            };
            if self.shared.is_some() && matches!(done, Err(Errno::NOMEM | Errno::FAULT)) {
                return Reached::Failed;
            }
            self.pending[next..next + count].fill(false);
            next += count;
            // Small pages that come slowly have no remedy. So a region reports that once.
            if self.is_huge && begun.elapsed() >= SLOW {
                // SAFETY: as for the opposite advice in `allow_huge`.
                let _ = unsafe { self.advise(at..self.length, Advice::LinuxNoHugepage) };
                self.is_huge = false;
                if self.shared.is_none() {
                    self.pending.fill(false);
                }
                reached = Reached::Slow;
            }
        }
        reached
    }

    /// Gives the contents of these bytes, counted from the start, back to the kernel. They stay if
    /// it refuses.
    ///
    /// # Safety
    /// The bytes lie in the region, are whole huge pages or end with it, and belong to no buffer.
    pub(super) unsafe fn discard(&mut self, bytes: Range<usize>) {
        // The other advice would leave a file's pages in memory.
        let advice = if self.shared.is_some() { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        // SAFETY: guaranteed by the caller.
        let _ = unsafe { self.advise(bytes.clone(), advice) };
        if self.shared.is_some() {
            let pieces = self.pieces(&bytes);
            self.pending[pieces].fill(true);
        }
    }

    /// The pieces that these bytes overlap.
    fn pieces(&self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start / self.piece..bytes.end.div_ceil(self.piece)
    }

    /// The bytes that go back to the kernel together, a divisor of the huge page.
    pub(super) fn unit(&self) -> usize {
        self.piece
    }

    /// The address of the first byte.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }
}

/// Maps `length` bytes of private memory, aligned to huge pages.
fn reserve(length: usize, protection: ProtFlags) -> Option<NonNull<u8>> {
    let mapped = length.checked_add(HUGE_PAGE)?;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
    let mapping = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) };
    let mapping = NonNull::new(mapping.ok()?.cast::<u8>())?;
    let before = mapping.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
    let after = HUGE_PAGE - before;
    // SAFETY: the mapping is `before + length + after` bytes long, so all three parts lie in it.
    // The outer two were just mapped, and nothing uses them. A failure leaves them mapped and
    // untouched, which costs address space alone.
    unsafe {
        let start = mapping.add(before);
        if before > 0 {
            let _ = munmap(mapping.as_ptr().cast(), before);
        }
        if after > 0 {
            let _ = munmap(start.add(length).as_ptr().cast(), after);
        }
        Some(start)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some((_, regions)) = &self.shared {
            // Other memory may get the address once it is free.
            regions.remove(self.address());
            // Processes that still map the region would keep its pages.
            // SAFETY: a region is dropped when no buffer lies in it.
            let _ = unsafe { self.advise(0..self.length, Advice::LinuxRemove) };
        }
        // SAFETY: mapped by `map` or `map_shared`, with this length, and not yet unmapped. A region
        // is dropped when no buffer lies in it, so no reference into it exists. In a forked child,
        // where the range may be other memory, no region of the parent is dropped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
