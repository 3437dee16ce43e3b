//! What a dataset's bytes are known by wherever they outlive a moment.

use std::fmt;
use std::str::FromStr;

/// 128 bits of a catalog's fingerprint and the place that its data are read from.
///
/// A fingerprint says what data look like: names, sizes, times. Two datasets may look alike and hold other bytes, so
/// whatever keeps or passes bytes on (disk records, peers, shared memory) goes by the identity. What is only about the
/// order (state files, calibrations) goes by the fingerprint, so that a run can be resumed after its data were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatasetIdentity(pub u128);

impl fmt::Display for DatasetIdentity {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The text was not 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdentityError;

impl fmt::Display for ParseIdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dataset's identity is 32 hexadecimal digits")
    }
}

impl std::error::Error for ParseIdentityError {}

impl FromStr for DatasetIdentity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: crate::Fingerprint = text.parse().map_err(|_| ParseIdentityError)?;
        Ok(Self(digits.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_text_round_trip() {
        let identity = DatasetIdentity(0x1234_abcd);
        assert_eq!(identity.to_string().parse(), Ok(identity));
        assert_eq!("12".parse::<DatasetIdentity>(), Err(ParseIdentityError));
    }
}
