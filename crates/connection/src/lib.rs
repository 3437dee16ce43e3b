//! Authenticated connections between the processes of a job.
//!
//! A connection begins with a proof that both ends know the job's token ([`handshake`]), and for samples that they are in
//! the same run ([`RunId`]). What follows are frames of a fixed header and as many bytes as it says ([`frame`]), protected as
//! [`Wire`] says: authenticated by tags, sealed, or checksummed between processes of one node. What a frame means is the matter
//! of who uses the connection.
//!
//! It is a crate of its own because ranks are not all who connect so, and because nothing here knows of samples that are
//! asked for, of meetings or of an engine: whoever changes what a stranger may send finds all of it in one place. Reading and
//! writing ([`input`], [`output`]) are state that is polled and no futures, so that a task which does many things at once is
//! never within one of them.

mod address;
pub mod channel;
pub mod connection;
mod error;
pub mod frame;
pub mod handshake;
pub mod input;
mod network;
pub mod output;
mod records;
mod run_id;
pub mod system;
pub mod tags;
pub mod token;
mod wire;

pub use address::{Address, ParseAddressError};
pub use channel::Channel;
#[cfg(feature = "testing")]
pub use channel::RawFrames;
pub use connection::{Connection, Message, Receiver, Sender};
pub use error::{WireError, WireErrorKind};
pub use handshake::{Greeting, Identity, Offer, Purpose};
pub use network::{Duplex, Listener, Network, Stream};
pub use run_id::{Nonce, RunId};
pub use system::System;
pub use token::{Token, WeakTokenError};
pub use wire::{ParseWireError, Wire};
