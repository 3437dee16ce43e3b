//! Digests that stand for values too large to send.

use std::fmt;
use std::str::FromStr;

/// A 128-bit digest of a schedule, a catalog or a plan. Equal fingerprints mean equal values.
///
/// It guards against mistakes, not against an adversary: its digests are not cryptographic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl fmt::Display for Fingerprint {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The text was not 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseFingerprintError;

impl fmt::Display for ParseFingerprintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid fingerprint: expected 32 hexadecimal digits")
    }
}

impl std::error::Error for ParseFingerprintError {}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ParseFingerprintError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| ParseFingerprintError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_text_round_trip() {
        let print = Fingerprint(0x1234_abcd);
        assert_eq!(print.to_string().parse(), Ok(print));
        assert_eq!("+0000000000000000000000000000001".parse::<Fingerprint>(), Err(ParseFingerprintError));
        assert_eq!("12".parse::<Fingerprint>(), Err(ParseFingerprintError));
    }
}
