//! The ways in which files become samples of several files.

use serde::{Deserialize, Serialize};

/// How files become samples of several files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Grouping {
    /// Each file is a sample.
    #[default]
    None,
    /// Files whose paths are equal up to the first dot of their last part are a sample. The text
    /// after that dot, in lower case, is the name of the field.
    Stem,
    /// Each field has a directory. Files with one path below their directory, but for the last
    /// ending, are a sample.
    Directories(Vec<(String, String)>),
}
