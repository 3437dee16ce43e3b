//! Labels: values of a small dataset, read when the file is indexed.

use std::sync::Arc;

use bytes::Bytes;

use super::cursor::product;
use super::dataset::Dataset;
use super::datatype::{Element, Number, Padding, Sort};
use super::file::{BATCH, File};
use super::{global_heap, values};
use crate::{ArrayType, ColumnValues, FormatError};

/// Names of datasets that are labels, without regard to case.
const NAMES: [&str; 7] = ["label", "labels", "target", "targets", "class", "classes", "y"];

/// The most values per row that are labels.
const MOST_VALUES: u64 = 64;

/// The most values of a label of a file that is one sample.
const MOST_VALUES_OF_FILE: u64 = 4096;

/// The most bytes of a text.
const MOST_TEXT: u64 = 16 * 1024;

/// Whether the dataset's name is one of labels.
pub(super) fn is_name(path: &str) -> bool {
    rank(path) < NAMES.len()
}

/// The position of a dataset's name among the names of labels. The first one is the most usual.
pub(super) fn rank(path: &str) -> usize {
    let name = path.rsplit('/').next().unwrap_or(path);
    NAMES.iter().position(|known| known.eq_ignore_ascii_case(name)).unwrap_or(NAMES.len())
}

/// Whether a dataset can have a label for each of `samples` samples, or with `None` of one sample.
pub(super) fn fits(dataset: &Dataset, samples: Option<u64>) -> bool {
    let (shape, most) = match samples {
        Some(samples) if dataset.shape.first() != Some(&samples) => return false,
        Some(_) => (&dataset.shape[1..], MOST_VALUES),
        None => (&dataset.shape[..], MOST_VALUES_OF_FILE),
    };
    let inner = product(&dataset.datatype.inner);
    let count = product(shape).zip(inner).and_then(|(count, inner)| count.checked_mul(inner));
    let count = count.filter(|&count| (1..=most).contains(&count));
    match dataset.datatype.element {
        _ if dataset.null => false,
        Element::Number(_) => count.is_some(),
        Element::Text(_) | Element::LongText => count == Some(1),
        _ => false,
    }
}

/// Reads the labels of `samples` samples, or with `None` of one sample. They must [`fits`].
pub(super) async fn read(
    file: &File<'_>,
    dataset: &Dataset,
    samples: Option<u64>,
) -> Result<ColumnValues, FormatError> {
    let bytes = values::read(file, dataset).await?;
    let size = dataset.datatype.size as usize;
    match dataset.datatype.element {
        Element::Number(number) => {
            let skipped = usize::from(samples.is_some());
            let shape = dataset.shape.iter().skip(skipped).chain(&dataset.datatype.inner);
            let shape: Vec<u64> = shape.copied().collect();
            let scalar = shape.is_empty() || samples.is_none() && product(&shape) == Some(1);
            let scalars = scalar.then(|| scalars(number, &bytes)).flatten();
            if scalar && scalars.is_none() && number.width == 8 && number.sort == Sort::Unsigned {
                return Err(dataset.refused("a label exceeds 64-bit signed integers"));
            }
            Ok(scalars.unwrap_or_else(|| {
                let width = product(&shape).unwrap_or(0) as usize * number.width;
                let shape = shape.iter().copied().map(Some).collect();
                let array = ArrayType { dtype: number.dtype(), shape };
                ColumnValues::Arrays { array, width, bytes: bytes.to_vec() }
            }))
        }
        Element::Text(padding) => {
            let texts = bytes.chunks_exact(size).map(|bytes| text(dataset, trimmed(bytes, padding)));
            Ok(ColumnValues::Texts(shared(texts)?))
        }
        Element::LongText => long_texts(file, dataset, &bytes).await,
        _ => Err(dataset.refused("its type cannot be that of labels")),
    }
}

/// One number per sample. `None` if a number has no exact value in a column of numbers.
fn scalars(number: Number, bytes: &[u8]) -> Option<ColumnValues> {
    let items = bytes.chunks_exact(number.width);
    if number.sort == Sort::Float {
        let values: Option<Vec<_>> = items.map(|item| number.float(item).map(Some)).collect();
        return values.map(ColumnValues::Floats);
    }
    let values: Option<Vec<_>> = items.map(|item| number.integer(item).map(Some)).collect();
    values.map(ColumnValues::Integers)
}

/// A text without its padding.
fn trimmed(bytes: &[u8], padding: Padding) -> &[u8] {
    let end = match padding {
        Padding::Terminated => bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()),
        Padding::Zeros => bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1),
        Padding::Spaces => bytes.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1),
    };
    &bytes[..end]
}

fn text<'a>(dataset: &Dataset, bytes: &'a [u8]) -> Result<&'a str, FormatError> {
    if bytes.len() as u64 > MOST_TEXT {
        return Err(dataset.refused("a label is longer than 16 KiB"));
    }
    std::str::from_utf8(bytes).map_err(|_| dataset.refused("a label is not UTF-8"))
}

/// Texts, with one allocation for equal neighbours.
fn shared<'a>(
    texts: impl Iterator<Item = Result<&'a str, FormatError>>,
) -> Result<Vec<Option<Arc<str>>>, FormatError> {
    let mut last: Arc<str> = Arc::from("");
    texts
        .map(|text| {
            let text = text?;
            if *last != *text {
                last = Arc::from(text);
            }
            Ok(Some(Arc::clone(&last)))
        })
        .collect()
}

async fn long_texts(
    file: &File<'_>,
    dataset: &Dataset,
    elements: &Bytes,
) -> Result<ColumnValues, FormatError> {
    let references = global_heap::references(file, dataset, elements, 1)?;
    let places = global_heap::locate(file, &references).await?;
    if places.iter().any(|&(_, length)| length > MOST_TEXT) {
        return Err(dataset.refused("a label is longer than 16 KiB"));
    }
    let mut texts = Vec::with_capacity(places.len());
    for batch in places.chunks(BATCH) {
        let found = file.read_all(batch).await?;
        texts.extend(shared(found.iter().map(|bytes| text(dataset, bytes)))?);
    }
    Ok(ColumnValues::Texts(texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lose_their_padding_only() {
        assert_eq!(trimmed(b"ab\0c\0", Padding::Terminated), b"ab");
        assert_eq!(trimmed(b"ab\0c\0", Padding::Zeros), b"ab\0c");
        assert_eq!(trimmed(b" ab  ", Padding::Spaces), b" ab");
        assert_eq!(trimmed(b"\0\0", Padding::Zeros), b"");
    }

    #[test]
    fn names_of_labels_are_known_in_any_case() {
        assert!(is_name("train/Labels") && is_name("y"));
        assert!(!is_name("labels/images") && !is_name("yy"));
    }
}
