//! The server's address: a random name, or the path of a socket.
//!
//! A server of one job has a random name of 128 bits in Linux's abstract socket namespace. Such a
//! name is not a file: it disappears with its last socket. The price is that containers must share
//! a network namespace, as the processes of one training job do. Every process in that namespace
//! can read the name in `/proc/net/unix`. Where all containers run as user 0, the user id proves
//! nothing. So the address has a secret of 128 bits in addition, which the kernel shows to no
//! process.
//!
//! A server for all jobs of a user has a socket at a path that they know, in a private directory.
//! Every process that can open the socket may use it. So containers use it by a mount of the
//! directory.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use rustix::net::SocketAddrUnix;
use subtle::ConstantTimeEq;

use crate::{StoreError, StoreErrorKind};

const PREFIX: &str = "@foreread-";
/// The length of the name and of the secret, in bytes.
pub(crate) const BYTES: usize = 16;

/// The secret in a worker's first message. It is never printed.
#[derive(Clone, Copy)]
pub(crate) struct Secret([u8; BYTES]);

impl Secret {
    /// The bytes to send.
    pub(crate) fn expose(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// Compares in constant time.
    pub(crate) fn matches(&self, given: &[u8; BYTES]) -> bool {
        self.0.ct_eq(given).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Where a server listens.
#[derive(Clone, Debug)]
enum Place {
    /// A name in the abstract namespace.
    Name(String),
    /// The path of a socket.
    Path(PathBuf),
}

/// A server's place and secret. The debug output has only the place.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    place: Place,
    pub(crate) secret: Secret,
}

impl Address {
    /// A random address.
    pub(crate) fn new() -> io::Result<Self> {
        let name = format!("{PREFIX}{}", hex(&random()?));
        Ok(Self { place: Place::Name(name), secret: Secret(random()?) })
    }

    /// The address of a socket at `path`, for every process that can open it.
    pub(crate) fn at(path: &Path) -> Self {
        Self { place: Place::Path(path.to_owned()), secret: Secret([0; BYTES]) }
    }

    /// The path of the socket, if it has one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::Name(_) => None,
            Place::Path(path) => Some(path),
        }
    }

    /// Parses the address given to workers.
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        if text.starts_with('/') {
            return Ok(Self::at(Path::new(text)));
        }
        let parts = text.strip_prefix(PREFIX).and_then(|digits| digits.split_once(':'));
        let parsed = parts.and_then(|(name, secret)| {
            bytes(name)?;
            let place = Place::Name(format!("{PREFIX}{name}"));
            Some(Self { place, secret: Secret(bytes(secret)?) })
        });
        // The input may contain most of a secret, so it is not repeated.
        parsed.ok_or_else(|| {
            let detail = format!(
                "invalid address of a data source: expected {PREFIX}, 32 hexadecimal digits, a colon and \
                 32 more, as the main process's server gives it"
            );
            StoreError::new(StoreErrorKind::Invalid, detail)
        })
    }

    /// The address for clients: a path, or `@foreread-`, 32 hexadecimal digits, a colon and the
    /// secret in 32 more.
    pub(crate) fn text(&self) -> String {
        match &self.place {
            Place::Name(name) => format!("{name}:{}", hex(&self.secret.0)),
            Place::Path(path) => path.display().to_string(),
        }
    }

    /// The socket's address.
    pub(crate) fn socket(&self) -> rustix::io::Result<SocketAddrUnix> {
        match &self.place {
            Place::Name(name) => SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..]),
            Place::Path(path) => SocketAddrUnix::new(path),
        }
    }
}

fn random() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn hex(bytes: &[u8; BYTES]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

/// Parses 32 lower-case hexadecimal digits.
fn bytes(digits: &str) -> Option<[u8; BYTES]> {
    let right = digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    right.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_and_parse() {
        let (one, other) = (Address::new().unwrap(), Address::new().unwrap());
        assert_ne!(one.text(), other.text());
        assert!(!one.secret.matches(other.secret.expose()));
        let text = one.text();
        let read = Address::parse(&text).unwrap();
        let name = text.split_once(':').unwrap().0;
        assert_eq!(read.text(), text);
        assert!(read.secret.matches(one.secret.expose()));
        assert_eq!(read.socket().unwrap().abstract_name().unwrap(), &name.as_bytes()[1..]);
        for wrong in
            ["", "@", "tmp/socket", &text[1..], &text[..20], name, &format!("{text}0"), &text.to_uppercase()]
        {
            let error = Address::parse(wrong).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Invalid, "{wrong}");
        }
    }

    #[test]
    // semantics: WORKER-7
    fn secret_is_never_printed() {
        let address = Address::new().unwrap();
        let secret = hex(address.secret.expose());
        assert!(address.text().ends_with(&secret));
        let shown = format!("{address:?} {address:#?} {}", Address::parse(&address.text()[1..]).unwrap_err());
        let text = address.text();
        assert!(shown.contains(text.split_once(':').unwrap().0) && !shown.contains(&secret), "{shown}");
    }

    #[test]
    fn path_is_an_address() {
        let address = Address::parse("/run/user/1000/foreread/node.sock").unwrap();
        assert_eq!(address.text(), "/run/user/1000/foreread/node.sock");
        assert_eq!(address.path(), Some(Path::new("/run/user/1000/foreread/node.sock")));
        assert!(Address::at(Path::new(&format!("/{}", "x".repeat(200)))).socket().is_err());
    }
}
