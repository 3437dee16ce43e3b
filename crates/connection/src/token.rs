//! The job's token: generation and strength.
//!
//! An eavesdropper can test tokens against a recorded handshake, offline and on many machines. So a
//! token must be random, and a text without 128 bits of entropy is refused. The check is an upper
//! bound by length and alphabet. It detects short tokens, and does not detect long words chosen by
//! a person. The price is that `hunter2` is refused on a private network too.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use hkdf::Hkdf;
use sha2::{Digest, Sha256};

/// The secret that the ranks of one job share. It is never sent and never printed.
#[derive(Clone)]
pub struct Token(Arc<[u8]>);

/// The token is too weak: too short for its alphabet, or with too few different characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeakTokenError {
    bits: u32,
    different: usize,
}

impl WeakTokenError {
    /// The upper bound of the entropy in bits.
    pub fn bits(&self) -> u32 {
        self.bits
    }
}

impl fmt::Display for WeakTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bits, least) = (self.bits, Token::LEAST_BITS);
        if bits < least {
            write!(f, "a token needs {least} random bits and this one has at most {bits}")?;
        } else {
            let least = Token::LEAST_DIFFERENT;
            write!(
                f,
                "a random token has at least {least} different characters and this one has {}",
                self.different
            )?;
        }
        f.write_str(": `foreread token` prints a new one")
    }
}

impl std::error::Error for WeakTokenError {}

impl Token {
    /// The minimum entropy in bits.
    pub const LEAST_BITS: u32 = 128;

    /// The minimum number of different characters. A random token has fewer once in 10^12 with
    /// hexadecimal digits, and once in 10^9 with decimal digits.
    pub const LEAST_DIFFERENT: usize = 6;

    /// Checks and takes `text` without surrounding white space.
    ///
    /// Its entropy is its length times that of a character in the smallest alphabet with all of its
    /// characters. The alphabets are digits, hexadecimal digits, letters of one case, letters and
    /// digits, base64, printable characters, and bytes. A repeated text counts once.
    ///
    /// # Errors
    /// If it has fewer bits than [`LEAST_BITS`](Self::LEAST_BITS), or fewer different characters
    /// than [`LEAST_DIFFERENT`](Self::LEAST_DIFFERENT).
    pub fn new(text: impl AsRef<[u8]>) -> Result<Self, WeakTokenError> {
        let text = text.as_ref().trim_ascii();
        let weak = WeakTokenError { bits: max_bits(text), different: distinct(text) };
        let enough = weak.bits >= Self::LEAST_BITS && weak.different >= Self::LEAST_DIFFERENT;
        if enough { Ok(Self(text.into())) } else { Err(weak) }
    }

    /// A new token: 16 random bytes of the operating system as 32 hexadecimal digits.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let text = hexadecimal(&random()?[..16]);
        Ok(Self(text.into_bytes().into()))
    }

    /// A public token for the ranks of one node, where the kernel authenticates the user. It is not
    /// secret.
    pub fn known(text: &str) -> Self {
        Self(text.as_bytes().into())
    }

    /// A proof, as text, that an owner of all of these tokens has written `bytes`. None of the
    /// tokens follows from it.
    pub fn seal<'a>(tokens: impl IntoIterator<Item = &'a Self>, bytes: &[u8]) -> String {
        let mut secret = Vec::new();
        for token in tokens {
            secret.extend((token.0.len() as u64).to_le_bytes());
            secret.extend_from_slice(&token.0);
        }
        let mut seal = [0; 32];
        // One block of the hash is never too long.
        let _ =
            Hkdf::<Sha256>::new(Some(b"foreread seal"), &secret).expand(&Sha256::digest(bytes), &mut seal);
        hexadecimal(&seal)
    }

    /// The secret, for passing it to the job's other ranks in a place that only its user can read.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Whether an alphabet contains a character.
type Contains = fn(&u8) -> bool;

/// The alphabets in ascending order, and the entropy of a character in thousandths of a bit,
/// rounded down.
const ALPHABETS: [(Contains, usize); 9] = [
    (u8::is_ascii_digit, 3_321),
    (u8::is_ascii_hexdigit, 4_000),
    (u8::is_ascii_lowercase, 4_700),
    (u8::is_ascii_uppercase, 4_700),
    (|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), 5_169),
    (|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit(), 5_169),
    (u8::is_ascii_alphabetic, 5_700),
    (u8::is_ascii_alphanumeric, 5_954),
    // Both variants of base64.
    (|byte| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte), 6_000),
];
/// One of the 94 printable characters. A character beyond ASCII counts the same, because a person
/// typed it.
const PRINTABLE_BITS: usize = 6_554;
/// A byte that is not text.
const BYTE_BITS: usize = 8_000;

/// The upper bound of the entropy of `text` in bits.
fn max_bits(text: &[u8]) -> u32 {
    // The padding of base64 is not random.
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let text = &text[..period(&text[..end])];
    let alphabet = ALPHABETS.iter().find(|(holds, _)| text.iter().all(holds));
    let (length, each) = match (alphabet, std::str::from_utf8(text)) {
        (Some((_, each)), _) => (text.len(), *each),
        (None, Ok(text)) => (text.chars().count(), PRINTABLE_BITS),
        (None, Err(_)) => (text.len(), BYTE_BITS),
    };
    u32::try_from(length.saturating_mul(each) / 1000).unwrap_or(u32::MAX)
}

