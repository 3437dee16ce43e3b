//! `PageCacheReader` in Python: read-ahead for programs that open files themselves.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foreread::SampleId;
use foreread::cache::PageCacheReader;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::ExceptionClass;
use crate::interrupt;
use crate::process_local::ProcessLocal;
use crate::run::{Closable, ClosableSlot};
use crate::source::PySource;

/// Reads files of an announced order into the kernel's page cache, for a program that opens them
/// itself.
#[pyclass(name = "PageCacheReader", frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct PyPageCacheReader {
    slot: ProcessLocal<Arc<ClosableSlot<PageCacheReader>>>,
}

impl PyPageCacheReader {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&PageCacheReader) -> T + Send,
    ) -> PyResult<Option<T>> {
        Ok(self.slot.get("PageCacheReader")?.with(py, work))
    }
}

#[pymethods]
impl PyPageCacheReader {
    /// A reader of the files of a source below the directory `root`. None if the source has caches
    /// or limits of its own, or the kernel does not cache the files.
    #[staticmethod]
    fn of(source: &PySource, root: PathBuf) -> PyResult<Option<Self>> {
        let source = source.open_samples()?;
        if !source.uses_page_cache_alone() {
            return Ok(None);
        }
        let catalog = source.catalog().clone();
        let path = move |id| catalog.path(SampleId(id)).ok().map(|path| path.into_owned());
        let reader = PageCacheReader::new(&root, source.look_ahead(), path)
            .map_err(|error| ExceptionClass::Error.with(format!("{}: {error}", root.display())))?;
        Ok(Some(Self { slot: ClosableSlot::new(reader) }))
    }

    /// Replaces the order of future uses: a buffer of 64-bit integers. Negative ones are other
    /// files.
    fn announce(&self, py: Python<'_>, order: &Bound<'_, PyAny>) -> PyResult<()> {
        let order = PyBuffer::<i64>::get(order)?.to_vec(py)?;
        self.with(py, |reader| reader.announce(order)).map(|_| ())
    }

    /// Notes that the uses before this position have begun.
    fn advance(&self, py: Python<'_>, position: usize) -> PyResult<()> {
        self.with(py, |reader| reader.advance(position)).map(|_| ())
    }

    /// Files that were cached and that were read ahead, the bytes of the latter, and whether few
    /// are looked at now.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.with(py, PageCacheReader::counts)?.unwrap_or_default();
        let found = PyDict::new(py);
        found.set_item("cached", counts.cached)?;
        found.set_item("read_ahead", counts.read_ahead)?;
        found.set_item("bytes", counts.bytes)?;
        found.set_item("is_aside", counts.is_aside)?;
        Ok(found)
    }

    /// Ends its threads.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let slot = Arc::clone(self.slot.get("PageCacheReader")?);
        interrupt::run_interruptible(py, Duration::ZERO, move |interrupted| {
            slot.close(Duration::ZERO, interrupted)
        })
    }
}
