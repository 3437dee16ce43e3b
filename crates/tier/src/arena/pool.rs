//! The memory of one lifetime.
//!
//! One lock per pool protects its tables. It is held while the kernel maps a region or takes a huge
//! page back. The latter takes 20 to 100 us. Where other processes can map it, it takes 400 to
//! 500 us for 2 MiB, because the kernel then frees small pages one by one.
//!
//! A forked child never takes the lock, because a thread of its parent may hold it. There a dropped
//! buffer stays allocated, until the child ends, and so does the pool. The price is memory that the
//! child does not reuse.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::extents::CACHE_LINE;
use super::forks;
use super::recent::RecentBuffers;
use super::region::{PageSize, Reached, Region};
use super::shared_region::SharedRegions;
use super::space::{HUGE_PAGE, Space, Unused};

/// The length of a region. Longer buffers have a region each.
pub(super) const REGION: usize = 32 << 20;

/// After a huge page that took long, so many regions get small pages.
const SLOW_PAUSE: usize = 8;

/// The size of the kernel's pages is a divisor of this.
const PAGE: usize = 64 << 10;

/// Memory that is not reused for this long goes back to the kernel.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// Without a timer, idle memory goes back this late.
const OVERDUE: Duration = Duration::from_secs(2);

/// The state that the pools of an arena share.
#[derive(Debug, Default)]
pub(super) struct IdleMemory {
    /// How much idle memory and buffers may exceed the most buffers so far, in bytes.
    pub(super) limit: usize,
    /// Idle bytes of all pools.
    pub(super) bytes: AtomicUsize,
    /// Bytes of buffers of all pools, and the most so far.
    in_use: AtomicUsize,
    most: AtomicUsize,
    /// The number of next regions that get small pages.
    pause: AtomicUsize,
    /// The regions that other processes can map.
    pub(super) shared: Arc<SharedRegions>,
    /// Wakes the timer when memory becomes idle.
    pub(super) wake: Notify,
}

impl IdleMemory {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    fn taken(&self, bytes: usize) {
        let now = self.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    fn returned(&self, bytes: usize) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The pages of a new region. The host of a virtual machine may have to provide the memory. For
    /// a huge page it then takes milliseconds, twice as long as for its parts one by one.
    fn page_size(&self) -> PageSize {
        let paused =
            self.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if paused.is_ok() { PageSize::Small } else { PageSize::Huge }
    }

    /// Whether more memory is idle than buffers had before. Buffers that come and go reuse it.
    fn is_too_much(&self) -> bool {
        let spare = self.most.load(Ordering::Relaxed).saturating_sub(self.in_use.load(Ordering::Relaxed));
        self.bytes.load(Ordering::Relaxed) > self.limit.saturating_add(spare)
    }
}

/// The memory of one lifetime.
#[derive(Debug)]
pub(crate) struct Pool {
    forks: u32,
    idle: Arc<IdleMemory>,
    /// Whether buffers that were dropped last are reused first.
    has_recent: bool,
    tables: ManuallyDrop<Mutex<Tables>>,
}

#[derive(Debug, Default)]
struct Tables {
    space: Space<Region>,
    /// They count as used in the space.
    recent: RecentBuffers,
}

/// The bytes that a buffer takes. `None` if there cannot be as many.
fn taken(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(if length > REGION { PAGE } else { CACHE_LINE })
}

impl Pool {
    pub(super) fn new(idle: Arc<IdleMemory>, has_recent: bool) -> Arc<Self> {
        Arc::new(Self { forks: forks::count(), idle, has_recent, tables: ManuallyDrop::default() })
    }

    /// Whether the process that made the pool is the current one, and not its parent.
    pub(super) fn is_own(&self) -> bool {
        self.forks == forks::count()
    }

    /// Every change of the tables is complete when the lock is released, even after a panic.
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of buffers.
    pub(super) fn in_use(&self) -> usize {
        if !self.is_own() {
            return 0;
        }
        let tables = self.tables();
        tables.space.in_use() - tables.recent.bytes()
    }

    /// Bytes of pages that hold memory.
    pub(super) fn resident(&self) -> usize {
        if self.is_own() { self.tables().space.resident() } else { 0 }
    }

    /// Memory of at least `length` bytes, which must not be zero, at a multiple of `align`: at most
    /// [`HUGE_PAGE`]. `None` if memory is short. The pool must be this process's.
    pub(super) fn allocate(self: &Arc<Self>, length: usize, align: usize) -> Option<ArenaMemory> {
        debug_assert!(length > 0 && align.is_power_of_two() && align <= HUGE_PAGE && self.is_own());
        let (size, align) = (taken(length)?, align.max(CACHE_LINE));
        let mut tables = self.tables();
        if let Some((address, size)) = tables.recent.take(size, align) {
            drop(tables);
            return self.memory(address, size);
        }
        let space = &mut tables.space;
        let idle = space.idle_bytes();
        let address = match space.take(size, align) {
            Some(address) => address,
            None => {
                let length = size.max(REGION);
                // A small memory tier would lose up to a huge page.
                let is_first = space.is_empty() && length == REGION;
                let pages = if is_first { PageSize::Small } else { self.idle.page_size() };
                let region = self.map(length, pages)?;
                let start = region.address();
                let unit = region.unit();
                space.add(region, start, length, unit);
                space.take(size, align)?
            }
        };
        let reused = idle - space.idle_bytes();
        if reused > 0 {
            self.idle.bytes.fetch_sub(reused, Ordering::Relaxed);
        }
        if let Some((start, region)) = space.region_of(address) {
            match region.reach(address - start..address + size - start) {
                Reached::Fast => {}
                Reached::Slow => self.idle.pause.store(SLOW_PAUSE, Ordering::Relaxed),
                Reached::Failed => {
                    let idle = space.idle_bytes();
                    space.put(address, size, Instant::now);
                    self.idle.bytes.fetch_add(space.idle_bytes() - idle, Ordering::Relaxed);
                    drop(tables);
                    self.idle.wake.notify_one();
                    return None;
                }
            }
        }
        drop(tables);
        self.memory(address, size)
    }

