//! The values of a label column.
//!
//! Labels are small, so their whole chunk is read and decoded: plain values, dictionaries and
//! differences of integers. `pyarrow`, `datasets` and writers of version 2 write these encodings.
//! The price is that labels in other encodings are omitted, with a note in the summary.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::codec::{self, Packed, PageMemory};
use super::delta::DeltaIntegers;
use super::levels::{Runs, bit_width, prefixed};
use super::metadata::{Chunk, Leaf, Meaning, Physical, encoding_name};
use super::page::{self, DELTA_INTEGERS, DICTIONARY_ENCODINGS, Levels, PLAIN, PageHead, PageKind, RLE};
use crate::columns::{Label, LabelKind, SharedTexts};
use crate::{FormatError, le};

/// The kind of a column's labels, if it can have any.
pub(super) fn kind(leaf: &Leaf) -> Option<LabelKind> {
    let is_number = matches!(leaf.meaning, Meaning::Plain | Meaning::Signed | Meaning::Unsigned);
    match leaf.physical {
        _ if leaf.is_repeated => None,
        Physical::Boolean | Physical::Int32 | Physical::Int64 if is_number => Some(LabelKind::Integer),
        Physical::Float | Physical::Double if is_number => Some(LabelKind::Float),
        Physical::ByteArray if leaf.meaning == Meaning::Text => Some(LabelKind::Text),
        _ => None,
    }
}

/// Decodes all rows of a chunk, and calls `emit` with each. `bytes` are the whole chunk.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for codecs and encodings that are not
/// decoded. [`Damaged`](crate::FormatErrorKind::Damaged) for malformed pages.
pub(super) fn decode(
    bytes: &[u8],
    leaf: &Leaf,
    chunk: &Chunk,
    memory: &PageMemory,
    texts: &mut SharedTexts,
    emit: &mut dyn FnMut(Option<Label>),
) -> Result<(), FormatError> {
    let mut decoder = Decoder { leaf, codec: chunk.codec, memory, texts, dictionary: Vec::new(), emit };
    let (mut at, mut left) = (0_usize, chunk.values);
    while left > 0 {
        let place = chunk.start + at as u64;
        let malformed = || FormatError::damaged(place, "a page of labels is malformed");
        let rest = bytes.get(at..).unwrap_or_default();
        let head = page::head(rest).ok_or_else(malformed)?;
        let body = rest.get(head.length as usize..(head.length + head.stored) as usize);
        if matches!(head.kind, PageKind::Data(_)) {
            left = left.checked_sub(head.values).ok_or_else(malformed)?;
        }
        let body = body.ok_or_else(malformed)?;
        let damaged = |why| FormatError::damaged(place, format!("a page of labels is damaged: {why}"));
        head.check(body).map_err(damaged)?;
        decoder.page(&head, body, place)?;
        at += (head.length + head.stored) as usize;
    }
    Ok(())
}

struct Decoder<'a> {
    leaf: &'a Leaf,
    codec: i64,
    memory: &'a PageMemory,
    texts: &'a mut SharedTexts,
    dictionary: Vec<Label>,
    emit: &'a mut dyn FnMut(Option<Label>),
}

