use std::ops::Range;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use proptest::prelude::*;

use super::pool::REGION;
use super::space::{Space, Unused};
use super::*;

const LIFETIMES: [Lifetime; 3] = [Lifetime::Passing, Lifetime::Kept, Lifetime::Block];

pub(super) fn filled(buffers: &ArenaBuffers, lifetime: Lifetime, length: usize, byte: u8) -> Bytes {
    let mut buffer = buffers.allocate_for(lifetime, length, 1).unwrap();
    buffer.put_bytes(byte, length);
    buffer.freeze()
}

/// Whether a page of `bytes` holds memory, by the kernel.
fn is_resident(bytes: &Range<usize>) -> bool {
    let mut pages = vec![0u8; bytes.len() / 4096];
    // SAFETY: the kernel writes one byte for each of these pages, which the vector has. It refuses
    // addresses that are not mapped.
    let done = unsafe {
        libc::mincore(
            std::ptr::with_exposed_provenance_mut(bytes.start),
            pages.len() * 4096,
            pages.as_mut_ptr().cast(),
        )
    };
    done == 0 && pages.iter().any(|page| page & 1 == 1)
}

fn huge_page_of(bytes: &Bytes) -> Range<usize> {
    let start = bytes.as_ptr().expose_provenance() / HUGE_PAGE * HUGE_PAGE;
    start..start + HUGE_PAGE
}

#[test]
fn buffers_keep_their_bytes_until_they_are_dropped() {
    let buffers = ArenaBuffers::default();
    let mut held: Vec<(u8, Bytes)> = Vec::new();
    for round in 0..2000usize {
        let length = 1 + round * 7919 % 300_000;
        let byte = round as u8;
        held.push((byte, filled(&buffers, LIFETIMES[round % 3], length, byte)));
        if held.len() > 60 {
            let (byte, bytes) = held.swap_remove(round * 31 % 60);
            assert!(bytes.iter().all(|&found| found == byte));
        }
    }
    for (byte, bytes) in held {
        assert!(bytes.iter().all(|&found| found == byte));
    }
    assert_eq!(buffers.in_use(), 0);
}

#[test]
fn lifetimes_share_no_huge_page() {
    let buffers = ArenaBuffers::default();
    let held: Vec<(Lifetime, Bytes)> = (0..600)
        .map(|at| LIFETIMES[at % 3])
        .map(|lifetime| (lifetime, filled(&buffers, lifetime, 20_000, 1)))
        .collect();
    for (one, bytes) in &held {
        for (other, others) in &held {
            assert!(one == other || huge_page_of(bytes) != huge_page_of(others), "{one:?} and {other:?}");
        }
    }
}

#[test]
fn short_passing_buffers_are_not_the_arenas() {
    let buffers = ArenaBuffers::default();
    let _passing = filled(&buffers, Lifetime::Passing, SHORT - 1, 1);
    assert_eq!(buffers.in_use(), 0);
    let _kept = filled(&buffers, Lifetime::Kept, 100, 1);
    assert_eq!(buffers.in_use(), 128);
    let _longer = filled(&buffers, Lifetime::Passing, SHORT, 1);
    assert_eq!(buffers.in_use(), 128 + SHORT);
    assert!(buffers.allocate_for(Lifetime::Kept, 0, 1).unwrap().freeze().is_empty());
}

#[test]
fn buffers_longer_than_a_region_have_their_own() {
    let buffers = ArenaBuffers::new(usize::MAX);
    let long = filled(&buffers, Lifetime::Passing, REGION + 100, 3);
    assert!(long.as_ptr().addr().is_multiple_of(HUGE_PAGE));
    assert_eq!(buffers.in_use(), REGION + (64 << 10));
    drop(long);
    assert_eq!((buffers.in_use(), buffers.idle()), (0, REGION + (64 << 10)));
}

#[test]
fn impossible_lengths_are_refused() {
    let buffers = ArenaBuffers::default();
    for lifetime in LIFETIMES {
        for length in [1 << 62, usize::MAX, usize::MAX - 63, 1 << 47] {
            for align in [1, 4096, HUGE_PAGE] {
                assert!(buffers.allocate_for(lifetime, length, align).is_none(), "{length} at {align}");
            }
        }
    }
    assert!(buffers.allocate(100_000, 1).is_some(), "the arena remains usable");
}

