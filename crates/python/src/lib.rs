//! The native half of the Python package `foreread`.
//!
//! * [`Loader`] yields [`Batch`]es of [`Sample`]s, whose bytes Python reads where they lie.
//! * Nothing is made at import: no thread, no runtime. Both come with the first loader, and belong to the process that made it
//!   (`here`).
//! * Threads of Rust never touch Python's objects. What they have to say waits for the next call (`logs`).
//! * No wait holds the interpreter's lock, and every wait looks for signals ten times a second (`waiting`).
//! * One wheel is for all CPythons from 3.11 on that have that lock. A free-threaded one takes a wheel of its own, and has the lock
//!   turned on when it imports this: nothing here leans on it knowingly, but nothing was ever tried without.
//!
//! What needs no Rust is written in Python, beside this crate (`python/foreread`).

mod allocator;
mod batch;
mod catalog;
mod engine;
mod errors;
mod files;
mod here;
mod json;
mod loader;
mod logs;
mod metrics;
mod outlooks;
mod sample;
mod settings;
mod share;
mod source;
mod waiting;
mod watch;

pub use batch::Batch;
pub use catalog::Catalog;
pub use loader::Loader;
pub use outlooks::Compared;
pub use sample::{Field, Sample};
pub use share::{ShareClient, SharedSample};
pub use source::Source;

/// The native half of `foreread`.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use std::time::Duration;

    use pyo3::prelude::*;

    #[pymodule_export]
    use super::catalog::index;
    #[pymodule_export]
    use super::files::{catalog_of, hidden_file, modified};
    #[pymodule_export]
    use super::metrics::{enable_metrics, render_metrics};
    #[pymodule_export]
    use super::outlooks::{calibrate, compare, plan_of};
    #[pymodule_export]
    use super::{Batch, Catalog, Compared, Field, Loader, Sample, ShareClient, SharedSample, Source};
    use crate::{engine, logs};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("MOST_EPOCHS", foreread::Config::MAX_EPOCHS)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Lines of the library below `level` (logging's numbers) are not made.
    #[pyfunction]
    fn set_log_level(level: u8) {
        logs::set_level(level);
    }

    /// Ends all loaders of this process, each within `seconds`; for the interpreter's end.
    #[pyfunction]
    fn close_all(py: Python<'_>, seconds: f64) -> PyResult<()> {
        let at_most = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        py.detach(|| engine::close_all(at_most));
        logs::drain(py)
    }
}
