//! What protects samples on their way between ranks.

use std::fmt;
use std::str::FromStr;

use crate::Address;

/// How the frames of a connection for samples are protected; all ranks of a run have the same.
///
/// Connections on one node ([`Address::Local`]) are always [`Checksummed`](Self::Checksummed): no packet of theirs leaves the
/// kernel. What ranks exchange when they meet is always sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Frames and samples have tags that only ranks of the job can make. Listeners can read the samples.
    #[default]
    Authenticated,
    /// All bytes are encrypted and authenticated.
    Sealed,
    /// CRC-32C finds damage and no intent: for networks that the job has to itself.
    Checksummed,
}

/// The text names no [`Wire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseWireError(String);

impl fmt::Display for ParseWireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid {} '{}': expected authenticated, sealed or checksummed", Wire::VARIABLE, self.0)
    }
}

impl std::error::Error for ParseWireError {}

impl Wire {
    /// The environment variable that sets it.
    pub const VARIABLE: &str = "FOREREAD_PEER_WIRE";

    /// What a connection to `address` has where this is set.
    #[must_use]
    pub fn over(self, address: &Address) -> Self {
        match address {
            Address::Local(_) => Self::Checksummed,
            Address::Tcp(..) => self,
        }
    }

    /// Its number in the handshake.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Authenticated => 1,
            Self::Sealed => 2,
            Self::Checksummed => 3,
        }
    }

    /// What a number of the handshake means.
    pub(crate) fn numbered(number: u8) -> Option<Self> {
        [Self::Authenticated, Self::Sealed, Self::Checksummed]
            .into_iter()
            .find(|wire| wire.number() == number)
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Authenticated => "authenticated",
            Self::Sealed => "sealed",
            Self::Checksummed => "checksummed",
        })
    }
}

impl FromStr for Wire {
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
    fn wire_is_read_as_it_was_written() {
        for wire in [Wire::Authenticated, Wire::Sealed, Wire::Checksummed] {
            assert_eq!(wire.to_string().parse(), Ok(wire));
            assert_eq!(Wire::numbered(wire.number()), Some(wire));
        }
        assert_eq!(Wire::numbered(0), None);
        let error = "tls".parse::<Wire>().unwrap_err().to_string();
        assert_eq!(error, "invalid FOREREAD_PEER_WIRE 'tls': expected authenticated, sealed or checksummed");
    }

    #[test]
    fn connections_on_one_node_are_checksummed() {
        for wire in [Wire::Authenticated, Wire::Sealed, Wire::Checksummed] {
            assert_eq!(wire.over(&Address::local("socket")), Wire::Checksummed);
            assert_eq!(wire.over(&Address::tcp("host", 1)), wire);
        }
    }
}
