//! One module per subcommand: it reads the settings, does the work, and prints the result.

#[cfg(feature = "share")]
pub mod agent;
pub mod cache;
pub mod calibrate;
pub mod completions;
#[cfg(feature = "share")]
pub mod control;
#[cfg(feature = "share")]
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
#[cfg(feature = "share")]
pub mod token;
pub mod unchanged_plan;
#[cfg(feature = "share")]
pub mod warm;
