//! The host of a cache: its threads, from the moment in which this process gets the lock.
//!
//! One thread lists the datasets, one reads the traces of all runs, one knows the orders of the
//! epochs, and a few copy. They end with
//! the process. Nothing has to be put in order then: a copy without a name is gone, and the next
//! host looks at all others.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foreread_preload::layout::{OpenKind, Watch};

use crate::adoption::{EarlierCopies, believe, is_right, sweep};
use crate::copying::{CopyFailure, copy, remove_copy};
use crate::directory::CacheDirectory;
use crate::error::FileCacheError;
use crate::eviction::expect_lease_signals;
use crate::host_state::{CopyJob, HostCounts, HostState, HostWork, MOST_ASKED, footprint};
use crate::listing::{ListedFile, Lists, is_dataset};
use crate::orders::follow_epochs;
use crate::original::{Original, Unfit, identity_of};
use crate::root::own_rights;
use crate::run_directory::{has_runs, is_alive, read_names, runs};
use crate::settings::RunSettings;
use crate::table::{NewTable, RootName, Table};
use crate::trace::Trace;

/// Files that are copied at once.
const COPIERS: usize = 4;

/// How long a run waits until earlier copies were looked at.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a rename may take.
const RENAME_TIMEOUT: Duration = Duration::from_secs(60);

/// The files that a table has room for if their number is not known yet.
const MANY_FILES: u64 = 1 << 20;

/// How often traces are read while programs open files, and while they do not.
const BUSY: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(10);

/// Programs that wait for copies open the next ones soon after.
const BUSY_AFTER: Duration = Duration::from_millis(250);

/// How often files are looked for that wait for room.
const COPY_POLL: Duration = Duration::from_millis(20);

/// How long a thread stays that copies files that programs wait for, without any.
const ASKED_IDLE: Duration = Duration::from_secs(5);

/// How often anything is looked for without runs: a host may outlive them.
const WITHOUT_RUNS: Duration = Duration::from_millis(100);

/// How often the host looks for runs.
const RUNS: Duration = Duration::from_millis(100);

/// The state that the threads of a host share.
#[derive(Debug)]
pub(crate) struct HostShared {
    state: Mutex<HostState>,
    /// Notified when there may be something to copy.
    work: Condvar,
    /// Notified when programs wait for copies.
    asked: Condvar,
    /// Threads that make these alone.
    asked_copiers: AtomicUsize,
    ended: AtomicBool,
    /// Whether there are runs.
    has_runs: AtomicBool,
}

