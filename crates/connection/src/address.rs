//! The address that a rank listens on.
//!
//! Ranks send addresses to each other as text, so each has exactly one spelling: `host:port`, or
//! `unix:@name` for an abstract socket. Only processes of the same node reach an abstract socket,
//! and it disappears with its process.

use std::fmt;
use std::str::FromStr;

/// The address that a rank listens on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// An abstract Unix socket. It sorts first because it is cheaper where both ends see it.
    Local(String),
    /// A host, by name or number, and a port. Port 0 listens on any free port.
    Tcp(String, u16),
}

impl Address {
    /// A host and a port. An IPv6 address is given without brackets.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp(host.into(), port)
    }

    /// An abstract Unix socket with a name of at most 107 bytes.
    pub fn local(name: impl Into<String>) -> Self {
        Self::Local(name.into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(name) => write!(f, "unix:@{name}"),
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// The text is not a valid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid address {0:?}: expected host:port or unix:@name")]
pub struct ParseAddressError(String);

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseAddressError(text.to_owned());
        if let Some(name) = text.strip_prefix("unix:") {
            let name = name.strip_prefix('@').filter(|name| !name.is_empty()).ok_or_else(wrong)?;
            return Ok(Self::local(name));
        }
        let (host, port) = text.strip_prefix("tcp://").unwrap_or(text).rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(host) => host,
            None if host.contains([':', '/', '[', ']', ' ']) => return Err(wrong()),
            None => host,
        };
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse() {
            Ok(port) if digits && !host.is_empty() => Ok(Self::tcp(host, port)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trips_as_text() {
        for text in ["node-3:7001", "10.0.0.1:0", "[fe80::1]:65535", "unix:@foreread rank 3"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("tcp://a:1".parse(), Ok(Address::tcp("a", 1)));
        assert_eq!("[::1]:7".parse(), Ok(Address::tcp("::1", 7)));
    }

    #[test]
    fn invalid_address_is_named() {
        for text in [
            "",
            "host",
            "host:",
            ":1",
            "host:65536",
            "host:+1",
            "fe80::1:80",
            "unix:/run/x",
            "unix:@",
            "a b:1",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("invalid address {text:?}: ")), "{error}");
        }
    }
}
