//! Reading one sample: one open, one positioned read, one `fstat` afterwards.
//!
//! * The file is opened relative to the root's descriptor, so the kernel walks only the path below
//!   it. It never blocks on a FIFO in the file's place (`O_NONBLOCK` has no effect on files).
//! * The memory has exactly the length of the catalog and is not cleared. A file that became
//!   shorter ends the read early. A file that grew or was overwritten in place has another length
//!   or modification time. Both are checked *after* the read, on the same descriptor. The price is
//!   a window: a write between read and check makes correct bytes an error.
//! * A writer may restore the modification time. So the inode and the change time are compared,
//!   too, where the file system keeps them and the catalog was made of the same directory. The
//!   price: another owner, mode or hard link changes that time, too, and is an error until the data
//!   are indexed again.
//! * Each step is first tried without blocking (`RESOLVE_CACHED`, `RWF_NOWAIT`), and the caller is
//!   notified before the first step that may block. That is free when the kernel has everything
//!   cached, and costs 1 us otherwise. It lets the pool distinguish work that needs a core from
//!   work that needs the device (see `pool.rs`). File systems without this information (NFS, FUSE,
//!   Lustre) always count as blocking.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use foreread_tier::{Buffers, ErrorKind, ReadRequest, Span, TierError, Version};
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::descriptors::KeptFiles;
use crate::error::{NAME, changed, from_errno, from_read, invalid};
use crate::jobs::{ReadJob, ReadStep};
use crate::place::{self, ChangeTimes};
use crate::pool::{BlockingRead, OpenFile, ReadSteps};

/// From this length the file is checked before memory is allocated. So a wrong catalog costs an
/// error and not the process.
const CHECK_FIRST: usize = 16 << 20;

/// The longest path below the root in bytes: `PATH_MAX` with its terminating zero.
const MAX_PATH: usize = 4095;

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Reads files below one directory.
#[derive(Debug)]
pub(crate) struct FileReader {
    root: OwnedFd,
    times: ChangeTimes,
    buffers: Arc<dyn Buffers>,
    /// Whether kernel and file system support cached-only calls. Cleared at the first refusal.
    tries_cache: AtomicBool,
    kept: KeptFiles,
}

