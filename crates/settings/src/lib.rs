//! The settings of a run as text, for the command and the Python package: from arguments, the
//! environment and `foreread.toml`, each with its source.
//!
//! The library takes typed values ([`foreread::Config`]) and reads no environment. Programs with
//! settings as text gather them here, so that each mistake is reported in one way.
//!
//! ```
//! use std::path::Path;
//!
//! use foreread_settings::{Knobs, config};
//!
//! let arguments = [("memory", "4GiB".to_owned())];
//! let environment = |name: &str| (name == "FOREREAD_SEED").then(|| "7".to_owned());
//! let knobs = Knobs::gather(arguments, environment, Path::new("no such file"))?;
//! let config = config(&knobs)?;
//! assert_eq!((config.seed, config.batch_size), (7, 64));
//! # Ok::<(), foreread::Error>(())
//! ```

pub mod calibration;
mod config;
mod knobs;
pub mod reader;
mod table;

pub use crate::config::{config, config_of};
pub use crate::knobs::{Knobs, Provenance, warn_of_unknown_variables};
pub use crate::table::{
    KNOBS, Knob, KnobGroup, KnobKind, KnobType, LAUNCHERS, OTHER_VARIABLES, VARIABLES, Variable, find_knob,
    knobs_of, unknown_variables,
};
