//! Finding the files below a directory.
//!
//! Some threads of the listing's own share one stack of work: directories to be read, and lots of names to be looked
//! at (size and modification time take a system call a name, on a file server a round trip). A directory of a million
//! files is therefore looked at by all of them. The stack is last-in-first-out, and a thread that finds it full works
//! its names off itself, and its directories, too, down to a depth of [`NESTED`]. So memory stays small for a directory
//! of a million directories as for one of a million files; only a tree that is both wide and deep fills the stack. Results go through a bounded channel: a
//! slow consumer holds the walk back, and dropping the stream ends it.
//!
//! Symbolic links are followed, as `torchvision.datasets.ImageFolder` does. A directory that is one of its own
//! ancestors (by device and inode) is an error rather than a walk without end; one that is reached by two ways is
//! listed twice, because its samples have two paths.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use foreread_tier::{ErrorKind, Object, TierError};
use futures::{Stream, StreamExt};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::core::is_on_this_machine;
use crate::error::{NAME, from_errno, invalid};
use crate::jobs::lock;
use crate::patience::Patience;
use crate::place::{self, ChangeTimes};
use crate::reader::check_path;

/// Names that are looked at by one thread in one go.
const LOT: usize = 256;

/// Lots on the stack, per thread, from which on nobody adds another.
const STACK: usize = 4;

/// Directories that one thread has open at once, each in the one before, while the stack is full.
const NESTED: u32 = 16;

/// The bytes of names that are read from a directory at once.
const ENTRIES: usize = 64 << 10;

/// Threads at most; more than this a file server's directory does not reward.
const THREADS: usize = 16;

type Found = Result<Object, TierError>;

/// The objects below `prefix`, a directory relative to `root`, whose paths are greater than `after`.
pub(crate) fn list(
    root: OwnedFd,
    prefix: &str,
    after: Option<&str>,
    parallelism: usize,
    times: ChangeTimes,
) -> impl Stream<Item = Found> + Send + 'static {
    let (out, mut found) = mpsc::channel(16);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    match if prefix.is_empty() { Ok(()) } else { check_path(prefix) } {
        Ok(()) => Walk::start((root, times), prefix, after, parallelism, out),
        // The channel is new and has room.
        Err(error) => drop(out.try_send(vec![Err(error)])),
    }
    futures::stream::poll_fn(move |context| found.poll_recv(context)).flat_map(futures::stream::iter)
}

/// A directory on the way from the root, to find circles.
struct Ancestor {
    device: u64,
    inode: u64,
    path: String,
    parent: Option<Arc<Self>>,
}

enum Work {
    Directory { path: String, parent: Option<Arc<Ancestor>> },
    Names { directory: Arc<OwnedFd>, of: Arc<Ancestor>, names: Vec<CString> },
}

struct Walk {
    root: OwnedFd,
    times: ChangeTimes,
    prefix: String,
    after: Option<String>,
    bound: usize,
    out: mpsc::Sender<Vec<Found>>,
    patience: Patience,
    state: Mutex<State>,
    wanted: Condvar,
}

#[derive(Default)]
struct State {
    work: Vec<Work>,
    threads: usize,
    /// Threads that have work in hand and may add more.
    busy: usize,
    stopped: bool,
}