impl FileReader {
    pub(crate) fn new(root: OwnedFd, times: ChangeTimes, buffers: Arc<dyn Buffers>) -> Self {
        Self { root, times, buffers, tries_cache: AtomicBool::new(true), kept: KeptFiles::new() }
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    fn open(&self, path: &str, steps: &mut impl ReadSteps) -> Result<OwnedFd, Errno> {
        if self.tries_cache.load(Ordering::Relaxed) {
            match rustix::fs::openat2(&self.root, path, FLAGS, Mode::empty(), ResolveFlags::CACHED) {
                Ok(file) => return Ok(file),
                // A kernel before 5.12, or a sandbox without `openat2`.
                Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
                    self.tries_cache.store(false, Ordering::Relaxed)
                }
                // `AGAIN`: not cached. The blocking open reports any other error.
                Err(_) => {}
            }
        }
        steps.wait(ReadStep::Opening);
        loop {
            match rustix::fs::openat(&self.root, path, FLAGS, Mode::empty()) {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }
}

impl FileReader {
    /// The open file of a request. A file with many samples stays open.
    fn file(&self, request: &ReadRequest, steps: &mut impl ReadSteps) -> Result<OpenFile, TierError> {
        let path = &*request.object.path;
        let failed = |errno| from_errno(errno, path);
        if matches!(request.span, Span::Whole) {
            return self.open(path, steps).map(OpenFile::Own).map_err(failed);
        }
        if let Some(kept) = self.kept.get(&request.object) {
            if !kept.is_due(Instant::now()) {
                return Ok(OpenFile::Kept(kept));
            }
            steps.wait(ReadStep::Checking);
            match rustix::fs::fstat(&kept.file) {
                Ok(stat) if stat.st_nlink > 0 && self.compare(request, &stat).is_ok() => {
                    return Ok(OpenFile::Kept(kept));
                }
                // It was removed or written to. Its name may lead to another file.
                _ => self.kept.forget(&request.object),
            }
        }
        let file = self.open(path, steps).map_err(failed)?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| from_read(errno, path, file.as_fd()))?;
        self.compare(request, &stat)?;
        // Each read is of another sample. Reading ahead would read bytes that are not requested.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let (kept, closed) = self.kept.keep(&request.object, file);
        drop(closed);
        Ok(OpenFile::Kept(kept))
    }

    /// Reads the bytes of a request from its open file, and checks the file.
    fn read_from(
        &self,
        request: &ReadRequest,
        (offset, length): (u64, usize),
        file: BorrowedFd<'_>,
        steps: &mut impl ReadSteps,
    ) -> Result<Bytes, TierError> {
        let path = &*request.object.path;
        let failed = |errno| from_read(errno, path, file);
        if length >= CHECK_FIRST {
            self.check(request, file, steps)?;
        }
        let mut buffer = self.buffers.allocate_for(request.lifetime, length, 1).ok_or_else(|| {
            let error = TierError::new(ErrorKind::Other, NAME).with_object(path);
            error.with_detail(format!("there is no memory for its {length} bytes"))
        })?;
        if length > 0 && self.tries_cache.load(Ordering::Relaxed) {
            match buffer.fill(|empty| read_cached(file, empty, offset)) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
                    self.tries_cache.store(false, Ordering::Relaxed);
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
        // Bytes that are not cached, and the rest of a read of more than 2 GiB.
        while buffer.filled() < length {
            steps.wait(ReadStep::Reading);
            let from = offset + buffer.filled() as u64;
            match buffer.fill(|empty| rustix::io::pread(file, empty, from).map(|(done, _)| done)) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        self.check(request, file, steps)?;
        if buffer.filled() < length {
            return Err(changed(path, format!("it ended {} bytes early", length - buffer.filled())));
        }
        Ok(buffer.freeze())
    }

    /// Checks that an open file is still the indexed one. The attributes that the client has cached
    /// are compared first, which costs no request to a file server. Only fresh ones prove a change,
    /// because cached ones may be older than the catalog.
    fn check(
        &self,
        request: &ReadRequest,
        file: BorrowedFd<'_>,
        steps: &mut impl ReadSteps,
    ) -> Result<(), TierError> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        if let Ok(cached) = rustix::fs::statx(file, c"", flags, place::WANTED)
            && u64::from(cached.stx_mask) & u64::from(place::WANTED.bits()) == u64::from(place::WANTED.bits())
        {
            let version = self.times.version(&cached);
            let state = FileState { mode: cached.stx_mode.into(), size: cached.stx_size, version };
            if compare_state(request, &state).is_ok() {
                return Ok(());
            }
        }
        steps.wait(ReadStep::Checking);
        let path = &*request.object.path;
        self.compare(request, &rustix::fs::fstat(file).map_err(|errno| from_read(errno, path, file))?)
    }

    /// Checks that the file is still the indexed one.
    fn compare(&self, request: &ReadRequest, stat: &Stat) -> Result<(), TierError> {
        let version = self.times.version_of_stat(stat);
        compare_state(request, &FileState { mode: stat.st_mode, size: stat.st_size as u64, version })
    }
}

impl BlockingRead for FileReader {
    const NAME: &'static str = NAME;
    const THREAD: &'static str = "foreread-local";
    const ALWAYS_WAITS: bool = false;

    fn describe(request: &ReadRequest) -> String {
        request.object.path.to_string()
    }

    fn read(
        &self,
        job: &Arc<ReadJob>,
        steps: &mut impl ReadSteps,
    ) -> (Result<Bytes, TierError>, Option<OpenFile>) {
        let request = job.request();
        let opened = extent(request).and_then(|bytes| {
            check_path(&request.object.path)?;
            Ok((bytes, self.file(request, steps)?))
        });
        match opened {
            Err(error) => (Err(error), None),
            Ok((bytes, file)) => {
                let result = self.read_from(request, bytes, file.as_fd(), steps);
                // The next read opens it again: a server may have forgotten a stale file.
                if result.is_err() && matches!(file, OpenFile::Kept(_)) {
                    self.kept.forget(&request.object);
                }
                (result, Some(file))
            }
        }
    }
}

/// Reads the bytes at `offset` that are in the page cache.
///
/// `rustix` has this call only for initialised memory. Clearing 100 KB costs a third of reading it.
pub(crate) fn read_cached<'a>(
    file: BorrowedFd<'_>,
    empty: &'a mut [MaybeUninit<u8>],
    offset: u64,
) -> Result<&'a mut [u8], Errno> {
    let part = libc::iovec { iov_base: empty.as_mut_ptr().cast(), iov_len: empty.len() };
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: the descriptor is open during the call. `part` describes exactly `empty`, which is
    // writable and mutably borrowed until the result is dropped. The kernel writes nothing else.
    let done = unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset, libc::RWF_NOWAIT) };
    match usize::try_from(done) {
        // SAFETY: the kernel reports that it has written the first `done` bytes, at most the given
        // length.
        Ok(done) => Ok(unsafe { empty[..done].assume_init_mut() }),
        Err(_) => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The offset and length of the requested bytes.
fn extent(request: &ReadRequest) -> Result<(u64, usize), TierError> {
    let object = &request.object;
    let range = request.range().map_err(|why| invalid(&object.path, why))?;
    if i64::try_from(object.size).is_err() {
        return Err(invalid(&object.path, format!("no file has {} bytes", object.size)));
    }
    match usize::try_from(range.end - range.start) {
        Ok(length) => Ok((range.start, length)),
        Err(_) => Err(invalid(&object.path, format!("{} bytes do not fit in memory", request.len()))),
    }
}

/// Refuses paths that could lead out of the root. A symbolic link inside it may still do so.
pub(crate) fn check_path(path: &str) -> Result<(), TierError> {
    if path.len() > MAX_PATH {
        return Err(invalid(path, format!("the path is longer than {MAX_PATH} bytes")));
    }
    foreread_tier::check_path(path).map_err(|why| invalid(&path.replace('\0', "\\0"), why))
}

/// The identity of one state of a file.
struct FileState {
    mode: u32,
    size: u64,
    version: Version,
}

fn compare_state(request: &ReadRequest, state: &FileState) -> Result<(), TierError> {
    let object = &request.object;
    if FileType::from_raw_mode(state.mode) != FileType::RegularFile {
        return Err(changed(&object.path, "no longer a file"));
    }
    if state.size != object.size {
        return Err(changed(&object.path, format!("{} bytes instead of {}", state.size, object.size)));
    }
    let Some(indexed) = &object.version else { return Ok(()) };
    if indexed.modified().is_none() {
        let why = "the catalog has ETags of a bucket, which files lack; index the directory";
        return Err(invalid(&object.path, why));
    }
    if indexed.modified() != state.version.modified() {
        return Err(changed(&object.path, "another modification time; index it again"));
    }
    match (indexed.change(), state.version.change()) {
        (Some((then, location)), Some((now, here))) if location == here && then != now => {
            Err(changed(&object.path, CHANGED_ONLY))
        }
        _ => Ok(()),
    }
}

/// The inode or the change time differs alone.
const CHANGED_ONLY: &str = "its inode or change time is not the indexed one, although its size and \
                            modification time are: it was rewritten, replaced by a copy, or given other \
                            rights or links; index it again, or, if its bytes are known to be the same, \
                            index it with a name";
