//! Read-ahead into the kernel's page cache, for programs that open a local file system's files
//! themselves.
//!
//! [`PageCacheReader`] opens the files of an announced order before the program does, and lets the
//! kernel read them (`posix_fadvise`). The program's own reads then do not wait. No byte is copied
//! here, and the program gets its files from the kernel, so nothing can be wrong about them.
//!
//! # Decision and price
//!
//! Memory of our own would cost a second copy of each sample, and a third one for worker processes.
//! So this is for file systems that the kernel caches, and for runs without caches of their own.
//! The price is that the kernel decides which files stay in memory. If it is short, files may be
//! dropped before their use, which costs a second read.
//!
//! Files in the page cache gain nothing from a look at each of them (4 us). If nearly all of the
//! last [`RECENT`] files were there, only one of [`PROBED`] is looked at. The first missing file
//! starts the read-ahead again.

use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use rustix::fs::{Advice, FileType, Mode, OFlags};

use crate::file_reader::read_cached;

/// Threads, each of which waits for one file.
const THREADS: usize = 8;

/// The number of files whose state decides whether all are looked at.
const RECENT: usize = 256;

/// At most this many of them may be missing in the page cache.
const MISSING: usize = 2;

/// One of this many files is looked at, if nearly all are in the page cache.
const PROBED: usize = 64;

/// How far ahead they are looked at, in files.
const PROBED_AHEAD: usize = 16 * PROBED;

/// The length of a request to the kernel, if the device does not give the length that it reads at
/// once.
const PIECE: u64 = 128 << 10;

/// The file systems that are memory.
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58F6];

/// The counts of a reader so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCacheCounts {
    /// Files that were in the page cache when they were looked at.
    pub cached: u64,
    /// Files that the kernel was let to read.
    pub read_ahead: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether nearly all files are in the page cache, so that few are looked at.
    pub is_aside: bool,
}

/// Reads the files of an announced order into the page cache, ahead of their use.
///
/// ```
/// use foreread_local::PageCacheReader;
/// # fn main() -> std::io::Result<()> {
/// let files = ["lib.rs", "pool.rs"];
/// let reader = PageCacheReader::new("src".as_ref(), 64 << 20, move |id| {
///     usize::try_from(id).ok().and_then(|id| files.get(id)).map(|&name| name.to_owned())
/// })?;
/// reader.announce(vec![1, 0]);
/// reader.advance(1); // one of them was used
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PageCacheReader {
    shared: Arc<Shared>,
    /// Whether the files are in memory anyway. Then there are no threads.
    is_memory: bool,
}

impl PageCacheReader {
    /// A reader of files below `root`, at most `look_ahead` bytes before their use. `path` returns
    /// the path of a file below `root`. It is called on the reader's threads.
    ///
    /// # Errors
    /// If the directory cannot be opened or no thread can be started.
    pub fn new(
        root: &Path,
        look_ahead: u64,
        path: impl Fn(u64) -> Option<String> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let root: OwnedFd = fs::File::open(root)?.into();
        let is_memory =
            rustix::fs::fstatfs(&root).is_ok_and(|of| MEMORY.contains(&(of.f_type as u64 & 0xFFFF_FFFF)));
        let piece = read_at_once(root.as_fd());
        let state = Mutex::new(Ahead::new(look_ahead));
        let files = FileOpener { root, piece, path: Box::new(path) };
        let shared = Arc::new(Shared { files, state, changed: Condvar::new() });
        let reader = Self { shared, is_memory };
        for _ in 0..if is_memory { 0 } else { THREADS } {
            let shared = Arc::clone(&reader.shared);
            let thread = std::thread::Builder::new().name("foreread-pages".to_owned());
            thread.spawn(move || shared.work())?;
        }
        Ok(reader)
    }

    /// Replaces the order of future uses. Negative numbers are uses of other files.
    pub fn announce(&self, order: Vec<i64>) {
        self.shared.lock().announce(order);
        self.shared.changed.notify_one();
    }

