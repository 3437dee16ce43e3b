//! Memory for samples, in large regions with huge pages.
//!
//! A sample is read into memory, the trainer drops it some milliseconds or some epochs later, and a
//! sample of about that size follows. Fresh memory costs more than the read: for 110 KB in pages of
//! 4 KiB, 70 to 100 us of faults, and 16 us in pages of 2 MiB. A general allocator maps large
//! buffers one by one, and its holes grow from epoch to epoch where threads have a heap each.
//!
//! So samples lie in regions of 32 MiB that the kernel backs with huge pages. Longer ones have a
//! region each. The first region of a pool has small pages, because a small memory tier would lose
//! up to a huge page. So have regions where a huge page comes slowly: a host that has to provide it
//! to a virtual machine takes longer than for small ones.
//!
//! * *Lifetimes are never mixed.* Samples that are kept, samples that pass and blocks have a
//!   [pool](pool) of regions each. Otherwise one kept sample would hold 2 MiB of passed ones.
//! * *Best fit.* Freed memory is joined with its free neighbours, and the smallest sufficient part
//!   is reused first. Buffers that pass reuse the [last](recent) ones of about their length, which
//!   are still in the processor's caches. Buffers begin at a cache line and are rounded up to one,
//!   which is the price: at most 63 bytes.
//! * *Unused memory goes back.* A huge page without a buffer goes to the kernel after a second, and
//!   a region without buffers is unmapped. Regions that other processes map have small pages, so
//!   there 16 KiB without a buffer go back. A run's [timer](timer) does that. Where there is none,
//!   the next buffer that is dropped does. Idle memory and buffers together take little more than
//!   buffers did before. The price is the fault of a page that is used again later.
//! * *A held buffer holds its huge page.* A trainer that keeps single samples for ever keeps up to
//!   2 MiB with each.
//! * Short samples that pass come from the program's allocator, which handles them well. Kept ones
//!   come from here whatever their length, because there the allocator's holes would stay.
//!
//! * *Other processes can map new regions* once [`share`](Buffers::share) was called. These are
//!   [files in memory](shared_region) then. The price is small pages, because the kernel seldom has
//!   huge ones for files: fresh memory for 110 KB takes 60 us. Regions that exist stay as they are.
//!
//! A forked child may drop buffers of its parent. It may read buffers that the parent allocated
//! before `share`. It does not have the memory of the others, and reading them ends it. It gets its
//! own buffers from the program's allocator, or from an arena of its own.

mod extents;
mod forks;
mod mapped_region;
mod pool;
mod recent;
mod region;
mod shared_region;
mod space;
mod timer;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;

pub(crate) use self::extents::CACHE_LINE;
pub use self::mapped_region::MappedRegion;
pub(crate) use self::pool::ArenaMemory;
use self::pool::{IDLE, IdleMemory, Pool, REGION};
use self::region::{PageSize, Region};
pub use self::shared_region::{SharedPlace, SharedRegion, lasting_descriptor, memory_file};
use self::space::HUGE_PAGE;
use crate::buffers::{Buffer, Buffers, Lifetime};

/// The default of [`ArenaBuffers::new`], in bytes.
const DEFAULT_LIMIT: usize = 32 << 20;

/// Shorter buffers that pass come from the program's allocator.
const SHORT: usize = 8 << 10;

/// Memory in large regions. Clones share it.
#[derive(Clone, Debug)]
pub struct ArenaBuffers(Arc<Pools>);

/// One pool for each lifetime.
#[derive(Debug)]
struct PoolSet {
    passing: Arc<Pool>,
    kept: Arc<Pool>,
    block: Arc<Pool>,
}

/// All pools of an arena.
#[derive(Debug)]
struct Pools {
    private: PoolSet,
    /// From [`share`](Buffers::share) on, all new buffers. So they do not reuse private memory.
    shared: OnceLock<PoolSet>,
    idle: Arc<IdleMemory>,
    /// Whether a forked child can be detected. Otherwise all memory is the program's allocator's.
    is_usable: bool,
}

impl Default for ArenaBuffers {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT)
    }
}

