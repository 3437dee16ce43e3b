//! Which parts of packed files are samples, where a format leaves a choice.

use serde::{Deserialize, Serialize};

use crate::Format;

/// The choices within a packed format. The defaults take the only candidate there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FormatOptions {
    /// The dataset of HDF5 files (`/images`), or the column of Parquet and Arrow files
    /// (`image.bytes`), whose rows are the samples.
    pub field: Option<String>,
    /// The dataset, column or part that has the labels. One with a usual name if it is `None`.
    pub label: Option<String>,
    /// The named database of an LMDB file.
    pub key: Option<String>,
    /// Whether a whole HDF5 dataset is one sample, instead of each of its rows.
    pub whole: bool,
    /// The length of a sample of a token file, in tokens.
    pub window: Option<u64>,
    /// The distance between the first tokens of two samples. The window's length if it is `None`.
    pub stride: Option<u64>,
    /// The type of tokens in files without a header, in NumPy's words: `u16`, `uint16`, `<u2`.
    pub dtype: Option<String>,
    /// Whether the documents of Megatron's token files are the samples, instead of windows.
    pub document: bool,
}

impl FormatOptions {
    /// Whether nothing was chosen.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The first choice that has no effect for a format, by its name in the command.
    pub(crate) fn misplaced(&self, format: Format) -> Option<&'static str> {
        use Format::{Arrow, Hdf5, LitData, Lmdb, Mds, Parquet, Tokens};
        let choices: [(&str, bool, &[Format]); 8] = [
            ("field", self.field.is_some(), &[Hdf5, Parquet, Arrow]),
            ("label", self.label.is_some(), &[Hdf5, Parquet, Arrow, Mds, LitData]),
            ("key", self.key.is_some(), &[Lmdb]),
            ("whole", self.whole, &[Hdf5]),
            ("window", self.window.is_some(), &[Tokens, LitData]),
            ("stride", self.stride.is_some(), &[Tokens, LitData]),
            ("dtype", self.dtype.is_some(), &[Tokens, LitData]),
            ("document", self.document, &[Tokens]),
        ];
        let misplaced = choices.into_iter().find(|(_, is_set, of)| *is_set && !of.contains(&format));
        misplaced.map(|(name, ..)| name)
    }

    /// Whether the samples are windows or documents of token files.
    pub(crate) fn is_tokens(&self) -> bool {
        self.window.is_some() || self.document
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_belong_to_formats() {
        let field = FormatOptions { field: Some("x".into()), ..FormatOptions::default() };
        assert_eq!(field.misplaced(Format::Hdf5), None);
        assert_eq!(field.misplaced(Format::Files), Some("field"));
        let whole = FormatOptions { whole: true, ..FormatOptions::default() };
        assert_eq!(whole.misplaced(Format::Parquet), Some("whole"));
        let window = FormatOptions { window: Some(2), key: Some("k".into()), ..FormatOptions::default() };
        assert_eq!(window.misplaced(Format::Tokens), Some("key"));
        assert_eq!(FormatOptions::default().misplaced(Format::Files), None);
    }
}
