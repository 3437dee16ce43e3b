//! Which parts of packed files are samples, where a format leaves a choice.

use serde::{Deserialize, Serialize};

use crate::Format;

/// The choices within a packed format. The defaults take the only candidate there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FormatOptions {
    /// The dataset of HDF5 files (`/images`), or the column of Parquet and Arrow files
    /// (`image.bytes`), whose rows are the samples. Of several, a sample has a row of
    /// each. `*` is the only candidate of each file, which may have another name in each. The
    /// beginning of the keys of LMDB files whose values are samples. Of several, a sample has the
    /// values whose keys have the same rest. `data` or `record` of RecordIO
    /// files: a packed image, or all of a record.
    pub fields: Vec<String>,
    /// The dataset, column or part that has the labels, or the beginning of the keys of labels in
    /// LMDB files. One with a usual name if it is `None`. With `*`, that name may differ from file
    /// to file.
    pub label: Option<String>,
    /// Columns of Parquet and Arrow files whose numbers and texts samples have as values.
    #[serde(default)]
    pub columns: Vec<String>,
    /// The named database of an LMDB file. `*` is the only one of each file.
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
    /// The number of tokens of the samples that Megatron makes of documents (`GPTDataset`). Each
    /// has one token more.
    pub pack: Option<u64>,
    /// The seed of Megatron's order. 1234 if it is `None`, as in Megatron.
    pub pack_seed: Option<u32>,
    /// The number of samples that are requested of Megatron. One epoch if it is `None`.
    pub pack_samples: Option<u64>,
    /// The parts of Megatron's split, as in `969,30,1`, and the one whose samples are wanted:
    /// `valid:969,30,1`. The first part if none is named, all documents if it is `None`.
    pub pack_split: Option<String>,
}

/// The only candidate of each file, whatever its name.
const ANY: &str = "*";

/// The common choices of shards of several names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedAlike {
    /// Whether samples are in parts of one name.
    pub(crate) samples: bool,
    /// Whether labels are.
    pub(crate) labels: bool,
}

impl FormatOptions {
    /// The choices within one file of a format, and the common choices of all files.
    pub(crate) fn within(&self, format: Format) -> (Self, NamedAlike) {
        let mut within = self.clone();
        let is_any = |choice: &Option<String>| choice.as_deref() == Some(ANY);
        let mut alike = NamedAlike { samples: true, labels: true };
        match format {
            Format::Lmdb if is_any(&self.key) => (within.key, alike.samples) = (None, false),
            Format::Hdf5 | Format::Parquet | Format::Arrow => {
                if self.fields == [ANY] {
                    (within.fields, alike.samples) = (Vec::new(), false);
                }
                if is_any(&self.label) {
                    (within.label, alike.labels) = (None, false);
                }
            }
            _ => {}
        }
        (within, alike)
    }

    /// Whether nothing was chosen.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The first choice that has no effect for a format, by its name in the command.
    pub(crate) fn misplaced(&self, format: Format) -> Option<&'static str> {
        use Format::{Arrow, Hdf5, LitData, Lmdb, Mds, Parquet, RecordIo, Tokens};
        let choices: [(&str, bool, &[Format]); 14] = [
            ("field", !self.fields.is_empty(), &[Lmdb, Hdf5, Parquet, Arrow, RecordIo]),
            ("a second field", self.fields.len() > 1, &[Lmdb, Hdf5, Parquet, Arrow]),
            ("column", !self.columns.is_empty(), &[Parquet, Arrow]),
            ("label", self.label.is_some(), &[Lmdb, Hdf5, Parquet, Arrow, Mds, LitData]),
            ("key", self.key.is_some(), &[Lmdb]),
            ("whole", self.whole, &[Hdf5]),
            ("window", self.window.is_some(), &[Tokens, LitData]),
            ("stride", self.stride.is_some(), &[Tokens, LitData]),
            ("dtype", self.dtype.is_some(), &[Tokens, LitData]),
            ("document", self.document, &[Tokens]),
            ("pack", self.pack.is_some(), &[Tokens]),
            ("pack_seed", self.pack_seed.is_some(), &[Tokens]),
            ("pack_samples", self.pack_samples.is_some(), &[Tokens]),
            ("pack_split", self.pack_split.is_some(), &[Tokens]),
        ];
        let misplaced = choices.into_iter().find(|(_, is_set, of)| *is_set && !of.contains(&format));
        misplaced.map(|(name, ..)| name)
    }

    /// Why choices do not fit each other.
    pub(crate) fn conflict(&self) -> Option<&'static str> {
        let has_pack = self.pack_seed.is_some() || self.pack_samples.is_some() || self.pack_split.is_some();
        match () {
            () if self.window.is_none() && (self.stride.is_some() || self.dtype.is_some()) => {
                Some("stride and dtype need a window")
            }
            () if self.fields.len() > 1 && self.fields.iter().any(|field| field == ANY) => {
                Some("the field '*' is the only candidate of each file, so it excludes other fields")
            }
            () if self.pack.is_none() && has_pack => Some("pack_seed, pack_samples and pack_split need pack"),
            () if self.pack.is_some() && (self.window.is_some() || self.document) => {
                Some("pack excludes window and document")
            }
            () => None,
        }
    }

    /// Whether the samples are windows, documents or packed documents of token files.
    pub fn is_tokens(&self) -> bool {
        self.window.is_some() || self.document || self.pack.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_belong_to_formats() {
        let field = FormatOptions { fields: vec!["x".into()], ..FormatOptions::default() };
        assert_eq!(field.misplaced(Format::Hdf5), None);
        assert_eq!(field.misplaced(Format::Files), Some("field"));
        let fields = FormatOptions { fields: vec!["x".into(), "y".into()], ..FormatOptions::default() };
        assert_eq!(fields.misplaced(Format::Hdf5), None);
        assert_eq!(fields.misplaced(Format::RecordIo), Some("a second field"));
        let pack = FormatOptions { pack_seed: Some(1), ..FormatOptions::default() };
        assert_eq!(pack.misplaced(Format::Tokens), None);
        assert_eq!(pack.conflict(), Some("pack_seed, pack_samples and pack_split need pack"));
        let whole = FormatOptions { whole: true, ..FormatOptions::default() };
        assert_eq!(whole.misplaced(Format::Parquet), Some("whole"));
        let window = FormatOptions { window: Some(2), key: Some("k".into()), ..FormatOptions::default() };
        assert_eq!(window.misplaced(Format::Tokens), Some("key"));
        assert_eq!(FormatOptions::default().misplaced(Format::Files), None);
        let several = FormatOptions { fields: vec!["*".into(), "y".into()], ..FormatOptions::default() };
        assert!(several.conflict().unwrap().contains("excludes other fields"));
        // In LMDB files, it is the beginning of keys.
        let any = FormatOptions { fields: vec!["*".into()], ..FormatOptions::default() };
        assert_eq!(any.within(Format::Lmdb).0, any);
    }
}
