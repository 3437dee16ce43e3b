//! The native module of the Python package `foreread`.
//!
//! * [`PyLoader`] yields [`PyBatch`]es of [`PySample`]s. Python reads their bytes without a copy.
//! * Importing starts no thread and no runtime. Both start with the first loader and belong to its
//!   process (`process_local`).
//! * Rust threads never touch Python objects. Their log lines wait for the next call (`logs`).
//! * No wait holds the GIL. Every wait checks for signals ten times per second (`interrupt`).
//! * One wheel serves all CPythons with a GIL from 3.11 on. A free-threaded interpreter needs its
//!   own wheel, which enables the GIL again on import. No code relies on the GIL knowingly, but
//!   running without it is untested.
//! * Loaders use `Registry::with_defaults()`: directories, S3, Google and Azure, and OpenDAL's
//!   schemes with the feature `opendal`. A custom backend cannot be registered from Python. Each
//!   read would need the GIL, and a Rust trait object has no stable ABI that a second wheel could
//!   pass. A custom store therefore needs a wheel built from this crate with the backend added to
//!   that registry.
//!
//! Code that needs no Rust is in `python/foreread`.

mod batch;
mod catalog;
mod command;
mod errors;
mod files;
mod images;
mod interrupt;
mod json;
mod lend;
mod loader;
mod logs;
mod metrics;
mod monitor;
mod node_store;
mod page_cache;
mod planning;
mod process_local;
mod run;
mod sample;
mod settings;
mod share;
mod source;
mod tables;
mod values;

pub use batch::PyBatch;
pub use catalog::PyCatalog;
pub use images::{PyImagePool, PyPendingImages, PyPixelBuffer};
pub use lend::PyBatchLender;
pub use loader::PyLoader;
pub use page_cache::PyPageCacheReader;
pub use planning::Compared;
pub use sample::{PyField, PySample};
pub use share::{ShareClient, SharedSample};
pub use source::PySource;

/// The native module of the package `foreread`.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use std::time::Duration;

    use pyo3::prelude::*;

    #[pymodule_export]
    use super::catalog::index;
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::files::{catalog_of, hidden_file, modified};
    #[pymodule_export]
    use super::images::rank_cores;
    #[pymodule_export]
    use super::metrics::{enable_metrics, render_metrics};
    #[pymodule_export]
    use super::node_store::{PyNodeStore, node_token};
    #[pymodule_export]
    use super::planning::{calibrate, compare, plan_of};
    #[pymodule_export]
    use super::{
        Compared, PyBatch, PyBatchLender, PyCatalog, PyField, PyImagePool, PyLoader, PyPageCacheReader,
        PyPendingImages, PyPixelBuffer, PySample, PySource, ShareClient, SharedSample,
    };
    use crate::{logs, run};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        foreread::Interface::Python.set();
        module.add("MAX_EPOCHS", foreread::Config::MAX_EPOCHS)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Disables log lines of the library below `level` (one of logging's numbers).
    #[pyfunction]
    fn set_log_level(level: u8) {
        logs::set_level(level);
    }

    /// Closes all loaders of this process, each within `seconds`. Called when the interpreter
    /// exits.
    #[pyfunction]
    fn close_all(py: Python<'_>, seconds: f64) -> PyResult<()> {
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        py.detach(|| run::close_all(timeout));
        logs::drain(py)
    }
}
