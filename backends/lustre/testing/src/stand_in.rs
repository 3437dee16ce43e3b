//! The mounted file system, as a test holds it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::counts::Counts;
use crate::filesystem::FuseServer;
use crate::mount::Mounted;
use crate::options::StandInOptions;
use crate::served::Served;

/// The servers that have evicted the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictedFrom {
    /// One OST.
    Ost(u32),
    /// The MDT.
    Mdt,
    /// Every server.
    All,
}

/// The restore of a released file, which its first read begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    /// It takes a time.
    After(Duration),
    /// It fails after a time, and the reads that wait with `ENODATA`.
    Fails(Duration),
    /// It lasts until [`StandIn::recalled`].
    OnDemand,
}

/// A directory mounted as if it were on Lustre. Unmounted when dropped, whatever still waits.
pub struct StandIn {
    mounted: Mounted,
    served: Arc<Served>,
    root: PathBuf,
    /// Whether the mount point was made here.
    is_temporary: bool,
}

impl StandIn {
    /// Mounts `backing` on a new directory.
    ///
    /// # Errors
    /// If there is no FUSE, no right to mount or no such directory.
    pub fn mount(backing: &Path, options: StandInOptions) -> io::Result<StandIn> {
        let root = tempfile::Builder::new().prefix("stand-in-").tempdir()?.keep();
        match StandIn::mount_at(backing, &root, options) {
            Ok(mut stand_in) => {
                stand_in.is_temporary = true;
                Ok(stand_in)
            }
            Err(error) => {
                // The directory is empty, and the first error is the one to report.
                let _ = fs::remove_dir(&root);
                Err(error)
            }
        }
    }

    /// Mounts `backing` on an existing directory.
    ///
    /// # Errors
    /// As for [`mount`](Self::mount).
    pub fn mount_at(backing: &Path, root: &Path, options: StandInOptions) -> io::Result<StandIn> {
        let served = Served::start(backing, options)?;
        let mounted = match Mounted::new(FuseServer(Arc::clone(&served)), root) {
            Ok(mounted) => mounted,
            Err(error) => {
                served.engine.close();
                return Err(error);
            }
        };
        Ok(StandIn { mounted, served, root: root.to_owned(), is_temporary: false })
    }

    /// Ends every call that waits with an error, and unmounts. Dropping does the same.
    pub fn unmount(&self) {
        // The connection ends first: replies that are dropped later no longer reach a reader.
        self.mounted.end();
        self.served.engine.close();
    }

    /// The mount point.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.served.counts()
    }

    /// Counts from 0 again. Requests without an answer stay counted as such.
    pub fn reset_counts(&self) {
        self.served.reset_counts();
    }

    /// An OST stops answering. Requests to it wait.
    ///
    /// # Panics
    /// This and the next ones if there is no such OST.
    pub fn hang(&self, ost: u32) {
        self.served.engine.hang(self.server(ost));
    }

    /// An OST answers again, first the waiting requests.
    pub fn resume(&self, ost: u32) {
        self.served.engine.resume(self.server(ost));
    }

    /// An OST takes `factor` times its latency and sends at that fraction of its bandwidth. 1 for
    /// as usual. A factor without a latency and a bandwidth has no effect.
    pub fn slow(&self, ost: u32, factor: f64) {
        self.served.engine.slow(self.server(ost), factor);
    }

    /// The threads that wait for an OST, by their ids.
    pub fn waiting_threads(&self, ost: u32) -> Vec<u32> {
        self.served.engine.waiting_threads(self.server(ost))
    }

    /// How many threads of a process wait for each OST.
    pub fn waiting_threads_by_ost(&self, process: u32) -> Vec<usize> {
        let of_process = |thread: &u32| process_of(*thread) == Some(process);
        (0..self.osts())
            .map(|ost| self.waiting_threads(ost).iter().filter(|thread| of_process(thread)).count())
            .collect()
    }

    /// The number of OSTs.
    pub fn osts(&self) -> u32 {
        self.served.options.osts
    }

    fn server(&self, ost: u32) -> usize {
        assert!(ost < self.osts(), "there is no OST {ost}");
        ost as usize
    }

    /// The next requests end with an error, such as `ENOTCONN` or `ESHUTDOWN`: as many as given, or
    /// until [`reconnect`](Self::reconnect). The client loses its locks.
    pub fn evict(&self, from: EvictedFrom, errno: Errno, requests: Option<u64>) {
        self.served.evict(from, errno, requests);
    }

    /// Ends all evictions.
    pub fn reconnect(&self) {
        self.served.reconnect();
    }

    /// Releases a file, by its path below the root. Its first read begins the restore, and reads
    /// wait for it.
    pub fn release(&self, path: &str, recall: Recall) {
        self.served.release(path, recall);
    }

    /// A file is restored.
    pub fn recalled(&self, path: &str) {
        self.served.recalled(path);
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn").field("root", &self.root).finish_non_exhaustive()
    }
}

/// The process of a thread.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.unmount();
        if self.is_temporary {
            // Only if it is empty, and so no longer mounted.
            let _ = fs::remove_dir(&self.root);
        }
    }
}
