//! Lists the files below a directory.
//!
//! Some threads share one stack of tasks: directories to read, and batches of names to `stat`. A
//! `stat` costs a system call per name, on a file server a round trip. So all threads work on a
//! directory of a million files.
//!
//! The stack is last in, first out. A thread that finds it full processes its names itself, and its
//! directories down to a depth of [`MAX_NESTED`]. So memory stays small for a million directories
//! as for a million files. Only a tree that is both wide and deep fills the stack. Results go
//! through a bounded channel: a slow consumer slows the walk, and dropping the stream ends it.
//!
//! Lustre reads attributes ahead for a thread that asks for them in the order of the directory, and
//! stops if other threads ask too. So there one thread works on each directory
//! ([`ListThreads::OnePerDirectory`]).
//!
//! Symbolic links are followed, as by `torchvision.datasets.ImageFolder`. A directory that is its
//! own ancestor (by device and inode) is an error. A directory with two paths is listed twice,
//! because its samples have two paths.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use foreread_tier::{ErrorKind, Object, TierError};
use futures::{Stream, StreamExt};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::error::{NAME, from_errno, invalid};
use crate::file_reader::check_path;
use crate::file_system::is_on_this_machine;
use crate::jobs::lock;
use crate::list_retry::ListRetry;
use crate::place::{self, ChangeTimes};

/// Names per task.
const NAMES_PER_TASK: usize = 256;

/// Tasks on the stack, per thread, above which no thread adds another.
const TASKS_PER_THREAD: usize = 4;

/// Nested directories that one thread has open while the stack is full.
const MAX_NESTED: u32 = 16;

/// Buffer size for reading directories, in bytes.
const DIRENT_BYTES: usize = 64 << 10;

/// Maximum number of threads. A file server's directory gains nothing from more.
const MAX_THREADS: usize = 16;

type ListResult = Result<Object, TierError>;

/// How threads share a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListThreads {
    /// All threads stat the names of one directory.
    #[default]
    Shared,
    /// The thread that reads a directory stats all of its names, in its order.
    OnePerDirectory,
}

/// How a directory is listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListSettings {
    pub(crate) parallelism: usize,
    pub(crate) threads: ListThreads,
    pub(crate) times: ChangeTimes,
}

/// The objects below `prefix`, a directory relative to `root`, whose paths are greater than
/// `after`.
pub(crate) fn list(
    root: OwnedFd,
    prefix: &str,
    after: Option<&str>,
    settings: ListSettings,
) -> impl Stream<Item = ListResult> + Send + 'static {
    let (out, mut found) = mpsc::channel(16);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    match if prefix.is_empty() { Ok(()) } else { check_path(prefix) } {
        Ok(()) => DirectoryWalk::start(root, settings, prefix, after, out),
        // The channel is new and has space.
        Err(error) => drop(out.try_send(vec![Err(error)])),
    }
    futures::stream::poll_fn(move |context| found.poll_recv(context)).flat_map(futures::stream::iter)
}

/// An ancestor of a directory, for detecting cycles.
struct Ancestor {
    device: u64,
    inode: u64,
    path: String,
    parent: Option<Arc<Self>>,
}

enum WalkTask {
    Directory { path: String, parent: Option<Arc<Ancestor>> },
    Names { directory: Arc<OwnedFd>, of: Arc<Ancestor>, names: Vec<CString> },
}

struct DirectoryWalk {
    root: OwnedFd,
    settings: ListSettings,
    prefix: String,
    after: Option<String>,
    bound: usize,
    out: mpsc::Sender<Vec<ListResult>>,
    list_retry: ListRetry,
    state: Mutex<WalkState>,
    wanted: Condvar,
}

#[derive(Default)]
struct WalkState {
    work: Vec<WalkTask>,
    threads: usize,
    /// Threads with a task, which may add more.
    busy: usize,
    stopped: bool,
}

impl DirectoryWalk {
    fn start(
        root: OwnedFd,
        settings: ListSettings,
        prefix: &str,
        after: Option<&str>,
        out: mpsc::Sender<Vec<ListResult>>,
    ) {
        let (prefix, after) = (prefix.to_owned(), after.map(ToOwned::to_owned));
        let bound = settings.parallelism.clamp(1, MAX_THREADS);
        let (state, wanted, list_retry) = (Mutex::default(), Condvar::new(), ListRetry::default());
        let walk =
            Self { root, settings, prefix: prefix.clone(), after, bound, out, list_retry, state, wanted };
        let walk = Arc::new(walk);
        walk.add(WalkTask::Directory { path: prefix, parent: None });
    }