#[test]
fn write_past_the_length_panics() {
    let buffers = ArenaBuffers::default();
    let mut buffer = buffers.allocate(100_001, 1).unwrap();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer.extend(&[0; 100_002])));
    assert!(result.is_err());
    assert_eq!(buffer.capacity(), 100_001);
}

#[test]
fn buffers_outlive_their_arena() {
    let buffers = ArenaBuffers::default();
    let mut buffer = buffers.allocate(50_000, 1).unwrap();
    drop(buffers);
    buffer.extend(&[7; 50_000]);
    let bytes = buffer.freeze();
    assert!(bytes.len() == 50_000 && bytes.iter().all(|&byte| byte == 7));
}

/// In a child, where no other test maps memory at an address that was given back.
#[test]
// semantics: CACHE-6
fn idle_memory_is_bounded_by_the_limit_and_earlier_buffers() {
    assert!(forked(|| {
        let (limit, most) = (4 * HUGE_PAGE, 400 * 100_032);
        let buffers = ArenaBuffers::new(limit);
        let mut pages = Vec::new();
        for lifetime in LIFETIMES {
            let held: Vec<Bytes> = (0..400).map(|_| filled(&buffers, lifetime, 100_000, 1)).collect();
            pages.extend(held.iter().map(huge_page_of));
            drop(held);
            assert!(buffers.idle() <= limit + most, "{} bytes are idle", buffers.idle());
        }
        pages.retain(is_resident);
        // Later buffers may lie in pages of earlier ones.
        pages.sort_unstable_by_key(|page| page.start);
        pages.dedup();
        // Two pools have buffers for reuse.
        assert!(pages.len() <= (limit + most) / HUGE_PAGE + 6, "{} pages hold memory", pages.len());
        true
    }));
}

/// One task for all pools, and none while nothing is idle. In a child, as above.
#[test]
// semantics: CACHE-6
fn timer_gives_unused_pages_and_regions_back() {
    assert!(forked(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(unused_memory_is_given_back());
        true
    }));
}

