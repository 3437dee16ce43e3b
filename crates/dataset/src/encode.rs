//! Writing a catalog: the samples in their order, as the bytes of an Arrow IPC file.
//!
//! Labels are a dictionary column, because a million rows share a thousand names. Columns that only
//! some origins need (modification times, ETags) are written only where they are used. The output
//! depends only on the samples, their listing and the base URL.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array,
    UInt64Array,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use foreread_tier::{Object, Version};
use foreread_types::Fingerprint;
use xxhash_rust::xxh3::Xxh3;

use crate::catalog_checksum::{checksum, checksum_digits};
use crate::catalog_file::{
    BASE_URL_KEY, CHECKSUM_BLANK, CHECKSUM_KEY, CHECKSUM_PREFIX, CatalogFault, FINGERPRINT_KEY, FORMAT_KEY,
    LISTING_KEY, NAME_KEY, ORDERED_KEY, REQUEST_KEY, VERSION_KEY,
};
use crate::catalog_version::{VERSION, VERSION_ORDERED, VERSION_TABLE};
use crate::changes::FileChanges;
use crate::classes::ClassNumbers;
use crate::listing::Listing;
use crate::names::{SplitName, compare};
use crate::released::in_pieces;
use crate::{IndexOptions, changes, servers};

/// Rows per batch. A million samples take few batches, and the text of a batch is far below the
/// 31-bit limit of its length.
pub(crate) const ROWS: usize = 65_536;

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

pub(crate) fn modified(object: &Object) -> Option<i64> {
    object.version.as_ref().and_then(Version::modified)
}

pub(crate) fn etag(object: &Object) -> Option<&str> {
    match &object.version {
        Some(Version::ETag(tag)) => Some(tag),
        _ => None,
    }
}

/// The additions of an index's options to its catalog.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IndexNotes<'a> {
    /// The user's name for the location of the data.
    pub(crate) name: Option<&'a str>,
    /// How the index was requested.
    pub(crate) request: Option<&'a str>,
}

impl<'a> IndexNotes<'a> {
    pub(crate) fn of(options: &'a IndexOptions) -> Self {
        Self { name: options.name.as_deref(), request: options.request.as_deref() }
    }
}

/// The metadata of a catalog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CatalogHeader<'a> {
    pub(crate) base_url: &'a str,
    pub(crate) notes: IndexNotes<'a>,
    pub(crate) listing: Listing,
    /// Further metadata.
    pub(crate) extra: &'a [(&'static str, String)],
}

/// A text's part of a fingerprint.
pub(crate) fn hash_text(hash: &mut Xxh3, kind: u8, text: &str) {
    hash.update(&[kind]);
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

/// An object's state, in a fingerprint.
pub(crate) fn hash_version(hash: &mut Xxh3, object: &Object) {
    match (modified(object), etag(object)) {
        (Some(time), _) => {
            hash.update(&[2]);
            hash.update(&time.to_le_bytes());
        }
        (None, Some(tag)) => hash_text(hash, 3, tag),
        (None, None) => hash.update(&[0]),
    }
}

/// The findings of a first look at all samples, in their order.
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
        self.changes = self.changes.or_else(|| changes::location(object));
    }

    /// Classes are covered if they have other numbers than the labels alone would give them.
    fn fingerprint(&mut self, classes: &ClassNumbers<'_>) -> Fingerprint {
        if classes.are_chosen {
            hash_names(&mut self.hash, &classes.names);
        }
        Fingerprint(self.hash.digest128())
    }
}

/// The part of chosen classes in a fingerprint.
pub(crate) fn hash_names(hash: &mut Xxh3, names: &[impl AsRef<str>]) {
    hash.update(&[12]);
    hash.update(&(names.len() as u64).to_le_bytes());
    names.iter().for_each(|name| hash_text(hash, 12, name.as_ref()));
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
        fields.push(Field::new(servers::COLUMN, DataType::UInt32, true));
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

/// Creates a writer for batches of these columns. `version` is that of a catalog without changes.
pub(crate) fn begin(
    fields: Vec<Field>,
    versions: (&str, FileChanges),
    head: CatalogHeader<'_>,
    format: &str,
    fingerprint: Fingerprint,
) -> Result<(Arc<Schema>, FileWriter<Vec<u8>>), ArrowError> {
    let schema = described(fields, versions, head, format, fingerprint);
    let writer = begin_with(&schema, Vec::new())?;
    Ok((schema, writer))
}

/// The schema of these columns, with the catalog's metadata.
fn described(
    fields: Vec<Field>,
    (version, changes): (&str, FileChanges),
    head: CatalogHeader<'_>,
    format: &str,
    fingerprint: Fingerprint,
) -> Arc<Schema> {
    let metadata = [
        (VERSION_KEY, changes.version(version).to_owned()),
        (BASE_URL_KEY, head.base_url.to_owned()),
        (FORMAT_KEY, format.to_owned()),
        (FINGERPRINT_KEY, fingerprint.to_string()),
        (LISTING_KEY, head.listing.text()),
    ];
    let notes = [(NAME_KEY, head.notes.name), (REQUEST_KEY, head.notes.request)];
    let notes = notes.into_iter().filter_map(|(key, text)| Some((key, text?.to_owned())));
    // The version may be a later one, of catalogs with changes.
    let ordered =
        [VERSION_ORDERED, VERSION_TABLE].contains(&version).then(|| (ORDERED_KEY, String::from("1")));
    let extra = notes.chain(ordered).chain(changes.metadata()).chain(head.extra.iter().cloned());
    let all = metadata.into_iter().chain(extra);
    let metadata: HashMap<_, _> = all.map(|(key, value)| (key.to_owned(), value)).collect();
    Arc::new(Schema::new(fields).with_metadata(metadata))
}

/// Creates a writer for batches of this schema, which has the catalog's metadata.
pub(crate) fn begin_with<W: Write>(schema: &Schema, out: W) -> Result<FileWriter<W>, ArrowError> {
    let mut writer = FileWriter::try_new(out, schema)?;
    let blank = String::from_utf8_lossy(&CHECKSUM_BLANK);
    writer.write_metadata(CHECKSUM_KEY, format!("{CHECKSUM_PREFIX}{blank}"));
    Ok(writer)
}

/// The written bytes, with their checksum.
pub(crate) fn finish(mut writer: FileWriter<Vec<u8>>) -> Result<Vec<u8>, ArrowError> {
    writer.finish()?;
    let mut bytes = writer.into_inner()?;
    let damaged = |fault: CatalogFault| ArrowError::IpcError(fault.why);
    let digits = checksum_digits(&bytes).map_err(damaged)?;
    let sum = checksum(&bytes, &digits);
    bytes[digits].copy_from_slice(sum.as_bytes());
    Ok(bytes)
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