    fn lock(&self) -> MutexGuard<'_, WalkState> {
        lock(&self.state)
    }

    /// Pushes a task for an idle thread or a new one.
    fn add(self: &Arc<Self>, work: WalkTask) {
        let mut state = self.lock();
        state.work.push(work);
        if state.threads > state.busy {
            drop(state);
            return self.wanted.notify_one();
        }
        if state.threads == self.bound {
            return;
        }
        state.threads += 1;
        drop(state);
        let walk = Arc::clone(self);
        let thread = std::thread::Builder::new().name("foreread-list".into()).spawn(move || walk.run());
        if let Err(error) = thread {
            let mut state = self.lock();
            state.threads -= 1;
            if state.threads == 0 {
                state.work.clear();
                drop(state);
                let failed = TierError::new(ErrorKind::Transient, NAME).with_source(error);
                let failed = failed.with_detail("no thread could be started; raise `ulimit -u`");
                // The first task of the walk: the channel is empty.
                drop(self.out.try_send(vec![Err(failed)]));
            }
        }
    }

    /// The thread's main loop.
    fn run(self: Arc<Self>) {
        let mut room = Vec::with_capacity(DIRENT_BYTES);
        let mut state = self.lock();
        loop {
            if state.stopped {
                break;
            }
            if let Some(work) = state.work.pop() {
                state.busy += 1;
                drop(state);
                let continues = match work {
                    WalkTask::Directory { path, parent } => self.read_directory(path, parent, &mut room, 0),
                    WalkTask::Names { directory, of, names } => {
                        self.stat_names(directory.as_fd(), &of, &names, 0)
                    }
                };
                state = self.lock();
                state.busy -= 1;
                if !continues {
                    state.stopped = true;
                    state.work.clear();
                }
            } else if state.busy == 0 {
                break; // no thread is left that could add tasks
            } else {
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        drop(state);
        self.wanted.notify_all();
    }

    /// Repeats a system call on `place` while its file server is away.
    fn retry<T>(&self, place: BorrowedFd<'_>, call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        let wait = |time| {
            std::thread::sleep(time);
            !self.out.is_closed()
        };
        self.list_retry.call(call, || is_on_this_machine(place), wait)
    }

    /// Sends results. `false` if the stream was dropped.
    fn send(&self, found: Vec<ListResult>) -> bool {
        found.is_empty() || self.out.blocking_send(found).is_ok()
    }

    /// Reads a directory at the nesting depth `nested`. `false` if the walk is over.
    fn read_directory(
        self: &Arc<Self>,
        path: String,
        parent: Option<Arc<Ancestor>>,
        room: &mut Vec<u8>,
        nested: u32,
    ) -> bool {
        if self.is_before(&path) {
            return true;
        }
        let shown = if path.is_empty() { "." } else { &path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = self.root.as_fd();
        let opened = self.retry(root, || rustix::fs::openat(root, shown, flags, Mode::empty()));
        let directory = match opened {
            Ok(directory) => Arc::new(directory),
            Err(Errno::NOENT | Errno::NOTDIR) if parent.is_some() => return true, // removed in the meantime
            Err(errno) => return self.send(vec![Err(from_errno(errno, shown))]),
        };
        let stat = match self.retry(directory.as_fd(), || rustix::fs::fstat(&directory)) {
            Ok(stat) => stat,
            Err(errno) => return self.send(vec![Err(from_errno(errno, shown))]),
        };
        let mut above = parent.as_deref();
        while let Some(ancestor) = above {
            if (ancestor.device, ancestor.inode) == (stat.st_dev, stat.st_ino) {
                let again = if ancestor.path.is_empty() { "the root" } else { &ancestor.path };
                let why = format!("symbolic links form a cycle: it is {again} again; remove or exclude it");
                return self.send(vec![Err(invalid(shown, why))]);
            }
            above = ancestor.parent.as_deref();
        }
        let of = Arc::new(Ancestor { device: stat.st_dev, inode: stat.st_ino, path, parent });
        let mut names = Vec::new();
        let mut entries = RawDir::new(&directory, room.spare_capacity_mut());
        // A server that is back continues at the same entry.
        let mut next = || {
            let entry = entries.next().transpose()?;
            Ok(entry.map(|entry| (entry.file_name().to_owned(), entry.file_type())))
        };
        loop {
            let (name, kind) = match self.retry(directory.as_fd(), &mut next) {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(errno) => {
                    let path = if of.path.is_empty() { "." } else { &of.path };
                    if !self.send(vec![Err(from_errno(errno, path))]) {
                        return false;
                    }
                    break;
                }
            };
            // Skips `.`, `..`, hidden entries, and a disk tier inside the dataset.
            if name.as_bytes().starts_with(b".") || crate::disk::is_cache_name(name.as_bytes()) {
                continue;
            }
            if kind == FileType::Directory {
                let continues = match self.join(&of, &name) {
                    Ok(path) => self.descend(path, &of, nested),
                    Err(error) => self.send(vec![Err(error)]),
                };
                if !continues {
                    return false;
                }
                continue;
            }
            names.push(name);
            if names.len() == NAMES_PER_TASK
                && !self.delegate(&directory, &of, std::mem::take(&mut names), nested)
            {
                return false;
            }
        }
        self.stat_names(directory.as_fd(), &of, &names, nested)
    }

    /// Whether the stack is full. `None` if the walk is over.
    fn is_full(&self) -> Option<bool> {
        let state = self.lock();
        (!state.stopped).then(|| state.work.len() >= TASKS_PER_THREAD * self.bound)
    }

    /// Pushes a directory, or reads it if the stack is full. `false` if the walk is over.
    fn descend(self: &Arc<Self>, path: String, of: &Arc<Ancestor>, nested: u32) -> bool {
        let parent = Some(Arc::clone(of));
        match self.is_full() {
            None => false,
            Some(true) if nested < MAX_NESTED => {
                self.read_directory(path, parent, &mut Vec::with_capacity(DIRENT_BYTES), nested + 1)
            }
            Some(_) => {
                self.add(WalkTask::Directory { path, parent });
                true
            }
        }
    }

    /// Pushes a batch of names, or processes it if the stack is full. `false` if the walk is over.
    fn delegate(
        self: &Arc<Self>,
        directory: &Arc<OwnedFd>,
        of: &Arc<Ancestor>,
        names: Vec<CString>,
        nested: u32,
    ) -> bool {
        match self.is_full() {
            None => return false,
            _ if self.settings.threads == ListThreads::OnePerDirectory => {
                return self.stat_names(directory.as_fd(), of, &names, nested);
            }
            Some(true) => return self.stat_names(directory.as_fd(), of, &names, nested),
            Some(false) => {}
        }
        self.add(WalkTask::Names { directory: Arc::clone(directory), of: Arc::clone(of), names });
        true
    }

    /// Processes names of one directory. `false` if the walk is over.
    fn stat_names(
        self: &Arc<Self>,
        directory: BorrowedFd<'_>,
        of: &Arc<Ancestor>,
        names: &[CString],
        nested: u32,
    ) -> bool {
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let path = match self.join(of, name) {
                Ok(path) => path,
                Err(error) => {
                    found.push(Err(error));
                    continue;
                }
            };
            let stat =
                self.retry(directory, || rustix::fs::statx(directory, name, AtFlags::empty(), place::WANTED));
            let stat = match stat {
                Ok(stat) => stat,
                Err(errno) => {
                    found.extend(unreadable(directory, name, &path, errno).map(Err));
                    continue;
                }
            };
            match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
                FileType::RegularFile => {
                    if self.after.as_ref().is_some_and(|after| path <= *after) {
                        continue;
                    }
                    let version = Some(self.settings.times.version(&stat));
                    found.push(Ok(Object { path: path.into(), size: stat.stx_size, version }));
                }
                FileType::Directory => {
                    if !self.descend(path, of, nested) {
                        return false;
                    }
                }
                kind => tracing::warn!(path, ?kind, "left out: neither a file nor a directory"),
            }
        }
        self.send(found)
    }

    /// The path of `name` in `of`. It must be UTF-8.
    fn join(&self, of: &Ancestor, name: &CStr) -> Result<String, TierError> {
        let separator = if of.path.is_empty() { "" } else { "/" };
        match name.to_str() {
            Ok(name) => Ok(format!("{}{separator}{name}", of.path)),
            Err(_) => {
                let path = format!("{}{separator}{}", of.path, String::from_utf8_lossy(name.to_bytes()));
                Err(invalid(&path, "the name is not UTF-8; rename it or exclude it"))
            }
        }
    }

    /// Whether all paths in this directory come before `after`.
    fn is_before(&self, path: &str) -> bool {
        let Some(after) = self.after.as_deref() else { return false };
        if path.is_empty() || path == self.prefix {
            return false;
        }
        let below = format!("{path}/");
        !after.starts_with(&below) && *below < *after
    }
}

