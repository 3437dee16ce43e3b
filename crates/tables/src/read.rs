//! Reading a table: bytes of a file, or batches of Arrow, as columns.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::io::{Cursor, Read};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use foreread_dataset::{DatasetError, DatasetErrorKind};
use foreread_types::setting;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use crate::column::{self, Column};
use crate::options::PATHS;
use crate::{TableKind, TableOptions};

/// Rows that are parsed at once.
const ROWS: usize = 65_536;

/// A table in memory.
#[derive(Clone, Debug)]
pub struct SampleTable {
    name: String,
    /// The names of all columns of the file, also of columns that were not read.
    names: Vec<String>,
    columns: Vec<(String, ArrayRef)>,
    rows: usize,
    /// Whether the file has no types, so that texts may be numbers.
    is_untyped: bool,
}

impl SampleTable {
    /// Reads the columns that `options` need from the bytes of a file. `name` is the table's in
    /// messages. Files that begin as gzip does are decompressed.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Invalid`] if the bytes are no such table, a column is missing or two
    /// have one name.
    pub fn read(
        name: &str,
        kind: TableKind,
        bytes: Bytes,
        options: &TableOptions,
    ) -> Result<Self, DatasetError> {
        Self::read_columns(name, kind, bytes, Some(options))
    }

    /// Reads all columns, whatever their names: a Parquet or CSV file in parts of some rows, one
    /// after another, and any other as a whole.
    pub(crate) fn read_in_parts(
        name: &str,
        kind: TableKind,
        bytes: Bytes,
    ) -> Result<Box<dyn Iterator<Item = Result<Self, DatasetError>> + Send>, DatasetError> {
        type Parts = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;
        let bytes = decompressed(name, bytes)?;
        let (found, batches): (Found, Parts) = match kind {
            TableKind::Parquet => {
                let (found, batches) = parquet_batches(name, bytes, None)?;
                (found, Box::new(batches))
            }
            TableKind::Csv | TableKind::Tsv => {
                let (found, batches) = csv_batches(name, bytes, kind, None)?;
                (found, Box::new(batches))
            }
            _ => return Ok(Box::new(std::iter::once(Self::read_columns(name, kind, bytes, None)))),
        };
        let (name, is_untyped) = (name.to_owned(), kind != TableKind::Parquet);
        let mut batches = batches.peekable();
        if batches.peek().is_none() {
            // Its columns are looked at all the same.
            return Ok(Box::new(std::iter::once(Self::of(&name, &found, Vec::new(), is_untyped))));
        }
        Ok(Box::new(batches.map(move |batch| {
            let batch = batch.map_err(|error| invalid(&name, plain(&error)))?;
            Self::of(&name, &found, vec![batch], is_untyped)
        })))
    }

    fn read_columns(
        name: &str,
        kind: TableKind,
        bytes: Bytes,
        options: Option<&TableOptions>,
    ) -> Result<Self, DatasetError> {
        let bytes = decompressed(name, bytes)?;
        let batches = match kind {
            TableKind::Csv | TableKind::Tsv => csv(name, bytes, kind, options),
            TableKind::Json => json(name, &bytes, options),
            TableKind::Parquet => parquet(name, bytes, options),
            TableKind::Arrow => arrow(name, &bytes),
            TableKind::Lines => lines_of(name, &bytes, options),
        };
        let (schema, batches) = batches?;
        let is_untyped = matches!(kind, TableKind::Csv | TableKind::Tsv | TableKind::Lines);
        Self::of(name, &schema, batches, is_untyped)
    }

    fn of(
        name: &str,
        found: &Found,
        batches: Vec<RecordBatch>,
        is_untyped: bool,
    ) -> Result<Self, DatasetError> {
        let failed = |error: ArrowError| invalid(name, error);
        let mut columns = Vec::new();
        for (at, field) in found.read.fields().iter().enumerate() {
            // Texts of 2 GiB and more together have wide offsets.
            let wide = |array: &ArrayRef| match array.data_type() {
                DataType::Utf8 | DataType::Utf8View => {
                    column::texts(array).map(|texts| Arc::new(texts) as ArrayRef)
                }
                _ => Ok(Arc::clone(array)),
            };
            let parts = batches.iter().map(|batch| wide(batch.column(at)));
            let parts: Vec<ArrayRef> =
                parts.collect::<Result<_, String>>().map_err(|why| invalid(name, why))?;
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            let column = match parts.is_empty() {
                true => column::empty(field.data_type()),
                false => concat(&parts).map_err(failed)?,
            };
            columns.push((field.name().clone(), column));
        }
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        Ok(Self { name: name.to_owned(), names: found.names.clone(), columns, rows, is_untyped })
    }

