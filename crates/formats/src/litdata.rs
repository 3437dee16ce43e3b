//! LitData: an `index.json`, and chunks of samples that are trees of values.
//!
//! [`parse_index`] reads the index. [`index`] finds the samples of a chunk. A sample is one extent:
//! the sizes of all leaves of its tree, and then the leaves. They are its fields, named by their
//! paths in the tree, such as `meta.label`. A label is read with them: a leaf of numbers, or of
//! texts of at most 64 bytes. [`windows`] cuts chunks of tokens into windows, as LitData's
//! `TokensLoader` does.
//!
//! Recent versions of LitData write an Arrow table instead of the leaves, if samples are dicts of
//! plain values and pyarrow is installed. Each value lies in its column. So such samples are read
//! if they have one value next to the label: the sample is the value.
//!
//! Chunks that are compressed with Zstandard have frames of one sample, of 256, or of all. A sample
//! is then a slice of a decoded frame.
//!
//! Refused are encrypted chunks, and tables with several values per sample.

mod packed;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::arrow_stream::{self, ArrowOptions};
use crate::element::ElementType;
use crate::found::{Extents, FieldExtent, FoundSamples};
use crate::parts::{self, PartValue, SampleLayout, SamplePart, StoredSizes};
use crate::source::FilePart;
use crate::tokens::{self, WindowOptions};
use crate::{BlockReader, FileSource, FormatError, le};
pub use packed::LitCompression;
use packed::Unpacked;

/// The longest name of a leaf in bytes. Leaves with longer paths are named by number.
const NAME: usize = 256;

/// The end of a chunk if an Arrow table follows the samples. The table's length stands before.
const ARROW: &[u8] = b"LDARW01\0";

/// NumPy's types by LitData's numbers. Later numbers depend on the version of NumPy.
const NUMPY: [&str; 11] = ["|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"];

/// PyTorch's types by LitData's numbers. Types that NumPy lacks are empty.
const TORCH: [&str; 21] = [
    "<f4", "<f4", "<f8", "<f8", "<c8", "<c8", "<c16", "<c16", "<f2", "<f2", "", "|u1", "|i1", "<i2", "<i2",
    "<i4", "<i4", "<i8", "<i8", "|b1", "<u2",
];

/// An `index.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LitIndex {
    /// The chunks in their order.
    pub chunks: Vec<LitChunk>,
    /// The leaves of each sample, in the order of their bytes.
    pub leaves: Vec<LitLeaf>,
    /// The compressed unit, if there is any.
    pub compression: Option<LitCompression>,
    /// The element type, such as `<u2`, if the chunks hold tokens for [`windows`].
    pub tokens: Option<String>,
}

/// A chunk: one file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LitChunk {
    /// The path of the file, relative to the folder of the `index.json`. It does not lead out of
    /// it.
    pub filename: String,
    /// The size of the file in bytes. If the whole chunk is compressed, its size before that.
    #[serde(rename = "chunk_bytes")]
    pub bytes: u64,
    /// The number of samples.
    #[serde(rename = "chunk_size")]
    pub samples: u64,
    /// The number of tokens, if the chunk has tokens.
    #[serde(default, rename = "dim")]
    pub tokens: Option<u64>,
}

/// A leaf of the tree that a sample is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LitLeaf {
    /// The path in the tree, joined by dots, or the leaf's number.
    pub name: String,
    /// LitData's name of the format, such as `int`, `jpeg` or `no_header_tensor:17`.
    pub format: String,
}

#[derive(Deserialize)]
struct Index {
    chunks: Vec<LitChunk>,
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    data_format: Option<Vec<String>>,
    #[serde(default)]
    data_spec: Option<String>,
    #[serde(default)]
    compression: Option<String>,
    #[serde(default)]
    compression_level: Option<String>,
    #[serde(default)]
    encryption: Value,
    #[serde(default)]
    item_loader: Option<String>,
}

