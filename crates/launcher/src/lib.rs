//! Detects a job's launcher from the environment: rank, world size, node, and rendezvous.
//!
//! These are pure functions of the environment, in a crate without sockets or a runtime. The number
//! of ranks per node decides how much memory and disk each may take, even in a program without the
//! network feature. The price is one more crate between the facade and `foreread-peer`.

mod interfaces;
mod launched;
mod nodelist;

pub use interfaces::{INTERFACE, InterfaceFilter};
pub use launched::{Launched, LauncherEnv, MEET, Rendezvous};

/// The variable with the job's token, equal on all ranks.
pub const TOKEN: &str = "FOREREAD_TOKEN";

/// An invalid environment: one line with the variable, the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LaunchError(String);

impl LaunchError {
    pub(crate) fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}