async fn unused_memory_is_given_back() {
    let buffers = ArenaBuffers::new(usize::MAX);
    buffers.return_unused_on(&Handle::current());
    for _ in 0..2 {
        let held: Vec<Bytes> = (0..600).map(|at| filled(&buffers, LIFETIMES[at % 3], 50_000, 1)).collect();
        let kept = held[301].clone();
        let pages: Vec<Range<usize>> = held.iter().map(huge_page_of).collect();
        drop(held);
        let idle = buffers.idle();
        assert!(idle >= 18 << 20, "{idle} bytes are idle");
        tokio::time::sleep(IDLE / 4).await;
        assert_eq!(buffers.idle(), idle, "too early");
        tokio::time::sleep(IDLE * 3).await;
        assert_eq!(buffers.idle(), 0);
        assert!(kept.iter().all(|&byte| byte == 1));
        let is_other = |page: &Range<usize>| *page != huge_page_of(&kept);
        let still: Vec<_> = pages.into_iter().filter(|page| is_other(page) && is_resident(page)).collect();
        assert!(still.is_empty(), "{} of 600", still.len());
        assert_eq!(buffers.in_use(), 50_048);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_timer_later_buffers_give_memory_back() {
    let buffers = ArenaBuffers::new(usize::MAX);
    drop((0..200).map(|_| filled(&buffers, Lifetime::Kept, 50_000, 1)).collect::<Vec<_>>());
    assert!(buffers.idle() >= 8 << 20);
    tokio::time::advance(Duration::from_millis(2100)).await;
    drop(filled(&buffers, Lifetime::Kept, 50_000, 1));
    assert!(buffers.idle() <= HUGE_PAGE, "{} bytes are idle", buffers.idle());
}

/// Runs `child` in a forked child. Returns whether it returned true. A child that waits for a lock
/// of its parent's threads ends after a while.
pub(super) fn forked(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs only `child` and ends without unwinding or running exit handlers.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends this process only.
            unsafe { libc::alarm(20) };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends this process only.
            unsafe { libc::_exit(i32::from(!result.unwrap_or(false))) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the number is that of the child, and the status is a number of this frame.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

/// A thread of the parent holds the locks at the fork, most of the time.
#[test]
fn forked_child_frees_and_allocates_while_its_parent_does() {
    let buffers = ArenaBuffers::default();
    let inherited: Vec<Bytes> = (0..30).map(|at| filled(&buffers, LIFETIMES[at % 3], 90_000, 7)).collect();
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|threads| {
        for _ in 0..2 {
            let (buffers, is_over) = (buffers.clone(), Arc::clone(&is_over));
            threads.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let some: Vec<_> =
                        (0..30).map(|at| buffers.allocate_for(LIFETIMES[at % 3], 90_000, 1)).collect();
                    drop(some);
                }
            });
        }
        let done = (0..40).all(|_| {
            let (mut mine, parents) = (inherited.clone(), buffers.clone());
            forked(move || {
                let read = mine.iter().all(|bytes| bytes.iter().all(|&byte| byte == 7));
                mine.drain(..15);
                let fresh: Vec<Bytes> =
                    (0..30).map(|at| filled(&parents, LIFETIMES[at % 3], 90_000, 9)).collect();
                let of_child = ArenaBuffers::default();
                let own: Vec<Bytes> =
                    (0..30).map(|at| filled(&of_child, LIFETIMES[at % 3], 90_000, 8)).collect();
                let right = own.iter().all(|bytes| bytes.iter().all(|&byte| byte == 8))
                    && fresh.iter().all(|bytes| bytes.iter().all(|&byte| byte == 9))
                    && mine.iter().all(|bytes| bytes.iter().all(|&byte| byte == 7));
                let counted = of_child.in_use() == 30 * 90_048 && parents.in_use() == 0;
                drop((mine, parents, fresh, own));
                read && right && counted && of_child.in_use() == 0
            })
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(done, "a forked child has failed or did not end");
    });
    assert!(inherited.iter().all(|bytes| bytes.iter().all(|&byte| byte == 7)));
}

/// Lengths in this unit, so that a region has few cells.
const CELL: usize = 64 << 10;
const CELLS: usize = HUGE_PAGE / CELL;
/// Three huge pages and a half.
const REGION_CELLS: usize = CELLS * 7 / 2;

#[derive(Clone, Debug)]
enum Step {
    Take { cells: usize, align: usize },
    Put(usize),
    GiveBack,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..40_usize, 0..5_u32).prop_map(|(cells, align)| Step::Take { cells, align: 1 << align }),
        4 => any::<usize>().prop_map(Step::Put),
        1 => Just(Step::GiveBack),
    ]
}

/// A region as a table of cells.
#[derive(Clone)]
struct Model {
    start: usize,
    in_use: Vec<bool>,
    /// By huge page: whether it was used since it was given back, and when it became idle.
    touched: Vec<bool>,
    idle: Vec<Option<u64>>,
}

impl Model {
    fn cells(&self, address: usize, cells: usize) -> Option<Range<usize>> {
        let first = address.checked_sub(self.start)? / CELL;
        (first + cells <= self.in_use.len()).then_some(first..first + cells)
    }

    fn page(&self, page: usize) -> Range<usize> {
        page * CELLS..self.in_use.len().min((page + 1) * CELLS)
    }

    fn idle_bytes(&self) -> usize {
        (0..self.idle.len())
            .filter(|page| self.idle[*page].is_some())
            .map(|page| self.page(page).len() * CELL)
            .sum()
    }
}

/// The model that has these cells.
fn model_of(models: &mut [Model], address: usize, cells: usize) -> &mut Model {
    models.iter_mut().find(|model| model.cells(address, cells).is_some()).unwrap()
}

