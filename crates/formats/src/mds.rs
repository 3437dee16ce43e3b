//! MosaicML's MDS: an `index.json`, and shards of samples with named columns.
//!
//! [`parse_index`] reads the index, [`index`] finds the samples of one shard. A sample is one
//! extent, its columns are its fields. A label is read with them: a column of numbers, or of texts
//! of at most 64 bytes. A label column that holds a larger value or no UTF-8 becomes no values,
//! only a field.
//!
//! Compressed shards are refused: a sample of theirs cannot be read without the whole shard.

use serde::Deserialize;

use crate::element::ElementType;
use crate::found::FoundSamples;
use crate::parts::{self, PartValue, SampleLayout, SamplePart, StoredSizes};
use crate::{ArrayType, FileSource, FormatError};

/// A shard, as the `index.json` describes it. The three lists of columns have one length.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MdsShard {
    /// `mds`.
    pub format: String,
    /// The file, without compression.
    pub raw_data: MdsFile,
    /// The number of samples.
    pub samples: u64,
    /// The names of the columns, in the order of their bytes in a sample.
    #[serde(default)]
    pub column_names: Vec<String>,
    /// Their encodings, such as `int`, `jpeg` or `ndarray:float32:3,4`.
    #[serde(default)]
    pub column_encodings: Vec<String>,
    /// Their sizes in bytes, if all samples have the same.
    #[serde(default)]
    pub column_sizes: Vec<Option<u64>>,
    /// The compression, such as `zstd:7`.
    #[serde(default)]
    pub compression: Option<String>,
}

/// The file of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MdsFile {
    /// The path, relative to the folder of the `index.json`. It does not lead out of it.
    pub basename: String,
    /// The size in bytes.
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Index {
    version: u64,
    shards: Vec<MdsShard>,
}

/// Parses an `index.json`.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if it is none, contradicts itself, or has a path
/// that leads out of its folder. [`Unsupported`](crate::FormatErrorKind::Unsupported) if the
/// version is not 2, or shards have another format than MDS.
pub fn parse_index(json: &[u8]) -> Result<Vec<MdsShard>, FormatError> {
    let index: Index =
        serde_json::from_slice(json).map_err(|error| parts::invalid_json("MDS", json, &error))?;
    if index.version != 2 {
        let why = format!("version {} of MDS: expected 2", index.version);
        return Err(FormatError::unsupported(0, why));
    }
    index.shards.into_iter().map(checked).collect()
}

fn checked(mut shard: MdsShard) -> Result<MdsShard, FormatError> {
    if shard.format != "mds" {
        let format = parts::shown(&shard.format);
        let why = format!("shards of format '{format}': write them again with MDSWriter");
        return Err(FormatError::unsupported(0, why));
    }
    parts::check_name(&shard.raw_data.basename)?;
    let columns = shard.column_names.len();
    if columns == 0 || shard.column_encodings.len() != columns || shard.column_sizes.len() != columns {
        let why = "column_names, column_encodings and column_sizes have different lengths or none";
        return Err(FormatError::damaged(0, why));
    }
    // The reader of MDS takes a size of 0 for a variable one.
    shard.column_sizes.iter_mut().for_each(|size| *size = size.filter(|&size| size > 0));
    shard.compression = shard.compression.filter(|compression| !compression.is_empty());
    Ok(shard)
}

/// Finds the samples of a shard, with their columns and labels.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the file is not the shard of the index.
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) if it is compressed.
/// [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
pub async fn index(
    source: &dyn FileSource,
    shard: &MdsShard,
    label: Option<&str>,
) -> Result<FoundSamples, FormatError> {
    // Next to a compressed index, a cache may have the raw shard under its own name.
    if let Some(compression) = shard.compression.as_ref().filter(|_| source.size() != shard.raw_data.bytes) {
        let compression = parts::shown(compression);
        let why = format!("the shard is compressed ({compression}): write it again with compression=None");
        return Err(FormatError::unsupported(0, why));
    }
    if source.size() != shard.raw_data.bytes {
        let why = format!("the shard has {} bytes, its index says {}", source.size(), shard.raw_data.bytes);
        return Err(FormatError::damaged(source.size().min(shard.raw_data.bytes), why));
    }
    let array = array(shard)?;
    let columns = shard.column_names.iter().zip(&shard.column_encodings).zip(&shard.column_sizes);
    let parts = columns.map(|((name, encoding), &size)| SamplePart {
        name: name.as_str().into(),
        size,
        value: value(encoding),
    });
    let layout = SampleLayout::new(parts.collect(), StoredSizes::Variable)
        .ok_or_else(|| FormatError::damaged(0, "the sizes of the columns are too large"))?;
    let reader = parts::reader(source);
    let (rows, end) = parts::table(&reader, shard.samples).await?;
    if end != source.size() {
        let why = format!("the last sample ends here, the file at {}", source.size());
        return Err(FormatError::damaged(end, why));
    }
    let names = parts::listed(shard.column_names.iter().map(String::as_str));
    let summary = format!("MDS: {} samples of {names}", shard.samples);
    let mut found = layout.find(&reader, rows, label, summary).await?;
    found.array = array;
    Ok(found)
}

