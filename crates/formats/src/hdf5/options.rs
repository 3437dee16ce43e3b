//! The datasets of a file that are samples, fields and labels, as the user has chosen them.

/// The part of a file to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hdf5Options {
    /// The path of the dataset whose rows are samples, or of the group whose datasets are samples.
    /// `None` takes the only one there is.
    pub dataset: Option<String>,
    /// The paths of further datasets. A sample has a row of each, after that of `dataset`, and each
    /// is a field.
    pub joined: Vec<String>,
    /// The path of the dataset with labels. `None` takes one with a usual name and as many rows.
    pub labels: Option<String>,
    /// The file is one sample: the whole dataset.
    pub whole: bool,
}
