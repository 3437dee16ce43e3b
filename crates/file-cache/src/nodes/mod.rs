//! Copies between the hosts of several nodes, which share a token and a directory.
//!
//! A host that copies a file ahead requests it from a few other hosts first. It reads the storage
//! only if none of them has it. The original is open meanwhile: the bytes must have the requested
//! length and checksum, and the original must still be the same before the copy is published.
//!
//! # Decisions and price
//!
//! * *Only files that are copied ahead are requested.* Others have just been read by a program, so
//!   their pages are in memory.
//! * *No host knows the contents of another one.* A request costs a round trip, and there is no
//!   list of copies that may be old. The price: at most four hosts are requested for a file, so
//!   with many nodes that keep few files each, most requests fail.
//! * *Connections are those of a rendezvous of ranks*, encrypted and authenticated by the token.
//!   The price is the encryption: 0.3 ms for a file of 110 KB, with both ends on two cores.
//! * *One thread has a runtime with all connections.* The rest of the crate has threads and no
//!   runtime.

mod copies;
mod fetching;
mod finding;
mod messages;
mod serving;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_connection::{Address, Identity, SystemTransport, Token, Transport, TransportListener};
use foreread_launcher::{INTERFACE, Launched, LauncherEnv, MEET, Rendezvous, TOKEN};
use foreread_types::Rank;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::channel;

pub(crate) use copies::CopySource;
use fetching::{FetchOutcome, NodeLinks, request_copy, write_parts};
pub use finding::own_addresses;
use finding::{HostDirectory, HostId};
use messages::CopyRequest;

use crate::error::{FileCacheError, FileCacheErrorKind};

/// The job in handshakes. Ranks of a job have other numbers, and other versions of the messages
/// would have, too.
const JOB: u64 = u64::from_le_bytes(*b"fr-run-1");

/// How long a run waits for the file server of the directory.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Files that are read at once for other nodes.
const READERS: usize = 4;

/// Pieces of a copy that wait for the disk.
const WAITING_PIECES: usize = 4;

/// How often the directory is listed at first and later, and how often this host's file is written.
const LOOK_FIRST: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_secs(10);
const WRITE: Duration = Duration::from_secs(60);

/// The part of a host's age that lies between two looks.
const LOOK_PART: u32 = 4;

const POLL: Duration = Duration::from_millis(50);

/// How the hosts of several nodes find and authenticate each other.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    token: Token,
    directory: PathBuf,
    /// The names of network interfaces, as in `FOREREAD_INTERFACE`.
    interface: Option<String>,
}

impl NodeSettings {
    /// Hosts with this token that see the directory, which is made if it is absent.
    pub fn new(token: Token, directory: PathBuf) -> Self {
        Self { token, directory, interface: None }
    }

    /// The same over the network interfaces of these names, as in `FOREREAD_INTERFACE`.
    #[must_use]
    pub fn with_interface(self, names: Option<String>) -> Self {
        Self { interface: names, ..self }
    }

