//! Predicts a run's time and memory before it runs, for the command and the Python package.
//!
//! * [`calibrate`] measures storage, memory and disks. A plan with these figures predicts times.
//! * [`PlanReport`] is a planned run as text for people and as JSON for tools.
//!
//! Both are apart from the library because a training program needs neither. The price is one more
//! crate to depend on.
//!
//! ```
//! use foreread::Config;
//! use foreread::plan::{Planned, Sizes};
//! use foreread_estimate::PlanReport;
//!
//! let mut config = Config::default();
//! config.epochs = 10;
//! config.memory = "1GiB".parse()?;
//! let planned = Planned::new(config, &[Sizes::uniform(1000, 1 << 20)])?;
//! assert!(PlanReport::of(&planned, None)?.to_string().starts_with("rank 0 of 1, 10 epochs"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod disk;
mod measure;
mod memory;
mod plan_report;
mod probe;
mod server_probe;
mod server_report;

pub use crate::measure::{CalibrateOptions, CalibrateProgress, CalibrateStage, calibrate};
pub use crate::plan_report::{PlanReport, level_text};
pub use crate::server_report::ServerReport;