    /// A new region, shared if that is wanted and possible.
    fn map(&self, length: usize, pages: PageSize) -> Option<Region> {
        let shared = &self.idle.shared;
        let region = if shared.is_on() { Region::map_shared(length, pages, shared) } else { None };
        region.or_else(|| Region::map(length, pages))
    }

    fn memory(self: &Arc<Self>, address: usize, size: usize) -> Option<ArenaMemory> {
        self.idle.taken(size);
        let pointer = NonNull::new(std::ptr::with_exposed_provenance_mut(address))?;
        Some(ArenaMemory { pointer, size, pool: Arc::clone(self) })
    }

    fn put(&self, address: usize, size: usize) {
        if !self.is_own() {
            return;
        }
        self.idle.returned(size);
        let mut tables = self.tables();
        let Tables { space, recent } = &mut *tables;
        let idle = space.idle_bytes();
        let mut is_first = false;
        if self.has_recent {
            is_first = recent.is_empty();
            recent.add(address, size, |address, size| {
                space.put(address, size, Instant::now);
            });
        } else {
            space.put(address, size, Instant::now);
        }
        let more = space.idle_bytes() - idle;
        is_first |= idle == 0 && more > 0;
        let is_overdue = more > 0 && space.oldest_idle().is_some_and(|since| since.elapsed() > OVERDUE);
        drop(tables);
        if is_first {
            self.idle.wake.notify_one();
        }
        if more == 0 {
            return;
        }
        self.idle.bytes.fetch_add(more, Ordering::Relaxed);
        if is_overdue {
            while self.give_back(|since| since.elapsed() > IDLE) {}
        }
        while self.idle.is_too_much() && self.give_back(|_| true) {}
    }

    /// Puts buffers that were dropped long ago into the tables.
    pub(super) fn tick(&self) {
        if !self.is_own() {
            return;
        }
        let mut tables = self.tables();
        let Tables { space, recent } = &mut *tables;
        let idle = space.idle_bytes();
        for (address, size) in recent.tick() {
            space.put(address, size, Instant::now);
        }
        self.idle.bytes.fetch_add(space.idle_bytes() - idle, Ordering::Relaxed);
    }

    /// Whether a page is idle, or a buffer that was dropped waits for the next one.
    pub(super) fn has_idle(&self) -> bool {
        if !self.is_own() {
            return false;
        }
        let mut tables = self.tables();
        !tables.recent.is_empty() || tables.space.oldest_idle().is_some()
    }

    /// Gives one idle page to the kernel, if it is idle since a time that `is_due`. Returns whether
    /// there was one.
    pub(super) fn give_back(&self, is_due: impl Fn(Instant) -> bool) -> bool {
        if !self.is_own() {
            return false;
        }
        let mut tables = self.tables();
        let space = &mut tables.space;
        if !space.oldest_idle().is_some_and(is_due) {
            return false;
        }
        let idle = space.idle_bytes();
        let unused = space.give_back();
        let less = idle - space.idle_bytes();
        if let Some(Unused::Page(bytes)) = &unused
            && let Some((start, region)) = space.region_of(bytes.start)
        {
            // SAFETY: the bytes are a huge page of this region, or the shorter one at its end. No
            // buffer lies in it, and none is allocated under the lock.
            unsafe { region.discard(bytes.start - start..bytes.end - start) };
        }
        self.idle.bytes.fetch_sub(less, Ordering::Relaxed);
        drop(tables);
        // A region is unmapped here, without the lock.
        unused.is_some()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: dropped once, here, and not used after. In a forked child the tables may be
            // in the middle of a change, so there they are left alone. Buffers hold the pool, so
            // none lies in its regions any more.
            unsafe { ManuallyDrop::drop(&mut self.tables) };
        }
    }
}

/// Memory of a pool, which returns there when it is dropped.
#[derive(Debug)]
pub(crate) struct ArenaMemory {
    pointer: NonNull<u8>,
    size: usize,
    pool: Arc<Pool>,
}

// SAFETY: the memory is owned by this value alone and is plain bytes.
unsafe impl Send for ArenaMemory {}
// SAFETY: shared references only read.
unsafe impl Sync for ArenaMemory {}

impl ArenaMemory {
    /// The first byte. The memory is valid for reads and writes as long as this value lives.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// The length in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }
}

impl Drop for ArenaMemory {
    fn drop(&mut self) {
        self.pool.put(self.pointer.as_ptr().expose_provenance(), self.size);
    }
}
