//! The bytes of a catalog file, and reading samples from them.
//!
//! A catalog is an Arrow IPC file, so that pandas, polars and DuckDB can open it. It is *read*
//! without Arrow's arrays. Only the [`layout`]s that
//! [`encode`](crate::build::files) writes are accepted. These have fixed columns and no
//! compression. All batches but the last have the same length, and each follows the previous one.
//! They are decoded into [`columns`] with every bound checked. So the
//! decoded data is never longer than the file, and a hostile file cannot exploit a general decoder.
//! The price is that a catalog rewritten by another tool is refused. Its checksum would be wrong
//! anyway.
//!
//! A file is read once, from its beginning to its end, and is not mapped. With a mapping, a program
//! that truncates the file would end this one by a signal.
//!
//! The checksum is the value of `foreread.checksum` in the footer's metadata: `xxh3:` and 32
//! hexadecimal digits. It is the XXH3-128 of the whole file with those digits as zeros. It protects
//! against damage, but not against an adversary. So every number that refers to a position in the
//! file is checked as well.

pub(crate) mod array_types;
pub(crate) mod checksum;
pub(crate) mod column_names;
pub(crate) mod columns;
pub(crate) mod fault;
pub(crate) mod file_lists;
pub(crate) mod fingerprint;
pub(crate) mod keys;
pub(crate) mod layout;
pub(crate) mod listing;
pub(crate) mod object_versions;
pub(crate) mod recognise;
pub(crate) mod server_column;
pub(crate) mod source;
pub(crate) mod version;
pub(crate) mod writer;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::{Deref, Range};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use arrow_ipc::Footer;
use bytes::Bytes;
use foreread_tier::StoredPart;
use foreread_types::{SampleId, Sizes};

use crate::catalog_file::checksum::{ChecksumPass, checksum_digits, footer, tail_start, written_to};
use crate::catalog_file::columns::runs::RunEnds;
use crate::catalog_file::columns::shared_numbers::{self, PackedColumns};
use crate::catalog_file::columns::values::StoredValue;
use crate::catalog_file::columns::{BatchColumns, BatchDecoder, Dictionaries};
use crate::catalog_file::fault::{CatalogFault, corrupt, foreign};
use crate::catalog_file::keys::{MAGIC, ORDERED_KEY, RECIPES_KEY};
use crate::catalog_file::layout::column_set::ColumnSet;
use crate::catalog_file::layout::{batch, dictionary, place};
use crate::catalog_file::source::CatalogBytes;
use crate::disk::shared_file;
use crate::disk::sparse::is_sparse;

/// A catalog: its columns, and the positions of its texts.
#[derive(Clone, Debug)]
pub(crate) struct CatalogFile {
    source: CatalogBytes,
    /// Whether the source is memory, or a file in memory.
    is_in_memory: bool,
    parts: Arc<DecodedCatalog>,
}

/// The decoded part of a catalog, wherever its bytes are.
#[derive(Debug)]
struct DecodedCatalog {
    /// `foreread.*`, as in the schema.
    metadata: BTreeMap<String, String>,
    tables: Dictionaries,
    field_names: Vec<Arc<str>>,
    batches: Vec<BatchColumns>,
    rows_per_batch: u64,
    /// The names of the columns of values, in the order of each batch's.
    value_names: Vec<String>,
    run_ends: RunEnds,
    /// The number of samples.
    samples: u64,
    sizes: Sizes,
    /// The stored length of each sample, if some are decoded.
    stored: Option<Sizes>,
    /// The position of the checksum's digits, and the digits.
    digits: Range<u64>,
    checksum: String,
}

/// One row: an object, or a part of an object.
pub(crate) struct CatalogRow<'a> {
    pub(crate) object: ObjectPath<'a>,
    /// The object's length and the sample's range in it, unless the sample is the whole object.
    pub(crate) part: Option<(u64, Range<u64>)>,
    /// The list of its files, if it has several.
    pub(crate) files: Option<Arc<str>>,
    /// How it is made, if it is decoded or has several parts.
    pub(crate) made: Option<Arc<[StoredPart]>>,
    pub(crate) length: u64,
    pub(crate) modified: Option<i64>,
    /// The digest of its last change.
    pub(crate) changed: Option<u32>,
    pub(crate) etag: Option<Arc<str>>,
}