/// Parses an `index.json`.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if it is none, or has a path that leads out of its
/// folder. [`Unsupported`](crate::FormatErrorKind::Unsupported) if chunks are encrypted, compressed
/// otherwise than with Zstandard, or of another loader than `PyTreeLoader` and `TokensLoader`.
pub fn parse_index(json: &[u8]) -> Result<LitIndex, FormatError> {
    let Index { chunks, config } =
        serde_json::from_slice(json).map_err(|error| parts::invalid_json("LitData", json, &error))?;
    if !config.encryption.is_null() {
        let why = "the chunks are encrypted: write them again without encryption";
        return Err(FormatError::unsupported(0, why));
    }
    let name = config.compression.filter(|name| !name.is_empty());
    let level = config.compression_level.as_deref();
    let compression = name.map(|name| LitCompression::parse(&name, level)).transpose()?;
    for chunk in &chunks {
        parts::check_name(&chunk.filename)?;
    }
    let formats = config.data_format.unwrap_or_default();
    // An index without the name of its loader is of an older version.
    let tokens = match config.item_loader.as_deref() {
        Some("TokensLoader") => true,
        Some("PyTreeLoader") => false,
        None => chunks.iter().any(|chunk| chunk.tokens.is_some()),
        Some(loader) => {
            let (loader, remedy) = (parts::shown(loader), remedy(loader));
            let why = format!("chunks of {loader}: expected PyTreeLoader or TokensLoader. {remedy}");
            return Err(FormatError::unsupported(0, why));
        }
    };
    let tokens = if tokens { Some(token_type(&formats)?) } else { None };
    if tokens.is_some() && compression.is_some() {
        let why = "the tokens are compressed: write them again with compression=None";
        return Err(FormatError::unsupported(0, why));
    }
    let names = config.data_spec.and_then(|spec| names(&spec)).filter(|names| names.len() == formats.len());
    let names = names.unwrap_or_else(|| (0..formats.len()).map(|number| number.to_string()).collect());
    let leaves = names.into_iter().zip(formats).map(|(name, format)| LitLeaf { name, format });
    Ok(LitIndex { chunks, leaves: leaves.collect(), compression, tokens })
}

fn remedy(loader: &str) -> &'static str {
    if loader == "ParquetLoader" {
        "Open the Parquet files instead"
    } else {
        "Write them again with one of them"
    }
}

/// The element type of tokens, from the only format.
fn token_type(formats: &[String]) -> Result<String, FormatError> {
    let name = match formats {
        [format] => format.split_once(':').and_then(|(kind, number)| {
            let number: usize = number.parse().ok()?;
            let names = match kind {
                "no_header_tensor" => &TORCH[..],
                "no_header_numpy" => &NUMPY[..],
                _ => return None,
            };
            names.get(number).filter(|name| !name.is_empty())
        }),
        _ => None,
    };
    name.map(|name| (*name).to_owned()).ok_or_else(|| {
        let formats = parts::listed(formats.iter().map(String::as_str));
        let why = format!("tokens of format '{formats}': expected one array of numbers, e.g. of int32");
        FormatError::unsupported(0, why)
    })
}

/// The paths of the leaves. `None` if they cannot be known, or one is too long.
fn names(spec: &str) -> Option<Vec<String>> {
    let (_, tree): (u64, Value) = serde_json::from_str(spec).ok()?;
    let mut names = Vec::new();
    collect_names(&tree, "", &mut names)?;
    Some(names)
}

