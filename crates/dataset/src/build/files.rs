//! Writing a catalog: the samples in their order, as the bytes of an Arrow IPC file.
//!
//! Labels are a dictionary column, because a million rows share a thousand names. Columns that only
//! some origins need (modification times, ETags) are written only where they are used. The output
//! depends only on the samples, their listing and the base URL.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array,
    UInt64Array,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};
use foreread_tier::Object;
use foreread_types::Fingerprint;
use xxhash_rust::xxh3::Xxh3;

use crate::build::changes::FileChanges;
use crate::build::class_numbers::ClassNumbers;
use crate::build::header::CatalogHeader;
use crate::build::released::in_pieces;
use crate::build::schema::described;
use crate::catalog_file::column_names;
use crate::catalog_file::fingerprint::{hash_names, hash_text, hash_version};
use crate::catalog_file::object_versions::{etag, location, modified};
use crate::catalog_file::version::{VERSION, VERSION_ORDERED};
use crate::catalog_file::writer::{ROWS, begin_with, finish};
use crate::names::{SplitName, compare};

/// One sample to be written to a catalog.
pub(crate) struct CatalogSample {
    pub(crate) object: Object,
    pub(crate) cut: SplitName,
    /// The value of the column of servers.
    pub(crate) server: Option<u32>,
    /// Whether its first directory is its label.
    pub(crate) has_labels: bool,
}

impl CatalogSample {
    fn label(&self) -> Option<&str> {
        Some(self.cut.label(&self.object.path)).filter(|label| self.has_labels && !label.is_empty())
    }

    fn modified(&self) -> Option<i64> {
        modified(&self.object)
    }

    fn etag(&self) -> Option<&str> {
        etag(&self.object)
    }
}

/// The result of a first look at all samples, in their order.
pub(crate) struct SampleFacts {
    /// The fingerprint so far. It identifies the data, independently of the catalog's form and
    /// location. It covers each sample in order: its path, offset, length, version and label.
    hash: Xxh3,
    /// The labels that occur.
    pub(crate) labels: BTreeSet<String>,
    last: Option<(Arc<str>, SplitName)>,
    is_sorted: bool,
    has_modified: bool,
    has_etag: bool,
    has_server: bool,
    /// The location of the first recorded change.
    changes: Option<u32>,
}

impl SampleFacts {
    pub(crate) fn new() -> Self {
        let mut hash = Xxh3::new();
        hash.update(b"foreread samples 1\0");
        Self {
            hash,
            labels: BTreeSet::new(),
            last: None,
            is_sorted: true,
            has_modified: false,
            has_etag: false,
            has_server: false,
            changes: None,
        }
    }

    pub(crate) fn add(&mut self, sample: &CatalogSample) {
        let CatalogSample { object, cut, server, .. } = sample;
        let hash = &mut self.hash;
        hash_text(hash, 1, &object.path);
        hash.update(&0u64.to_le_bytes()); // the offset: a file is read from its beginning
        hash.update(&object.size.to_le_bytes());
        hash_version(hash, object);
        match sample.label() {
            Some(label) => hash_text(hash, 4, label),
            None => hash.update(&[0]),
        }
        if let Some(label) = sample.label().filter(|label| !self.labels.contains(*label)) {
            self.labels.insert(label.to_owned());
        }
        let name = (&*object.path, *cut);
        self.is_sorted &= self.last.as_ref().is_none_or(|(path, cut)| compare((path, *cut), name).is_le());
        self.last = Some((Arc::clone(&object.path), *cut));
        self.has_modified |= sample.modified().is_some();
        self.has_etag |= sample.etag().is_some();
        self.has_server |= server.is_some();
        self.changes = self.changes.or_else(|| location(object));
    }

    /// Classes are covered if they have other numbers than the labels alone would give them.
    fn fingerprint(&mut self, classes: &ClassNumbers<'_>) -> Fingerprint {
        if classes.are_chosen {
            hash_names(&mut self.hash, &classes.names);
        }
        Fingerprint(self.hash.digest128())
    }
}

