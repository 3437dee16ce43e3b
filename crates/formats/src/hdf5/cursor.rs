//! Reads the fields of a structure one after another, with checked bounds.

use super::checksum::lookup3;
use crate::{FormatError, le};

/// The widths of addresses and of lengths in a file, in bytes: 2, 4 or 8.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// A structure and the place of the next field in it.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    /// The structure's name, for errors.
    pub(super) what: &'static str,
    pub(super) bytes: &'a [u8],
    pub(super) next: usize,
    /// The place of `bytes` in the file.
    pub(super) at: u64,
    /// The place that addresses in the file are relative to.
    pub(super) base: u64,
    pub(super) widths: Widths,
}

impl<'a> Cursor<'a> {
    /// The place of the next field in the file.
    pub(super) fn place(&self) -> u64 {
        self.at + self.next as u64
    }

    /// An error at the next field.
    pub(super) fn damaged(&self, why: &str) -> FormatError {
        FormatError::damaged(self.place(), format!("HDF5 {}: {why}", self.what))
    }

    /// An error at the next field: valid, but not usable.
    pub(super) fn unsupported(&self, why: &str) -> FormatError {
        FormatError::unsupported(self.place(), format!("HDF5 {}: {why}", self.what))
    }

    /// The bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.next
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        let end = self.next.checked_add(length);
        let bytes = end.and_then(|end| self.bytes.get(self.next..end));
        let bytes = bytes.ok_or_else(|| self.damaged("it ends before its last field"))?;
        self.next += length;
        Ok(bytes)
    }

    /// Leaves out `length` bytes.
    pub(super) fn skip(&mut self, length: usize) -> Result<(), FormatError> {
        self.take(length).map(drop)
    }

    /// An unsigned integer of `width` bytes, 1 to 8.
    pub(super) fn uint(&mut self, width: usize) -> Result<u64, FormatError> {
        let bytes = self.take(width)?;
        le::uint(bytes, 0, width).ok_or_else(|| self.damaged("an integer is wider than 8 bytes"))
    }

    /// An unsigned integer of 1 byte.
    pub(super) fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.uint(1)? as u8)
    }

    /// An unsigned integer of 2 bytes.
    pub(super) fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(self.uint(2)? as u16)
    }

    /// An unsigned integer of 4 bytes.
    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(self.uint(4)? as u32)
    }

    /// A length, as wide as the file's lengths.
    pub(super) fn length(&mut self) -> Result<u64, FormatError> {
        self.uint(self.widths.length)
    }

    /// An address as a place in the file. `None` if it is undefined: all bits are one.
    pub(super) fn address(&mut self) -> Result<Option<u64>, FormatError> {
        let address = self.uint(self.widths.offset)?;
        if address == u64::MAX >> (64 - 8 * self.widths.offset) {
            return Ok(None);
        }
        match self.base.checked_add(address) {
            Some(place) => Ok(Some(place)),
            None => Err(self.damaged("an address is larger than any file")),
        }
    }

    /// An address that must be defined, of `target`.
    pub(super) fn place_of(&mut self, target: &str) -> Result<u64, FormatError> {
        self.address()?.ok_or_else(|| self.damaged(&format!("the address of {target} is undefined")))
    }

    /// Checks the next four bytes, which name the structure.
    pub(super) fn signature(&mut self, signature: &[u8; 4]) -> Result<(), FormatError> {
        if self.take(4)? == signature {
            return Ok(());
        }
        self.next -= 4;
        let signature = String::from_utf8_lossy(signature);
        Err(self.damaged(&format!("its signature `{signature}` is missing: the file is damaged")))
    }

    /// Checks the next four bytes, the checksum of all bytes before.
    pub(super) fn checksum(&mut self) -> Result<(), FormatError> {
        let computed = lookup3(&self.bytes[..self.next]);
        let stored = self.clone().u32()?;
        if stored != computed {
            let why = format!("checksum {stored:08x}, expected {computed:08x}: the file is damaged");
            return Err(self.damaged(&why));
        }
        self.skip(4)
    }

    /// Checks the last four bytes, the checksum of all others.
    pub(super) fn checksum_at_end(mut self) -> Result<(), FormatError> {
        self.next = self.bytes.len().saturating_sub(4);
        self.checksum()
    }

    /// The next `length` bytes as a structure with a checksum.
    pub(super) fn part(&mut self, length: usize) -> Result<Self, FormatError> {
        let at = self.place();
        Ok(Self { bytes: self.take(length)?, next: 0, at, ..*self })
    }

    /// Checks the next byte, the structure's version.
    pub(super) fn version(&mut self, version: u8) -> Result<(), FormatError> {
        match self.u8()? {
            found if found == version => Ok(()),
            found => Err(self.unsupported(&format!("version {found}: expected {version}"))),
        }
    }
}

/// The number of bytes that hold `bits` bits.
pub(super) fn bytes_of_bits(bits: u64) -> usize {
    bits.div_ceil(8) as usize
}

/// HDF5's width of integers up to `limit`, in bytes.
pub(super) fn width_of_limit(limit: u64) -> usize {
    limit.checked_ilog2().unwrap_or(0) as usize / 8 + 1
}

/// The product of lengths, or `None` beyond 64 bits.
pub(super) fn product(lengths: &[u64]) -> Option<u64> {
    // A length of zero makes the product zero, even after an overflow.
    if lengths.contains(&0) {
        return Some(0);
    }
    lengths.iter().try_fold(1u64, |product, &length| product.checked_mul(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(bytes: &[u8], offset: usize) -> Cursor<'_> {
        Cursor { what: "test", bytes, next: 0, at: 100, base: 512, widths: Widths { offset, length: 2 } }
    }

    #[test]
    fn addresses_are_relative_to_the_base() {
        let mut narrow = cursor(&[1, 2, 255, 255, 7], 2);
        assert_eq!(narrow.address().unwrap(), Some(0x201 + 512));
        assert_eq!(narrow.address().unwrap(), None);
        assert_eq!(narrow.address().unwrap_err().at(), 104);
        assert!(cursor(&[254, 255, 255, 255, 255, 255, 255, 255], 8).address().is_err());
    }

    #[test]
    fn widths_of_limits_are_those_of_the_library() {
        let cases = [(0, 1), (1, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 3), (u64::MAX, 8)];
        for (limit, width) in cases {
            assert_eq!(width_of_limit(limit), width, "{limit}");
        }
        assert_eq!(bytes_of_bits(32), 4);
        assert_eq!(bytes_of_bits(33), 5);
        assert_eq!(product(&[u64::MAX, 2, 0]), Some(0));
        assert_eq!(product(&[u64::MAX, 2]), None);
    }
}
