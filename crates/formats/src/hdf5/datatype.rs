//! Datatype messages: the types whose bytes NumPy reads as they are.

use super::cursor::Cursor;
use crate::{FormatError, le};

/// The sort of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Signed,
    Unsigned,
    Float,
    Bool,
}

/// A number of 1 to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) sort: Sort,
    pub(super) width: usize,
    pub(super) big_endian: bool,
}

/// How a fixed-length text is filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    /// The first byte of zero ends the text.
    Terminated,
    Zeros,
    Spaces,
}

/// The kind of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// A number.
    Number(Number),
    /// Bytes without a meaning.
    Opaque,
    /// A text of the type's size.
    Text(Padding),
    /// A text of any length, in the global heap.
    LongText,
    /// Numbers of any count, in the global heap.
    Sequence(Number),
    /// A type that is not read. Its name.
    Other(&'static str),
}

/// The type of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Datatype {
    pub(super) element: Element,
    /// The size of an element of the dataset in bytes, with all of `inner`.
    pub(super) size: u64,
    /// The lengths of an array type's dimensions.
    pub(super) inner: Vec<u64>,
}

impl Datatype {
    /// NumPy's name of the type. `None` if NumPy cannot read the bytes as they are.
    pub(super) fn dtype(&self) -> Option<String> {
        match self.element {
            Element::Number(number) => Some(number.dtype()),
            Element::Opaque => Some(format!("|V{}", self.size)),
            _ => None,
        }
    }

    /// The type's name for people.
    pub(super) fn name(&self) -> String {
        match &self.element {
            Element::Text(_) => format!("|S{}", self.size),
            Element::LongText => "text of any length".into(),
            Element::Sequence(number) => format!("sequences of {}", number.dtype()),
            Element::Other(name) => (*name).into(),
            _ => self.dtype().unwrap_or_default(),
        }
    }
}

impl Number {
    /// NumPy's name of the type.
    pub(super) fn dtype(&self) -> String {
        let order = match (self.width, self.big_endian) {
            (1, _) => '|',
            (_, false) => '<',
            (_, true) => '>',
        };
        let sort = match self.sort {
            Sort::Signed => 'i',
            Sort::Unsigned => 'u',
            Sort::Float => 'f',
            Sort::Bool => 'b',
        };
        format!("{order}{sort}{}", self.width)
    }

    /// The value of `bytes`, as wide as the type, if it is an integer of at most 64 bits.
    pub(super) fn integer(&self, bytes: &[u8]) -> Option<i64> {
        let bits = self.bits(bytes)?;
        match self.sort {
            Sort::Signed => Some(le::signed(bits, self.width)),
            Sort::Unsigned | Sort::Bool => i64::try_from(bits).ok(),
            Sort::Float => None,
        }
    }

    /// The value of `bytes`, if the type has 2, 4 or 8 bytes and is a float.
    pub(super) fn float(&self, bytes: &[u8]) -> Option<f64> {
        let is_known = self.sort == Sort::Float && matches!(self.width, 2 | 4 | 8);
        Some(le::float(self.bits(bytes).filter(|_| is_known)?, self.width))
    }

    fn bits(&self, bytes: &[u8]) -> Option<u64> {
        let bits = le::uint(bytes, 0, self.width)?;
        // A big-endian number has at least two bytes.
        Some(if self.big_endian { bits.swap_bytes() >> (64 - 8 * self.width) } else { bits })
    }
}

/// The type in a message.
pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Datatype, FormatError> {
    let class = cursor.u8()?;
    let (version, class) = (class >> 4, class & 15);
    let flags = cursor.uint(3)?;
    let size = u64::from(cursor.u32()?);
    if size == 0 {
        return Err(cursor.damaged("a datatype has no bytes"));
    }
    if class == 10 {
        return array(cursor, version, size);
    }
    let element = match class {
        0 | 1 => number(cursor, class, flags, size)?,
        3 => match flags & 15 {
            0 => Element::Text(Padding::Terminated),
            1 => Element::Text(Padding::Zeros),
            2 => Element::Text(Padding::Spaces),
            _ => Element::Other("text with unknown padding"),
        },
        2 => Element::Other("time"),
        4 => Element::Other("bit field"),
        5 => Element::Opaque,
        6 => Element::Other("compound"),
        7 => Element::Other("reference"),
        8 => enumeration(cursor, version, flags)?,
        9 if flags & 15 == 1 => Element::LongText,
        9 => sequence(cursor)?,
        11 => Element::Other("complex"),
        _ => Element::Other("unknown"),
    };
    Ok(Datatype { element, size, inner: Vec::new() })
}