/// The depth is that of the JSON, which serde_json bounds.
fn collect_names(node: &Value, path: &str, names: &mut Vec<String>) -> Option<()> {
    let children = node.get("children_spec")?.as_array()?;
    let kind = match node.get("type")? {
        Value::Null => {
            names.push(if path.is_empty() { "0".to_owned() } else { path.to_owned() });
            return children.is_empty().then_some(());
        }
        kind => kind.as_str()?,
    };
    let keys: Vec<String> = match kind {
        "builtins.dict" | "collections.OrderedDict" => {
            let keys: Vec<Value> = serde_json::from_str(node.get("context")?.as_str()?).ok()?;
            let text = |key: &Value| key.as_str().map_or_else(|| key.to_string(), str::to_owned);
            keys.iter().map(text).collect()
        }
        _ => (0..children.len()).map(|number| number.to_string()).collect(),
    };
    if keys.len() != children.len() {
        return None;
    }
    for (key, child) in keys.iter().zip(children) {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if path.is_empty() || path.len() > NAME {
            return None;
        }
        collect_names(child, &path, names)?;
    }
    Some(())
}

/// Finds the samples of a chunk, with their leaves and labels.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the file is not the chunk of the index.
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) if it has tokens, or an Arrow table with
/// several values per sample. [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
pub async fn index(
    source: &dyn FileSource,
    index: &LitIndex,
    chunk: &LitChunk,
    label: Option<&str>,
) -> Result<FoundSamples, FormatError> {
    if index.tokens.is_some() {
        return Err(FormatError::unsupported(0, "the chunk has tokens: set the length of windows"));
    }
    if index.leaves.is_empty() {
        return Err(FormatError::damaged(0, "data_format in index.json is empty: samples have no parts"));
    }
    if let Some(compression) = index.compression {
        let (unpacked, rows) = Unpacked::open(source, compression, chunk).await?;
        return unpacked.made(plain(&unpacked, index, chunk, label, rows).await?);
    }
    plain(source, index, chunk, label, None).await
}

/// The samples of a chunk without compression. `rows` are their places, if they do not stand in the
/// chunk.
async fn plain(
    source: &dyn FileSource,
    index: &LitIndex,
    chunk: &LitChunk,
    label: Option<&str>,
    rows: Option<Vec<(u64, u64)>>,
) -> Result<FoundSamples, FormatError> {
    let reader = parts::reader(source);
    let (rows, end) = match rows {
        Some(rows) => (rows, reader.size()),
        None => table(&reader, chunk).await?,
    };
    if end < reader.size() {
        let length = arrow_length(&reader, end).await?;
        // Otherwise the table repeats the samples.
        if rows.iter().all(|&(_, length)| length == 0) {
            return in_arrow(source, end, length, chunk, label).await;
        }
    }
    let mut parts: Vec<SamplePart> = index.leaves.iter().map(part).collect();
    if let Some(&(start, length)) = rows.first().filter(|_| parts.iter().any(|part| part.size.is_some())) {
        check_sizes(&reader, start, length, &mut parts).await?;
    }
    let names = parts::listed(index.leaves.iter().map(|leaf| leaf.name.as_str()));
    let summary = format!("LitData: {} samples of {names}", chunk.samples);
    let layout = SampleLayout::new(parts, StoredSizes::All)
        .ok_or_else(|| FormatError::damaged(0, "samples have too many leaves"))?;
    layout.find(&reader, rows, label, summary).await
}

fn part(leaf: &LitLeaf) -> SamplePart {
    let (size, value) = match leaf.format.as_str() {
        "int" => (Some(8), PartValue::number("int64")),
        "float" => (Some(8), PartValue::number("float64")),
        "bool" => (Some(1), PartValue::number("bool")),
        "str" => (None, PartValue::Text),
        _ => (None, PartValue::Other),
    };
    SamplePart { name: leaf.name.as_str().into(), size, value }
}

/// Checks the fixed sizes by the first sample. A serializer of a user may have the name `int`.
async fn check_sizes(
    reader: &BlockReader<'_>,
    start: u64,
    length: u64,
    parts: &mut [SamplePart],
) -> Result<(), FormatError> {
    let head = parts.len() as u64 * 4;
    if head > length {
        let why = format!("sample 0 has {length} bytes, the sizes of its leaves {head}");
        return Err(FormatError::damaged(start, why));
    }
    let head = reader.read(start, head).await?;
    for (index, part) in parts.iter_mut().enumerate() {
        if part.size.is_some() && part.size != le::u32(&head, index * 4).map(u64::from) {
            (part.size, part.value) = (None, PartValue::Other);
        }
    }
    Ok(())
}