/// The bytes of the catalog file. `samples` are in the order of their numbers, and `classes` are
/// the user's or all of the dataset's. The samples' memory is released while the bytes grow.
pub(crate) fn encode(
    head: CatalogHeader<'_>,
    format: &str,
    samples: Vec<CatalogSample>,
    classes: Option<&[String]>,
) -> Result<Vec<u8>, ArrowError> {
    let mut facts = SampleFacts::new();
    samples.iter().for_each(|sample| facts.add(sample));
    let pieces = in_pieces(samples, ROWS).map(Ok::<_, ArrowError>);
    finish(encode_pieces(head, format, facts, pieces, classes, Vec::new())?)
}

/// Writes the samples of `pieces`, [`ROWS`] each but the last one, whose facts are known.
pub(crate) fn encode_pieces<W: Write, E: From<ArrowError>>(
    head: CatalogHeader<'_>,
    format: &str,
    mut facts: SampleFacts,
    pieces: impl Iterator<Item = Result<Vec<CatalogSample>, E>>,
    classes: Option<&[String]>,
    out: W,
) -> Result<FileWriter<W>, E> {
    let found = std::mem::take(&mut facts.labels);
    let labels = LabelColumn::of(&found, classes)?;
    // Versions of foreread that know one order only refuse other ones.
    let is_usual = facts.is_sorted && labels.classes.are_sorted();
    let version = if is_usual { VERSION } else { VERSION_ORDERED };
    let changes = FileChanges::at(facts.changes, head);
    let mut fields = vec![
        Field::new("path", DataType::Utf8, false),
        Field::new("offset", DataType::UInt64, false),
        Field::new("length", DataType::UInt64, false),
        Field::new_dictionary("label", DataType::Int32, DataType::Utf8, true),
    ];
    if facts.has_modified {
        let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
        fields.push(Field::new("modified", time, true));
    }
    fields.extend(changes.field());
    if facts.has_etag {
        fields.push(Field::new("etag", DataType::Utf8, true));
    }
    if facts.has_server {
        fields.push(Field::new(column_names::SERVER, DataType::UInt32, true));
    }
    let fingerprint = facts.fingerprint(&labels.classes);
    let schema = described(fields, (version, changes), head, format, fingerprint);
    let mut writer = begin_with(&schema, out)?;
    for rows in pieces {
        let rows = rows?;
        let paths = StringArray::from_iter_values(rows.iter().map(|sample| &*sample.object.path));
        let offsets = UInt64Array::from_iter_values(rows.iter().map(|_| 0));
        let lengths = UInt64Array::from_iter_values(rows.iter().map(|sample| sample.object.size));
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(paths), Arc::new(offsets), Arc::new(lengths), Arc::new(labels.column(&rows)?)];
        if facts.has_modified {
            let times: TimestampNanosecondArray = rows.iter().map(CatalogSample::modified).collect();
            columns.push(Arc::new(times.with_timezone("UTC")));
        }
        columns.extend(changes.column(rows.iter().map(|sample| &sample.object)));
        if facts.has_etag {
            columns.push(Arc::new(rows.iter().map(CatalogSample::etag).collect::<StringArray>()));
        }
        if facts.has_server {
            columns.push(Arc::new(rows.iter().map(|sample| sample.server).collect::<UInt32Array>()));
        }
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), columns)?)?;
    }
    Ok(writer)
}

/// The column of labels.
struct LabelColumn<'a> {
    classes: ClassNumbers<'a>,
    dictionary: ArrayRef,
}

impl<'a> LabelColumn<'a> {
    /// The column for the labels that samples have, or for the user's classes.
    fn of(found: &'a BTreeSet<String>, classes: Option<&'a [String]>) -> Result<Self, ArrowError> {
        let classes = ClassNumbers::of(classes, found.iter().map(String::as_str).collect());
        let text: usize = classes.names.iter().map(|name| name.len()).sum();
        if i32::try_from(text).is_err() {
            return Err(ArrowError::InvalidArgumentError("the names of the labels exceed 2 GiB".into()));
        }
        let dictionary = Arc::new(StringArray::from_iter_values(&classes.names));
        Ok(Self { classes, dictionary })
    }

    fn column(&self, rows: &[CatalogSample]) -> Result<DictionaryArray<Int32Type>, ArrowError> {
        let numbers: Int32Array = rows.iter().map(|sample| self.classes.number(sample.label()?)).collect();
        DictionaryArray::try_new(numbers, Arc::clone(&self.dictionary))
    }
}