/// The path of an object.
pub(crate) enum ObjectPath<'a> {
    /// Of a file.
    File(Arc<str>),
    /// Of a shard, which many samples share.
    IndexedShard(&'a Arc<str>),
}

impl Deref for ObjectPath<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::File(path) => path,
            Self::IndexedShard(path) => path,
        }
    }
}

impl CatalogFile {
    /// Reads a catalog file and checks every byte in one pass, so the decoded bytes are the checked
    /// bytes.
    pub(crate) fn open(file: File) -> Result<Self, CatalogFault> {
        let metadata = file.metadata().map_err(|error| CatalogFault::io(&error))?;
        let length = metadata.len();
        if is_sparse(length, metadata.blocks()) {
            return Err(corrupt("it is a sparse file: parts of it are missing"));
        }
        Self::of(CatalogBytes::File(Arc::new(file), length))
    }

    /// Completes a file that was written with a blank checksum, and reads it.
    pub(crate) fn sealed(file: File) -> Result<Self, CatalogFault> {
        Self::of(checksum::seal(file)?)
    }

    /// Writes all bytes. The inner result is a fault of this catalog: they are checked once more if
    /// they are read from a file.
    pub(crate) fn write_to(&self, out: &mut impl Write) -> io::Result<Result<(), CatalogFault>> {
        match &self.source {
            CatalogBytes::Memory(bytes) => out.write_all(bytes).map(Ok),
            CatalogBytes::File(..) => {
                let DecodedCatalog { digits, checksum, .. } = &*self.parts;
                checksum::copy(&self.source, (digits, checksum), out)
            }
        }
    }

    /// Reads a catalog from the bytes of a file.
    pub(crate) fn owned(bytes: Bytes) -> Result<Self, CatalogFault> {
        Self::of(CatalogBytes::Memory(bytes))
    }

    fn of(source: CatalogBytes) -> Result<Self, CatalogFault> {
        let mut parts = DecodedCatalog::of(&source)?;
        let checksum = parts.checksum.clone();
        shared_numbers::share(&checksum, &mut parts);
        Ok(Self::with_parts(source, Arc::new(parts)))
    }

    /// The same, with texts from another file of the same bytes. `None` if it has another length.
    pub(crate) fn with_file(&self, file: File) -> Option<Self> {
        let length = file.metadata().ok()?.len();
        let source = CatalogBytes::File(Arc::new(file), length);
        (length == self.length()).then(|| Self::with_parts(source, Arc::clone(&self.parts)))
    }

    fn with_parts(source: CatalogBytes, parts: Arc<DecodedCatalog>) -> Self {
        let is_in_memory = match &source {
            CatalogBytes::Memory(_) => true,
            CatalogBytes::File(file, _) => shared_file::is_sealed(file),
        };
        Self { source, is_in_memory, parts }
    }

    /// The file that it is read from.
    pub(crate) fn file(&self) -> Option<&File> {
        match &self.source {
            CatalogBytes::File(file, _) => Some(&**file),
            CatalogBytes::Memory(_) => None,
        }
    }

    /// Whether rows are read from a file, and not from one in memory. A shard's name is shared by
    /// many samples and is in memory.
    pub(crate) fn reads_rows(&self) -> bool {
        !self.is_packed() && !self.is_in_memory
    }

