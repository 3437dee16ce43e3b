//! The rendezvous of ranks, the run, and its end.
//!
//! Rank 0 is the center of a star: every other rank, a follower, has one connection to it and uses
//! its key-value store. A rank puts its part of a key there: the contents of its caches, its
//! progress, or its report. It waits for the key's value, which rank 0 computes from all parts.
//! Requests are idempotent, so that a follower reconnects after a lost connection and sends them
//! again. Samples do not pass through rank 0, and catalogs only once per node. A star is the
//! simplest topology that can name which of a thousand ranks is missing or differs. Its price is
//! that rank 0 is a single point of failure for all collective steps.
//!
//! State machines without I/O decide (`Leader`, `Rank0Steps`, `Follower`). Tasks do the I/O and
//! call them. Tests play them on a seeded scheduler.
//!
//! # States of a follower
//!
//! ```text
//!              backoff: lost connection, retry later, redirect
//!   +-----------------------------+-----------------------+
//!   v                             |                       |
//! DIALING -- handshake, hello --> WAITING -- welcome --> ADMITTED
//!   |                             |                       | share, exchange, start:
//!   | deadline, other token       | refuse, deadline      | a part of each step, and its value
//!   v                             v                       v
//! FAILED <------------------------+----- refuse ------- RUNNING (progress, report, reconnects)
//!                                                         | part of `done`
//!                                                         v
//!                                                       DONE -- value of `done` --> END
//! ```
//!
//! # States of rank 0
//!
//! ```text
//! COLLECTING -- all connected: roster --> STEPS -- start --> RUNNING -- all done, deadline --> ENDED
//!   | deadline, duplicate rank              | deadline, replaced rank, differences, give up
//!   +---------------------------------------+--> FAILED (the reason is sent to all ranks)
//! ```
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | the crate `foreread-launcher` | this rank and the rendezvous address, from the environment |
//! | `endpoint`, `loader_directory`, `node`, `interfaces`, `descriptors` | where a rank listens |
//! | `notice`, `dial` | how a follower finds rank 0: handshake, retries, backoff |
//! | `messages`, `link` | messages and heartbeats, one connection |
//! | `settings`, `joining` | the steps until the start, the same on all ranks: [`RendezvousSteps`] |
//! | `store`, `members`, `leader`, `hub`, `sessions`, `rank0`, `compare` | rank 0 |
//! | `follower`, `follower_driver`, `run_session` | followers, before and after the start |
//! | `shared_catalog` | catalogs, which travel once per node |
//! | `group`, `roster` | the run: [`RunGroup`], and the addresses of all ranks |
//! | `nodes` | the meeting of a job's nodes, without steps |
//!
//! Nothing waits forever. Each step has a deadline. Each connection has a heartbeat every two
//! seconds and a heartbeat timeout of ten. [`RendezvousProgress`] shows the cause of a rank's
//! waiting.

mod compare;
mod descriptors;
mod dial;
mod endpoint;
mod error;
mod follower;
mod follower_driver;
mod group;
mod hub;
mod interfaces;
mod joining;
mod leader;
mod link;
mod loader_directory;
mod members;
mod messages;
mod node;
mod nodes;
mod notice;
mod owned_task;
mod rank0;
mod roster;
mod run_session;
mod sessions;
mod settings;
mod shared_catalog;
mod store;
#[cfg(test)]
mod tests;
mod waiting;

pub use error::{MeetError, MeetErrorKind};
pub use foreread_launcher::{Launched, LauncherEnv, MEET, Rendezvous, TOKEN};
pub use group::{RunEnd, RunGroup};
pub use interfaces::INTERFACE;
pub use joining::RendezvousSteps;
pub use loader_directory::LoaderDirectory;
pub use nodes::NodeMeeting;
pub use notice::given_token;
pub use settings::RendezvousSettings;
pub use shared_catalog::SharedCatalog;
pub use waiting::{RendezvousProgress, WaitingCallback};