impl HostShared {
    /// Every change is complete before the lock is released, even after a panic.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long to wait for something that takes this time while programs run.
    pub(crate) fn pause(&self, busy: Duration) -> Duration {
        if self.has_runs.load(Ordering::Relaxed) { busy } else { WITHOUT_RUNS }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// A host. Its threads end some time after it is dropped.
#[derive(Debug)]
pub(crate) struct Host {
    shared: Arc<HostShared>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.work.notify_all();
        self.shared.asked.notify_all();
    }
}

/// The device of files in a directory. Overlays of several file systems have another one for
/// directories.
fn device_of_files(directory: &Path) -> Result<u64, FileCacheError> {
    let path = directory.join(format!("device-{}", std::process::id()));
    let made = File::create(&path).and_then(|file| {
        std::fs::remove_file(&path)?;
        let found = rustix::fs::fstat(&file)?;
        #[allow(clippy::unnecessary_cast, reason = "the type depends on the processor")]
        Ok(found.st_dev as u64)
    });
    made.map_err(|error| FileCacheError::system("make", &path, error))
}

impl Host {
    /// Becomes the host of a cache, whose lock this process has.
    pub(crate) fn start(cache: &CacheDirectory, settings: &RunSettings) -> Result<Self, FileCacheError> {
        expect_lease_signals();
        // Other runs wait until the table is this host's.
        cache.set_ready(false)?;
        let earlier_table = Table::open(cache.path());
        let earlier = earlier_table.as_ref().map(Table::earlier).unwrap_or_default();
        // Programs of other runs have the table mapped.
        let is_in_use = has_runs(cache);
        let key = earlier_table.as_ref().map_or_else(random_key, Table::key);
        let checks = settings.checks_originals();
        let in_use = earlier_table.filter(|_| is_in_use);
        let mut datasets = in_use.as_ref().map(Table::datasets).unwrap_or_default();
        for root in &settings.roots {
            if !datasets.iter().any(|(_, dataset)| *dataset == root.dataset()) {
                datasets.push((root.target.clone(), root.dataset()));
            }
        }
        let lists = Lists::of(datasets, key);
        let (first, is_whole) = lists.first();
        let mut table = match in_use {
            Some(mut table) => {
                table.withdraw_all();
                for root in &settings.roots {
                    // A run that is gone must not keep the other runs from their copies.
                    if let Err(error) = table.add_root(root) {
                        let root = root.path.display();
                        tracing::warn!(%error, %root, "its files are opened as they are");
                    }
                }
                table.set_checks(checks || table.checks());
                table.set_rights(own_rights());
                table
            }
            None => {
                let listed = first.len() as u64;
                let files = if is_whole { listed + listed / 4 } else { MANY_FILES.max(4 * listed) };
                let files = files + earlier.len() as u64;
                let (copies, directory) = (device_of_files(&cache.copies())?, cache.copies());
                let new = NewTable {
                    checks,
                    key,
                    files,
                    copies: settings.store.bytes() / footprint(1),
                    copies_device: copies,
                    directory: &directory,
                    roots: &settings.roots,
                    rights: own_rights(),
                };
                Table::create(cache.path(), &new)
                    .map_err(|error| FileCacheError::system("make the table of", cache.path(), error))?
            }
        };
        earlier.iter().for_each(|(hash, copy)| table.remember(*hash, copy));
        let earlier = EarlierCopies::new(cache.path(), earlier);
        let room = settings.room();
        let writes = settings.writes(room.free().saturating_sub(earlier.held()));
        let state = HostState::new(table, cache.copies(), room, earlier, writes);
        let shared = Arc::new(HostShared {
            state: Mutex::new(state),
            work: Condvar::new(),
            asked: Condvar::new(),
            asked_copiers: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            has_runs: AtomicBool::new(true),
        });
        let host = Self { shared };
        host.spawn("lists", {
            let cache = cache.clone();
            move |shared| take_files(&shared, &cache, first, &lists)
        })?;
        host.spawn("traces", {
            let cache = cache.clone();
            move |shared| Traces::new(cache).run(&shared)
        })?;
        host.spawn("orders", {
            let announced = settings.order.take();
            move |shared| follow_epochs(&shared, announced)
        })?;
        for _ in 0..COPIERS {
            host.spawn("copies", |shared| copy_files(&shared))?;
        }
        // Programs are served from their first open on, if that does not take long.
        let begun = Instant::now();
        while !host.shared.lock().is_listed && begun.elapsed() < ADOPT_TIMEOUT {
            std::thread::sleep(BUSY);
        }
        cache.set_ready(true)?;
        Ok(host)
    }

    fn spawn(
        &self,
        name: &str,
        work: impl FnOnce(Arc<HostShared>) + Send + 'static,
    ) -> Result<(), FileCacheError> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(format!("foreread-{name}"));
        let started = thread.spawn(move || work(shared));
        started.map_err(|error| FileCacheError::system("start a thread for", Path::new(name), error))?;
        Ok(())
    }

    pub(crate) fn counts(&self) -> HostCounts {
        self.shared.lock().counts()
    }
}

/// A key for hashes that a dataset cannot be prepared for.
fn random_key() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// Takes the files of all datasets.
fn take_files(shared: &HostShared, cache: &CacheDirectory, first: Vec<ListedFile>, lists: &Lists) {
    if !first.into_iter().chain(lists.files.iter()).all(|file| take_file(shared, file)) {
        return;
    }
    {
        let mut state = shared.lock();
        // The next host of this process counts for itself.
        if shared.has_ended() {
            return;
        }
        state.all_are_listed();
    }
    believe(cache.path());
    let is_known = |hash, generation| shared.has_ended() || shared.lock().is_known(hash, generation);
    sweep(&cache.copies(), is_known);
    shared.work.notify_all();
}

/// Takes a file, with the copy of an earlier host if that is right. `false` if the host has ended:
/// then the copies are those of the next host of this process.
fn take_file(shared: &HostShared, file: ListedFile) -> bool {
    let (earlier, copies, renames) = {
        let mut state = shared.lock();
        if shared.has_ended() {
            return false;
        }
        (state.earlier.take(file.hash), state.copies_path().to_owned(), state.table.renames()[0])
    };
    let (hash, path) = (file.hash, file.path.clone());
    let copy = earlier.map(|(copy, checks_content)| {
        // Changes are noted before the file is looked at.
        let is_watched = shared.lock().table.watch(&copy.identity) == Watch::Noted;
        // Without the lock: it may wait for a file server.
        let is_right = is_watched && is_right((hash, &copy), &path, &copies, checks_content);
        (copy, is_right)
    });
    let mut state = shared.lock();
    if shared.has_ended() {
        return false;
    }
    let number = state.add(file);
    if let Some((copy, is_right)) = copy {
        // If a directory was renamed meanwhile, the path may mean something else.
        let is_right = is_right && state.table.renames()[0] == renames;
        let is_adopted = is_right && number.is_some_and(|number| state.adopt(number, copy));
        if !is_adopted {
            state.discard(hash, &copy);
            number.into_iter().for_each(|number| state.let_ask(number));
        }
    }
    true
}