    /// All bytes, as in a file. They are checked once more if they are read from a file.
    pub(crate) fn bytes(&self) -> Result<Bytes, CatalogFault> {
        let bytes = match &self.source {
            CatalogBytes::Memory(bytes) => return Ok(bytes.clone()),
            CatalogBytes::File(..) => {
                let mut bytes = Vec::new();
                self.source.read(0..self.source.length(), &mut bytes)?;
                bytes
            }
        };
        let DecodedCatalog { digits, checksum, .. } = &*self.parts;
        let digits = digits.start as usize..digits.end as usize;
        if bytes[digits.clone()] != *checksum.as_bytes() || checksum::checksum(&bytes, &digits) != *checksum {
            return Err(written_to());
        }
        Ok(bytes.into())
    }

    /// The length of [`bytes`](Self::bytes).
    pub(crate) fn length(&self) -> u64 {
        self.source.length()
    }

    /// A value of the schema's metadata.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.parts.metadata.get(key).map(String::as_str)
    }

    /// Whether samples may be in another order than that of their names.
    pub(crate) fn is_ordered(&self) -> bool {
        self.metadata(ORDERED_KEY).is_some()
    }

    pub(crate) fn labels(&self) -> &[Arc<str>] {
        &self.parts.tables.labels
    }

    /// Whether rows are parts of objects.
    pub(crate) fn is_packed(&self) -> bool {
        self.parts.batches.iter().any(|batch| batch.object.is_some())
    }

    /// The number of samples.
    pub(crate) fn samples(&self) -> u64 {
        self.parts.samples
    }

    /// The length of each sample.
    pub(crate) fn sizes(&self) -> &Sizes {
        &self.parts.sizes
    }

    /// The stored length of each sample, if some are decoded.
    pub(crate) fn stored_sizes(&self) -> Option<&Sizes> {
        self.parts.stored.as_ref()
    }

    /// The rows that stand for runs of samples.
    pub(crate) fn runs(&self) -> &RunEnds {
        &self.parts.run_ends
    }

    fn find(&self, row: u64) -> Option<(&BatchColumns, usize)> {
        self.find_in_run(row).map(|(batch, row, _)| (batch, row))
    }

    /// The batch and the row of a sample, and its number in the row's run.
    fn find_in_run(&self, sample: u64) -> Option<(&BatchColumns, usize, u64)> {
        let (row, number) = self.parts.run_ends.row_of(sample);
        let batch = self.parts.batches.get(usize::try_from(row / self.parts.rows_per_batch).ok()?)?;
        let row = (row % self.parts.rows_per_batch) as usize;
        (row < batch.rows).then_some((batch, row, number))
    }

    /// The sample's row, with its text checked for being UTF-8. `None` if there is no such sample.
    pub(crate) fn row(&self, number: u64) -> Option<Result<CatalogRow<'_>, CatalogFault>> {
        let (batch, row, in_run) = self.find_in_run(number)?;
        let tables = &self.parts.tables;
        Some((|| {
            let missing = || corrupt("it has no path");
            let length = self.parts.sizes.bytes(SampleId(number));
            let modified = batch.modified.as_ref().and_then(|times| times.get(row));
            let changed = batch.changed.as_ref().and_then(|changes| changes.get(row));
            let (object, part) = match (&batch.object, &batch.object_size, &batch.offset) {
                (Some(object), Some(size), Some(offset)) => {
                    let object = tables.objects.get(object.get(row) as usize).ok_or_else(missing)?;
                    let stride = batch.stride.as_ref().map_or(0, |stride| stride.get(row));
                    let start = offset.get(row) + in_run * stride;
                    let range = start..start.saturating_add(length);
                    (ObjectPath::IndexedShard(object), Some((size.get(row), range)))
                }
                (_, size, offset) => {
                    let path = batch.path.as_ref().map_or(Ok(None), |path| path.shared(&self.source, row))?;
                    let part = size.as_ref().zip(offset.as_ref()).map(|(size, offset)| {
                        let start = offset.get(row);
                        (size.get(row), start..start.saturating_add(length))
                    });
                    (ObjectPath::File(path.ok_or_else(missing)?), part)
                }
            };
            let etag = match (&batch.etag, &batch.etag_number) {
                (Some(tags), _) => tags.shared(&self.source, row)?,
                (None, Some(numbers)) => {
                    numbers.get(row).and_then(|number| tables.etags.get(number as usize)).cloned()
                }
                (None, None) => None,
            };
            let extent = part.as_ref().map(|(_, range)| (range.start, length));
            let made = batch.made.as_ref().zip(extent);
            let made = made.and_then(|(made, extent)| made.parts(&tables.recipes, row, extent));
            let (modified, changed) = (modified.map(u64::cast_signed), changed.map(|digest| digest as u32));
            let files = batch.files.as_ref().map_or(Ok(None), |files| files.shared(&self.source, row))?;
            Ok(CatalogRow { object, part, files, made, length, modified, changed, etag })
        })())
    }

    /// The sample's name in its object. `None` if there is no such row or it has no name.
    pub(crate) fn key(&self, row: u64) -> Result<Option<Cow<'_, str>>, CatalogFault> {
        let Some((batch, row)) = self.find(row) else { return Ok(None) };
        batch.key.as_ref().map_or(Ok(None), |keys| keys.get(&self.source, row))
    }

    /// The CRC-32C of a row's bytes, if it has one.
    pub(crate) fn crc32c(&self, row: u64) -> Option<u32> {
        let (batch, row) = self.find(row)?;
        batch.crc32c.as_ref()?.get(row).map(|sum| sum as u32)
    }

    /// The row's value in the column of servers.
    pub(crate) fn server(&self, row: u64) -> Option<u32> {
        let (batch, row) = self.find(row)?;
        batch.server.as_ref()?.get(row).map(|server| server as u32)
    }

    /// Whether the catalog has a column of servers.
    pub(crate) fn has_servers(&self) -> bool {
        self.parts.batches.iter().any(|batch| batch.server.is_some())
    }

    /// The number of objects.
    pub(crate) fn objects(&self) -> u64 {
        match self.parts.tables.objects.len() as u64 {
            0 => self.parts.samples,
            shards => shards,
        }
    }

    /// The names of the columns of values.
    pub(crate) fn value_names(&self) -> &[String] {
        &self.parts.value_names
    }

    /// The row's value in the column of this number in [`value_names`](Self::value_names).
    pub(crate) fn value(&self, row: u64, column: usize) -> Result<Option<StoredValue<'_>>, CatalogFault> {
        let Some((batch, row)) = self.find(row) else { return Ok(None) };
        batch.values.get(column).map_or(Ok(None), |column| column.get(&self.source, row))
    }

    /// The row's label, by its number.
    pub(crate) fn label(&self, row: u64) -> Option<u32> {
        let (batch, row) = self.find(row)?;
        batch.label.as_ref()?.get(row).map(|label| label as u32)
    }

    /// The row's fields with their names. `None` if there is no such row or it has no fields.
    pub(crate) fn fields(&self, row: u64) -> Option<impl Iterator<Item = (&str, Range<u64>)>> {
        let (batch, row) = self.find(row)?;
        Some(batch.fields.as_ref()?.of(row).filter_map(|field| {
            let name = self.parts.field_names.get(field.name)?;
            Some((&**name, field.offset..field.offset + field.length))
        }))
    }

    /// The number of a sample in its object: as stored in parts of a dataset, else the number of
    /// rows before it that belong to the same object.
    pub(crate) fn number_in_object(&self, row: u64) -> u64 {
        let object = |row: u64| {
            let (batch, row) = self.find(row)?;
            Some(batch.object.as_ref()?.get(row))
        };
        let this = object(row);
        // Rows are sorted by object.
        let (mut before, mut from) = (0, row);
        while before < from {
            let middle = before + (from - before) / 2;
            match object(middle) < this {
                true => before = middle + 1,
                false => from = middle,
            }
        }
        row - before
    }
}