    /// Notes that the uses before `position` in the order are over or have begun. A position never
    /// goes back.
    pub fn advance(&self, position: usize) {
        let has_work = {
            let mut state = self.shared.lock();
            state.advance(position);
            state.has_work()
        };
        if has_work {
            self.shared.changed.notify_one();
        }
    }

    /// Its counts so far.
    pub fn counts(&self) -> PageCacheCounts {
        let state = self.shared.lock();
        PageCacheCounts { is_aside: state.recent.is_cached() || self.is_memory, ..state.counts }
    }
}

/// Ends the threads without waiting for them: a hung disk may hold one for ever.
impl Drop for PageCacheReader {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

struct FileOpener {
    root: OwnedFd,
    /// The bytes that the kernel reads for one request at most.
    piece: u64,
    path: Box<dyn Fn(u64) -> Option<String> + Send + Sync>,
}

impl fmt::Debug for FileOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileOpener").field("root", &self.root).field("piece", &self.piece).finish()
    }
}

impl FileOpener {
    /// Lets the kernel read the first `most` bytes of a file. `None` if it cannot be opened, which
    /// the program will see for itself.
    fn look(&self, id: u64, most: u64) -> Option<SeenFile> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::openat(&self.root, (self.path)(id)?, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let length = u64::try_from(stat.st_size).unwrap_or_default().min(most);
        let is_cached = match cached_bytes(file.as_fd(), length) {
            Some(cached) => cached >= length,
            None => length == 0 || has_byte(file.as_fd(), 0) && has_byte(file.as_fd(), length - 1),
        };
        if !is_cached {
            for start in (0..length).step_by(usize::try_from(self.piece).unwrap_or(usize::MAX)) {
                let piece = NonZeroU64::new(self.piece.min(length - start));
                // If the kernel refuses, it reads the file when the program does.
                let _ = rustix::fs::fadvise(&file, start, piece, Advice::WillNeed);
            }
            // A device gets few requests at a time. With a longer queue, the files that are needed
            // first would come late. An error is the program's to see.
            let _ = rustix::io::pread(&file, &mut [0], length - 1);
        }
        Some(SeenFile { bytes: length, is_cached })
    }
}

/// A file that was looked at.
#[derive(Clone, Copy, Debug)]
struct SeenFile {
    /// The length of the part that was looked at.
    bytes: u64,
    is_cached: bool,
}

/// How many of the first `length` bytes are in the page cache, rounded up to pages. `None` on
/// kernels before 6.5, or if the kernel tells only the file's owner.
fn cached_bytes(file: BorrowedFd<'_>, length: u64) -> Option<u64> {
    /// `cachestat`, which has this number on all architectures that Rust's standard library
    /// supports.
    const CACHESTAT: libc::c_long = 451;
    /// The kernel's `struct cachestat_range`.
    #[repr(C)]
    struct FileRange {
        offset: u64,
        length: u64,
    }
    /// The kernel's `struct cachestat`, in pages.
    #[repr(C)]
    #[derive(Default)]
    struct CachedPages {
        cached: u64,
        others: [u64; 4],
    }
    if length == 0 {
        return Some(0);
    }
    let (range, mut pages) = (FileRange { offset: 0, length }, CachedPages::default());
    // SAFETY: both structures have the layout of the kernel's and live until the call returns. The
    // kernel reads the first and writes the second.
    let done = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, 0) };
    (done == 0).then(|| pages.cached.saturating_mul(rustix::param::page_size() as u64))
}

/// Whether the byte at `offset` is in the page cache, for kernels without a call that tells. Newer
/// ones would begin to read it.
fn has_byte(file: BorrowedFd<'_>, offset: u64) -> bool {
    read_cached(file, &mut [MaybeUninit::uninit()], offset).is_ok()
}

/// The bytes that the kernel reads ahead at once on the device of a directory.
fn read_at_once(root: BorrowedFd<'_>) -> u64 {
    let setting = rustix::fs::fstat(root).ok().and_then(|stat| {
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).ok()
    });
    let kilobytes = setting.and_then(|text| text.trim().parse::<u64>().ok());
    kilobytes.and_then(|kilobytes| kilobytes.checked_mul(1024)).filter(|&piece| piece > 0).unwrap_or(PIECE)
}