impl Walk {
    fn start(
        (root, times): (OwnedFd, ChangeTimes),
        prefix: &str,
        after: Option<&str>,
        parallelism: usize,
        out: mpsc::Sender<Vec<Found>>,
    ) {
        let (prefix, after) = (prefix.to_owned(), after.map(ToOwned::to_owned));
        let bound = parallelism.clamp(1, THREADS);
        let (state, wanted, patience) = (Mutex::default(), Condvar::new(), Patience::default());
        let walk = Self { root, times, prefix: prefix.clone(), after, bound, out, patience, state, wanted };
        let walk = Arc::new(walk);
        walk.add(Work::Directory { path: prefix, parent: None });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Puts work on the stack, for an idle thread or a new one.
    fn add(self: &Arc<Self>, work: Work) {
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
                // The first work of the walk: the channel is empty.
                drop(self.out.try_send(vec![Err(failed)]));
            }
        }
    }

    /// A thread's life.
    fn run(self: Arc<Self>) {
        let mut room = Vec::with_capacity(ENTRIES);
        let mut state = self.lock();
        loop {
            if state.stopped {
                break;
            }
            if let Some(work) = state.work.pop() {
                state.busy += 1;
                drop(state);
                let going_on = match work {
                    Work::Directory { path, parent } => self.directory(path, parent, &mut room, 0),
                    Work::Names { directory, of, names } => self.names(directory.as_fd(), &of, &names, 0),
                };
                state = self.lock();
                state.busy -= 1;
                if !going_on {
                    state.stopped = true;
                    state.work.clear();
                }
            } else if state.busy == 0 {
                break; // nobody is left who could add work
            } else {
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        drop(state);
        self.wanted.notify_all();
    }

    /// Repeats a system call about something in `place` while its file server is away.
    fn patiently<T>(
        &self,
        place: BorrowedFd<'_>,
        call: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let wait = |time| {
            std::thread::sleep(time);
            !self.out.is_closed()
        };
        self.patience.call(call, || is_on_this_machine(place), wait)
    }

    /// Sends results on; `false` if nobody wants them any more.
    fn send(&self, found: Vec<Found>) -> bool {
        found.is_empty() || self.out.blocking_send(found).is_ok()
    }

    /// Reads a directory, as one of `nested` that this thread has open; `false` if the walk is over.
    fn directory(
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
        let opened = self.patiently(root, || rustix::fs::openat(root, shown, flags, Mode::empty()));
        let directory = match opened {
            Ok(directory) => Arc::new(directory),
            Err(Errno::NOENT | Errno::NOTDIR) if parent.is_some() => return true, // gone meanwhile
            Err(errno) => return self.send(vec![Err(from_errno(errno, shown))]),
        };
        let stat = match self.patiently(directory.as_fd(), || rustix::fs::fstat(&directory)) {
            Ok(stat) => stat,
            Err(errno) => return self.send(vec![Err(from_errno(errno, shown))]),
        };
        let mut above = parent.as_deref();
        while let Some(ancestor) = above {
            if (ancestor.device, ancestor.inode) == (stat.st_dev, stat.st_ino) {
                let again = if ancestor.path.is_empty() { "the root" } else { &ancestor.path };
                let why =
                    format!("symbolic links lead in a circle: it is {again} again; remove or exclude it");
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
            let (name, kind) = match self.patiently(directory.as_fd(), &mut next) {
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
            // `.`, `..` and what is hidden; and a disk tier that somebody has put into a dataset.
            if name.as_bytes().starts_with(b".") || crate::disk::is_cache_name(name.as_bytes()) {
                continue;
            }
            if kind == FileType::Directory {
                let going_on = match self.join(&of, &name) {
                    Ok(path) => self.descend(path, &of, nested),
                    Err(error) => self.send(vec![Err(error)]),
                };
                if !going_on {
                    return false;
                }
                continue;
            }
            names.push(name);
            if names.len() == LOT && !self.hand_on(&directory, &of, std::mem::take(&mut names), nested) {
                return false;
            }
        }
        self.names(directory.as_fd(), &of, &names, nested)
    }

    /// Whether others have enough to do; `None` if the walk is over.
    fn is_full(&self) -> Option<bool> {
        let state = self.lock();
        (!state.stopped).then(|| state.work.len() >= STACK * self.bound)
    }

    /// Leaves a directory to others, or reads it if they have enough; `false` if the walk is over.
    fn descend(self: &Arc<Self>, path: String, of: &Arc<Ancestor>, nested: u32) -> bool {
        let parent = Some(Arc::clone(of));
        match self.is_full() {
            None => false,
            Some(true) if nested < NESTED => {
                self.directory(path, parent, &mut Vec::with_capacity(ENTRIES), nested + 1)
            }
            Some(_) => {
                self.add(Work::Directory { path, parent });
                true
            }
        }
    }

    /// Leaves a lot of names to others, or works it off if they have enough; `false` if the walk is over.
    fn hand_on(
        self: &Arc<Self>,
        directory: &Arc<OwnedFd>,
        of: &Arc<Ancestor>,
        names: Vec<CString>,
        nested: u32,
    ) -> bool {
        match self.is_full() {
            None => return false,
            Some(true) => return self.names(directory.as_fd(), of, &names, nested),
            Some(false) => {}
        }
        self.add(Work::Names { directory: Arc::clone(directory), of: Arc::clone(of), names });
        true
    }

    /// Looks at names of one directory; `false` if the walk is over.
    fn names(
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
            let stat = self
                .patiently(directory, || rustix::fs::statx(directory, name, AtFlags::empty(), place::WANTED));
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
                    let version = Some(self.times.version(&stat));
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

    /// The path of `name` in `of`, which must be UTF-8.
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

    /// Whether all that lies in this directory comes before `after`.
    fn is_before(&self, path: &str) -> bool {
        let Some(after) = self.after.as_deref() else { return false };
        if path.is_empty() || path == self.prefix {
            return false;
        }
        let below = format!("{path}/");
        !after.starts_with(&below) && *below < *after
    }
}

/// What it means that a name cannot be looked at; nothing if it has gone since the directory was read.
fn unreadable(directory: BorrowedFd<'_>, name: &CStr, path: &str, errno: Errno) -> Option<TierError> {
    let link = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    let error = from_errno(errno, path);
    match errno {
        Errno::NOENT | Errno::NOTDIR if link => {
            Some(error.with_detail("a symbolic link that leads nowhere; remove it or exclude it"))
        }
        Errno::NOENT => None,
        Errno::LOOP => Some(
            invalid(path, "symbolic links lead in a circle; remove or exclude it")
                .with_source(std::io::Error::from(errno)),
        ),
        _ => Some(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dataset of a directory a sample once had all of its directories' paths in memory.
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
        let walk = Arc::new(Walk {
            root: std::fs::File::open(made.path()).unwrap().into(),
            times: ChangeTimes::default(),
            prefix: String::new(),
            after: None,
            bound: 2,
            out,
            patience: Patience::default(),
            // All threads are busy.
            state: Mutex::new(State { threads: 2, busy: 2, ..State::default() }),
            wanted: Condvar::new(),
        });
        assert!(walk.directory(String::new(), None, &mut Vec::with_capacity(ENTRIES), 0));
        let waiting = walk.lock().work.len();
        assert_eq!(waiting, STACK * 2);
        let mut files = 0;
        while let Ok(more) = found.try_recv() {
            files += more.into_iter().filter(Result::is_ok).count();
        }
        assert_eq!(files + waiting, 300);
    }
}
