//! A host that has no program of its own: an agent, which outlives the runs that it serves.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreread_local::disk::SharedRoom;
use serde::{Deserialize, Serialize};

use crate::copy_store::CopyStore;
use crate::directory::{CacheDirectory, lock};
use crate::error::FileCacheError;
use crate::host::Host;
use crate::host_state::{HostCounts, footprint};
use crate::report::RunCounts;
use crate::run::Takeover;
use crate::run_directory::{has_runs, is_alive, runs};
use crate::settings::{CheckOriginals, RunSettings};
use crate::table::Table;
use crate::trace::Trace;
use crate::writes::WriteBudget;

/// A run that uses a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStatus {
    /// Its process.
    pub process: u32,
    /// Opens of files of its datasets.
    pub opens: u64,
    /// The opens that got a copy.
    pub served: u64,
    /// The bytes of their files.
    pub served_bytes: u64,
}

/// The status of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesStatus {
    /// The directory of the cache.
    pub directory: PathBuf,
    /// The counts of the host. All are 0 while another process is the host.
    pub host: HostCounts,
    /// The runs.
    pub runs: Vec<RunStatus>,
}

/// The lock of the cache.
#[derive(Debug, Default)]
enum HostLock {
    #[default]
    None,
    /// This process has it, by this descriptor or by that of the wait.
    Own { _file: Option<File> },
    /// Another process has it.
    Awaited(Arc<Takeover>),
}

/// A host of a cache of files, for runs of other processes.
#[derive(Debug)]
pub struct FileHost {
    cache: CacheDirectory,
    store: CopyStore,
    room: SharedRoom,
    writes: Arc<dyn WriteBudget>,
    host: Arc<Mutex<Option<Host>>>,
    lock: Mutex<HostLock>,
}

impl FileHost {
    /// A host of copies in `store`, whose room and budget of writes others share. It makes none
    /// before [`serve`](Self::serve).
    ///
    /// # Errors
    /// A directory that cannot be used.
    pub fn new(
        store: CopyStore,
        room: SharedRoom,
        writes: Arc<dyn WriteBudget>,
    ) -> Result<Self, FileCacheError> {
        let (host, lock) = Default::default();
        Ok(Self { cache: store.open()?, store, room, writes, host, lock })
    }

    /// Every change is complete before the lock is released, even after a panic.
    fn lock(&self) -> MutexGuard<'_, Option<Host>> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a run of these datasets, which announces itself afterwards. If no run uses the table,
    /// the new one has room for these datasets.
    ///
    /// # Errors
    /// A dataset that is not there, or a host that does not start.
    pub fn serve(&self, roots: &[PathBuf], check: CheckOriginals) -> Result<(), FileCacheError> {
        let settings = RunSettings::new(roots, self.store.clone())?.with_check(check);
        let settings =
            RunSettings { shared: Some((self.room.clone(), Arc::clone(&self.writes))), ..settings };
        let mut there = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let HostLock::Awaited(takeover) = &*there
            && takeover.has_ended()
        {
            let has_host = self.lock().is_some();
            *there = if has_host { HostLock::Own { _file: None } } else { HostLock::None };
        }
        let has_host = self.lock().is_some();
        match &*there {
            HostLock::Awaited(_) => return Ok(()),
            _ if has_host && has_runs(&self.cache) => return Ok(()),
            HostLock::None if !has_host => {
                let own = self.cache.lock_file()?;
                if !lock(&own, false) {
                    let (cache, host) = (self.cache.clone(), Arc::clone(&self.host));
                    *there = HostLock::Awaited(Takeover::wait(own, cache, Arc::new(settings), host));
                    return Ok(());
                }
                *there = HostLock::Own { _file: Some(own) };
            }
            _ => {}
        }
        // A host without runs ends before the next host counts the existing copies.
        drop(self.lock().take());
        *self.lock() = Some(Host::start(&self.cache, &settings)?);
        Ok(())
    }

    /// Whether runs use the cache.
    pub fn has_runs(&self) -> bool {
        has_runs(&self.cache)
    }

    /// The bytes of the copies that an earlier host has left.
    pub fn held_bytes(store: &CopyStore) -> u64 {
        let table = store.open().ok().and_then(|cache| Table::open(cache.path()));
        let copies = table.map(|table| table.earlier()).unwrap_or_default();
        copies.values().map(|copy| footprint(copy.identity.size)).fold(0, u64::saturating_add)
    }

    /// Its present status.
    pub fn status(&self) -> FilesStatus {
        let host = self.lock().as_ref().map(Host::counts).unwrap_or_default();
        let status = |run: PathBuf| {
            let name = run.file_name()?.to_str()?.split('-').next()?;
            let counts = RunCounts::of(&Trace::open(&run.join("trace")).filter(|_| is_alive(&run))?);
            let RunCounts { opens, served, served_bytes, .. } = counts;
            Some(RunStatus { process: name.parse().ok()?, opens, served, served_bytes })
        };
        let runs = runs(&self.cache).filter_map(status).collect();
        FilesStatus { directory: self.cache.path().to_owned(), host, runs }
    }
}
