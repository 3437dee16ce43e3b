//! Thrift's compact protocol, in which Parquet writes its metadata and page headers.
//!
//! Malformed and incomplete input is `None`. Each step takes at least one byte, and structs nest at
//! most 32 deep. So hostile input takes time and memory in proportion to its length.

/// The depth of nested structs and lists. Parquet needs 8.
const MAX_DEPTH: u8 = 32;

/// The type of a field or of the elements of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    True,
    False,
    Byte,
    Integer,
    Double,
    Binary,
    List,
    Map,
    Struct,
    Uuid,
}

impl Kind {
    fn new(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::True,
            2 => Self::False,
            3 => Self::Byte,
            4..=6 => Self::Integer,
            7 => Self::Double,
            8 => Self::Binary,
            // Sets are written as lists.
            9 | 10 => Self::List,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Uuid,
            _ => return None,
        })
    }
}

/// Reads values from the beginning of a slice.
#[derive(Debug)]
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u8,
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// The number of bytes that were read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn varint(&mut self) -> Option<u64> {
        let (length, value) = super::levels::varint(self.bytes.get(self.at..)?)?;
        self.at += length;
        Some(value)
    }

    /// Runs `inner` one level deeper.
    fn nested(&mut self, inner: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let done = inner(self);
        self.depth -= 1;
        done
    }

    /// Calls `each` with the id and type of each field of a struct. It must read or skip the value.
    pub(super) fn fields(&mut self, mut each: impl FnMut(&mut Self, i64, Kind) -> Option<()>) -> Option<()> {
        self.nested(|thrift| {
            let mut id = 0_i64;
            loop {
                let head = thrift.byte()?;
                if head & 0xf == 0 {
                    return Some(());
                }
                let kind = Kind::new(head & 0xf)?;
                id = match head >> 4 {
                    0 => thrift.integer(Kind::Integer)?,
                    delta => id.checked_add(delta.into())?,
                };
                each(thrift, id, kind)?;
            }
        })
    }

    /// Calls `each` for each element of a list of structs. It must read the struct.
    pub(super) fn structs(
        &mut self,
        kind: Kind,
        mut each: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        let (count, element) = self.list(kind)?;
        if count > 0 && element != Kind::Struct {
            return None;
        }
        (0..count).try_for_each(|_| each(self))
    }

    /// The number of elements of a list, and their type. Each takes at least one byte.
    fn list(&mut self, kind: Kind) -> Option<(usize, Kind)> {
        let head = self.byte().filter(|_| kind == Kind::List)?;
        let count = match head >> 4 {
            15 => usize::try_from(self.varint()?).ok()?,
            count => count.into(),
        };
        if count == 0 {
            // Some writers leave out the type of no elements.
            return Some((0, Kind::Byte));
        }
        (count <= self.bytes.len() - self.at).then_some((count, Kind::new(head & 0xf)?))
    }

    /// An integer of up to 64 bits.
    pub(super) fn integer(&mut self, kind: Kind) -> Option<i64> {
        match kind {
            Kind::Byte => self.byte().map(|byte| (byte as i8).into()),
            Kind::Integer => self.varint().map(|value| (value >> 1) as i64 ^ -((value & 1) as i64)),
            _ => None,
        }
    }

    /// An integer that may not be negative.
    pub(super) fn unsigned(&mut self, kind: Kind) -> Option<u64> {
        self.integer(kind).and_then(|value| value.try_into().ok())
    }

    /// A boolean field, whose value is in its type.
    pub(super) fn boolean(&self, kind: Kind) -> Option<bool> {
        match kind {
            Kind::True => Some(true),
            Kind::False => Some(false),
            _ => None,
        }
    }

    /// Text, which must be UTF-8.
    pub(super) fn text(&mut self, kind: Kind) -> Option<&'a str> {
        let length = self.varint().filter(|_| kind == Kind::Binary)?;
        std::str::from_utf8(self.take(length.try_into().ok()?)?).ok()
    }

    /// Skips the value of a field.
    pub(super) fn skip(&mut self, kind: Kind) -> Option<()> {
        match kind {
            Kind::True | Kind::False => Some(()),
            Kind::Byte => self.byte().map(drop),
            Kind::Integer => self.varint().map(drop),
            Kind::Double => self.take(8).map(drop),
            Kind::Uuid => self.take(16).map(drop),
            Kind::Binary => {
                let length = self.varint()?;
                self.take(length.try_into().ok()?).map(drop)
            }
            Kind::Struct => self.fields(|thrift, _, kind| thrift.skip(kind)),
            Kind::List => self.nested(|thrift| {
                let (count, element) = thrift.list(kind)?;
                (0..count).try_for_each(|_| thrift.skip_element(element))
            }),
            Kind::Map => self.nested(|thrift| {
                let count = usize::try_from(thrift.varint()?).ok()?;
                if count == 0 {
                    return Some(());
                }
                let kinds = thrift.byte()?;
                let (key, value) = (Kind::new(kinds >> 4)?, Kind::new(kinds & 0xf)?);
                (0..count).try_for_each(|_| {
                    thrift.skip_element(key)?;
                    thrift.skip_element(value)
                })
            }),
        }
    }

    /// Skips an element of a list or map. There a boolean takes a byte.
    fn skip_element(&mut self, kind: Kind) -> Option<()> {
        match kind {
            Kind::True | Kind::False => self.byte().map(drop),
            kind => self.skip(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_ids_and_values() {
        // 1: i32 -2, 2: true, 5: "ab", 300: i64 1, and the end.
        let bytes = [0x15, 0x03, 0x11, 0x38, 2, b'a', b'b', 0x06, 0xd8, 0x04, 0x02, 0, 9];
        let mut seen = Vec::new();
        let mut thrift = Thrift::new(&bytes);
        thrift.fields(|thrift, id, kind| {
            seen.push((
                id,
                match kind {
                    Kind::Binary => thrift.text(kind)?.to_owned(),
                    Kind::True => thrift.boolean(kind)?.to_string(),
                    kind => thrift.integer(kind)?.to_string(),
                },
            ));
            Some(())
        });
        let expected = [(1, "-2"), (2, "true"), (5, "ab"), (300, "1")];
        assert_eq!(seen, expected.map(|(id, value)| (id, value.to_owned())));
        assert_eq!(thrift.position(), bytes.len() - 1);
        for cut in 0..bytes.len() - 1 {
            assert_eq!(Thrift::new(&bytes[..cut]).skip(Kind::Struct), None, "{cut}");
        }
    }

    #[test]
    fn booleans_in_lists_take_a_byte() {
        let mut thrift = Thrift::new(&[0x31, 1, 2, 1, 7]);
        assert_eq!((thrift.skip(Kind::List), thrift.position()), (Some(()), 4));
        // A list of two billion booleans in six bytes.
        assert_eq!(Thrift::new(&[0xf1, 0xff, 0xff, 0xff, 0xff, 0x07]).skip(Kind::List), None);
    }

    #[test]
    fn depth_of_structs_is_bounded() {
        let nested = |depth: usize| [vec![0x1c; depth], vec![0; depth + 1]].concat();
        assert_eq!(Thrift::new(&nested(31)).skip(Kind::Struct), Some(()));
        assert_eq!(Thrift::new(&nested(32)).skip(Kind::Struct), None);
        assert_eq!(Thrift::new(&nested(100_000)).skip(Kind::Struct), None);
        // Lists of lists.
        assert_eq!(Thrift::new(&[0x19; 100_000]).skip(Kind::List), None);
    }
}
