//! The address space of an arena: its regions, and which of their pages are in use.
//!
//! A page here is the unit that goes back to the kernel: a huge page, or less in regions that have
//! small ones. A page without a buffer is *idle* while it holds physical memory. Idle pages are
//! given back in the order in which they became idle, neighbours together. A page that is reused
//! meanwhile leaves that order. A region without buffers and without idle pages is given back as a
//! whole.
//!
//! A page counts as holding memory from its first use on, whether its buffers were filled or not.
//! Nothing here touches the memory or reads a clock, so a model can check it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::extents::FreeExtents;

/// Neighbours that became idle within this time are given back together.
const TOGETHER: Duration = Duration::from_millis(100);

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
    /// Bytes of pages that hold memory.
    resident: usize,
}

/// A region and its pages.
#[derive(Debug)]
struct RegionPages<M> {
    memory: M,
    range: Range<usize>,
    /// The length of a page.
    unit: usize,
    pages: Box<[Page]>,
    in_use: usize,
    /// The number of pages that hold memory.
    resident: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Bytes of buffers in it.
    in_use: u32,
    is_resident: bool,
    idle_since: Option<Instant>,
}

/// Memory that the kernel gets back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unused<M> {
    /// The contents of these bytes: one or more pages.
    Page(Range<usize>),
    /// A whole region.
    Region(M),
}

impl<M> Default for Space<M> {
    fn default() -> Self {
        let (regions, extents, idle) = Default::default();
        Self { regions, extents, idle, idle_bytes: 0, in_use: 0, resident: 0 }
    }
}

impl<M> RegionPages<M> {
    /// The pages that `part` overlaps: the index, and the number of its bytes in each.
    fn overlaps(&self, part: Range<usize>) -> impl Iterator<Item = (usize, usize)> + use<M> {
        let (start, unit) = (self.range.start, self.unit);
        let first = (part.start - start) / unit;
        let last = (part.end - 1 - start) / unit;
        (first..=last).map(move |page| {
            let begin = start + page * unit;
            (page, part.end.min(begin + unit) - part.start.max(begin))
        })
    }

    fn page_range(&self, page: usize) -> Range<usize> {
        let begin = self.range.start + page * self.unit;
        begin..self.range.end.min(begin + self.unit)
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

    /// Bytes of pages that hold memory: buffers, the space between them, and idle pages.
    pub(super) fn resident(&self) -> usize {
        self.resident
    }

    /// Adds a free region at `address`, a multiple of [`HUGE_PAGE`], that holds no memory yet. Its
    /// pages have `unit` bytes.
    pub(super) fn add(&mut self, memory: M, address: usize, length: usize, unit: usize) {
        let range = address..address + length;
        let pages = vec![Page::default(); length.div_ceil(unit)].into_boxed_slice();
        self.extents.put(address, length, &range);
        self.regions.insert(address, RegionPages { memory, range, unit, pages, in_use: 0, resident: 0 });
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
            if !std::mem::replace(&mut page.is_resident, true) {
                region.resident += 1;
                self.resident += region.page_range(at).len();
            }
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
        let mut since = None;
        for (at, bytes) in region.overlaps(address..address + length) {
            let range = region.page_range(at);
            let page = &mut region.pages[at];
            page.in_use -= bytes as u32;
            if page.in_use == 0 {
                let since = *since.get_or_insert_with(&now);
                page.idle_since = Some(since);
                self.idle_bytes += range.len();
                self.idle.push_back((since, range.start));
            }
        }
        since.is_some()
    }

    /// When the page that is idle for longest became so.
    pub(super) fn oldest_idle(&mut self) -> Option<Instant> {
        while let Some(&(since, address)) = self.idle.front() {
            let region = self.regions.range(..=address).next_back();
            let page = region.and_then(|(start, region)| region.pages.get((address - start) / region.unit));
            if page.is_some_and(|page| page.idle_since == Some(since)) {
                return Some(since);
            }
            self.idle.pop_front();
        }
        None
    }

    /// Gives back the page that is idle for longest, with neighbours up to a huge page, or the
    /// region if that was its last one. The caller gives the memory to the kernel before it takes
    /// other memory.
    pub(super) fn give_back(&mut self) -> Option<Unused<M>> {
        let since = self.oldest_idle()?;
        let (_, address) = self.idle.pop_front()?;
        let (&start, region) = self.regions.range_mut(..=address).next_back()?;
        let first = (address - start) / region.unit;
        let most = (HUGE_PAGE / region.unit).max(1);
        let is_due = |page: &Page| page.idle_since.is_some_and(|idle| idle <= since + TOGETHER);
        let count = region.pages[first..].iter().take(most).take_while(|page| is_due(page)).count().max(1);
        let range = region.page_range(first).start..region.page_range(first + count - 1).end;
        region.pages[first..first + count].fill(Page::default());
        region.resident -= count;
        self.idle_bytes -= range.len();
        self.resident -= range.len();
        if region.in_use > 0 || region.resident > 0 {
            return Some(Unused::Page(range));
        }
        let region = self.regions.remove(&start)?;
        self.extents.remove(start, region.range.len());
        Some(Unused::Region(region.memory))
    }
}