#[derive(Debug)]
struct Shared {
    files: FileOpener,
    state: Mutex<Ahead>,
    /// There may be work, or the reader is closed.
    changed: Condvar,
}

impl Shared {
    /// No change leaves the state incomplete when it panics.
    fn lock(&self) -> MutexGuard<'_, Ahead> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at files until the reader is closed.
    fn work(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let Some(next) = state.next() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let most = state.look_ahead;
            drop(state);
            let seen = self.files.look(next.id, most);
            // One thread is enough for files in the page cache.
            if seen.is_some_and(|seen| !seen.is_cached) {
                self.changed.notify_one();
            }
            state = self.lock();
            if let Some(seen) = seen {
                state.seen(next, seen);
            }
        }
    }
}

/// A use whose file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextUse {
    id: u64,
    position: usize,
    /// The order that it is in.
    order: u64,
}

/// The position in an order, and how far ahead files are looked at.
#[derive(Debug)]
struct Ahead {
    look_ahead: u64,
    order: Vec<i64>,
    /// Numbers orders.
    orders: u64,
    /// The first use that has not begun.
    position: usize,
    /// The first use that was not looked at.
    cursor: usize,
    /// The uses after `position` that were looked at, with their bytes.
    ahead: VecDeque<(usize, u64)>,
    bytes: u64,
    recent: RecentFiles,
    counts: PageCacheCounts,
    is_closed: bool,
}

impl Ahead {
    fn new(look_ahead: u64) -> Self {
        Self {
            look_ahead,
            order: Vec::new(),
            orders: 0,
            position: 0,
            cursor: 0,
            ahead: VecDeque::new(),
            bytes: 0,
            recent: RecentFiles::default(),
            counts: PageCacheCounts::default(),
            is_closed: false,
        }
    }

    fn announce(&mut self, order: Vec<i64>) {
        self.order = order;
        self.orders += 1;
        (self.position, self.cursor, self.bytes) = (0, 0, 0);
        self.ahead.clear();
    }

    fn advance(&mut self, position: usize) {
        self.position = self.position.max(position.min(self.order.len()));
        self.cursor = self.cursor.max(self.position);
        while let Some((_, bytes)) = self.ahead.pop_front_if(|(used, _)| *used < self.position) {
            self.bytes -= bytes;
        }
    }

    /// The position of the next file to look at.
    fn upcoming(&self) -> Option<usize> {
        if !self.recent.is_cached() {
            return (self.bytes < self.look_ahead).then_some(self.cursor);
        }
        let probe = self.cursor.next_multiple_of(PROBED);
        (probe - self.position < PROBED_AHEAD).then_some(probe)
    }

    fn has_work(&self) -> bool {
        self.upcoming().is_some_and(|at| at < self.order.len())
    }

    /// The next file to look at. `None` if enough of them were.
    fn next(&mut self) -> Option<NextUse> {
        loop {
            let at = self.upcoming()?;
            let id = *self.order.get(at)?;
            self.cursor = at + 1;
            if let Ok(id) = u64::try_from(id) {
                return Some(NextUse { id, position: at, order: self.orders });
            }
        }
    }

    /// Records the state of a file.
    fn seen(&mut self, of: NextUse, seen: SeenFile) {
        let counted = if seen.is_cached { &mut self.counts.cached } else { &mut self.counts.read_ahead };
        *counted += 1;
        self.counts.bytes += if seen.is_cached { 0 } else { seen.bytes };
        let was_aside = self.recent.is_cached();
        self.recent.add(seen.is_cached);
        if of.order != self.orders {
            return;
        }
        if was_aside && !self.recent.is_cached() {
            // The files before it, back to the previous probe, may be missing as well.
            self.cursor = self.cursor.min(of.position.saturating_sub(PROBED)).max(self.position);
        }
        if of.position >= self.position {
            // Several threads look at files, so their order may differ a little.
            let at = self.ahead.partition_point(|(position, _)| *position < of.position);
            self.ahead.insert(at, (of.position, seen.bytes));
            self.bytes += seen.bytes;
        }
    }
}

