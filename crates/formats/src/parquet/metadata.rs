//! The metadata at the end of a Parquet file: the columns, and where their chunks lie.
//!
//! Decision: a parser of our own. The crate `parquet` 60.1 recurses once per level of a schema
//! without a limit, and reserves memory for as many children as a schema declares. A small hostile
//! file could end the process by it. Only two columns are needed, so the others are skipped, and
//! wide tables take little memory. The price is that encrypted metadata is not read.

use super::thrift::{Kind, Thrift};

/// The depth of nested columns.
const MAX_DEPTH: usize = 64;

/// The most bytes of all paths. Columns share the names of the groups around them.
const MAX_PATHS: usize = 1 << 24;

/// The physical type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Physical {
    Boolean,
    Int32,
    Int64,
    Float,
    Double,
    ByteArray,
    /// Values of equal length in bytes.
    Fixed(u64),
    Other,
}

/// The meaning of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// No more than the physical type.
    Plain,
    Text,
    Signed,
    Unsigned,
    Other,
}

/// A column.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// The names from the root, joined by dots.
    pub(super) path: String,
    pub(super) physical: Physical,
    pub(super) meaning: Meaning,
    /// The definition level of a value that is present.
    pub(super) max_definition: u32,
    /// Whether it is in a list.
    pub(super) is_repeated: bool,
}

/// The chunk of a column in a row group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) codec: i64,
    pub(super) values: u64,
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) has_dictionary: bool,
    /// Whether it is encrypted or in another file.
    pub(super) is_elsewhere: bool,
    /// Offset and length of the offset index.
    pub(super) offset_index: Option<(u64, u64)>,
}

/// A row group: its rows, and the chunks of the wanted columns.
#[derive(Clone, Debug)]
pub(super) struct RowGroup {
    pub(super) rows: u64,
    pub(super) chunks: Vec<Chunk>,
}

/// One element of the schema, in depth-first order.
#[derive(Default)]
struct Element<'a> {
    name: &'a str,
    physical: Option<i64>,
    width: i64,
    repetition: i64,
    children: u64,
    meaning: Option<Meaning>,
    converted: Option<i64>,
}

/// The columns of a file. `None` if the metadata is malformed.
pub(super) fn leaves(metadata: &[u8]) -> Option<Vec<Leaf>> {
    let mut schema = Schema::default();
    Thrift::new(metadata).fields(|thrift, id, kind| match id {
        2 => thrift.structs(kind, |thrift| schema.add(element(thrift)?)),
        _ => thrift.skip(kind),
    })?;
    (schema.groups.is_empty() && schema.has_root).then_some(schema.leaves)
}

fn element<'a>(thrift: &mut Thrift<'a>) -> Option<Element<'a>> {
    let mut element = Element::default();
    thrift.fields(|thrift, id, kind| {
        match id {
            1 => element.physical = Some(thrift.integer(kind)?),
            2 => element.width = thrift.integer(kind)?,
            3 => element.repetition = thrift.integer(kind)?,
            4 => element.name = thrift.text(kind)?,
            5 => element.children = thrift.unsigned(kind)?,
            6 => element.converted = Some(thrift.integer(kind)?),
            10 if kind == Kind::Struct => element.meaning = Some(logical(thrift)?),
            _ => thrift.skip(kind)?,
        }
        Some(())
    })?;
    Some(element)
}

/// The union `LogicalType`.
fn logical(thrift: &mut Thrift<'_>) -> Option<Meaning> {
    let mut meaning = Meaning::Other;
    thrift.fields(|thrift, id, kind| {
        match (id, kind) {
            (1, _) => meaning = Meaning::Text,
            (10, Kind::Struct) => {
                return thrift.fields(|thrift, id, kind| {
                    if id == 2 {
                        let is_signed = thrift.boolean(kind)?;
                        meaning = if is_signed { Meaning::Signed } else { Meaning::Unsigned };
                        return Some(());
                    }
                    thrift.skip(kind)
                });
            }
            _ => {}
        }
        thrift.skip(kind)
    })?;
    Some(meaning)
}

