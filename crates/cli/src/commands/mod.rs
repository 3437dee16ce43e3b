//! One module a subcommand: read the settings, do the work, print the result.

pub mod cache;
pub mod calibrate;
pub mod demo;
pub mod index;
pub mod load;
pub mod order;
pub mod plan;
pub mod simulate;
#[cfg(feature = "peer")]
pub mod token;
