//! Which parts of packed files are samples, where a format leaves a choice.

use serde::{Deserialize, Serialize};

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

    /// Whether the samples are windows or documents of token files.
    pub(crate) fn is_tokens(&self) -> bool {
        self.window.is_some() || self.document
    }
}
