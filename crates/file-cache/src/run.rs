//! One `foreread run`: a trace for its programs, and its part in the cache of the node.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foreread_local::disk::SharedRoom;
use foreread_preload::VARIABLE;
use foreread_preload::layout::{MAX_PATH, MAX_ROOTS};

use crate::directory::{CacheDirectory, lock, open_lock};
use crate::error::{FileCacheError, FileCacheErrorKind};
use crate::guard::Guard;
use crate::host::{Host, check_root, has_runs, is_local};
use crate::report::{RunCounts, RunReport};
use crate::root::{RootIdentity, watch_mounts};
use crate::table::RootName;
use crate::trace::Trace;
use crate::writes::{OwnWrites, WriteBudget};

/// How long a run waits for the host of its cache.
const HOST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the last run waits for the end of a host that has ended before it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

const POLL: Duration = Duration::from_millis(10);

/// Where copies are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyStore {
    /// In a directory of a local disk.
    Disk {
        /// The directory.
        directory: PathBuf,
        /// The most bytes.
        bytes: u64,
        /// The part of them that may be written in a day, after the disk was filled once.
        writes_per_day: f64,
        /// The name of this node, if nodes share the directory.
        node: Option<String>,
    },
    /// In memory, as files of a `tmpfs`.
    Memory {
        /// The directory of the file system.
        directory: PathBuf,
        /// The most bytes.
        bytes: u64,
    },
}

impl CopyStore {
    pub(crate) fn directory(&self) -> &Path {
        match self {
            Self::Disk { directory, .. } | Self::Memory { directory, .. } => directory,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Disk { bytes, .. } | Self::Memory { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn writes_per_day(&self) -> Option<f64> {
        match self {
            Self::Disk { writes_per_day, .. } => Some(*writes_per_day),
            Self::Memory { .. } => None,
        }
    }

    pub(crate) fn open(&self) -> Result<CacheDirectory, FileCacheError> {
        match self {
            Self::Disk { directory, node, .. } => CacheDirectory::open(directory, node.as_deref()),
            Self::Memory { directory, .. } => CacheDirectory::open(directory, None),
        }
    }
}

/// When originals are compared with their copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckOriginals {
    /// At each open on a local file system. On others when a copy is made, and at the start.
    #[default]
    Auto,
    /// At each open: one `stat`.
    Open,
    /// When a copy is made, and at the start.
    Never,
}

impl CheckOriginals {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Auto, "auto"), (Self::Open, "open"), (Self::Never, "never")];

    /// Its name, as agents are sent it.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(check, _)| *check == self).map_or("auto", |(_, name)| name)
    }

    /// The one of this name, or the usual one: a later version may have others.
    pub fn of_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|(_, own)| *own == name).map_or(Self::Auto, |(check, _)| check)
    }

    pub(crate) fn of(self, is_local: bool) -> bool {
        match self {
            Self::Auto => is_local,
            Self::Open => true,
            Self::Never => false,
        }
    }
}

/// The order in which a program opens its files, as far as it is known.
pub trait FileOrder: Send {
    /// The files of an epoch, counted from 0, as positions in `files`: all files of the datasets,
    /// in the order of their paths. `None`: this epoch's order is not known.
    fn epoch(&mut self, epoch: u64, files: &[PathBuf]) -> Option<Vec<usize>>;
}

/// The settings of a run.
pub struct RunSettings {
    /// The names of the directories whose files are served.
    pub(crate) roots: Vec<RootName>,
    pub(crate) store: CopyStore,
    pub(crate) check: CheckOriginals,
    pub(crate) order: OrderCell,
    /// The room and the budget of writes that others share. `None`: those of the store.
    pub(crate) shared: Option<(SharedRoom, Arc<dyn WriteBudget>)>,
}

/// An order that the first host takes.
#[derive(Default)]
pub(crate) struct OrderCell(Mutex<Option<Box<dyn FileOrder>>>);

impl OrderCell {
    pub(crate) fn take(&self) -> Option<Box<dyn FileOrder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl std::fmt::Debug for RunSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunSettings").field("roots", &self.roots).field("store", &self.store).finish()
    }
}

