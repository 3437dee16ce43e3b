//! The identity of a dataset's bytes.

use std::fmt;
use std::str::FromStr;

/// A 128-bit digest of a catalog's fingerprint and its data's location.
///
/// A fingerprint covers names, sizes and times. Two datasets may agree in these and differ in their
/// bytes. So everything that stores or sends bytes (disk records, peers, shared memory) uses the
/// identity. State files and calibrations use the fingerprint, so that a run can resume after its
/// data were moved.
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
        f.write_str("invalid dataset identity: expected 32 hexadecimal digits")
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
