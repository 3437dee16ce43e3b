//! `foreread.Catalog`: the samples of a dataset, their order and the location of their bytes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreread::Loader;
use foreread::SampleId;
use foreread::dataset::{FormatOptions, Grouping, IndexOptions, IndexProgress, SplitOptions};
use foreread::table::{TableOptions, requested_table};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString, PyType};

use crate::errors::{self, ExceptionClass};
use crate::process_local::ProcessLocal;
use crate::{files, interrupt, logs, process_local, settings, tables, values};

/// The samples of one dataset, numbered from 0: a table of paths, sizes and labels.
///
/// Created by foreread.index() or Catalog.open(). Loader accepts it in place of a URL. Its file is
/// an Arrow (Feather) file.
#[pyclass(name = "Catalog", frozen, module = "foreread", weakref)]
#[derive(Debug)]
pub struct PyCatalog {
    catalog: ProcessLocal<foreread::Catalog>,
}

impl PyCatalog {
    pub(crate) fn catalog(&self) -> &foreread::Catalog {
        self.catalog.peek()
    }

    fn id(&self, index: isize) -> PyResult<SampleId> {
        let length = self.catalog().len();
        let at = match u64::try_from(index) {
            Ok(at) => Some(at),
            Err(_) => length.checked_sub(index.unsigned_abs() as u64),
        };
        at.filter(|at| *at < length)
            .map(SampleId)
            .ok_or_else(|| PyIndexError::new_err(format!("no sample {index}: the catalog has {length}")))
    }
}

impl PyCatalog {
    fn selected(&self, py: Python<'_>, ids: Vec<u64>) -> PyResult<Self> {
        let catalog = self.catalog().clone();
        interrupt::run_fallible(py, move |_| catalog.select(&ids)).map(Self::from)
    }

    /// The catalog's entry of a sample.
    fn row<'py>(&self, py: Python<'py>, id: SampleId) -> PyResult<Bound<'py, PyDict>> {
        let (catalog, row) = (self.catalog(), PyDict::new(py));
        row.set_item("index", id.0)?;
        row.set_item("path", values::path_of(catalog, id)?)?;
        row.set_item("size", catalog.sizes().bytes(id))?;
        row.set_item("label", values::label(py, catalog, id)?)?;
        row.set_item("label_name", catalog.label(id))?;
        // A value of such a name is the table's.
        for name in catalog.value_names() {
            row.set_item(name, values::value(py, catalog, id, name)?)?;
        }
        Ok(row)
    }
}

/// Whether a value is a bool of Python, or of NumPy, which also passes for an integer.
fn is_bool(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.is_instance_of::<PyBool>() || value.get_type().name()?.to_str()?.starts_with("bool"))
}

impl From<foreread::Catalog> for PyCatalog {
    fn from(catalog: foreread::Catalog) -> Self {
        Self { catalog: ProcessLocal::new(catalog) }
    }
}

#[pymethods]
impl PyCatalog {
    /// Opens a catalog file written by save() or `foreread index`.
    #[classmethod]
    fn open(_: &Bound<'_, PyType>, py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        interrupt::run_fallible(py, move |_| foreread::Catalog::open(path)).map(Self::from)
    }