/// Reads where the samples of a chunk lie, and where the last one ends.
async fn table(reader: &BlockReader<'_>, chunk: &LitChunk) -> Result<(Vec<(u64, u64)>, u64), FormatError> {
    check_size(reader, chunk)?;
    parts::table(reader, chunk.samples).await
}

/// Checks that the file has the size of the chunk.
fn check_size(reader: &BlockReader<'_>, chunk: &LitChunk) -> Result<(), FormatError> {
    if reader.size() != chunk.bytes {
        let why = format!("the chunk has {} bytes, its index says {}", reader.size(), chunk.bytes);
        return Err(FormatError::damaged(reader.size().min(chunk.bytes), why));
    }
    Ok(())
}

/// The length of the Arrow table that begins at `start`, after the samples.
async fn arrow_length(reader: &BlockReader<'_>, start: u64) -> Result<u64, FormatError> {
    let after = reader.size() - start;
    let last = after.min(4 + ARROW.len() as u64);
    let bytes = reader.read(reader.size() - last, last).await?;
    let length = le::u32(&bytes, 0).map(u64::from).filter(|_| bytes.get(4..) == Some(ARROW));
    length
        .filter(|length| length + last == after)
        .ok_or_else(|| FormatError::damaged(start, format!("{after} bytes after the last sample")))
}

/// The samples of a chunk in its Arrow table.
async fn in_arrow(
    source: &dyn FileSource,
    start: u64,
    length: u64,
    chunk: &LitChunk,
    label: Option<&str>,
) -> Result<FoundSamples, FormatError> {
    let part = FilePart::new(source, start, length);
    let part = part.ok_or_else(|| FormatError::cut_short(start, source.size()))?;
    let options = ArrowOptions { label: label.map(str::to_owned), only: true, ..ArrowOptions::default() };
    let found = arrow_stream::find(&part, &options).await;
    let (column, (mut found, _)) = found.map_err(|error| error.moved(start))?;
    let rows = found.len() + found.skipped;
    if rows != chunk.samples {
        let why = format!("the Arrow table has {rows} samples, the index {}", chunk.samples);
        return Err(FormatError::damaged(start, why));
    }
    found.extents = found.extents.moved(start);
    if let Extents::Rows(rows) = &found.extents {
        let name: Arc<str> = column.into();
        let field =
            |&(_, length): &(u64, u64)| vec![FieldExtent { name: Arc::clone(&name), offset: 0, length }];
        found.fields = Some(rows.iter().map(field).collect());
    }
    found.summary = format!("LitData: {}", found.summary);
    Ok(found)
}

