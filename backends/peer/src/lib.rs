//! Samples between the stores of nodes, over connections between the ranks that host them.
//!
//! A rank opens one connection to every rank that it requests samples from. Two ranks that
//! request from each other have two connections, so that the responses of one do not wait for its
//! own requests. Frames have a header of fixed length ([`frame`]). Samples are sent from the memory
//! where they are cached, and received into memory of their exact length. Each connection begins
//! with a handshake: both ends prove that they know the job's token ([`handshake`]) and are in the
//! same run ([`RunId`]). All that follows is authenticated ([`WireProtection`]), except on one
//! node.
//!
//! # Timeouts, heartbeats and retries
//!
//! | event | timeout | consequence |
//! |---|---|---|
//! | connect and handshake, at the requester | 1 s | its requests fail |
//! | handshake of an incoming connection | 5 s | the connection is closed |
//! | no byte from a rank (heartbeat timeout) | 0.65 s | one reconnect, after a jitter of at most 0.2 s |
//! | no byte on the second connection either | 2.5 s in all | all requests to the rank fail |
//! | a request that is not acknowledged | 1 s | that sample fails |
//! | a sample that was acknowledged and does not come | 30 s | that sample fails |
//! | a rank that does not read its responses | 10 s | its connection is closed |
//! | backoff after a failed connection | 0.05 s, doubling to 0.5 s | requests fail at once meanwhile |
//!
//! These failures are [`Transient`](foreread_tier::ErrorKind::Transient): the sample is read
//! elsewhere.
//!
//! # Limits of what other processes can make a rank hold
//!
//! | process | limit |
//! |---|---|
//! | unauthenticated | 64 connections per listener, 108 bytes of each |
//! | a rank that sends requests | 64 Ki requested samples, 4 MiB of responses or one sample |
//! | all ranks together | 32 MiB of responses and one sample for each rank |

mod client;
mod counters;
mod first_of;
pub mod meet;
mod peer_client;
mod pending_auth;
mod server;
mod serving;
#[cfg(test)]
#[path = "../tests/simulation/mod.rs"]
mod simulation;
mod tier_error;
mod timer;

#[cfg(feature = "testing")]
pub use foreread_connection::RawFrames;
pub use foreread_connection::{
    Address, AuthenticatedStream, BoxedStream, ControlConnection, ControlMessage, Duplex, Identity,
    MessageReceiver, MessageSender, Nonce, ParseAddressError, ParseWireError, PeerIdentity, Purpose, RunId,
    SampleOffer, SystemTransport, Token, Transport, TransportListener, WeakTokenError, WireError,
    WireErrorKind, WireProtection, frame, handshake,
};

pub use counters::{PeerCounters, PeerCounts};
pub use peer_client::{PeerClient, PeerClientFactory};
pub use server::PeerServer;
pub use serving::shared::ServerLimits;
