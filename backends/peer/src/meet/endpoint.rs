//! Where a rank listens, and where it looks for rank 0.
//!
//! | rendezvous | rank 0 listens | other ranks connect |
//! |---|---|---|
//! | on one node | at an abstract Unix socket named after user and launcher | to that name |
//! | at a named host | at the port, or one of four derived from the launcher | there |
//! | in a shared directory | at any port | to the addresses in rank 0's notice |
//!
//! On one node, rank 0 takes the first free one of eight names. After 5 s, other ranks also try the
//! launcher's host, if there is a token.
//!
//! Every rank also listens at an abstract Unix socket for the ranks of its node. With several
//! nodes, it listens at a port on all addresses of its host, because it cannot know which of them
//! other nodes reach. The address that other ranks use is the one from which rank 0 sees the rank
//! connect ([`super::messages::RankInfo::addresses`]).
//!
//! The first loader of a process has the rendezvous port. Later loaders listen at any port, and the
//! first redirects their ranks ([`LoaderDirectory`]).

use std::io;
use std::sync::{Arc, Mutex};

use foreread_connection::system::is_overflow_user;
use foreread_connection::token::hexadecimal;
use foreread_connection::{Address, Token, Transport, TransportListener, token};
use foreread_launcher::{Launched, MEET, Rendezvous, TOKEN};
use sha2::{Digest, Sha256};

use super::dial::{Rank0Dialer, Rank0Location};
use super::interfaces::{self, ANYWHERE, InterfaceAddresses, is_anywhere};
use super::loader_directory::LoaderDirectory;
use super::messages::RankInfo;
use super::node::{host_name, node_id};
use super::notice::{PrivateDirectory, Rank0Notice, no_token};
use super::settings::RendezvousSettings;
use super::{MeetError, MeetErrorKind};
use foreread_tier::lock;

/// Socket names that rank 0 may use on one node. Another user's process may have the first.
const SOCKET_NAMES: u32 = 8;

/// This rank's listeners and rendezvous address.
#[derive(Debug)]
pub(super) struct LocalEndpoint {
    pub network: Arc<dyn Transport>,
    pub launched: Launched,
    rendezvous: Rendezvous,
    /// The number of the process's loader, from 0.
    loader: u16,
    process: u64,
    /// The addresses of the process's other loaders.
    pub board: Arc<LoaderDirectory>,
    /// The node's id.
    pub node: String,
    /// The ranks of the node that this one shares a store with.
    group: String,
    /// The user's listen addresses.
    given: Vec<Address>,
    /// The directory of rank 0's notice.
    directory: Option<PrivateDirectory>,
    /// Whether ranks of other nodes can authenticate.
    has_token: bool,
    /// Addresses of the interfaces that the user selected.
    selected: InterfaceAddresses,
    /// Whether the notice was withdrawn. Locked while the notice is written, so that no write lands
    /// after the withdrawal.
    is_withdrawn: Arc<Mutex<bool>>,
}

impl LocalEndpoint {
    /// Checks the settings and opens the rendezvous directory.
    pub(super) async fn new(settings: &RendezvousSettings, process: u64) -> Result<Self, MeetError> {
        let RendezvousSettings {
            launched,
            loader,
            board,
            network,
            token,
            listen,
            node,
            group,
            interface,
            ..
        } = settings;
        let selected = interface.as_deref().map(interfaces::selected).transpose()?.unwrap_or_default();
        let (rendezvous, has_token) = (launched.meet()?.clone(), token.is_some());
        let directory = match &rendezvous {
            Rendezvous::Directory(path) => {
                let path = path.clone();
                Some(blocking(move || PrivateDirectory::open(&path)).await??)
            }
            Rendezvous::Host { .. } | Rendezvous::List(_) if !has_token => return Err(no_token(&rendezvous)),
            Rendezvous::Node { or, .. } if is_overflow_user() && (or.is_none() || !has_token) => {
                return Err(unsupported_user());
            }
            Rendezvous::Node { .. } | Rendezvous::Host { .. } | Rendezvous::List(_) => None,
        };
        Ok(Self {
            network: Arc::clone(network),
            launched: launched.clone(),
            rendezvous,
            loader: *loader,
            process,
            board: Arc::clone(board),
            node: node.clone(),
            group: group.clone(),
            given: listen.clone(),
            directory,
            has_token,
            selected,
            is_withdrawn: Arc::default(),
        })
    }