    /// The table's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of all columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The same without a prefix of the names of some columns, which come first. Of two columns
    /// with one name, the first one counts.
    pub(crate) fn values_first(mut self, prefix: &str) -> Self {
        self.columns.sort_by_key(|(name, _)| !name.starts_with(prefix));
        for (name, _) in &mut self.columns {
            *name = name.strip_prefix(prefix).unwrap_or(name).to_owned();
        }
        self.names = self.columns.iter().map(|(name, _)| name.clone()).collect();
        self
    }

    /// The same with a further name of a column.
    pub(crate) fn with_alias(mut self, alias: &str, name: &str) -> Self {
        let found = self.columns.iter().find(|(known, _)| known == name).map(|(_, array)| Arc::clone(array));
        if let Some(array) = found {
            self.names.push(alias.to_owned());
            self.columns.push((alias.to_owned(), array));
        }
        self
    }

    pub(crate) const fn is_untyped(&self) -> bool {
        self.is_untyped
    }

    /// The columns that were read.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// A column as it was read. `what` names the setting that wants it.
    pub(crate) fn array(&self, name: &str, what: &str) -> Result<&ArrayRef, DatasetError> {
        let found = self.columns.iter().find(|(known, _)| known == name).map(|(_, array)| array);
        found.ok_or_else(|| no_column(&self.name, &self.names, name, what))
    }

    /// A column as one of a catalog's types.
    pub(crate) fn column(&self, name: &str, what: &str) -> Result<Column, DatasetError> {
        let column = Column::of(self.array(name, what)?, self.is_untyped);
        column.map_err(|why| self.invalid(format!("the column {name:?} cannot be used: {why}")))
    }

    /// An error about this table.
    pub(crate) fn invalid(&self, why: impl fmt::Display) -> DatasetError {
        invalid(&self.name, why)
    }
}

fn invalid(name: &str, why: impl fmt::Display) -> DatasetError {
    DatasetError::new(DatasetErrorKind::Invalid, format!("{name}: {why}"))
}

fn no_column(table: &str, names: &[String], name: &str, what: &str) -> DatasetError {
    let all: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    invalid(table, format!("there is no column {name:?}, which {what} names; it has {}", all.join(", ")))
}

/// The columns of a file, and the columns that are read.
struct Found {
    names: Vec<String>,
    read: SchemaRef,
}

impl Found {
    fn all(schema: &SchemaRef) -> Self {
        let names = schema.fields().iter().map(|field| field.name().clone()).collect();
        Self { names, read: Arc::clone(schema) }
    }

    /// The wanted columns of a file with these.
    fn of(
        table: &str,
        schema: &Schema,
        options: Option<&TableOptions>,
    ) -> Result<(Self, Vec<usize>), DatasetError> {
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        check_names(table, schema)?;
        let wanted: Option<BTreeSet<String>> = match options {
            Some(options) => options.wanted(&path_names(table, &names, options)?),
            None => None,
        };
        let is_wanted = |name: &String| wanted.as_ref().is_none_or(|wanted| wanted.contains(name));
        let at: Vec<usize> = (0..names.len()).filter(|at| is_wanted(&names[*at])).collect();
        let read = Arc::new(schema.project(&at).map_err(|error| invalid(table, error))?);
        Ok((Self { names, read }, at))
    }
}

/// Refuses two columns of one name.
fn check_names(table: &str, schema: &Schema) -> Result<(), DatasetError> {
    let mut seen = HashSet::new();
    match schema.fields().iter().find(|field| !seen.insert(field.name().as_str())) {
        Some(twice) => {
            Err(invalid(table, format!("two columns have the name {:?}; rename one", twice.name())))
        }
        None => Ok(()),
    }
}

/// The columns of paths: one for each field of samples of several files.
pub(crate) fn path_names(
    table: &str,
    names: &[String],
    options: &TableOptions,
) -> Result<Vec<String>, DatasetError> {
    let given: Vec<&String> = match options.fields.is_empty() {
        true => options.path.iter().collect(),
        false => options.fields.iter().map(|(_, column)| column).collect(),
    };
    if let Some(unknown) = given.iter().find(|name| !names.contains(name)) {
        return Err(no_column(table, names, unknown, &setting("path").to_string()));
    }
    if !given.is_empty() {
        return Ok(given.into_iter().cloned().collect());
    }
    let known: Vec<&String> = names.iter().filter(|name| PATHS.contains(&name.as_str())).collect();
    match known[..] {
        [only] => Ok(vec![only.clone()]),
        _ => {
            let all: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            let path = setting("path");
            Err(invalid(table, format!("set {path} to the column with the files; it has {}", all.join(", "))))
        }
    }
}

type Batches = Result<(Found, Vec<RecordBatch>), DatasetError>;

