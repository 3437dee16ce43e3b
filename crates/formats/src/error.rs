//! Errors of parsers, without the file's name, which the caller adds.

use std::error::Error;

/// The error of a read. The parsers pass it on.
pub type ReadError = Box<dyn Error + Send + Sync>;

/// Why the samples of a file cannot be found.
#[derive(Debug, thiserror::Error)]
#[error("byte {at}: {why}")]
pub struct FormatError {
    kind: FormatErrorKind,
    at: u64,
    why: String,
    source: Option<ReadError>,
}

/// The kinds of [`FormatError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FormatErrorKind {
    /// The file is damaged, was cut short, or is of another format.
    Damaged,
    /// It is valid, but its samples cannot be read one by one. The message has the remedy.
    Unsupported,
    /// It could not be read.
    Unread,
}

impl FormatError {
    /// The file is damaged at byte `at`.
    pub fn damaged(at: u64, why: impl Into<String>) -> Self {
        Self { kind: FormatErrorKind::Damaged, at, why: one_line(why.into()), source: None }
    }

    /// The file is valid, but not usable: the reason and the remedy.
    pub fn unsupported(at: u64, why: impl Into<String>) -> Self {
        Self { kind: FormatErrorKind::Unsupported, at, why: one_line(why.into()), source: None }
    }

    /// An element at `at` ends after the end of a file of `size` bytes.
    pub fn cut_short(at: u64, size: u64) -> Self {
        Self::damaged(at, format!("the element here does not fit in {size} bytes: the file was cut short"))
    }

    /// The same error in a file where a part that begins at `start` was read as a file.
    pub(crate) fn moved(self, start: u64) -> Self {
        Self { at: self.at.saturating_add(start), ..self }
    }

    /// The kind of the error.
    pub fn kind(&self) -> FormatErrorKind {
        self.kind
    }

    /// The offset in the file, in bytes.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The reason, without the offset.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The error of the read, if the kind is [`FormatErrorKind::Unread`].
    pub fn into_read_error(self) -> Option<ReadError> {
        self.source
    }
}

impl From<ReadError> for FormatError {
    fn from(error: ReadError) -> Self {
        // A source may itself be a parser: decoded bytes as a file.
        error.downcast::<Self>().map_or_else(
            |error| {
                let why = error.to_string();
                Self { kind: FormatErrorKind::Unread, at: 0, why, source: Some(error) }
            },
            |error| *error,
        )
    }
}

/// The text with control characters escaped. Names in files may have line breaks.
pub(crate) fn one_line(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_with_line_breaks_stay_on_one_line() {
        let error = super::FormatError::unsupported(7, "dataset a\nb\u{1b}é: refused");
        assert_eq!(error.to_string(), "byte 7: dataset a\\nb\\u{1b}é: refused");
    }
}
