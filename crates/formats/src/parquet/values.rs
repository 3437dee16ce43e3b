//! Where the values of a page lie: in the file, or in a unit of stored bytes that are decoded
//! together.

use std::sync::Arc;

use super::delta::DeltaIntegers;
use super::levels::{Runs, prefixed};
use super::page::{DELTA_LENGTH, DICTIONARY_ENCODINGS, PLAIN};
use crate::MadeRow;

/// The bytes that offsets of values count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The file, from this offset on.
    File(u64),
    /// A unit at this offset: its stored bytes, its decoded bytes, and the number of its decoder.
    Unit { at: u64, stored: u64, decoded: u64, recipe: u32 },
}

/// A value: its base, its offset there, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) base: Base,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Value {
    /// Its extent in the file, and how it is made. An empty value needs no unit.
    pub(super) fn placed(self) -> ((u64, u64), MadeRow) {
        let Self { base, offset, length } = self;
        match base {
            Base::File(at) => ((at + offset, length), MadeRow::plain(length)),
            Base::Unit { at, .. } if length == 0 => ((at, 0), MadeRow::plain(0)),
            Base::Unit { at, stored, decoded, recipe } => {
                ((at, length), MadeRow { stored, decoded, slice: offset, recipe: Some(recipe) })
            }
        }
    }
}

/// The values of a dictionary page.
#[derive(Debug)]
pub(super) struct Dictionary {
    pub(super) base: Base,
    /// Offset and length of each value. Pages are shorter than 2 GiB.
    pub(super) entries: Vec<(u32, u32)>,
}

impl Dictionary {
    /// The `count` plain values in `bytes`. `None` if the page is malformed.
    pub(super) fn new(base: Base, bytes: &[u8], count: u64, width: Option<u64>) -> Option<Self> {
        let mut values = Values::plain(base, bytes, 0, width);
        let fewest = width.unwrap_or(4).checked_mul(count)?;
        let room = if fewest <= bytes.len() as u64 { count as usize } else { return None };
        let mut entries = Vec::with_capacity(room);
        for _ in 0..count {
            let Value { offset, length, .. } = values.next()?;
            entries.push((u32::try_from(offset).ok()?, u32::try_from(length).ok()?));
        }
        Some(Self { base, entries })
    }
}

/// The bytes that fastparquet writes after the values of each page.
pub(super) const PADDING: [u8; 8] = [0; 8];