fn decompressed(name: &str, bytes: Bytes) -> Result<Bytes, DatasetError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    let read = MultiGzDecoder::new(&bytes[..]).read_to_end(&mut plain);
    read.map_err(|error| invalid(name, format!("it cannot be decompressed: {error}")))?;
    Ok(plain.into())
}

/// Bytes without a mark of their order, if they are UTF-8.
fn utf8<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a [u8], DatasetError> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(invalid(name, "it is UTF-16; save it as UTF-8"));
    }
    Ok(bytes.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(bytes))
}

fn csv(name: &str, bytes: Bytes, kind: TableKind, options: Option<&TableOptions>) -> Batches {
    let (found, batches) = csv_batches(name, bytes, kind, options)?;
    Ok((found, batches.collect::<Result<_, _>>().map_err(|error| invalid(name, plain(&error)))?))
}

/// All values of CSV are read as texts. Only a whole column shows its type.
fn csv_batches(
    name: &str,
    bytes: Bytes,
    kind: TableKind,
    options: Option<&TableOptions>,
) -> Result<(Found, arrow_csv::reader::BufReader<Cursor<Bytes>>), DatasetError> {
    let failed = |error: ArrowError| invalid(name, plain(&error));
    let delimiter = if kind == TableKind::Tsv { b'\t' } else { b',' };
    let bytes = bytes.slice_ref(utf8(name, &bytes)?);
    if let Some(line) = unclosed(&bytes, delimiter) {
        return Err(invalid(name, format!("line {line}: a value begins with a quote and does not end")));
    }
    let format = arrow_csv::reader::Format::default().with_header(true).with_delimiter(delimiter);
    let (head, _) = format.infer_schema(Cursor::new(&bytes), Some(0)).map_err(failed)?;
    let fields = head.fields().iter().map(|field| Field::new(field.name().trim(), DataType::Utf8, true));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    if schema.fields().is_empty() {
        return Err(invalid(name, "it is empty; its first line must have the names of the columns"));
    }
    let (found, at) = Found::of(name, &schema, options)?;
    let reader = arrow_csv::ReaderBuilder::new(Arc::new(schema));
    let reader = reader.with_format(format).with_batch_size(ROWS).with_projection(at);
    Ok((found, reader.build_buffered(Cursor::new(bytes)).map_err(failed)?))
}

/// The path and the label in a line.
fn with_label(line: &str) -> Option<(&str, &str)> {
    let (path, label) = line.rsplit_once([' ', '\t'])?;
    label.parse::<i64>().ok()?;
    Some((path.trim_end(), label))
}

/// Paths, one in each line, with labels if all lines have one.
fn lines_of(name: &str, bytes: &[u8], options: Option<&TableOptions>) -> Batches {
    let text = std::str::from_utf8(utf8(name, bytes)?).map_err(|error| invalid(name, error))?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let parts: Option<Vec<(&str, &str)>> = lines.iter().map(|line| with_label(line)).collect();
    let texts = |texts: Vec<&str>| Arc::new(StringArray::from(texts)) as ArrayRef;
    let columns = match parts {
        Some(parts) => {
            let (paths, labels) = parts.into_iter().unzip();
            vec![("path", texts(paths)), ("label", texts(labels))]
        }
        None => vec![("path", texts(lines))],
    };
    let batch = RecordBatch::try_from_iter(columns).map_err(|error| invalid(name, error))?;
    let (found, at) = Found::of(name, &batch.schema(), options)?;
    let batch = batch.project(&at).map_err(|error| invalid(name, error))?;
    Ok((found, vec![batch]))
}

fn json(name: &str, bytes: &[u8], options: Option<&TableOptions>) -> Batches {
    let bytes = lines(name, utf8(name, bytes)?)?;
    let failed = |error: ArrowError| {
        let why = wrong_line(&bytes);
        why.map_or_else(|| invalid(name, plain(&error)), |why| invalid(name, why))
    };
    let (schema, _) = arrow_json::reader::infer_json_schema(Cursor::new(&bytes), None).map_err(failed)?;
    let (found, _) = Found::of(name, &schema, options)?;
    let has_floats = found.read.fields().iter().any(|field| field.data_type() == &DataType::Float64);
    if has_floats && let Some(number) = long_integer(&bytes) {
        return Err(invalid(name, format!("the integer {number} is longer than 64 bits; make it a text")));
    }
    let reader = arrow_json::ReaderBuilder::new(Arc::clone(&found.read)).with_batch_size(ROWS);
    let batches = reader.build(Cursor::new(&bytes)).map_err(failed)?;
    Ok((found, batches.collect::<Result<_, _>>().map_err(failed)?))
}

