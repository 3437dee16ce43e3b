use std::sync::Weak;

use bytes::Bytes;
use rustix::fs::{FileType, OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::shared_region::SharedRegions;
use super::tests::{filled, forked};
use super::*;
use crate::HeapBuffers;

/// A region as another process sees it.
struct Reader {
    start: *const u8,
    length: usize,
}

impl Reader {
    fn map(region: &SharedRegion) -> Self {
        let length = region.length() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, region.descriptor(), 0)
        };
        Self { start: start.unwrap().cast(), length }
    }

    /// A copy, because the arena may write there meanwhile.
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        assert!(offset as usize + length <= self.length);
        // SAFETY: the bytes lie in the mapping, and the caller's test has no writer now.
        unsafe { std::slice::from_raw_parts(self.start.add(offset as usize), length) }.to_vec()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and `read` returns copies.
        unsafe { munmap(self.start.cast_mut().cast(), self.length) }.unwrap();
    }
}

fn shared() -> ArenaBuffers {
    let buffers = ArenaBuffers::new(usize::MAX);
    assert!(buffers.share() && buffers.share());
    buffers
}

fn place(buffers: &ArenaBuffers, bytes: &[u8]) -> SharedPlace {
    buffers.shared_place(bytes).unwrap()
}

/// The bytes that the kernel holds for a region.
fn held(region: &SharedRegion) -> u64 {
    fstat(region.descriptor()).unwrap().st_blocks as u64 * 512
}

/// Gives all idle pages back.
fn give_back(buffers: &ArenaBuffers) {
    buffers.0.all().for_each(|pool| while pool.give_back(|_| true) {});
}

#[test]
fn shared_samples_are_seen_by_other_mappings() {
    let buffers = shared();
    for lifetime in [Lifetime::Kept, Lifetime::Passing, Lifetime::Block] {
        for (length, byte) in [(10_000, 1), (110_000, 2), (5 << 20, 3), (REGION + 1, 4)] {
            let bytes = filled(&buffers, lifetime, length, byte);
            let SharedPlace { region, offset } = place(&buffers, &bytes);
            let reader = Reader::map(&region);
            assert!(reader.read(offset, length) == bytes, "{length} bytes, {lifetime:?}");
            assert_ne!(reader.start.wrapping_add(offset as usize), bytes.as_ptr());
            let part = place(&buffers, &bytes[100..1000]);
            assert_eq!((part.region.number(), part.offset), (region.number(), offset + 100));
        }
    }
    let short = filled(&buffers, Lifetime::Kept, 100, 9);
    let SharedPlace { region, offset } = place(&buffers, &short);
    assert_eq!(Reader::map(&region).read(offset, 100), short);
}

#[test]
fn shared_descriptor_allows_no_write() {
    let buffers = shared();
    let bytes = filled(&buffers, Lifetime::Kept, 50_000, 7);
    let SharedPlace { region, offset } = place(&buffers, &bytes);
    let file = region.descriptor();
    assert!(rustix::io::pwrite(file, b"x", offset).is_err());
    assert!(ftruncate(file, 0).is_err() && ftruncate(file, region.length() * 2).is_err());
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let writable = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, file, 0)
    };
    assert!(writable.is_err());
    let seals = fcntl_get_seals(file).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
    assert_eq!(fcntl_getfl(file).unwrap() & OFlags::RWMODE, OFlags::RDONLY);
    let attributes = fstat(file).unwrap();
    assert_eq!(FileType::from_raw_mode(attributes.st_mode), FileType::RegularFile);
    assert_eq!((attributes.st_mode & 0o777, attributes.st_size as u64), (0o400, region.length()));
    assert!(bytes.iter().all(|&byte| byte == 7));
}

#[test]
fn other_memory_has_no_shared_place() {
    let buffers = ArenaBuffers::default();
    let before = filled(&buffers, Lifetime::Kept, 50_000, 1);
    assert!(buffers.shared_place(&before).is_none());
    drop(filled(&buffers, Lifetime::Passing, 50_000, 1));
    assert!(buffers.share());
    // Private memory is not reused.
    for lifetime in [Lifetime::Kept, Lifetime::Passing, Lifetime::Block] {
        let next = filled(&buffers, lifetime, 50_000, 1);
        assert!(buffers.shared_place(&next).is_some(), "{lifetime:?}");
    }
    let short = filled(&buffers, Lifetime::Passing, SHORT - 1, 1);
    for other in [&before[..], &short, &[], &[1, 2, 3]] {
        assert!(buffers.shared_place(other).is_none());
    }
    let shared = filled(&buffers, Lifetime::Passing, 50_000, 1);
    assert!(buffers.shared_place(&shared).is_some() && buffers.shared_place(&shared[..0]).is_none());
    let others = ArenaBuffers::default();
    assert!(others.shared_place(&shared).is_none(), "another arena");
    assert!(!HeapBuffers.share() && HeapBuffers.shared_place(&shared).is_none());
}