/// Finds the windows in a chunk of tokens. They do not reach into the next chunk.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the file is not the chunk of the index.
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) if it has no tokens, they are of another
/// element type than `options`, or the options are invalid.
/// [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
pub async fn windows(
    source: &dyn FileSource,
    index: &LitIndex,
    chunk: &LitChunk,
    options: &WindowOptions,
) -> Result<FoundSamples, FormatError> {
    let Some(dtype) = &index.tokens else {
        return Err(FormatError::unsupported(0, "the chunk has samples, not tokens: do not set windows"));
    };
    let element = ElementType::parse(dtype, 0)?;
    tokens::agree(&element, options)?;
    let (rows, end) = table(&parts::reader(source), chunk).await?;
    if end < chunk.bytes {
        let why = format!("{} bytes after the last token", chunk.bytes - end);
        return Err(FormatError::damaged(end, why));
    }
    let start = rows.first().map_or(chunk.bytes, |&(start, _)| start);
    let length = chunk.bytes - start;
    let count = length / element.size();
    if !length.is_multiple_of(element.size()) || chunk.tokens.is_some_and(|tokens| tokens != count) {
        let expected = chunk.tokens.unwrap_or(count);
        let why = format!("{length} bytes of tokens {}: expected {expected} tokens", element.name());
        return Err(FormatError::damaged(start, why));
    }
    tokens::windows(start, count, &element, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn dict(keys: &str, children: &[&str]) -> String {
        let context = serde_json::to_string(keys).unwrap();
        let children = children.join(",");
        format!(r#"{{"type": "builtins.dict", "context": {context}, "children_spec": [{children}]}}"#)
    }

    #[test]
    fn leaves_are_named_by_their_paths() {
        let tuple =
            format!(r#"{{"type":"builtins.tuple","context":"null","children_spec":[{LEAF},{LEAF}]}}"#);
        let tree = dict(r#"["image","meta",3]"#, &[LEAF, &dict(r#"["label","t"]"#, &[LEAF, &tuple]), LEAF]);
        let found = names(&format!("[1, {tree}]")).unwrap();
        assert_eq!(found, ["image", "meta.label", "meta.t.0", "meta.t.1", "3"]);
        assert_eq!(names(&format!("[1, {LEAF}]")).unwrap(), ["0"]);
    }

    #[test]
    fn unknown_trees_have_no_names() {
        let long = "x".repeat(300);
        let deep = format!("[1, {}{}", r#"{"type":"t","children_spec":["#.repeat(1000), "]}".repeat(1000));
        let texts = [
            String::new(),
            "[1]".to_owned(),
            format!("[1, {}]", dict(r#"["a"]"#, &[LEAF, LEAF])),
            format!("[1, {}]", dict("a", &[LEAF])),
            format!("[1, {}]", dict(&format!(r#"["{long}"]"#), &[LEAF])),
            deep,
        ];
        for text in texts {
            assert_eq!(names(&text), None, "{text}");
        }
    }

    #[test]
    fn unusable_index_is_refused() {
        let good = r#"{"chunks": [{"chunk_bytes": 1, "chunk_size": 1, "dim": null, "filename": "chunk-0-0.bin"}],
            "config": {"compression": null, "data_format": ["int"], "encryption": null, "item_loader": "PyTreeLoader"}}"#;
        assert_eq!(parse_index(good.as_bytes()).unwrap().leaves[0].name, "0");
        for (level, expected) in [
            ("", LitCompression::Chunk),
            (r#", "compression_level": null"#, LitCompression::Chunk),
            (r#", "compression_level": "sample""#, LitCompression::Sample),
            (r#", "compression_level": "batch""#, LitCompression::Batch),
        ] {
            let to = format!(r#""compression": "zstd:9"{level}"#);
            let json = good.replace(r#""compression": null"#, &to);
            assert_eq!(parse_index(json.as_bytes()).unwrap().compression, Some(expected));
            let tokens = json.replace("PyTreeLoader", "TokensLoader").replace("int", "no_header_numpy:3");
            assert!(parse_index(tokens.as_bytes()).unwrap_err().why().contains("compression=None"));
        }
        for (from, to) in [
            ("chunk-0-0.bin", "../chunk-0-0.bin"),
            (r#""encryption": null"#, r#""encryption": {"algorithm": "fernet"}"#),
            (r#""compression": null"#, r#""compression": "lz4""#),
            (r#""compression": null"#, r#""compression": "zstd", "compression_level": "page""#),
            ("PyTreeLoader", "ParquetLoader"),
            ("PyTreeLoader", "TokensLoader"),
            (r#""chunk_size": 1"#, r#""chunk_size": -1"#),
        ] {
            assert!(good.contains(from));
            assert!(parse_index(good.replace(from, to).as_bytes()).is_err(), "{to}");
        }
    }
}
