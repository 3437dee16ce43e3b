//! The machine's own sockets.
//!
//! A dead machine says nothing, and a connection on which nobody speaks would stay for ever; keepalive by the kernel ends
//! it within half a minute, at the price of a packet now and then. Small frames leave at once (`TCP_NODELAY`): what is worth
//! sending together is put together before.
//!
//! A Unix socket lies in a directory that its user alone may enter, which is checked, because the path is a promise about
//! who can be there. Paths of sockets are bounded by the kernel at 107 bytes and directories of jobs are often deeper;
//! such a socket is reached by way of its opened directory.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, lookup_host};

use crate::{Address, Listener, Network, Stream};

/// Silence after which the kernel asks whether the other end is there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// How often it asks, this long apart.
const PROBES: (u32, Duration) = (3, Duration::from_secs(5));

/// What was sent and is not taken by then ends the connection: keepalive asks only where nothing is under way.
const UNTAKEN: Duration = Duration::from_secs(25);

/// Connections that the kernel takes for us before we do. A burst of strangers must fit: a rank whose first packet finds
/// no place sends it again after a second.
const BACKLOG: u32 = 4096;

/// The longest path that the kernel takes for a socket.
const LONGEST_PATH: usize = 107;

/// The machine's own sockets: TCP and Unix.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

#[async_trait]
impl Network for System {
    async fn listen(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        match address {
            Address::Tcp(host, port) => {
                let listener = bind(host, *port).await?;
                let port = listener.local_addr()?.port();
                Ok(Box::new(Tcp { listener, address: Address::tcp(host.clone(), port) }))
            }
            Address::Unix(path) => Ok(Box::new(Unix::bind(path).await?)),
        }
    }

    async fn connect(&self, address: &Address) -> io::Result<Stream> {
        match address {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                tune(&stream)?;
                Ok(Box::new(stream))
            }
            Address::Unix(path) => {
                let place = Place::of(path)?;
                Ok(Box::new(UnixStream::connect(place.path()).await?))
            }
        }
    }
}

/// Listens at the first of a host's addresses that can be listened at.
async fn bind(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut last = None;
    for address in lookup_host((host, port)).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, PROBES.1)?;
    sockopt::set_tcp_keepcnt(socket, PROBES.0)?;
    sockopt::set_tcp_user_timeout(socket, UNTAKEN.as_millis() as u32)?;
    Ok(())
}

#[derive(Debug)]
struct Tcp {
    listener: TcpListener,
    address: Address,
}

#[async_trait]
impl Listener for Tcp {
    async fn accept(&mut self) -> io::Result<(Stream, String)> {
        let (stream, from) = self.listener.accept().await?;
        tune(&stream)?;
        Ok((Box::new(stream), from.to_string()))
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

/// A path that the kernel takes.
struct Place {
    path: PathBuf,
    /// Open as long as the path leads through it.
    _directory: Option<File>,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= LONGEST_PATH {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no path of a socket"));
        };
        let directory = File::open(directory)?;
        let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        if short.as_os_str().len() > LONGEST_PATH {
            let name = name.display();
            let error = format!("{name} is too long for the name of a socket");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        Ok(Self { path: short, _directory: Some(directory) })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

struct Unix {
    listener: UnixListener,
    address: Address,
    path: PathBuf,
    /// Which file is ours: another process may have put its own in its place.
    inode: u64,
}

impl Unix {
    async fn bind(path: &Path) -> io::Result<Self> {
        let none =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no directory", path.display()));
        guard(path.parent().ok_or_else(none)?)?;
        let place = Place::of(path)?;
        let listener = match UnixListener::bind(place.path()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path, place.path()).await?;
                UnixListener::bind(place.path())?
            }
            bound => bound?,
        };
        let inode = fs::symlink_metadata(path)?.ino();
        Ok(Self { listener, address: Address::unix(path), path: path.to_owned(), inode })
    }
}

/// Sees to it that nobody else can enter `directory`.
fn guard(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let user = rustix::process::geteuid().as_raw();
    let refused = |why: String| {
        let directory = directory.display();
        let error =
            format!("{directory} is no place for a socket: {why}; it should be a directory of mode 0700");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, error))
    };
    if !found.is_dir() {
        return refused("it is no directory".to_owned());
    }
    if found.uid() != user {
        return refused(format!("it belongs to user {} and this is user {user}", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        return refused(format!("others may enter it (mode {:04o})", found.mode() & 0o7777));
    }
    Ok(())
}

/// Removes what a process that is gone has left behind.
async fn remove_stale(path: &Path, short: &Path) -> io::Result<()> {
    let in_use = |what: &str| io::Error::new(io::ErrorKind::AddrInUse, format!("{} {what}", path.display()));
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(in_use("is there and is no socket"));
    }
    match UnixStream::connect(short).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(in_use("is another process's")),
    }
}

