//! Where a server is: a name in Linux's abstract namespace of sockets, 128 random bits of it.
//!
//! Such a name is no file: it ends with the last socket that has it. The price is that containers must share a network
//! namespace, as the processes of one training job do.

use rustix::net::SocketAddrUnix;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{ShareError, ShareErrorKind};

const PREFIX: &str = "@foreread-";

/// A name that nobody has yet, as users see it: `@foreread-` and 32 hexadecimal digits.
pub(crate) fn new() -> rustix::io::Result<String> {
    let mut bits = [0; 16];
    let mut filled = 0;
    while filled < bits.len() {
        filled += getrandom(&mut bits[filled..], GetRandomFlags::empty())?;
    }
    Ok(format!("{PREFIX}{:032x}", u128::from_le_bytes(bits)))
}

/// The socket address that `text` names.
pub(crate) fn parse(text: &str) -> Result<SocketAddrUnix, ShareError> {
    let digits = text.strip_prefix(PREFIX);
    let right = digits.is_some_and(|digits| {
        digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    });
    let wrong = || {
        let detail = format!(
            "{text:?} is no address of a data source: one looks like {PREFIX} and 32 hexadecimal digits"
        );
        ShareError::new(ShareErrorKind::Invalid, detail)
    };
    if !right {
        return Err(wrong());
    }
    SocketAddrUnix::new_abstract_name(&text.as_bytes()[1..]).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_new_and_are_read_back() {
        let (one, other) = (new().unwrap(), new().unwrap());
        assert_ne!(one, other);
        assert_eq!(parse(&one).unwrap().abstract_name().unwrap(), &one.as_bytes()[1..]);
        for wrong in ["", "@", "/tmp/socket", &one[1..], &one[..20], &format!("{one}0"), &one.to_uppercase()]
        {
            assert_eq!(parse(wrong).unwrap_err().kind(), ShareErrorKind::Invalid, "{wrong}");
        }
    }
}
