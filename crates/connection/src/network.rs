//! What carries bytes between ranks: one seam for sockets and a network in memory.
//!
//! Everything above works on a boxed stream. The price is a virtual call for each read and write, some nanoseconds beside
//! a system call; the gain is that a thousand ranks and a cut cable can be played through in one process.

use std::io;

use async_trait::async_trait;
use std::fmt::Debug;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Address;

/// A stream of bytes to another process, both ways.
pub type Stream = Box<dyn Duplex>;

/// What a [`Stream`] can do.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Duplex for T {}

/// Opens connections and takes them.
#[async_trait]
pub trait Network: Debug + Send + Sync + 'static {
    /// Listens at `address` until the listener is dropped.
    ///
    /// # Errors
    /// If the address is in use, not of this machine, or may not be used.
    async fn listen(&self, address: &Address) -> io::Result<Box<dyn Listener>>;

    /// Connects to who listens at `address`. It may take as long as the network takes: callers bound it.
    ///
    /// # Errors
    /// If nobody listens there, or it cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was begun.
    async fn connect(&self, address: &Address) -> io::Result<Stream>;
}

/// Takes connections.
#[async_trait]
pub trait Listener: Debug + Send + 'static {
    /// The next connection, and where it comes from in a few words. Returns at once where one waits.
    ///
    /// # Errors
    /// If the process is out of descriptors or memory, or the connection is gone already; the next call may succeed.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection.
    async fn accept(&mut self) -> io::Result<(Stream, String)>;

    /// Where it listens: with the port that it got, where it asked for any.
    fn address(&self) -> &Address;
}
