//! Authenticated connections between the processes of a job.
//!
//! A connection begins with a handshake ([`handshake`]). It proves that both ends know the job's
//! token and, for samples, that they are in the same run ([`RunId`]). Then frames follow: a fixed
//! header and its payload ([`frame`]). [`WireProtection`] selects their protection: authenticated
//! by tags, encrypted, or only checksummed between processes of one node. The users of a connection
//! define the meaning of frames.
//!
//! It is a separate crate because not only ranks connect this way. It knows nothing of requests, of
//! rendezvous or of an engine. All code that handles bytes of unauthenticated peers is here.
//! Reading and writing ([`input`], [`output`]) are polled state and not futures, so that one task
//! can do many things at once.

mod address;
mod backoff;
pub mod channel;
pub mod connection;
mod error;
pub mod frame;
pub mod handshake;
pub mod input;
pub mod mac;
mod network;
mod noise_stream;
pub mod output;
mod run_id;
mod session;
pub mod system;
pub mod token;
mod wire;

pub use address::{Address, ParseAddressError};
pub use backoff::Backoff;
pub use channel::AuthenticatedStream;
#[cfg(feature = "testing")]
pub use channel::RawFrames;
pub use connection::{ControlConnection, ControlMessage, MessageReceiver, MessageSender};
pub use error::{WireError, WireErrorKind};
pub use handshake::{Identity, PeerIdentity, Purpose, SampleOffer};
pub use network::{BoxedStream, Duplex, Transport, TransportListener};
pub use run_id::{Nonce, RunId};
pub use session::{Session, SessionBounds, SessionReceiver, SessionSender, SessionWriter};
pub use system::SystemTransport;
pub use token::{Token, WeakTokenError};
pub use wire::{ParseWireError, WireProtection};