#[test]
fn shared_place_lies_entirely_in_its_region() {
    let buffers = shared();
    let bytes = filled(&buffers, Lifetime::Kept, 50_000, 1);
    let SharedPlace { region, offset } = place(&buffers, &bytes);
    let regions: &SharedRegions = &buffers.0.idle.shared;
    let (start, length) = (bytes.as_ptr().addr() - offset as usize, region.length() as usize);
    assert_eq!(regions.place_of(start, length).unwrap().offset, 0);
    assert_eq!(regions.place_of(start + length - 1, 1).unwrap().offset, region.length() - 1);
    for (address, length) in [(start, length + 1), (start + length - 1, 2), (start + length, 1)] {
        assert!(regions.place_of(address, length).is_none(), "{length} bytes");
    }
    assert!(regions.place_of(start - 1, 2).is_none() && regions.place_of(start + 1, usize::MAX).is_none());
}

#[test]
fn shared_pages_are_freed_and_reused() {
    let buffers = shared();
    let mut samples: Vec<Bytes> = (0..100).map(|_| filled(&buffers, Lifetime::Kept, 100_000, 1)).collect();
    let SharedPlace { region, offset: first } = place(&buffers, &samples[0]);
    let reader = Reader::map(&region);
    let before = held(&region);
    assert!((10_000_000..12 << 20).contains(&before), "{before} bytes are held");
    samples.truncate(1);
    give_back(&buffers);
    assert!(held(&region) <= HUGE_PAGE as u64, "{} bytes are held", held(&region));
    assert_eq!(reader.read(first, 100_000), samples[0]);
    for byte in 2..9 {
        samples.extend((0..60).map(|_| filled(&buffers, Lifetime::Kept, 100_000, byte)));
        for sample in &samples {
            let found = place(&buffers, sample);
            assert_eq!(found.region.number(), region.number());
            assert!(reader.read(found.offset, sample.len()) == *sample);
        }
        samples.truncate(1);
        give_back(&buffers);
        assert_eq!(buffers.idle(), 0);
    }
}

/// Samples that stay must not hold the memory of those between them.
#[test]
fn small_pages_between_samples_are_freed() {
    let buffers = shared();
    let mut samples: Vec<Bytes> = (0..200).map(|_| filled(&buffers, Lifetime::Kept, 60_000, 1)).collect();
    let region = place(&buffers, &samples[0]).region;
    if buffers.resident() > 13 << 20 {
        return; // The kernel has huge pages for files.
    }
    let mut number = 0;
    samples.retain(|_| {
        number += 1;
        number % 4 == 0
    });
    give_back(&buffers);
    // 50 samples of 60,000 bytes, and at most two parts of small pages with each.
    let most = 50 * (60_032 + 2 * (16 << 10));
    assert!(held(&region) as usize <= most, "{} bytes are held", held(&region));
    assert!(buffers.resident() <= most && buffers.resident() >= buffers.in_use());
    let mut again: Vec<Bytes> = (0..140).map(|_| filled(&buffers, Lifetime::Kept, 60_000, 2)).collect();
    assert!(samples.iter().all(|sample| sample.iter().all(|byte| *byte == 1)));
    assert!(again.iter().all(|sample| sample.iter().all(|byte| *byte == 2)));
    again.append(&mut samples);
    drop(again);
    give_back(&buffers);
    assert_eq!((buffers.resident(), buffers.in_use(), held(&region)), (0, 0, 0));
}

#[test]
fn shared_region_ends_for_its_readers() {
    let buffers = shared();
    let bytes = filled(&buffers, Lifetime::Kept, 3 << 20, 5);
    let SharedPlace { region, offset } = place(&buffers, &bytes);
    let (address, reader, weak) = (bytes.as_ptr().addr(), Reader::map(&region), Arc::downgrade(&region));
    drop(bytes);
    assert_eq!(reader.read(offset, 10), [5; 10], "not given back yet");
    give_back(&buffers);
    assert!(buffers.0.idle.shared.place_of(address, 1).is_none(), "it has ended, though it is held");
    assert_eq!((held(&region), reader.read(offset, 10)), (0, vec![0; 10]));
    drop(region);
    assert!(weak.upgrade().is_none());
    let next = filled(&buffers, Lifetime::Kept, 100, 5);
    assert!(place(&buffers, &next).region.number() > 0);
}

#[test]
fn dropped_arena_ends_its_shared_regions() {
    let buffers = shared();
    let samples: Vec<Bytes> = (0..10).map(|_| filled(&buffers, Lifetime::Kept, 100_000, 1)).collect();
    let SharedPlace { region, .. } = place(&buffers, &samples[3]);
    let weak: Weak<SharedRegion> = Arc::downgrade(&region);
    drop(buffers);
    assert!(held(&region) > 0 && samples.iter().flatten().all(|&byte| byte == 1));
    drop(samples);
    assert_eq!(held(&region), 0);
    drop(region);
    assert!(weak.upgrade().is_none());
}

