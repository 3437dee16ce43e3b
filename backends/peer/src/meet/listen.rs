//! Where a rank listens, and where rank 0 is to be found.
//!
//! On one node: a Unix socket in the private directory, and rank 0's notice beside it. On several: a port on every address
//! of the host, because nobody can tell from inside which of them the others reach; and a Unix socket for the ranks of the
//! same node, where that can be had. A process's later meetings are held beside its first, which keeps its port as long as it
//! lasts: they take the place's own port if it is free again and the next free one behind it otherwise. The price is that a
//! firewall has to let a few ports more through for them. What is reached under which name is found out by who sees whom
//! ([`super::messages::Person::addresses`]).

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::timeout;

use super::dial::Place;
use super::launcher::{Launched, Rendezvous};
use super::node::{self, host_name, node_id};
use super::secret::{AGAIN, Notice, PrivateDirectory, no_token};
use super::{MeetError, MeetErrorKind};
use crate::{Address, Listener, Network, Token};

/// All addresses of this host, of both families and of the older one.
const ANYWHERE: [&str; 2] = ["::", "0.0.0.0"];

/// How many ports behind a place's own a later meeting may be held at: so many loaders of a process may live beside its first.
const BEHIND: u16 = 8;

/// A socket is left alone for so long.
const YOUNG: Duration = Duration::from_secs(60);

/// How long it may take to find out that nobody listens.
const SWEEP: Duration = Duration::from_millis(200);

/// What a rank knows before it has said a word.
#[derive(Debug)]
pub(super) struct Ground {
    network: Arc<dyn Network>,
    launched: Launched,
    rendezvous: Rendezvous,
    /// Which of this process's meetings it is, from 0.
    meeting: u16,
    instance: u64,
    /// What the user says about where this rank listens.
    given: Vec<Address>,
    /// Where rank 0 says where it is.
    directory: Option<PrivateDirectory>,
    /// Where this node's ranks find each other without the network.
    sockets: Option<PrivateDirectory>,
    /// Sockets that were made.
    made: AtomicU32,
}

impl Ground {
    /// Looks for the place to meet.
    pub(super) async fn new(
        network: Arc<dyn Network>,
        launched: Launched,
        meeting: u16,
        instance: u64,
        given: Vec<Address>,
        has_token: bool,
    ) -> Result<Self, MeetError> {
        let rendezvous = launched.meet()?.clone();
        let paths = match &rendezvous {
            Rendezvous::Node(paths) => paths.clone(),
            Rendezvous::Directory(path) => vec![path.clone()],
            Rendezvous::Host { .. } | Rendezvous::List(_) if !has_token => return Err(no_token(&rendezvous)),
            Rendezvous::Host { .. } | Rendezvous::List(_) => Vec::new(),
        };
        let directory = match paths.is_empty() {
            true => None,
            false => Some(private(paths).await?),
        };
        let sockets = match &rendezvous {
            Rendezvous::Node(_) => directory.clone(),
            _ if launched.sockets.is_empty() || !given.is_empty() => None,
            // Without one, they use the network.
            _ => private(launched.sockets.clone()).await.ok(),
        };
        let made = AtomicU32::new(0);
        Ok(Self { network, launched, rendezvous, meeting, instance, given, directory, sockets, made })
    }

    /// Where rank 0 is to be looked for.
    pub(super) fn place(&self) -> Place {
        match (&self.directory, &self.rendezvous) {
            (Some(directory), _) => Place::Notice(directory.clone()),
            (None, Rendezvous::Host { host, ports }) => self.at(host, ports),
            (None, Rendezvous::List(all)) => match all.first() {
                Some((host, port)) => self.at(host, std::slice::from_ref(port)),
                None => Place::Addresses(Vec::new()),
            },
            (None, _) => Place::Addresses(Vec::new()),
        }
    }

    fn at(&self, host: &str, ports: &[u16]) -> Place {
        let ports = ports_of(self.meeting, ports).into_iter();
        Place::Addresses(ports.map(|port| Address::tcp(host, port)).collect())
    }

