//! The files and directories that the kernel has seen, and their attributes.
//!
//! Decision: the number of a file in the backing directory is its number here. Hard links and
//! renames then behave as they do there. The price is that the backing directory must be on one
//! file system. Files are never forgotten, which takes some hundred bytes each.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};

use crate::spec::LayoutSpec;

/// A file or directory.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// Below the root, by the latest lookup.
    pub path: Arc<str>,
    /// Without the fields that a release changes.
    pub layout: Option<LayoutSpec>,
    /// Whether the client has its attributes, and so needs no request for the layout.
    pub is_seen: bool,
    /// The OSTs of whose objects the client has a lock.
    pub locks: HashSet<u32>,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct Nodes(Mutex<HashMap<u64, Node>>);

impl Nodes {
    pub fn lock(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a node below the root.
    pub fn path(&self, node: INodeNo) -> Option<Arc<str>> {
        self.lock().get(&node.0).map(|node| Arc::clone(&node.path))
    }

    /// Records that a lookup has found a node at a path.
    pub fn found(&self, node: INodeNo, path: &str) {
        let mut nodes = self.lock();
        let known = nodes.entry(node.0).or_default();
        if &*known.path != path {
            *known = Node { path: path.into(), ..Node::default() };
        }
    }
}

/// `path` below the directory `parent`, both below the root.
pub(crate) fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}

/// The same in the backing directory.
pub(crate) fn in_backing(backing: &Path, path: &str) -> PathBuf {
    if path.is_empty() { backing.to_owned() } else { backing.join(path) }
}

/// The attributes as Lustre shows them: times in whole seconds.
pub(crate) fn attributes(metadata: &Metadata, is_root: bool) -> FileAttr {
    let seconds = |seconds: i64| UNIX_EPOCH + Duration::from_secs(seconds.max(0) as u64);
    FileAttr {
        ino: number(metadata, is_root),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: seconds(metadata.atime()),
        mtime: seconds(metadata.mtime()),
        ctime: seconds(metadata.ctime()),
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4 << 10,
        flags: 0,
    }
}

fn number(metadata: &Metadata, is_root: bool) -> INodeNo {
    if is_root { INodeNo::ROOT } else { INodeNo(metadata.ino()) }
}