/// The names of the directories in `root`, without hidden ones and disk caches. A name outside
/// UTF-8 can be no sample's. `is_abandoned` ends the wait for a file server.
pub(crate) fn directories(root: &OwnedFd, is_abandoned: &dyn Fn() -> bool) -> Result<Vec<String>, Errno> {
    let list_retry = ListRetry::default();
    let wait = |time| {
        std::thread::sleep(time);
        !is_abandoned()
    };
    let is_local = || is_on_this_machine(root.as_fd());
    // The position of the listing belongs to the open directory, which reads share.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = list_retry.call(|| rustix::fs::openat(root, ".", flags, Mode::empty()), is_local, wait)?;
    let mut room = Vec::with_capacity(DIRENT_BYTES);
    let mut entries = RawDir::new(&root, room.spare_capacity_mut());
    let mut next = || {
        let entry = entries.next().transpose()?;
        Ok(entry.map(|entry| (entry.file_name().to_owned(), entry.file_type())))
    };
    let mut names = Vec::new();
    while let Some((name, kind)) = list_retry.call(&mut next, is_local, wait)? {
        if name.as_bytes().starts_with(b".") || crate::disk::is_cache_name(name.as_bytes()) {
            continue;
        }
        let is_directory = match kind {
            FileType::Directory => true,
            FileType::Symlink | FileType::Unknown => rustix::fs::statat(&root, &name, AtFlags::empty())
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            _ => false,
        };
        if is_directory && let Ok(name) = name.into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

/// The error of a name without metadata. `None` if it was removed since the directory was read.
fn unreadable(directory: BorrowedFd<'_>, name: &CStr, path: &str, errno: Errno) -> Option<TierError> {
    let link = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    let error = from_errno(errno, path);
    match errno {
        Errno::NOENT | Errno::NOTDIR if link => {
            Some(error.with_detail("a dangling symbolic link; remove it or exclude it"))
        }
        Errno::NOENT => None,
        Errno::LOOP => Some(
            invalid(path, "symbolic links form a cycle; remove or exclude it")
                .with_source(std::io::Error::from(errno)),
        ),
        _ => Some(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: SAMPLE-4
    fn empty_and_linked_directories_are_named() {
        let made = tempfile::tempdir().unwrap();
        for name in ["empty", "full", ".hidden", "foreread-cache-1"] {
            std::fs::create_dir(made.path().join(name)).unwrap();
        }
        std::fs::write(made.path().join("full/1.jpg"), "").unwrap();
        std::fs::write(made.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("full", made.path().join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", made.path().join("dangling")).unwrap();
        let root = std::fs::File::open(made.path()).unwrap().into();
        let mut names = directories(&root, &|| false).unwrap();
        names.sort_unstable();
        assert_eq!(names, ["empty", "full", "link"]);
    }

    /// With one directory per sample, all their paths were once in memory.
    #[test]
    // semantics: SAMPLE-13
    fn directory_of_many_directories_does_not_fill_the_stack() {
        let made = tempfile::tempdir().unwrap();
        for number in 0..300 {
            let directory = made.path().join(format!("{number}"));
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("x"), "").unwrap();
        }
        let (out, mut found) = mpsc::channel(1000);
        let walk = Arc::new(DirectoryWalk {
            root: std::fs::File::open(made.path()).unwrap().into(),
            settings: ListSettings {
                parallelism: 2,
                threads: ListThreads::Shared,
                times: ChangeTimes::default(),
            },
            prefix: String::new(),
            after: None,
            bound: 2,
            out,
            list_retry: ListRetry::default(),
            // All threads are busy.
            state: Mutex::new(WalkState { threads: 2, busy: 2, ..WalkState::default() }),
            wanted: Condvar::new(),
        });
        assert!(walk.read_directory(String::new(), None, &mut Vec::with_capacity(DIRENT_BYTES), 0));
        let waiting = walk.lock().work.len();
        assert_eq!(waiting, TASKS_PER_THREAD * 2);
        let mut files = 0;
        while let Ok(more) = found.try_recv() {
            files += more.into_iter().filter(Result::is_ok).count();
        }
        assert_eq!(files + waiting, 300);
    }
}
