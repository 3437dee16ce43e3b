//! The job's secret.

use std::fmt;
use std::io;
use std::sync::Arc;

/// What the ranks of a job have in common and nobody else has. It is never sent and never printed.
#[derive(Clone)]
pub struct Token(Arc<[u8]>);

/// The text is too short to be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeakTokenError;

impl fmt::Display for WeakTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = Token::LEAST;
        write!(
            f,
            "a token has at least {least} characters that nobody can guess: `openssl rand -hex 16` makes one"
        )
    }
}

impl std::error::Error for WeakTokenError {}

impl Token {
    /// The fewest bytes that a token may have.
    pub const LEAST: usize = 16;

    /// The token that `text` is: blanks around it do not count, and hexadecimal digits are taken as any other text.
    ///
    /// # Errors
    /// If it has fewer than [`LEAST`](Self::LEAST) bytes.
    pub fn new(text: impl AsRef<[u8]>) -> Result<Self, WeakTokenError> {
        let text = text.as_ref().trim_ascii();
        if text.len() < Self::LEAST { Err(WeakTokenError) } else { Ok(Self(text.into())) }
    }

    /// A new one: 32 random bytes of the operating system, as 64 hexadecimal digits.
    ///
    /// # Errors
    /// If the operating system has none.
    pub fn random() -> io::Result<Self> {
        let text: String = random()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(text.into_bytes().into()))
    }

    /// What all ranks of one node know, where the kernel says whose a socket is: no secret.
    pub(crate) fn known(text: &str) -> Self {
        Self(text.as_bytes().into())
    }

    /// The secret itself, to be handed to the job's other ranks where only its user can read it.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// 32 random bytes of the operating system.
pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_nothing_of_itself() {
        let token = Token::new("0123456789abcdef-secret").unwrap();
        assert_eq!(format!("{token:?} {token:#?}"), "Token(..) Token(..)");
    }

    #[test]
    fn what_can_be_guessed_is_refused() {
        for weak in ["", "secret", "0123456789abcde", "   0123456789abcde   \n"] {
            assert_eq!(Token::new(weak).unwrap_err(), WeakTokenError);
        }
        assert_eq!(Token::new(" 0123456789abcdef\n").unwrap().expose(), b"0123456789abcdef");
    }

    #[test]
    fn random_tokens_differ() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(one.expose(), other.expose());
        assert_eq!(one.expose().len(), 64);
        assert!(Token::new(one.expose()).is_ok());
    }
}
