//! What the launcher of a job has told this process in its environment: rank, world size, node, and where ranks can meet.
//!
//! Pure functions of the environment, in a crate without sockets or a runtime: how many ranks share a node decides how
//! much memory and disk each may take, whether or not the program was built to connect them. The price is one more
//! crate between the facade and `foreread-peer`.

mod launched;
mod nodelist;

pub use launched::{Launched, MEET, Rendezvous, Surroundings};

/// The variable with the job's secret, which all ranks have.
pub const TOKEN: &str = "FOREREAD_TOKEN";

/// Why the environment cannot be used: one line that names the variable, the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError(String);

impl LaunchError {
    pub(crate) fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LaunchError {}