impl Element<'_> {
    fn physical(&self) -> Option<Physical> {
        Some(match self.physical? {
            0 => Physical::Boolean,
            1 => Physical::Int32,
            2 => Physical::Int64,
            4 => Physical::Float,
            5 => Physical::Double,
            6 => Physical::ByteArray,
            7 => Physical::Fixed(self.width.try_into().ok()?),
            _ => Physical::Other,
        })
    }

    fn meaning(&self) -> Meaning {
        match (self.meaning, self.converted) {
            (Some(meaning), _) => meaning,
            (None, None) => Meaning::Plain,
            (None, Some(0)) => Meaning::Text,
            (None, Some(11..=14)) => Meaning::Unsigned,
            (None, Some(15..=18)) => Meaning::Signed,
            (None, Some(_)) => Meaning::Other,
        }
    }
}

/// A group whose children are not complete.
struct Group {
    missing: u64,
    path: String,
    max_definition: u32,
    is_repeated: bool,
}

#[derive(Default)]
struct Schema {
    has_root: bool,
    groups: Vec<Group>,
    leaves: Vec<Leaf>,
    /// The number of bytes of all paths.
    paths: usize,
}

impl Schema {
    /// Adds the next element. `None` if it has no place in the tree.
    fn add(&mut self, element: Element<'_>) -> Option<()> {
        let (path, definition, is_repeated) = match self.groups.last_mut() {
            None if self.has_root => return None,
            None => (String::new(), 0, false),
            Some(group) => {
                group.missing -= 1;
                let is_top = group.path.is_empty();
                let path = if is_top { element.name.into() } else { group.path.clone() + "." + element.name };
                let is_optional = element.repetition != 0;
                let definition = group.max_definition + u32::from(is_optional);
                (path, definition, group.is_repeated || element.repetition == 2)
            }
        };
        self.paths += path.len();
        if self.paths > MAX_PATHS || self.groups.len() > MAX_DEPTH {
            return None;
        }
        if element.children > 0 || !self.has_root {
            let missing = element.children;
            self.groups.push(Group { missing, path, max_definition: definition, is_repeated });
        } else if element.physical.is_some() {
            let (physical, meaning) = (element.physical()?, element.meaning());
            self.leaves.push(Leaf { path, physical, meaning, max_definition: definition, is_repeated });
        }
        self.has_root = true;
        while self.groups.last().is_some_and(|group| group.missing == 0) {
            self.groups.pop();
        }
        Some(())
    }
}

/// The row groups with the chunks of `wanted` columns, in the order of `wanted`. `None` if the
/// metadata is malformed.
pub(super) fn row_groups(metadata: &[u8], wanted: &[usize]) -> Option<Vec<RowGroup>> {
    let mut groups = Vec::new();
    Thrift::new(metadata).fields(|thrift, id, kind| match id {
        4 => thrift.structs(kind, |thrift| {
            groups.push(row_group(thrift, wanted)?);
            Some(())
        }),
        _ => thrift.skip(kind),
    })?;
    Some(groups)
}

fn row_group(thrift: &mut Thrift<'_>, wanted: &[usize]) -> Option<RowGroup> {
    let (mut rows, mut column) = (None, 0);
    let mut chunks = vec![None; wanted.len()];
    thrift.fields(|thrift, id, kind| {
        match id {
            1 => thrift.structs(kind, |thrift| {
                match wanted.iter().position(|&wanted| wanted == column) {
                    Some(place) => chunks[place] = Some(chunk(thrift)?),
                    None => thrift.skip(Kind::Struct)?,
                }
                column += 1;
                Some(())
            })?,
            3 => rows = Some(thrift.unsigned(kind)?),
            _ => thrift.skip(kind)?,
        }
        Some(())
    })?;
    Some(RowGroup { rows: rows?, chunks: chunks.into_iter().collect::<Option<_>>()? })
}