/// Copies files until the host ends.
fn copy_files(shared: &HostShared) {
    loop {
        let work = {
            let mut state = shared.lock();
            loop {
                if shared.has_ended() {
                    return;
                }
                if let Some(work) = state.next() {
                    break work;
                }
                let waited = shared.work.wait_timeout(state, shared.pause(COPY_POLL));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        match work {
            HostWork::Copy(job) => copy_file(shared, &job),
            HostWork::Check(check) => {
                let now = identity_of(&check.path);
                shared.lock().checked(&check, now);
            }
        }
    }
}

/// Copies files that programs wait for, as long as there are some.
fn copy_asked(shared: &HostShared) {
    let mut state = shared.lock();
    while !shared.has_ended() {
        if let Some(job) = state.next_asked() {
            drop(state);
            copy_file(shared, &job);
            state = shared.lock();
            continue;
        }
        let waited = shared.asked.wait_timeout(state, ASKED_IDLE);
        let timeout;
        (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && state.asked_jobs()[0] == 0 {
            return;
        }
    }
}

/// Has enough threads copy the files that programs wait for.
fn help_asked(shared: &Arc<HostShared>) {
    let [waiting, all] = shared.lock().asked_jobs();
    if waiting == 0 {
        return;
    }
    shared.asked.notify_all();
    while shared.asked_copiers.load(Ordering::Relaxed) < all.min(MOST_ASKED) {
        let own = Arc::clone(shared);
        shared.asked_copiers.fetch_add(1, Ordering::Relaxed);
        let started = std::thread::Builder::new().name("foreread-asked".to_owned()).spawn(move || {
            copy_asked(&own);
            own.asked_copiers.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            // The others make these copies, too.
            shared.asked_copiers.fetch_sub(1, Ordering::Relaxed);
            return;
        }
    }
}

/// Programs that wait for a copy are answered when its job ends, however that is.
struct Answered<'a>(&'a HostShared, &'a CopyJob);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        // Its slot may be that of the next host of this process.
        if !self.0.has_ended() {
            state.answer(self.1);
        }
    }
}

fn copy_file(shared: &HostShared, job: &CopyJob) {
    let _answered = Answered(shared, job);
    let is_checked = shared.lock().table.checks();
    let original = match Original::open(&job.path, is_checked) {
        Ok(original) => original,
        Err(why) => return shared.lock().is_unfit(job, why),
    };
    let size = original.identity.size;
    let copies = {
        let mut state = shared.lock();
        // Changes are noted before the copy begins, and the file is compared at its end.
        match state.table.watch(&original.identity) {
            Watch::Noted => {}
            Watch::Changed => return state.is_unfit(job, Unfit::Written),
            Watch::Full => return state.is_unfit(job, Unfit::Unwatched),
        }
        if !state.reserve(job, size) {
            return;
        }
        state.copies_path().to_owned()
    };
    let made = copy(&original, &job.path, &copies, (job.hash, job.generation), &job.done);
    if shared.has_ended() {
        // Copies in memory may have been removed by now.
        return remove_copy(&copies, job.hash, job.generation);
    }
    let mut state = shared.lock();
    match made {
        Ok(copy) => state.copied(job, copy),
        Err(failure) => {
            state.release(size);
            match failure {
                CopyFailure::Unfit(why) => state.is_unfit(job, why),
                CopyFailure::Full => state.failed(job, true),
                CopyFailure::System(error) => {
                    tracing::debug!(%error, path = %job.path.display(), "a file is not copied");
                    state.failed(job, false);
                }
            }
        }
    }
}

/// Reads the traces of all runs.
struct Traces {
    cache: CacheDirectory,
    runs: BTreeMap<PathBuf, Trace>,
    looked: Option<Instant>,
    /// When a program last began to wait for a copy.
    asked: Option<Instant>,
    /// Since when directories are being renamed.
    renaming: Option<Instant>,
}

impl Traces {
    fn new(cache: CacheDirectory) -> Self {
        Self { cache, runs: BTreeMap::new(), looked: None, asked: None, renaming: None }
    }

    fn run(mut self, shared: &Arc<HostShared>) {
        while !shared.has_ended() {
            if self.looked.is_none_or(|looked| looked.elapsed() > RUNS) {
                self.looked = Some(Instant::now());
                self.look_for_runs(shared);
            }
            look_at_renames(shared, &mut self.renaming);
            let records = self.read(shared);
            if records > 0 {
                shared.work.notify_all();
            }
            help_asked(shared);
            // Without this sign of life, programs wait for no copy.
            shared.lock().note_alive();
            shared.has_runs.store(!self.runs.is_empty(), Ordering::Relaxed);
            let is_busy = records > 0 || self.asked.is_some_and(|asked| asked.elapsed() < BUSY_AFTER);
            std::thread::sleep(if is_busy { BUSY } else { shared.pause(IDLE) });
        }
    }

    /// Reads the records that programs have left, and returns their number.
    fn read(&mut self, shared: &HostShared) -> u64 {
        let mut records: VecDeque<(u64, OpenKind)> = VecDeque::new();
        let each = |trace: &mut Trace| trace.read(|hash, kind| records.push_back((hash, kind)));
        let count = self.runs.values_mut().map(each).sum();
        for (hash, kind) in records {
            if kind == OpenKind::Asked {
                self.asked = Some(Instant::now());
            }
            shared.lock().record(hash, kind);
        }
        count
    }

    /// Begins to read the traces of new runs, and forgets the traces of ended runs.
    fn look_for_runs(&mut self, shared: &Arc<HostShared>) {
        for run in runs(&self.cache) {
            if self.runs.contains_key(&run) {
                continue;
            }
            if let Some(trace) = Trace::open(&run.join("trace")) {
                let (shared, directory) = (Arc::clone(shared), run.clone());
                // It may wait for a file server, and other runs must not wait for that.
                let thread = std::thread::Builder::new().name("foreread-roots".to_owned());
                let _ = thread.spawn(move || serve_roots(&shared, &directory));
                self.runs.insert(run, trace);
            }
        }
        let ended: Vec<PathBuf> = self.runs.keys().filter(|run| !is_alive(run)).cloned().collect();
        for run in ended {
            // The records of its last programs are read first.
            self.read(shared);
            if let Some(trace) = self.runs.remove(&run) {
                trace.ends();
            }
            let _ = std::fs::remove_dir_all(&run);
        }
    }
}

/// Serves the datasets of a run. Datasets that the table has already are listed again. Their copies
/// are compared with the originals, which may have changed before the run has begun. Until then,
/// its programs compare at each open.
fn serve_roots(shared: &HostShared, run: &Path) {
    if run.join("checks").exists() {
        shared.lock().table.set_checks(true);
    }
    let trace = Trace::open(&run.join("trace"));
    let is_earlier = trace.as_ref().is_some_and(Trace::is_earlier);
    let mut is_whole = true;
    for name in read_names(&run.join("roots")) {
        match serve_root(shared, &name, is_earlier) {
            Some(is_served) => is_whole &= is_served,
            None => return,
        }
    }
    if let Some(trace) = trace.filter(|_| is_whole && is_earlier) {
        trace.compared();
    }
}

/// Serves a dataset, and returns whether its copies are those of the originals. `None`: the host
/// has ended.
fn serve_root(shared: &HostShared, name: &RootName, compares: bool) -> Option<bool> {
    let dataset = name.dataset();
    let (known, key) = {
        let state = shared.lock();
        (state.table.datasets().into_iter().find(|(_, known)| *known == dataset), state.table.key())
    };
    let is_known = known.is_some();
    let path = known.map_or_else(|| name.target.clone(), |(path, _)| path);
    if !is_dataset(&path, dataset) {
        let root = name.path.display();
        // Another job may have removed its files before its run has ended.
        if path.exists() {
            tracing::warn!(%root, "another directory for the host of copies, so originals are opened");
        }
        return Some(false);
    }
    if let Err(error) = shared.lock().table.add_root(name) {
        tracing::warn!(%error, root = %name.path.display(), "its files are opened as they are");
    }
    if is_known && !compares {
        return Some(true);
    }
    let lists = Lists::of(vec![(path.clone(), dataset)], key);
    if !lists.files.iter().all(|file| take_file(shared, file)) {
        return None;
    }
    // Not within the loop, which takes the lock again.
    let checks = shared.lock().copies_below(&path);
    for check in checks {
        if shared.has_ended() {
            return None;
        }
        let now = identity_of(&check.path);
        shared.lock().compared(&check, now);
    }
    Some(true)
}

/// Doubts all copies after a program has renamed a directory.
fn look_at_renames(shared: &HostShared, since: &mut Option<Instant>) {
    let mut state = shared.lock();
    let [begun, ended, seen] = state.table.renames();
    if begun == seen {
        *since = None;
        return;
    }
    // A program may have died in a rename. No file server takes that long for one.
    let is_over = begun == ended || since.get_or_insert_with(Instant::now).elapsed() > RENAME_TIMEOUT;
    if is_over {
        state.doubt_all();
        state.table.seen(begun);
    }
}