    /// This rank, which serves samples at these addresses.
    pub(super) fn info(&self, addresses: &[Address]) -> RankInfo {
        RankInfo {
            rank: self.launched.rank.0,
            node: self.node.clone(),
            group: self.group.clone(),
            host: host_name(),
            pid: std::process::id(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
        }
    }

    /// The token of a job without a user's token. On one node, it is a text that all ranks can
    /// derive, because the kernel knows which user owns a socket. In a directory that only the user
    /// can read, it is random and made by rank 0.
    pub(super) fn generated_token(&self) -> Result<Option<Token>, MeetError> {
        match &self.rendezvous {
            Rendezvous::Node { words, .. } => Ok(Some(Token::known(&self.socket_name(words, 0)))),
            Rendezvous::Directory(_) if self.launched.rank.0 == 0 => {
                Ok(Some(Token::random().map_err(MeetError::no_random(MeetErrorKind::Secret))?))
            }
            _ => Ok(None),
        }
    }

    /// How to find rank 0.
    pub(super) fn dial(&self, token: Option<Token>) -> Rank0Dialer {
        let at = |host: &str, ports: &[u16]| ports.iter().map(|port| Address::tcp(host, *port)).collect();
        let mut fallback = Vec::new();
        let place = match (&self.directory, &self.rendezvous) {
            (Some(directory), _) => Rank0Location::Notice(directory.clone()),
            (None, Rendezvous::Host { host, ports }) => Rank0Location::Addresses(at(host, ports)),
            (None, Rendezvous::List(all)) => Rank0Location::Addresses(
                all.first().map(|(host, port)| Address::tcp(host, *port)).into_iter().collect(),
            ),
            (None, Rendezvous::Node { words, or }) => {
                if let Some((host, ports)) = or.as_ref().filter(|_| self.has_token) {
                    fallback = at(host, ports);
                }
                Rank0Location::Addresses(self.socket_names(words))
            }
            (None, Rendezvous::Directory(_)) => Rank0Location::Addresses(Vec::new()),
        };
        let (rank, job) = (self.launched.rank, self.launched.job_hash());
        Rank0Dialer::new(Arc::clone(&self.network), place, rank, job, self.loader, token, fallback)
    }

    /// A name of rank 0's socket on this node.
    fn socket_name(&self, words: &str, attempt: u32) -> String {
        let uid = rustix::process::geteuid().as_raw();
        let digest = Sha256::digest(format!("foreread {uid} {attempt} {} {words}", self.loader));
        format!("foreread-{}", hexadecimal(&digest[..16]))
    }

    fn socket_names(&self, words: &str) -> Vec<Address> {
        (0..SOCKET_NAMES).map(|attempt| Address::local(self.socket_name(words, attempt))).collect()
    }

    /// Opens the listeners of this rank.
    pub(super) async fn listen(&self) -> Result<Vec<Box<dyn TransportListener>>, MeetError> {
        let mut all = Vec::new();
        if !self.given.is_empty() {
            for address in &self.given {
                all.push(self.network.listen(address).await.map_err(|error| listen_error(address, error))?);
            }
            return Ok(all);
        }
        let is_first = self.launched.rank.0 == 0;
        let ports = match &self.rendezvous {
            Rendezvous::Node { words, or } => {
                let or = or.as_ref().filter(|_| self.has_token);
                match self
                    .first_of(if is_first { self.socket_names(words) } else { vec![random_socket()?] })
                    .await
                {
                    Ok(listener) => all.push(listener),
                    Err(error) if or.is_some() => {
                        tracing::warn!(%error, "ranks meet at the launcher's host: no socket of this node \
                             is free");
                    }
                    Err(error) => return Err(error),
                }
                match or {
                    Some((_, ports)) if is_first => ports.clone(),
                    Some(_) => vec![0],
                    None => return Ok(all),
                }
            }
            Rendezvous::Host { ports, .. } if is_first => ports.clone(),
            Rendezvous::List(list) => match list.get(self.launched.rank.0 as usize) {
                Some((_, port)) => vec![*port],
                None => vec![0],
            },
            Rendezvous::Host { .. } | Rendezvous::Directory(_) => vec![0],
        };
        if all.is_empty() {
            let address = random_socket()?;
            match self.network.listen(&address).await {
                Ok(listener) => all.push(listener),
                // Ranks of this node then use the network.
                Err(error) => tracing::debug!(%address, %error, "no socket for this node's ranks"),
            }
        }
        // A later loader takes the rendezvous port only if an earlier one does not have it.
        let any = if self.loader > 0 { vec![0] } else { Vec::new() };
        let ports = ports.into_iter().chain(any);
        match self
            .first_of(ports.flat_map(|port| ANYWHERE.map(|host| Address::tcp(host, port))).collect())
            .await
        {
            Ok(listener) => all.push(listener),
            Err(error) if !all.is_empty() && matches!(self.rendezvous, Rendezvous::Node { .. }) => {
                tracing::debug!(%error, "ranks meet by a socket of this node alone");
            }
            Err(error) => return Err(error),
        }
        Ok(all)
    }

    /// Listens at the rendezvous address, for rank 0 of a later loader. The earlier loader may end
    /// before all ranks were redirected by it. `None` if this does not apply, or the address is in
    /// use.
    pub(super) async fn listen_at_place(&self, listens: &[Address]) -> Option<Box<dyn TransportListener>> {
        let ports = match &self.rendezvous {
            Rendezvous::Host { ports, .. } => ports.clone(),
            Rendezvous::List(list) => vec![list.first()?.1],
            Rendezvous::Node { .. } | Rendezvous::Directory(_) => return None,
        };
        let is_there = |address: &Address| matches!(address, Address::Tcp(_, port) if ports.contains(port));
        if !self.given.is_empty() || listens.iter().any(is_there) {
            return None;
        }
        let all = ports.iter().flat_map(|port| ANYWHERE.map(|host| Address::tcp(host, *port)));
        self.first_of(all.collect()).await.ok()
    }

    /// Listens at the first free address. A port that is in use in one address family is skipped in
    /// both.
    async fn first_of(&self, addresses: Vec<Address>) -> Result<Box<dyn TransportListener>, MeetError> {
        let (mut last, mut taken) = (None, None);
        for address in addresses {
            let port = match &address {
                Address::Tcp(_, port) => Some(*port),
                Address::Local(_) => None,
            };
            if port.is_some() && port == taken {
                continue;
            }
            match self.network.listen(&address).await {
                Ok(listener) => return Ok(listener),
                Err(error) => {
                    if error.kind() == io::ErrorKind::AddrInUse {
                        taken = port;
                    }
                    last = Some(listen_error(&address, error));
                }
            }
        }
        Err(last
            .unwrap_or_else(|| MeetError::new(MeetErrorKind::Network, "there is no address to listen at")))
    }

    /// The addresses to advertise to other ranks.
    pub(super) fn advertised(&self, listens: &[Address]) -> Vec<Address> {
        let listed = match &self.rendezvous {
            Rendezvous::List(list) => list.get(self.launched.rank.0 as usize).map(|(host, _)| host.clone()),
            _ => None,
        };
        let named = |address: &Address| match (address, &listed) {
            (Address::Tcp(host, port), Some(listed)) if is_anywhere(host) => {
                vec![Address::tcp(listed.clone(), *port)]
            }
            (Address::Tcp(host, port), None) if is_anywhere(host) && !self.selected.is_empty() => {
                self.selected.iter().map(|(_, ip)| Address::tcp(ip.to_string(), *port)).collect()
            }
            _ => vec![address.clone()],
        };
        listens.iter().flat_map(named).collect()
    }

    /// Logs the network over which other nodes reach this rank.
    pub(super) fn log_network(&self, addresses: &[String]) {
        let of_network = |text: &String| match text.parse() {
            Ok(Address::Tcp(host, _)) if !is_anywhere(&host) => Some(host),
            Ok(_) | Err(_) => None,
        };
        let named = |host: String| match host.parse().ok().and_then(interfaces::name_of) {
            Some(name) => format!("{name} ({host})"),
            None => host,
        };
        let networks: Vec<_> = addresses.iter().filter_map(of_network).map(named).collect();
        if !networks.is_empty() {
            tracing::info!(
                "other nodes reach this rank at {}; set {} to choose another network",
                networks.join(", "),
                interfaces::INTERFACE
            );
        }
    }

    /// Publishes rank 0's addresses and the token it generated. `again`: only if the notice was
    /// removed.
    pub(super) async fn publish(
        &self,
        listens: &[Address],
        made: Option<&Token>,
        again: bool,
    ) -> Result<(), MeetError> {
        if !again {
            self.board.put(self.loader, listens.to_vec());
        }
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        let (notice, loader) = (self.notice(listens, made), self.loader);
        let is_withdrawn = Arc::clone(&self.is_withdrawn);
        let publish = move || {
            let is_withdrawn = lock(&is_withdrawn);
            if *is_withdrawn || again && !matches!(directory.notice(loader), Ok(None)) {
                return Ok(());
            }
            directory.publish(loader, &notice)
        };
        blocking(publish).await?
    }

    fn notice(&self, listens: &[Address], made: Option<&Token>) -> Rank0Notice {
        let names = |address| host_addresses(address, &self.selected);
        let addresses = listens.iter().flat_map(names).map(|address| address.to_string()).collect();
        let token = made.map(|token| String::from_utf8_lossy(token.expose()).into_owned());
        Rank0Notice { instance: self.process, node: node_id(), addresses, token }
    }

    /// Withdraws the notice.
    pub(super) fn withdraw(&self) {
        if self.launched.rank.0 == 0 {
            self.board.remove(self.loader);
        }
        if let Some(directory) = &self.directory {
            *lock(&self.is_withdrawn) = true;
            directory.withdraw(self.loader, self.process);
        }
    }
}

/// The error for the user `nobody`, whose ranks cannot authenticate on a node.
fn unsupported_user() -> MeetError {
    let line = format!(
        "the kernel cannot distinguish this user (nobody) from users of other containers: run as another \
         user, or set {TOKEN} to what `foreread token` prints and {MEET} to rank 0's host:port"
    );
    MeetError::new(MeetErrorKind::Secret, line)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, MeetError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| MeetError::caused(MeetErrorKind::Broken, "the program is ending", error))
}

