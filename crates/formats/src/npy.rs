//! NumPy's `.npy`: the samples are the rows along the first dimension.
//!
//! The rows lie at equal distances, so their places are one [`Run`] and need no table. The header
//! is a dictionary in Python's syntax. Decision: only NumPy's own headers are parsed, by a strict
//! parser. The price is that a header written by hand in another way is refused.
//!
//! Bytes after the array are ignored, as `numpy.load` ignores them.

use crate::element::ElementType;
use crate::found::{Extents, FoundSamples, Run};
use crate::{FileSource, FormatError, le};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The first request. It has most headers.
const FIRST: u64 = 4096;

/// The longest header in bytes. NumPy itself refuses those over 10,000 bytes.
const LONGEST: u64 = 1 << 20;

/// The most dimensions: NumPy's limit.
const DIMENSIONS: usize = 64;

/// Finds the rows of an array.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the header is not one of `.npy`, or the array
/// does not fit in the file. [`Unsupported`](crate::FormatErrorKind::Unsupported) if rows are not
/// contiguous numbers: Fortran order, objects, structured types, big endian, no dimension.
/// [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
pub async fn index(source: &dyn FileSource) -> Result<FoundSamples, FormatError> {
    let header = header(source).await?;
    let [count, inner @ ..] = &header.shape[..] else {
        let why = "the array has no dimension, so it has no rows: write it as array.reshape(1)";
        return Err(FormatError::unsupported(0, why));
    };
    let length = inner.iter().try_fold(header.element.size(), |product, &next| product.checked_mul(next));
    let length = length.ok_or_else(|| FormatError::cut_short(header.data, source.size()))?;
    if length == 0 && *count > 0 {
        return Err(FormatError::unsupported(0, "the rows are empty: an inner dimension is 0"));
    }
    let sizes: Vec<String> = header.shape.iter().map(u64::to_string).collect();
    let mut summary = format!("npy array: {} {}", sizes.join(" x "), header.element.name());
    if header.after > 0 {
        summary.push_str(&format!(", {} bytes after it are ignored", header.after));
    }
    let run = Run { start: header.data, stride: length, length, count: *count };
    let mut found = FoundSamples::at(Extents::Runs(vec![run]), summary);
    found.array = Some(header.element.array(inner.iter().map(|&size| Some(size)).collect()));
    Ok(found)
}

/// The contents of a header. The array fits in the file.
pub(crate) struct Header {
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<u64>,
    /// The offset of the first element in bytes.
    pub(crate) data: u64,
    /// The number of bytes after the array.
    pub(crate) after: u64,
}

/// Reads and checks the header.
pub(crate) async fn header(source: &dyn FileSource) -> Result<Header, FormatError> {
    let size = source.size();
    if size == 0 {
        return Err(FormatError::cut_short(0, size));
    }
    let first = source.read(0..size.min(FIRST)).await?;
    if !first.starts_with(MAGIC) {
        return Err(FormatError::damaged(0, "not an npy file: it does not begin with \\x93NUMPY"));
    }
    let short = || FormatError::cut_short(0, size);
    let version = *first.get(6).ok_or_else(short)?;
    let (begin, length) = match version {
        1 => (10, u64::from(le::u16(&first, 8).ok_or_else(short)?)),
        2 | 3 => (12, u64::from(le::u32(&first, 8).ok_or_else(short)?)),
        _ => {
            let why = format!("npy version {version}: expected 1 to 3. Write it again with numpy.save");
            return Err(FormatError::unsupported(6, why));
        }
    };
    let data = begin + length;
    if data > size {
        return Err(short());
    }
    if length > LONGEST {
        return Err(FormatError::damaged(8, format!("the header has {length} bytes: expected {LONGEST}")));
    }
    let whole = if data <= first.len() as u64 { first } else { source.read(0..data).await? };
    let text = whole.get(begin as usize..data as usize).ok_or_else(short)?;
    let (element, fortran, shape) = Literal { text, at: 0, begin }.header()?;
    if fortran && shape.len() > 1 {
        let why = "the array is in Fortran order, so rows are not contiguous: write it again with \
                   numpy.save(path, numpy.ascontiguousarray(array))";
        return Err(FormatError::unsupported(begin, why));
    }
    let length = shape.iter().try_fold(element.size(), |product, &next| product.checked_mul(next));
    let after = length.and_then(|length| (size - data).checked_sub(length));
    let after = after.ok_or_else(|| FormatError::cut_short(data, size))?;
    Ok(Header { element, shape, data, after })
}

/// A dictionary of Python, of which a part is parsed.
struct Literal<'a> {
    text: &'a [u8],
    at: usize,
    /// The offset of the text in the file in bytes.
    begin: u64,
}