impl Decoder<'_> {
    fn unsupported(&self, at: u64, problem: String) -> FormatError {
        FormatError::unsupported(at, format!("column {} {problem}", self.leaf.path))
    }

    fn page(&mut self, head: &PageHead, body: &[u8], at: u64) -> Result<(), FormatError> {
        let malformed = || FormatError::damaged(at, "a page of labels is malformed");
        match head.kind {
            PageKind::Other => Ok(()),
            PageKind::Dictionary => {
                let body = self.decompress(body, head.plain, at)?;
                // A value has a byte or more, mostly.
                if head.values > body.len() as u64 || !self.memory.has_room(head.values) {
                    return Err(malformed());
                }
                self.dictionary.clear();
                let mut values = Values::Plain { bytes: &body, next_bit: 0 };
                for _ in 0..head.values {
                    let label = self.value(&mut values, at)?;
                    self.dictionary.push(label);
                }
                Ok(())
            }
            PageKind::Data(Levels::Before { encoding }) => {
                let body = self.decompress(body, head.plain, at)?;
                if self.leaf.max_definition == 0 {
                    return self.rows(head, &[], &body, at);
                }
                if encoding != RLE {
                    let problem = format!("has levels in the encoding {}", encoding_name(encoding));
                    return Err(self.unsupported(at, problem));
                }
                let (levels, values) = prefixed(&body).ok_or_else(malformed)?;
                self.rows(head, levels, values, at)
            }
            PageKind::Data(Levels::Apart { repetition, definition, is_compressed }) => {
                let levels = repetition.saturating_add(definition).min(head.stored) as usize;
                let (levels, values) = body.split_at_checked(levels).ok_or_else(malformed)?;
                let definition = levels.get(repetition as usize..).ok_or_else(malformed)?;
                let plain = head.plain.checked_sub(levels.len() as u64).ok_or_else(malformed)?;
                let values = match is_compressed && !values.is_empty() {
                    true => self.decompress(values, plain, at)?,
                    false => Cow::Borrowed(values),
                };
                self.rows(head, definition, &values, at)
            }
        }
    }

    /// The bytes of a page that has `plain` bytes without compression.
    fn decompress<'b>(&self, body: &'b [u8], plain: u64, at: u64) -> Result<Cow<'b, [u8]>, FormatError> {
        let Some(decoder) = codec::decoder(self.codec, &self.leaf.path, at)? else {
            return Ok(Cow::Borrowed(body));
        };
        // A page of nulls may have no bytes.
        if plain == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        let packed = Packed { at, stored: body.len() as u64, plain, decoder };
        self.memory.decode(&packed, body, &self.leaf.path)
    }

    /// Appends the rows of a data page.
    fn rows(&mut self, head: &PageHead, levels: &[u8], values: &[u8], at: u64) -> Result<(), FormatError> {
        let malformed = || FormatError::damaged(at, "a page of labels is malformed");
        let is_boolean = self.leaf.physical == Physical::Boolean;
        let mut values = match head.encoding {
            PLAIN => Values::Plain { bytes: values, next_bit: 0 },
            RLE if is_boolean => {
                let (runs, _) = prefixed(values).ok_or_else(malformed)?;
                Values::Runs { runs: Runs::new(runs, 1).ok_or_else(malformed)?, run: (0, 0) }
            }
            encoding if DICTIONARY_ENCODINGS.contains(&encoding) => {
                // A page of nulls may have no width.
                let (&width, indices) = values.split_first().unwrap_or((&0, &[]));
                Values::Runs { runs: Runs::new(indices, width.into()).ok_or_else(malformed)?, run: (0, 0) }
            }
            DELTA_INTEGERS if matches!(self.leaf.physical, Physical::Int32 | Physical::Int64) => {
                // A page of nulls may have no integers.
                match values.is_empty() {
                    true => Values::Plain { bytes: values, next_bit: 0 },
                    false => Values::Integers(DeltaIntegers::new(values).ok_or_else(malformed)?.0),
                }
            }
            encoding => {
                let problem = format!("has the encoding {}", encoding_name(encoding));
                return Err(self.unsupported(at, problem));
            }
        };
        if self.leaf.max_definition == 0 {
            return self.present(head.values, &mut values, at);
        }
        let mut runs = Runs::new(levels, bit_width(self.leaf.max_definition)).ok_or_else(malformed)?;
        let mut left = head.values;
        while left > 0 {
            let (count, level) = runs.next().ok_or_else(malformed)?;
            let count = count.min(left);
            left -= count;
            match level.cmp(&self.leaf.max_definition) {
                Ordering::Equal => self.present(count, &mut values, at)?,
                Ordering::Less => (0..count).for_each(|_| (self.emit)(None)),
                Ordering::Greater => return Err(malformed()),
            }
        }
        Ok(())
    }

    fn present(&mut self, count: u64, values: &mut Values<'_>, at: u64) -> Result<(), FormatError> {
        for _ in 0..count {
            let label = self.value(values, at)?;
            (self.emit)(Some(label));
        }
        Ok(())
    }

    /// The next value of a page.
    fn value(&mut self, values: &mut Values<'_>, at: u64) -> Result<Label, FormatError> {
        let malformed = || FormatError::damaged(at, "a page of labels is malformed");
        match values {
            Values::Plain { bytes, next_bit } => match self.leaf.physical {
                Physical::Boolean => {
                    let byte = bytes.get((*next_bit / 8) as usize).ok_or_else(malformed)?;
                    let bit = byte >> (*next_bit % 8) & 1;
                    *next_bit += 1;
                    Ok(Label::Integer(bit.into()))
                }
                Physical::ByteArray => {
                    let (text, rest) = prefixed(bytes).ok_or_else(malformed)?;
                    *bytes = rest;
                    let text = std::str::from_utf8(text);
                    let text = text.map_err(|_| FormatError::damaged(at, "a label is not UTF-8"))?;
                    Ok(Label::Text(self.texts.share(text)))
                }
                _ => {
                    let (label, length) = self.number(bytes).ok_or_else(malformed)?;
                    *bytes = &bytes[length..];
                    label.ok_or_else(|| self.unsupported(at, "exceeds 64-bit signed integers".to_owned()))
                }
            },
            Values::Integers(integers) => {
                let value = integers.next().ok_or_else(malformed)?.to_le_bytes();
                let (label, _) = self.number(&value).ok_or_else(malformed)?;
                label.ok_or_else(|| self.unsupported(at, "exceeds 64-bit signed integers".to_owned()))
            }
            Values::Runs { runs, run } => {
                if run.0 == 0 {
                    *run = runs.next().ok_or_else(malformed)?;
                }
                run.0 -= 1;
                if self.leaf.physical == Physical::Boolean {
                    return Ok(Label::Integer(run.1.into()));
                }
                let label = self.dictionary.get(run.1 as usize).cloned();
                label.ok_or_else(malformed)
            }
        }
    }

    /// The number at the beginning of `bytes`, and its length. The number is `None` if it does not
    /// fit in an `i64`.
    fn number(&self, bytes: &[u8]) -> Option<(Option<Label>, usize)> {
        let is_unsigned = self.leaf.meaning == Meaning::Unsigned;
        Some(match self.leaf.physical {
            Physical::Int32 => {
                let word = le::u32(bytes, 0)?;
                let value = if is_unsigned { word.into() } else { (word as i32).into() };
                (Some(Label::Integer(value)), 4)
            }
            Physical::Int64 => {
                let word = le::u64(bytes, 0)?;
                let fits = !is_unsigned || i64::try_from(word).is_ok();
                (fits.then_some(Label::Integer(word as i64)), 8)
            }
            Physical::Float => (Some(Label::Float(f32::from_le_bytes(le::bytes(bytes, 0)?).into())), 4),
            Physical::Double => (Some(Label::Float(f64::from_le_bytes(le::bytes(bytes, 0)?))), 8),
            _ => return None,
        })
    }
}

/// The values of a page that are not decoded yet.
enum Values<'a> {
    Plain {
        bytes: &'a [u8],
        next_bit: u64,
    },
    /// Integers as differences. Of integers with 32 bits, the lower half counts.
    Integers(DeltaIntegers<'a>),
    /// Indices or booleans, and the rest of a run.
    Runs {
        runs: Runs<'a>,
        run: (u64, u32),
    },
}