proptest! {
    /// Compared with a table of cells. An allocation overlaps nothing and fails only if no gap is
    /// large enough. Pages are idle when they are free and were used, and the oldest goes first. A
    /// region goes when it is free and holds no memory.
    #[test]
    fn space_behaves_like_a_table_of_cells(steps in proptest::collection::vec(step(), 0..300)) {
        let mut space: Space<usize> = Space::default();
        let (mut models, mut taken): (Vec<Model>, Vec<(usize, usize)>) = Default::default();
        let (zero, mut next, mut clock) = (tokio::time::Instant::now(), 1 << 30, 0u64);
        for step in steps {
            clock += 1;
            match step {
                Step::Take { cells, align } => {
                    let fits = |model: &Model| {
                        let first = model.start / CELL;
                        let starts = (0..model.in_use.len()).filter(|at| (first + at).is_multiple_of(align));
                        starts.map(|at| at..at + cells).any(|range| {
                            model.in_use.get(range).is_some_and(|cells| cells.iter().all(|used| !used))
                        })
                    };
                    let mut address = space.take(cells * CELL, align * CELL);
                    // A larger alignment may miss a gap that has no room to spare.
                    if address.is_none() {
                        prop_assert!(align > 1 || !models.iter().any(fits));
                        let length = cells.max(REGION_CELLS);
                        space.add(next, next, length * CELL, HUGE_PAGE);
                        let pages = length.div_ceil(CELLS);
                        models.push(Model {
                            start: next,
                            in_use: vec![false; length],
                            touched: vec![false; pages],
                            idle: vec![None; pages],
                        });
                        // Regions touch, and must not be joined.
                        next = (next + length * CELL).next_multiple_of(HUGE_PAGE);
                        address = space.take(cells * CELL, align * CELL);
                    }
                    let address = address.unwrap();
                    prop_assert!(address.is_multiple_of(align * CELL));
                    let model = model_of(&mut models, address, cells);
                    let range = model.cells(address, cells).unwrap();
                    prop_assert!(model.in_use[range.clone()].iter().all(|used| !used));
                    model.in_use[range.clone()].fill(true);
                    for page in range.start / CELLS..=(range.end - 1) / CELLS {
                        (model.touched[page], model.idle[page]) = (true, None);
                    }
                    taken.push((address, cells));
                }
                Step::Put(which) if !taken.is_empty() => {
                    let (address, cells) = taken.swap_remove(which % taken.len());
                    let model = model_of(&mut models, address, cells);
                    let range = model.cells(address, cells).unwrap();
                    model.in_use[range.clone()].fill(false);
                    let mut is_idle = false;
                    for page in range.start / CELLS..=(range.end - 1) / CELLS {
                        if model.in_use[model.page(page)].iter().all(|used| !used) {
                            model.idle[page] = Some(clock);
                            is_idle = true;
                        }
                    }
                    let now = zero + Duration::from_secs(clock);
                    prop_assert_eq!(space.put(address, cells * CELL, || now), is_idle);
                }
                Step::Put(_) => {}
                Step::GiveBack => {
                    let oldest = models.iter().flat_map(|model| model.idle.iter().flatten()).min().copied();
                    let since = oldest.map(|oldest| zero + Duration::from_secs(oldest));
                    prop_assert_eq!(space.oldest_idle(), since);
                    match space.give_back() {
                        None => prop_assert!(oldest.is_none()),
                        Some(Unused::Page(bytes)) => {
                            let model = model_of(&mut models, bytes.start, 1);
                            let page = (bytes.start - model.start) / HUGE_PAGE;
                            prop_assert_eq!(model.page(page).len() * CELL, bytes.len());
                            prop_assert_eq!(model.idle[page].take(), oldest);
                            model.touched[page] = false;
                            prop_assert!(model.touched.iter().any(|touched| *touched));
                        }
                        Some(Unused::Region(start)) => {
                            let at = models.iter().position(|model| model.start == start).unwrap();
                            let model = models.swap_remove(at);
                            prop_assert!(model.in_use.iter().all(|used| !used));
                            let idle: Vec<_> = model.idle.iter().flatten().collect();
                            prop_assert_eq!(idle, [&oldest.unwrap()]);
                        }
                    }
                }
            }
            let cells: usize = taken.iter().map(|(_, cells)| cells).sum();
            prop_assert_eq!(space.in_use(), cells * CELL);
            prop_assert_eq!(space.idle_bytes(), models.iter().map(Model::idle_bytes).sum::<usize>());
        }
    }
}
