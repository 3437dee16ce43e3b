//! The operating system's sockets.
//!
//! A dead machine sends nothing, and an idle connection to it would stay for ever. The kernel's
//! keepalive ends it within half a minute, at the price of an occasional packet. Small frames are
//! sent at once (`TCP_NODELAY`), because the sender has already batched them.
//!
//! Unix sockets are abstract: a name in the kernel without a file, which every process can reach.
//! So both ends get the other process's user from the kernel, and accept only the same user. The
//! kernel maps users that it cannot name (of other containers) to one overflow user, which is
//! refused.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use async_trait::async_trait;
use rustix::net::{Shutdown, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, lookup_host};

use crate::{Address, BoxedStream, Transport, TransportListener};

/// Idle time before the first keepalive probe.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The number of probes and the interval between them.
const PROBES: (u32, Duration) = (3, Duration::from_secs(5));

/// Unacknowledged data ends the connection after this time. Keepalive works only on idle
/// connections.
const USER_TIMEOUT: Duration = Duration::from_secs(25);

/// The kernel's queue of new connections. A burst of unauthenticated peers must fit: a rank whose
/// first packet is dropped sends it again after a second.
const BACKLOG: u32 = 4096;

/// The overflow user, which the kernel shows for users that it cannot name.
const OVERFLOW_UID: &str = "/proc/sys/kernel/overflowuid";

/// TCP and Unix sockets of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemTransport;

#[async_trait]
impl Transport for SystemTransport {
    async fn listen(&self, address: &Address) -> io::Result<Box<dyn TransportListener>> {
        match address {
            Address::Tcp(host, port) => {
                let listener = bind(host, *port).await?;
                let port = listener.local_addr()?.port();
                Ok(Box::new(Tcp { listener, address: Address::tcp(host.clone(), port) }))
            }
            Address::Local(name) => {
                let listener = UnixListener::bind(abstract_path(name))?;
                Ok(Box::new(Local { listener, address: address.clone() }))
            }
        }
    }

    async fn connect(&self, address: &Address) -> io::Result<BoxedStream> {
        match address {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                tune(&stream)?;
                Ok(Box::new(stream))
            }
            Address::Local(name) => {
                let stream = UnixStream::connect(abstract_path(name)).await?;
                check_user(&stream)?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// Listens at the first usable address of a host.
async fn bind(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut last = None;
    for address in lookup_host((host, port)).await? {
        match listen_at(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        // One socket for both families, whatever the machine's default.
        sockopt::set_ipv6_v6only(socket.as_fd(), false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A forked child may hold the socket. It must not keep listening.
fn shut_down(listener: impl AsFd) {
    let _ = rustix::net::shutdown(listener, Shutdown::Both);
}

impl Drop for Tcp {
    fn drop(&mut self) {
        shut_down(&self.listener);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        shut_down(&self.listener);
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, PROBES.1)?;
    sockopt::set_tcp_keepcnt(socket, PROBES.0)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT.as_millis() as u32)?;
    Ok(())
}

#[derive(Debug)]
struct Tcp {
    listener: TcpListener,
    address: Address,
}

#[async_trait]
impl TransportListener for Tcp {
    async fn accept(&mut self) -> io::Result<(BoxedStream, String)> {
        let (stream, from) = self.listener.accept().await?;
        tune(&stream)?;
        Ok((Box::new(stream), from.to_string()))
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

/// The path form of an abstract socket's name.
fn abstract_path(name: &str) -> String {
    format!("\0{name}")
}

/// Whether this process runs as the overflow user, which stands for several users.
pub fn is_overflow_user() -> bool {
    let nobody = fs::read_to_string(OVERFLOW_UID).ok().and_then(|text| text.trim().parse().ok());
    nobody == Some(rustix::process::geteuid().as_raw())
}

/// Checks that the other end is a process of this user.
fn check_user(stream: &UnixStream) -> io::Result<Option<i32>> {
    let (theirs, ours) = (stream.peer_cred()?, rustix::process::geteuid().as_raw());
    if theirs.uid() == ours && !is_overflow_user() {
        return Ok(theirs.pid());
    }
    let why = format!("it is a process of user {}, and this is user {ours}", theirs.uid());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[derive(Debug)]
struct Local {
    listener: UnixListener,
    address: Address,
}

#[async_trait]
impl TransportListener for Local {
    async fn accept(&mut self) -> io::Result<(BoxedStream, String)> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            match check_user(&stream) {
                Ok(process) => {
                    let from = process.map_or_else(|| "this node".to_owned(), |pid| format!("process {pid}"));
                    return Ok((Box::new(stream), from));
                }
                Err(error) => tracing::debug!(%error, "refused a connection of this node"),
            }
        }
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn exchange(address: &Address) -> Box<dyn TransportListener> {
        let mut listener = SystemTransport.listen(address).await.unwrap();
        let connected = SystemTransport.connect(listener.address()).await;
        let mut ours = connected.unwrap();
        let (mut theirs, from) = listener.accept().await.unwrap();
        assert!(!from.is_empty());
        ours.write_all(b"words").await.unwrap();
        let mut received = [0; 5];
        theirs.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"words");
        listener
    }

    #[tokio::test]
    async fn tcp_and_unix_sockets_carry_bytes() {
        let tcp = exchange(&Address::tcp("127.0.0.1", 0)).await;
        assert!(matches!(tcp.address(), Address::Tcp(_, 1..)));
        let name = Address::local(format!("foreread test {}", std::process::id()));
        let local = exchange(&name).await;
        let taken = SystemTransport.listen(&name).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(local);
        drop(exchange(&name).await);
        let long = SystemTransport.listen(&Address::local("n".repeat(108))).await.unwrap_err();
        assert_eq!(long.kind(), io::ErrorKind::InvalidInput, "{long}");
    }

    /// As a forked child holds it.
    #[tokio::test]
    async fn dropped_listener_ends_even_if_a_child_holds_it() {
        for address in [
            Address::tcp("127.0.0.1", 0),
            Address::local(format!("foreread test child {}", std::process::id())),
        ] {
            let (held, address): (std::os::fd::OwnedFd, Address) = match &address {
                Address::Tcp(host, port) => {
                    let listener = bind(host, *port).await.unwrap();
                    let port = listener.local_addr().unwrap().port();
                    let held = listener.as_fd().try_clone_to_owned().unwrap();
                    let address = Address::tcp(host.clone(), port);
                    drop(Tcp { listener, address: address.clone() });
                    (held, address)
                }
                Address::Local(name) => {
                    let listener = UnixListener::bind(abstract_path(name)).unwrap();
                    let held = listener.as_fd().try_clone_to_owned().unwrap();
                    drop(Local { listener, address: address.clone() });
                    (held, address.clone())
                }
            };
            let error = SystemTransport.connect(&address).await.err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}");
            drop(held);
        }
    }

    #[tokio::test]
    async fn one_socket_accepts_both_address_families() {
        let listener = SystemTransport.listen(&Address::tcp("::", 0)).await.unwrap();
        let Address::Tcp(_, port) = *listener.address() else { panic!("no port") };
        for host in ["127.0.0.1", "::1"] {
            SystemTransport.connect(&Address::tcp(host, port)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn keepalive_detects_a_dead_machine() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tune(&stream).unwrap();
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 25_000);
    }
}
