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
mod table;

pub use crate::config::{config, format, origin_parallelism};
pub use crate::knobs::{Knobs, Provenance, warn_of_unknown_variables};
pub use crate::table::{
    ARGUMENT_KNOBS, COMMAND_KNOBS, KNOBS, Knob, KnobGroup, KnobKind, LAUNCHERS, OTHER_VARIABLES, VARIABLES,
    Variable, all_knobs, find_knob, unknown_variables,
};
