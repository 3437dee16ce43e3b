//! `foreread.Catalog`: which samples a dataset has, in which order, and where their bytes lie.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreread::Loader as Run;
use foreread::SampleId;
use foreread::dataset::{IndexOptions, Progress};
use pyo3::exceptions::{PyImportError, PyIndexError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyType};

use crate::errors::{self, Class};
use crate::here::Here;
use crate::{allocator, files, here, loader, logs, settings, waiting};

/// The samples of one dataset, numbered from 0: a table of paths, sizes and labels.
///
/// Made by foreread.index() or Catalog.open(); Loader takes it in the place of a URL. Its file is an Arrow (Feather) file.
#[pyclass(frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct Catalog {
    catalog: Here<foreread::Catalog>,
}

impl Catalog {
    pub(crate) fn catalog(&self) -> &foreread::Catalog {
        self.catalog.peek()
    }

    fn id(&self, index: isize) -> PyResult<SampleId> {
        let length = self.catalog().len();
        let at = match u64::try_from(index) {
            Ok(at) => Some(at),
            Err(_) => length.checked_sub(index.unsigned_abs() as u64),
        };
        at.filter(|at| *at < length).map(SampleId).ok_or_else(|| {
            PyIndexError::new_err(format!("there is no sample {index}: the catalog has {length}"))
        })
    }
}

/// A sample's path, as Python gets it.
pub(crate) fn path_of(catalog: &foreread::Catalog, id: SampleId) -> PyResult<String> {
    let path = catalog.path(id);
    path.map(|path| path.into_owned()).map_err(|error| errors::raised(&error.into()))
}

impl From<foreread::Catalog> for Catalog {
    fn from(catalog: foreread::Catalog) -> Self {
        Self { catalog: Here::new(catalog) }
    }
}

#[pymethods]
impl Catalog {
    /// Opens a catalog file, as save() and `foreread index` write them.
    #[classmethod]
    fn open(_: &Bound<'_, PyType>, py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = waiting::apart(py, Duration::ZERO, move |_| foreread::Catalog::open(path))?;
        opened.map(Self::from).map_err(|error| errors::raised(&error.into()))
    }

    /// Writes it to a file, in one step; a catalog that is there is replaced.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let catalog = self.catalog().clone();
        let saved = waiting::apart(py, Duration::ZERO, move |_| catalog.save(path))?;
        saved.map_err(|error| errors::raised(&error.into()))
    }

    /// The file that save() would write, copied.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.catalog().to_bytes().map_err(|error| errors::raised(&error.into()))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// The catalog as an Arrow table. Needs pyarrow.
    fn to_arrow<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let arrow = needed(py, "pyarrow", "to_arrow")?;
        let buffer = arrow.call_method1("py_buffer", (slf.get().to_bytes(py)?,))?;
        py.import("pyarrow.ipc")?.call_method1("open_file", (buffer,))?.call_method0("read_all")
    }

    /// The catalog as a pandas DataFrame. Needs pyarrow and pandas.
    fn to_pandas<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        needed(slf.py(), "pandas", "to_pandas")?;
        Self::to_arrow(slf)?.call_method0("to_pandas")
    }

    /// A sample's path below the base URL; of a packed one its shard, and behind a slash its name there.
    fn path(&self, index: isize) -> PyResult<String> {
        path_of(self.catalog(), self.id(index)?)
    }

    /// A sample's length in bytes.
    fn size(&self, index: isize) -> PyResult<u64> {
        let id = self.id(index)?;
        Ok(self.catalog().sizes().bytes(id))
    }

    /// The number of a sample's class; None where it has none.
    fn label(&self, index: isize) -> PyResult<Option<u32>> {
        Ok(self.catalog().label_index(self.id(index)?))
    }

    /// The numbers of all samples' classes, -1 where there is none: 64-bit integers in a row.
    fn targets<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let catalog = self.catalog();
        let class = |id| catalog.label_index(SampleId(id)).map_or(-1, i64::from);
        files::integers(py, &(0..catalog.len()).map(class).collect::<Vec<_>>())
    }

    /// The path of the first sample whose name does not end like one of `endings` (in lower case), case apart; None if all do.
    fn first_without(&self, endings: Vec<String>) -> PyResult<Option<String>> {
        for id in 0..self.catalog().len() {
            let path = self.catalog().path(SampleId(id)).map_err(|error| errors::raised(&error.into()))?;
            if !files::ends(path.as_bytes(), &endings) {
                return Ok(Some(path.into_owned()));
            }
        }
        Ok(None)
    }

    /// The names of the classes, by their numbers.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.catalog().labels().iter().map(|label| label.to_string()).collect()
    }

    /// The length of all samples together, in bytes.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.catalog().total_bytes()
    }

    /// Identifies the data: the same wherever they lie and whoever has indexed them.
    #[getter]
    fn fingerprint(&self) -> String {
        self.catalog().fingerprint().to_string()
    }

    /// What was indexed.
    #[getter]
    fn base_url(&self) -> &str {
        self.catalog().base_url()
    }

    /// How samples lie in objects: files, tar, tfrecord or zip.
    #[getter]
    fn format(&self) -> &str {
        self.catalog().format().name()
    }

    fn __len__(&self) -> usize {
        self.catalog().len() as usize
    }

    fn __repr__(&self) -> String {
        let catalog = self.catalog();
        format!("<foreread.Catalog of {}: {} samples>", catalog.base_url(), catalog.len())
    }

    /// For pickle, which spawned workers use.
    fn __reduce__<'py>(slf: Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let py = slf.py();
        Ok((py.get_type::<Self>().getattr("from_bytes")?, (slf.get().to_bytes(py)?,)))
    }

    /// The catalog that to_bytes() gave.
    #[classmethod]
    fn from_bytes(_: &Bound<'_, PyType>, data: Vec<u8>) -> PyResult<Self> {
        let catalog = foreread::Catalog::from_bytes(data, "the catalog in memory");
        catalog.map(Self::from).map_err(|error| errors::raised(&error.into()))
    }
}

