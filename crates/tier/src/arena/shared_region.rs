//! Files in memory that other processes of the node map.
//!
//! Each shared region is a `memfd` of its own: it has no name in any file system. Its size is
//! sealed, so that a process that maps it never reads past its end. Other processes get a
//! descriptor that is open for reading only. The kernel refuses writable mappings of it.
//!
//! * *It is not sealed against writing.* The kernel refuses to punch holes into a file with
//!   `F_SEAL_FUTURE_WRITE`, so unused pages could not go back. The price: a process of the same
//!   user can open the file again for writing, on purpose. It could also write with `ptrace`.
//! * *The end of a region frees its memory at once.* Its pages are punched out before it is
//!   unmapped. A process that still maps it then reads zeros and holds no memory.
//! * *A region needs a descriptor.* Half of the process's descriptors stay free for other files.
//!   Later regions are private, and samples in them are copied for other processes. Descriptors of
//!   regions get high numbers where the limit allows it, because `select` knows only low ones.
//! * *A forked child has the descriptors* and not the mappings. If its parent is killed, the memory
//!   stays until the child ends as well.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::fs::{fchmod, fcntl_add_seals, ftruncate, memfd_create, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

/// Memory that other processes can map, read-only.
///
/// It is only a description: it keeps neither the mapping nor the memory. The last one is dropped
/// when the region ends, unless a caller of
/// [`shared_place`](crate::Buffers::shared_place) still holds one.
#[derive(Debug)]
pub struct SharedRegion {
    number: u32,
    length: u64,
    descriptor: OwnedFd,
}

/// Where bytes lie in memory that other processes can map.
#[derive(Clone, Debug)]
pub struct SharedPlace {
    /// The region that holds all of the bytes.
    pub region: Arc<SharedRegion>,
    /// The distance of the first byte from the region's start, in bytes.
    pub offset: u64,
}

impl SharedPlace {
    /// The place of `length` bytes that begin `offset` bytes after a region, if they lie in it.
    pub(super) fn of(region: &Weak<SharedRegion>, offset: usize, length: usize) -> Option<Self> {
        let (region, offset) = (region.upgrade()?, offset as u64);
        let is_inside = offset.checked_add(length as u64)? <= region.length;
        (length > 0 && is_inside).then_some(Self { region, offset })
    }
}

impl SharedRegion {
    /// The number of the region. It is unique in the process and never reused.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The length in bytes, which never changes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The descriptor for other processes. It is open for reading only.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// A file of `length` zeros, and the descriptor for writing. `None` if the system has no such
    /// files, or if a limit of the process is reached.
    pub(super) fn create(length: usize) -> Option<(Self, OwnedFd)> {
        let length = length as u64;
        let writable = memory_file("foreread", length).ok()?;
        ftruncate(&writable, length).ok()?;
        fcntl_add_seals(&writable, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).ok()?;
        fchmod(&writable, Mode::RUSR).ok()?;
        let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
        let descriptor = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let descriptor = lasting_descriptor(descriptor)?;
        Some((Self { number: next_number()?, length, descriptor }, writable))
    }

    /// The region of another process, which `descriptor` is for. `None` if numbers have run out.
    pub(super) fn received(length: u64, descriptor: OwnedFd) -> Option<Self> {
        Some(Self { number: next_number()?, length, descriptor })
    }
}

/// A number that no region of this process has had.
fn next_number() -> Option<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1)).ok()
}

/// Whether half of the descriptors are free, after `descriptor` was opened. The kernel gives out
/// the lowest free number, so as many are open as this one has. The rest is for other files.
pub(super) fn has_free_descriptors(descriptor: RawFd) -> bool {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    (descriptor as u64) < most
}

/// The numbers of descriptors that `select` knows.
const LOW_NUMBERS: u64 = 1024;

/// The same file with a number that `select` does not know, if the limit leaves many of them.
fn with_high_number(descriptor: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < 4 * LOW_NUMBERS {
        return descriptor;
    }
    fcntl_dupfd_cloexec(&descriptor, LOW_NUMBERS as RawFd).unwrap_or(descriptor)
}

/// The same file with a number that `select` does not know. `None` if half of the process's
/// descriptors are open.
pub fn lasting_descriptor(descriptor: OwnedFd) -> Option<OwnedFd> {
    Some(with_high_number(descriptor)).filter(|descriptor| has_free_descriptors(descriptor.as_raw_fd()))
}

/// An empty file in memory for `length` bytes, which can be sealed. `name` is shown to people.
///
/// # Errors
/// If the system has no memory or descriptors left, or a file of the process may not be so long.
pub fn memory_file(name: &str, length: u64) -> std::io::Result<OwnedFd> {
    // Beyond this limit the kernel would send a signal that ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| length > limit) {
        return Err(Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => memfd_create(name, flags),
        other => other,
    };
    Ok(made?)
}

/// The living shared regions of an arena, by address.
///
/// A forked child must not use it, because a thread of its parent may hold the lock. It may drop
/// it: a thread that changes the table holds a region, which holds this value. In the child that
/// region is never dropped, so a table in the middle of a change is not dropped either.
#[derive(Debug, Default)]
pub(super) struct SharedRegions {
    is_on: AtomicBool,
    by_address: RwLock<BTreeMap<usize, Weak<SharedRegion>>>,
}

impl SharedRegions {
    /// Whether new regions are shared.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn turn_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Every change of the table is complete when the lock is released, even after a panic.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<usize, Weak<SharedRegion>>)) {
        change(&mut self.by_address.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn add(&self, address: usize, region: &Arc<SharedRegion>) {
        self.change(|regions| {
            regions.insert(address, Arc::downgrade(region));
        });
    }

    /// Must be called before the region is unmapped, because other memory may get its address then.
    pub(super) fn remove(&self, address: usize) {
        self.change(|regions| {
            regions.remove(&address);
        });
    }

    /// The place of `length` bytes at `address`.
    pub(super) fn place_of(&self, address: usize, length: usize) -> Option<SharedPlace> {
        if !self.is_on() {
            return None;
        }
        let regions = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
        let (start, region) = regions.range(..=address).next_back()?;
        SharedPlace::of(region, address - start, length)
    }
}