impl fmt::Debug for Unix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unix").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for Unix {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path); // one that stays is found to be stale
        }
    }
}

#[async_trait]
impl Listener for Unix {
    async fn accept(&mut self) -> io::Result<(Stream, String)> {
        let (stream, _) = self.listener.accept().await?;
        let process = stream.peer_cred().ok().and_then(|credentials| credentials.pid());
        let from = process.map_or_else(|| "this node".to_owned(), |process| format!("process {process}"));
        Ok((Box::new(stream), from))
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn talk(address: &Address) -> Box<dyn Listener> {
        let mut listener = System.listen(address).await.unwrap();
        let connected = System.connect(listener.address()).await;
        let mut ours = connected.unwrap();
        let (mut theirs, from) = listener.accept().await.unwrap();
        assert!(!from.is_empty());
        ours.write_all(b"words").await.unwrap();
        let mut heard = [0; 5];
        theirs.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"words");
        listener
    }

    #[tokio::test]
    async fn both_kinds_of_sockets_carry_words() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let tcp = talk(&Address::tcp("127.0.0.1", 0)).await;
        assert!(matches!(tcp.address(), Address::Tcp(_, 1..)));
        let path = directory.path().join("0");
        let unix = talk(&Address::unix(&path)).await;
        assert!(path.exists());
        drop(unix);
        assert!(!path.exists(), "a socket goes with its listener");
    }

    #[tokio::test]
    async fn paths_longer_than_the_kernel_takes_are_reached() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("d".repeat(120)).join("e".repeat(50));
        fs::create_dir_all(deep.parent().unwrap()).unwrap();
        drop(talk(&Address::unix(deep.join("0"))).await);
        assert_eq!(fs::metadata(&deep).unwrap().mode() & 0o777, 0o700, "made for its user alone");
        let error = System.listen(&Address::unix(deep.join("n".repeat(100)))).await.unwrap_err();
        assert!(error.to_string().ends_with("too long for the name of a socket"), "{error}");
    }

    #[tokio::test]
    async fn what_a_dead_process_left_is_no_obstacle_and_a_living_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // leaves its file
        let living = talk(&Address::unix(&path)).await;
        let error = System.listen(&Address::unix(&path)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("is another process's"), "{error}");
        drop(living);
        fs::write(&path, "mine").unwrap();
        assert!(System.listen(&Address::unix(&path)).await.unwrap_err().to_string().contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn a_directory_that_others_may_enter_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o750)).unwrap();
        let error = System.listen(&Address::unix(directory.path().join("0"))).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("others may enter it (mode 0750)"), "{error}");
        let link = tempfile::tempdir().unwrap();
        fs::set_permissions(link.path(), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(link.path(), link.path().join("link")).unwrap();
        let error = System.listen(&Address::unix(link.path().join("link/0"))).await.unwrap_err();
        assert!(error.to_string().contains("it is no directory"), "{error}");
    }

    #[tokio::test]
    async fn a_dead_machine_is_noticed_by_the_kernel() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tune(&stream).unwrap();
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 25_000);
    }
}
