//! Mounting, and unmounting with readers that wait.
//!
//! Decision: the connection is aborted first, by a forced unmount, or for users through the
//! kernel's control file system. Every call that waits then ends with an error, and so do the
//! threads that serve. A plain unmount would wait for them. The price: without root and without
//! `/sys/fs/fuse/connections`, a busy mount is only detached, and its threads stay until the
//! process ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};

use crate::filesystem::FuseServer;

/// Threads that take calls from the kernel. They never wait for a server.
const THREADS: usize = 2;

/// A mounted file system.
pub(crate) struct Mounted {
    at: PathBuf,
    session: Mutex<Option<BackgroundSession>>,
}

impl Mounted {
    pub fn new(server: FuseServer, at: &Path) -> io::Result<Mounted> {
        let at = at.canonicalize()?;
        let name = MountOption::FSName("lustre-stand-in".to_owned());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::NoSuid, MountOption::NoDev, name];
        config.n_threads = Some(THREADS);
        // Others than root may only do so where /etc/fuse.conf allows it.
        let is_root = rustix::process::geteuid().is_root();
        config.acl = if is_root { SessionACL::All } else { SessionACL::Owner };
        let session = Session::new(server, &at, &config)?.spawn()?;
        Ok(Mounted { at, session: Mutex::new(Some(session)) })
    }

    /// Ends all waiting calls and unmounts. It returns when the threads have ended.
    pub fn end(&self) {
        let Some(session) = self.session.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        if self.abort() {
            // The cause of the threads' end is of no interest now.
            let _ = session.join();
        }
    }

    /// Whether the connection has ended.
    fn abort(&self) -> bool {
        if unmount(&self.at, UnmountFlags::FORCE | UnmountFlags::DETACH).is_ok() {
            return true;
        }
        let aborted = self.connection().is_some_and(|connection| fs::write(connection, "1").is_ok());
        let mut command = Command::new("fusermount3");
        command.args(["-u", "-z", "-q", "--"]).arg(&self.at).stdin(Stdio::null());
        let _ = command.status();
        aborted
    }

    /// The file that aborts the connection. The minor number of the device is the connection's.
    fn connection(&self) -> Option<PathBuf> {
        let of = statx(CWD, &self.at, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
        Some(Path::new("/sys/fs/fuse/connections").join(of.stx_dev_minor.to_string()).join("abort"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.end();
    }
}
