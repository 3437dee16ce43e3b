//! Sockets: messages, descriptor passing, and the identity of the peer.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socket_with,
};

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

fn new() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Listens at `address`.
pub(crate) fn listen(address: &SocketAddrUnix) -> Result<OwnedFd> {
    let socket = new()?;
    rustix::net::bind(&socket, address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to `address`. [`Errno::AGAIN`] if the backlog is full.
pub(crate) fn connect(address: &SocketAddrUnix) -> Result<OwnedFd> {
    let socket = new()?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// Accepts the next connection.
pub(crate) fn accept(listener: &OwnedFd) -> Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Sends one message. [`Errno::AGAIN`] if the socket is full.
pub(crate) fn send_message(socket: &OwnedFd, message: &[u8]) -> Result<()> {
    send(socket, message, SEND_FLAGS).map(drop)
}

/// Sends one message made of two parts.
pub(crate) fn send_parts(socket: &OwnedFd, head: &[u8], rest: &[u8]) -> Result<()> {
    let parts = [IoSlice::new(head), IoSlice::new(rest)];
    sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SEND_FLAGS).map(drop)
}

/// Sends one message with a descriptor.
pub(crate) fn send_with_fd(socket: &OwnedFd, message: &[u8], descriptor: BorrowedFd<'_>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SEND_FLAGS).map(drop)
}

/// Receives one message into `buffer` and returns its length. Zero at the end, and more than the
/// buffer's size for a truncated message. The kernel drops descriptors that come with it.
pub(crate) fn receive_message(socket: &OwnedFd, buffer: &mut [u8]) -> Result<usize> {
    let (_, length) = recv(socket, buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
    Ok(length)
}

/// Receives one message with its descriptor. Its length is as that of [`receive_message`].
pub(crate) fn receive_with_fd(socket: &OwnedFd, buffer: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
    let length = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?.bytes;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    Ok((length, descriptor))
}

/// The process at the other end, which connected or listened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCredentials {
    /// Its pid. Zero if it cannot be seen from here.
    pub(crate) process: i32,
    /// Its user.
    pub(crate) user: u32,
}

/// Returns the peer's credentials from the kernel.
pub(crate) fn peer_credentials(socket: &OwnedFd) -> Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket` is borrowed. The kernel writes at most
    // `length` bytes to `found`, and the new length to `length`. `found` is a plain structure of
    // three numbers for which all bit patterns are valid. Both live here.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(last_error());
    }
    Ok(PeerCredentials { process: found.pid, user: found.uid })
}

/// The pidfd of the peer, from Linux 6.5 on. Unlike the pid it cannot belong to another process
/// later, and it exists where the pid cannot be seen.
pub(crate) fn peer_pidfd(socket: &OwnedFd) -> Result<OwnedFd> {
    let mut found: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket` is borrowed. The kernel writes at most
    // `length` bytes to `found`, a number, and the new length to `length`. Both live here.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    match done {
        // SAFETY: the kernel has just made this descriptor for the call, so nothing else owns it.
        0 if found >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(found) }),
        0 => Err(Errno::NODATA),
        _ => Err(last_error()),
    }
}

/// `left` as a `Timespec`.
pub(crate) fn timeout(left: Duration) -> Timespec {
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The user id of this process.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a user has no id in this process's user namespace. Outside of one it is a user like any
/// other.
pub(crate) fn is_unknown(user: u32) -> bool {
    const OVERFLOW: u32 = 65_534;
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    user == OVERFLOW && !is_initial
}

/// Whether `peer` is the user `own`.
pub(crate) fn is_same_user(peer: PeerCredentials, own: u32) -> bool {
    peer.user == own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_credentials_come_from_the_kernel() {
        let address = crate::address::Address::new().unwrap().socket().unwrap();
        let listener = listen(&address).unwrap();
        let there = connect(&address).unwrap();
        let here = accept(&listener).unwrap();
        for socket in [&there, &here] {
            let peer_credentials = peer_credentials(socket).unwrap();
            assert_eq!(
                (peer_credentials.process as u32, peer_credentials.user),
                (std::process::id(), own_user())
            );
            assert!(
                is_same_user(peer_credentials, own_user()) && !is_same_user(peer_credentials, own_user() + 1)
            );
        }
    }
}