    /// Writes the catalog to a file atomically. An existing catalog is replaced.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let catalog = self.catalog().clone();
        interrupt::run_fallible(py, move |_| catalog.save(path))
    }

    /// A copy of the file that save() would write.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.catalog().to_bytes().map_err(errors::raised)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// The catalog as an Arrow table. Needs pyarrow.
    fn to_arrow<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let arrow = values::needed(py, "pyarrow", "to_arrow")?;
        let whole = slf.get().catalog().with_gone().to_bytes().map_err(errors::raised)?;
        let buffer = arrow.call_method1("py_buffer", (PyBytes::new(py, &whole),))?;
        let table =
            py.import("pyarrow.ipc")?.call_method1("open_file", (buffer,))?.call_method0("read_all")?;
        match slf.get().catalog().file_rows() {
            None => Ok(table),
            Some(rows) => table.call_method1("take", (rows,)),
        }
    }

    /// The catalog as a pandas DataFrame. Needs pyarrow and pandas.
    fn to_pandas<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        values::needed(slf.py(), "pandas", "to_pandas")?;
        Self::to_arrow(slf)?.call_method0("to_pandas")
    }

    /// A sample's path below the base URL. The path of a packed sample is its shard's, a slash, and
    /// its name there.
    fn path(&self, index: isize) -> PyResult<String> {
        values::path_of(self.catalog(), self.id(index)?)
    }

    /// A sample's length in bytes.
    fn size(&self, index: isize) -> PyResult<u64> {
        let id = self.id(index)?;
        Ok(self.catalog().sizes().bytes(id))
    }

    /// A sample's label: the index of its class, or the value of its format's column of labels.
    /// None if it has none.
    fn label<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Option<Bound<'py, PyAny>>> {
        values::label(py, self.catalog(), self.id(index)?)
    }

    /// The names of the values that the catalog has of each sample.
    #[getter]
    fn value_names(&self) -> Vec<String> {
        self.catalog().value_names().to_vec()
    }

    /// A sample's value of this name: a number, a text or an array. None if it has none.
    fn value<'py>(&self, py: Python<'py>, index: isize, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        values::value(py, self.catalog(), self.id(index)?, name)
    }

    /// NumPy's type and the shape of each sample's bytes, if the format knows them. The first
    /// length of the shape is None if it differs between samples.
    #[getter]
    fn array_type(&self) -> Option<(String, Vec<Option<u64>>)> {
        self.catalog().array().map(|array| (array.dtype.clone(), array.shape.clone()))
    }

    /// NumPy's type and the shape of each field of the first sample, by name. None for a field
    /// whose type is unknown.
    #[getter]
    fn field_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let types = PyDict::new(py);
        for field in self.catalog().fields(SampleId(0)).unwrap_or_default() {
            let array = self.catalog().field_array(field.name);
            types.set_item(field.name, array.map(|array| (&array.dtype, &array.shape)))?;
        }
        Ok(types)
    }

    /// The names and paths of a sample's files, if it has several. Empty for any other.
    fn field_paths<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyDict>> {
        values::field_paths(py, self.catalog(), self.id(index)?)
    }

    /// The column of a table that has the labels.
    #[getter]
    fn label_column(&self) -> Option<&str> {
        self.catalog().label_column()
    }

    /// The findings in the first shard, in one line. None for formats without a choice.
    #[getter]
    fn summary(&self) -> Option<&str> {
        self.catalog().summary()
    }

    /// The labels of all samples that are integers, -1 for none: bytes for array("q", ...) or
    /// numpy.frombuffer(..., "int64").
    fn targets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let catalog = self.catalog();
        let class = |id| Ok(values::integer_label(catalog, SampleId(id))?.unwrap_or(-1));
        let classes = (0..catalog.len()).map(class).collect::<PyResult<Vec<_>>>()?;
        Ok(values::integers(py, &classes))
    }

    /// The path of the first sample without one of `endings` (in lower case), ignoring case. None
    /// if there is none.
    fn first_without(&self, endings: Vec<String>) -> PyResult<Option<String>> {
        for id in 0..self.catalog().len() {
            let path = self.catalog().path(SampleId(id)).map_err(errors::raised)?;
            if !files::ends(path.as_bytes(), &endings) {
                return Ok(Some(path.into_owned()));
            }
        }
        Ok(None)
    }

    /// The catalog of these samples, in this order: a part of the whole. Classes keep their
    /// numbers, and samples their caches.
    fn select(&self, py: Python<'_>, indices: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut ids = Vec::new();
        for index in indices.try_iter()? {
            let index = index?;
            if is_bool(&index)? || index.extract::<isize>().is_err() {
                let wanted = "integers: filter() takes a mask";
                return Err(errors::wrong_type("indices", wanted, &index));
            }
            ids.push(self.id(index.extract()?)?.0);
        }
        self.selected(py, ids)
    }

    /// The samples for which `function` returns true, in their order. It gets a dict of a sample:
    /// its index, path, size, label, label_name and values. Or a mask: a bool for each sample.
    fn filter(&self, py: Python<'_>, function: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut ids = Vec::new();
        if function.is_callable() {
            for id in 0..self.catalog().len() {
                if function.call1((self.row(py, SampleId(id))?,))?.is_truthy()? {
                    ids.push(id);
                }
            }
        } else {
            let mut count = 0;
            for keep in function.try_iter()? {
                let keep = keep?;
                if !is_bool(&keep)? {
                    let wanted = "a function, or a bool for each sample: select() takes indices";
                    return Err(errors::wrong_type("function", wanted, &keep));
                }
                ids.extend(keep.is_truthy()?.then_some(count));
                count += 1;
            }
            if count != self.catalog().len() {
                let message = format!("the mask has {count} values for {} samples", self.catalog().len());
                return Err(ExceptionClass::Config.with(message));
            }
        }
        self.selected(py, ids)
    }

    /// Random parts, for training and validation: `random_split([.9, .1])`, or by numbers of
    /// samples. The parts are the same for one `seed` on every machine. With `stratify`, each has
    /// each label's share. `group` is the name of a value: samples with one value are in one part.
    #[pyo3(signature = (lengths, *, seed = 0, stratify = false, group = None))]
    fn random_split(
        &self,
        py: Python<'_>,
        lengths: Vec<f64>,
        seed: u64,
        stratify: bool,
        group: Option<String>,
    ) -> PyResult<Vec<Self>> {
        let count = self.catalog().len() as f64;
        let are_counts =
            lengths.iter().all(|length| length.fract() == 0.0) && lengths.iter().sum::<f64>() == count;
        let shares: Vec<f64> =
            if are_counts { lengths.iter().map(|length| length / count).collect() } else { lengths };
        let mut options = SplitOptions::default();
        (options.seed, options.stratify, options.group) = (seed, stratify, group);
        let catalog = self.catalog().clone();
        let parts = interrupt::run_fallible(py, move |_| catalog.random_split(&shares, &options))?;
        parts.into_iter().map(|ids| self.selected(py, ids)).collect()
    }

    /// Repeats the index that made this catalog: a catalog with the samples that there are now. New
    /// ones are at the end, and all others keep their number, with their parts and disk caches.
    /// Samples that are gone or have changed are named in a warning. A table that was in memory is
    /// given anew.
    #[pyo3(signature = (*, table = None, progress = None))]
    fn updated(
        &self,
        py: Python<'_>,
        table: Option<&Bound<'_, PyAny>>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        logs::set_up(py)?;
        let catalog = self.catalog().clone();
        let columns = requested_table(&catalog).map_err(errors::raised)?.unwrap_or_default();
        let table = table.map(|table| tables::source(table, &columns)).transpose()?;
        let updated = indexed(py, progress, move |tell| {
            let builder = Loader::builder(catalog.base_url());
            let (updated, growth) = builder.update(&catalog, table, None, tell)?;
            if growth.gone > 0 {
                let (url, gone, names) = (updated.base_url(), growth.gone, growth.names.join(", "));
                tracing::warn!("{url}: {gone} samples are gone or have changed: {names}");
            }
            Ok(updated)
        });
        logs::drain(py)?;
        updated
    }

    /// All samples of the catalog that this one is a part of. Itself, if it is none.
    fn whole(&self) -> Self {
        Self::from(self.catalog().whole())
    }

    /// The number of each sample in the whole catalog: bytes, as those of targets().
    fn numbers<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let catalog = self.catalog();
        let numbers: Vec<i64> =
            (0..catalog.len()).filter_map(|id| catalog.number(SampleId(id))).map(u64::cast_signed).collect();
        values::integers(py, &numbers)
    }

    /// The names of the classes, by index.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.catalog().labels().iter().map(|label| label.to_string()).collect()
    }

    /// Deprecated: `classes`.
    #[getter]
    fn labels(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        errors::renamed(py, c"Catalog.labels is deprecated: use Catalog.classes")?;
        Ok(self.classes())
    }

    /// The total length of all samples, in bytes.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.catalog().total_bytes()
    }

    /// Identifies the data, independent of their location.
    #[getter]
    fn fingerprint(&self) -> String {
        self.catalog().fingerprint().to_string()
    }

    /// The URL or path that was indexed.
    #[getter]
    fn base_url(&self) -> &str {
        self.catalog().base_url()
    }

    /// How objects store samples: files, tar, tfrecord, zip, lmdb, hdf5, parquet, arrow, mds,
    /// litdata, npy, tokens or recordio.
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

    /// Supports pickle, which spawned workers use.
    fn __reduce__<'py>(slf: Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let py = slf.py();
        Ok((py.get_type::<Self>().getattr("from_bytes")?, (slf.get().to_bytes(py)?,)))
    }

    /// The catalog from the bytes of to_bytes().
    #[classmethod]
    fn from_bytes(_: &Bound<'_, PyType>, data: Vec<u8>) -> PyResult<Self> {
        let catalog = foreread::Catalog::from_bytes(data, "the catalog in memory");
        catalog.map(Self::from).map_err(errors::raised)
    }
}