/// A fixed-point or a floating-point number.
fn number(cursor: &mut Cursor<'_>, class: u8, flags: u64, size: u64) -> Result<Element, FormatError> {
    let (first, bits) = (cursor.u16()?, u64::from(cursor.u16()?));
    if first != 0 || bits != size * 8 {
        return Ok(Element::Other("number with unused bits"));
    }
    let sort = match (class, flags >> 3 & 1) {
        (1, _) => Sort::Float,
        (_, 1) => Sort::Signed,
        _ => Sort::Unsigned,
    };
    if class == 0 {
        return Ok(match size {
            1 | 2 | 4 | 8 => plain(sort, size, flags & 1 == 1),
            _ => Element::Other("integer of an unusual size"),
        });
    }
    // The place and the size of the exponent, then those of the mantissa.
    let parts = cursor.take(4)?;
    let ieee: [u8; 4] = match size {
        2 => [10, 5, 0, 10],
        4 => [23, 8, 0, 23],
        8 => [52, 11, 0, 52],
        _ => return Ok(Element::Other("float of an unusual size")),
    };
    Ok(match (parts == ieee, flags & 0x41) {
        (true, 0) => plain(sort, size, false),
        (true, 1) => plain(sort, size, true),
        _ => Element::Other("float that is not of IEEE 754"),
    })
}

fn plain(sort: Sort, width: u64, big_endian: bool) -> Element {
    Element::Number(Number { sort, width: width as usize, big_endian: big_endian && width > 1 })
}

fn array(cursor: &mut Cursor<'_>, version: u8, size: u64) -> Result<Datatype, FormatError> {
    let rank = cursor.u8()?;
    if version < 3 {
        cursor.skip(3)?;
    }
    let mut inner = Vec::new();
    for _ in 0..rank {
        inner.push(u64::from(cursor.u32()?));
    }
    if version < 3 {
        cursor.skip(4 * usize::from(rank))?;
    }
    // Arrays of arrays would recurse.
    let nested = cursor.clone().u8()? & 15;
    let element = match nested {
        0 | 1 => parse(cursor)?,
        _ => Datatype { element: Element::Other("array"), size, inner: Vec::new() },
    };
    let expected = super::cursor::product(&inner).and_then(|count| count.checked_mul(element.size));
    if nested < 2 && expected != Some(size) {
        return Err(cursor.damaged("an array type's size is not that of its elements"));
    }
    Ok(Datatype { element: element.element, size, inner })
}

/// An enumeration is its integers. h5py writes booleans so.
fn enumeration(cursor: &mut Cursor<'_>, version: u8, flags: u64) -> Result<Element, FormatError> {
    if cursor.clone().u8()? & 15 != 0 {
        return Ok(Element::Other("enumeration"));
    }
    let base = parse(cursor)?;
    let bool_names: &[u8] = if version < 3 { b"FALSE\0\0\0TRUE\0" } else { b"FALSE\0TRUE\0" };
    let is_bool = flags & 0xFFFF == 2 && cursor.bytes[cursor.next..].starts_with(bool_names);
    Ok(match base.element {
        Element::Number(number) if is_bool && number.width == 1 => {
            Element::Number(Number { sort: Sort::Bool, ..number })
        }
        element => element,
    })
}

fn sequence(cursor: &mut Cursor<'_>) -> Result<Element, FormatError> {
    if cursor.clone().u8()? & 15 > 1 {
        return Ok(Element::Other("sequences that are not of numbers"));
    }
    Ok(match parse(cursor)?.element {
        Element::Number(number) => Element::Sequence(number),
        _ => Element::Other("sequences that are not of numbers"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_follow_the_byte_order_and_the_sign() {
        let number = |sort, width, big_endian| Number { sort, width, big_endian };
        assert_eq!(number(Sort::Signed, 2, true).integer(&[0xFF, 0xFE]), Some(-2));
        assert_eq!(number(Sort::Signed, 2, false).integer(&[0xFF, 0xFE]), Some(-257));
        assert_eq!(number(Sort::Unsigned, 8, false).integer(&[255; 8]), None);
        assert_eq!(number(Sort::Signed, 8, false).integer(&[255; 8]), Some(-1));
        assert_eq!(number(Sort::Unsigned, 4, false).integer(&[1, 2]), None);
        assert_eq!(number(Sort::Float, 4, true).float(&[0x3F, 0x80, 0, 0]), Some(1.0));
        assert_eq!(number(Sort::Unsigned, 1, false).dtype(), "|u1");
    }
}
