//! The state of the stand-in: files, servers, faults and counts, shared by the mount and the test.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{FileType, INodeNo, ReplyData};
use rustix::io::Errno;

use crate::counts::{Counts, LoggedRequest, RequestKind};
use crate::engine::{Answer, Engine, Part};
use crate::nodes::{Nodes, in_backing};
use crate::options::StandInOptions;
use crate::server_queue::ServerQueue;
use crate::spec::{DataServer, LayoutSpec};
use crate::stand_in::{EvictedFrom, Recall};

/// Bytes of a file on the MDT that come with its open.
const INLINE: u64 = 8 << 10;

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub file: File,
    pub node: INodeNo,
    pub path: Arc<str>,
}

/// The entries of an open directory: number, kind, name.
pub(crate) type DirectoryEntries = Vec<(INodeNo, FileType, std::ffi::OsString)>;

/// The object behind a handle of the kernel.
#[derive(Debug, Clone)]
pub(crate) enum Handle {
    File(Arc<OpenFile>),
    Directory(Arc<DirectoryEntries>),
}

/// A read without an answer.
pub(crate) struct WaitingRead {
    pub file: Arc<OpenFile>,
    pub offset: u64,
    pub size: u64,
    pub thread: u32,
    pub reply: ReplyData,
}

struct Eviction {
    from: EvictedFrom,
    errno: Errno,
    /// Requests that it has left. `None` until the client reconnects.
    left: Option<u64>,
}

/// A file that was released to an archive, and not restored yet.
struct ReleasedFile {
    recall: Recall,
    is_recalling: bool,
    waiting: Vec<WaitingRead>,
}

#[derive(Default)]
struct Tally {
    counts: Counts,
    log: VecDeque<LoggedRequest>,
}

