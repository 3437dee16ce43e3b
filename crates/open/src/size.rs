//! Sizes and rates as people write them.
//!
//! ```
//! # extern crate foreread_open as foreread;
//! use foreread::size::{ByteRate, ByteSize};
//!
//! assert_eq!("1.5 GB".parse(), Ok(ByteSize(1_500_000_000)));
//! assert_eq!("100MB/s".parse(), Ok(ByteRate(100_000_000)));
//! assert_eq!(ByteSize(256 << 20).to_string(), "256.0 MiB");
//! ```

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Parses and prints with units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// The size of a cache. A plain number that holds no sample is refused, because its unit was
    /// forgotten.
    ///
    /// # Errors
    /// As parsing, and for 1 to 1023 without a unit: `8` was meant to be 8 GiB.
    pub fn of_cache(text: &str) -> Result<Self, ParseSizeError> {
        let size: Self = text.parse()?;
        let is_plain = text.trim().bytes().all(|byte| byte.is_ascii_digit());
        if is_plain && (1..SMALLEST_PLAIN_CACHE).contains(&size.0) {
            let why = "so few bytes hold no sample; write the unit, e.g. 8GiB or 500MB";
            return Err(ParseSizeError { text: text.to_owned(), why });
        }
        Ok(size)
    }

    /// The next size that prints without a loss, so that a user who writes the printed text gets no
    /// less than this.
    pub fn rounded_up(self) -> Self {
        let scale = u128::from(printed_unit(self.0).map_or(10, |(_, scale)| scale));
        let tenths = (u128::from(self.0) * 10).div_ceil(scale);
        Self(u64::try_from((tenths * scale).div_ceil(10)).unwrap_or(u64::MAX))
    }
}

/// The binary unit in which so many bytes are printed. `None` for bytes.
const fn printed_unit(bytes: u64) -> Option<(&'static str, u64)> {
    Some(match bytes {
        0..1024 => return None,
        0x400..0x10_0000 => ("KiB", 1u64 << 10),
        0x10_0000..0x4000_0000 => ("MiB", 1 << 20),
        0x4000_0000..0x100_0000_0000 => ("GiB", 1 << 30),
        _ => ("TiB", 1 << 40),
    })
}

const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
];

const TIB: (&str, u64) = ("tib", 1 << 40);

/// The text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid size '{text}': {why}")]
pub struct ParseSizeError {
    text: String,
    why: &'static str,
}

impl ParseSizeError {
    fn new(text: &str) -> Self {
        let why = "expected bytes, plain or with B KB MB GB TB or KiB MiB GiB TiB, e.g. 256MiB";
        Self { text: text.to_owned(), why }
    }
}

/// Cache sizes below this need a unit: `8` was meant to be 8 GiB.
const SMALLEST_PLAIN_CACHE: u64 = 1 << 10;

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    /// The case of units is ignored. A space before the unit and a decimal fraction are allowed.
    /// The result is rounded down to whole bytes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseSizeError::new(text);
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.trim_start().to_ascii_lowercase();
        let &(_, scale) = UNITS.iter().chain([&TIB]).find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty()
            || (number.contains('.') && (fraction.is_empty() || fraction.len() > 18 || scale == 1))
        {
            return Err(wrong());
        }
        let digits = |part: &str| if part.is_empty() { Ok(0) } else { part.parse::<u128>() };
        let (whole, numerator) =
            (digits(whole).map_err(|_| wrong())?, digits(fraction).map_err(|_| wrong())?);
        let denominator = 10u128.pow(fraction.len() as u32);
        let bytes = whole
            .checked_mul(u128::from(scale))
            .and_then(|bytes| bytes.checked_add(numerator * u128::from(scale) / denominator));
        bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for ByteSize {
    /// Binary units, one decimal: `256.0 MiB`. Bytes below one KiB.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match printed_unit(self.0) {
            None => write!(f, "{} B", self.0),
            Some((name, scale)) => write!(f, "{:.1} {name}", self.0 as f64 / scale as f64),
        }
    }
}

/// A number of bytes per second: a size with an optional `/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate(pub u64);

impl FromStr for ByteRate {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size = text.trim().strip_suffix("/s").unwrap_or(text);
        size.parse::<ByteSize>().map(|size| Self(size.0)).map_err(|_| ParseSizeError::new(text))
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", ByteSize(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("12", 12),
            ("12B", 12),
            ("3 KB", 3_000),
            ("3kib", 3 << 10),
            ("100MB", 100_000_000),
            ("256MiB", 256 << 20),
            ("1.5GiB", 3 << 29),
            ("2TB", 2_000_000_000_000),
            ("1TiB", 1 << 40),
            (" 7 GB ", 7_000_000_000),
            ("0.001KB", 1),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        assert_eq!("100MB/s".parse(), Ok(ByteRate(100_000_000)));
        assert_eq!("5KiB".parse(), Ok(ByteRate(5120)));
    }

    #[test]
    fn cache_without_its_unit_is_refused() {
        for text in ["1", "8", " 64 ", "1023"] {
            let error = ByteSize::of_cache(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("invalid size '{text}': ")) && error.contains("8GiB"),
                "{error}"
            );
        }
        for (text, bytes) in [("0", 0), ("1024", 1024), ("8B", 8), ("0.5KiB", 512)] {
            assert_eq!(ByteSize::of_cache(text), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for text in [
            "",
            "MB",
            "-1",
            "1.MB",
            ".5MB",
            "1.5",
            "1..5MB",
            "1e9",
            "12X",
            "1,5MB",
            "99999999999TB",
            "NaN",
            "MB/s",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
            assert!(text.parse::<ByteRate>().is_err(), "{text}");
        }
        assert!("1MB/h".parse::<ByteRate>().is_err());
    }

    #[test]
    fn sizes_rounded_up_are_read_back() {
        for bytes in (0..5000).chain([(1 << 20) - 1, (1 << 30) + 1, 123_456_789_012, u64::MAX >> 3]) {
            let rounded = ByteSize(bytes).rounded_up();
            let read: ByteSize = rounded.to_string().parse().unwrap();
            assert!(read.0 >= bytes && read.0 <= bytes + bytes / 10 + 1, "{bytes}: {rounded}");
        }
    }

    #[test]
    fn sizes_print_with_binary_units() {
        let printed: Vec<String> = [0, 1023, 1024, 256 << 20, 3 << 29, 1 << 40]
            .iter()
            .map(|&bytes| ByteSize(bytes).to_string())
            .collect();
        assert_eq!(printed, ["0 B", "1023 B", "1.0 KiB", "256.0 MiB", "1.5 GiB", "1.0 TiB"]);
    }
}