impl RunSettings {
    /// Serves files of these directories from copies in `store`.
    ///
    /// # Errors
    /// A directory that is not there.
    pub fn new(roots: &[PathBuf], store: CopyStore) -> Result<Self, FileCacheError> {
        let mut all: Vec<RootName> = Vec::new();
        for root in roots {
            check_root(root)?;
            let found = root.canonicalize().map_err(|error| FileCacheError::system("find", root, error))?;
            let identity = RootIdentity::of(&found);
            let identity = identity.map_err(|error| FileCacheError::system("look at", root, error))?;
            let given =
                std::path::absolute(root).map_err(|error| FileCacheError::system("find", root, error))?;
            if !found.is_dir() || found.parent().is_none() {
                let why = format!("{} is not a directory of files", root.display());
                return Err(FileCacheError::new(FileCacheErrorKind::Invalid, why));
            }
            // Programs may use both names.
            for path in [found.clone(), given] {
                if path.as_os_str().len() > MAX_PATH {
                    let why = format!("{} has more than {MAX_PATH} bytes", path.display());
                    return Err(FileCacheError::new(FileCacheErrorKind::Invalid, why));
                }
                let name = RootName { path, target: found.clone(), identity };
                if !all.contains(&name) {
                    all.push(name);
                }
            }
        }
        if all.len() > MAX_ROOTS {
            let why = format!("at most {MAX_ROOTS} datasets are served, and other names count");
            return Err(FileCacheError::new(FileCacheErrorKind::Invalid, why));
        }
        let (check, order) = (CheckOriginals::Auto, OrderCell::default());
        Ok(Self { roots: all, store, check, order, shared: None })
    }

    /// The room for copies.
    pub(crate) fn room(&self) -> SharedRoom {
        match &self.shared {
            Some((room, _)) => room.clone(),
            None => SharedRoom::new(self.store.bytes()),
        }
    }

    /// The budget of writes, with so many free bytes. `None`: writes wear nothing out.
    pub(crate) fn writes(&self, free: u64) -> Option<Arc<dyn WriteBudget>> {
        let own = |per_day| Arc::new(OwnWrites::new(self.store.bytes(), free, per_day)) as _;
        match &self.shared {
            Some((_, writes)) => Some(Arc::clone(writes)),
            None => self.store.writes_per_day().map(own),
        }
    }

    /// The same, where originals are compared with their copies then.
    #[must_use]
    pub fn with_check(self, check: CheckOriginals) -> Self {
        Self { check, ..self }
    }

    /// The same with a known order.
    #[must_use]
    pub fn with_order(self, order: Box<dyn FileOrder>) -> Self {
        Self { order: OrderCell(Mutex::new(Some(order))), ..self }
    }
}

/// A run. Its programs are served until it is dropped, and may run longer.
#[derive(Debug)]
pub struct FileRun {
    announced: AnnouncedRun,
    library: PathBuf,
    /// Set once this process is the host.
    host: Arc<Mutex<Option<Host>>>,
    /// The cache, if its copies end with the last run.
    in_memory: Option<CacheDirectory>,
    /// `None`: this process has been the host from the beginning.
    takeover: Option<Arc<Takeover>>,
    /// Removes copies in memory if this process is killed.
    _guard: Option<Guard>,
}

impl FileRun {
    /// Starts to serve a run: as the host of its cache, or as one of the runs that a host serves.
    ///
    /// # Errors
    /// A directory that cannot be used, or a host that does not start.
    pub fn start(settings: RunSettings) -> Result<Self, FileCacheError> {
        let directory = settings.store.directory();
        let real = resolved(directory);
        if let Some(root) = settings.roots.iter().find(|root| real.starts_with(&root.target)) {
            let (directory, root) = (directory.display(), root.path.display());
            let why =
                format!("{directory} for copies is in {root}, whose files are copied; use another directory");
            return Err(FileCacheError::new(FileCacheErrorKind::Invalid, why));
        }
        let made = std::fs::create_dir_all(directory);
        made.map_err(|error| FileCacheError::system("make", directory, error))?;
        let cache = settings.store.open()?;
        let library = cache.library()?;
        let is_memory = matches!(settings.store, CopyStore::Memory { .. });
        // Before this process has threads and locks.
        let guard = is_memory.then(|| Guard::start(&cache)).and_then(|started| {
            let unguarded = "copies stay in memory if this process is killed: no process to remove them";
            started.inspect_err(|error| tracing::warn!(%error, "{unguarded}")).ok()
        });
        let lock_file = cache.lock_file()?;
        let settings = Arc::new(settings);
        let begun = Instant::now();
        let (host, announced) = loop {
            if lock(&lock_file, false) {
                let host = Host::start(&cache, &settings)?;
                break (Some(host), AnnouncedRun::new(&cache, &settings, true)?);
            }
            if cache.is_ready() {
                let announced = AnnouncedRun::new(&cache, &settings, false)?;
                // A host that starts keeps the table of the runs that it finds after this.
                if cache.is_ready() {
                    break (None, announced);
                }
            }
            if begun.elapsed() > HOST_TIMEOUT {
                let why = format!("the host of {} does not start", cache.path().display());
                return Err(FileCacheError::new(FileCacheErrorKind::System, why));
            }
            std::thread::sleep(POLL);
        };
        let in_memory = is_memory.then(|| cache.clone());
        let is_host = host.is_some();
        let host = Arc::new(Mutex::new(host));
        let takeover = if is_host {
            // It is locked until this process ends.
            std::mem::forget(lock_file);
            None
        } else {
            Some(Takeover::wait(lock_file, cache, settings, Arc::clone(&host)))
        };
        Ok(Self { announced, library, host, in_memory, takeover, _guard: guard })
    }

