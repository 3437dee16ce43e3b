//! The address space of an arena: its regions, and which of their pages are in use.
//!
//! A huge page without a buffer is *idle* while it holds physical memory. Idle pages are given back
//! in the order in which they became idle. A page that is reused meanwhile leaves that order. A
//! region without buffers and without idle pages is given back as a whole.
//!
//! A page counts as holding memory from its first use on, whether its buffers were filled or not.
//! Nothing here touches the memory or reads a clock, so a model can check it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use super::extents::FreeExtents;

/// The length of a huge page. Regions are aligned to it.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Memory in regions, each of which is kept alive by an `M`.
#[derive(Debug)]
pub(super) struct Space<M> {
    regions: BTreeMap<usize, RegionPages<M>>,
    extents: FreeExtents,
    /// Pages in the order in which they became idle. Some are in use again.
    idle: VecDeque<(Instant, usize)>,
    idle_bytes: usize,
    in_use: usize,
}

/// A region and its huge pages.
#[derive(Debug)]
struct RegionPages<M> {
    memory: M,
    range: Range<usize>,
    pages: Box<[HugePage]>,
    in_use: usize,
    /// The number of pages that hold memory.
    resident: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct HugePage {
    /// Bytes of buffers in it.
    in_use: u32,
    is_resident: bool,
    idle_since: Option<Instant>,
}

/// Memory that the kernel gets back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unused<M> {
    /// The contents of these bytes.
    Page(Range<usize>),
    /// A whole region.
    Region(M),
}

impl<M> Default for Space<M> {
    fn default() -> Self {
        let (regions, extents, idle) = Default::default();
        Self { regions, extents, idle, idle_bytes: 0, in_use: 0 }
    }
}

impl<M> RegionPages<M> {
    /// The pages that `part` overlaps: the index, and the number of its bytes in each.
    fn overlaps(&self, part: Range<usize>) -> impl Iterator<Item = (usize, usize)> + use<M> {
        let start = self.range.start;
        let first = (part.start - start) / HUGE_PAGE;
        let last = (part.end - 1 - start) / HUGE_PAGE;
        (first..=last).map(move |page| {
            let begin = start + page * HUGE_PAGE;
            (page, part.end.min(begin + HUGE_PAGE) - part.start.max(begin))
        })
    }

    fn page_range(&self, page: usize) -> Range<usize> {
        let begin = self.range.start + page * HUGE_PAGE;
        begin..self.range.end.min(begin + HUGE_PAGE)
    }
}

impl<M> Space<M> {
    /// Whether there is no region.
    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Bytes of buffers.
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Bytes of idle pages.
    pub(super) fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// Adds a free region at `address`, a multiple of [`HUGE_PAGE`], that holds no memory yet.
    pub(super) fn add(&mut self, memory: M, address: usize, length: usize) {
        let range = address..address + length;
        let pages = vec![HugePage::default(); length.div_ceil(HUGE_PAGE)].into_boxed_slice();
        self.extents.put(address, length, &range);
        self.regions.insert(address, RegionPages { memory, range, pages, in_use: 0, resident: 0 });
    }

    /// Takes `length` bytes at a multiple of `align`. Returns their address.
    pub(super) fn take(&mut self, length: usize, align: usize) -> Option<usize> {
        let address = self.extents.take(length, align)?;
        self.in_use += length;
        let (_, region) = self.regions.range_mut(..=address).next_back()?;
        region.in_use += length;
        for (at, bytes) in region.overlaps(address..address + length) {
            let page = &mut region.pages[at];
            if page.idle_since.take().is_some() {
                self.idle_bytes -= region.page_range(at).len();
            }
            let page = &mut region.pages[at];
            page.in_use += bytes as u32;
            region.resident += usize::from(!page.is_resident);
            page.is_resident = true;
        }
        Some(address)
    }

    /// The region of `address`, and where it begins.
    pub(super) fn region_of(&mut self, address: usize) -> Option<(usize, &mut M)> {
        let (start, region) = self.regions.range_mut(..=address).next_back()?;
        Some((*start, &mut region.memory))
    }

    /// Frees bytes that were taken. Returns whether a page became idle.
    pub(super) fn put(&mut self, address: usize, length: usize, now: impl Fn() -> Instant) -> bool {
        let Some((_, region)) = self.regions.range_mut(..=address).next_back() else { return false };
        self.extents.put(address, length, &region.range);
        self.in_use -= length;
        region.in_use -= length;
        let mut is_idle = false;
        for (at, bytes) in region.overlaps(address..address + length) {
            let range = region.page_range(at);
            let page = &mut region.pages[at];
            page.in_use -= bytes as u32;
            if page.in_use == 0 {
                let since = now();
                page.idle_since = Some(since);
                self.idle_bytes += range.len();
                self.idle.push_back((since, range.start));
                is_idle = true;
            }
        }
        is_idle
    }

    /// When the page that is idle for longest became so.
    pub(super) fn oldest_idle(&mut self) -> Option<Instant> {
        while let Some(&(since, address)) = self.idle.front() {
            let region = self.regions.range(..=address).next_back();
            let page = region.and_then(|(start, region)| region.pages.get((address - start) / HUGE_PAGE));
            if page.is_some_and(|page| page.idle_since == Some(since)) {
                return Some(since);
            }
            self.idle.pop_front();
        }
        None
    }

    /// Gives back the page that is idle for longest, or the region if that was its last one. The
    /// caller gives the memory to the kernel before it takes other memory.
    pub(super) fn give_back(&mut self) -> Option<Unused<M>> {
        self.oldest_idle()?;
        let (_, address) = self.idle.pop_front()?;
        let (&start, region) = self.regions.range_mut(..=address).next_back()?;
        let at = (address - start) / HUGE_PAGE;
        let range = region.page_range(at);
        region.pages[at] = HugePage::default();
        region.resident -= 1;
        self.idle_bytes -= range.len();
        if region.in_use > 0 || region.resident > 0 {
            return Some(Unused::Page(range));
        }
        let region = self.regions.remove(&start)?;
        self.extents.remove(start, region.range.len());
        Some(Unused::Region(region.memory))
    }
}
