//! One `foreread run`: a trace for its programs, and its part in the cache of the node.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foreread_preload::VARIABLE;

use crate::copy_store::{CopyStore, resolved};
use crate::directory::{CacheDirectory, lock, open_lock};
use crate::error::FileCacheError;
use crate::guard::Guard;
use crate::host::Host;
use crate::report::{RunCounts, RunReport};
use crate::root::watch_mounts;
use crate::run_directory::{has_runs, write_names};
use crate::settings::RunSettings;
use crate::trace::Trace;

/// How long a run waits for the host of its cache.
const HOST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the last run waits for the end of a host that has ended before it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

const POLL: Duration = Duration::from_millis(10);

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
            return Err(FileCacheError::invalid(why));
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
                return Err(FileCacheError::new(why));
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
    write_names(&new.join("roots"), &settings.roots).map_err(system("write"))?;
    if settings.checks_originals() {
        std::fs::write(new.join("checks"), b"").map_err(system("write"))?;
    }
    // The host of other runs has compared the copies before this one has begun.
    let trace = Trace::create(&new.join("trace"), &cache.table(), &settings.roots, !is_host);
    let trace = trace.map_err(system("make"))?;
    std::fs::rename(&new, &path).map_err(system("name"))?;
    Ok((path, trace, own))
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