    /// The environment variables of its programs. `environment` has those of this process.
    pub fn variables(&self, environment: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, OsString)> {
        let joined = |name: &str, own: &[u8]| {
            let mut value =
                environment(name).filter(|value| !value.is_empty()).unwrap_or_default().into_vec();
            if !value.is_empty() {
                value.push(b':');
            }
            value.extend(own);
            OsString::from_vec(value)
        };
        vec![
            // After the user's own: a sanitizer must be first.
            ("LD_PRELOAD", joined("LD_PRELOAD", self.library.as_os_str().as_bytes())),
            // A sanitizer that a program is linked with comes after all preloaded libraries, and
            // need not come first.
            ("ASAN_OPTIONS", joined("ASAN_OPTIONS", b"verify_asan_link_order=0")),
            (VARIABLE, self.announced.directory.join("trace").into_os_string()),
        ]
    }

    /// Notes the program of the run, by the path of its file. Whether it can load the library of
    /// [`variables`](Self::variables).
    pub fn starts(&self, program: &Path) -> bool {
        self.announced.trace.starts(program)
    }

    /// Whether this process is the host of the cache.
    pub fn is_host(&self) -> bool {
        self.host.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The counts so far.
    pub fn report(&self) -> RunReport {
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Host::counts);
        RunReport { counts: RunCounts::of(&self.announced.trace), host }
    }
}

impl Drop for FileRun {
    fn drop(&mut self) {
        self.announced.end();
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(cache) = &self.in_memory else { return };
        let Some(takeover) = self.takeover.as_ref().filter(|_| host.is_none()) else {
            return close_memory(cache, host);
        };
        takeover.is_over.store(true, Ordering::Release);
        // The last run removes the copies, also if it was not the host.
        let begun = Instant::now();
        while !has_runs(cache) && !takeover.has_ended() && begun.elapsed() < CLOSE_TIMEOUT {
            std::thread::sleep(POLL);
        }
    }
}

/// A run that the host of its cache knows.
#[derive(Debug)]
struct AnnouncedRun {
    directory: PathBuf,
    trace: Trace,
    /// Locked as long as this process lives.
    _lock: File,
    is_over: Arc<AtomicBool>,
}

impl AnnouncedRun {
    fn new(cache: &CacheDirectory, settings: &RunSettings, is_host: bool) -> Result<Self, FileCacheError> {
        let (directory, trace, own) = announce(cache, settings, is_host)?;
        let run = Self { directory, trace, _lock: own, is_over: Arc::default() };
        let roots = settings.roots.iter().map(|root| (root.path.clone(), root.identity)).collect();
        let (watched, is_over) = (Trace::open(&run.directory.join("trace")), Arc::clone(&run.is_over));
        let thread = std::thread::Builder::new().name("foreread-mounts".to_owned());
        let started = watched.map(|trace| thread.spawn(move || watch_mounts(roots, trace, is_over)));
        if started.is_none_or(|started| started.is_err()) {
            run.trace.mounts_changed();
        }
        Ok(run)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.trace.ends();
        // A program that still runs has it mapped.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Drop for AnnouncedRun {
    fn drop(&mut self) {
        self.end();
    }
}

/// Announces a run to the host, which is made whole before it has its name.
fn announce(
    cache: &CacheDirectory,
    settings: &RunSettings,
    is_host: bool,
) -> Result<(PathBuf, Trace, File), FileCacheError> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let name = format!("{}-{}", std::process::id(), since.as_micros());
    let (path, new) = (cache.runs().join(&name), cache.runs().join(format!("{name}.new")));
    let system = |what: &'static str| {
        let path = path.clone();
        move |error: std::io::Error| FileCacheError::system(what, &path, error)
    };
    std::fs::create_dir(&new).map_err(system("make"))?;
    let own = open_lock(&new.join("lock")).map_err(system("lock"))?;
    lock(&own, false);
    let line = |root: &RootName| {
        let RootIdentity { device, inode, dataset, .. } = root.identity;
        let numbers = format!("{device} {inode} {dataset}");
        let [path, target] = [&root.path, &root.target].map(|path| path.as_os_str().as_bytes());
        [path, b"\0", target, b"\0", numbers.as_bytes(), b"\0"].concat()
    };
    let all: Vec<u8> = settings.roots.iter().flat_map(line).collect();
    std::fs::write(new.join("roots"), all).map_err(system("write"))?;
    if settings.check.of(settings.roots.iter().any(|root| is_local(&root.target))) {
        std::fs::write(new.join("checks"), b"").map_err(system("write"))?;
    }
    // The host of other runs has compared the copies before this one has begun.
    let trace = Trace::create(&new.join("trace"), &cache.table(), &settings.roots, !is_host);
    let trace = trace.map_err(system("make"))?;
    std::fs::rename(&new, &path).map_err(system("name"))?;
    Ok((path, trace, own))
}

