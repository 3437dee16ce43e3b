//! Finds the samples in files of scientific and packed formats.
//!
//! A parser reads headers, directories and trees of a file, and returns where each sample lies. It
//! never reads the samples. After that a sample is one extent, like the bytes of a plain file.
//!
//! Decision: the parsers are our own, and they ask for bytes through [`FileSource`]. So one parser
//! reads local files, Lustre and S3, no C library is needed, and hostile files meet checked bounds
//! only. The price is that each format's rules are written here again. They are tested against
//! files of the real writers.
//!
//! [`source`] keeps requests few. All parsers return [`found`]. Samples that are compressed are
//! decoded when they are read: [`decode`] has the decoders.

pub mod arrow_stream;
mod columns;
pub mod decode;
mod element;
mod error;
pub mod found;
pub mod hdf5;
mod joined;
mod le;
pub mod litdata;
pub mod lmdb;
pub mod mds;
pub mod megatron;
pub mod npy;
pub mod parquet;
mod parts;
pub mod recipes;
pub mod source;
pub mod tokens;

pub use error::{FormatError, FormatErrorKind};
pub use found::{
    ArrayType, ChosenParts, ColumnValues, Extents, FieldExtent, FoundSamples, MadeRow, MadeRows, MorePart,
    Run, ValueColumn,
};
pub use source::{BlockReader, FileSource, ReadError};