impl<'a> Literal<'a> {
    /// The element type, whether the order is Fortran's, and the shape.
    fn header(mut self) -> Result<(ElementType, bool, Vec<u64>), FormatError> {
        let (mut element, mut fortran, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            match key {
                "descr" if element.is_none() => element = Some(self.element()?),
                "fortran_order" if fortran.is_none() => fortran = Some(self.truth()?),
                "shape" if shape.is_none() => shape = Some(self.shape()?),
                _ => return Err(self.damaged("a known key, once")),
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.skip_blanks();
        if self.at < self.text.len() {
            return Err(self.damaged("the end"));
        }
        let missing = || self.damaged("the keys descr, fortran_order and shape");
        Ok((element.ok_or_else(missing)?, fortran.ok_or_else(missing)?, shape.ok_or_else(missing)?))
    }

    fn element(&mut self) -> Result<ElementType, FormatError> {
        self.skip_blanks();
        if matches!(self.text.get(self.at), Some(b'[' | b'(')) {
            let why = "the array has a structured type: save each of its fields as an array";
            return Err(FormatError::unsupported(self.offset(), why));
        }
        let at = self.offset();
        ElementType::parse(self.string()?, at)
    }

    fn truth(&mut self) -> Result<bool, FormatError> {
        self.skip_blanks();
        let rest = self.text.get(self.at..).unwrap_or_default();
        for (word, truth) in [(&b"False"[..], false), (b"True", true)] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(truth);
            }
        }
        Err(self.damaged("True or False"))
    }

    fn shape(&mut self) -> Result<Vec<u64>, FormatError> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while !self.take(b')') {
            if shape.len() == DIMENSIONS {
                return Err(self.damaged("at most 64 dimensions"));
            }
            shape.push(self.number()?);
            // A comma makes one number a tuple.
            if !self.take(b',') {
                self.expect(b')')?;
                if shape.len() == 1 {
                    return Err(self.damaged("a comma"));
                }
                break;
            }
        }
        Ok(shape)
    }

    fn number(&mut self) -> Result<u64, FormatError> {
        self.skip_blanks();
        let rest = self.text.get(self.at..).unwrap_or_default();
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = rest.get(..digits).and_then(|digits| std::str::from_utf8(digits).ok());
        let number = text.and_then(|text| text.parse().ok()).ok_or_else(|| self.damaged("a number"))?;
        self.at += digits;
        // Python 2 wrote long numbers so.
        self.take(b'L');
        Ok(number)
    }

    /// A string without escapes.
    fn string(&mut self) -> Result<&'a str, FormatError> {
        self.skip_blanks();
        let rest = self.text.get(self.at..).unwrap_or_default();
        let (&quote, rest) = rest.split_first().ok_or_else(|| self.damaged("a string"))?;
        let length = rest.iter().position(|&byte| byte == quote);
        let inner =
            length.and_then(|length| rest.get(..length)).and_then(|inner| std::str::from_utf8(inner).ok());
        let plain = inner.filter(|inner| matches!(quote, b'\'' | b'"') && !inner.contains('\\'));
        let string = plain.ok_or_else(|| self.damaged("a string"))?;
        self.at += string.len() + 2;
        Ok(string)
    }

    fn expect(&mut self, byte: u8) -> Result<(), FormatError> {
        if self.take(byte) { Ok(()) } else { Err(self.damaged(&format!("'{}'", char::from(byte)))) }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let there = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(there);
        there
    }

    fn skip_blanks(&mut self) {
        let rest = self.text.get(self.at..).unwrap_or_default();
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    }

    fn offset(&self) -> u64 {
        self.begin + self.at as u64
    }

    fn damaged(&self, expected: &str) -> FormatError {
        let why = format!("the npy header has no {expected} here: write it again with numpy.save");
        FormatError::damaged(self.offset(), why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(ElementType, bool, Vec<u64>), FormatError> {
        Literal { text: text.as_bytes(), at: 0, begin: 10 }.header()
    }

    #[test]
    fn headers_of_numpy_are_parsed() {
        let (element, fortran, shape) =
            parse("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }     \n").unwrap();
        assert_eq!((element.name(), fortran, shape), ("<f4", false, vec![3, 4]));
        let python2 = parse("{\"shape\": (3L,), 'fortran_order': True, 'descr': '|u1'}").unwrap();
        assert_eq!(python2.2, [3]);
        let scalar = parse("{'descr': '<f4', 'fortran_order': False, 'shape': (), }").unwrap();
        assert!(scalar.2.is_empty());
    }

    #[test]
    fn other_literals_are_refused() {
        for text in [
            "",
            "{",
            "{}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} {",
            "{'descr': '<\\x664', 'fortran_order': False, 'shape': (3,)}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
