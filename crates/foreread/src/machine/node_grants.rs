//! What the processes of a node were granted, where all of them see it.
//!
//! Loaders that no launcher has started know nothing of each other, and memory that was granted and is not filled yet looks
//! free. So each process has an entry: the name of an abstract Unix socket that nobody connects to, which
//! `/proc/net/unix` lists. The kernel removes a name with its process, however that ends, so nothing is left behind, and
//! no entry is of a process that is gone. A further name is a lock, held while a process reads the entries and decides, so
//! that two which start at once do not take the same memory.
//!
//! Entries are of one *pool* of memory: the control group whose limit is the tightest, or the machine. Jobs of one node
//! with limits of their own do not count each other.
//!
//! The price: any user of the node can make entries, and so make others take less memory, which filling memory does as
//! well. Processes with network namespaces of their own (most containers) see no others. Where the kernel has no such list,
//! each process decides alone.

use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What names begin with.
const PREFIX: &str = "foreread-memory";

/// How long a process waits for the lock. One that stands still while it has it is not waited for longer.
const PATIENCE: Duration = Duration::from_millis(200);

/// Processes whose entries say the same, at most.
const SAME: u32 = 4096;

/// The entries of one pool of memory. Clones are of the same pool.
#[derive(Clone, Debug)]
pub(crate) struct NodeGrants {
    pool: String,
}

/// A process's entry, as long as this lives.
#[derive(Debug)]
pub(crate) struct Entry {
    name: String,
    _socket: UnixDatagram,
}

/// Held while a process reads and decides.
#[derive(Debug)]
pub(crate) struct NodeLock {
    _socket: Option<UnixDatagram>,
}

/// What an entry says of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessGrants {
    /// The ranks of the node that it was started with; 1 where no launcher says so.
    pub(crate) ranks: u32,
    /// Half of what was free before any process took memory, in bytes.
    pub(crate) half: u64,
    /// What its automatic loaders were granted, in bytes.
    pub(crate) granted: u64,
}

impl NodeGrants {
    /// That of the pool that this process takes memory from.
    pub(crate) fn of_this_process() -> Self {
        Self::of_pool(format!("{:x}", crate::memory::pool(Path::new("/"))))
    }

    /// That of the pool with this name.
    pub(crate) fn of_pool(pool: String) -> Self {
        Self { pool }
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> &str {
        &self.pool
    }

    fn name(&self, rest: &str) -> String {
        format!("{PREFIX}-{}-{rest}", self.pool)
    }

    /// Waits for the lock, [`PATIENCE`] at most.
    pub(crate) fn lock(&self) -> NodeLock {
        let (name, until) = (self.name("lock"), Instant::now() + PATIENCE);
        loop {
            match bind(&name) {
                Ok(socket) => return NodeLock { _socket: Some(socket) },
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < until => {
                    sleep(Duration::from_millis(1));
                }
                Err(error) => {
                    tracing::debug!(%error, "memory is granted without a lock");
                    return NodeLock { _socket: None };
                }
            }
        }
    }

    /// The entries of all processes, without `own`.
    pub(crate) fn read(&self, own: Option<&Entry>) -> Vec<ProcessGrants> {
        let Ok(sockets) = std::fs::read_to_string("/proc/net/unix") else { return Vec::new() };
        let (prefix, own) = (format!("@{}", self.name("")), own.map(|own| format!("@{}", own.name)));
        let names = sockets.lines().filter_map(|line| line.split_ascii_whitespace().last());
        let names = names.filter(|name| own.as_deref() != Some(*name));
        names.filter_map(|name| parse(name.strip_prefix(&*prefix)?)).collect()
    }

    /// Makes an entry.
    pub(crate) fn publish(&self, grants: ProcessGrants) -> Option<Entry> {
        let ProcessGrants { ranks, half, granted } = grants;
        for number in 0..SAME {
            let name = self.name(&format!("{ranks:x}-{half:x}-{granted:x}-{number:x}"));
            match bind(&name) {
                Ok(_socket) => return Some(Entry { name, _socket }),
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(error) => {
                    tracing::debug!(%error, "other processes do not see what memory this one has");
                    return None;
                }
            }
        }
        None
    }
}

fn parse(text: &str) -> Option<ProcessGrants> {
    let mut numbers = text.split('-').map(|number| u64::from_str_radix(number, 16).ok());
    let mut next = || numbers.next().flatten();
    let (ranks, half, granted) = (next()?, next()?, next()?);
    Some(ProcessGrants { ranks: u32::try_from(ranks).ok()?, half, granted })
}

#[cfg(target_os = "linux")]
fn bind(name: &str) -> std::io::Result<UnixDatagram> {
    use std::os::linux::net::SocketAddrExt;
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Only Linux has names that end with their process.
#[cfg(not(target_os = "linux"))]
fn bind(_: &str) -> std::io::Result<UnixDatagram> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod tests {
    use super::*;

    /// A pool that no other test and no loader of this machine knows.
    pub(crate) fn node(test: &str) -> NodeGrants {
        NodeGrants::of_pool(format!("{test}_{}", std::process::id()))
    }

    #[test]
    fn entries_are_seen_by_others_until_they_are_dropped() {
        let (own, other) = (node("entries"), node("other"));
        let one = ProcessGrants { ranks: 1, half: 80_000, granted: 70_000 };
        let two = ProcessGrants { ranks: 8, half: 1 << 40, granted: 0 };
        let entries = [one, one, two].map(|grants| own.publish(grants).unwrap());
        let mut seen = own.read(None);
        seen.sort_by_key(|grants| grants.half);
        assert_eq!(seen, [one, one, two]);
        assert_eq!(own.read(Some(&entries[2])), [one, one]);
        assert!(other.read(None).is_empty());
        drop(entries);
        assert!(own.read(None).is_empty());
    }

    #[test]
    fn names_that_make_no_sense_are_ignored() {
        let node = node("nonsense");
        let names = ["", "1", "1-2", "1-2-x-0", "100000000-1-1-0", "-1-1-1", "1-1-11111111111111111-0"];
        let _sockets = names.map(|name| bind(&node.name(name)).unwrap());
        let _lock = node.lock();
        assert!(node.read(None).is_empty());
    }

    #[test]
    fn lock_is_held_by_one_and_waited_for_a_moment() {
        let node = node("lock");
        let first = node.lock();
        assert!(first._socket.is_some());
        // A process that stands still holds up no other for long.
        assert!(node.lock()._socket.is_none());
        drop(first);
        assert!(node.lock()._socket.is_some());
    }
}