impl DecodedCatalog {
    fn of(source: &CatalogBytes) -> Result<Self, CatalogFault> {
        let (mut room, mut tail) = (Vec::new(), Vec::new());
        let length = source.length();
        if length < MAGIC.len() as u64 || source.read(0..MAGIC.len() as u64, &mut room)? != MAGIC {
            return Err(foreign("it does not begin as an Arrow file does"));
        }
        let start = tail_start(source, &mut room)?;
        let tail = source.read(start..length, &mut tail)?;
        let digits = checksum_digits(tail)?;
        let mut pass = ChecksumPass::new(source, room);
        let parts = Self::decode(&footer(tail)?, &mut pass, start);
        pass.skip_to(start)?;
        let checksum = pass.finish(tail, &digits);
        // The checksum is checked first, because other faults are its consequence.
        if tail[digits.clone()] != *checksum.as_bytes() {
            return Err(corrupt("its checksum does not match: the file was damaged or edited"));
        }
        let digits = start + digits.start as u64..start + digits.end as u64;
        Ok(Self { digits, checksum, ..parts? })
    }

    /// Decodes everything before the footer, which begins at `end`.
    fn decode(footer: &Footer<'_>, pass: &mut ChecksumPass<'_>, end: u64) -> Result<Self, CatalogFault> {
        let schema = footer.schema().ok_or_else(|| corrupt("it has no schema"))?;
        let metadata: BTreeMap<String, String> = (schema.custom_metadata().into_iter().flatten())
            .filter_map(|pair| Some((pair.key()?.to_owned(), pair.value()?.to_owned())))
            .collect();
        let columns = ColumnSet::of(&schema)?;
        let is_ordered = metadata.contains_key(ORDERED_KEY);
        let mut dictionaries = BTreeMap::new();
        for block in footer.dictionaries().into_iter().flatten() {
            let (id, texts) = dictionary(pass.block(block, end)?, block, is_ordered)?;
            if dictionaries.insert(id, texts).is_some() {
                return Err(corrupt("it has two dictionaries of one number"));
            }
        }
        let mut table = |id: Option<i64>| id.and_then(|id| dictionaries.remove(&id)).unwrap_or_default();
        let mut decoder = BatchDecoder::new(is_ordered);
        decoder.tables = Dictionaries {
            labels: table(columns.label),
            objects: table(columns.object),
            etags: table(columns.etags),
            values: columns
                .values
                .iter()
                .map(|column| column.dictionary.map(|id| table(Some(id)).into()))
                .collect(),
            recipes: columns::made::recipes_of(metadata.get(RECIPES_KEY).map(String::as_str))?,
        };
        if !dictionaries.is_empty() {
            return Err(corrupt("it has more dictionaries than columns for them"));
        }
        let mut batches: Vec<BatchColumns> = Vec::new();
        for block in footer.recordBatches().into_iter().flatten() {
            let bytes = pass.block(block, end)?;
            let batch = batch(bytes, block, &columns)?;
            batches.push(decoder.batch(&batch, bytes, place(block)?.start)?);
        }
        let rows_per_batch = batches.first().map_or(1, |batch| batch.rows);
        let (last, full) = batches.split_last().ok_or_else(|| corrupt("it has no samples"))?;
        if full.iter().any(|batch| batch.rows != rows_per_batch) || last.rows > rows_per_batch {
            return Err(corrupt("its batches are not of one length"));
        }
        let (samples, sizes) = decoder.sizes();
        let stored = decoder.stored_sizes();
        Ok(Self {
            metadata,
            field_names: decoder.names.into_names(),
            tables: decoder.tables,
            batches,
            rows_per_batch: rows_per_batch as u64,
            value_names: columns.values.into_iter().map(|column| column.name).collect(),
            run_ends: RunEnds(decoder.run_ends),
            samples,
            sizes,
            stored,
            digits: 0..0,
            checksum: String::new(),
        })
    }
}

impl PackedColumns for DecodedCatalog {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        self.batches.iter_mut().for_each(|batch| batch.each_column(visit));
        for sizes in [Some(&mut self.sizes), self.stored.as_mut()].into_iter().flatten() {
            sizes.table_mut().into_iter().for_each(&mut *visit);
        }
    }
}