    /// Listens where this rank should.
    pub(super) async fn listen(&self) -> Result<Vec<Box<dyn Listener>>, MeetError> {
        if !self.given.is_empty() {
            let mut all = Vec::new();
            for address in &self.given {
                all.push(self.network.listen(address).await.map_err(|error| cannot(address, error))?);
            }
            return Ok(all);
        }
        let mut all = Vec::new();
        if let Some(directory) = &self.sockets {
            let (rank, instance) = (self.launched.rank, self.instance as u32);
            let (process, made) = (std::process::id(), self.made.fetch_add(1, Relaxed));
            self.sweep(directory).await;
            let name = format!("{rank}.{process}.{instance:08x}.{made}");
            let address = Address::unix(directory.path().join(name));
            let mut listened = self.network.listen(&address).await;
            for _ in 0..AGAIN {
                // The last rank of an earlier run may remove the directory at any moment until something is in it.
                if !listened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                    break;
                }
                listened = self.network.listen(&address).await;
            }
            match listened {
                Ok(listener) => all.push(listener),
                Err(error) if matches!(self.rendezvous, Rendezvous::Node(_)) => {
                    return Err(cannot(&address, error));
                }
                Err(error) => tracing::debug!(%address, %error, "no socket for this node's ranks"),
            }
        }
        let ports = match &self.rendezvous {
            Rendezvous::Node(_) => return Ok(all),
            Rendezvous::Host { ports, .. } if self.launched.rank.0 == 0 => ports_of(self.meeting, ports),
            Rendezvous::List(list) => match list.get(self.launched.rank.0 as usize) {
                Some((_, port)) => ports_of(self.meeting, std::slice::from_ref(port)),
                None => vec![0],
            },
            Rendezvous::Host { .. } | Rendezvous::Directory(_) => vec![0],
        };
        all.push(self.any(&ports).await?);
        Ok(all)
    }

    /// Removes the sockets of ranks that were killed, so that they do not pile up. A process that cannot be seen may live in
    /// another container, and a young socket may be about to listen; only who refuses is dead.
    async fn sweep(&self, directory: &PrivateDirectory) {
        let path = directory.path().to_owned();
        let dead = move || -> io::Result<Vec<PathBuf>> {
            let mut dead = Vec::new();
            for entry in std::fs::read_dir(path)?.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let parts: Vec<_> = name.split('.').collect();
                let [_, process, _, _] = parts[..] else { continue };
                let metadata = entry.metadata()?;
                let old = metadata.modified()?.elapsed().is_ok_and(|age| age > YOUNG);
                let seen = std::path::Path::new("/proc").join(process).exists();
                if metadata.file_type().is_socket() && old && !seen {
                    dead.push(entry.path());
                }
            }
            Ok(dead)
        };
        let Ok(Ok(dead)) = blocking(dead).await else { return };
        for path in dead {
            let address = Address::unix(&path);
            if let Ok(Err(error)) = timeout(SWEEP, self.network.connect(&address)).await
                && error.kind() == io::ErrorKind::ConnectionRefused
            {
                // Another rank may have been quicker.
                drop(std::fs::remove_file(path));
            }
        }
    }

    /// The first of some ports that is free.
    async fn any(&self, ports: &[u16]) -> Result<Box<dyn Listener>, MeetError> {
        let mut last = None;
        for port in ports {
            for host in ANYWHERE {
                let address = Address::tcp(host, *port);
                match self.network.listen(&address).await {
                    Ok(listener) => return Ok(listener),
                    // Another program's, in this family or both: the next port.
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                        last = Some(cannot(&address, error));
                        break;
                    }
                    Err(error) => last = Some(cannot(&address, error)),
                }
            }
        }
        Err(last.unwrap_or_else(|| MeetError::new(MeetErrorKind::Network, "there is no port to listen on")))
    }

    /// Lets the others know where rank 0 listens, and the token that it made.
    pub(super) async fn publish(&self, listens: &[Address], made: Option<&Token>) -> Result<(), MeetError> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        let addresses = listens.iter().flat_map(names).map(|a| a.to_string()).collect();
        let token = made.map(|token| String::from_utf8_lossy(token.expose()).into_owned());
        let notice = Notice { instance: self.instance, node: node_id(), addresses, token };
        let meeting = self.meeting;
        blocking(move || directory.publish(meeting, &notice)).await?
    }

    /// Takes the notice back, and removes the directories in which nobody is any more.
    pub(super) fn withdraw(&self) {
        for directory in self.directory.iter().chain(&self.sockets) {
            directory.withdraw(self.meeting, self.instance);
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, MeetError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| MeetError::caused(MeetErrorKind::Broken, "the program is ending", error))
}

async fn private(paths: Vec<PathBuf>) -> Result<PrivateDirectory, MeetError> {
    blocking(move || PrivateDirectory::first(&paths)).await?
}

fn cannot(address: &Address, error: io::Error) -> MeetError {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program has it (choose another by FOREREAD_MEET), or this job's other loaders, nine at a time, have it and \
             the ports behind it (close some)"
        }
        _ => "",
    };
    MeetError::caused(MeetErrorKind::Network, format!("cannot listen at {address}: {error}{remedy}"), error)
}

/// The ports at which a meeting may be held whose place has these: the first at them alone.
fn ports_of(meeting: u16, own: &[u16]) -> Vec<u16> {
    let more = if meeting == 0 { 0 } else { BEHIND };
    let behind = own.last().into_iter().flat_map(|last| (1..=more).filter_map(move |n| last.checked_add(n)));
    own.iter().copied().chain(behind).collect()
}

/// The names under which rank 0's address may be reached from other hosts.
fn names(address: &Address) -> Vec<Address> {
    let Address::Tcp(host, port) = address else { return vec![address.clone()] };
    if !ANYWHERE.contains(&&host[..]) {
        return vec![address.clone()];
    }
    let all = std::iter::once(host_name()).chain(node::addresses().into_iter().map(|ip| ip.to_string()));
    all.map(|host| Address::tcp(host, *port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_on_all_addresses_is_told_by_name() {
        let all = names(&Address::tcp("::", 7));
        assert_eq!(all[0], Address::tcp(host_name(), 7));
        assert!(
            all.iter()
                .all(|address| matches!(address, Address::Tcp(host, 7) if !ANYWHERE.contains(&&host[..])))
        );
        assert_eq!(names(&Address::unix("/x")), [Address::unix("/x")]);
        assert_eq!(names(&Address::tcp("node1", 7)), [Address::tcp("node1", 7)]);
    }

    #[test]
    fn later_meetings_have_ports_behind_the_places_own_and_the_first_has_none() {
        assert_eq!(ports_of(0, &[7000]), [7000]);
        assert_eq!(ports_of(1, &[7000]), (7000..=7008).collect::<Vec<_>>());
        assert_eq!(ports_of(9, &[7000, 7001]), (7000..=7009).collect::<Vec<_>>());
        assert_eq!(ports_of(1, &[u16::MAX - 1]), [u16::MAX - 1, u16::MAX]);
    }
}