/// The names of datasets that a run has written down.
pub(crate) fn read_names(path: &Path) -> Vec<RootName> {
    let written = std::fs::read(path).unwrap_or_default();
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    let paths: Vec<&[u8]> = written.split(|byte| *byte == 0).filter(|path| !path.is_empty()).collect();
    let (roots, _) = paths.as_chunks::<3>();
    let name = |[name, target, numbers]: &[&[u8]; 3]| {
        let numbers: Vec<u64> =
            std::str::from_utf8(numbers).ok()?.split(' ').filter_map(|number| number.parse().ok()).collect();
        let &[device, inode, dataset] = &numbers[..] else { return None };
        // The mount is that of the run's namespace.
        let identity = RootIdentity { device, inode, mount: 0, dataset };
        Some(RootName { path: path(name), target: path(target), identity })
    };
    roots.iter().filter_map(name).collect()
}

/// The wait of a run for the place of the host.
#[derive(Debug)]
pub(crate) struct Takeover {
    /// Whether the run is over, so that this process becomes no host.
    is_over: AtomicBool,
    /// Whether the wait has ended: this process is the host, or will not be.
    has_ended: AtomicBool,
}

impl Takeover {
    /// Becomes the host when the present one has ended. Other runs try again after a failure.
    pub(crate) fn wait(
        file: File,
        cache: CacheDirectory,
        settings: Arc<RunSettings>,
        host: Arc<Mutex<Option<Host>>>,
    ) -> Arc<Self> {
        let takeover = Arc::new(Self { is_over: AtomicBool::new(false), has_ended: AtomicBool::new(false) });
        let own = Arc::clone(&takeover);
        let waiting = std::thread::Builder::new().name("foreread-lock".to_owned()).spawn(move || {
            if lock(&file, true) {
                own.take_over(file, &cache, &settings, &host);
            }
            own.has_ended.store(true, Ordering::Release);
        });
        if let Err(error) = waiting {
            tracing::debug!(%error, "no thread to become the host");
            takeover.has_ended.store(true, Ordering::Release);
        }
        takeover
    }

    fn take_over(
        &self,
        file: File,
        cache: &CacheDirectory,
        settings: &RunSettings,
        host: &Mutex<Option<Host>>,
    ) {
        if !self.is_over.load(Ordering::Acquire) {
            match Host::start(cache, settings) {
                Ok(started) => *host.lock().unwrap_or_else(PoisonError::into_inner) = Some(started),
                // Another run may be able to do it.
                Err(error) => return tracing::warn!(%error, "this run makes no copies"),
            }
        }
        if self.is_over.load(Ordering::Acquire) {
            let host = host.lock().unwrap_or_else(PoisonError::into_inner).take();
            if matches!(settings.store, CopyStore::Memory { .. }) {
                close_memory(cache, host);
            }
        }
        // It is locked until this process ends.
        std::mem::forget(file);
    }

    /// Whether the wait has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

/// Removes the copies in memory, unless other runs use them. They would keep it from other jobs.
fn close_memory(cache: &CacheDirectory, host: Option<Host>) {
    // Runs that start from now on wait for the next host, which makes another table.
    let is_closed = cache.set_ready(false).is_ok();
    if has_runs(cache) || !is_closed {
        let _ = cache.set_ready(true);
        return;
    }
    // The host's threads end by themselves.
    drop(host);
    cache.remove_copies();
}

/// The directory of a `tmpfs` with room for copies, and the bytes that it has left.
pub fn memory_directory() -> Option<(PathBuf, u64)> {
    let directory = Path::new("/dev/shm");
    let found = rustix::fs::statvfs(directory).ok()?;
    Some((directory.to_owned(), found.f_bavail.saturating_mul(found.f_frsize)))
}

/// A path without links, as far as it is there.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = path.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    match found {
        Some((ancestor, real)) => path.strip_prefix(ancestor).map_or(real.clone(), |rest| real.join(rest)),
        None => path,
    }
}

/// The name of this node, if other nodes may see a directory: on a file system that is not this
/// machine's.
pub fn node_of(directory: &Path) -> Option<String> {
    let real = resolved(directory);
    if real.ancestors().find(|path| path.exists()).is_some_and(is_local) {
        return None;
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Some(name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')).collect())
}