/// A Unix socket of this node with a random name.
fn random_socket() -> Result<Address, MeetError> {
    let random = token::random().map_err(MeetError::no_random(MeetErrorKind::Broken))?;
    Ok(Address::local(format!("foreread-{}", hexadecimal(&random[..16]))))
}

fn listen_error(address: &Address, error: io::Error) -> MeetError {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "; another program uses it: choose another address with FOREREAD_MEET",
        _ => "",
    };
    MeetError::caused(MeetErrorKind::Network, format!("cannot listen at {address}: {error}{remedy}"), error)
}

/// The addresses at which other hosts may reach rank 0: those of the selected interfaces, or all.
fn host_addresses(address: &Address, selected: &InterfaceAddresses) -> Vec<Address> {
    let Address::Tcp(host, port) = address else { return vec![address.clone()] };
    if !is_anywhere(host) {
        return vec![address.clone()];
    }
    let texts =
        |addresses: &InterfaceAddresses| addresses.iter().map(|(_, ip)| ip.to_string()).collect::<Vec<_>>();
    let all = match selected.is_empty() {
        true => std::iter::once(host_name()).chain(texts(&interfaces::all())).collect(),
        false => texts(selected),
    };
    all.into_iter().map(|host| Address::tcp(host, *port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_address_is_published_by_host_name() {
        let none = InterfaceAddresses::new();
        let all = host_addresses(&Address::tcp("::", 7), &none);
        assert_eq!(all[0], Address::tcp(host_name(), 7));
        assert!(
            all.iter()
                .all(|address| matches!(address, Address::Tcp(host, 7) if !ANYWHERE.contains(&&host[..])))
        );
        assert_eq!(host_addresses(&Address::local("x"), &none), [Address::local("x")]);
        assert_eq!(host_addresses(&Address::tcp("node1", 7), &none), [Address::tcp("node1", 7)]);
        let selected = vec![("ib0".to_owned(), "10.1.2.3".parse().unwrap())];
        assert_eq!(host_addresses(&Address::tcp("::", 7), &selected), [Address::tcp("10.1.2.3", 7)]);
    }

    #[test]
    // semantics: RANK-26
    fn chosen_interface_is_announced_in_notice_and_roster() {
        let mut endpoint = endpoint(1, "interface");
        endpoint.selected = ["10.1.2.3", "fd00::3"].map(|ip| ("ib0".to_owned(), ip.parse().unwrap())).into();
        let listens = [Address::local("x"), Address::tcp("::", 7)];
        let announced = [Address::local("x"), Address::tcp("10.1.2.3", 7), Address::tcp("fd00::3", 7)];
        assert_eq!(endpoint.advertised(&listens), announced);
        let notice = endpoint.notice(&listens, None);
        assert_eq!(notice.addresses, announced.map(|address| address.to_string()));
        // The rank's own entry in the list has precedence.
        let list = [("node0", 1), ("node1", 7)].map(|(host, port)| (host.to_owned(), port));
        endpoint.rendezvous = Rendezvous::List(list.into());
        assert_eq!(endpoint.advertised(&listens), [Address::local("x"), Address::tcp("node1", 7)]);
    }

    #[tokio::test]
    // semantics: RANK-10
    async fn notice_written_during_its_withdrawal_does_not_stay() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("meet");
        let directory = PrivateDirectory::open(&path).unwrap();
        let endpoint = LocalEndpoint { directory: Some(directory), ..endpoint(0, "withdrawn") };
        let listens = [Address::tcp("node1", 7)];
        endpoint.publish(&listens, None, false).await.unwrap();
        assert!(path.exists());
        endpoint.withdraw();
        // These writes were under way and finish after the withdrawal.
        endpoint.publish(&listens, None, false).await.unwrap();
        endpoint.publish(&listens, None, true).await.unwrap();
        assert!(!path.exists());
    }

    fn endpoint(rank: u32, words: &str) -> LocalEndpoint {
        let rendezvous = Rendezvous::Node { words: format!("{words} {}", std::process::id()), or: None };
        let launched = Launched {
            rank: foreread_types::Rank(rank),
            world_size: 2,
            local_rank: None,
            local_size: None,
            node: None,
            rendezvous: Some(rendezvous.clone()),
            job: String::new(),
            launcher: "a test",
        };
        let (network, given, directory) = (Arc::new(crate::SystemTransport), Vec::new(), None);
        let (selected, is_withdrawn, board, node) = Default::default();
        let (loader, process, has_token) = (0, 1, false);
        LocalEndpoint {
            network,
            launched,
            rendezvous,
            loader,
            process,
            board,
            node,
            group: String::new(),
            given,
            directory,
            has_token,
            selected,
            is_withdrawn,
        }
    }

    /// Socket names are not reserved: another program may have the first.
    #[tokio::test]
    async fn taken_name_of_a_socket_is_passed_over() {
        let first = endpoint(0, "taken");
        let before = first.listen().await.unwrap();
        let own = first.listen().await.unwrap();
        assert_ne!(before[0].address(), own[0].address());
        let Rank0Location::Addresses(looked_for) = endpoint(1, "taken").dial(None).place else {
            panic!("no addresses")
        };
        assert_eq!([&looked_for[0], &looked_for[1]], [before[0].address(), own[0].address()]);
        // The names of another job, loader or user differ.
        let Rank0Location::Addresses(other) = endpoint(1, "other").dial(None).place else {
            panic!("no addresses")
        };
        assert!(other.iter().all(|name| !looked_for.contains(name)));
    }
}