/// The values of a page in memory.
pub(super) enum Values<'a> {
    /// One after another, each after its length.
    Plain { base: Base, bytes: &'a [u8], offset: u64 },
    /// One after another, of one length.
    Fixed { base: Base, width: u64, offset: u64, bytes: &'a [u8] },
    /// One after another, with all lengths before them. `end - offset` bytes are left.
    Lengths { base: Base, lengths: DeltaIntegers<'a>, offset: u64, end: u64 },
    /// Values of a dictionary: their numbers, and the rest of a run of equal ones.
    Indices { dictionary: Arc<Dictionary>, runs: Runs<'a>, run: (u64, u32) },
}

impl<'a> Values<'a> {
    /// The values in `bytes`, which begin at `offset` of `base`. `None` if they are malformed, or
    /// the encoding is another one.
    pub(super) fn new(
        encoding: i64,
        base: Base,
        bytes: &'a [u8],
        offset: u64,
        width: Option<u64>,
        dictionary: Option<&Arc<Dictionary>>,
    ) -> Option<Self> {
        match encoding {
            PLAIN => Some(Self::plain(base, bytes, offset, width)),
            DELTA_LENGTH if bytes.is_empty() => Some(Self::plain(base, bytes, offset, None)),
            DELTA_LENGTH => {
                let (lengths, at) = DeltaIntegers::new(bytes)?;
                let end = offset + bytes.len() as u64;
                Some(Self::Lengths { base, lengths, offset: offset + at as u64, end })
            }
            encoding if DICTIONARY_ENCODINGS.contains(&encoding) => Self::indices(bytes, dictionary?),
            _ => None,
        }
    }

    fn plain(base: Base, bytes: &'a [u8], offset: u64, width: Option<u64>) -> Self {
        match width {
            Some(width) => Self::Fixed { base, width, offset, bytes },
            None => Self::Plain { base, bytes, offset },
        }
    }

    /// Numbers of a dictionary's values: their width in bits, and then runs.
    pub(super) fn indices(bytes: &'a [u8], dictionary: &Arc<Dictionary>) -> Option<Self> {
        // A page of nulls may have no width.
        let (&width, numbers) = bytes.split_first().unwrap_or((&0, &[]));
        let runs = Runs::new(numbers, width.into())?;
        Some(Self::Indices { dictionary: Arc::clone(dictionary), runs, run: (0, 0) })
    }

    /// The next value. `None` if the page ends before it.
    pub(super) fn next(&mut self) -> Option<Value> {
        match self {
            Self::Plain { base, bytes, offset } => {
                let (value, rest) = prefixed(bytes)?;
                *bytes = rest;
                let (at, length) = (*offset + 4, value.len() as u64);
                *offset = at + length;
                Some(Value { base: *base, offset: at, length })
            }
            Self::Fixed { base, width, offset, bytes } => {
                *bytes = bytes.get(usize::try_from(*width).ok()?..)?;
                let value = Value { base: *base, offset: *offset, length: *width };
                *offset += *width;
                Some(value)
            }
            Self::Lengths { base, lengths, offset, end } => {
                let (length, at) = (lengths.next_length()?, *offset);
                *offset = at.checked_add(length).filter(|after| *after <= *end)?;
                Some(Value { base: *base, offset: at, length })
            }
            Self::Indices { dictionary, runs, run } => {
                if run.0 == 0 {
                    *run = runs.next()?;
                }
                run.0 -= 1;
                let &(offset, length) = dictionary.entries.get(run.1 as usize)?;
                Some(Value { base: dictionary.base, offset: offset.into(), length: length.into() })
            }
        }
    }

    /// Whether the page has no more bytes. The last group of a dictionary's numbers is padded.
    pub(super) fn is_used_up(&self) -> bool {
        match self {
            Self::Plain { bytes, .. } | Self::Fixed { bytes, .. } => bytes.is_empty() || **bytes == PADDING,
            Self::Lengths { lengths, offset, end, .. } => lengths.left() == 0 && offset == end,
            Self::Indices { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Base = Base::Unit { at: 70, stored: 30, decoded: 200, recipe: 1 };

    #[test]
    fn values_are_slices_of_their_unit() {
        let bytes =
            [&3u32.to_le_bytes()[..], b"abc", &0u32.to_le_bytes(), &1u32.to_le_bytes(), b"d"].concat();
        let mut values = Values::new(PLAIN, UNIT, &bytes, 10, None, None).unwrap();
        let found: Vec<_> = std::iter::from_fn(|| values.next()).map(Value::placed).collect();
        let made = |slice| MadeRow { stored: 30, decoded: 200, slice, recipe: Some(1) };
        let empty = ((70, 0), MadeRow::plain(0));
        assert_eq!(found, [((70, 3), made(14)), empty, ((70, 1), made(25))]);
        assert!(values.is_used_up());
        let mut values = Values::new(PLAIN, Base::File(70), &bytes, 10, Some(8), None).unwrap();
        assert_eq!(values.next().unwrap().placed(), ((80, 8), MadeRow::plain(8)));
        assert!(!values.is_used_up() && values.next().is_some() && values.is_used_up());
        assert!(values.next().is_none());
    }

    #[test]
    fn numbers_are_values_of_the_dictionary() {
        let bytes = [&2u32.to_le_bytes()[..], b"ab", &1u32.to_le_bytes(), b"c"].concat();
        let dictionary = Arc::new(Dictionary::new(UNIT, &bytes, 2, None).unwrap());
        assert_eq!(dictionary.entries, [(4, 2), (10, 1)]);
        // Three times 1, then 0.
        let mut values = Values::new(8, UNIT, &[1, 6, 1, 2, 0], 0, None, Some(&dictionary)).unwrap();
        let offsets: Vec<u64> = std::iter::from_fn(|| values.next()).map(|value| value.offset).collect();
        assert_eq!(offsets, [10, 10, 10, 4]);
        // A number that the dictionary does not have, and a dictionary with fewer values.
        assert!(Values::indices(&[2, 2, 2], &dictionary).unwrap().next().is_none());
        assert!(Dictionary::new(UNIT, &bytes, 3, None).is_none());
        assert!(Dictionary::new(UNIT, &bytes, u64::MAX, None).is_none());
        assert!(Dictionary::new(UNIT, &bytes, u64::MAX, Some(5)).is_none());
        assert_eq!(Dictionary::new(UNIT, &bytes, 2, Some(5)).unwrap().entries, [(0, 5), (5, 5)]);
        assert!(Values::new(8, UNIT, &[1, 6, 1], 0, None, None).is_none());
    }

    #[test]
    fn values_follow_their_lengths() {
        // 2 values of 3 bytes, after 9 + 2 bytes of lengths.
        let mut bytes = vec![0x80, 1, 4, 2, 6, 0, 0, 0, 0, 0];
        bytes.extend(b"abcdef");
        let mut values = Values::new(DELTA_LENGTH, UNIT, &bytes, 5, None, None).unwrap();
        assert_eq!(values.next(), Some(Value { base: UNIT, offset: 15, length: 3 }));
        assert!(!values.is_used_up());
        assert_eq!(values.next(), Some(Value { base: UNIT, offset: 18, length: 3 }));
        assert!(values.is_used_up() && values.next().is_none());
        bytes.pop();
        let mut values = Values::new(DELTA_LENGTH, UNIT, &bytes, 5, None, None).unwrap();
        assert!(values.next().is_some() && values.next().is_none());
    }
}