fn value(encoding: &str) -> PartValue {
    match encoding {
        "str" => PartValue::Text,
        "int" => PartValue::number("int64"),
        name => PartValue::number(name),
    }
}

/// The type of the samples if their only column is an array of fixed type and shape.
fn array(shard: &MdsShard) -> Result<Option<ArrayType>, FormatError> {
    let ([encoding], [size]) = (&shard.column_encodings[..], &shard.column_sizes[..]) else {
        return Ok(None);
    };
    let Some((dtype, shape)) = encoding.strip_prefix("ndarray:").and_then(|rest| rest.split_once(':')) else {
        return Ok(None);
    };
    let contradiction = || {
        let encoding = parts::shown(encoding);
        let why = format!("the encoding '{encoding}' contradicts the size of the column");
        FormatError::damaged(0, why)
    };
    let element = ElementType::parse(dtype, 0)?;
    let shape: Result<Vec<u64>, _> = shape.split(',').map(str::parse).collect();
    let shape = shape.map_err(|_| contradiction())?;
    let length = shape.iter().try_fold(element.size(), |product, &next| product.checked_mul(next));
    if length.is_none() || length != *size {
        return Err(contradiction());
    }
    Ok(Some(element.array(shape.into_iter().map(Some).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(shard: &str) -> String {
        let data = r#""raw_data": {"basename": "a/shard.00000.mds", "bytes": 9, "hashes": {}}"#;
        format!(r#"{{"version": 2, "shards": [{{"format": "mds", "samples": 1, {data}, {shard}}}]}}"#)
    }

    #[test]
    fn index_that_contradicts_itself_is_refused() {
        let good = r#""column_names": ["a"], "column_encodings": ["int"], "column_sizes": [8]"#;
        let shards = parse_index(json(good).as_bytes()).unwrap();
        assert_eq!(
            (shards[0].raw_data.basename.as_str(), shards[0].column_sizes[0]),
            ("a/shard.00000.mds", Some(8))
        );
        for (from, to) in [
            (r#"["a"]"#, r#"["a", "b"]"#),
            ("a/shard", "../shard"),
            ("a/shard", "a/../shard"),
            ("a/shard", "/shard"),
            ("a/shard.00000.mds", ""),
            (r#""version": 2"#, r#""version": 3"#),
            (r#""format": "mds""#, r#""format": "csv""#),
            (r#""samples": 1"#, r#""samples": -1"#),
        ] {
            let text = json(good);
            assert!(text.contains(from));
            assert!(parse_index(text.replace(from, to).as_bytes()).is_err(), "{to}");
        }
    }

    #[test]
    fn only_column_of_fixed_arrays_has_a_type() {
        let shard = |encoding: &str, size: &str| {
            let text = format!(
                r#""column_names": ["a"], "column_encodings": ["{encoding}"], "column_sizes": [{size}]"#
            );
            parse_index(json(&text).as_bytes()).unwrap().remove(0)
        };
        let found = array(&shard("ndarray:float32:3,4", "48")).unwrap().unwrap();
        assert_eq!((found.dtype.as_str(), found.shape), ("<f4", vec![Some(3), Some(4)]));
        assert_eq!(array(&shard("ndarray:float32", "null")).unwrap(), None);
        assert_eq!(array(&shard("bytes", "null")).unwrap(), None);
        assert!(array(&shard("ndarray:float32:3,4", "40")).is_err());
        assert!(array(&shard("ndarray:float32:99999999999,99999999999", "40")).is_err());
        assert!(array(&shard("ndarray:float32:x", "40")).is_err());
    }
}
