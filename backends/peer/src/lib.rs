//! Samples between ranks.
//!
//! Who asks has a connection of its own to each rank that it asks, and who is asked answers on it; two ranks that ask each
//! other have two, so that neither's answers wait for its own questions. Frames have a header of fixed length
//! ([`frame`]); samples leave the memory where they are kept and arrive in memory of their exact length, without a copy
//! between. Each connection begins with a proof that both ends know the job's token ([`handshake`]).

mod address;
mod asking;
mod chunk;
mod connection;
mod counters;
mod doorway;
mod error;
pub mod frame;
pub mod handshake;
mod input;
pub mod meet;
mod network;
mod output;
mod peer_tier;
mod remote;
mod server;
mod serving;
#[cfg(feature = "testing")]
mod simulated;
mod system;
#[cfg(feature = "tls")]
mod tls;
mod token;

pub use address::{Address, ParseAddressError};
pub use connection::{Connection, Message, Receiver, Sender};
pub use counters::{Counters, Tally};
pub use error::{WireError, WireErrorKind};
pub use handshake::{Greeting, Identity, Purpose};
pub use network::{Duplex, Listener, Network, Stream};
pub use peer_tier::PeerTier;
pub use remote::{Asker, Remote};
pub use server::{Server, Settings};
#[cfg(feature = "testing")]
pub use simulated::Simulated;
pub use system::System;
#[cfg(feature = "tls")]
pub use tls::{Encrypted, TlsFiles};
pub use token::{Token, WeakTokenError};