/// One text, or several.
fn texts(name: &str, wanted: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let Some(given) = given else { return Ok(Vec::new()) };
    let wrong = |_| errors::wrong_type(name, wanted, given);
    match given.cast::<PyString>() {
        Ok(one) => Ok(vec![one.extract()?]),
        Err(_) => given.extract().map_err(wrong),
    }
}

/// The names of classes. One text is more likely a mistake than one class.
fn class_names(given: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    given.extract().map_err(|_| errors::wrong_type("classes", "a list of names", given))
}

/// Lists a dataset into a catalog, reading only the headers of shards.
///
/// `include` and `exclude` are globs of paths below `target`, or paths: `*` stops at `/`, `**/` is
/// any number of directories. A glob in `include` that matches nothing is an error. A list of files
/// as `target` keeps its order. `classes` are the names of all classes in the order of their
/// numbers. Without it, these are the directories below `target`, whichever files are included. An
/// empty list means samples without labels. `name` replaces the location of the data: caches stay
/// valid when the data are moved, and the caller guarantees that the data are the same. `progress`
/// is called periodically with the samples and bytes found so far. An exception that it raises ends
/// the index.
///
/// With `table`, each of its rows is a sample, in its order. It is a path or URL of CSV, TSV, JSON
/// lines, Parquet or Arrow. Or it is a frame of pandas or polars, a table of pyarrow, a list of
/// dicts. Its files lie below `target`, which may be left out if they are URLs or lie next to the
/// table. `path` is the column with the files, `label` with the labels. Texts are classes, numbered
/// over the whole column, or by `classes`. Samples have the values of `columns`, by default of all
/// others. `filters` choose rows as in pyarrow: `[("split", "==", "train")]`. `on_missing="skip"`
/// leaves out rows whose file does not exist. With the columns `size` and `etag`, no file is
/// requested. The columns `start` and `length` make samples parts of their files.
///
/// With `inventory`, `target` is not listed, but the `manifest.json` of an inventory of S3, or a
/// table with the columns `key`, `size` and `etag`.
///
/// Samples of several files have each as a field. `path={"image": "img", "mask": "msk"}` names
/// columns of a table. `path={"image": "images/", "mask": "masks/"}` names directories, with equal
/// paths but for endings. `group="stem"` is by names, as WebDataset has them (`1.jpg`, `1.json`).
///
/// The rest chooses within packed formats. `field` is the HDF5 dataset, or the column of Parquet
/// and Arrow files, and `label` the one with the labels. With a list of datasets or columns, a
/// sample has a row of each, as its fields. `columns` are columns of Parquet and Arrow files whose
/// numbers and texts samples have as values. `key` is the named database of LMDB, where `field` and
/// `label` are beginnings of keys. With `whole`, an HDF5 dataset is one sample.
/// `window` and `stride` are the samples of token files in tokens, and `dtype` is the type of a
/// token. With `document`, a document of Megatron's files is one sample. `pack` makes the samples
/// of its GPTDataset with this sequence length, from `pack_seed`, `pack_samples` and `pack_split`.
#[pyfunction]
#[pyo3(signature = (
    target = None, *, include = None, exclude = None, classes = None, format = None, name = None,
    progress = None,
    field = None, label = None, key = None, whole = false, window = None, stride = None, dtype = None,
    document = false,
    pack = None, pack_seed = None, pack_samples = None, pack_split = None,
    table = None, path = None, columns = None, filters = None, on_missing = "fail",
    size = None, etag = None, start = None, length = None, group = None, inventory = None,
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python, each optional")]
pub(crate) fn index(
    py: Python<'_>,
    target: Option<&Bound<'_, PyAny>>,
    include: Option<&Bound<'_, PyAny>>,
    exclude: Option<&Bound<'_, PyAny>>,
    classes: Option<&Bound<'_, PyAny>>,
    format: Option<&Bound<'_, PyAny>>,
    name: Option<String>,
    progress: Option<&Bound<'_, PyAny>>,
    field: Option<&Bound<'_, PyAny>>,
    label: Option<String>,
    key: Option<String>,
    whole: bool,
    window: Option<u64>,
    stride: Option<u64>,
    dtype: Option<String>,
    document: bool,
    pack: Option<u64>,
    pack_seed: Option<u32>,
    pack_samples: Option<u64>,
    pack_split: Option<String>,
    table: Option<&Bound<'_, PyAny>>,
    path: Option<&Bound<'_, PyAny>>,
    columns: Option<&Bound<'_, PyAny>>,
    filters: Option<&Bound<'_, PyAny>>,
    on_missing: &str,
    size: Option<String>,
    etag: Option<String>,
    start: Option<String>,
    length: Option<String>,
    group: Option<&str>,
    inventory: Option<PathBuf>,
) -> PyResult<PyCatalog> {
    process_local::count_forks();
    logs::set_up(py)?;
    let mut options = IndexOptions::default();
    let globs = |name, given| texts(name, "a glob, or a list of globs", given);
    options.include = globs("include", include)?;
    options.exclude = globs("exclude", exclude)?;
    options.classes = classes.map(class_names).transpose()?;
    options.format = format.map_or(Ok(None), settings::format)?;
    options.name = name;
    let mut choices = FormatOptions::default();
    choices.fields = texts("field", "a name, or a list of names", field)?;
    (choices.label, choices.key, choices.whole) = (label, key, whole);
    (choices.window, choices.stride, choices.dtype, choices.document) = (window, stride, dtype, document);
    (choices.pack, choices.pack_seed, choices.pack_samples) = (pack, pack_seed, pack_samples);
    choices.pack_split = pack_split;
    options.skip_missing = tables::skips_missing(on_missing)?;
    let mut of_table = TableOptions::default();
    let (column, fields) = path.map_or(Ok((None, Vec::new())), tables::path)?;
    options.grouping = tables::grouping(group, &fields, table.is_some())?;
    let fields = if options.grouping == Grouping::None { fields } else { Vec::new() };
    let columns =
        columns.map(|given| texts("columns", "a name, or a list of names", Some(given))).transpose()?;
    (of_table.path, of_table.fields, of_table.columns) = (column, fields, columns);
    (of_table.size, of_table.etag, of_table.start, of_table.length) = (size, etag, start, length);
    if table.is_none() {
        choices.columns = of_table.columns.take().unwrap_or_default();
    }
    let has_columns = of_table != TableOptions::default() || filters.is_some();
    let table = match table {
        Some(table) => {
            of_table.label = choices.label.take();
            of_table.classes = options.classes.take();
            of_table.filters = filters.map_or(Ok(Vec::new()), tables::filters)?;
            if !choices.is_default() {
                let message = "arguments of packed formats have no effect with table=; leave them out";
                return Err(ExceptionClass::Config.with(message));
            }
            Some((tables::source(table, &of_table)?, of_table))
        }
        None if has_columns => {
            let message = "path, filters, size, etag, start and length need table=";
            return Err(ExceptionClass::Config.with(message));
        }
        None => None,
    };
    options.format_options = choices;
    let names = match target {
        Some(target) => settings::targets(target)?,
        None if table.is_some() => vec![String::new()],
        None => Vec::new(),
    };
    let (first, more) = names
        .split_first()
        .ok_or_else(|| ExceptionClass::Config.with("target: expected the URL or path of a dataset"))?;
    let builder = more.iter().fold(Loader::builder(first), |builder, shard| builder.shard(shard));
    if table.is_some() && inventory.is_some() {
        return Err(ExceptionClass::Config.with("a table needs no inventory: leave out inventory= or table="));
    }
    indexed(py, progress, move |tell| match (table, inventory) {
        (Some((table, of_table)), _) => builder.index_table(table, of_table, options, tell),
        (None, Some(inventory)) => builder.index_inventory(inventory.to_string_lossy(), options, tell),
        (None, None) => builder.index(options, tell),
    })
}

/// Runs an index, and calls `progress` with its findings.
fn indexed(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    index: impl FnOnce(Box<dyn FnMut(IndexProgress) + Send>) -> foreread::Result<foreread::Catalog>
    + Send
    + 'static,
) -> PyResult<PyCatalog> {
    let found = Arc::new(Mutex::new(None::<IndexProgress>));
    let latest = Arc::clone(&found);
    let mut report = |py: Python<'_>| -> PyResult<()> {
        let update = found.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (progress, update) {
            (Some(progress), Some(update)) => {
                py.check_signals()?;
                progress.call1((update.samples, update.bytes)).map(drop)
            }
            _ => Ok(()),
        }
    };
    let indexed = interrupt::run_polling(py, Duration::ZERO, &mut report, move |_| {
        index(Box::new(move |update| *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(update)))
    })?;
    report(py)?;
    indexed.map(PyCatalog::from).map_err(errors::raised)
}
