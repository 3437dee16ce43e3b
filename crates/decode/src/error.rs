//! Why a sample could not be decoded.

use std::fmt;

/// The category of a [`DecodeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The bytes are damaged or incomplete.
    Corrupt,
    /// The format, or a variant of it, is not supported.
    Unsupported,
    /// The image has more pixels than allowed.
    TooLarge,
}

/// The reason why a sample could not be decoded. It does not know the sample's name: the caller
/// adds that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    kind: DecodeErrorKind,
    message: String,
}

impl DecodeError {
    /// An error of a decoder.
    pub fn new(kind: DecodeErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(DecodeErrorKind::Corrupt, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(DecodeErrorKind::Unsupported, message)
    }

    /// The category.
    pub fn kind(&self) -> DecodeErrorKind {
        self.kind
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.message)
    }
}

impl std::error::Error for DecodeError {}