/// The shortest part of which `text` is a repetition, or all of it.
fn period(text: &[u8]) -> usize {
    let repeats = |length: &usize| text[*length..] == text[..text.len() - length];
    (1..=text.len() / 2).find(repeats).unwrap_or(text.len())
}

/// The number of different bytes.
fn distinct(text: &[u8]) -> usize {
    text.iter().collect::<BTreeSet<_>>().len()
}

/// 32 random bytes of the operating system.
pub fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Two hexadecimal digits per byte.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRONG: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";

    /// The text of the error.
    fn refusal(text: impl AsRef<[u8]>) -> String {
        Token::new(text).unwrap_err().to_string()
    }

    #[test]
    fn seal_needs_all_tokens_and_the_bytes() {
        let tokens = ["one token", "another"].map(Token::known);
        let seal = Token::seal(&tokens, b"text");
        assert_eq!(seal, Token::seal(&tokens, b"text"));
        assert_ne!(seal, Token::seal(&tokens, b"texT"));
        assert_ne!(seal, Token::seal(&tokens[..1], b"text"));
        assert_ne!(
            Token::seal(&["ab", "c"].map(Token::known), b""),
            Token::seal(&["a", "bc"].map(Token::known), b"")
        );
        assert_eq!(seal.len(), 64);
    }

    #[test]
    fn token_is_never_printed() {
        let token = Token::new(STRONG).unwrap();
        assert_eq!(format!("{token:?} {token:#?}"), "Token(..) Token(..)");
    }

    #[test]
    // semantics: RANK-32
    fn token_of_fewer_than_128_bits_is_refused_by_its_alphabet() {
        // The longest weak token of each alphabet: one more character is enough.
        let texts = [
            ("314159265358979323846264338327950288419", 38, 126),
            ("b7e1c95a03f64d2893ab5c17e0d68f42", 31, 124),
            ("B7e1c95A03f64d2893Ab5c17E0d68f42", 31, 124),
            ("qwmzkvtbnxclpjhgfdsayuioerqz", 27, 126),
            ("QWMZKVTBNXCLPJHGFDSAYUIOERQZ", 27, 126),
            ("qwmz0vtbn1clpj2gfdsa3uioe", 24, 124),
            ("qWmZkVtBnXcLpJhGfDsAyUi", 22, 125),
            ("qWm0kVtB1XcLp2hGfDsAyU", 21, 125),
            ("qWm0kVtB-XcLp2hGfDsAy_", 21, 126),
            ("qWm0kVtB!XcLp2hG{DsAy", 19, 124),
        ];
        for (text, most, bits) in texts {
            let weak = Token::new(&text[..most]).unwrap_err();
            assert_eq!(weak.bits(), bits, "{text}");
            assert!(Token::new(&text[..=most]).is_ok(), "{text}");
        }
        let bytes: Vec<u8> = (0..16).map(|number| 255 - number * 7).collect();
        assert_eq!(Token::new(&bytes[..15]).unwrap_err().bits(), 120);
        assert!(Token::new(&bytes).is_ok());
        // Padding and multi-byte characters do not count more.
        assert_eq!(Token::new("qWm0kVtB-XcLp2hGfDsAy====").unwrap_err().bits(), 126);
        assert_eq!(Token::new("ä".repeat(3) + "äöüßéèñø").unwrap_err().bits(), 72);
        assert_eq!(Token::new("").unwrap_err().bits(), 0);
    }

    #[test]
    // semantics: RANK-32
    fn token_that_repeats_itself_counts_once() {
        assert_eq!(Token::new("0123456789abcdef".repeat(2)).unwrap_err().bits(), 64);
        assert_eq!(Token::new("hunter2-".repeat(8)).unwrap_err().bits(), 48);
        assert_eq!(Token::new("a".repeat(100)).unwrap_err().bits(), 4);
        assert_eq!(Token::new(format!("{STRONG}{STRONG}")).unwrap().expose().len(), 64);
    }

    #[test]
    // semantics: RANK-32
    fn token_of_few_different_characters_is_refused() {
        let text = format!("{}bcde", "a".repeat(60));
        assert!(
            refusal(text).contains("at least 6 different characters and this one has 5: `foreread token`")
        );
        assert!(Token::new(format!("{}bcdef", "a".repeat(60))).is_ok());
    }

    #[test]
    fn error_of_a_weak_token_names_bits_and_not_the_token() {
        let line = refusal(" hunter2\n");
        let expected =
            "a token needs 128 random bits and this one has at most 36: `foreread token` prints a new one";
        assert_eq!(line, expected);
    }

    #[test]
    fn white_space_around_a_token_is_removed() {
        assert_eq!(Token::new(format!(" {STRONG}\n")).unwrap().expose(), STRONG.as_bytes());
        assert!(Token::new(format!("{}{}", " ".repeat(40), &STRONG[..31])).is_err());
    }

    #[test]
    fn random_tokens_differ_and_are_strong() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(one.expose(), other.expose());
        assert_eq!(one.expose().len(), 32);
        assert!(Token::new(one.expose()).is_ok());
    }
}
