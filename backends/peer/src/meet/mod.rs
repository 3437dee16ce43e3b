//! How ranks meet: who they are, where rank 0 is, what only they know.

mod error;
mod launcher;
mod nodelist;
mod secret;

pub use error::{MeetError, MeetErrorKind};
pub use launcher::{Launched, MEET, Rendezvous, Surroundings};
pub use nodelist::expand as expand_nodes;
pub use secret::{TOKEN, given_token};