    /// The settings of the job in the environment: `FOREREAD_TOKEN`, and `FOREREAD_MEET` if it is a
    /// directory. `None` without both.
    ///
    /// # Errors
    /// A token that can be guessed.
    pub fn of(environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, FileCacheError> {
        let environment = LauncherEnv::of_this_process(environment);
        let Some(token) = environment.get(TOKEN) else { return Ok(None) };
        // One rank of one, because only the directory matters.
        let directory = match Launched::explicit(Rank(0), 1, &environment).map(|job| job.rendezvous) {
            Ok(Some(Rendezvous::Directory(directory))) => directory,
            Ok(None) => return Ok(None),
            Ok(Some(_)) | Err(_) => {
                tracing::debug!("{MEET} is no directory, so copies of other nodes are not used");
                return Ok(None);
            }
        };
        let token = Token::new(token).map_err(|why| {
            FileCacheError::new(FileCacheErrorKind::Invalid, format!("{TOKEN} cannot be used: {why}"))
        })?;
        // Ranks of the same job use the directory itself.
        let settings = Self::new(token, directory.with_added_extension("hosts"));
        Ok(Some(settings.with_interface(environment.get(INTERFACE))))
    }
}

/// The hosts of other nodes, as this host uses them.
#[derive(Debug)]
pub(crate) struct OtherNodes {
    directory: Arc<HostDirectory>,
    links: Arc<NodeLinks>,
    runtime: Handle,
}

impl OtherNodes {
    /// Begins to give copies of `source` to other nodes, and to look for hosts, until the source
    /// ends. `cache` is this host's directory of copies.
    pub(crate) fn start(
        settings: &NodeSettings,
        cache: &Path,
        source: Arc<dyn CopySource>,
    ) -> io::Result<Self> {
        let own = HostId::of(cache)?;
        let identity = Arc::new(Identity { rank: own.rank(), job: JOB, token: settings.token.clone() });
        let links = Arc::new(NodeLinks::new(Arc::clone(&identity)));
        let (sender, started) = std::sync::mpsc::sync_channel(0);
        let (settings, serving) = (settings.clone(), Arc::clone(&source));
        // The caller may be in a runtime of its own, so this one begins and ends in its thread.
        spawn("foreread-nodes", move || match begin(&settings, own) {
            Ok((runtime, listener, directory)) => {
                if sender.send(Ok((runtime.handle().clone(), Arc::clone(&directory)))).is_err() {
                    return directory.leave();
                }
                runtime.block_on(serving::serve(listener, identity, serving));
                // A reader may wait for a disk that hangs.
                runtime.shutdown_background();
            }
            // Or the caller waits no longer.
            Err(error) => drop(sender.send(Err(error))),
        })?;
        let (runtime, directory) = started.recv_timeout(START_TIMEOUT).map_err(io::Error::other).flatten()?;
        let nodes = Self { directory: Arc::clone(&directory), links: Arc::clone(&links), runtime };
        let looking = spawn("foreread-meet", move || look_for_hosts(&directory, &links, &*source));
        if let Err(error) = looking {
            nodes.leave();
            return Err(error);
        }
        Ok(nodes)
    }

    /// Fills a file with the copy of another node, and returns the checksum. `None` if it has to be
    /// read from the storage.
    pub(crate) fn fetch(&self, request: CopyRequest, to: &File) -> Option<u32> {
        let request = Arc::new(request);
        for host in self.links.candidates(&request) {
            let (sender, receiver) = channel(WAITING_PIECES);
            let (links, of) = (Arc::clone(&self.links), Arc::clone(&request));
            self.runtime.spawn(request_copy(links, host, of, sender));
            match write_parts(receiver, to, request.size) {
                FetchOutcome::Fetched(crc32c) => return Some(crc32c),
                FetchOutcome::Absent => {}
                FetchOutcome::Failed => {
                    self.links.avoid(host);
                    return None;
                }
                FetchOutcome::Unwritable => return None,
            }
        }
        None
    }

    /// Removes this host from the directory.
    pub(crate) fn leave(&self) {
        self.directory.leave();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Listens, and announces this host.
fn begin(
    settings: &NodeSettings,
    own: HostId,
) -> io::Result<(Runtime, Box<dyn TransportListener>, Arc<HostDirectory>)> {
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(READERS).build()?;
    let listener = runtime.block_on(listen())?;
    let Address::Tcp(_, port) = *listener.address() else {
        return Err(io::Error::other("a listener without a port"));
    };
    let addresses = own_addresses(settings.interface.as_deref(), port)?;
    let directory = Arc::new(HostDirectory::join(&settings.directory, own, &addresses)?);
    Ok((runtime, listener, directory))
}

/// Listens at a free port of all addresses.
async fn listen() -> io::Result<Box<dyn TransportListener>> {
    match SystemTransport.listen(&Address::tcp("::", 0)).await {
        Ok(listener) => Ok(listener),
        // A machine without IPv6.
        Err(_) => SystemTransport.listen(&Address::tcp("0.0.0.0", 0)).await,
    }
}

/// Looks for other hosts until this one ends.
fn look_for_hosts(directory: &HostDirectory, links: &NodeLinks, source: &dyn CopySource) {
    let (begun, mut written) = (Instant::now(), Instant::now());
    while !source.has_ended() {
        match directory.others() {
            Ok(all) => {
                for (host, failures) in links.listed(&all) {
                    if failures > 0 {
                        directory.remove_if_old(host);
                    }
                    links.set_addresses(host, directory.addresses(host));
                }
            }
            Err(error) => tracing::debug!(%error, "hosts of other nodes cannot be listed"),
        }
        if written.elapsed() > WRITE {
            written = Instant::now();
            if let Err(error) = directory.write() {
                tracing::debug!(%error, "other nodes cannot find this host");
            }
        }
        // Hosts of a job start at about the same time.
        let wait = (begun.elapsed() / LOOK_PART).clamp(LOOK_FIRST, LOOK);
        let looked = Instant::now();
        while looked.elapsed() < wait && !source.has_ended() {
            std::thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests;
