//! How ranks meet, stay in touch, and part.
//!
//! Rank 0 is the middle of a star: every other rank has one connection to it, on which it introduces itself, gets the
//! catalog, says what its caches hold, compares what it has computed, and later says how far it is and that it is done.
//! Samples do not pass through it. A star is the simplest shape that can say which of a thousand ranks is missing or
//! differs in what; its price is that rank 0 sends the catalog as often as there are ranks, and that what concerns all ends
//! with rank 0.
//!
//! | module | what it is about |
//! |---|---|
//! | the crate `foreread-launcher` | who this rank is and where ranks meet, from the environment |
//! | `secret`, `listen`, `dial`, `node` | the token, where a rank listens, how it finds rank 0 |
//! | `messages`, `link` | what is said, on one connection |
//! | `joining` | the steps until the start, the same on all ranks: [`Joining`] |
//! | `hub`, `seats`, `attend`, `first`, `compare` | rank 0's side |
//! | `other`, `run` | the others' side, before and after the start |
//! | `group`, `roster` | the run: [`Group`], and who is where |
//!
//! Nothing waits for ever: each step has a deadline, each connection says something every two seconds and is given up
//! after ten of silence, and what is waited for is shown ([`Waiting`]).

mod attend;
mod compare;
mod dial;
mod error;
mod first;
mod group;
mod hub;
mod joining;
mod link;
mod listen;
mod messages;
mod node;
mod other;
mod roster;
mod run;
mod seats;
mod secret;
mod waiting;

use foreread_launcher as launcher;

pub use error::{MeetError, MeetErrorKind};
pub use group::{Group, Left};
pub use joining::{Joining, Settings};
pub use launcher::{Launched, MEET, Rendezvous, Surroundings, TOKEN};
pub use secret::given_token;
pub use waiting::{Progress, Waiting};