/// The first line that is no record, or has a value of another type than a line before it. For
/// messages: readers of whole blocks do not know lines.
fn wrong_line(lines: &[u8]) -> Option<String> {
    let mut kinds: HashMap<String, (usize, &'static str)> = HashMap::new();
    for (number, line) in (1..).zip(lines.split(|byte| *byte == b'\n')) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let record = match serde_json::from_slice::<serde_json::Value>(line) {
            Ok(serde_json::Value::Object(record)) => record,
            Ok(_) => return Some(format!("line {number} is no record with names")),
            Err(error) => return Some(format!("line {number} is no JSON: {error}")),
        };
        for (column, value) in record {
            let kind = match value {
                serde_json::Value::Null => continue,
                serde_json::Value::Bool(_) => "true or false",
                serde_json::Value::Number(_) => "a number",
                serde_json::Value::String(_) => "a text",
                serde_json::Value::Array(_) => "a list",
                serde_json::Value::Object(_) => "a record",
            };
            let (first, before) = *kinds.entry(column.clone()).or_insert((number, kind));
            if before != kind {
                return Some(format!("{column:?} is {before} in line {first}, and {kind} in line {number}"));
            }
        }
    }
    None
}

/// An integer that would lose digits as a number with a fraction.
fn long_integer(lines: &[u8]) -> Option<u64> {
    let records = serde_json::Deserializer::from_slice(lines).into_iter::<serde_json::Value>();
    let too_long = |value: &serde_json::Value| value.as_u64().filter(|_| value.as_i64().is_none());
    records.map_while(Result::ok).find_map(|record| record.as_object()?.values().find_map(too_long))
}

/// The records of a list as lines.
fn lines<'a>(name: &str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, DatasetError> {
    if !bytes.trim_ascii_start().starts_with(b"[") {
        return Ok(Cow::Borrowed(bytes));
    }
    let records: Vec<serde_json::Value> = serde_json::from_slice(bytes)
        .map_err(|error| invalid(name, format!("it is no list of records: {error}")))?;
    let mut lines = Vec::with_capacity(bytes.len());
    for record in records {
        serde_json::to_writer(&mut lines, &record).map_err(|error| invalid(name, error))?;
        lines.push(b'\n');
    }
    Ok(Cow::Owned(lines))
}

fn parquet(name: &str, bytes: Bytes, options: Option<&TableOptions>) -> Batches {
    let (found, batches) = parquet_batches(name, bytes, options)?;
    Ok((found, batches.collect::<Result<_, _>>().map_err(|error| invalid(name, error))?))
}

fn parquet_batches(
    name: &str,
    bytes: Bytes,
    options: Option<&TableOptions>,
) -> Result<(Found, ParquetRecordBatchReader), DatasetError> {
    let broken = |error: parquet::errors::ParquetError| invalid(name, error);
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(broken)?;
    let (found, at) = Found::of(name, reader.schema(), options)?;
    let columns = ProjectionMask::roots(reader.parquet_schema(), at);
    let batches = reader.with_projection(columns).with_batch_size(ROWS).build().map_err(broken)?;
    Ok((found, batches))
}

/// The line in which a quoted value begins that does not end.
fn unclosed(bytes: &[u8], delimiter: u8) -> Option<usize> {
    let (mut line, mut begun, mut is_start) = (1, None, true);
    let mut rest = bytes.iter().peekable();
    while let Some(&byte) = rest.next() {
        line += usize::from(byte == b'\n');
        match begun {
            // Two quotes in a quoted value are one of it.
            Some(_) if byte == b'"' => begun = if rest.next_if_eq(&&b'"').is_some() { begun } else { None },
            Some(_) => {}
            None => {
                begun = (is_start && byte == b'"').then_some(line);
                is_start = byte == delimiter || byte == b'\n' || byte == b'\r';
            }
        }
    }
    begun
}

fn arrow(name: &str, bytes: &[u8]) -> Batches {
    let failed = |error: ArrowError| invalid(name, error);
    let (schema, batches): (SchemaRef, Result<Vec<_>, ArrowError>) = match bytes.starts_with(b"ARROW1") {
        true => {
            let reader = FileReader::try_new(Cursor::new(bytes), None).map_err(failed)?;
            (reader.schema(), reader.collect())
        }
        false => {
            let reader = StreamReader::try_new(Cursor::new(bytes), None).map_err(failed)?;
            (reader.schema(), reader.collect())
        }
    };
    check_names(name, &schema)?;
    Ok((Found::all(&schema), batches.map_err(failed)?))
}

/// The text of an error without the name of its kind.
fn plain(error: &ArrowError) -> String {
    match error {
        ArrowError::CsvError(why) | ArrowError::JsonError(why) | ArrowError::ParseError(why) => why.clone(),
        other => other.to_string(),
    }
}