#[test]
fn forked_child_drops_shared_buffers_without_harm() {
    let buffers = ArenaBuffers::default();
    let private = filled(&buffers, Lifetime::Kept, 50_000, 3);
    assert!(buffers.share());
    let samples: Vec<Bytes> = (0..30).map(|_| filled(&buffers, Lifetime::Block, 90_000, 7)).collect();
    let (mut inherited, parents) = (samples.clone(), buffers.clone());
    assert!(forked(move || {
        let is_private_readable = private.iter().all(|&byte| byte == 3);
        let is_none = !parents.share() && inherited.iter().all(|bytes| parents.shared_place(bytes).is_none());
        inherited.drain(..15);
        let of_child = shared();
        let own: Vec<Bytes> = (0..600).map(|_| filled(&of_child, Lifetime::Kept, 90_000, 8)).collect();
        inherited.clear();
        let fresh = filled(&parents, Lifetime::Kept, 90_000, 9);
        let is_heap = parents.shared_place(&fresh).is_none() && of_child.shared_place(&fresh).is_none();
        drop(parents);
        let is_kept = own.iter().all(|bytes| {
            let SharedPlace { region, offset } = place(&of_child, bytes);
            Reader::map(&region).read(offset, 90_000) == *bytes && bytes[0] == 8
        });
        is_private_readable && is_none && is_heap && is_kept
    }));
    for bytes in &samples {
        let SharedPlace { region, offset } = place(&buffers, bytes);
        assert!(Reader::map(&region).read(offset, 90_000).iter().all(|&byte| byte == 7));
    }
    drop(samples);
    let again = filled(&buffers, Lifetime::Block, 90_000, 6);
    assert!(buffers.shared_place(&again).is_some());
}

#[test]
fn forked_child_does_not_have_shared_memory() {
    let buffers = shared();
    let bytes = filled(&buffers, Lifetime::Kept, 50_000, 7);
    assert!(forked(|| {
        let page = std::ptr::with_exposed_provenance_mut(bytes.as_ptr().expose_provenance() / 4096 * 4096);
        let mut is_resident = 0;
        // SAFETY: the kernel writes one byte for one page. It refuses an address without memory.
        unsafe { libc::mincore(page, 4096, (&raw mut is_resident).cast()) != 0 }
    }));
}

#[test]
fn limits_of_the_process_prevent_shared_regions() {
    assert!(forked(|| {
        let limit = |resource, most| {
            let maximum = getrlimit(resource).maximum;
            setrlimit(resource, Rlimit { current: Some(most), maximum }).is_ok()
        };
        let next = rustix::io::dup(std::io::stdin()).unwrap();
        let open = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
        let is_limited = limit(Resource::Nofile, 2 * open + 40);
        let regions: Vec<_> = std::iter::from_fn(|| SharedRegion::create(1 << 20)).collect();
        let files: Vec<_> = (0..open + 10).map_while(|_| std::fs::File::open("/dev/null").ok()).collect();
        let are_few = (5..=20).contains(&regions.len()) && files.len() as u64 == open + 10;
        drop((regions, files));

        // The kernel would end the process.
        let buffers = ArenaBuffers::default();
        let is_refused = limit(Resource::Fsize, 1 << 20) && !buffers.share();
        let private = filled(&buffers, Lifetime::Kept, 90_000, 4);
        is_limited && are_few && is_refused && buffers.shared_place(&private).is_none()
    }));
}

/// Once regions are shared, a region that cannot be shared is private.
#[test]
fn region_is_private_where_none_can_be_shared() {
    assert!(forked(|| {
        let buffers = shared();
        let first = filled(&buffers, Lifetime::Kept, 90_000, 4);
        let nothing = Rlimit { current: Some(0), maximum: getrlimit(Resource::Nofile).maximum };
        let is_limited = setrlimit(Resource::Nofile, nothing).is_ok();
        let second = filled(&buffers, Lifetime::Block, 90_000, 4);
        let third = filled(&buffers, Lifetime::Kept, 90_000, 4);
        let are_shared = [&first, &second, &third].map(|bytes| buffers.shared_place(bytes).is_some());
        is_limited && buffers.share() && are_shared == [true, false, true]
    }));
}

/// A touch would end the process.
#[test]
fn missing_memory_of_a_shared_region_is_an_error() {
    assert!(forked(|| {
        let buffers = shared();
        let first = filled(&buffers, Lifetime::Kept, 90_000, 4);
        let hole = (first.as_ptr().expose_provenance() / HUGE_PAGE + 1) * HUGE_PAGE;
        // SAFETY: this process has no other thread, and no buffer lies there.
        let is_hole = unsafe { munmap(std::ptr::with_exposed_provenance_mut(hole), HUGE_PAGE) }.is_ok();
        let is_refused = buffers.allocate_for(Lifetime::Kept, 3 << 20, 1).is_none();
        let second = filled(&buffers, Lifetime::Kept, 90_000, 4);
        is_hole && is_refused && first == second && buffers.in_use() == 2 * 90_048
    }));
}
