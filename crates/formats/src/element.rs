//! NumPy's element types, by their names in files.

use crate::columns::Label;
use crate::{ArrayType, FormatError, le};

/// The names of `numpy.dtype.name`, those of Rust, and those of `numpy.dtype.str`.
const NAMES: [(&str, &str); 23] = [
    ("u8", "|u1"),
    ("u16", "<u2"),
    ("u32", "<u4"),
    ("u64", "<u8"),
    ("i8", "|i1"),
    ("i16", "<i2"),
    ("i32", "<i4"),
    ("i64", "<i8"),
    ("f16", "<f2"),
    ("f32", "<f4"),
    ("f64", "<f8"),
    ("bool", "|b1"),
    ("int8", "|i1"),
    ("int16", "<i2"),
    ("int32", "<i4"),
    ("int64", "<i8"),
    ("uint8", "|u1"),
    ("uint16", "<u2"),
    ("uint32", "<u4"),
    ("uint64", "<u8"),
    ("float16", "<f2"),
    ("float32", "<f4"),
    ("float64", "<f8"),
];

/// The type of an array's elements, little endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ElementType {
    /// As in `array.dtype.str`.
    name: String,
    /// The kind in NumPy's letters: `b i u f c S U V M m`.
    kind: u8,
    /// The size of an element in bytes, at least 1.
    size: u64,
}

impl ElementType {
    /// The type with this name: `uint16`, or `<u2` as in `array.dtype.str`. `at` is the offset of
    /// the name for errors.
    pub(crate) fn parse(text: &str, at: u64) -> Result<Self, FormatError> {
        let known = NAMES.iter().find(|(name, _)| *name == text);
        let text = known.map_or(text, |(_, dtype)| dtype);
        let unknown = || {
            let shown: String = text.chars().take(40).collect();
            FormatError::unsupported(at, format!("unknown element type {shown:?}: expected e.g. <f4"))
        };
        let (&[order, kind], digits) = text.as_bytes().split_first_chunk().ok_or_else(unknown)?;
        if kind == b'O' {
            let why = "the elements are Python objects: write the array again with a numeric type";
            return Err(FormatError::unsupported(at, why));
        }
        // Dates carry a unit.
        let digits = match (kind, digits.iter().position(|&byte| byte == b'[')) {
            (b'M' | b'm', Some(end)) if digits.ends_with(b"]") => digits.get(..end).unwrap_or_default(),
            _ => digits,
        };
        let number = digits.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(digits).ok());
        let number: u64 = number.flatten().and_then(|digits| digits.parse().ok()).ok_or_else(unknown)?;
        let size = if kind == b'U' { number.checked_mul(4) } else { Some(number) }.ok_or_else(unknown)?;
        let valid = match kind {
            b'b' => size == 1,
            b'i' | b'u' => matches!(size, 1 | 2 | 4 | 8),
            b'f' => matches!(size, 2 | 4 | 8 | 16),
            b'c' => matches!(size, 8 | 16 | 32),
            b'M' | b'm' => size == 8,
            b'S' | b'U' | b'V' => size > 0,
            _ => false,
        };
        let ordered = !(size == 1 || matches!(kind, b'S' | b'V'));
        match order {
            _ if !valid => Err(unknown()),
            b'>' if ordered => {
                let why = "the elements are big endian: write the array again after \
                           array.astype(array.dtype.newbyteorder('<'))";
                Err(FormatError::unsupported(at, why))
            }
            b'<' | b'|' | b'>' => {
                let rest = text.get(1..).ok_or_else(unknown)?;
                Ok(Self { name: format!("{}{rest}", if ordered { '<' } else { '|' }), kind, size })
            }
            _ => Err(unknown()),
        }
    }

    /// As in `array.dtype.str`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The size of an element in bytes, at least 1.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// An array of these elements.
    pub(crate) fn array(&self, shape: Vec<Option<u64>>) -> ArrayType {
        ArrayType { dtype: self.name.clone(), shape }
    }

    /// Whether an element is a truth value, an integer or a fraction of at most 8 bytes.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self.kind, b'b' | b'i' | b'u' | b'f') && self.size <= 8
    }

    /// The value of one element. `None` if it is no number, has another size, or does not fit.
    pub(crate) fn number(&self, bytes: &[u8]) -> Option<Label> {
        if !self.is_number() || bytes.len() as u64 != self.size {
            return None;
        }
        let bits = le::uint(bytes, 0, bytes.len())?;
        Some(match self.kind {
            b'b' => Label::Integer(i64::from(bits != 0)),
            b'u' => Label::Integer(i64::try_from(bits).ok()?),
            b'i' => Label::Integer(le::signed(bits, bytes.len())),
            _ => Label::Float(le::float(bits, bytes.len())),
        })
    }

    /// Whether an element has a fraction.
    pub(crate) fn is_float(&self) -> bool {
        self.kind == b'f'
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_those_of_numpy() {
        for (text, name, size) in [
            ("uint16", "<u2", 2),
            ("<u1", "|u1", 1),
            (">b1", "|b1", 1),
            ("<U3", "<U3", 12),
            ("|S5", "|S5", 5),
            ("<M8[ns]", "<M8[ns]", 8),
            ("<c16", "<c16", 16),
        ] {
            let found = ElementType::parse(text, 0).unwrap();
            assert_eq!((found.name(), found.size()), (name, size));
        }
        for text in ["", "<", "<f", "<f3", ">f4", "|O", "=f4", "<i16", "<U", "|S0", "f4", "<é4", "<f+4"] {
            assert!(ElementType::parse(text, 0).is_err(), "{text}");
        }
        assert!(ElementType::parse("<U9999999999999999999", 0).is_err());
    }

    #[test]
    fn elements_become_numbers() {
        let number = |name: &str, bytes: &[u8]| ElementType::parse(name, 0).unwrap().number(bytes);
        assert_eq!(number("int8", &[0xff]), Some(Label::Integer(-1)));
        assert_eq!(number("int64", &(-5i64).to_le_bytes()), Some(Label::Integer(-5)));
        assert_eq!(number("int16", &[0xfe, 0xff]), Some(Label::Integer(-2)));
        assert_eq!(number("uint64", &u64::MAX.to_le_bytes()), None);
        assert_eq!(number("uint8", &[255]), Some(Label::Integer(255)));
        assert_eq!(number("float16", &0x3555u16.to_le_bytes()), Some(Label::Float(0.333251953125)));
        assert_eq!(number("float16", &0x8001u16.to_le_bytes()), Some(Label::Float(-(2f64.powi(-24)))));
        assert_eq!(number("float32", &1.5f32.to_le_bytes()), Some(Label::Float(1.5)));
        assert_eq!(number("float64", &[0; 4]), None);
        assert_eq!(number("|S1", &[1]), None);
    }
}