impl ArenaBuffers {
    /// Idle memory and buffers together may exceed the most buffers so far by `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let is_usable = forks::begin_counting();
        let idle = Arc::new(IdleMemory::new(limit));
        let private = PoolSet::new(&idle);
        Self(Arc::new(Pools { private, shared: OnceLock::new(), idle, is_usable }))
    }

    /// Bytes of its buffers, without those of the program's allocator. Zero in a forked child.
    pub fn in_use(&self) -> usize {
        self.0.all().map(|pool| pool.in_use()).sum()
    }

    /// Bytes of pages that hold memory: buffers, and the space between and after them. Zero in a
    /// forked child.
    pub fn resident(&self) -> usize {
        self.0.all().map(|pool| pool.resident()).sum()
    }

    /// Bytes of pages that hold memory and no buffer.
    pub fn idle(&self) -> usize {
        self.0.idle.bytes.load(Ordering::Relaxed)
    }
}

impl PoolSet {
    fn new(idle: &Arc<IdleMemory>) -> Self {
        let pool = |has_recent| Pool::new(Arc::clone(idle), has_recent);
        Self { passing: pool(true), kept: pool(false), block: pool(true) }
    }

    fn of(&self, lifetime: Lifetime) -> &Arc<Pool> {
        match lifetime {
            Lifetime::Passing => &self.passing,
            Lifetime::Kept => &self.kept,
            Lifetime::Block => &self.block,
        }
    }
}

impl Pools {
    fn all(&self) -> impl Iterator<Item = &Arc<Pool>> {
        let sets = [Some(&self.private), self.shared.get()].into_iter().flatten();
        sets.flat_map(|set| [&set.passing, &set.kept, &set.block])
    }

    /// Whether the process that made the arena is the current one, and not its parent.
    fn is_own(&self) -> bool {
        self.private.passing.is_own()
    }

    /// Gives back at most `pages` pages that are idle for a second. Returns whether more may be.
    fn give_back_due(&self, pages: usize) -> bool {
        let mut given = 0;
        for pool in self.all() {
            while given < pages && pool.give_back(|since| since.elapsed() >= IDLE) {
                given += 1;
            }
        }
        given == pages
    }

    fn have_idle(&self) -> bool {
        self.all().any(|pool| pool.has_idle())
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        // In a forked child no timer exists, and its thread may hold the lock.
        if self.is_own() {
            self.idle.wake.notify_one();
        }
    }
}

impl Buffers for ArenaBuffers {
    fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
        self.allocate_for(Lifetime::Passing, length, align)
    }

    fn allocate_for(&self, lifetime: Lifetime, length: usize, align: usize) -> Option<Buffer> {
        let pool = self.0.shared.get().unwrap_or(&self.0.private).of(lifetime);
        let is_heap = length == 0
            || lifetime == Lifetime::Passing && length < SHORT
            || !align.is_power_of_two()
            || align > HUGE_PAGE;
        if is_heap || !self.0.is_usable || !pool.is_own() {
            return Buffer::heap(length, align);
        }
        Some(Buffer::of_arena(pool.allocate(length, align)?, length))
    }

    fn return_unused_on(&self, runtime: &Handle) {
        runtime.spawn(timer::run(Arc::downgrade(&self.0), Arc::clone(&self.0.idle)));
    }

    fn share(&self) -> bool {
        if !self.0.is_usable || !self.0.is_own() {
            return false;
        }
        let shared = &self.0.idle.shared;
        if !shared.is_on() && Region::map_shared(REGION, PageSize::Small, shared).is_some() {
            shared.turn_on();
            self.0.shared.get_or_init(|| PoolSet::new(&self.0.idle));
        }
        shared.is_on()
    }

    fn shared_place(&self, bytes: &[u8]) -> Option<SharedPlace> {
        if !self.0.is_own() {
            return None;
        }
        let (address, length) = (bytes.as_ptr().addr(), bytes.len());
        let own = self.0.idle.shared.place_of(address, length);
        own.or_else(|| mapped_region::place_of(address, length))
    }
}

#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;