/// Whether the files that were looked at last were in the page cache.
#[derive(Debug, Default)]
struct RecentFiles {
    files: VecDeque<bool>,
    missing: usize,
    is_cached: bool,
}

impl RecentFiles {
    fn add(&mut self, is_cached: bool) {
        if self.is_cached && !is_cached {
            // Files are looked at again, until as many as before were there.
            *self = Self::default();
        }
        self.files.push_back(is_cached);
        self.missing += usize::from(!is_cached);
        if self.files.len() > RECENT {
            self.missing -= usize::from(self.files.pop_front() == Some(false));
        }
        if self.files.len() == RECENT && self.missing <= MISSING {
            self.is_cached = true;
        }
    }

    /// Whether nearly all of them were.
    fn is_cached(&self) -> bool {
        self.is_cached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHED: SeenFile = SeenFile { bytes: 1000, is_cached: true };
    const MISSED: SeenFile = SeenFile { bytes: 1000, is_cached: false };

    /// Looks at files until none is due. Returns their positions.
    fn look(ahead: &mut Ahead, seen: impl Fn(usize) -> SeenFile) -> Vec<usize> {
        let mut looked = Vec::new();
        while let Some(next) = ahead.next() {
            looked.push(next.position);
            ahead.seen(next, seen(next.position));
        }
        looked
    }

    #[test]
    fn files_are_read_ahead_as_far_as_allowed() {
        let mut ahead = Ahead::new(10_000);
        ahead.announce((0..100).collect());
        assert_eq!(look(&mut ahead, |_| MISSED), (0..10).collect::<Vec<_>>());
        ahead.advance(4);
        assert_eq!(look(&mut ahead, |_| MISSED), [10, 11, 12, 13]);
        // The program was faster: files that it has read are not looked at.
        ahead.advance(50);
        assert_eq!(look(&mut ahead, |_| MISSED), (50..60).collect::<Vec<_>>());
        ahead.advance(1000);
        assert!(!ahead.has_work() && ahead.bytes == 0 && ahead.ahead.is_empty());
    }

    #[test]
    fn other_files_and_earlier_orders_are_ignored() {
        let mut ahead = Ahead::new(3000);
        ahead.announce(vec![-1, 5, -1, -1, 6, 7, 8]);
        let first = ahead.next().unwrap();
        assert_eq!((first.id, first.position), (5, 1));
        ahead.announce(vec![9]);
        ahead.seen(first, MISSED);
        assert_eq!((ahead.bytes, ahead.counts.read_ahead), (0, 1), "it counts, but not for this order");
        assert_eq!(look(&mut ahead, |_| MISSED), [0]);
    }

    #[test]
    fn few_files_are_looked_at_where_nearly_all_are_cached() {
        let mut ahead = Ahead::new(1 << 20);
        ahead.announce((0..100_000).collect());
        let mut looked = 0;
        for position in 0..50_000 {
            ahead.advance(position);
            looked += look(&mut ahead, |at| if at % 200 == 13 { MISSED } else { CACHED }).len();
        }
        assert!((600..1500).contains(&looked), "{looked} of 50,000");
        // From here on nothing is cached.
        let mut looked = 0;
        for position in 50_000..60_000 {
            ahead.advance(position);
            looked += look(&mut ahead, |_| MISSED).len();
        }
        assert!(looked >= 9_900, "{looked} of 10,000");
    }

    #[test]
    fn first_thousand_files_suffice() {
        let mut ahead = Ahead::new(256 << 20);
        ahead.announce((0..10_000).collect());
        look(&mut ahead, |_| CACHED);
        assert!(ahead.recent.is_cached() && ahead.cursor < 2000, "{}", ahead.cursor);
        assert!(ahead.counts.cached < 300, "{:?}", ahead.counts);
    }
}
