//! The transport interface between ranks, for sockets and for a simulated network in memory.
//!
//! All other code works on a boxed stream. The price is a virtual call per read and write, some
//! nanoseconds next to a system call. The gain is that one process can simulate a thousand ranks
//! and cut cables.

use std::io;

use async_trait::async_trait;
use std::fmt::Debug;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Address;

/// A bidirectional byte stream to another process.
pub type BoxedStream = Box<dyn Duplex>;

/// The interface of a [`BoxedStream`].
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Duplex for T {}

/// Listens and connects.
#[async_trait]
pub trait Transport: Debug + Send + Sync + 'static {
    /// Listens at `address` until the listener is dropped.
    ///
    /// # Errors
    /// If the address is in use, not of this machine, or not permitted.
    async fn listen(&self, address: &Address) -> io::Result<Box<dyn TransportListener>>;

    /// Connects to `address`. The caller sets a timeout.
    ///
    /// # Errors
    /// If the connection is refused or the address is unreachable.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    async fn connect(&self, address: &Address) -> io::Result<BoxedStream>;
}

/// Accepts connections.
#[async_trait]
pub trait TransportListener: Debug + Send + 'static {
    /// The next connection, and its origin for messages. Returns at once if one is waiting.
    ///
    /// # Errors
    /// If the process lacks descriptors or memory, or the connection is already closed. The next
    /// call may succeed.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection.
    async fn accept(&mut self) -> io::Result<(BoxedStream, String)>;

    /// The address with the actual port, if any free port was requested.
    fn address(&self) -> &Address;
}
