//! Copies of whole files, for programs that are not changed: the agent is the host of `foreread
//! run`.
//!
//! They are in the first directory of `--disk`, and share its room and its budget of writes with
//! samples. The cache begins with the first run.

use std::path::Path;
use std::sync::{Arc, Mutex};

use foreread_store::attach::{FilesAnswer, FilesRequest};
use foreread_tier::{ErrorKind, TierError, lock};
use foreread_types::setting;

use crate::disk::HostDisk;
use foreread_file_cache::{CheckOriginals, CopyStore, FileHost, FilesStatus, WriteBudget, node_of};

/// The budget of writes of the agent's disks.
#[derive(Debug)]
struct DiskWrites(Arc<HostDisk>);

impl WriteBudget for DiskWrites {
    fn take(&self, bytes: u64) -> bool {
        self.0.take_writes(bytes)
    }

    fn give_back(&self, bytes: u64) {
        self.0.give_back(bytes);
    }
}

/// The agent's copies of files.
#[derive(Debug, Default)]
pub(crate) struct FileCopies(Mutex<Option<Arc<FileHost>>>);

impl FileCopies {
    fn get(&self) -> Option<Arc<FileHost>> {
        lock(&self.0).clone()
    }

    /// Serves a run, which announces itself afterwards. Blocks on files.
    ///
    /// # Errors
    /// An agent without disks, or a dataset that is not there.
    pub(crate) fn serve(
        &self,
        disk: Option<&Arc<HostDisk>>,
        request: &FilesRequest,
    ) -> Result<FilesAnswer, TierError> {
        let refuse = |why: String| TierError::new(ErrorKind::Unsupported, "agent").with_detail(why);
        let shared = disk.and_then(|disk| Some((disk, disk.shared_room()?)));
        let Some((disk, (directory, room))) = shared else {
            return Err(refuse(format!(
                "the agent has no disk for copies of files: set {}",
                setting("disk").to("DIR=SIZE")
            )));
        };
        let store = store(disk, directory, room.capacity());
        let host = {
            let mut there = lock(&self.0);
            match &*there {
                Some(host) => Arc::clone(host),
                None => {
                    let writes = Arc::new(DiskWrites(Arc::clone(disk)));
                    let host = FileHost::new(store.clone(), room.clone(), writes);
                    let host = Arc::new(host.map_err(|error| refuse(error.to_string()))?);
                    *there = Some(Arc::clone(&host));
                    host
                }
            }
        };
        let check = CheckOriginals::of_name(&request.check);
        host.serve(&request.roots, check).map_err(|error| refuse(error.to_string()))?;
        let CopyStore::Disk { directory, writes_per_day, node, .. } = store else {
            return Err(refuse("no directory".to_owned()));
        };
        // A run that takes over does not get the bytes that samples take.
        Ok(FilesAnswer { directory, bytes: room.for_files(), writes_per_day, node })
    }

    /// Counts the copies that an earlier agent has left in the room that samples share.
    pub(crate) fn count_earlier(disk: Option<&Arc<HostDisk>>) {
        // Ranks without an agent share their disk with no copies.
        let shared = disk.and_then(|disk| Some((disk, disk.shared_room()?)));
        if let Some((disk, (directory, room))) = shared {
            room.set_files(FileHost::held_bytes(&store(disk, directory, room.capacity())));
        }
    }

    /// The directory that it serves, the host's counts and the runs. `None` before the first run.
    pub(crate) fn status(&self) -> Option<FilesStatus> {
        self.get().map(|host| host.status())
    }

    /// Whether runs use it.
    pub(crate) fn is_used(&self) -> bool {
        self.get().is_some_and(|host| host.has_runs())
    }
}

/// The place of the copies.
fn store(disk: &HostDisk, directory: &Path, bytes: u64) -> CopyStore {
    // Runs have other working directories.
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let node = node_of(&directory);
    CopyStore::Disk { directory, bytes, writes_per_day: disk.writes_per_day(), node }
}
