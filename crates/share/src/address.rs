//! Where a server is, and the secret that it expects: a name in Linux's abstract namespace of sockets, 128 random bits of
//! it, and 128 more for the first message.
//!
//! Such a name is no file: it ends with the last socket that has it. The price is that containers must share a network
//! namespace, as the processes of one training job do. Every process in that namespace can read the name in
//! `/proc/net/unix`, so the name is no secret. The user proves nothing either where all containers run as user 0. So the
//! address that workers are given has a secret, too, which the kernel shows to no process.

use std::{fmt, io};

use rustix::net::SocketAddrUnix;
use subtle::ConstantTimeEq;

use crate::{ShareError, ShareErrorKind};

const PREFIX: &str = "@foreread-";
/// Bytes of the name and of the secret, each.
pub(crate) const BYTES: usize = 16;

/// What a worker's first message must contain. It is never printed.
#[derive(Clone, Copy)]
pub(crate) struct Secret([u8; BYTES]);

impl Secret {
    /// As it travels.
    pub(crate) fn expose(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// Whether `given` is it, in constant time.
    pub(crate) fn matches(&self, given: &[u8; BYTES]) -> bool {
        self.0.ct_eq(given).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Where a server is, and its secret. Printed for debugging it has its name alone.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    name: String,
    pub(crate) secret: Secret,
}

impl Address {
    /// A new one.
    pub(crate) fn new() -> io::Result<Self> {
        let name = format!("{PREFIX}{}", hex(&random()?));
        Ok(Self { name, secret: Secret(random()?) })
    }

    /// The address that `text` is.
    pub(crate) fn parse(text: &str) -> Result<Self, ShareError> {
        let parts = text.strip_prefix(PREFIX).and_then(|digits| digits.split_once(':'));
        let parsed = parts.and_then(|(name, secret)| {
            bytes(name)?;
            Some(Self { name: format!("{PREFIX}{name}"), secret: Secret(bytes(secret)?) })
        });
        // What was given may be most of a secret, and is not repeated.
        parsed.ok_or_else(|| {
            let detail = format!(
                "invalid address of a data source: expected {PREFIX}, 32 hexadecimal digits, a colon and 32 more, as \
                 the main process's server gives it"
            );
            ShareError::new(ShareErrorKind::Invalid, detail)
        })
    }

    /// As workers are given it, with the secret: `@foreread-`, 32 hexadecimal digits, a colon and 32 more.
    pub(crate) fn text(&self) -> String {
        format!("{}:{}", self.name, hex(&self.secret.0))
    }

    /// The socket's address.
    pub(crate) fn socket(&self) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(&self.name.as_bytes()[1..])
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

/// The bytes that 32 hexadecimal digits in lower case are.
fn bytes(digits: &str) -> Option<[u8; BYTES]> {
    let right = digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    right.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_new_and_are_read_back() {
        let (one, other) = (Address::new().unwrap(), Address::new().unwrap());
        assert_ne!(one.name, other.name);
        assert!(!one.secret.matches(other.secret.expose()));
        let text = one.text();
        let read = Address::parse(&text).unwrap();
        assert_eq!(read.name, one.name);
        assert!(read.secret.matches(one.secret.expose()));
        assert_eq!(read.socket().unwrap().abstract_name().unwrap(), &one.name.as_bytes()[1..]);
        for wrong in [
            "",
            "@",
            "/tmp/socket",
            &text[1..],
            &text[..20],
            &one.name,
            &format!("{text}0"),
            &text.to_uppercase(),
        ] {
            let error = Address::parse(wrong).unwrap_err();
            assert_eq!(error.kind(), ShareErrorKind::Invalid, "{wrong}");
        }
    }

    #[test]
    // semantics: WORKER-7
    fn secret_is_never_printed() {
        let address = Address::new().unwrap();
        let secret = hex(address.secret.expose());
        assert!(address.text().ends_with(&secret));
        let shown = format!("{address:?} {address:#?} {}", Address::parse(&address.text()[1..]).unwrap_err());
        assert!(shown.contains(&address.name) && !shown.contains(&secret), "{shown}");
    }
}