/// A package that is imported only where it is used.
pub(crate) fn needed<'py>(py: Python<'py>, name: &str, what: &str) -> PyResult<Bound<'py, PyModule>> {
    py.import(name).map_err(|error| match error.is_instance_of::<PyImportError>(py) {
        true => {
            let message = format!("{what} needs {name}, which is not installed: pip install {name}");
            let told = PyImportError::new_err(message);
            told.set_cause(py, Some(error));
            told
        }
        false => error,
    })
}

/// Globs: one, or several.
fn globs(name: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let Some(given) = given else { return Ok(Vec::new()) };
    let wrong = |_| errors::wrong_type(name, "a glob, or a list of globs", given);
    match given.cast::<PyString>() {
        Ok(one) => Ok(vec![one.extract()?]),
        Err(_) => given.extract().map_err(wrong),
    }
}

/// Lists a dataset into a catalog, reading no more than shards' heads.
///
/// `include` and `exclude` are globs of paths below `target`: `*` stops at `/`, `**/` is any number of directories. `name` stands for
/// the place of the data: what caches hold is kept when they are moved, and the caller vouches that they are the same. `progress` is
/// called now and then with the samples and bytes found so far; what it raises ends the index.
#[pyfunction]
#[pyo3(signature = (target, *, include = None, exclude = None, format = None, name = None, progress = None))]
pub(crate) fn index(
    py: Python<'_>,
    target: &Bound<'_, PyAny>,
    include: Option<&Bound<'_, PyAny>>,
    exclude: Option<&Bound<'_, PyAny>>,
    format: Option<&Bound<'_, PyAny>>,
    name: Option<String>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Catalog> {
    allocator::set_up();
    here::watch();
    logs::set_up(py)?;
    let mut options = IndexOptions::default();
    options.include = globs("include", include)?;
    options.exclude = globs("exclude", exclude)?;
    options.format = format.map_or(Ok(None), settings::format)?;
    options.name = name;
    let names = loader::targets(target)?;
    let (first, more) = names.split_first().ok_or_else(|| Class::Config.with("target: name a dataset"))?;
    let builder = more.iter().fold(Run::builder(first), |builder, shard| builder.shard(shard));
    let found = Arc::new(Mutex::new(None::<Progress>));
    let tell = Arc::clone(&found);
    let mut look = |py: Python<'_>| -> PyResult<()> {
        let news = found.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (progress, news) {
            (Some(progress), Some(news)) => {
                py.check_signals()?;
                progress.call1((news.samples, news.bytes)).map(drop)
            }
            _ => Ok(()),
        }
    };
    let indexed = waiting::apart_looking(py, Duration::ZERO, &mut look, move |_| {
        builder.index(options, move |news| {
            *tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(news);
        })
    })?;
    look(py)?;
    indexed.map(Catalog::from).map_err(|error| errors::raised(&error))
}
