//! How samples are protected between ranks.

use std::fmt;
use std::str::FromStr;

use crate::Address;

/// The protection of connections for samples. All ranks of a run must use the same.
///
/// Connections on one node ([`Address::Local`]) are always [`Checksummed`](Self::Checksummed):
/// their bytes never leave the kernel. A rendezvous is always encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WireProtection {
    /// Frames and samples have authentication tags that only ranks of the job can compute.
    /// Eavesdroppers can read the samples.
    #[default]
    Authenticated,
    /// All bytes are encrypted and authenticated.
    Sealed,
    /// CRC-32C detects damage and not manipulation: for networks that only the job uses.
    Checksummed,
}

/// The text is not a valid [`WireProtection`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid {name} '{0}': expected authenticated, sealed or checksummed",
    name = WireProtection::VARIABLE
)]
pub struct ParseWireError(String);

impl WireProtection {
    /// The environment variable that sets it.
    pub const VARIABLE: &str = "FOREREAD_PEER_WIRE";

    /// The protection of a connection to `address` with this setting.
    #[must_use]
    pub fn over(self, address: &Address) -> Self {
        match address {
            Address::Local(_) => Self::Checksummed,
            Address::Tcp(..) => self,
        }
    }

    /// The number in the handshake.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Authenticated => 1,
            Self::Sealed => 2,
            Self::Checksummed => 3,
        }
    }

    /// The protection of a number in the handshake.
    pub(crate) fn numbered(number: u8) -> Option<Self> {
        [Self::Authenticated, Self::Sealed, Self::Checksummed]
            .into_iter()
            .find(|wire| wire.number() == number)
    }
}

impl fmt::Display for WireProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Authenticated => "authenticated",
            Self::Sealed => "sealed",
            Self::Checksummed => "checksummed",
        })
    }
}

impl FromStr for WireProtection {
    type Err = ParseWireError;

    fn from_str(text: &str) -> Result<Self, ParseWireError> {
        match text.trim() {
            "authenticated" => Ok(Self::Authenticated),
            "sealed" => Ok(Self::Sealed),
            "checksummed" => Ok(Self::Checksummed),
            other => Err(ParseWireError(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_round_trips_as_text_and_number() {
        for wire in [WireProtection::Authenticated, WireProtection::Sealed, WireProtection::Checksummed] {
            assert_eq!(wire.to_string().parse(), Ok(wire));
            assert_eq!(WireProtection::numbered(wire.number()), Some(wire));
        }
        assert_eq!(WireProtection::numbered(0), None);
        let error = "tls".parse::<WireProtection>().unwrap_err().to_string();
        assert_eq!(error, "invalid FOREREAD_PEER_WIRE 'tls': expected authenticated, sealed or checksummed");
    }

    #[test]
    fn connections_on_one_node_are_checksummed() {
        for wire in [WireProtection::Authenticated, WireProtection::Sealed, WireProtection::Checksummed] {
            assert_eq!(wire.over(&Address::local("socket")), WireProtection::Checksummed);
            assert_eq!(wire.over(&Address::tcp("host", 1)), wire);
        }
    }
}
