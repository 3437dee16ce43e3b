//! Samples between ranks.
//!
//! Who asks has a connection of its own to each rank that it asks, and who is asked answers on it; two ranks that ask each
//! other have two, so that neither's answers wait for its own questions. Frames have a header of fixed length
//! ([`frame`]); samples leave the memory where they are kept, and arrive in memory of their exact length. Each connection
//! begins with a proof that both ends know the job's token ([`handshake`]) and are in the same run ([`RunId`]), and all that
//! follows is authenticated ([`Wire`]) but on one node.
//!
//! # How long anybody waits
//!
//! | for what | at most | then |
//! |---|---|---|
//! | a connection and its handshake, at the end that asks | 1 s | what was asked fails |
//! | whoever connects to say who he is | 5 s | the connection is closed |
//! | a rank that says nothing at all | 0.65 s | one second connection, after a jitter of 0.2 s at most |
//! | the same, which says nothing on the second connection either | 2.5 s in all | all that it was asked fails |
//! | a rank that says nothing of one sample | 1 s | that sample fails |
//! | a sample that is said to be on its way | 30 s | that sample fails |
//! | a rank that does not take what it asked for | 10 s | its connection is closed |
//! | a new connection after one failed | 0.05 s, doubling to 0.5 s | until then what is asked fails at once |
//!
//! What fails is [`Transient`](foreread_tier::ErrorKind::Transient): the sample is read elsewhere.
//!
//! # What others can make a rank hold
//!
//! | who | what |
//! |---|---|
//! | strangers | 64 connections a listener, 108 bytes of each |
//! | a rank that asks | 64 Ki questions; 4 MiB of answers, or one sample |
//! | all ranks together | 32 MiB of answers and one sample for each of them |

mod asking;
mod batch;
mod counters;
mod doorway;
pub mod meet;
mod remote;
mod server;
mod serving;
#[cfg(test)]
#[path = "../tests/simulation/mod.rs"]
mod simulation;
mod timer;

#[cfg(feature = "testing")]
pub use foreread_connection::RawFrames;
pub use foreread_connection::{
    Address, Channel, Connection, Duplex, Greeting, Identity, Listener, Message, Network, Nonce, Offer,
    ParseAddressError, ParseWireError, Purpose, Receiver, RunId, Sender, Stream, System, Token,
    WeakTokenError, Wire, WireError, WireErrorKind, frame, handshake,
};
use foreread_connection::{channel, connection, input, output, system, tags, token};

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use counters::{Counters, Tally};
pub use remote::{Asker, Remote};
pub use server::{Server, Settings};

/// Locks a mutex. A panic of another holder is not passed on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