pub(crate) struct Served {
    pub backing: PathBuf,
    pub options: StandInOptions,
    pub nodes: Nodes,
    pub engine: Engine,
    handles: Mutex<(u64, HashMap<u64, Handle>)>,
    tally: Mutex<Tally>,
    evictions: Mutex<Vec<Eviction>>,
    released: Mutex<HashMap<String, ReleasedFile>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Served {
    pub fn start(backing: &Path, options: StandInOptions) -> io::Result<Arc<Served>> {
        let StandInOptions { metadata_latency, read_latency, read_slots, .. } = options;
        let ost = |_| ServerQueue::new(read_slots, read_latency, options.ost_bandwidth);
        let mut servers: Vec<_> = (0..options.osts).map(ost).collect();
        servers.push(ServerQueue::new(options.open_slots, metadata_latency, None));
        servers.push(ServerQueue::new(options.getattr_slots, metadata_latency, None));
        servers.push(ServerQueue::new(read_slots, read_latency, None));
        let served = Served {
            backing: backing.canonicalize()?,
            options,
            nodes: Nodes::default(),
            engine: Engine::start(servers)?,
            handles: Mutex::default(),
            tally: Mutex::default(),
            evictions: Mutex::default(),
            released: Mutex::default(),
        };
        served.nodes.found(INodeNo::ROOT, "");
        Ok(Arc::new(served))
    }

    /// The MDT's server of opens and closes.
    pub fn opens(&self) -> usize {
        self.options.osts as usize
    }

    /// The MDT's server of other metadata.
    pub fn attributes(&self) -> usize {
        self.opens() + 1
    }

    /// The MDT's server of data.
    fn mdt_data(&self) -> usize {
        self.opens() + 2
    }

    pub fn open_handle(&self, handle: Handle) -> fuser::FileHandle {
        let (next, handles) = &mut *locked(&self.handles);
        *next += 1;
        handles.insert(*next, handle);
        fuser::FileHandle(*next)
    }

    pub fn handle(&self, handle: fuser::FileHandle) -> Option<Handle> {
        locked(&self.handles).1.get(&handle.0).cloned()
    }

    /// The file by which a node is open, if it is.
    pub fn open_file_of(&self, node: INodeNo) -> Option<Arc<OpenFile>> {
        locked(&self.handles).1.values().find_map(|handle| match handle {
            Handle::File(file) if file.node == node => Some(Arc::clone(file)),
            _ => None,
        })
    }

    pub fn close_handle(&self, handle: fuser::FileHandle) {
        let closed = locked(&self.handles).1.remove(&handle.0);
        drop(closed);
    }

    /// Counts a request, and logs it.
    pub fn count(&self, kind: RequestKind, path: &str, thread: u32, range: Option<(u64, u64)>) {
        let tally = &mut *locked(&self.tally);
        *tally.counts.of_kind(kind) += 1;
        tally.counts.bytes += range.map_or(0, |(_, length)| length);
        if self.options.logged > 0 {
            if tally.log.len() == self.options.logged {
                tally.log.pop_front();
            }
            tally.log.push_back(LoggedRequest { kind, path: path.to_owned(), thread, range });
        }
    }

    pub fn counts(&self) -> Counts {
        let osts = self.opens();
        let mut by_ost = self.engine.counts();
        let mdt = by_ost.split_off(osts);
        let tally = locked(&self.tally);
        Counts {
            mdt_requests: mdt.iter().map(|server| server.requests).sum(),
            by_ost,
            log: tally.log.iter().cloned().collect(),
            ..tally.counts.clone()
        }
    }

    pub fn reset_counts(&self) {
        *locked(&self.tally) = Tally::default();
        self.engine.reset_counts();
    }

    /// One request to the MDT, in one of its servers' slots.
    pub fn ask_mdt(&self, server: usize, thread: u32, answer: Answer) {
        self.engine.submit(thread, &[Part { server, bytes: 0, round_trips: 1 }], answer);
    }

    /// The layout of a file as it is now.
    pub fn layout(&self, node: INodeNo, path: &str, size: u64) -> LayoutSpec {
        let new = || (self.options.layout)(path, size);
        let layout = match self.nodes.lock().get_mut(&node.0) {
            Some(node) => node.layout.get_or_insert_with(new).clone(),
            None => new(),
        };
        if locked(&self.released).contains_key(path) { layout.released() } else { layout }
    }

    /// The requests of a full `stat` to the OSTs whose part of the file's size the client does not
    /// know.
    pub fn glimpses(&self, node: INodeNo, path: &str, size: u64) -> Vec<Part> {
        if !self.options.glimpses {
            return Vec::new();
        }
        let osts: BTreeSet<_> = self.layout(node, path, size).osts.into_iter().collect();
        let nodes = self.nodes.lock();
        let is_locked = |ost: &u32| nodes.get(&node.0).is_some_and(|node| node.locks.contains(ost));
        let asked = osts.into_iter().filter(|ost| !is_locked(ost));
        asked.map(|ost| Part { server: ost as usize, bytes: 0, round_trips: 1 }).collect()
    }

    /// The error of a request to a server that has evicted the client.
    pub fn evicted(&self, server: EvictedFrom) -> Option<fuser::Errno> {
        let mut evictions = locked(&self.evictions);
        let eviction =
            evictions.iter_mut().find(|eviction| [EvictedFrom::All, server].contains(&eviction.from))?;
        let errno = eviction.errno;
        if let Some(left) = &mut eviction.left {
            *left -= 1;
        }
        evictions.retain(|eviction| eviction.left != Some(0));
        drop(evictions);
        locked(&self.tally).counts.evicted += 1;
        Some(fuser::Errno::from_i32(errno.raw_os_error()))
    }

    pub fn evict(&self, from: EvictedFrom, errno: Errno, requests: Option<u64>) {
        if requests != Some(0) {
            locked(&self.evictions).push(Eviction { from, errno, left: requests });
        }
        // An evicted client has lost its locks.
        for node in self.nodes.lock().values_mut() {
            node.is_seen = false;
            node.locks.clear();
        }
    }

    pub fn reconnect(&self) {
        locked(&self.evictions).clear();
    }

    pub fn release(&self, path: &str, recall: Recall) {
        let file = ReleasedFile { recall, is_recalling: false, waiting: Vec::new() };
        locked(&self.released).insert(path.to_owned(), file);
    }

    /// A file has been restored. The reads that waited begin.
    pub fn recalled(self: &Arc<Self>, path: &str) {
        let file = locked(&self.released).remove(path);
        file.into_iter().flat_map(|file| file.waiting).for_each(|read| self.read(read));
    }

    /// The restore of a file has failed. The next read begins another.
    fn recall_failed(&self, path: &str) {
        let waiting = locked(&self.released).get_mut(path).map(|file| {
            file.is_recalling = false;
            std::mem::take(&mut file.waiting)
        });
        waiting.into_iter().flatten().for_each(|read| read.reply.error(fuser::Errno::ENODATA));
    }

    /// Lets a read wait if its file is released, and begins the restore.
    fn wait_for_recall(self: &Arc<Self>, read: WaitingRead) -> Option<WaitingRead> {
        let path = Arc::clone(&read.file.path);
        let mut released = locked(&self.released);
        let Some(file) = released.get_mut(&*path) else { return Some(read) };
        file.waiting.push(read);
        if file.is_recalling {
            return None;
        }
        file.is_recalling = true;
        let recall = file.recall;
        drop(released);
        locked(&self.tally).counts.recalls += 1;
        let served = Arc::clone(self);
        match recall {
            Recall::After(time) => self.engine.after(time, Box::new(move || served.recalled(&path))),
            Recall::Fails(time) => self.engine.after(time, Box::new(move || served.recall_failed(&path))),
            Recall::OnDemand => {}
        }
        None
    }

    /// Serves a read by the servers of its range.
    pub fn read(self: &Arc<Self>, read: WaitingRead) {
        let Some(mut read) = self.wait_for_recall(read) else { return };
        let length = match read.file.file.metadata() {
            Ok(metadata) => metadata.len(),
            Err(error) => return read.reply.error(error.into()),
        };
        read.size = read.size.min(length.saturating_sub(read.offset));
        if read.size == 0 {
            return read.reply.data(&[]);
        }
        let WaitingRead { offset, size, thread, .. } = read;
        let file = Arc::clone(&read.file);
        self.count(RequestKind::Read, &file.path, thread, Some((offset, size)));
        let mut bytes = BTreeMap::<DataServer, u64>::new();
        for (server, range) in self.layout(file.node, &file.path, length).servers(offset..offset + size) {
            match server {
                Some(DataServer::Mdt) if range.end <= INLINE => {}
                Some(server) => *bytes.entry(server).or_default() += range.end - range.start,
                None => {}
            }
        }
        let evicted = bytes.keys().find_map(|server| {
            self.evicted(match server {
                DataServer::Ost(ost) => EvictedFrom::Ost(*ost),
                DataServer::Mdt => EvictedFrom::Mdt,
            })
        });
        if let Some(errno) = evicted {
            return read.reply.error(errno);
        }
        let parts: Vec<_> =
            bytes.into_iter().map(|(server, bytes)| self.part(file.node, server, bytes)).collect();
        let answer = move || {
            let mut data = vec![0; size as usize];
            match read_whole(&read.file.file, &mut data, offset) {
                Ok(length) => read.reply.data(&data[..length]),
                Err(error) => read.reply.error(error.into()),
            }
        };
        self.engine.submit(thread, &parts, Box::new(answer));
    }

    fn part(&self, node: INodeNo, server: DataServer, bytes: u64) -> Part {
        match server {
            DataServer::Mdt => Part { server: self.mdt_data(), bytes, round_trips: 1 },
            DataServer::Ost(ost) => {
                let is_first = self.nodes.lock().get_mut(&node.0).is_some_and(|node| node.locks.insert(ost));
                if is_first {
                    locked(&self.tally).counts.locks += 1;
                }
                let round_trips = if is_first && self.options.lock_latency { 2 } else { 1 };
                Part { server: ost as usize, bytes, round_trips }
            }
        }
    }

    /// A path in the backing directory.
    pub fn in_backing(&self, path: &str) -> PathBuf {
        in_backing(&self.backing, path)
    }
}

/// Fills the buffer, unless the file ends before. The number of bytes.
fn read_whole(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_read_of_an_object_takes_its_lock() {
        for (lock_latency, expected) in [(false, [1, 1, 1]), (true, [2, 1, 2])] {
            let options = StandInOptions { lock_latency, ..StandInOptions::new(2) };
            let served = Served::start(Path::new("/"), options).unwrap();
            let part = |ost| served.part(INodeNo::ROOT, DataServer::Ost(ost), 5);
            assert_eq!([0, 0, 1].map(|ost| part(ost).round_trips), expected);
            assert_eq!(locked(&served.tally).counts.locks, 2);
        }
    }
}
