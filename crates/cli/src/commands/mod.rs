//! One module per subcommand: it reads the settings, does the work, and prints the result.

#[cfg(feature = "agent")]
pub mod agent;
pub mod cache;
pub mod calibrate;
pub mod completions;
#[cfg(feature = "agent")]
pub mod control;
#[cfg(feature = "agent")]
mod daemon;
pub mod demo;
pub mod index;
pub mod load;
pub mod man;
pub mod order;
pub mod plan;
#[cfg(target_os = "linux")]
pub mod run;
pub mod simulate;
#[cfg(feature = "peer")]
pub mod token;
pub mod unchanged_plan;
#[cfg(feature = "agent")]
pub mod warm;