/// A column chunk.
fn chunk(thrift: &mut Thrift<'_>) -> Option<Chunk> {
    let mut chunk = Chunk::default();
    let (mut index_offset, mut index_length) = (None, None);
    let mut has_metadata = false;
    thrift.fields(|thrift, id, kind| {
        match id {
            1 | 8 | 9 => {
                chunk.is_elsewhere = true;
                thrift.skip(kind)?;
            }
            3 if kind == Kind::Struct => {
                has_metadata = true;
                chunk_metadata(thrift, &mut chunk)?;
            }
            4 => index_offset = Some(thrift.unsigned(kind)?),
            5 => index_length = Some(thrift.unsigned(kind)?),
            _ => thrift.skip(kind)?,
        }
        Some(())
    })?;
    chunk.offset_index = index_offset.zip(index_length).filter(|&(_, length)| length > 0);
    (has_metadata || chunk.is_elsewhere).then_some(chunk)
}

fn chunk_metadata(thrift: &mut Thrift<'_>, chunk: &mut Chunk) -> Option<()> {
    let (mut values, mut length, mut data, mut dictionary) = (None, None, None, None);
    thrift.fields(|thrift, id, kind| {
        match id {
            4 => chunk.codec = thrift.integer(kind)?,
            5 => values = Some(thrift.unsigned(kind)?),
            7 => length = Some(thrift.unsigned(kind)?),
            9 => data = Some(thrift.unsigned(kind)?),
            // Some writers set 0 for none.
            11 => dictionary = Some(thrift.unsigned(kind)?).filter(|&at| at > 0),
            _ => thrift.skip(kind)?,
        }
        Some(())
    })?;
    (chunk.values, chunk.length) = (values?, length?);
    chunk.start = dictionary.map_or(data?, |dictionary: u64| dictionary.min(data.unwrap_or(dictionary)));
    chunk.has_dictionary = dictionary.is_some();
    Some(())
}

/// A page in an offset index: its offset, its length with its header, and its first row.
pub(super) type PagePlace = (u64, u64, u64);

/// The pages of an offset index.
pub(super) fn offset_index(bytes: &[u8]) -> Option<Vec<PagePlace>> {
    let mut pages = Vec::new();
    Thrift::new(bytes).fields(|thrift, id, kind| match id {
        1 => thrift.structs(kind, |thrift| {
            let (mut offset, mut length, mut row) = (None, None, None);
            thrift.fields(|thrift, id, kind| {
                match id {
                    1 => offset = Some(thrift.unsigned(kind)?),
                    2 => length = Some(thrift.unsigned(kind)?),
                    3 => row = Some(thrift.unsigned(kind)?),
                    _ => thrift.skip(kind)?,
                }
                Some(())
            })?;
            pages.push((offset?, length?, row?));
            Some(())
        }),
        _ => thrift.skip(kind),
    })?;
    Some(pages)
}

/// The name of a codec.
pub(super) fn codec_name(codec: i64) -> String {
    let names = ["UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"];
    name(&names, codec)
}

/// The name of an encoding.
pub(super) fn encoding_name(encoding: i64) -> String {
    let names = [
        "PLAIN",
        "1",
        "PLAIN_DICTIONARY",
        "RLE",
        "BIT_PACKED",
        "DELTA_BINARY_PACKED",
        "DELTA_LENGTH_BYTE_ARRAY",
        "DELTA_BYTE_ARRAY",
        "RLE_DICTIONARY",
        "BYTE_STREAM_SPLIT",
    ];
    name(&names, encoding)
}

fn name(names: &[&str], number: i64) -> String {
    let name = usize::try_from(number).ok().and_then(|number| names.get(number));
    name.map_or_else(|| format!("number {number}"), |&name| name.to_owned())
}
