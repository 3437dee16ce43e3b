//! How ranks meet, stay in touch, and part.
//!
//! Rank 0 is the middle of a star: every other rank has one connection to it and uses its key-value store. A rank puts its
//! part of a key there (what its caches hold, what it has computed, its report) and waits for the key's value, which
//! rank 0 makes of all parts. Requests may be repeated, so a connection that breaks is made again and nothing is lost.
//! Samples do not pass through it, and catalogs once per node. A star is the simplest shape that can say which of a thousand
//! ranks is missing or differs in what; its price is that what concerns all ends with rank 0.
//!
//! State machines without I/O decide (`leader`, `first::Steps`, `follower`), and tasks for sockets call them. Tests play them
//! on a seeded scheduler.
//!
//! | module | what it is about |
//! |---|---|
//! | the crate `foreread-launcher` | who this rank is and where ranks meet, from the environment |
//! | `ground`, `notice`, `board`, `dial`, `node`, `interfaces`, `descriptors` | where a rank listens, how it finds rank 0, what it may open |
//! | `messages`, `link` | what is said, on one connection |
//! | `settings`, `joining` | the steps until the start, the same on all ranks: [`Joining`] |
//! | `store`, `members`, `leader`, `hub`, `sessions`, `first`, `compare` | rank 0's side |
//! | `follower`, `member`, `run` | the others' side, before and after the start |
//! | `bulk` | catalogs, which travel once per node |
//! | `group`, `roster` | the run: [`Group`], and who is where |
//!
//! Nothing waits for ever: each step has a deadline, each connection has a heartbeat every two seconds and is given up
//! after ten of silence, and what is waited for is shown ([`Waiting`]).

mod board;
mod bulk;
mod compare;
mod descriptors;
mod dial;
mod error;
mod first;
mod follower;
mod ground;
mod group;
mod hub;
mod interfaces;
mod joining;
mod leader;
mod link;
mod member;
mod members;
mod messages;
mod node;
mod notice;
mod roster;
mod run;
mod sessions;
mod settings;
mod store;
#[cfg(test)]
mod tests;
mod waiting;

use foreread_launcher as launcher;

pub use board::Board;
pub use bulk::Bulk;
pub use error::{MeetError, MeetErrorKind};
pub use group::{Group, Left};
pub use interfaces::INTERFACE;
pub use joining::Joining;
pub use launcher::{Launched, MEET, Rendezvous, Surroundings, TOKEN};
pub use notice::given_token;
pub use settings::Settings;
pub use waiting::{Progress, Waiting};
